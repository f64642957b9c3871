"""Distributionally robust objectives: worst cases, or averages near them, over groups and samples."""
