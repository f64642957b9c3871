"""Dual values y_i of the inner functions: exact ones, those of an algorithm's rows, and their size."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.algorithms import Algorithm
from fcco_lightning.ambiguity import KLPenalty
from fcco_lightning.engine import Term
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation.split import first_occurrences
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import counts, widest
from fcco_lightning.objectives import Objective
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import OuterFunction, WorstCase, slopes

_ACTIVE = 1e-6  # fraction of the largest dual value


class Duals(NamedTuple):
    """Number and size of dual values y_i.

    Attributes:
        rows: The number of rows.
        active: The number of rows with ``|y_i| > 1e-6 max_j |y_j|``; for monotone f those with y_i > 0.
        omega: The size ``sum_i |y_i|^2 / 2`` (Omega_y^0 of the ALEXR paper).
    """

    rows: int
    active: int
    omega: float


def duals(y: Tensor) -> Duals:
    """Count dual values and measure their size.

    Args:
        y: The dual values, shape (n, k), float64.
    """
    size = y.square().sum(1)
    active = size.sqrt() > _ACTIVE * size.amax().sqrt() if len(size) else size > 0
    return Duals(len(y), int(active.sum()), float(size.sum()) / 2)


def outer_gradients(objective: Objective, values: Tensor) -> Tensor:
    """Compute ``y_i`` in the subdifferential of f at g_i(w).

    For a max form it is ``n q_i``, with q the worst case, including a penalty on q if there is one.

    Args:
        objective: An objective with inner functions.
        values: The inner values g_i(w), shape (n, k).

    Returns:
        The dual values, shape (n, k), without graph, on the device of the objective.

    Raises:
        ConfigError: if the objective has no inner functions.
    """
    outer, values = outer_function(objective), on_device_of(objective, values)
    if isinstance(outer, WorstCase):
        penalty = getattr(objective, "penalty", None) or KLPenalty(0.0)
        return len(values) * outer.ambiguity.best_response(values[:, 0], penalty).q.unsqueeze(1)
    return slopes(outer, values)


def remembered_duals(algorithm: Algorithm, terms: Sequence[Term]) -> Tensor | None:
    """Compute the y_i of the remembered rows of an objective, without rows that were never written.

    All processes must call it.

    Args:
        algorithm: The algorithm that keeps the rows.
        terms: The terms of the problem.

    Returns:
        The dual values, shape (number of rows written, k), float64, on the CPU; None without rows.
    """
    for term in terms:
        if term.name == "objective" and term.state is not None:
            rows = term.state.gather(None)
            return algorithm.duals(term, rows[~rows[:, 0].isnan()].double()).detach().cpu()
    return None


def on_device_of(objective: Objective, values: Tensor) -> Tensor:
    """Return values on the device of the objective's parameters, on which its outer function may depend."""
    parameter = next(objective.parameters(), None)
    return values if parameter is None else values.to(parameter.device)


def outer_function(objective: Objective) -> OuterFunction:
    """Return the outer function of an objective.

    Raises:
        ConfigError: if the objective has no inner functions.
    """
    if objective.outer is None:
        raise ConfigError(f"{type(objective).__name__} has no inner functions. Use a group objective.")
    return objective.outer


def value_of(objective: Objective, outputs: Any, columns: Columns) -> Tensor | None:
    r"""``g_0 + mean_i r_i f_i(g_i)`` with the inner values of given samples.

    The mean is over the rows of the samples; r_i is the relevance of a row, 1 by default.

    Args:
        objective: the objective.
        outputs: the network's outputs for the samples of its part, with graph.
        columns: the columns of these samples.

    Returns: a scalar with graph, also to the parameters of f_i; None if the samples contain no row.
    """
    direct, rows = objective.measure(outputs, columns)
    if direct is not None and objective.direct_weight != 1:
        direct = objective.direct_weight * direct
    outer = None if rows is None else rows.outer or objective.outer
    if rows is None or outer is None or not bool((rows.weight != 0).any()):
        return direct
    names = rows.index
    if names is None and len(columns.get("index", ())) == len(rows.values):  # one row per sample
        names = columns["index"]
    mean = _coupled(objective, rows, names) if outer.coupled else _mean(outer, rows, names)
    return mean if direct is None else direct + mean


def _mean(outer: OuterFunction, rows: Rows, names: Tensor | None) -> Tensor:
    """The mean over rows of a function of single rows; entries with the same name count as one row."""
    members = rows.weight.nonzero().squeeze(1)
    arguments = torch.where((rows.weight != 0).unsqueeze(1), rows.values, 1.0)  # where f and its slope are finite
    terms = outer(arguments.to(widest(arguments)))[members]
    if rows.weight.dtype != torch.bool:
        terms = rows.weight[members].to(terms.dtype) * terms
    shares = torch.ones_like(terms) if names is None else counts(names[members]).to(terms.dtype).reciprocal()
    return torch.dot(shares, terms) / shares.sum()


def _coupled(objective: Objective, rows: Rows, names: Tensor | None) -> Tensor:
    """The mean over rows of a function of all rows together, which needs each row once, in order."""
    members = rows.weight.nonzero().squeeze(1)
    if names is not None:
        members = members[first_occurrences(names[members])]
    values = rows.values[members]
    return (outer_gradients(objective, values.detach()) * values).sum(1).mean()
