"""Copies of the trainable parameters: at an earlier step, and at the point z of an inner loop."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.sharded import exchange, parts_of, sharded_as


@torch.no_grad()
def copied(params: Sequence[Tensor], into: Sequence[Tensor] = ()) -> list[Tensor]:
    """A copy of the parameters, written into the tensors of an earlier copy, if there is one."""
    if not into:
        return [p.detach().clone() for p in params]
    torch._foreach_copy_(parts_of(into), parts_of(params))
    return list(into)


class InnerPoint:
    """The weights z of an inner loop around w: the parameters are z inside :meth:`held`, and w otherwise.

    It needs one copy of the trainable parameters, made at the first :meth:`restart`.

    Args:
        params: the trainable parameters.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self._params = params
        self.tensors: list[Tensor] = []
        """z outside :meth:`held`, and w inside; empty before the first :meth:`restart`."""

    def restart(self) -> None:
        """Set z to w."""
        self.tensors = copied(self._params, self.tensors)

    @contextmanager
    def held(self) -> Iterator[list[Tensor]]:
        """A context in which the parameters are z; it yields w."""
        self._swap()
        try:
            yield self.tensors
        finally:
            self._swap()

    def load(self, tensors: Sequence[Tensor]) -> None:
        """Restore stored values of z; empty if the next inner loop begins with :meth:`restart`."""
        self.tensors = like_parameters(tensors, self._params)

    def _swap(self) -> None:
        self.tensors = exchange(self._params, self.tensors)


def like_parameters(stored: Sequence[Tensor], params: Sequence[nn.Parameter]) -> list[Tensor]:
    """Copies of stored tensors on the devices of ``params``, sharded over the processes where the parameters are.

    Raises:
        CheckpointError: if the shapes are not those of the parameters.
    """
    if not stored:
        return []
    shapes, expected = [tuple(t.shape) for t in stored], [tuple(p.shape) for p in params]
    if shapes != expected:
        raise CheckpointError(
            f"the algorithm's state in the checkpoint contains tensors of shapes {shapes}, but the trainable "
            f"parameters have shapes {expected}. The network, or the set of frozen layers, has changed since: use "
            "the same one."
        )
    placed = [sharded_as(t, p) for t, p in zip(stored, params, strict=True)]
    return [t.to(device=p.device, dtype=p.dtype, copy=True) for t, p in zip(placed, params, strict=True)]
