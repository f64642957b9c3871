"""Empirical risk minimisation."""

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.estimators import Minibatch


class SGD(Algorithm):
    r"""``w <- step(w, grad of the objective on the batch)``: the unconstrained baseline.

    Constraints are measured at validation but not penalised.  With a compositional objective it is :class:`BSGD`.
    """

    uses_constraints = False

    def __init__(self) -> None:
        super().__init__(Minibatch())
