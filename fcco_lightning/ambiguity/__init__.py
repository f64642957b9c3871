"""Ambiguity sets: the weights q that the worst case is taken over."""

from fcco_lightning.ambiguity.base import AmbiguitySet
from fcco_lightning.ambiguity.capped_simplex import CappedSimplex

__all__ = ["AmbiguitySet", "CappedSimplex"]
