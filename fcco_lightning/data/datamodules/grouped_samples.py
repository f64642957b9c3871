"""Samples with a table of their labels that form groups: what the datamodules of images and of texts share."""

from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.data.columns import listed
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.datamodules.grouped import refuse_other_roles, require_all_classes, warn_of_absent_groups
from fcco_lightning.data.datamodules.labelled import ROW, ImageSplits, LabelledSamples, imbalanced, parts_of
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns, LabelledFrame, Labels
from fcco_lightning.data.splits import grouped_split
from fcco_lightning.errors import DataError


class GroupedSamplesDataModule(SplitDataModule):
    """Samples whose rows form groups by the joint values of some columns, and how they are divided.

    Args:
        origin: where the samples and the table of their labels are.
        columns: what the columns of that table mean; the label may define groups.
        groups: which columns define the groups.
        splits: how the samples are divided.
        eval_train: whether validation and the report go through the training samples too, which takes as long as an
            epoch's forward passes.
        **loading: ``batches``, ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see
            :class:`SplitDataModule`.

    Attributes:
        grouping: how rows become groups.
        dropped: split -> number of rows of no group.

    Raises:
        ConfigError: from ``__init__`` if ``columns`` names a sensitive column or several labels.
    """

    _kind = "samples"
    """What the samples are, for messages."""

    def __init__(
        self,
        origin: LabelledSamples,
        *,
        columns: Columns,
        groups: Groups,
        splits: ImageSplits,
        eval_train: bool = False,
        **loading: Any,
    ) -> None:
        super().__init__(**loading)
        refuse_other_roles(columns)
        self.eval_workers, self.eval_train = self.num_workers, eval_train
        self.origin, self.splits = origin, splits
        self.labels, self.groups, self.grouping = Labels(columns), groups, groups.grouping()
        self.dropped: dict[str, int] = {}
        self._samples: Any = []
        self._unseen: list[str] = []

    @property
    def num_train(self) -> int:
        """Number of rows of the training split: the rows that a per-sample dual state needs."""
        return len(self._table("train"))

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
    def num_groups(self) -> int:
        """Number G of groups of the training split."""
        self._table("train")
        return len(self.grouping.names)

    @property
    def group_names(self) -> list[str]:
        """Names of the G groups, then of those that only other splits hold."""
        self._table("train")
        return [*self.grouping.names, *self._unseen]

    @property
    def val_names(self) -> list[str]:
        """Names of the validation loaders, in the order of ``dataloader_idx``: all splits but those for testing."""
        self._table("train")
        names = [name for name in self.tables if not name.endswith("test")]
        return names if self.eval_train or names == ["train"] else names[1:]

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Return an ordered loader of this process's part of every split that is evaluated."""
        self._table("train")
        return {name: self._ordered(name) for name in self.tables if name in self.val_names or name.endswith("test")}

    def prepare_data(self) -> None:
        """Download hub data once, before every process reads it."""
        self.origin.prepare()

    def group_report(self) -> str:
        """Return a table of the groups: name, rows in each split, and with two classes the positives in training."""
        names = self.group_names
        columns: dict[str, list[Any]] = {
            split: torch.bincount(table.columns["group"], minlength=len(names)).tolist()
            for split, table in self.tables.items()
        }
        if self.num_classes == 2:
            train = self._table("train").columns
            positives = torch.bincount(train["group"], weights=train["y"].double(), minlength=len(names)).tolist()
            shares = [f"{p / n:.1%}" if n else "" for p, n in zip(positives, columns["train"], strict=True)]
            columns[f"{self.labels.columns.label}={self.class_names[1]}"] = shares
        return pd.DataFrame(columns, index=pd.Index(names, name="group")).to_string()

    def _read_splits(self) -> dict[str, LabelledFrame]:
        """Return the rows of every split with their labels and groups."""
        frame = self._frame()
        splits = self._by_fractions(frame) if self.splits.by == "fractions" else self._by_column(frame)
        if self.splits.imbalance is not None:
            train = splits["train"]
            splits["train"] = train.take(imbalanced(train.columns["y"], self.splits.imbalance, self.splits.seed))
        require_all_classes(splits["train"].columns["y"], self.class_names, str(self.labels.columns.label))
        for name, split in splits.items():  # a split with none of the groups is one of other groups on purpose
            warn_of_absent_groups(name, split.columns["group"], self.grouping.names, all_absent=False)
        return splits

    def _frame(self) -> pd.DataFrame:
        """Return the columns of all samples, which are read."""
        frame, self._samples = self.origin.read()
        return frame

    def _by_fractions(self, frame: pd.DataFrame) -> dict[str, LabelledFrame]:
        """Split every group at random."""
        where = f"the table of the {self._kind}"
        frame = frame if self.splits.limit is None else frame.head(self.splits.limit)
        self._fit(frame, where)
        train = self._labelled(frame, self.grouping.assign(frame, where), "train", where)
        _, val, test = self.splits.shares
        train, held = self._held_out(train, test)
        if not val:
            return {"train": train, "test": held}
        train, middle = self._held_out(train, val / (1 - test))
        return {"train": train, "val": middle, "test": held}

    def _by_column(self, frame: pd.DataFrame) -> dict[str, LabelledFrame]:
        """Split as the column ``split`` says; combinations that training lacks get numbers behind its groups."""
        frames = parts_of(frame, self.origin.layout, self.splits.limit)
        self._fit(frames["train"], "the training rows")
        groups = {name: self.grouping.assign(frame, f"the {name} rows") for name, frame in frames.items()}
        cells = {name: self._cells(frame, f"the {name} rows") for name, frame in frames.items()}
        new = {n: (groups[n] < 0).numpy() & ~cells[n].isin(list(self.grouping.left_out)).to_numpy() for n in frames}
        self._unseen = sorted(set().union(*(cells[name][new[name]] for name in frames)))
        number = {cell: len(self.grouping.names) + i for i, cell in enumerate(self._unseen)}
        for name, rows in new.items():
            groups[name][torch.from_numpy(rows)] = torch.tensor([number[cell] for cell in cells[name][rows]]).long()
        return {name: self._labelled(frame, groups[name], name, f"the {name} rows") for name, frame in frames.items()}

    def _fit(self, frame: pd.DataFrame, where: str) -> None:
        self.labels.fit(frame, where)
        self.grouping.fit(frame, where)

    def _cells(self, frame: pd.DataFrame, where: str) -> pd.Series:
        """Return the name of every row's combination, whether it is a group or not."""
        parts = pd.DataFrame({by.column: by.column + "=" + by.read(frame, where) for by in self.grouping.by})
        return parts.agg(", ".join, axis=1)

    def _labelled(self, frame: pd.DataFrame, group: Tensor, name: str, where: str) -> LabelledFrame:
        """Return the rows of ``frame`` that are of a group."""
        columns = self.labels.read(frame, where)
        known = (group >= 0).nonzero().flatten()
        self.dropped[name] = len(group) - len(known)
        if len(known) == 0:
            raise DataError(
                f"All combinations of groups.by in {where} are too small for a group in the training rows, whose "
                f"groups are {listed(self.grouping.names)}. Lower groups.min_size={self.groups.min_size}, or set "
                "groups.small='merge'."
            )
        return LabelledFrame(frame[[ROW]], columns | {"group": group}, frame).take(known)

    def _held_out(self, split: LabelledFrame, share: float) -> tuple[LabelledFrame, LabelledFrame]:
        rest, held = grouped_split(
            split.columns["group"], self.grouping.names, share, self.splits.seed, "splits.fractions"
        )
        return split.take(rest), split.take(held)
