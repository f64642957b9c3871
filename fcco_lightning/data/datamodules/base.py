"""What datamodules share: loaders, checks of checkpoints, and for tables one encoder fitted on the training split."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import pandas as pd
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.checks import at_least
from fcco_lightning.data.encoding import TabularEncoder
from fcco_lightning.data.fingerprint import require_same
from fcco_lightning.data.loader import OrderedShare, ResumableLoader
from fcco_lightning.data.plans import BatchPlan
from fcco_lightning.data.sources import is_hub_id, read_table
from fcco_lightning.data.table import TensorTable, collate
from fcco_lightning.errors import DataError


class Split(Protocol):
    """Rows of a split whose features are not yet encoded; ``y`` and ``group`` have shape (n,), int64."""

    @property
    def features(self) -> pd.DataFrame: ...
    @property
    def y(self) -> Tensor: ...
    @property
    def group(self) -> Tensor: ...


class SplitDataModule(LightningDataModule):
    """Splits that are loaded in training batches and evaluated in order; subclasses say what is in them.

    Args:
        eval_batch_size: rows in an evaluation batch of one process.
        num_workers: worker processes of the training loader.

    Attributes:
        tables: split -> its samples; empty before ``setup``.
    """

    eval_workers = 0
    """Worker processes of the loaders for evaluation: none where the samples lie in memory."""

    def __init__(self, *, eval_batch_size: int, num_workers: int) -> None:
        super().__init__()
        self.eval_batch_size = at_least("eval_batch_size", eval_batch_size, 1)
        self.num_workers = num_workers
        self.tables: dict[str, TensorTable] = {}
        self._expected: Mapping[str, Any] | None = None

    @property
    @abstractmethod
    def val_names(self) -> list[str]:
        """Names of the validation loaders, in the order of ``dataloader_idx``."""

    @abstractmethod
    def _batch_settings(self) -> tuple[Any, ...]:
        """Return the arguments that the training batches depend on."""

    @abstractmethod
    def _fingerprint(self) -> dict[str, int | str]:
        """Return what identifies the training split."""

    @abstractmethod
    def _require_expected_split(self) -> None:
        """Raise :class:`DataError` if a checkpoint was loaded that belongs to another training split."""

    def val_dataloader(self) -> dict[str, DataLoader[Any]]:
        """Return ordered loaders of this process's part of the splits :attr:`val_names`."""
        return {name: self._ordered(name) for name in self.val_names}

    def test_dataloader(self) -> DataLoader[Any]:
        """Return this process's part of the test split, in order."""
        return self._ordered("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """Return this process's part of the test split, in order."""
        return self._ordered("test")

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Return an ordered loader of this process's part of every split: "train", "val" (if held out) and "test"."""
        self._table("train")
        return {name: self._ordered(name) for name in self.tables}

    def identity(self) -> dict[str, Any]:
        """What the training batches depend on: the same on all processes of a job."""
        return {"train_split": self._fingerprint(), "batches": self._batch_settings()}

    def state_dict(self) -> dict[str, Any]:
        """Return what identifies the training split, as plain values."""
        return {"train_split": self._fingerprint()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make sure that the rows of a checkpoint's dual state mean the same samples.

        Raises:
            DataError: if the training split is another one (at once, or in ``setup`` if that comes later).
        """
        self._expected = state_dict["train_split"]
        if self.tables:
            self._require_expected_split()

    def _resumable(self, table: TensorTable, plan: BatchPlan) -> ResumableLoader:
        """Return a loader of this process's share of the union batches of ``plan``."""
        rank, world_size = self._place()
        limit = self.trainer.limit_train_batches if self.trainer else None
        if isinstance(limit, float):
            limit = int(limit * plan.num_batches)
        return ResumableLoader(table, plan, rank=rank, world_size=world_size, num_workers=self.num_workers, limit=limit)

    def _place(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _ordered(self, name: str) -> DataLoader[Any]:
        table = self._evaluation_table(name)
        return DataLoader(
            table,
            batch_size=self.eval_batch_size,
            sampler=OrderedShare(table, *self._place()),
            collate_fn=collate,
            # An own generator keeps evaluation from drawing on the global random state, see ResumableLoader.
            generator=torch.Generator(),
            num_workers=self.eval_workers,
        )

    def _evaluation_table(self, name: str) -> TensorTable:
        """Return what a split is evaluated on."""
        return self._table(name)

    def _table(self, name: str) -> TensorTable:
        if not self.tables:
            raise DataError(f"The {name} split does not exist before {type(self).__name__}.setup().")
        return self.tables[name]


class TableDataModule(SplitDataModule):
    """A table that is split, encoded and loaded; subclasses say what its labels, groups and training batches are.

    Args:
        sources: argument -> table, for ``prepare_data``.
        test_fraction: share of the training table held out for testing; only without ``sources["test"]``.
        val_fraction: share of what remains held out for validation, in [0, 1).
        split_seed: seed of the splits.
        categorical: numeric columns to treat as categories.
        missing: what to do with missing feature cells.
        quantiles: number of bins of columns of numbers, or None.
        eval_batch_size: rows in an evaluation batch of one process.
        num_workers: worker processes of the training loader.

    Raises:
        DataError: unless exactly one of ``sources["test"]`` and ``test_fraction`` is given.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        *,
        test_fraction: float | None,
        val_fraction: float,
        split_seed: int,
        categorical: list[str] | None,
        missing: Literal["error", "impute"],
        quantiles: int | None,
        eval_batch_size: int,
        num_workers: int,
    ) -> None:
        super().__init__(eval_batch_size=eval_batch_size, num_workers=num_workers)
        if (sources["test"] is None) == (test_fraction is None):
            given = "neither" if test_fraction is None else "both"
            raise DataError(
                f"Exactly one of test (a table) and test_fraction (a share of train) must be given, got {given}. "
                "Pass test=... if there is an official test split, else test_fraction=0.2."
            )
        self.sources = dict(sources)
        self.test_fraction, self.val_fraction, self.split_seed = test_fraction, val_fraction, split_seed
        self.encoder = TabularEncoder(categorical or (), missing, quantiles)

    @abstractmethod
    def _read_splits(self) -> Mapping[str, Split]:
        """Read the tables and return the checked splits "train", "val" (if held out) and "test"."""

    @abstractmethod
    def _plan(self, world_size: int) -> BatchPlan:
        """Return the union batches of ``world_size`` processes."""

    @property
    def num_train(self) -> int:
        """Rows of the training split: the number of rows a per-sample dual state needs."""
        return len(self._table("train"))

    @property
    def num_features(self) -> int:
        """Width d of ``x``."""
        return len(self.feature_names)

    @property
    def feature_names(self) -> list[str]:
        """Names of the d features, in order."""
        self._table("train")
        return self.encoder.feature_names

    @property
    def val_names(self) -> list[str]:
        """Names of the validation loaders, in the order of ``dataloader_idx``."""
        return ["train", "val"] if self.val_fraction else ["train"]

    def prepare_data(self) -> None:
        """Download hub data once, before every process reads it."""
        for argument, source in self.sources.items():
            if is_hub_id(source):
                read_table(source, argument)

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002  (all splits share one encoder: built together)
        """Read, split, check and encode all splits; a second call changes nothing."""
        if self.tables:
            return
        splits = self._read_splits()
        self.encoder.fit(splits["train"].features, "the train split")
        for name, split in splits.items():
            x = self.encoder.transform(split.features, f"the {name} split")
            self.tables[name] = TensorTable({"x": x, "y": split.y, "group": split.group})
        self._require_expected_split()

    def train_dataloader(self) -> ResumableLoader:
        """Return the training loader; its position is part of Lightning's checkpoints."""
        return self._resumable(self._table("train"), self._plan(self._place()[1]))

    def state_dict(self) -> dict[str, Any]:
        """Return the encoder and what identifies the training split, as plain values."""
        return {"encoder": self.encoder.state_dict(), "train_split": self._fingerprint()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the encoder, and make sure that the rows of a checkpoint's dual state mean the same samples.

        Raises:
            DataError: if the training split is another one (at once, or in ``setup`` if that comes later).
        """
        self._expected = state_dict["train_split"]
        if self.tables:
            self._require_expected_split()
        else:
            self.encoder.load_state_dict(state_dict["encoder"])

    def _require_expected_split(self) -> None:
        if self._expected is not None:
            require_same(self._expected, self._fingerprint())
