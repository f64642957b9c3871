"""Base classes of datamodules whose samples have a table of labels: reading, groups and splits."""

from abc import abstractmethod
from typing import Any

import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.checks import made_of
from fcco_lightning.data.batches import GroupSampling, Sampling
from fcco_lightning.data.columns import ROW, listed, require_columns
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.datamodules.labelled import LabelledImages, LabelledTexts
from fcco_lightning.data.fingerprint import contents_of, fingerprint
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns, Roles, TableRows, of_no_group
from fcco_lightning.data.splits import (
    PARTS,
    ImageSplits,
    Splits,
    grouped_split,
    require_all_cells,
    stratified_split,
    whole_split,
)
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import DataError, printable

_MOST_CLASSES = 12  # largest number of classes whose sizes are printed


class SampleDataModule(SplitDataModule):
    """Samples with labels, and perhaps groups and further columns, from a table.

    Classes and groups are defined by the training table before it is split; rows without a group of ``groups``
    are left out of every split.  Every split that is made here has every group and class, if ``splits.whole`` allows.

    Args:
        columns: the roles of the table's columns.
        groups: which columns define the groups; None for ``columns.sensitive``, or no groups.
        splits: how the rows are divided.
        **loading: see :class:`SplitDataModule`.

    Attributes:
        roles: reads classes, groups and further columns.
        grouping: assigns groups to rows; None without ``groups``.
        label_names: the columns of several labels; empty if there is one label.
        dropped: table or split -> number of rows without a group.
    """

    def __init__(self, columns: Columns, groups: Groups | None, splits: Splits | ImageSplits, **loading: Any) -> None:
        super().__init__(**loading)
        self.columns, self.splits = made_of("columns", columns, Columns), made_of("splits", splits, Splits, ImageSplits)
        self.groups = None if groups is None else made_of("groups", groups, Groups)
        self.roles, self.label_names = Roles(columns, groups), columns.several
        self.grouping = self.roles.grouping
        self.dropped: dict[str, int] = {}

    @property
    def class_names(self) -> list[str]:
        """Names in the table of the labels 0..C-1; empty if the label is a number."""
        return self.roles.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes C; 0 if the label is a number."""
        self._table("train")
        return len(self.class_names)

    @property
    def group_names(self) -> list[str]:
        """Names of the G groups, followed by groups that occur only in other splits; empty if there are no groups."""
        self._table("train")
        return [*self.roles.group_names, *(self.grouping.unseen if self.grouping else ())]

    @property
    def num_groups(self) -> int:
        """Number of groups G of the training table."""
        self._table("train")
        return len(self.roles.group_names)

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
            group, y = (self._table("train").columns[name] for name in ("group", "y"))
            in_group = group >= 0
            positives = torch.bincount(group[in_group], weights=y[in_group].double(), minlength=len(report))
            shares = [f"{p / n:.1%}" if n else "" for p, n in zip(positives, sizes["train"], strict=True)]
            report[f"{self.columns.label}={self.class_names[1]}"] = shares
        return report.to_string()

    def _make_tables(self) -> dict[str, TensorTable]:
        splits = self._divided()
        for name, rows in splits.items():
            self._check(name, rows)
        self._rows = {name: rows.table.drop(columns=ROW, errors="ignore") for name, rows in splits.items()}
        return self._tables_of(splits)

    @abstractmethod
    def _read_tables(self) -> dict[str, tuple[pd.DataFrame, str]]:
        """Return the rows of "train", and of other splits that need not be held out, each with its name in messages."""

    @abstractmethod
    def _tables_of(self, splits: dict[str, TableRows]) -> dict[str, TensorTable]:
        """Return the tables from which batches of every split are gathered."""

    @abstractmethod
    def _inputs(self) -> tuple[list[str], dict[str, str]]:
        """Return the names of the features, and digests of the training split's inputs by their names."""

    def _divided(self) -> dict[str, TableRows]:
        """Read the samples, and return the rows of every split."""
        tables = self._read_tables()
        self._decide(tables)
        splits = {name: self._grouped_rows(name, *rows) for name, rows in tables.items()}
        for name, (share, argument) in self.splits.held_out.items():
            splits["train"], splits[name] = self._held_out(splits["train"], share, argument)
        return {name: splits[name] for name in PARTS if name in splits}

    def _decide(self, tables: dict[str, tuple[pd.DataFrame, str]]) -> None:
        """Define and number the classes and the groups."""
        self.roles.fit(*tables["train"])

    def _grouped_rows(self, name: str, frame: pd.DataFrame, where: str) -> TableRows:
        """Return the rows that have a group (all, if there are no groups), with the columns that are read from them."""
        rows = TableRows(frame, self.roles.read(frame, where))
        if self.groups is None:
            return rows
        in_group = (rows.columns["group"] >= 0).nonzero().flatten()
        self.dropped[name] = len(rows) - len(in_group)
        if len(in_group) == 0:
            raise DataError(
                f"No row of {where} belongs to one of train's groups {listed(self.roles.group_names)}: the "
                f"combinations of groups.by in {where} are too small there, or absent. Lower groups.min_size="
                f"{self.groups.min_size}, or set groups.small='merge'."
            )
        return rows.take(in_group)

    def _held_out(self, rows: TableRows, share: float, argument: str) -> tuple[TableRows, TableRows]:
        """Return the rest and the held-out part, stratified by class and group, or by values of ``splits.whole``."""
        units, seed = self._unit_values(rows), self.splits.seed
        group, y = rows.columns.get("group"), rows.columns["y"] if self.class_names else None
        if units is not None:
            rest, held_out = whole_split(units, share, seed, argument, None if self.groups is None else group)
        elif self.groups is not None and group is not None:
            rest, held_out = grouped_split(group, self.roles.group_names, share, seed, argument, y)
        else:
            cells = torch.zeros(len(rows), dtype=torch.int64) if group is None else group
            cells = cells if y is None else len(self.class_names) * cells + y
            rest, held_out = stratified_split(cells, share, seed, argument)
        return rows.take(rest), rows.take(held_out)

    @abstractmethod
    def _unit_values(self, rows: TableRows) -> Tensor | None:
        """Return the values (n,) of ``splits.whole``, whose rows stay together; None if there are none."""

    def _check(self, name: str, rows: TableRows) -> None:
        """Refuse a split without samples of a class or group that figures need, and warn of absent groups."""
        y, group = rows.columns["y"], rows.columns.get("group")
        classes, groups = self.class_names, self.roles.group_names
        if remark := self.roles.of_unknown_groups(rows.table, f"the {name} split"):
            rank_zero_warn(remark)
        if self.groups is None and not classes:
            return
        if group is not None and (self.groups is not None or len(groups) > 2):
            self._warn_of_absent_groups(name, set(torch.unique(group).tolist()))
            group = None  # constraints leave out comparisons without samples
        if self.groups is None:
            require_all_cells(y, group, classes, groups, f"{name} split")
            return
        counts = torch.bincount(y, minlength=len(classes)) if classes and name == "train" else torch.ones(1)
        if not counts.all():
            raise DataError(
                f"The train split has no rows of class {classes[int(counts.argmin())]!r} of label="
                f"{self.columns.label!r} (rows per class: {counts.tolist()}). Use more data, a smaller "
                "groups.min_size, other fractions, or another splits.seed."
            )

    def _warn_of_absent_groups(self, split: str, present: set[int]) -> None:
        names = self.roles.group_names
        absent = [name for g, name in enumerate(names) if g not in present]
        if absent and len(absent) < len(names):  # a split with none of the groups has other groups on purpose
            fate = "Its figures leave them out."
            if split == "train":
                fate += (
                    " They are in no batch and have no loss: remove fewer positives (splits), change splits.seed, or "
                    "leave out small groups by a larger groups.min_size."
                )
            rank_zero_warn(
                f"The {split} split has no rows of {len(absent)} of the {len(names)} groups: {listed(absent)}. {fate}"
            )

    def _summary(self) -> str:
        if self.groups is None or self.grouping is None:
            in_group = self._table("train").columns.get("group", torch.zeros(0)) >= 0
            return of_no_group(str(self.columns.sensitive), in_group)
        names, sizes = self.roles.group_names, self.group_sizes["train"][: self.num_groups]
        low, high = int(sizes.argmin()), int(sizes.argmax())
        summary = (
            f"{len(names)} groups with {int(sizes.sum())} training rows: smallest {int(sizes[low])} "
            f"({printable(names[low])}), largest {int(sizes[high])} ({printable(names[high])}); "
            f"{sum(self.dropped.values())} rows of no group dropped"
        )
        if self.grouping.left_out:
            fate = "merged into one" if self.groups.small == "merge" else "left out"
            summary += f", {len(self.grouping.left_out)} combinations below min_size={self.groups.min_size} {fate}"
        return f"{summary}."

    def _fingerprint(self) -> dict[str, Any]:
        """Sizes, and digests of all names, of the inputs, and of the order of labels and groups."""
        columns = {n: column for n, column in self._table("train").columns.items() if n not in {"x", *self._added}}
        features, inputs = self._inputs()
        classes, groups = list(self.class_names), list(self.roles.group_names)
        contents = contents_of(columns) | inputs
        return {
            **fingerprint(columns, [*features, *classes, *self.label_names, *groups], contents),
            "classes": len(classes),
            "groups": len(groups),
            "names of classes": classes,
            "names of groups": groups,
        }

    def _require_expected_split(self) -> None:
        """Refuse other names of classes even with ``allow_changed``: outputs would be misread."""
        stored = (self._stored_fingerprint or {}).get("names of classes", [])  # older checkpoints have none
        for number, (old_name, new_name) in enumerate(zip(stored, self.class_names, strict=False)):
            if old_name != new_name:
                raise DataError(
                    f"Class {number} is {old_name!r} in the checkpoint and {new_name!r} in the training split here: "
                    "outputs of the network would be read as those of other classes, also with allow_changed. Call the "
                    "classes as they are called there, or start without the checkpoint."
                )
        super()._require_expected_split()


