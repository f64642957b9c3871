"""Optimizers in the papers' notation, inner iterations of double loops, and variance reduction."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from fcco_lightning.checks import fraction, non_negative, positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.state.sharded import parts_of

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class HeavyBall(SGD):
    r"""Momentum type: ``v <- (1 - beta) v + beta G``, ``w <- w - lr v`` (SOX paper, Alg. 1; SONEX paper, Alg. 1).

    ``torch.optim.SGD`` with momentum and dampening ``1 - beta``.  v starts at the first gradient; with ``zero_start``
    it starts at 0, as in the papers, so that the first step is only beta times the gradient.

    Weight decay acts on the gradient: ``weight_decay * w`` is added to G before the average v is taken, so the pull
    towards 0 is averaged with the gradients.  It is the gradient of the regulariser ``(weight_decay / 2) |w|^2``.

    Args:
        params: parameters or parameter groups.
        lr: step size, > 0.
        beta: weight of the new gradient, in (0, 1]; 1 is plain SGD.
        weight_decay: added to the gradient as ``weight_decay * w``, >= 0.
        zero_start: start v at 0 instead of at the first gradient.  It makes no difference for beta = 1.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 0.1,
        beta: float = 0.1,
        weight_decay: float = 0.0,
        zero_start: bool = False,
    ) -> None:
        momentum = 1 - fraction("beta", beta)
        super().__init__(
            params,
            lr=positive("lr", lr),
            momentum=momentum,
            dampening=momentum,
            weight_decay=non_negative("weight_decay", weight_decay),
        )
        self.defaults["zero_start"] = zero_start
        for group in self.param_groups:  # saved with the optimizer's state
            group.setdefault("zero_start", zero_start)

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        """Set v = 0 for parameters without v, which SGD would set to the gradient."""
        if group.get("zero_start") and group["momentum"]:
            for p in group["params"]:
                if p.grad is not None and self.state[p].get("momentum_buffer") is None:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p.grad)
        return super()._init_group(group, *lists)  # type: ignore[no-untyped-call]


class AdamType(Adam):
    r"""Adam type (SONEX paper, App. E): ``w <- w - lr v / (sqrt(s) + eps)``.

    ``v <- (1 - beta) v + beta G``, ``s <- (1 - beta') s + beta' G^2``:
    ``torch.optim.Adam`` with ``betas = (1 - beta, 1 - beta')``.  The paper prints neither beta', eps nor a bias
    correction; torch's is kept (erratum SONEX-26).

    Weight decay acts on the weights themselves, as in AdamW: every step first multiplies w by ``1 - lr weight_decay``.
    It enters neither v nor s, so it is not divided by ``sqrt(s) + eps``.

    Args:
        params: parameters or parameter groups.
        lr: step size, > 0.
        beta: weight of the new gradient, in (0, 1].
        beta_prime: weight of the new squared gradient, in (0, 1].
        eps: added to the denominator, > 0.
        weight_decay: every step multiplies w by ``1 - lr weight_decay``, >= 0.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        beta: float = 0.1,
        beta_prime: float = 1e-3,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            lr=positive("lr", lr),
            betas=(1.0 - fraction("beta", beta), 1.0 - fraction("beta_prime", beta_prime)),
            eps=positive("eps", eps),
            weight_decay=non_negative("weight_decay", weight_decay),
            decoupled_weight_decay=True,
        )


class ProximalSGD(Optimizer):
    r"""``w <- P_X[ (w - lr G) / (1 + lr mu) ]``: the primal step of ALEXR with r = (mu/2)|w|^2 and a ball X.

    Minimises ``<G, v> + (mu/2)|v|^2 + |v - w|^2 / (2 lr)`` over v, then projects onto ``|v| <= radius``.

    mu takes the place of weight decay: the regulariser ``(mu/2)|w|^2`` acts on the new weights, through the division by
    ``1 + lr mu``, instead of through the gradient at the old ones.  A parameter without a gradient is not divided.

    Args:
        params: parameters or parameter groups (the ball holds all parameters of a group together).
        lr: step size, > 0.
        mu: strong convexity of r, >= 0.
        radius: radius of X, > 0; None for the whole space.
    Source: ALEXR paper, Alg. 1; SOX paper, section 3.4.
    """

    def __init__(self, params: Params, lr: float = 0.01, mu: float = 0.0, radius: float | None = None) -> None:
        if radius is not None:
            positive("radius", radius)
        super().__init__(params, {"lr": positive("lr", lr), "mu": non_negative("mu", mu), "radius": radius})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One proximal gradient step."""
        if closure is not None:
            raise ConfigError("ProximalSGD takes no closure: call backward() before step().")
        for group in self.param_groups:
            params = group["params"]
            for p in params:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"]).div_(1 + group["lr"] * group["mu"])
            if group["radius"] is not None:
                norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p) for p in params]))
                shrink = (group["radius"] / norm).clamp(max=1.0)
                for p in params:
                    p.mul_(shrink)
        return None


