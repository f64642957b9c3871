"""The datamodule of tensors in memory, also the base class of datamodules that generate their data."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.batches import BatchPlan, Sampling, UniformSampling
from fcco_lightning.data.datamodules.base import INPUTS, SplitDataModule
from fcco_lightning.data.fingerprint import contents_of, fingerprint
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError


class TensorDataModule(SplitDataModule):
    """Splits that are given as columns of tensors, and optional further tables for other parts of a batch.

    Training batches are dicts of the columns with ``index`` (B,).  If there are ``others``, a batch has several such
    parts: "target", rows of the training split, and one part for each name in ``others`` (latent values, classes).

    Args:
        splits: split ("train", "test", and perhaps "val") -> its columns by name, each with first dimension n.
        others: part of a batch -> columns of the table from which it is drawn.
        batches: how training batches are drawn.
        other_batches: part -> how it is drawn; its epochs are as long as those of the training split.
        num_groups: number of groups (the column ``group``), if there are any.
        eval_train: whether validation includes the training samples, if there are other splits.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.

    Raises:
        ConfigError: if ``others`` and ``other_batches`` do not name the same parts.
        DataError: if "train" or "test" is missing, or columns are not of one length.
    """

    _identifying = "data and arguments of the datamodule"

    def __init__(
        self,
        splits: Mapping[str, Mapping[str, Tensor]],
        others: Mapping[str, Mapping[str, Tensor]] | None = None,
        *,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        other_batches: Mapping[str, Sampling] | None = None,
        num_groups: int | None = None,
        eval_train: bool = False,
        **loading: Any,
    ) -> None:
        super().__init__(batches=batches, eval_train=eval_train, **loading)
        names = sorted(splits) if isinstance(splits, Mapping) else type(splits).__name__
        if not {"train", "test"} <= set(names):
            raise DataError(f"splits must hold 'train' and 'test', each with its columns by name, got {names}.")
        self._columns, self._other_columns = splits, dict(others or {})
        self.other_batches = dict(other_batches or {})
        if self.other_batches.keys() != self._other_columns.keys():
            raise ConfigError(
                f"other_batches must say how each of {sorted(self._other_columns)} is drawn, got "
                f"{sorted(self.other_batches)}."
            )
        self._others: dict[str, TensorTable] = {}
        if num_groups is not None:
            self.num_groups = at_least("num_groups", num_groups, 1)

    @property
    def num_train(self) -> int:
        """Number of rows from which training batches are drawn; it is known before ``setup``, too."""
        self.setup()
        return super().num_train

    @property
    def num_features(self) -> int:
        """Size of the last dimension of ``x``."""
        return int(self._columns["train"]["x"].shape[-1])

    def _make_tables(self) -> dict[str, TensorTable]:
        ordered = {"train": self._columns["train"], **self._columns}
        self._others = {name: TensorTable(columns) for name, columns in self._other_columns.items()}
        return {name: TensorTable(columns) for name, columns in ordered.items()}

    def _table(self, name: str) -> TensorTable:
        return self._others[name] if name in self._others else super()._table(name)

    def _plans(self, world_size: int) -> dict[str, tuple[str, BatchPlan]]:
        plans = super()._plans(world_size)
        for number, (name, sampling) in enumerate(self.other_batches.items(), 1):
            paced = sampling.with_num_batches(plans["target"][1].num_batches)
            # another seed, so that the draws of two parts are independent
            other = paced.plan(self._table(name).columns, self.seed + 7919 * number, world_size)
            plans |= self._plans_of(name, name, paced, other)
        return plans

    @property
    def _joined(self) -> bool:
        return bool(self._other_columns)

    def _batch_settings(self) -> tuple[Any, ...]:
        return (*super()._batch_settings(), self.other_batches)

    def _fingerprint(self) -> dict[str, Any]:
        table = self._table("train").columns
        columns = {name: column for name, column in table.items() if name not in INPUTS}
        contents = contents_of(columns if self._synthetic else table)
        return fingerprint(columns, [*self._columns, *self._other_columns], contents)
