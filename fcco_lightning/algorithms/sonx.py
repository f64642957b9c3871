"""SONX."""

from typing import Literal

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.estimators import Average


class SONX(SingleLoop):
    r"""The u-update of SONEX without smoothing: ``G = (1/B1) sum_i Jac g_i^T s_i``, s_i a subgradient of f_i at u_i.

    The paper uses plain SGD (``optimizer: HeavyBall`` with beta 1).  At the kink of a hinge the subgradient is 0.

    Args:
        gamma: weight of the new value, in (0, 1] (SONEX paper, F.2: .8).
        gamma_prime: weight of the correction, or ``theory`` (SONEX paper, F.2: .1).
    Source: SONEX paper, Table 1, section 6, F.2.
    """

    def __init__(self, gamma: float = 0.8, gamma_prime: float | Literal["theory"] = 0.1) -> None:
        super().__init__(Average(gamma, gamma_prime))
