"""The exact inner functions of a group objective on a whole split, and their gradients, computed in batches."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.engine import InnerFunctions, outputs_of_columns
from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import GroupObjective, MultiTaskGroupDRO
from fcco_lightning.state.processes import Processes

MAX_VALUES = 2e9
"""The default for the largest number of values of a Jacobian, or of a Gram matrix: 8 GB in float32."""
_BLOCK = 2**24  # values of the Jacobian converted to float64 at once


class Jacobian(NamedTuple):
    """The exact inner functions of a group objective on a split, and their gradients.

    Attributes:
        values: The inner values g_i(w), shape (n, k), float64.
        rows: The gradients of their entries, shape (n k, d), float32 or wider; the network's parameters come first.
        direct: The value g_0(w), 0 if the objective has no direct part.
        direct_gradient: The gradient of g_0, shape (d,), float64.
        num_network: The number of the d parameters that belong to the network.
    """

    values: Tensor
    rows: Tensor
    direct: float
    direct_gradient: Tensor
    num_network: int


def jacobian(
    functions: InnerFunctions,
    batches: Iterable[Columns],
    processes: Processes | None = None,
    max_values: float = MAX_VALUES,
) -> Jacobian:
    """Compute the inner functions and their gradients over all batches, in evaluation mode.

    No ``.grad`` and no buffer changes.  An inner function is affine in its group's mean loss, so the mean over parts
    of the group, weighted by their sizes, is exact: each batch is split by group, and each part takes one forward and
    one backward pass.

    Args:
        functions: The network and the objective; constraints are left out.
        batches: The batches of the whole split, or of this process's part of it, on the parameters' device, with every
            sample once.
        processes: The processes of the job, whose parts are added up.  By default only this one.
        max_values: See :func:`required_size`.

    Raises:
        ConfigError: see :func:`required_size`.
        DataError: if a group (or a task in a group) has no sample.
        NonFiniteError: if a value or a gradient is NaN or infinite.
    """
    processes = processes or Processes()
    n, k, d = required_size(functions, max_values)
    weights = list(functions.trainable().values())
    with undisturbed(functions):  # also the sums, which must not be inference tensors
        # for the n k entries of g, and g_0 last
        counts, values = torch.zeros(2, n * k + 1, dtype=torch.float64)
        rows = torch.zeros(n * k + 1, d, dtype=torch.promote_types(weights[0].dtype, torch.float32))
        with processes.together():
            for part in chain.from_iterable(map(_by_group, batches)):
                for cell, count, mean in _means(functions, part):
                    counts[cell] += count
                    values[cell] += count * mean.item()
                    rows[cell].add_(gradient(mean, weights).to(rows), alpha=count)
        for total in (counts, values, *rows) if processes.size > 1 else ():
            total.copy_(processes.sum_(total.to(weights[0].device)))
        _require_all(counts, values, rows, k)
        values, rows = values / counts, rows.div_(counts.to(rows.dtype).unsqueeze(1))
        num_network = sum(p.numel() for name, p in functions.trainable().items() if name.startswith("network."))
        return Jacobian(values[:-1].view(n, k), rows[:-1], float(values[-1]), rows[-1].double(), num_network)


def required_size(functions: InnerFunctions, max_values: float = MAX_VALUES) -> tuple[int, int, int]:
    """Return ``(n, k, d)``: the number of rows, their width, and the number of trained parameters.

    Args:
        functions: The network and the objective.
        max_values: The largest number of values that the Jacobian (n k d) and the Gram matrix (n k)^2 may have, > 0.

    Raises:
        ConfigError: if the objective is not made of groups' risks, nothing is trained, or there are too many values.
    """
    objective, name = functions.objective, type(functions.objective).__name__
    if not isinstance(objective, GroupObjective):
        raise ConfigError(
            f"diagnostics need inner functions that are means over a group's samples, the objective is {name}. Use a "
            "group objective such as CVaRGroupDRO, or switch diagnostics off."
        )
    n, k = objective.row_domain(0, None).num_rows, objective.width
    d = sum(p.numel() for p in functions.trainable().values())
    if d == 0:
        raise ConfigError("diagnostics need trainable parameters, but all parameters are frozen. Unfreeze some.")
    values = max(n * k * d, (n * k) ** 2)
    if values > positive("max_values", max_values):
        raise ConfigError(
            f"the Jacobian of {n * k:,} inner values with respect to {d:,} parameters, or its Gram matrix, has "
            f"{values:,} values, more than max_values={max_values:,.0f}. Raise max_values if there is enough "
            "memory, freeze layers, or use fewer groups."
        )
    return n, k, d


def gram(rows: Tensor) -> Tensor:
    """Compute ``J J^T`` of gradients J.

    Args:
        rows: The gradients, shape (m, d).

    Returns:
        The Gram matrix, shape (m, m), float64.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for _, block in column_blocks(rows):
        total += block @ block.T
    return total


