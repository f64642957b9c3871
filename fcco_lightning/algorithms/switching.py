"""The switching subgradient method."""

from collections.abc import Sequence
from typing import Any

import torch

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.checks import non_negative
from fcco_lightning.constraints import Constraint, HingePenalty
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.engine import Measured, Problem, Surrogate
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import CorrectedEMA
from fcco_lightning.objectives import Objective


class Switching(SingleLoop):
    r"""``G = grad h_j(w)`` of the row violated most if ``max_i h_i(u_i) > tolerance``, else ``G = grad F(w)``.

    Every step serves either the objective or one constraint, so there is no weight between them; a step size that falls
    lets the iterates settle at the border between both.  The h_i are those at the remembered rows u_i of which the
    batch speaks, which follow mini-batches as those of SONX do; rows move in every step.  It is a baseline: the source
    takes exact or mini-batch values of h, and returns a mean over the iterates that were feasible, here
    ``--feasible.enabled true`` chooses one.

    There is no penalty, and no multiplier.  Plain SGD (``optimizer: HeavyBall`` with beta 1): a momentum would mix the
    two kinds of gradients.

    Args:
        gamma: weight of the new value in a row, in (0, 1].
        gamma_prime: weight of the correction, >= 0.
        tolerance: largest h at which the objective has its turn, >= 0.

    Raises:
        ConfigError: if a number is out of range; when the problem is posed, if there is a penalty.
    Source: Huang and Lin, Oracle complexity of single-loop switching subgradient methods (2023), Algorithm 1.
    """

    penalises = False

    def __init__(self, gamma: float = 0.02, gamma_prime: float = 0.98, tolerance: float = 0.0) -> None:
        super().__init__(CorrectedEMA(gamma, gamma_prime))
        self.tolerance = non_negative("tolerance", tolerance)

    def pose(
        self,
        objective: Objective,
        constraints: Sequence[Constraint] = (),
        penalty: Enforcement | None = None,
        **kwargs: Any,
    ) -> Problem:
        if penalty is not None:
            raise ConfigError(
                f"Switching takes no penalty, got {type(penalty).__name__}: a step serves the objective or a "
                "constraint. Leave penalty out, or use SONEX."
            )
        return super().pose(objective, constraints, HingePenalty(1.0), **kwargs)  # [h]_+, with the slope of h

    def step(self, now: Measured) -> Surrogate:
        surrogate, worst, violated = Surrogate(now.direct), None, None
        for reading in now.readings:
            tracked, outer = self.track(surrogate, reading)
            if reading.term.name == "objective":
                self.add(surrogate, reading, tracked, outer)
                continue
            self.add(surrogate, reading, tracked._replace(weights=torch.zeros_like(tracked.weights)), outer)
            h, row = torch.where(reading.present, outer.value(tracked.at), -torch.inf).max(0, keepdim=True)
            slope = tracked.weights.index_select(0, row).to(reading.values.dtype) * reading.values.index_select(0, row)
            if worst is None or violated is None:
                worst, violated = h, slope.sum()
            else:
                worst, violated = torch.maximum(h, worst), torch.where(h > worst, slope.sum(), violated)
        value = surrogate.value
        if worst is None or violated is None:
            return surrogate
        return surrogate.replaced(torch.where(worst > self.tolerance, violated.to(value), value).sum())
