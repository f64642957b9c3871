"""ALEXR2."""

from math import sqrt
from typing import Any, Self

from fcco_lightning.algorithms.double_loop import Clipped, DoubleLoop
from fcco_lightning.algorithms.two_draws import Jacobian
from fcco_lightning.checks import at_least, fraction, positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Average
from fcco_lightning.outer import MoreauSmoothing


class ALEXR2(DoubleLoop):
    r"""A double loop on the nested-smoothed objective ``min_z F_lam(z) + |z - w|^2/(2 nu)``; for convex f.

    Source: SONEX paper, Alg. 2.

    Each inner iteration takes one batch: ``u_i <- (1-gamma) u_i + gamma g_i(z_k) + gamma' (g_i(z_k) - g_i(z_{k-1}))``
    on one draw of samples, ``y_i = grad f_{i,lam}(u_i)``, ``G`` with the Jacobian on samples that are independent of
    y_i, and ``z <- (nu z + eta w - eta nu G) / (eta + nu)``.  After K of them the user's optimizer takes a step on w
    with the gradient ``(w - z_K)/nu`` (erratum SONEX-1); its learning rate is the paper's alpha.  Rows are kept from
    one outer step to the next.  Momentum type: ``optimizer: HeavyBall``; Adam type: ``optimizer: AdamType``.  Weight
    decay acts on w, outside the envelope.

    Args:
        K: inner iterations per update of w, >= 1.
        eta: inner step size, > 0.  Inner iterations are plain gradient steps, whatever the optimizer: where the
            curvature L of F_lam exceeds 1/nu, they may diverge for eta above ``2 / (L - 1/nu)``, and with the "old" y
            above about half of that if the curvature comes from the penalty.  Transformers were trained with .002.
        nu: smoothing of the whole objective, > 0.
        lam: outer smoothing, > 0.
        gamma: weight of the new value (the paper's gamma-hat), in (0, 1] (SONEX paper, F.2: .8).
        gamma_prime: gamma-hat theta, >= 0 (SONEX paper, F.2: .1); 0 saves the second forward pass.
        recovery_steps: inner iterations of the recovery step after training (Cor. 4.11); 0 for none.
        objective_gamma: gamma for an objective whose f is not convex (a contrastive loss): its inner functions are
            averaged as in SONEX, without a dual step, which the theory does not cover.  None accepts convex f only.
        objective_gamma_prime: gamma' for that objective; as ``gamma_prime`` if None.
        jacobian: how the samples of the Jacobian are made independent of y: the "old" y, which is one inner iteration
            behind the paper's and uses the whole batch; "halves" of the batch, or a separate "part", as in the paper;
            "reuse" uses the same samples, which is biased by ``Cov(y_i, grad g_i)``.  An objective with
            ``objective_gamma`` uses the old u in any case.  See :mod:`~fcco_lightning.algorithms.two_draws`.
        clip: whether gradient clipping acts on the gradient of the "inner" iterations, the "outer" gradient, or "both".
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
        jacobian: Jacobian = "old",
        clip: Clipped = "inner",
    ) -> None:
        averaging = None
        if objective_gamma is not None:
            averaging = Average(
                objective_gamma, gamma_prime if objective_gamma_prime is None else objective_gamma_prime
            )
        elif objective_gamma_prime is not None:
            raise ConfigError(
                f"objective_gamma_prime={objective_gamma_prime} needs objective_gamma, which is None. Set both."
            )
        super().__init__(
            Average(gamma, gamma_prime, fresh=True, convex_only=True),
            MoreauSmoothing(lam),
            averaging,
            jacobian,
            K=K,
            eta=eta,
            nu=nu,
            recovery_steps=recovery_steps,
            clip=clip,
        )

    @classmethod
    def theory(
        cls,
        theta: float,
        sampled: float,
        lipschitz: float,
        weak_convexity: float,
        width: int = 1,
        **arguments: Any,
    ) -> Self:
        r"""The step sizes under which the paper proves convergence.

        With ``b = sqrt(d_1) C_f rho_g`` they are ``nu = 1/(4 b)``, ``eta = (1 - theta) / ((4 theta - 1) b)``,
        ``gamma = (1 - theta) n / B_1`` and ``gamma' = gamma theta``.  The learning rate of the optimizer, alpha, is at
        most ``beta nu / 2``, with beta its weight of a new gradient.

        Args:
            theta: extrapolation, in [1/2, 1); the theory needs 1 - theta of the order of epsilon^2.
            sampled: B_1/n, the fraction of rows that a batch measures, in (0, 1], and more than 1 - theta.
            lipschitz: C_f, the Lipschitz constant of the outer function, > 0.
            weak_convexity: rho_g, the weak convexity of the inner functions, > 0.
            width: d_1, the number of values of an inner function, >= 1.
            **arguments: other arguments of the class; K is of the order ``n / (B_1 B_2 epsilon^3)``, lam of
                ``epsilon / C_f``.

        Raises:
            ConfigError: if an argument is out of range.
        Source: SONEX paper, Thm C.1, with rows u in place of y, as in the class.
        """
        new_weight = 1 - fraction("theta", theta)
        if not 0 < new_weight <= 0.5 or new_weight >= fraction("sampled", sampled):
            raise ConfigError(
                f"theta={theta!r} must be at least 1/2, above 1 - sampled = {1 - sampled:.6g}, and below 1. "
                f"Use theta={1 - sampled / 2:.6g}."
            )
        bound = sqrt(at_least("width", width, 1)) * positive("lipschitz", lipschitz)
        bound *= positive("weak_convexity", weak_convexity)
        gamma = new_weight / sampled
        eta, nu = new_weight / ((4 * theta - 1) * bound), 1 / (4 * bound)
        return cls(eta=eta, nu=nu, gamma=gamma, gamma_prime=gamma * theta, **arguments)
