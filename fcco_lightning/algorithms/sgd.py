"""Empirical risk minimisation."""

from collections.abc import Sequence

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.constraints import Constraint
from fcco_lightning.estimators import Minibatch
from fcco_lightning.objectives import Objective


class SGD(SingleLoop):
    r"""``w <- step(w, grad F(w; B))``, the optimizer's step with the mini-batch gradient: the unconstrained baseline.

    Constraints are measured at validation but not penalised.  With a compositional objective it is :class:`BSGD`.
    """

    def __init__(self) -> None:
        super().__init__(Minibatch())

    def posed(self, objective: Objective, constraints: Sequence[Constraint]) -> tuple[Objective, Sequence[Constraint]]:  # noqa: ARG002
        return objective, ()
