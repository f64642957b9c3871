"""ALEXR."""

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.algorithms.two_draws import Jacobian
from fcco_lightning.checks import positive, unit
from fcco_lightning.estimators import Average, DualProx


class ALEXR(SingleLoop):
    r"""An extrapolated dual step, then a primal step with the updated y_i (ALEXR paper, Alg. 1); for convex f.

    ``g~_i = g_i(w_t; B_i) + theta (g_i(w_t; B_i) - g_i(w_{t-1}; B_i))``,
    ``y_i <- argmax <y, g~_i> - f_i*(y) - tau U_psi(y, y_i)``, and, on an independent draw B~_i,
    ``G = (1/B1) sum_i Jac g_i(w_t; B~_i)^T y_i``.  ``optimizer: ProximalSGD`` is the paper's primal step with
    r = mu/2 |w|^2.

    Args:
        tau: inverse dual step size, > 0.  Rows hold risks R_i also where the paper has (R_i - c)/lam (F.2, chi-square
            divergence): multiply the paper's tau by lam^2 in the y-form.
        theta: extrapolation, in [0, 1] (ALEXR paper: .1, 1); 0 saves the second forward pass.
        mirror: psi = f* for smooth f (u-form, eq. (3)) instead of psi = |.|^2/2 (y-form).  At theta = 0 the mirror form
            on the same samples is SOAP with gamma = 1/(1 + tau).
        jacobian: how the samples of the Jacobian are made independent of y: "halves" of the batch, a separate "part",
            or the "old" y; "reuse" uses the same samples, which is biased by ``Cov(y_i, grad g_i)``.  See
            :mod:`~fcco_lightning.algorithms.two_draws`.
    """

    def __init__(
        self, tau: float = 1.0, theta: float = 0.1, mirror: bool = False, jacobian: Jacobian = "halves"
    ) -> None:
        positive("tau", tau)
        unit("theta", theta)
        gamma = 1 / (1 + tau)
        in_u = Average(gamma, gamma * theta, fresh=True, convex_only=True)
        super().__init__(in_u if mirror else DualProx(tau, theta), jacobian=jacobian)
