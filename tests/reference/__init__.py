"""A second implementation in NumPy, written from the papers alone, to compare the package with step by step."""
