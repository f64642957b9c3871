"""Two-class, two-group tables for Lightning."""

from typing import Any, Literal

from fcco_lightning.checks import at_least
from fcco_lightning.data.datamodules.base import TableDataModule
from fcco_lightning.data.fingerprint import fingerprint
from fcco_lightning.data.roles import LabelledFrame, Roles
from fcco_lightning.data.plans import BalancedBatches, BatchPlan, OwnerBatches, UniformBatches
from fcco_lightning.data.sources import read_table
from fcco_lightning.data.splits import require_all_cells, stratified_split
from fcco_lightning.errors import ConfigError, DataError


class TabularDataModule(TableDataModule):
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
        super().__init__(
            {"train": train, "test": test},
            test_fraction=test_fraction,
            val_fraction=val_fraction,
            split_seed=split_seed,
            categorical=categorical,
            missing=missing,
            quantiles=None,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        self.roles = Roles(label, positive, sensitive, favoured, tuple(drop or ()), use_sensitive)
        self.batch_size = at_least("batch_size", batch_size, 1)
        if owner_batches and (positive_fraction is not None or not drop_last):
            raise ConfigError(
                "owner_batches draws uniformly, whole batches: leave positive_fraction and drop_last out."
            )
        self.positive_fraction, self.seed = positive_fraction, seed
        self.drop_last, self.owner_batches = drop_last, owner_batches
        self.class_names = self.group_names = ("", "")

    def _read_splits(self) -> dict[str, LabelledFrame]:
        splits = self._divided()
        for name, split in splits.items():
            require_all_cells(split.y, split.group, split.class_names, split.group_names, f"{name} split")
        self.class_names, self.group_names = splits["train"].class_names, splits["train"].group_names
        return splits

    def _divided(self) -> dict[str, LabelledFrame]:
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

    def _plan(self, world_size: int) -> BatchPlan:
        union = self.batch_size * world_size
        if self.owner_batches:
            return OwnerBatches(self.num_train, union, self.seed, world_size=world_size)
        if self.positive_fraction is None:
            return UniformBatches(self.num_train, union, self.seed, drop_last=self.drop_last)
        labels = self._table("train").columns["y"]
        return BalancedBatches(labels, union, self.seed, positive_fraction=self.positive_fraction)

    def _batch_settings(self) -> tuple[Any, ...]:
        return self.batch_size, self.seed, self.positive_fraction, self.drop_last, self.owner_batches

    def _fingerprint(self) -> dict[str, int | str]:
        return fingerprint(self._table("train"), self.feature_names)
