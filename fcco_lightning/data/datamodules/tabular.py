"""Two-class, two-group tables for Lightning."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from fcco_lightning.checks import at_least
from fcco_lightning.data.encoding import TabularEncoder
from fcco_lightning.data.fingerprint import fingerprint, require_same
from fcco_lightning.data.loader import OrderedShare, ResumableLoader
from fcco_lightning.data.roles import LabelledFrame, Roles
from fcco_lightning.data.samplers import BalancedBatches, BatchPlan, OwnerBatches, UniformBatches
from fcco_lightning.data.sources import is_hub_id, read_table
from fcco_lightning.data.splits import require_all_cells, stratified_split
from fcco_lightning.data.table import TensorTable, collate
from fcco_lightning.errors import ConfigError, DataError


class TabularDataModule(LightningDataModule):
    """A table with a two-class label and a sensitive column, split, encoded and loaded.

    Batches are dicts with ``x`` (B, d) float32, ``y`` and ``group`` (B,) int64 in {0, 1}, and ``index`` (B,) int64: the
    position of the sample within its own split.  Everything learnt for encoding comes from the training split.

    Args:
        train: training table: path to .csv or .parquet, folder of ``datasets.save_to_disk``, hub id "owner/name:split",
            DataFrame, ``datasets.Dataset`` or dict of columns.
        label: column with exactly two classes.
        positive: value of ``label`` that becomes y = 1.
        sensitive: column that defines the two groups.
        favoured: value of ``sensitive`` that becomes group 1; all other values become group 0.
        test: test table, or None to hold out ``test_fraction`` of ``train``.
        test_fraction: share of ``train`` held out for testing, in (0, 1); only without ``test``.
        val_fraction: share of what remains held out for validation, in [0, 1).
        split_seed: seed of the splits, which are stratified by label x group.
        drop: columns that are not features.
        use_sensitive: whether ``sensitive`` is a feature too.
        categorical: numeric columns to treat as categories.
        missing: "error" refuses missing feature cells, "impute" fills them from the training split.
        batch_size: rows in a training batch of one process.
        eval_batch_size: rows in an evaluation batch of one process.
        positive_fraction: share of positives in every training batch; None draws uniformly.
        drop_last: leave out an epoch's last batch if it is short.
        owner_batches: hand every process only samples whose rows it holds (:class:`OwnerBatches`), which spares the
            exchange of rows of a large sharded state; the batches then depend on the number of processes.
        seed: seed of the training batches.
        num_workers: worker processes of the training loader.

    Raises:
        DataError: from ``__init__`` unless exactly one of ``test`` and ``test_fraction`` is given; from ``setup`` if
            the tables are not what the arguments announce.
    """

    def __init__(
        self,
        train: str | Any,
        *,
        label: str,
        positive: str | int | float,
        sensitive: str,
        favoured: str | int | float,
        test: str | Any | None = None,
        test_fraction: float | None = None,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        drop: list[str] | None = None,
        use_sensitive: bool = True,
        categorical: list[str] | None = None,
        missing: Literal["error", "impute"] = "error",
        batch_size: int = 128,
        eval_batch_size: int = 4096,
        positive_fraction: float | None = None,
        drop_last: bool = True,
        owner_batches: bool = False,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if (test is None) == (test_fraction is None):
            given = "neither" if test is None else "both"
            raise DataError(
                f"Exactly one of test (a table) and test_fraction (a share of train) must be given, got {given}. "
                "Pass test=... if there is an official test split, else test_fraction=0.2."
            )
        self.sources = {"train": train, "test": test}
        self.roles = Roles(label, positive, sensitive, favoured, tuple(drop or ()), use_sensitive)
        self.test_fraction, self.val_fraction, self.split_seed = test_fraction, val_fraction, split_seed
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.eval_batch_size = at_least("eval_batch_size", eval_batch_size, 1)
        if owner_batches and (positive_fraction is not None or not drop_last):
            raise ConfigError(
                "owner_batches draws uniformly, whole batches: leave positive_fraction and drop_last out."
            )
        self.positive_fraction, self.seed, self.num_workers = positive_fraction, seed, num_workers
        self.drop_last, self.owner_batches = drop_last, owner_batches
        self.encoder = TabularEncoder(categorical or (), missing)
        self.tables: dict[str, TensorTable] = {}
        self.class_names = self.group_names = ("", "")
        self._expected: Mapping[str, Any] | None = None

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
        for name, split in splits.items():
            require_all_cells(split.y, split.group, split.class_names, split.group_names, f"{name} split")
        self.class_names, self.group_names = splits["train"].class_names, splits["train"].group_names
        self.encoder.fit(splits["train"].features, "the train split")
        for name, split in splits.items():
            x = self.encoder.transform(split.features, f"the {name} split")
            self.tables[name] = TensorTable({"x": x, "y": split.y, "group": split.group})
        self._require_expected_split()

    def train_dataloader(self) -> ResumableLoader:
        """Return the training loader; its position is part of Lightning's checkpoints."""
        rank, world_size = self._place()
        plan = self._plan(self.batch_size * world_size, world_size)
        limit = self.trainer.limit_train_batches if self.trainer else None
        if isinstance(limit, float):
            limit = int(limit * plan.num_batches)
        return ResumableLoader(
            self._table("train"), plan, rank=rank, world_size=world_size, num_workers=self.num_workers, limit=limit
        )

    def val_dataloader(self) -> dict[str, DataLoader[Any]]:
        """Return this process's part of the train split in order, then of the validation split (:attr:`val_names`)."""
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
        plan = (self.batch_size, self.seed, self.positive_fraction, self.drop_last, self.owner_batches)
        return {"train_split": fingerprint(self._table("train"), self.feature_names), "batches": plan}

    def state_dict(self) -> dict[str, Any]:
        """Return the encoder and what identifies the training split, as plain values."""
        return {
            "encoder": self.encoder.state_dict(),
            "train_split": fingerprint(self._table("train"), self.feature_names),
        }

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

    def _read_splits(self) -> dict[str, LabelledFrame]:
        train = self.roles.read(read_table(self.sources["train"], "train"), "the train table")
        if self.test_fraction is None:
            test = self.roles.read(read_table(self.sources["test"], "test"), "the test table")
            if test.class_names != train.class_names:
                raise DataError(f"The test table's classes {test.class_names} are not train's {train.class_names}.")
        else:
            rest, held = stratified_split(train.cells, self.test_fraction, self.split_seed, "test_fraction")
            train, test = train.take(rest), train.take(held)
        if not self.val_fraction:
            return {"train": train, "test": test}
        rest, held = stratified_split(train.cells, self.val_fraction, self.split_seed, "val_fraction")
        return {"train": train.take(rest), "val": train.take(held), "test": test}

    def _place(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _plan(self, union: int, world_size: int) -> BatchPlan:
        if self.owner_batches:
            return OwnerBatches(self.num_train, union, self.seed, world_size=world_size)
        if self.positive_fraction is None:
            return UniformBatches(self.num_train, union, self.seed, drop_last=self.drop_last)
        labels = self._table("train").columns["y"]
        return BalancedBatches(labels, union, self.seed, positive_fraction=self.positive_fraction)

    def _ordered(self, name: str) -> DataLoader[Any]:
        # An own generator keeps evaluation from drawing on the global random state, see ResumableLoader.
        table, own = self._table(name), torch.Generator()
        share = OrderedShare(table, *self._place())
        return DataLoader(table, batch_size=self.eval_batch_size, sampler=share, collate_fn=collate, generator=own)

    def _table(self, name: str) -> TensorTable:
        if not self.tables:
            raise DataError(f"The {name} split does not exist before {type(self).__name__}.setup().")
        return self.tables[name]

    def _require_expected_split(self) -> None:
        if self._expected is not None:
            require_same(self._expected, fingerprint(self._table("train"), self.feature_names))
