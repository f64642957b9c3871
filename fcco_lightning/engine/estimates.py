"""The surrogate of a batch, and the estimates of F that are logged."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fcco_lightning.engine.terms import Reading
from fcco_lightning.outer import OuterFunction


class Estimates(Mapping[str, Tensor]):
    """Running estimates of the parts of F by name, detached scalars; computed when asked for, so a step costs nothing.

    Args:
        direct: estimate of g_0, or None.
    """

    def __init__(self, direct: Tensor | None) -> None:
        self.direct = None if direct is None else direct.detach()
        self._parts: list[tuple[str, float, OuterFunction, Tensor, Tensor | None]] = []

    def add(self, name: str, share: float, outer: OuterFunction, at: Tensor, importance: Tensor | None = None) -> None:
        """Add ``share * mean_i c_i f(u_i)`` to a part, with the importances c (b,) of the rows, or 1."""
        self._parts.append((name, share, outer, at, importance))

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        values = [
            share * (outer.value(u) if c is None else c.to(u.dtype) * outer.value(u)).mean()
            for part, share, outer, u, c in self._parts
            if part == name
        ]
        if name == "objective" and self.direct is not None:
            values.append(self.direct)
        if not values:
            raise KeyError(name)
        return torch.stack([v.to(values[0].dtype) for v in values]).sum()

    def __iter__(self) -> Iterator[str]:
        direct = [] if self.direct is None else ["objective"]
        return iter(dict.fromkeys([*direct, *(name for name, *_ in self._parts)]))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _WithGradients(torch.autograd.Function):
    """A scalar whose derivatives with respect to some parameters have been computed with it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor | None], *params: Tensor) -> Tensor:  # noqa: ARG004
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        # given away, so that they become `.grad` without being copied
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("a compiled surrogate has been differentiated before: set `compiled` to false.")
        if factor != 1:  # a loss scaler's
            gradients = [None if g is None else g * factor for g in gradients]
        return (None, None, *gradients)


class Surrogate:
    r"""``S(w) = g_0(w) + sum over terms, sum over rows i of the batch, of weight_i <y_i, g_i(w)>``.

    Its gradient is the estimate G of grad F; its value means nothing.

    Args:
        direct: estimate of g_0 with graph, or None.

    Attributes:
        readings: of the terms that are part of it.
        gradients: with respect to the parameters, where they have been computed with S; else None.
    """

    def __init__(self, direct: Tensor | None) -> None:
        self._parts = [] if direct is None else [direct]
        self.estimates = Estimates(direct)
        self.readings: list[Reading] = []
        self.gradients: Sequence[Tensor | None] | None = None
        self._params: Sequence[Tensor] = []

    def add(self, reading: Reading, y: Tensor, known: Tensor | None = None) -> None:
        """Add a term with outer gradients y (b, k) and, per row (b,), what carries its known parameters' gradient."""
        self.readings.append(reading)
        self._parts.append(reading.pair(y))
        if known is not None:
            self._parts.append(reading.total(known))

    def replaced(self, value: Tensor) -> "Surrogate":
        """Another scalar with graph in the place of S; the same readings and estimates of F."""
        other = Surrogate(value)
        other.estimates, other.readings = self.estimates, self.readings
        return other

    def know(self, params: Sequence[Tensor], gradients: Sequence[Tensor | None] | None) -> None:
        """Take the gradients of S with respect to the parameters, where they have been computed with it.

        Args:
            params: the parameters.
            gradients: of their shapes, None for one that S does not depend on; None where S has a graph.
        """
        self._params, self.gradients = params, gradients

    @property
    def number(self) -> Tensor:
        """S, a scalar, with graph unless :attr:`gradients` are known."""
        total = self._parts[0] if self._parts else torch.zeros(())
        for part in self._parts[1:]:
            total = total + part
        return total

    @property
    def value(self) -> Tensor:
        """S, a scalar with graph."""
        if self.gradients is None:
            return self.number
        value: Tensor = _WithGradients.apply(self.number, self.gradients, *self._params)
        return value
