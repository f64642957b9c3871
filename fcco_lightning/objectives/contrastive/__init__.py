"""Losses that compare every sample with all others: images and texts, views, classes."""
