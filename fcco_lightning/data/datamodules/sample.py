"""One labelled sample with the groups of its sensitive features, which is a training split and nothing else."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_consistent_length
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.sampling import UniformSampling
from fcco_lightning.errors import DataError

_TAKEN = ("x", "y", "index", "weight")


class LabelledSample(TensorDataModule):
    """The training split alone, with its groups."""

    def __init__(
        self, columns: dict[str, Tensor], groups: Mapping[str, pd.Categorical], batches: UniformSampling, seed: int
    ) -> None:
        coded = {name: torch.from_numpy(column.codes.astype(np.int64)) for name, column in groups.items()}
        columns = columns | coded
        super().__init__({"train": columns, "test": columns}, batches=batches, seed=seed)
        self._names = {name: [str(value) for value in column.categories] for name, column in groups.items()}
        self.group_names = self._names.get("group", [])
        self.updates = max(1, len(columns["y"]) // batches.batch_size)

    def groups_of(self, name: str) -> tuple[str, list[str]]:
        """The column of a sensitive feature, and the names of its groups."""
        return name, self._names[name]

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Of the training split."""
        return {"train": super().evaluation_loaders()["train"]}


def coded_groups(sensitive: Any, n: int) -> dict[str, pd.Categorical]:
    """The groups of every sensitive feature by its name; the first one is called "group", too, if none is.

    Raises:
        DataError: if there are missing cells, one group only, or names that are taken or occur twice.
        ValueError: if there are not n of them.
    """
    if sensitive is None:
        return {}
    table = sensitive if isinstance(sensitive, pd.DataFrame) else _one_column(sensitive)
    check_consistent_length(np.empty(n), table)
    names = [str(name) for name in table]
    refused = sorted({name for name in names if name in _TAKEN or names.count(name) > 1})
    if refused:
        raise DataError(
            f"the sensitive features {refused} are called as other columns of a batch are, or twice. Every one needs a "
            f"name of its own, other than {', '.join(_TAKEN)}: rename them."
        )
    found = {name: _coded(name, table.iloc[:, k]) for k, name in enumerate(names)}
    return {"group": next(iter(found.values()))} | found


def _one_column(sensitive: Any) -> pd.DataFrame:
    values = np.asarray(sensitive)
    if values.ndim > 1 and values.shape[1] != 1:
        raise DataError(
            f"sensitive_features has the shape {values.shape}, and its columns have no names. Give one group for every "
            "sample, or a pandas.DataFrame, whose columns constraints name."
        )
    return pd.DataFrame({"group": values.ravel()})


def _coded(name: str, column: Any) -> pd.Categorical:
    missing = int(column.isna().sum())
    if missing:
        raise DataError(
            f"{missing} of {len(column)} cells of the sensitive feature {name!r} are missing, first in row "
            f"{int(np.flatnonzero(column.isna())[0])}. Leave these samples out, or give them a group of their own."
        )
    coded = pd.Categorical(column)
    if len(coded.categories) < 2:
        raise DataError(
            f"the sensitive feature {name!r} has one group only, {str(coded.categories[0])!r}, so there is nothing to "
            "compare. Give another column, or leave the constraints out."
        )
    return coded
