"""MSVR."""

from typing import Literal

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.estimators import CorrectedEMA
from fcco_lightning.steps import Storm


class MSVR(Algorithm):
    r"""Corrected average of u_i and a STORM gradient, ``w <- step(w, v)``.

    ``u_i <- (1-gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))`` and
    ``v <- G(w_t) + (1-b)(v - G(w_{t-1}))`` on the same samples; two forwards and two backwards.

    Args:
        gamma: weight of the new value, in (0, 1) (000: .1, .5, .9).
        gamma_prime: weight of the correction, or ``theory``: ``(n - B1)/(B1 (1-gamma)) + 1 - gamma``.
        b: weight of the plain gradient in v, in (0, 1].
    Source: described in 000 section 3.2 and 004 section 4.1.
    """

    def __init__(self, gamma: float = 0.5, gamma_prime: float | Literal["theory"] = "theory", b: float = 0.1) -> None:
        super().__init__(CorrectedEMA(gamma, gamma_prime, fresh=True), step=Storm(b))
