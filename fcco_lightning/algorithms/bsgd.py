"""Biased stochastic gradient descent."""

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.estimators import Minibatch


class BSGD(SingleLoop):
    r"""``G = (1/B1) sum_i Jac g_i(w; B_i)^T grad f_i(g_i(w; B_i))``; nothing is remembered, so G is biased.

    The outer gradient is taken at the mini-batch's own estimate g_i(w; B_i) in the place of the mean g_i(w).  Where f_i
    is not linear, the expectation of G is then not the gradient of F.  For smooth f_i the difference is at most of the
    order |B_i|^(-1/2) in the number of samples of B_i, and does not fall with the number of steps; SOX therefore takes
    a running mean u_i in its place.  B1 is the number of rows i in the batch.

    Source: SOX paper, section 2.1.  Equals SOAP with gamma = 1.  A non-smooth f is used through a subgradient.
    """

    def __init__(self) -> None:
        super().__init__(Minibatch())
