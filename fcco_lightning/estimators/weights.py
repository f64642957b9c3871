"""Copies of the trainable parameters: at an earlier point, and at the point z of an inner loop."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.divided import divided_as, exchange, parts_of


class PreviousWeights:
    """A copy of the trainable parameters at an earlier point, for a second evaluation of the inner functions there.

    The copy is made at the first :meth:`remember` and refreshed in place afterwards.  It costs the memory of one copy
    of the trainable parameters.

    Attributes:
        tensors: the copies in the order of the parameters, or None if there is no previous point.
    """

    def __init__(self) -> None:
        self._copy: list[Tensor] = []
        self.tensors: list[Tensor] | None = None

    @torch.no_grad()
    def remember(self, params: Sequence[nn.Parameter]) -> None:
        """Copy the present values of ``params``."""
        if self._copy:
            torch._foreach_copy_(parts_of(self._copy), parts_of(params))
        else:
            self._copy = [p.detach().clone() for p in params]
        self.tensors = self._copy

    def forget(self) -> None:
        """Let there be no previous point, as at the start: w_{-1} = w_0."""
        self.tensors = None

    def state_dict(self) -> dict[str, Any]:
        """Tensors and primitives only."""
        return {"copy": list(self._copy), "valid": self.tensors is not None}

    def load_state_dict(self, state: dict[str, Any], params: Sequence[nn.Parameter]) -> None:
        """Restore, on the devices of ``params``."""
        self._copy = like_parameters(state["copy"], params)
        self.tensors = self._copy if state["valid"] else None


class InnerPoint:
    """Weights z of an inner loop around w: the parameters hold z inside :meth:`held`, and w whenever else.

    Costs one copy of the trainable parameters, made at the first :meth:`restart`.

    Args:
        params: the trainable parameters.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self._params = params
        self.tensors: list[Tensor] = []
        """z outside :meth:`held`, and w inside; empty before the first :meth:`restart`."""

    @torch.no_grad()
    def restart(self) -> None:
        """Let z start at w."""
        if self.tensors:
            torch._foreach_copy_(parts_of(self.tensors), parts_of(self._params))
        else:
            self.tensors = [p.detach().clone() for p in self._params]

    @contextmanager
    def held(self) -> Iterator[list[Tensor]]:
        """Let the parameters hold z; gives w."""
        self._swap()
        try:
            yield self.tensors
        finally:
            self._swap()

    def load(self, tensors: Sequence[Tensor]) -> None:
        """Take stored values of z; none if the next inner loop starts anew."""
        self.tensors = like_parameters(tensors, self._params)

    def _swap(self) -> None:
        self.tensors = exchange(self._params, self.tensors)


def like_parameters(stored: Sequence[Tensor], params: Sequence[nn.Parameter]) -> list[Tensor]:
    """Stored tensors as copies on the devices of ``params``, divided over the processes where these are.

    Raises:
        CheckpointError: if the shapes are not those of the parameters.
    """
    if not stored:
        return []
    shapes, expected = [tuple(t.shape) for t in stored], [tuple(p.shape) for p in params]
    if shapes != expected:
        raise CheckpointError(
            f"the checkpoint's algorithm holds tensors of shapes {shapes}, the trainable parameters have {expected}. "
            "The network, or the set of frozen layers, has changed since: use the same one."
        )
    placed = [divided_as(t, p) for t, p in zip(stored, params, strict=True)]
    return [t.to(device=p.device, dtype=p.dtype, copy=True) for t, p in zip(placed, params, strict=True)]
