"""Tables whose rows form many groups, for Lightning."""

from typing import Any

import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from torch import Tensor

from fcco_lightning.data.columns import is_number, listed, require_columns
from fcco_lightning.data.datamodules.tabular import TabularDataModule
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns, LabelledFrame
from fcco_lightning.data.sampling import GroupSampling, Sampling
from fcco_lightning.data.splits import grouped_split
from fcco_lightning.errors import ConfigError, DataError


class GroupedTabularDataModule(TabularDataModule):
    """A table whose rows form groups by the joint values of some columns, split, encoded and loaded group by group.

    Batches are dicts with ``x`` (B, d) float32, ``y`` (B,) int64 (float32 if the label is a number), ``group`` (B,)
    int64 in 0..G-1, further columns by their names, and ``index`` (B,) int64: the position of the sample within its own
    split.

    Groups are decided on the training table with the pooled ones, before anything is split off; rows of no group are
    left out of every split.  Every split made here holds every group.  Everything learnt for encoding comes from the
    training split.

    Args:
        train: training table, see :class:`TabularDataModule`.
        columns: what the columns of the table mean; the label is never a feature, but may define groups.
        groups: which columns define the groups.
        pool: tables appended to ``train`` before groups are decided and anything is split off.
        batches: how training batches are drawn.
        **table: ``test``, ``splits`` and ``encoding``, see :class:`TabularDataModule`; ``seed``, ``eval_batch_size``,
            ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.

    Attributes:
        grouping: how rows become groups.
        dropped: table ("train" with the pooled ones, "test") -> number of rows of no group.

    Raises:
        ConfigError: from ``__init__`` if ``columns`` names a sensitive column.
        DataError: from ``__init__`` unless exactly one of ``test`` and ``splits.test_fraction`` is given; from
            ``setup`` if the tables are not what the arguments announce.
    """

    _identifying = "train, pool, columns, groups, splits and encoding"

    def __init__(
        self,
        train: str | Any,
        *,
        columns: Columns,
        groups: Groups,
        pool: list[str | Any] | None = None,
        batches: Sampling = GroupSampling(),  # noqa: B008 - frozen
        **table: Any,
    ) -> None:
        super().__init__(train, columns=columns, batches=batches, **table)
        refuse_other_roles(columns)
        if self.splits.whole is not None:
            raise ConfigError(
                f"splits.whole={self.splits.whole!r} does not go with groups, of which every split is to hold all. Use "
                "TabularDataModule, or divide the table before."
            )
        self.sources |= {f"pool[{i}]": pooled for i, pooled in enumerate(pool or [])}
        self.groups, self.grouping = groups, groups.grouping()
        self.dropped: dict[str, int] = {}

    @property
    def num_classes(self) -> int:
        """Number of classes C; 0 if the label is a number."""
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
        """Split -> number of rows of every group in it, shape (G,), int64."""
        groups = self.num_groups
        return {name: torch.bincount(table.columns["group"], minlength=groups) for name, table in self.tables.items()}

    def group_report(self) -> str:
        """Return a table of the groups: name, rows in each split, and with two classes the positives in training."""
        sizes = {name: counts.tolist() for name, counts in self.group_sizes.items()}
        report = pd.DataFrame(sizes, index=pd.Index(self.group_names)).rename_axis(columns="group")
        if self.num_classes == 2:
            train = self._table("train").columns
            positives = torch.bincount(train["group"], weights=train["y"].double(), minlength=self.num_groups)
            shares = positives / self.group_sizes["train"]
            report[f"{self.columns.label}={self.class_names[1]}"] = [f"{share:.1%}" for share in shares]
        return report.to_string()

    def _summary(self) -> str:
        left_out = f"{sum(self.dropped.values())} rows of no group dropped"
        if self.grouping.left_out:
            fate = "merged into one" if self.groups.small == "merge" else "left out"
            left_out += f", {len(self.grouping.left_out)} combinations below min_size={self.groups.min_size} {fate}"
        return f"{told_of_groups(self.group_sizes['train'], self.group_names)}; {left_out}.\n{super()._summary()}"

    def _training_table(self) -> tuple[pd.DataFrame, str]:
        """Return the training table with the pooled ones below it."""
        frames = {name: self._table_of(name) for name in self.sources if name != "test"}
        train = frames["train"]
        for name, frame in frames.items():
            require_columns(frame, {"the column of train": [str(column) for column in train.columns]}, f"{name} table")
            for column in train.columns:
                if is_number(train[column].dtype) != is_number(frame[column].dtype):
                    raise DataError(
                        f"Column {column!r} is {train[column].dtype} in train but {frame[column].dtype} in {name}: "
                        "numbers and text do not go together. Repair it, or drop it from both tables."
                    )
        where = "the train table" if len(frames) == 1 else "the train and pool tables"
        return pd.concat([frame[train.columns] for frame in frames.values()], ignore_index=True), where

    def _fit(self, table: pd.DataFrame, where: str) -> None:
        super()._fit(table, where)
        self.grouping.fit(table, where)

    def _labelled(self, table: pd.DataFrame, name: str, where: str) -> LabelledFrame:
        """Take labels, groups and features out of ``table``, without the rows of no group."""
        columns = self.labels.read(table, where)
        features = self.labels.features(table, where, () if self.groups.as_features else self.grouping.columns)
        group = self.grouping.assign(table, where)
        known = (group >= 0).nonzero().flatten()
        self.dropped[name] = len(group) - len(known)
        if len(known) == 0:
            raise DataError(f"No row of {where} belongs to one of train's groups {listed(self.grouping.names)}.")
        return LabelledFrame(features, columns | {"group": group}, table).take(known)

    def _held_out(self, split: LabelledFrame, share: float, argument: str) -> tuple[LabelledFrame, LabelledFrame]:
        group, names = split.columns["group"], self.grouping.names
        rest, held = grouped_split(group, names, share, self.splits.seed, f"splits.{argument}")
        return split.take(rest), split.take(held)

    def _check(self, splits: dict[str, LabelledFrame]) -> None:
        require_all_classes(splits["train"].columns["y"], self.class_names, str(self.columns.label))
        for name, split in splits.items():
            warn_of_absent_groups(name, split.columns["group"], self.grouping.names)


