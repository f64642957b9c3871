"""Samples with a table of their labels, whose rows may form groups: what tables, images and texts share."""

from abc import abstractmethod
from typing import Any

import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from torch import Tensor

from fcco_lightning.data.columns import listed
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.datamodules.labelled import ROW
from fcco_lightning.data.fingerprint import contents_of, fingerprint
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns, LabelledFrame, Labels, of_no_group
from fcco_lightning.data.splits import grouped_split
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import DataError, printable


class LabelledDataModule(SplitDataModule):
    """Splits of samples with labels and perhaps groups, which are decided on the training table.

    Args:
        columns: what the columns of the table mean.
        groups: which columns define the groups; None for the two of ``columns.sensitive``, or none.
        **loading: ``batches``, ``seed``, ``eval_batch_size``, ``eval_train``, ``num_workers`` and ``allow_changed``,
            see :class:`SplitDataModule`.

    Attributes:
        labels: classes, groups and further columns.
        grouping: how rows become groups; None without ``groups``.
        label_names: the columns of several labels; empty if there is one.
        dropped: table or split -> number of rows of no group.
    """

    def __init__(self, columns: Columns, groups: Groups | None, **loading: Any) -> None:
        super().__init__(**loading)
        self.columns, self.groups, self.labels = columns, groups, Labels(columns, groups)
        self.grouping, self.label_names = self.labels.grouping, columns.several
        self.dropped: dict[str, int] = {}

    @property
    def class_names(self) -> list[str]:
        """What the labels 0..C-1 are called in the table; empty if the label is a number."""
        return self.labels.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes C; 0 if the label is a number."""
        self._table("train")
        return len(self.class_names)

    @property
    def group_names(self) -> list[str]:
        """Names of the G groups, then of those that only other splits hold; empty if there are no groups."""
        self._table("train")
        return [*self.labels.group_names, *(self.grouping.unseen if self.grouping else ())]

    @property
    def num_groups(self) -> int:
        """Number of groups G of the training table."""
        self._table("train")
        return len(self.labels.group_names)

    @property
    def group_sizes(self) -> dict[str, Tensor]:
        """Split -> number of its rows in every group of :attr:`group_names`, int64."""
        size = len(self.group_names)
        groups = {name: table.columns["group"] for name, table in self.tables.items()}
        return {name: torch.bincount(group[group >= 0], minlength=size) for name, group in groups.items()}

    def group_report(self) -> str:
        """Return a table of the groups: name, rows in each split, and with two classes the positives in training."""
        sizes = {name: counts.tolist() for name, counts in self.group_sizes.items()}
        report = pd.DataFrame(sizes, index=pd.Index(self.group_names)).rename_axis(columns="group")
        if self.num_classes == 2:
            train = self._table("train").columns
            positives = torch.bincount(train["group"], weights=train["y"].double(), minlength=len(report))
            shares = [f"{p / n:.1%}" if n else "" for p, n in zip(positives, sizes["train"], strict=True)]
            report[f"{self.columns.label}={self.class_names[1]}"] = shares
        return report.to_string()

    def _make_tables(self) -> dict[str, TensorTable]:
        splits = self._divided()
        self._check(splits)
        self._rows = {name: split.table.drop(columns=ROW, errors="ignore") for name, split in splits.items()}
        return self._tables_of(splits)

    @abstractmethod
    def _divided(self) -> dict[str, LabelledFrame]:
        """Read the samples, and return the rows of every split."""

    @abstractmethod
    def _tables_of(self, splits: dict[str, LabelledFrame]) -> dict[str, TensorTable]:
        """Return what batches of every split are gathered from."""

    def _labelled(self, table: pd.DataFrame, name: str, where: str) -> LabelledFrame:
        """Return the rows of ``table`` that are of a group, if there are groups."""
        read = LabelledFrame(table, self.labels.read(table, where))
        if self.groups is None:
            return read
        known = (read.columns["group"] >= 0).nonzero().flatten()
        self.dropped[name] = len(read) - len(known)
        if len(known) == 0:
            raise DataError(
                f"No row of {where} belongs to one of train's groups {listed(self.labels.group_names)}: the "
                f"combinations of groups.by in {where} are too small there, or absent. Lower groups.min_size="
                f"{self.groups.min_size}, or set groups.small='merge'."
            )
        return read.take(known)

    def _held_out(
        self, split: LabelledFrame, share: float, seed: int, argument: str
    ) -> tuple[LabelledFrame, LabelledFrame]:
        """Return the rest and the held-out part of a split, each with every group and its shares of classes."""
        kinds = split.columns["y"] if self.class_names else None
        rest, held = grouped_split(split.columns["group"], self.labels.group_names, share, seed, argument, kinds)
        return split.take(rest), split.take(held)

    def _check(self, splits: dict[str, LabelledFrame]) -> None:
        """Raise :class:`DataError` if a class is not in training, and warn of groups that are not in a split."""
        y, names = splits["train"].columns["y"], self.class_names
        counts = torch.bincount(y, minlength=len(names)) if names else torch.ones(1)
        if not counts.all():
            raise DataError(
                f"The train split has no rows of class {names[int(counts.argmin())]!r} of label={self.columns.label!r} "
                f"(rows per class: {counts.tolist()}). Use more data, a smaller groups.min_size, other fractions, or "
                "another splits.seed."
            )
        for name, split in splits.items():
            self._warn_of_absent_groups(name, set(split.columns["group"].tolist()))

    def _warn_of_absent_groups(self, split: str, present: set[int]) -> None:
        names = self.labels.group_names
        absent = [name for g, name in enumerate(names) if g not in present]
        if absent and len(absent) < len(names):  # a split with none of the groups is one of other groups on purpose
            fate = "Whatever is measured on it leaves them out."
            if split == "train":
                fate += (
                    " Batches of every group, and a loss of each, cannot be had: take fewer positives out (splits), "
                    "take another splits.seed, or leave out small groups by a larger groups.min_size."
                )
            rank_zero_warn(
                f"The {split} split has no rows of {len(absent)} of the {len(names)} groups: {listed(absent)}. {fate}"
            )

    def _summary(self) -> str:
        if self.groups is None or self.grouping is None:
            known = self._table("train").columns.get("group", torch.zeros(0)) >= 0
            return of_no_group(str(self.columns.sensitive), known)
        names, sizes = self.labels.group_names, self.group_sizes["train"][: self.num_groups]
        low, high = int(sizes.argmin()), int(sizes.argmax())
        told = (
            f"{len(names)} groups with {int(sizes.sum())} training rows: smallest {int(sizes[low])} "
            f"({printable(names[low])}), largest {int(sizes[high])} ({printable(names[high])}); "
            f"{sum(self.dropped.values())} rows of no group dropped"
        )
        if self.grouping.left_out:
            fate = "merged into one" if self.groups.small == "merge" else "left out"
            told += f", {len(self.grouping.left_out)} combinations below min_size={self.groups.min_size} {fate}"
        return f"{told}."

    @abstractmethod
    def _inputs(self) -> tuple[list[str], dict[str, str]]:
        """Return the names of the features, and digests of the training split's inputs by what they are of."""

    def _fingerprint(self) -> dict[str, Any]:
        """Sizes, and digests of all names, of the inputs, and of the order of labels and groups."""
        table = self._table("train").columns
        own = {name: column for name, column in table.items() if name not in {"x", *self._added}}
        features, inputs = self._inputs()
        names = [*features, *self.class_names, *self.label_names, *self.labels.group_names]
        return {
            **fingerprint(own, names, contents_of(own) | inputs),
            "classes": self.num_classes,
            "groups": self.num_groups,
            "names of classes": list(self.class_names),
            "names of groups": list(self.labels.group_names),
        }

    def _require_expected_split(self) -> None:
        """Refuse classes of other names, too, whatever is allowed: the network's outputs would be read as others'."""
        stored = (self._expected or {}).get("names of classes", [])  # older checkpoints have none
        for number, (there, here) in enumerate(zip(stored, self.class_names, strict=False)):
            if there != here:
                raise DataError(
                    f"Class {number} is {there!r} in the checkpoint and {here!r} in the training split here: "
                    "outputs of the network would be read as those of other classes, also with allow_changed. Call the "
                    "classes as they are called there, or start without the checkpoint."
                )
        super()._require_expected_split()
