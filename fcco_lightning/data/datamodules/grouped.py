"""Tables whose rows form many groups, for Lightning."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.columns import indicator, listed, require_columns, require_filled, text_of
from fcco_lightning.data.datamodules.base import TableDataModule
from fcco_lightning.data.grouping import GroupBy, Grouping
from fcco_lightning.data.plans import BatchPlan, GroupBatches, UniformBatches
from fcco_lightning.data.sources import read_table
from fcco_lightning.data.splits import grouped_split
from fcco_lightning.errors import ConfigError, DataError


@dataclass(frozen=True)
class GroupedFrame:
    """Features that are not yet encoded, with labels 0..C-1 and groups 0..G-1, both of shape (n,), int64."""

    features: pd.DataFrame
    y: Tensor
    group: Tensor

    def take(self, rows: Tensor) -> "GroupedFrame":
        """Return the given rows, in that order."""
        return GroupedFrame(self.features.iloc[rows.numpy()].reset_index(drop=True), self.y[rows], self.group[rows])


class GroupedTabularDataModule(TableDataModule):
    """A table whose rows form groups by the joint values of some columns, split, encoded and loaded group by group.

    Batches are dicts with ``x`` (B, d) float32, ``y`` (B,) int64, ``group`` (B,) int64 in 0..G-1, and ``index`` (B,)
    int64: the position of the sample within its own split.  A training batch of one process holds ``samples_per_group``
    samples of each of ``groups_per_batch`` groups, the same groups on all processes (see :class:`GroupBatches`).

    Groups are decided on the training table with the pooled ones, before anything is split off; rows of no group are
    left out of every split.  Every split made here holds every group.  Everything learnt for encoding comes from the
    training split.

    Args:
        train: training table: path to .csv or .parquet, folder of ``datasets.save_to_disk``, hub id "owner/name:split",
            DataFrame, ``datasets.Dataset`` or dict of columns.
        label: column of the classes; it is never a feature, but may define groups.
        group_by: columns that define the groups: names, :class:`GroupBy`, or mappings with its arguments.
        positive: value of a ``label`` with two classes that becomes y = 1; None numbers the classes 0..C-1 in sorted
            order.
        test: test table, or None to hold out ``test_fraction``.
        pool: tables appended to ``train`` before groups are decided and anything is split off.
        test_fraction: share of every group held out for testing, in (0, 1); only without ``test``.
        val_fraction: share of what remains of every group held out for validation, in [0, 1).
        split_seed: seed of the splits.
        min_size: rows that make a group, counted before splitting.
        small: what becomes of smaller ones: "drop" leaves their rows out, "error" refuses them, "merge" makes one group
            "other" of them all.
        drop: columns that are not features.
        use_group_columns: whether the columns of ``group_by`` other than the label are features too.
        categorical: numeric columns to treat as categories.
        missing: "error" refuses missing feature cells, "impute" fills them from the training split.
        quantiles: number of bins that columns of numbers are cut into, so that all features are 0 or 1; None
            standardises them.
        groups_per_batch: groups in a training batch (B1).
        samples_per_group: samples of each of them in a training batch of one process (B2).
        replacement: draw the samples of a group with replacement.
        batch_size: None samples groups; a number draws that many rows per process uniformly, whatever their group.
        num_batches: training batches of an epoch; None for as many as hold n samples.  Only when groups are sampled.
        eval_batch_size: rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: worker processes of the training loader.

    Attributes:
        grouping: how rows become groups.
        class_names: what the labels 0..C-1 are called in the table.
        dropped: table ("train" with the pooled ones, "test") -> rows of no group.

    Raises:
        ConfigError: from ``__init__`` if ``group_by`` is malformed, or ``batch_size`` is given with what only group
            sampling has.
        DataError: from ``__init__`` unless exactly one of ``test`` and ``test_fraction`` is given; from ``setup`` if
            the tables are not what the arguments announce.
    """

    _identifying: ClassVar[str] = (
        "train, pool, label, positive, group_by, min_size, small, drop, use_group_columns, quantiles, fractions and "
        "split_seed (the digest covers names and row order)"
    )

    def __init__(
        self,
        train: str | Any,
        *,
        label: str,
        group_by: list[str | GroupBy],
        positive: str | int | float | None = None,
        test: str | Any | None = None,
        pool: list[str | Any] | None = None,
        test_fraction: float | None = None,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        min_size: int = 1,
        small: Literal["drop", "error", "merge"] = "drop",
        drop: list[str] | None = None,
        use_group_columns: bool = True,
        categorical: list[str] | None = None,
        missing: Literal["error", "impute"] = "error",
        quantiles: int | None = None,
        groups_per_batch: int = 8,
        samples_per_group: int = 8,
        replacement: bool = False,
        batch_size: int | None = None,
        num_batches: int | None = None,
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        pooled = {f"pool[{i}]": table for i, table in enumerate(pool or [])}
        super().__init__(
            {"train": train, **pooled, "test": test},
            test_fraction=test_fraction,
            val_fraction=val_fraction,
            split_seed=split_seed,
            categorical=categorical,
            missing=missing,
            quantiles=quantiles,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        if batch_size is not None and (replacement or num_batches is not None):
            raise ConfigError(
                f"batch_size={batch_size!r} draws uniformly instead of by group: leave replacement and num_batches out."
            )
        self.label, self.positive = label, positive
        self.grouping = Grouping(group_by)
        self.min_size, self.small = min_size, small
        self.drop, self.use_group_columns = tuple(drop or ()), use_group_columns
        self.groups_per_batch = at_least("groups_per_batch", groups_per_batch, 1)
        self.samples_per_group = at_least("samples_per_group", samples_per_group, 1)
        self.batch_size = None if batch_size is None else at_least("batch_size", batch_size, 1)
        self.replacement, self.num_batches, self.seed = replacement, num_batches, seed
        self.class_names: list[str] = []
        self.dropped: dict[str, int] = {}
        self._announced = False

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        self._table("train")
        return len(self.class_names)

    @property
    def num_groups(self) -> int:
        """Number of groups G."""
        return len(self.group_names)

    @property
    def group_names(self) -> list[str]:
        """Names of the G groups."""
        self._table("train")
        return self.grouping.names

    @property
    def group_sizes(self) -> dict[str, Tensor]:
        """Split -> rows of every group in it, shape (G,), int64."""
        groups = self.num_groups
        return {name: torch.bincount(table.columns["group"], minlength=groups) for name, table in self.tables.items()}

    def setup(self, stage: str | None = None) -> None:
        """Read, group, split, check and encode all splits; a second call changes nothing."""
        super().setup(stage)
        if stage == "fit" and not self._announced:
            self._announced = True
            rank_zero_info(self._summary())

    def group_report(self) -> str:
        """Return a table of the groups: name, rows in each split, and with two classes the positives in training."""
        sizes = self.group_sizes
        columns = {"group": self.group_names} | {
            name: [str(count) for count in counts.tolist()] for name, counts in sizes.items()
        }
        if self.num_classes == 2:
            train = self._table("train").columns
            positives = torch.bincount(train["group"], weights=train["y"].double(), minlength=self.num_groups)
            columns[f"{self.label}={self.class_names[1]}"] = [f"{share:.1%}" for share in positives / sizes["train"]]
        widths = {name: max(len(name), *(len(cell) for cell in cells)) for name, cells in columns.items()}
        first, *others = columns
        lines = zip(*([name, *cells] for name, cells in columns.items()), strict=True)
        return "\n".join(
            "  ".join(
                [f"{line[0]:<{widths[first]}}", *(f"{c:>{widths[n]}}" for n, c in zip(others, line[1:], strict=True))]
            )
            for line in lines
        )

    def _summary(self) -> str:
        sizes, names = self.group_sizes["train"], self.group_names
        low, high = int(sizes.argmin()), int(sizes.argmax())
        left_out = f"{sum(self.dropped.values())} rows of no group dropped"
        if self.grouping.left_out:
            fate = "merged into one" if self.small == "merge" else "left out"
            left_out += f", {len(self.grouping.left_out)} combinations below min_size={self.min_size} {fate}"
        return (
            f"{self.num_groups} groups with {int(sizes.sum())} training rows: smallest {int(sizes[low])} ({names[low]})"
            f", largest {int(sizes[high])} ({names[high]}); {left_out}."
        )

    def _read_splits(self) -> dict[str, GroupedFrame]:
        splits = self._divided()
        counts = torch.bincount(splits["train"].y, minlength=len(self.class_names))
        if not counts.all():
            raise DataError(
                f"The train split has no rows of class {self.class_names[int(counts.argmin())]!r} of label="
                f"{self.label!r} (rows per class: {counts.tolist()}). Use more data, a smaller min_size, other "
                "fractions, or another split_seed."
            )
        for name, split in splits.items():
            sizes = torch.bincount(split.group, minlength=len(self.grouping.names))
            absent = [self.grouping.names[g] for g in (sizes == 0).nonzero().flatten().tolist()]
            if absent:
                rank_zero_warn(
                    f"The {name} split has no rows of {len(absent)} of the {len(sizes)} groups: {listed(absent)}. "
                    "Whatever is measured on it leaves them out."
                )
        return splits

    def _divided(self) -> dict[str, GroupedFrame]:
        frame = self._pooled()
        where = "the train table" if len(self.sources) == 2 else "the train and pool tables"
        self._require_columns(frame, where)
        self.class_names = _class_names(frame[self.label], self.positive, where)
        self.grouping.fit(frame, self.min_size, self.small, where)
        train = self._grouped(frame, "train", where)
        if self.test_fraction is None:
            table = read_table(self.sources["test"], "test")
            self._require_columns(table, "the test table")
            test = self._grouped(table, "test", "the test table")
        else:
            train, test = self._held_out(train, self.test_fraction, "test_fraction")
        if not self.val_fraction:
            return {"train": train, "test": test}
        train, val = self._held_out(train, self.val_fraction, "val_fraction")
        return {"train": train, "val": val, "test": test}

    def _pooled(self) -> pd.DataFrame:
        """Return the training table with the pooled ones below it."""
        frames = {name: read_table(table, name) for name, table in self.sources.items() if name != "test"}
        train = frames["train"]
        for name, frame in frames.items():
            require_columns(frame, {"the column of train": [str(column) for column in train.columns]}, f"{name} table")
            for column in train.columns:
                kinds = train[column].dtype, frame[column].dtype
                numeric = [pd.api.types.is_numeric_dtype(k) and not pd.api.types.is_bool_dtype(k) for k in kinds]
                if numeric[0] != numeric[1]:
                    raise DataError(
                        f"Column {column!r} is {kinds[0]} in train but {kinds[1]} in {name}: numbers and text do not "
                        f"go together. Repair it, or drop it from both tables."
                    )
        return pd.concat([frame[train.columns] for frame in frames.values()], ignore_index=True)

    def _require_columns(self, frame: pd.DataFrame, where: str) -> None:
        require_columns(frame, {"label": [self.label], "group_by": self.grouping.columns, "drop": self.drop}, where)
        require_filled(frame[self.label], "label", where)

    def _grouped(self, frame: pd.DataFrame, name: str, where: str) -> GroupedFrame:
        """Take labels, groups and features out of ``frame``, without the rows of no group."""
        classes = text_of(frame[self.label])
        y = pd.Index(self.class_names, dtype=object).get_indexer(pd.Index(classes, dtype=object))
        if (y < 0).any():
            raise DataError(
                f"label={self.label!r} has classes {listed(classes[y < 0].unique())} in {where} that train does not "
                f"have; its classes are {listed(self.class_names)}. Repair the table."
            )
        unused = {self.label, *self.drop} | (set() if self.use_group_columns else set(self.grouping.columns))
        features = frame[[column for column in frame.columns if column not in unused]]
        if features.shape[1] == 0:
            raise DataError(f"No feature column is left in {where} beside {sorted(unused)}. Drop fewer columns.")
        group = self.grouping.assign(frame, where)
        known = (group >= 0).nonzero().flatten()
        self.dropped[name] = len(group) - len(known)
        if len(known) == 0:
            raise DataError(f"No row of {where} belongs to one of train's groups {listed(self.grouping.names)}.")
        return GroupedFrame(features, torch.from_numpy(y.astype(np.int64)), group).take(known)

    def _held_out(self, split: GroupedFrame, share: float, argument: str) -> tuple[GroupedFrame, GroupedFrame]:
        rest, held = grouped_split(split.group, self.grouping.names, share, self.split_seed, argument)
        return split.take(rest), split.take(held)

    def _plan(self, world_size: int) -> BatchPlan:
        if self.batch_size is not None:
            return UniformBatches(self.num_train, self.batch_size * world_size, self.seed)
        return GroupBatches(
            self._table("train").columns["group"],
            self.groups_per_batch,
            self.samples_per_group * world_size,
            self.seed,
            replacement=self.replacement,
            num_batches=self.num_batches,
        )

    def _batch_settings(self) -> tuple[Any, ...]:
        sampling = (self.groups_per_batch, self.samples_per_group, self.replacement, self.num_batches)
        return self.seed, self.batch_size, *sampling

    def _fingerprint(self) -> dict[str, int | str]:
        """Sizes, and a digest of all names and of the order of labels and groups."""
        names = [*self.feature_names, *self.class_names, *self.group_names]
        return self._sizes_and_digest(names) | {"features": self.num_features}

    def _sizes_and_digest(self, names: Sequence[str]) -> dict[str, int | str]:
        table = self._table("train")
        # Labels and groups, not features: integers hash the same on every platform, standardised floats may not.
        rows = torch.stack([table.columns["y"], table.columns["group"]]).numpy().astype("<i8").tobytes()
        return {
            "rows": len(table),
            "classes": self.num_classes,
            "groups": self.num_groups,
            "digest": hashlib.sha256("\n".join(names).encode() + rows).hexdigest()[:16],
        }

    def _require_expected_split(self) -> None:
        here = self._fingerprint()
        if self._expected is not None and dict(self._expected) != here:
            raise DataError(
                f"The checkpoint was trained on another training split: {dict(self._expected)} there, {here} here. "
                f"Pass the same {self._identifying}, or start without the checkpoint."
            )


def _class_names(column: pd.Series, positive: str | float | None, where: str) -> list[str]:
    """Return the classes in the order of their numbers; see ``positive`` of :class:`GroupedTabularDataModule`."""
    text = text_of(column)
    numbers = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
    classes = sorted(text.unique(), key=float if numbers else str)
    if len(classes) < 2 or (positive is not None and len(classes) != 2):
        needed = "at least two classes" if positive is None else f"exactly two classes for positive={positive!r}"
        raise DataError(
            f"label={column.name!r} must have {needed}, but in {where} it has {len(classes)}: {listed(classes)}. "
            "Choose another column, or leave positive out if there are more than two."
        )
    if positive is not None and indicator(text, positive, "positive", where)[int((text == classes[0]).argmax())]:
        classes.reverse()
    return classes
