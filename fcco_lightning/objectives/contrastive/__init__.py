"""Losses that set every sample against all others: images and texts, views, classes."""
