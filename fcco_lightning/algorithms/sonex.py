"""SONEX."""

from typing import Literal

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.estimators import Average
from fcco_lightning.objectives import Measurable, Objective
from fcco_lightning.outer import MoreauSmoothing, Smoothing

_LAM = 0.01


class SONEX(SingleLoop):
    r"""Smoothed outer functions, corrected running averages, one loop (SONEX paper, Alg. 1; constraints: eq. (40)).

    It is meant for non-smooth outer functions f_i, such as the hinge of a constraint, which need not be convex.  Each
    is replaced by its Moreau envelope ``f_{i,lam}(u) = min_v f_i(v) + |v - u|^2 / (2 lam)``, which is smooth (a smooth
    f_i stays as it is).  For each inner function g_i(w) a running average u_i is kept, with a correction for the last
    change of the weights:

    ``u_i <- (1-gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))`` on the same samples,
    ``G = grad g_0 + (1/B1) sum_i Jac g_i(w_t)^T grad f_{i,lam}(u_i)`` with the OLD u_i (erratum SONEX-4).
    Momentum type: ``optimizer: HeavyBall``; Adam type (App. E): ``optimizer: AdamType`` or ``torch.optim.AdamW``.
    With gamma' = 0 and lam -> 0 it is SOX.

    Args:
        gamma: weight of the new value, in (0, 1].
        gamma_prime: weight of the correction, >= 0, or ``theory`` (Thm 4.7); 0 saves the second forward pass.
        lam: outer smoothing, > 0; None for .01, or for the objective's outer function
            :attr:`~fcco_lightning.Objective.recommended_lam`, if FCCOModule trains as the objective recommends.
        fresh: whether the outer gradient is taken at the new u_i instead of the old one.
        objective_gamma: gamma for the objective's inner functions (SONEX paper, F.3); as ``gamma`` if None.
        objective_gamma_prime: gamma' for the objective's inner functions; as ``gamma_prime`` if None.

    Raises:
        ConfigError: if an argument is out of range, or an outer function has no envelope in closed form.
    """

    def __init__(
        self,
        gamma: float = 0.8,
        gamma_prime: float | Literal["theory"] = 0.1,
        lam: float | None = None,
        fresh: bool = False,
        objective_gamma: float | None = None,
        objective_gamma_prime: float | Literal["theory"] | None = None,
    ) -> None:
        super().__init__(
            Average(gamma, gamma_prime, fresh),
            MoreauSmoothing(_LAM if lam is None else lam),
            objective_estimator=Average(
                gamma if objective_gamma is None else objective_gamma,
                gamma_prime if objective_gamma_prime is None else objective_gamma_prime,
                fresh,
            ),
        )
        self.lam = lam

    def smoothing_of(self, measurable: Measurable) -> Smoothing:
        if self.lam is not None or not isinstance(measurable, Objective) or not measurable.recommended:
            return self.smoothing
        return self.smoothing if measurable.recommended_lam is None else MoreauSmoothing(measurable.recommended_lam)
