"""Biased stochastic gradient descent."""

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.estimators import Minibatch


class BSGD(SingleLoop):
    r"""``G = (1/B1) sum_i Jac g_i(w; B_i)^T grad f_i(g_i(w; B_i))``, without running averages, so that G is biased.

    The outer gradient is taken at the mini-batch estimate g_i(w; B_i) in place of the mean g_i(w).  If f_i is not
    linear, the expectation of G then differs from the gradient of F.  For smooth f_i the difference is at most of the
    order |B_i|^(-1/2) in the number of samples of B_i, and does not decrease with the number of steps; SOX therefore
    uses a running average u_i instead.  B1 is the number of rows i in the batch.

    Source: SOX paper, section 2.1.  Equals SOAP with gamma = 1.  For a non-smooth f a subgradient is used.
    """

    def __init__(self) -> None:
        super().__init__(Minibatch())
