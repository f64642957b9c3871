"""Exact resume: a run that is continued is the run that was never stopped, bit for bit."""
