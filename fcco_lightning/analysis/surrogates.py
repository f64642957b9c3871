"""A scalar with the gradient of an objective, from samples alone: nothing is remembered."""

from typing import Any

import torch
from torch import Tensor

from fcco_lightning.analysis.dual_values import outer_gradients
from fcco_lightning.evaluation.split import first_occurrences
from fcco_lightning.numerics import counts
from fcco_lightning.objectives import Objective
from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Columns, Rows


def surrogate(objective: Objective, outputs: Any, columns: Columns) -> Tensor | None:
    r"""``g_0 + mean_i r_i <y_i, g_i>`` with y_i the slope of f_i at g_i, the values that the samples give.

    Its gradient is that of ``g_0 + mean_i r_i f_i(g_i)``, also with respect to known parameters of f.  The mean is over
    the rows of which the samples say something, r_i is the relevance of a row, 1 by default.

    Args:
        objective: the objective.
        outputs: of the network for the samples of its part, with graph.
        columns: of these samples.

    Returns: a scalar with graph; None if the samples say nothing.
    """
    direct, rows = objective.measure(outputs, columns)
    outer = None if rows is None else rows.outer or objective.outer
    if rows is None or outer is None or not bool((rows.weight != 0).any()):
        return direct
    names = objective.rows_of(columns)
    mean = _coupled(objective, rows, names) if outer.coupled else _mean(outer, rows, names)
    return mean if direct is None else direct + mean


def _mean(outer: OuterFunction, rows: Rows, names: Tensor | None) -> Tensor:
    """The mean over rows under a function of single rows; entries with one name count as one row together."""
    chosen, at = rows.weight.nonzero().squeeze(1), rows.values.detach()
    each = (outer.subgradient(at)[chosen] * rows.values[chosen]).sum(1)
    if any(parameter.requires_grad for parameter in outer.parameters()):
        each = each + outer.value(at)[chosen]
    if rows.weight.dtype != torch.bool:
        each = rows.weight[chosen].to(each.dtype) * each
    once = torch.ones_like(each) if names is None else counts(names[chosen]).to(each.dtype).reciprocal()
    return torch.dot(once, each) / once.sum()


def _coupled(objective: Objective, rows: Rows, names: Tensor | None) -> Tensor:
    """The mean under a function of all rows together, which takes each of them once, in their order."""
    chosen = rows.weight.nonzero().squeeze(1)
    if names is not None:
        chosen = chosen[first_occurrences(names[chosen])]
    values = rows.values[chosen]
    return (outer_gradients(objective, values.detach()) * values).sum(1).mean()
