"""Proximal descent around a centre: the inner iteration of double loops."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.checks import positive
from fcco_lightning.state.divided import part_of, parts_of


class ProximalDescent(Optimizer):
    r"""Inner iteration ``z <- (nu z + eta w - eta nu G) / (eta + nu)`` around the centre w.

    Source: SONEX paper, Alg. 2 line 11.

    It is the minimiser over v of ``<G, v> + |v - w|^2 / (2 nu) + |v - z|^2 / (2 eta)``.

    With a radius, every tensor of parameters is then projected onto its ball ``|v| <= radius``, which gives the
    minimiser over that ball (PG-SMD paper, Alg. 1 line 5 with g the indicator of a ball).

    Args:
        params: parameters that hold z.
        eta: inner step size, > 0.
        nu: smoothing of the whole objective, > 0.
        radius: of the ball that holds each tensor, > 0; None for no ball.

    Attributes:
        centre: w, in the order of ``params``; to be set before the first step.
    """

    def __init__(self, params: Sequence[nn.Parameter], eta: float, nu: float, radius: float | None = None) -> None:
        super().__init__(params, {"eta": positive("eta", eta), "nu": positive("nu", nu)})
        self.radius = None if radius is None else positive("radius", radius)
        self.centre: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One inner iteration; a parameter without gradient is only pulled towards the centre."""
        loss = None if closure is None else closure()
        group = self.param_groups[0]
        eta, nu = group["eta"], group["nu"]
        z = parts_of(group["params"])
        moving = [(part_of(p), part_of(p.grad)) for p in group["params"] if p.grad is not None]
        if moving:
            points, grads = zip(*moving, strict=True)
            torch._foreach_add_(points, grads, alpha=-eta)
        # (nu (z - eta G) + eta w) / (eta + nu), as one interpolation
        torch._foreach_lerp_(z, parts_of(self.centre), eta / (eta + nu))
        if self.radius is not None:
            for point in z:
                point.mul_((self.radius / torch.linalg.vector_norm(point)).clamp(max=1.0))
        return loss
