"""The worst groups and samples, and averages that lean to them."""
