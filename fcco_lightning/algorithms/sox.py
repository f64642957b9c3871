"""SOX."""

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.estimators import EMA


class SOX(Algorithm):
    r"""``u_i <- (1 - gamma) u_i + gamma g_i``, ``G = (1/B1) sum_i Jac g_i^T grad f_i(u_i)`` with the OLD u_i.

    With ``optimizer: HeavyBall`` (beta in the paper's notation) it is 001 Alg. 1; with ``ProximalSGD`` the convex
    case of Thm 3.  With a ``SquaredHingePenalty`` it is the baseline of 004 section 6.

    Args:
        gamma: weight of the new value, in (0, 1] (001: .1 for CIFAR-10, .5 for CIFAR-100).
    """

    def __init__(self, gamma: float = 0.5) -> None:
        super().__init__(EMA(gamma))