class StoredDataModule(SampleDataModule):
    """Images or texts with a separate table of their labels.

    With ``splits.by="fractions"`` groups are defined by all rows, and every split has every group, if
    ``splits.whole`` allows.  With "column" they are defined by the training rows, as 0..G-1, and combinations that
    occur only in other splits (another hospital) are numbered from G on.  Rows of combinations that are too small for a
    group are left out.

    Args:
        origin: the images or texts and the table of their labels.
        columns: the roles of that table's columns; the label may define groups.
        groups: which columns define the groups.
        splits: how the samples are divided.
        batches: how training batches are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        eval_train: whether validation and the report include the training samples, which takes as long as an epoch's
            forward passes.
        **loading: ``seed``, ``num_workers`` (of every loader) and ``allow_changed``, see :class:`SplitDataModule`.
    """

    _kind = "samples"
    """What the samples are, for messages."""

    splits: ImageSplits

    def __init__(
        self,
        origin: LabelledImages | LabelledTexts,
        columns: Columns,
        groups: Groups,
        splits: ImageSplits,
        *,
        batches: Sampling = GroupSampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 256,
        eval_train: bool = False,
        **loading: Any,
    ) -> None:
        super().__init__(
            columns, groups, splits, batches=batches, eval_batch_size=eval_batch_size, eval_train=eval_train, **loading
        )
        self.eval_workers, self.origin = self.num_workers, origin
        self._samples: Any = []

    def prepare_data(self) -> None:
        """Download hub data once, before every process reads it."""
        self.origin.prepare()

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Return an ordered loader of this process's part of every split that is evaluated."""
        loaders = super().evaluation_loaders()
        return {name: loaders[name] for name in loaders if name in self.val_names or name.endswith("test")}

    def _frame(self) -> pd.DataFrame:
        """Read and return the columns of all samples."""
        frame, self._samples = self.origin.read()
        return frame

    def _read_tables(self) -> dict[str, tuple[pd.DataFrame, str]]:
        return self.splits.parts(self._frame(), self._kind)

    def _decide(self, tables: dict[str, tuple[pd.DataFrame, str]]) -> None:
        super()._decide(tables)
        if self.grouping is not None and self.splits.by == "column":
            self.grouping.number_unseen({where: frame for frame, where in tables.values()})

    def _divided(self) -> dict[str, TableRows]:
        splits = super()._divided()
        train = splits["train"]
        return splits | {"train": train.take(self.splits.kept(train.columns["y"]))}

    def _unit_values(self, rows: TableRows) -> Tensor | None:
        return values_of(self.splits.whole or self.origin.whole, rows.table)

    def _summary(self) -> str:
        """Return the summary with the number of samples in each class."""
        lines = [super()._summary()]
        for name, table in self.tables.items() if self.class_names else ():
            sizes = torch.bincount(table.columns["y"], minlength=len(self.class_names)).tolist()
            classes = [f"{size} of {class_name}" for size, class_name in zip(sizes, self.class_names, strict=True)]
            rest = f" and {len(classes) - _MOST_CLASSES} more classes" if len(classes) > _MOST_CLASSES else ""
            lines.append(f"  {name}: {sum(sizes)} {self._kind}, {printable(', '.join(classes[:_MOST_CLASSES]))}{rest}")
        return "\n".join(filter(None, lines))


def values_of(whole: str | None, frame: pd.DataFrame) -> Tensor | None:
    """Return the values of a column as numbers 0, 1, ..., (n,); None if ``whole`` is None.

    Raises:
        DataError: if there is no such column.
    """
    if whole is None:
        return None
    require_columns(frame, {"splits.whole": [whole]}, "the table of the samples")
    return torch.from_numpy(pd.factorize(frame[whole])[0])
