"""Datamodules of samples in memory with named classes and groups, for the classifier and for later tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.data.batches import CellSampling, UniformSampling
from fcco_lightning.data.columns import listed, places, text_of
from fcco_lightning.data.conditions import Condition, values_of
from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.grouping import Grouping, Groups
from fcco_lightning.errors import DataError

_TAKEN = ("x", "y", "index", "weight")


class NamedTensors(TensorDataModule):
    """One set of samples, both as "train" and as "test", with names of classes and groups, and a table.

    Args:
        columns: ``y`` and other columns of n samples.
        rows: the table, to whose columns subsets and groups refer.
        class_names: names of the labels 0, 1, ...
        group_names: names of the groups 0, 1, ...; empty without ``group``.
        groups_by: column -> its values in training, for columns that define groups for constraints.
        **loading: ``batches``, ``seed`` and others, see :class:`TensorDataModule`.
    """

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        rows: pd.DataFrame,
        class_names: Sequence[Any],
        group_names: Sequence[Any],
        groups_by: Mapping[str, Sequence[Any]],
        **loading: Any,
    ) -> None:
        super().__init__({"train": columns, "test": columns}, **loading)
        self.class_names, self.group_names = [str(name) for name in class_names], [str(name) for name in group_names]
        self._rows = {"train": rows, "test": rows}
        self._groups_by = {column: list(values) for column, values in groups_by.items()}


class NamedArrays(NamedTensors):
    """Samples from arrays, as for scikit-learn's estimators, whose groups are the values of ``group``.

    Args:
        columns: ``x`` and ``y`` of n samples.
        rows: the sensitive features by name, among them ``group``, and the labels as ``y``, as given by the user.
        batches: how training batches are drawn.
        seed: seed of the batches.
        groups: the groups of the training samples, see :attr:`groups`, if these are other samples; rows with other
            values have no group.  None to define them by these samples.
        classes: the classes of the training samples, if these are other samples; None to define them by these.
    """

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        rows: pd.DataFrame,
        batches: UniformSampling | CellSampling = UniformSampling(),  # noqa: B008 - frozen
        seed: int = 0,
        groups: Mapping[str, Sequence[Any]] | None = None,
        classes: Any = None,
    ) -> None:
        others = dict(groups or {})
        values = others.pop("group", None)
        if "group" in rows:
            if values is None:
                categories = list(pd.Categorical(rows["group"]).remove_unused_categories().categories)
                values = list(dict(zip(_texts(categories), categories, strict=True)).values())
            columns = {**columns, "group": places(_texts(values), rows["group"])}
        self._values, classes = values or [], np.unique(rows["y"]) if classes is None else classes
        super().__init__(
            columns,
            rows,
            classes,
            self._values if "group" in rows else [],
            others,
            batches=batches,
            seed=seed,
            num_groups=len(self._values) or None,
        )
        self.updates = max(1, len(columns["y"]) // batches.batch_size)

    @property
    def groups(self) -> dict[str, list[Any]]:
        """Column -> its values that are the groups 0, 1, ..., for ``group`` and columns that constraints use."""
        return {"group": list(self._values), **self._groups_by}

    def _asks_batches(self, column: str, condition: Condition) -> bool:
        """Whether it is on a label or a group that is a text, by a number, which means its place; else on values."""
        rows = self._rows["train"]
        if column not in rows:
            return super()._asks_batches(column, condition)
        numbers = all(isinstance(value, bool | int | float) for value in values_of(condition, column))
        return numbers and column in ("y", "group") and not pd.api.types.is_numeric_dtype(rows[column])

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Return a loader of the training split."""
        return {"train": super().evaluation_loaders()["train"]}


def _texts(values: Sequence[Any]) -> list[str]:
    """The texts by which cells are compared, so that 1, 1.0 and "1" are one group, as in a table."""
    return text_of(pd.Series(list(values), dtype=object)).tolist()


def counts_of_no_group(rows: pd.DataFrame, groups: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Count the rows without a group by reason: an empty cell, or a value that does not occur in training.

    Args:
        rows: n rows.
        groups: column -> its values in training.
    """
    counts: dict[str, int] = {}
    for column, values in groups.items():
        if column not in rows:
            continue
        cells = text_of(rows[column])
        strange = cells[cells.notna() & ~cells.isin(_texts(values))]
        counts[f"rows without {column!r}, of no group"] = int(cells.isna().sum())
        names = listed(strange.unique())
        counts[f"rows of no group of training: {column!r} in {names}"] = len(strange)
    return {reason: count for reason, count in counts.items() if count}


def groups_of_samples(sensitive: Any, n: int, *, later: bool = False) -> pd.DataFrame:
    """The sensitive features by name, n rows, and their combination as "group", unless a feature has this name.

    The combinations of several features have names such as "sex=F, race=B".  In ``later`` samples, which are only
    evaluated, cells may be missing; such rows have no group.

    Raises:
        DataError: if there are missing cells, only one group, or names that are reserved or duplicate.
        ValueError: if there are not n rows.
    """
    from sklearn.utils.validation import check_consistent_length  # noqa: PLC0415  (slow to import)

    if sensitive is None:
        return pd.DataFrame(index=range(n))
    if isinstance(sensitive, Mapping):
        sensitive = pd.DataFrame({name: np.asarray(column) for name, column in sensitive.items()})
    table = sensitive if isinstance(sensitive, pd.DataFrame) else _one_column(sensitive)
    check_consistent_length(np.empty(n), table)
    table = table.set_axis([str(name) for name in table], axis=1).reset_index(drop=True)
    names = [str(name) for name in table]
    refused = sorted({name for name in names if name in _TAKEN or names.count(name) > 1})
    if refused:
        raise DataError(
            f"the sensitive features {refused} are called as other columns of a batch are, or twice. Every one needs a "
            f"name of its own, other than {', '.join(_TAKEN)}: rename them."
        )
    for name in () if later else names:
        _require_groups(name, table[name])
    if "group" in names:
        return table
    if len(names) == 1:
        return table.assign(group=table[names[0]])
    complete = table.dropna()
    if complete.empty:
        return table.assign(group=None)
    grouping = Grouping(Groups([*names])).fit(complete)
    return table.assign(group=pd.Series(np.array(grouping.names)[grouping.assign(complete).numpy()], complete.index))


def _one_column(sensitive: Any) -> pd.DataFrame:
    values = np.asarray(sensitive)
    if values.ndim > 1 and values.shape[1] != 1:
        raise DataError(
            f"sensitive_features has the shape {values.shape}, and its columns have no names. Give one group for every "
            "sample, or a pandas.DataFrame, whose columns constraints name."
        )
    name = getattr(sensitive, "name", None)
    return pd.DataFrame({name if isinstance(name, str) and name not in _TAKEN else "group": values.ravel()})


def _require_groups(name: str, column: pd.Series) -> None:
    missing = int(column.isna().sum())
    if missing:
        raise DataError(
            f"{missing} of {len(column)} cells of the sensitive feature {name!r} are missing, first in row "
            f"{int(np.flatnonzero(column.isna())[0])}. Leave these samples out, or give them a group of their own."
        )
    values = text_of(column).unique()
    if len(values) < 2:
        raise DataError(
            f"the sensitive feature {name!r} has one group only, {values[0]!r}, so there is nothing to compare. "
            "Give another column, or leave the constraints out."
        )
