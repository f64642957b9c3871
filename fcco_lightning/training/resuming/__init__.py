"""Exact resume: a resumed run equals an uninterrupted run bit for bit."""
