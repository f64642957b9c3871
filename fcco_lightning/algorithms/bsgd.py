"""Biased stochastic gradient descent."""

from fcco_lightning.algorithms.single_loop import SingleLoop
from fcco_lightning.estimators import Minibatch


class BSGD(SingleLoop):
    r"""``G = (1/B1) sum_i Jac g_i(w; B_i)^T grad f_i(g_i(w; B_i))``; nothing is remembered, so G is biased.

    Source: SOX paper, section 2.1.  Equals SOAP with gamma = 1.  A non-smooth f is used through a subgradient.
    """

    def __init__(self) -> None:
        super().__init__(Minibatch())