def column_blocks(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Iterate over the columns of a (m, d) matrix in float64, some at a time: ``(columns, rows[:, columns])``."""
    size = max(1, _BLOCK // max(1, len(rows)))
    for start in range(0, rows.shape[1], size):
        yield slice(start, start + size), rows[:, start : start + size].double()


def _require_all(counts: Tensor, values: Tensor, rows: Tensor, k: int) -> None:
    """Raise unless every entry of g, which has width k, has samples, and all values are finite."""
    if not counts.all():
        row, column = divmod(int(counts.argmin()), k)
        entry = f" (entry {column})" if k > 1 else ""
        raise DataError(
            f"inner function {row}{entry} has no sample in this split, but diagnostics need all "
            f"{(len(counts) - 1) // k}. Use a split that contains samples of every group."
        )
    if not bool(values.isfinite().all() and rows.isfinite().all()):
        raise NonFiniteError("inner values or their gradients are not finite: the weights diverged, or x holds NaN.")


def _by_group(batch: Columns) -> Iterator[Columns]:
    """Split a batch by group; without that column it stays whole, and the objective raises for it."""
    if "group" not in batch:
        yield batch
        return
    for group in torch.unique(batch["group"]):
        members = (batch["group"] == group).nonzero().squeeze(1)
        yield {name: values.index_select(0, members) for name, values in batch.items()}


def _means(functions: InnerFunctions, part: Columns) -> Iterator[tuple[int, int, Tensor]]:
    """For samples of one group, ``(row k + column, number of samples, mean)`` of the entries of g, and of g_0 as -1.

    Raises:
        DataError: if a column is missing or wrong.
    """
    objective, outputs = functions.objective, outputs_of_columns(functions.network, part)
    direct, rows = objective.measure(outputs, part)
    assert rows is not None  # noqa: S101 - a group objective
    if not bool(rows.values.isfinite().all()):
        objective.check(outputs, part)
    group, size = int(part["group"][0]), len(part["group"])
    yield -1, size, torch.zeros(()) if direct is None else direct
    if not isinstance(objective, MultiTaskGroupDRO):
        yield group, size, rows.values[rows.weight != 0][0, 0]
        return
    for task, members in enumerate(objective.subsets(part) or ()):
        if count := int(members[group].sum()):
            yield task * objective.width + group, count, rows.values[task, group]


# ------------------------------------------------------------------------ gradients of which nothing stays behind


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
    """The gradients of a scalar, whose graph is kept; empty if it does not depend on any of the tensors."""
    if not tensors or not number.requires_grad:
        return []
    partials = torch.autograd.grad(number, list(tensors), retain_graph=True, allow_unused=True)
    if all(gradient is None for gradient in partials):
        return []
    return [
        torch.zeros_like(t) if gradient is None else gradient for t, gradient in zip(tensors, partials, strict=True)
    ]


def gradient(number: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """The gradients of a scalar as one vector, float64, on the CPU; zeros for tensors that it does not depend on."""
    return flat(gradients(number, tensors) or [torch.zeros_like(t) for t in tensors])


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """The concatenated values of tensors, a vector, float64, on the CPU."""
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(t.detach().reshape(-1).double().cpu() for t in tensors)])
