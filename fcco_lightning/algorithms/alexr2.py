"""ALEXR2."""

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import CorrectedEMA, DualMirror
from fcco_lightning.outer import MoreauSmoothing
from fcco_lightning.steps import ProximalPoint


class ALEXR2(Algorithm):
    r"""Double loop on the nested-smoothed objective ``min_z F_lam(z) + |z - w|^2/(2 nu)`` (004 Alg. 2); for convex f.

    Inner iteration, one batch each: ``u_i <- (1-gamma) u_i + gamma g_i(z_k) + gamma' (g_i(z_k) - g_i(z_{k-1}))``,
    ``y_i = grad f_{i,lam}(u_i)`` with the NEW u_i, ``z <- (nu z + eta w - eta nu G) / (eta + nu)``.  After K of
    them the user's optimizer follows ``(w - z_K)/nu`` (erratum E-004-1).  Rows are kept from one outer step to the
    next.  Momentum type: ``optimizer: HeavyBall``; Adam type: ``optimizer: AdamType``; its learning rate is alpha.

    Args:
        K: inner iterations per update of w, >= 1.
        eta: inner step size, > 0.
        nu: smoothing of the whole objective, > 0.
        lam: outer smoothing, > 0.
        gamma: weight of the new value (the paper's gamma-hat), in (0, 1] (004 F.2: .8).
        gamma_prime: gamma-hat theta, >= 0 (004 F.2: .1); 0 saves the second forward pass.
        recovery_steps: inner iterations of the recovery step after training (Cor. 4.11); 0 for none.
        objective_gamma: gamma for an objective whose own f is not convex (a contrastive loss): it is averaged as the
            constraints are, without a dual step, which the theory does not cover.  None takes convex f only.
        objective_gamma_prime: gamma' for it; as ``gamma_prime`` if None.
    """

    def __init__(
        self,
        K: int = 5,
        eta: float = 0.1,
        nu: float = 0.1,
        lam: float = 0.002,
        gamma: float = 0.8,
        gamma_prime: float = 0.1,
        recovery_steps: int = 0,
        objective_gamma: float | None = None,
        objective_gamma_prime: float | None = None,
    ) -> None:
        own = None
        if objective_gamma is not None:
            prime = gamma_prime if objective_gamma_prime is None else objective_gamma_prime
            own = CorrectedEMA(objective_gamma, prime, fresh=True)
        elif objective_gamma_prime is not None:
            raise ConfigError(f"objective_gamma_prime={objective_gamma_prime} goes with objective_gamma. Set both.")
        step = ProximalPoint(K, eta, nu, recovery_steps)
        super().__init__(DualMirror(gamma, gamma_prime), MoreauSmoothing(lam), step, own)
