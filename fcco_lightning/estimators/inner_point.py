"""The point z of an inner loop, kept beside the centre w that everybody else sees."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fcco_lightning.estimators.previous import like_parameters
from fcco_lightning.state.divided import hold, parts_of


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
        for i, p in enumerate(self._params):
            self.tensors[i] = hold(p, self.tensors[i])
