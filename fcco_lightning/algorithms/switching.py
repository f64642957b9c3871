"""The switching subgradient method."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.checks import non_negative
from fcco_lightning.constraints import Constraint, HingePenalty
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.engine import Estimate, Problem, Seen
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Average
from fcco_lightning.objectives import Objective


class Switching(SingleLoop):
    r"""``G = grad h_j(w)`` of the most violated row j if ``max_i h_i(u_i) > tolerance``, else ``G = grad F(w)``.

    Every step uses the gradient of either the objective or one constraint, so there is no weight between them; with a
    decreasing step size the iterates settle at the boundary of the feasible set.  The maximum is over the rows in the
    batch, and h_i is taken at the running average u_i, which is updated in every step as in SONX.  It is a baseline:
    the source uses exact or mini-batch values of h, and returns a mean over the feasible iterates; here
    ``--feasible.enabled true`` chooses one of them.

    There is no penalty, and no multiplier.  Use plain SGD (``optimizer: HeavyBall`` with beta 1): momentum would mix
    the two kinds of gradients.

    Args:
        gamma: weight of the new value in a row, in (0, 1].
        gamma_prime: weight of the correction, >= 0.
        tolerance: largest h at which a step still uses the objective, >= 0.

    Raises:
        ConfigError: if a number is out of range; from ``pose`` if there is a penalty.
    Source: Huang and Lin, Oracle complexity of single-loop switching subgradient methods (2023), Algorithm 1.
    """

    penalises = False

    def __init__(self, gamma: float = 0.02, gamma_prime: float = 0.98, tolerance: float = 0.0) -> None:
        super().__init__(Average(gamma, gamma_prime))
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
                f"Switching takes no penalty, got {type(penalty).__name__}: each step descends either the objective "
                "or a constraint. Leave penalty out, or use SONEX."
            )
        return super().pose(objective, constraints, HingePenalty(1.0), **kwargs)  # [h]_+ has the slope of h where h > 0

    def step(self, g0: Tensor | None, terms: Sequence[Seen]) -> Estimate:
        estimate = Estimate(g0)
        violations: list[Tensor] = []
        for seen in terms:
            values = self.track(estimate, seen)
            if seen.term.name == "objective":
                estimate.add(seen, values)
                continue
            estimate.add(seen, values.detach())
            violations.append(torch.where(seen.present, values, -torch.inf))
        if not violations:
            return estimate
        worst = torch.cat(violations).max(0).values
        estimate.value = torch.where(worst > self.tolerance, worst, estimate.value.to(worst))
        return estimate
