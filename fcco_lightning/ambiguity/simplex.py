"""All weights: the set behind the worst case itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.ambiguity.base import AmbiguitySet, Weights
from fcco_lightning.numerics import project_to_simplex


@dataclass(frozen=True)
class Simplex(AmbiguitySet):
    """``{q >= 0, sum q = 1}``: ``max <q, R>`` is the largest R_i; of equal ones the first gets the weight."""

    def worst_case(self, risks: Tensor) -> Tensor:
        return torch.zeros_like(risks).scatter_(0, risks.argmax(0, keepdim=True), 1.0)

    def nearest(self, v: Tensor) -> Weights:
        q = project_to_simplex(v)
        return Weights(q, v.max() - q.max())

    def nearest_kl(self, log_p: Tensor) -> Weights:
        return Weights(log_p.softmax(0), log_p.logsumexp(0) - torch.full_like(log_p[0], len(log_p)).log() - 1)
