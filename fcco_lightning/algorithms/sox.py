"""SOX."""

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.estimators import Average


class SOX(SingleLoop):
    r"""``u_i <- (1 - gamma) u_i + gamma g_i``, ``G = (1/B1) sum_i Jac g_i^T grad f_i(u_i)`` with the OLD u_i.

    With ``optimizer: HeavyBall`` (beta in the paper's notation) it is Alg. 1 of the SOX paper; with ``ProximalSGD`` it
    is the convex case of Thm 3; with a ``SquaredHingePenalty`` it is the baseline of section 6 of the SONEX paper; with
    the objective ``GlobalContrastive`` it is SogCLR.

    Args:
        gamma: weight of the new value, in (0, 1] (SOX paper: .1 for CIFAR-10, .5 for CIFAR-100).
        objective_gamma: gamma for the objective's inner functions; as ``gamma`` if None.
    """

    def __init__(self, gamma: float = 0.5, objective_gamma: float | None = None) -> None:
        averaging = Average(gamma if objective_gamma is None else objective_gamma)
        super().__init__(Average(gamma), objective_estimator=averaging)
