"""Gradients on a whole split, of which nothing stays behind in the modules."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fcco_lightning.engine import InnerFunctions


@contextmanager
def undisturbed(functions: InnerFunctions) -> Iterator[None]:
    """Use evaluation mode with gradients, also within Lightning's inference mode, and restore every mode afterwards."""
    modes = {module: module.training for module in functions.modules()}
    functions.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def gradients(number: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a scalar, whose graph is kept; none if it does not depend on any of the tensors."""
    if not tensors or not number.requires_grad:
        return []
    found = torch.autograd.grad(number, list(tensors), retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in found):
        return []
    return [torch.zeros_like(t) if gradient is None else gradient for t, gradient in zip(tensors, found, strict=True)]


def gradient(number: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The same as one vector, float64, on the CPU; zeros where the scalar does not depend on a tensor."""
    found = gradients(number, tensors) or [torch.zeros_like(t) for t in tensors]
    return flat(found)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """The values of some tensors as one vector, float64, on the CPU."""
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(t.detach().reshape(-1).double().cpu() for t in tensors)])
