"""What a step is: the part of an algorithm that says where gradients are taken and how they move the weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.errors import CheckpointError


class PreviousWeights:
    """A copy of the trainable parameters as they were one step before, for the second forward pass.

    It is made at the first :meth:`remember`, refreshed in place afterwards, and costs one copy of the trainable
    parameters.
    """

    def __init__(self) -> None:
        self._copy: list[Tensor] = []
        self._valid = False

    @torch.no_grad()
    def remember(self, params: Sequence[nn.Parameter]) -> None:
        """Copy the current values of ``params``."""
        if self._copy:
            torch._foreach_copy_(self._copy, [p.data for p in params])
        else:
            self._copy = [p.detach().clone() for p in params]
        self._valid = True

    def forget(self) -> None:
        """There is no previous point: w_{-1} = w_0."""
        self._valid = False

    @property
    def tensors(self) -> list[Tensor] | None:
        """The copies in the order of ``params``, or None if there is no previous point."""
        return self._copy if self._valid else None

    def state_dict(self) -> dict[str, Any]:
        """Tensors and primitives only."""
        return {"copy": list(self._copy), "valid": self._valid}

    def load_state_dict(self, state: dict[str, Any], params: Sequence[nn.Parameter]) -> None:
        """Restore, on the devices of ``params``."""
        self._copy = like_parameters(state["copy"], params)
        self._valid = bool(state["valid"])


class Step:
    r"""The direct step: the user's optimizer follows the gradient estimate G_t at w_t.

    A driver (the LightningModule, or a plain loop) calls, for every batch::

        with step.at_iterate():          # parameters hold the point where gradients are taken
            forward, surrogate, backward
            step.correct(previous_gradients)         # only if needs_previous_gradient
            (step.inner_optimizer or optimizer).step()
        if step.inner_optimizer is not None and step.inner_done(last_batch):
            optimizer.step()             # on the outer gradient, now in .grad

    Attributes:
        needs_previous_gradient: the surrogate's gradient at the previous weights is needed too (STORM).
        batches_per_update: batches for one update of the weights that the user sees.
        inner_optimizer: moves the inner iterate, or None where there is no inner loop.
        inner_count: inner iterations done since the last update of w.
        recovery_steps: inner iterations after training, see :meth:`take_iterate`.
    """

    needs_previous_gradient: ClassVar[bool] = False
    batches_per_update: int = 1
    inner_optimizer: Optimizer | None = None
    inner_count: int = 0
    recovery_steps: int = 0

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        """Take the trainable parameters, in their final place and dtype, before the first batch."""
        self.params = list(params)

    @contextmanager
    def at_iterate(self) -> Iterator[None]:
        """Let the parameters hold the inner iterate; outside they always hold w."""
        yield

    def correct(self, previous_gradients: Sequence[Tensor | None] | None) -> None:
        """Rewrite ``.grad`` of the parameters before the optimizer sees it."""

    def inner_done(self, *, last_batch: bool) -> bool:  # noqa: ARG002
        """Count an inner iteration; True if the outer gradient is now in ``.grad`` of the parameters."""
        return False

    def take_iterate(self) -> None:
        """Make the inner iterate the weights: the end of a recovery step."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and primitives only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore after :meth:`bind`."""


def like_parameters(stored: Sequence[Tensor], params: Sequence[nn.Parameter]) -> list[Tensor]:
    """Stored tensors as copies on the devices of ``params``.

    Raises:
        CheckpointError: if the shapes are not those of the parameters.
    """
    if not stored:
        return []
    shapes, expected = [tuple(t.shape) for t in stored], [tuple(p.shape) for p in params]
    if shapes != expected:
        raise CheckpointError(
            f"the checkpoint's step holds tensors of shapes {shapes}, the trainable parameters have {expected}. "
            "The network, or the set of frozen layers, has changed since: use the same one."
        )
    return [t.to(device=p.device, dtype=p.dtype, copy=True) for t, p in zip(stored, params, strict=True)]