class ProximalDescent(Optimizer):
    r"""Inner iteration ``z <- (nu z + eta w - eta nu G) / (eta + nu)`` around the centre w.

    Source: SONEX paper, Alg. 2 line 11.

    The new z is the minimiser over v of ``<G, v> + |v - w|^2 / (2 nu) + |v - z|^2 / (2 eta)``.

    With a radius, every tensor of parameters is then projected onto its ball ``|v| <= radius``, which gives the
    minimiser over that ball (PG-SMD paper, Alg. 1 line 5 with g the indicator of a ball).

    Args:
        params: parameters that hold z.
        eta: inner step size, > 0.
        nu: smoothing of the whole objective, > 0.
        radius: radius of the ball around 0 that holds each tensor, > 0; None for no ball.

    Attributes:
        centre: w, in the order of ``params``; to be set before every step, since copies of an optimizer lack it.
    """

    centre: list[Tensor]

    def __init__(self, params: Sequence[nn.Parameter], eta: float, nu: float, radius: float | None = None) -> None:
        if radius is not None:
            positive("radius", radius)
        super().__init__(params, {"eta": positive("eta", eta), "nu": positive("nu", nu), "radius": radius})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One inner iteration; a parameter without gradient is only pulled towards the centre."""
        loss = None if closure is None else closure()
        group = self.param_groups[0]
        eta, nu, radius = group["eta"], group["nu"], group["radius"]
        z = parts_of(group["params"])
        grads = [p.grad for p in group["params"] if p.grad is not None]
        if grads:
            points = [p for p in group["params"] if p.grad is not None]
            torch._foreach_add_(parts_of(points), parts_of(grads), alpha=-eta)
        # (nu (z - eta G) + eta w) / (eta + nu), as one interpolation
        torch._foreach_lerp_(z, parts_of(self.centre), eta / (eta + nu))
        if radius is not None:
            for point in z:
                point.mul_((radius / torch.linalg.vector_norm(point)).clamp(max=1.0))
        return loss


class Storm:
    r"""``v_t = G(w_t; B) + (1 - b) (v_{t-1} - G(w_{t-1}; B))``, both on the same samples; ``v_0 = G(w_0; B)``.

    Args:
        b: weight of the plain gradient, in (0, 1]; 1 is no variance reduction.
    Source: the papers name STORM without its formula (ALEXR paper, section 3.2; SONEX paper, section 4.1).
    """

    def __init__(self, b: float = 0.1) -> None:
        self.b = fraction("b", b)
        self.v: list[Tensor] = []

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], previous: Sequence[Tensor] | None) -> list[Tensor]:
        """The new v, from the gradients at w_t and at w_{t-1} (None at the first step)."""
        new = [g.clone() for g in gradients]
        if previous is not None and self.v:
            torch._foreach_sub_(parts_of(self.v), parts_of(previous))
            torch._foreach_add_(parts_of(new), parts_of(self.v), alpha=1 - self.b)
        self.v = new
        return new
