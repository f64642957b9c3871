"""Constraints on means of a per-sample quantity over subsets of the data."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fcco_lightning.checks import finite, non_negative
from fcco_lightning.constraints.base import Constraint
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.objectives import Quantity
from fcco_lightning.outer import AbsoluteDifference, OuterFunction
from fcco_lightning.records import Columns, Inner


def select(where: dict[str, int], batch: Columns) -> Tensor:
    """Mask (B,) of the samples whose columns have the given values.

    Raises:
        DataError: if a column is not in the batch.
    """
    missing = [name for name in where if name not in batch]
    if missing:
        raise DataError(
            f"`where` names the column(s) {missing}, the batch has {sorted(batch)}. "
            "Use y (label, 0 or 1), group (1 for the favoured group) or another column of the data."
        )
    some_column = next(iter(batch.values()))
    mask = torch.ones(some_column.shape[0], dtype=torch.bool, device=some_column.device)
    for name, value in where.items():
        mask = mask & (batch[name] == value)
    return mask


def _empty(like: Tensor, width: int) -> Inner:
    return Inner(torch.empty(0, dtype=torch.int64, device=like.device), like.new_empty(0, width))


def _mean(q: Tensor, chosen: Tensor, batch: Columns) -> Tensor | None:
    """Mean of q over the chosen samples of a batch, weighted where they are not drawn uniformly; None without any."""
    values = q[chosen]
    if values.numel() == 0:
        return None
    weight = batch.get("weight")
    if weight is None:
        return values.mean()
    weight = weight[chosen].to(q.dtype)
    return (weight * values).sum() / weight.sum()


class MeanAtMost(Constraint):
    r"""``h(w) = mean of q over the subset - kappa <= 0``.

    Caps a rate (``quantity: SoftRate, where: {y: 0}`` is the false positive rate) or a loss
    (``quantity: LogisticLoss, where: {group: 0}``).  A batch without a sample of the subset leaves the row untouched.

    Args:
        quantity: q.
        kappa: the cap.
        where: the subset, as column -> value; all samples if empty.
        name: in logs and pictures.
        part: which loader's samples, where several contribute to a batch; None for the objective's.
    """

    width = 1

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where: dict[str, int] | None = None,
        name: str = "mean",
        part: str | None = None,
    ) -> None:
        self.quantity, self.where, self.kappa = quantity, dict(where or {}), finite("kappa", kappa)
        self.names, self.part, self.range = [name], part, quantity.range

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of the mean if it holds a sample of the subset."""
        return [[select(self.where, columns)]]

    def inner(self, outputs: Tensor, batch: Columns) -> Inner:
        q, chosen = self.quantity(outputs, batch), select(self.where, batch)
        mean = _mean(q, chosen, batch)
        if mean is None:
            return _empty(q, 1)
        return Inner(torch.zeros(1, dtype=torch.int64, device=q.device), mean.reshape(1, 1))

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return phi

    def violation(self, values: Tensor) -> Tensor:
        return values[:, 0] - self.kappa


class MeanDifferenceAtMost(Constraint):
    r"""``h(w) = |mean of q over subset a - mean of q over subset b| - kappa <= 0``.

    Equal opportunity is ``quantity: SoftRate, where_a: {y: 1, group: 1}, where_b: {y: 1, group: 0}``.  A batch without
    a sample of either subset leaves the row untouched.

    Args:
        quantity: q.
        kappa: tolerance, >= 0.
        where_a: first subset, as column -> value.
        where_b: second subset.
        name: in logs and pictures.
        part: which loader's samples, where several contribute to a batch; None for the objective's.
    """

    width = 2

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where_a: dict[str, int],
        where_b: dict[str, int],
        name: str = "difference",
        part: str | None = None,
    ) -> None:
        if where_a == where_b:
            raise ConfigError(f"where_a and where_b are the same subset {where_a!r}: the difference is always 0.")
        self.quantity, self.where_a, self.where_b = quantity, dict(where_a), dict(where_b)
        self.kappa = non_negative("kappa", kappa)
        self.names, self.part, self.range = [name], part, quantity.range

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of the difference if it holds a sample of both subsets."""
        return [[select(self.where_a, columns), select(self.where_b, columns)]]

    def inner(self, outputs: Tensor, batch: Columns) -> Inner:
        q = self.quantity(outputs, batch)
        a, b = (_mean(q, select(where, batch), batch) for where in (self.where_a, self.where_b))
        if a is None or b is None:
            return _empty(q, 2)
        return Inner(torch.zeros(1, dtype=torch.int64, device=q.device), torch.stack([a, b]).unsqueeze(0))

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return AbsoluteDifference(phi)

    def violation(self, values: Tensor) -> Tensor:
        return (values[:, 0] - values[:, 1]).abs() - self.kappa
