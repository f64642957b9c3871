"""Directional derivatives of many values."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fcco_lightning.engine import Engine


def along(engine: Engine, values: Tensor, direction: Sequence[Tensor]) -> Tensor:
    """``<grad v_i(w), d>`` for every value v_i, of the shape of ``values``, without graph.

    ``h(y) = <grad_w sum_i y_i v_i(w), d>`` is linear in y, and its gradient with respect to y is the result: two
    backward passes, whatever the number of values.  The graph of the values is kept.

    Args:
        engine: the engine, on whose parameters w the values depend.
        values: tensor of any shape, with graph, the same on all processes.
        direction: d, in the order of ``engine.params``.
    """
    y = torch.zeros_like(values, requires_grad=True)
    gradients = engine.gradients((y * values).sum(), local=True, graph=True)
    slope = torch.stack([(g * d).sum() for g, d in zip(gradients, direction, strict=True)]).sum()
    if not slope.requires_grad:
        return torch.zeros_like(values)
    (slopes,) = torch.autograd.grad(slope, y, retain_graph=True)
    engine.processes.average_([slopes])
    return slopes
