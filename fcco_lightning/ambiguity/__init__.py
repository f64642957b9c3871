"""Ambiguity sets: the weights q that the worst case is taken over, and the penalties on them."""

from fcco_lightning.ambiguity.balls import ChiSquareBall, KLBall
from fcco_lightning.ambiguity.base import AmbiguitySet, BestResponse
from fcco_lightning.ambiguity.penalties import ChiSquarePenalty, DivergencePenalty, EuclideanPenalty, KLPenalty
from fcco_lightning.ambiguity.simplex import CappedSimplex, Simplex
from fcco_lightning.ambiguity.spectral import SpectralRisk

__all__ = [
    "AmbiguitySet",
    "BestResponse",
    "CappedSimplex",
    "ChiSquareBall",
    "ChiSquarePenalty",
    "DivergencePenalty",
    "EuclideanPenalty",
    "KLBall",
    "KLPenalty",
    "Simplex",
    "SpectralRisk",
]