def told_of_groups(sizes: Tensor, names: list[str]) -> str:
    """Return in half a line how many training rows the groups ``names`` have; their sizes have shape (G,)."""
    low, high = int(sizes.argmin()), int(sizes.argmax())
    return (
        f"{len(sizes)} groups with {int(sizes.sum())} training rows: smallest {int(sizes[low])} ({names[low]}), "
        f"largest {int(sizes[high])} ({names[high]})"
    )


def refuse_other_roles(columns: Columns) -> None:
    """Raise :class:`ConfigError` if ``columns`` names several labels, or two groups beside those of groups.by."""
    if columns.several:
        raise ConfigError(
            f"columns.label={columns.several!r} names several labels, but batches of groups are made for one. Use "
            "TabularDataModule, or name one of them."
        )
    if columns.sensitive is not None:
        raise ConfigError(
            f"columns.sensitive={columns.sensitive!r} defines two groups, but here groups.by defines them. Name the "
            "column in groups.by."
        )


def require_all_classes(y: Tensor, names: list[str], label: str) -> None:
    """Raise :class:`DataError` if one of the classes ``names`` (none for numbers) does not occur in ``y`` (n,)."""
    counts = torch.bincount(y, minlength=len(names)) if names else torch.ones(1)
    if not counts.all():
        raise DataError(
            f"The train split has no rows of class {names[int(counts.argmin())]!r} of label={label!r} (rows per class: "
            f"{counts.tolist()}). Use more data, a smaller groups.min_size, other fractions, or another splits.seed."
        )


def warn_of_absent_groups(split: str, group: Tensor, names: list[str], *, all_absent: bool = True) -> None:
    """Warn if ``split`` has no rows of some of the groups ``names``; of all of them only if ``all_absent``."""
    present = set(group.tolist())
    absent = [name for g, name in enumerate(names) if g not in present]
    if absent and (all_absent or len(absent) < len(names)):
        rank_zero_warn(
            f"The {split} split has no rows of {len(absent)} of the {len(names)} groups: {listed(absent)}. Whatever is "
            "measured on it leaves them out."
        )
