"""Computing the exact inner functions of a group objective and their gradients, batch by batch."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.analysis.inner_jacobian import MAX_VALUES, Jacobian, required_size
from fcco_lightning.distributed import Processes
from fcco_lightning.engine import InnerFunctions, outputs_of_columns
from fcco_lightning.errors import DataError, NonFiniteError
from fcco_lightning.objectives import MultiTaskGroupDRO, Objective
from fcco_lightning.records import Columns, Rows


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
    size = required_size(functions, max_values)
    processes = processes or Processes()
    with undisturbed(functions):
        sums = _Sums(functions, *size)
        with processes.together():
            for batch in batches:
                for part in _by_label(batch, "group"):
                    sums.add(part)
        return sums.mean(processes)


class _Sums:
    """Sums over samples of the inner values and their gradients.

    Args:
        functions: The network and the objective.
        n: The number of rows.
        k: The width of a row.
        d: The number of trained parameters.
    """

    def __init__(self, functions: InnerFunctions, n: int, k: int, d: int) -> None:
        self.functions, self.n, self.k = functions, n, k
        self.parameters = functions.trainable()
        self.weights = list(self.parameters.values())
        dtype = torch.promote_types(self.weights[0].dtype, torch.float32)
        self.counts, self.values = torch.zeros(n * k, dtype=torch.float64), torch.zeros(n * k, dtype=torch.float64)
        self.rows = torch.zeros(n * k, d, dtype=dtype)
        self.direct, self.direct_gradient = torch.zeros(1, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
        self.samples = torch.zeros(1, dtype=torch.float64)

    def add(self, part: Columns) -> None:
        """Add the samples of one group.

        Raises:
            DataError: if a column is missing or wrong.
        """
        objective, outputs = self.functions.objective, outputs_of_columns(self.functions.network, part)
        direct, rows = objective.measure(outputs, part)
        assert rows is not None  # noqa: S101 - a group objective
        if not bool(rows.values.isfinite().all()):
            objective.check(outputs, part)
        for cell, count, mean in _means(objective, outputs, part, rows):
            self.counts[cell] += count
            self.values[cell] += count * mean.item()
            self.rows[cell].add_(_gradient(mean, self.weights).to(self.rows), alpha=count)
        size = len(part["group"])
        self.samples += size
        if direct is not None:
            self.direct += size * direct.item()
            self.direct_gradient.add_(_gradient(direct, self.weights).to(self.direct_gradient), alpha=size)

    def mean(self, processes: Processes) -> Jacobian:
        """Add up the sums of all processes and divide by the numbers of samples."""
        sums = (self.counts, self.values, self.samples, self.direct, self.direct_gradient)
        for total in (*sums, *(self.rows if processes.size > 1 else ())):
            total.copy_(processes.sum_(total.to(self.weights[0].device)))
        if not self.counts.all():
            row, column = divmod(int(self.counts.argmin()), self.k)
            entry = f" (entry {column})" if self.k > 1 else ""
            raise DataError(
                f"inner function {row}{entry} has no sample, diagnostics need all {self.n}. Use a split that holds "
                "every group."
            )
        if not bool(torch.isfinite(self.values).all() and torch.isfinite(self.rows).all()):
            raise NonFiniteError(
                "inner values or their gradients are not finite: the weights diverged, or x holds NaN."
            )
        self.rows.div_(self.counts.to(self.rows.dtype).unsqueeze(1))
        return Jacobian(
            (self.values / self.counts).view(self.n, self.k),
            self.rows,
            float(self.direct / self.samples),
            self.direct_gradient / self.samples,
            sum(p.numel() for name, p in self.parameters.items() if name.startswith("network.")),
        )


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


def _by_label(batch: Columns, column: str) -> Iterator[dict[str, Tensor]]:
    """Split a batch by the values of a column; a batch without that column stays whole."""
    if column not in batch:
        yield dict(batch)
        return
    for label in torch.unique(batch[column]):
        chosen = (batch[column] == label).nonzero().squeeze(1)
        yield {name: values.index_select(0, chosen) for name, values in batch.items()}


def _means(objective: Objective, outputs: Any, part: Columns, rows: Rows) -> Iterator[tuple[int, int, Tensor]]:
    """Compute g over samples of one group: ``(row k + column, number of samples, mean)`` of each of its entries."""
    group, k = int(part["group"][0]), objective.width
    if not isinstance(objective, MultiTaskGroupDRO):
        yield group, len(part["group"]), rows.values[rows.weight != 0][0, 0]
        return
    losses = objective.loss(outputs, part)
    if losses.dim() == 2:
        for task, column in enumerate(losses.unbind(1)):
            yield task * k + group, len(column), column.mean()
        return
    for task in torch.unique(part["task"]).tolist():
        losses_of_task = losses[part["task"] == task]
        yield task * k + group, len(losses_of_task), losses_of_task.mean()


def _gradient(value: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Compute the gradient of a scalar, shape (d,), 0 where it does not depend on a weight.  The graph is kept."""
    if not value.requires_grad:
        return torch.zeros(sum(w.numel() for w in weights))
    parts = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([part.detach().reshape(-1) for part in parts])
