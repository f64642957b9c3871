"""The double loop of ALEXR2: inner proximal descent around a centre, outer step on the envelope's gradient."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.checks import at_least, positive
from fcco_lightning.steps.base import Step, like_parameters


class ProximalDescent(Optimizer):
    r"""Inner iteration ``z <- (nu z + eta w - eta nu G) / (eta + nu)`` around the centre w (004 Alg. 2 line 11).

    It is the minimiser of ``<G, v> + |v - w|^2 / (2 nu) + |v - z|^2 / (2 eta)``.

    Args:
        params: parameters that hold z.
        eta: inner step size, > 0.
        nu: smoothing of the whole objective, > 0.
    """

    def __init__(self, params: Sequence[nn.Parameter], eta: float, nu: float) -> None:
        super().__init__(params, {"eta": positive("eta", eta), "nu": positive("nu", nu)})
        self.centre: list[Tensor] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One inner iteration; a parameter without gradient is only pulled towards the centre."""
        loss = None if closure is None else closure()
        group = self.param_groups[0]
        eta, nu = group["eta"], group["nu"]
        z = [p.data for p in group["params"]]
        moving = [(p.data, p.grad) for p in group["params"] if p.grad is not None]
        if moving:
            points, grads = zip(*moving, strict=True)
            torch._foreach_add_(points, grads, alpha=-eta)
        # (nu (z - eta G) + eta w) / (eta + nu), as one interpolation
        torch._foreach_lerp_(z, self.centre, eta / (eta + nu))
        return loss


class ProximalPoint(Step):
    r"""K inner iterations z around w, then the outer gradient ``G_t = (w - z_K) / nu`` for the user's optimizer.

    One batch is one inner iteration.  ``G_t`` is the gradient of the nested-smoothed objective
    ``F_{lam,nu}(w) = min_z F_lam(z) + |z - w|^2 / (2 nu)`` (004 eq. (5); erratum E-004-1 for the missing beta).  The
    last batch of an epoch closes the inner loop, so K_t is shorter there and every epoch ends with an update of w.  The
    parameters hold w whenever anyone else looks: z lives here.

    Args:
        K: inner iterations per update of w, >= 1 (004 F.2: 5, 10).
        eta: inner step size, > 0 (004 F.2: 1e-3, 1e-2, .1, 1).
        nu: smoothing of the whole objective, > 0 (004 F.2: .1, .01).
        recovery_steps: inner iterations of the recovery step of 004 Cor. 4.11: after training, the inner loop runs once
            more around the final w and its z is the output; 0 for none.
    """

    def __init__(self, K: int = 5, eta: float = 0.1, nu: float = 0.1, recovery_steps: int = 0) -> None:
        self.batches_per_update = at_least("K", K, 1)
        self.eta = positive("eta", eta)
        self.nu = positive("nu", nu)
        self.recovery_steps = at_least("recovery_steps", recovery_steps, 0)

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        super().bind(params)
        self.inner_count = 0
        self._other: list[Tensor] = []  # z outside at_iterate, w inside
        self.inner_optimizer: ProximalDescent = ProximalDescent(self.params, self.eta, self.nu)

    @contextmanager
    def at_iterate(self) -> Iterator[None]:
        self._start()
        self._swap()
        self.inner_optimizer.centre = self._other
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def inner_done(self, *, last_batch: bool) -> bool:
        self.inner_count += 1
        if self.inner_count < self.batches_per_update and not last_batch:
            return False
        self.inner_count = 0
        for p, z in zip(self.params, self._other, strict=True):
            p.grad = (p.data - z).div_(self.nu)
        return True

    @torch.no_grad()
    def take_iterate(self) -> None:
        """Make z the weights (the output of the recovery step)."""
        torch._foreach_copy_([p.data for p in self.params], self._other)
        self.inner_count = 0

    @torch.no_grad()
    def _start(self) -> None:
        if not self._other:
            self._other = [p.detach().clone() for p in self.params]
        elif self.inner_count == 0:
            torch._foreach_copy_(self._other, [p.data for p in self.params])

    def _swap(self) -> None:
        for i, p in enumerate(self.params):
            p.data, self._other[i] = self._other[i], p.data

    def state_dict(self) -> dict[str, Any]:
        return {"iterate": list(self._other), "inner_count": self.inner_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._other = like_parameters(state["iterate"], self.params)
        self.inner_count = int(state["inner_count"])
