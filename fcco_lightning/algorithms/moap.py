"""MOAP."""

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.estimators import ScaledAverage


class MOAP(SingleLoop):
    r"""``u_i <- (1 - gamma) u_i + gamma (n/B1) g_i`` (sampled) or ``(1 - gamma) u_i`` (all others), momentum on G.

    G uses the new u_i; ``optimizer: HeavyBall`` gives the momentum.  Every step changes all n rows.

    Args:
        gamma: weight of the new value, in (0, 1].
    Source: SOX paper, eq. (3), which describes the step as "the same adaptation of NASA".
    """

    def __init__(self, gamma: float = 0.9) -> None:
        super().__init__(ScaledAverage(gamma))
