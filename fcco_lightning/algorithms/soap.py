"""SOAP."""

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.estimators import Average


class SOAP(SingleLoop):
    r"""``u_i <- (1 - gamma) u_i + gamma g_i``, ``G = (1/B1) sum_i Jac g_i^T grad f_i(u_i)`` with the NEW u_i.

    Section 3.1 of the SOX paper uses it with plain SGD (``optimizer: HeavyBall`` with beta 1); the authors of SOAP also
    use Adam.

    Args:
        gamma: weight of the new value, in (0, 1].
    """

    def __init__(self, gamma: float = 0.9) -> None:
        super().__init__(Average(gamma, fresh=True))
