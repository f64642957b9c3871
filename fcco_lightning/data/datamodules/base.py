"""Base class of datamodules: training loaders, ordered evaluation loaders, subsets, groups and checkpoints."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.checks import at_least, made_of
from fcco_lightning.data.batches import BatchPlan, Drawn, Sampling, UniformSampling
from fcco_lightning.data.columns import (
    condition_on,
    listed,
    listed_in_order,
    number_or_text,
    places,
    require_columns,
    require_filled,
    text_of,
)
from fcco_lightning.data.conditions import Condition, Value, Where, comparisons, described, values_of
from fcco_lightning.data.fingerprint import require_same
from fcco_lightning.data.images import ImageTable
from fcco_lightning.data.loader import OrderedShare, ResumableLoader
from fcco_lightning.data.roles import MOST_GROUPS, of_mean_one, of_no_group, of_unknown_groups, require_some_weight
from fcco_lightning.data.table import LabelTable, TensorTable, collate
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import SAMPLE_WEIGHT, dual_of
from fcco_lightning.state.archives import opened

INPUTS = frozenset({"x", "x2", "text"})
"""Columns that are a network's input."""


class SplitDataModule(LightningDataModule):
    """Loads the training split in batches of a plan, and evaluates all splits in order; subclasses define the splits.

    A training batch is a dict of columns, or a dict from part to columns: "target" is the first part, and "dual" an
    independent second draw.  Training batches also have the columns of :meth:`BatchPlan.columns`, such as ``weight``
    (B,) float32 and ``stratum``, which evaluation batches do not have.  If samples have weights (``sample_weight``),
    all batches have ``weight``.

    Args:
        batches: how training batches are drawn.
        seed: seed of the training batches.
        eval_batch_size: number of rows in an evaluation batch of one process.
        eval_train: whether validation includes the training samples, if there are other splits.
        num_workers: number of worker processes of the training loader.
        allow_changed: whether a checkpoint is resumed, with a warning, although its training split differs.

    Attributes:
        tables: split -> its samples; empty before ``setup``.
    """

    eval_workers = 0
    """Worker processes of the loaders for evaluation: none where the samples lie in memory."""

    _identifying = "arguments"
    """The arguments that decide what the rows of the training split are, for messages."""

    _synthetic = False
    """Whether a network's inputs are computed from the arguments: the last bits may differ on another machine."""

    def __init__(
        self,
        *,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        seed: int = 0,
        eval_batch_size: int = 4096,
        eval_train: bool = True,
        num_workers: int = 0,
        allow_changed: bool = False,
    ) -> None:
        super().__init__()
        self.allow_changed = allow_changed
        self.batches, self.seed = made_of("batches", batches, Sampling), at_least("seed", seed, 0)
        self._asked_for: Sampling | None = None  # the user's batches, while larger ones are drawn
        self.eval_batch_size = at_least("eval_batch_size", eval_batch_size, 1)
        self.eval_train, self.num_workers = eval_train, at_least("num_workers", num_workers, 0)
        self.tables: dict[str, TensorTable] = {}
        self._rows: dict[str, pd.DataFrame] = {}  # rows of the evaluated splits, if they are tables
        self._added: set[str] = set()  # columns that subsets, groups and clusters have added
        self._groups_by: dict[str, list[str]] = {}  # column that defines groups -> its values in training
        self._stored_fingerprint: Mapping[str, Any] | None = None
        self._drawn_from: tuple[TensorTable, TensorTable | LabelTable] | None = None
        self._announced = False

    @property
    def num_train(self) -> int:
        """Number of rows from which training batches are drawn, which is the number of rows of a dual state."""
        return len(self._drawn_table("train"))

    @property
    def val_names(self) -> list[str]:
        """Names of the validation loaders, in the order of ``dataloader_idx``: all splits except those for testing."""
        names = [name for name in self._splits() if not name.endswith("test")]
        return names if self.eval_train or names == ["train"] else names[1:]

    def setup(self, stage: str | None = None) -> None:
        """Make all splits, and print a summary before training; a second call changes nothing.

        Raises:
            DataError: if the data do not fit the arguments, or a checkpoint of another split was loaded.
        """
        if not self.tables:
            self.tables = self._make_tables()
            for name, table in self.tables.items():
                if SAMPLE_WEIGHT in table.columns:
                    table.columns[SAMPLE_WEIGHT] = of_mean_one(table.columns[SAMPLE_WEIGHT], f"the {name} split")
                if "weight" in table.columns:
                    require_some_weight(table.columns["weight"], f"the {name} split")
            self._require_expected_split()
        if stage == "fit" and not self._announced:
            self._announced = True
            if summary := self._summary():
                rank_zero_info(summary)

    @abstractmethod
    def _make_tables(self) -> dict[str, TensorTable]:
        """Return split -> its samples, "train" first."""

    def _summary(self) -> str:
        """Return the summary that is printed before training."""
        return ""

    def lost(self) -> dict[str, tuple[list[int], int]]:
        """Return description of unreadable data so far -> the rows concerned, and the number of all rows."""
        images = {name: table for name, table in self.tables.items() if isinstance(table, ImageTable)}
        return {
            f"images of {name} that cannot be read": (rows, len(table))
            for name, table in images.items()
            if (rows := table.corrupt_rows)
        }

    def _plans(self, world_size: int) -> dict[str, tuple[str, BatchPlan]]:
        """Return part of a training batch -> the table from which it is drawn, and its plan; "target" first."""
        columns = self._drawn_table("train").columns
        plan = self.batches.plan({**self._numbered_cells(columns), **columns}, self.seed, world_size)
        return self._plans_of("target", "train", self.batches, plan)

    def _numbered_cells(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return as integers the columns by which batches are drawn, but which they do not contain."""
        rows, names = self._rows.get("train", pd.DataFrame()), self.batches.drawn_by
        return {
            name: torch.from_numpy(pd.factorize(rows[name])[0].astype(np.int64))
            for name in names
            if name not in columns and name in rows
        }

    def _batch_settings(self) -> tuple[Any, ...]:
        """Return the arguments on which the training batches depend."""
        return self.seed, self.batches

    def accumulate(self, parts: int) -> int:
        """Draw batches ``parts`` times as large as those of the arguments, and return the original size per process.

        Args:
            parts: factor on the batch size.

        Raises:
            ConfigError: if batches have no ``batch_size``, or hold samples of several tables.
        """
        if self._joined:
            raise ConfigError(
                f"accumulate_grad_batches={parts}: batches that hold rows of several tables are not made larger as a "
                "whole. Raise their own numbers, and set --model.execution.micro_batch to the number of samples that "
                "fit into memory."
            )
        self.as_asked_for()
        larger, size = self.batches.in_parts(parts)
        self._asked_for, self.batches = self.batches, larger
        return size

    def as_asked_for(self) -> None:
        """Undo :meth:`accumulate`."""
        if self._asked_for is not None:
            self.batches, self._asked_for = self._asked_for, None

    @property
    def _joined(self) -> bool:
        """Whether a training batch holds rows of several tables."""
        return False

    @abstractmethod
    def _fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint of the training split, as plain values."""

    @cached_property
    def _identified(self) -> dict[str, Any]:
        """The fingerprint of the training split, which is computed once, since it reads the whole split."""
        return self._fingerprint()

    def _require_expected_split(self) -> None:
        """Raise :class:`DataError` if a checkpoint was loaded that belongs to another training split."""
        if self._stored_fingerprint is not None:
            # for synthetic data it is easier to restore the arguments
            allow_changed = self.allow_changed or (None if self._synthetic else False)
            require_same(self._stored_fingerprint, self._identified, self._identifying, allow_changed=allow_changed)

    def sampling(self) -> dict[str, Drawn]:
        """Return part of a training batch -> how it is drawn, in the order of the loaders."""
        samplings = {}
        for part, (name, plan) in self._plans(self._place()[1]).items():
            table = self._drawn_table(name)
            columns = {n: c for n, c in table.columns.items() if n not in INPUTS}
            samplings[part] = Drawn(columns, plan, isinstance(table, ImageTable) and table.corrupt == "skip")
        return samplings

    def train_dataloader(self) -> ResumableLoader | CombinedLoader:
        """Return the loader of "target", or of all parts together if there are others."""
        plans = self._plans(self._place()[1])
        loaders = {part: self._resumable(self._drawn_table(name), plan) for part, (name, plan) in plans.items()}
        return CombinedLoader(loaders, mode="min_size") if len(loaders) > 1 else loaders["target"]

    def val_dataloader(self) -> dict[str, DataLoader[Any]]:
        """Return ordered loaders of this process's part of the splits :attr:`val_names`."""
        return {name: self._ordered(name) for name in self.val_names}

    def test_dataloader(self) -> DataLoader[Any]:
        """Return this process's part of the test split, in order."""
        return self._ordered("test")

    predict_dataloader = test_dataloader

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Return an ordered loader of this process's part of every split: "train", "val" (if held out) and "test"."""
        return {name: self._ordered(name) for name in self._splits()}

    def _splits(self) -> list[str]:
        """Return the names of the splits that can be evaluated, "train" first."""
        self._table("train")
        return list(self.tables)

    def add_subset(self, where: Where) -> Where:
        """Convert a subset described by names and columns of the table to one described by columns of the batches.

        Each condition is on a column of one of two kinds:

        1. *A column of the batches*, such as ``y``, ``group`` or one of ``columns.extra``.  Its condition is kept, but
           names of classes (``y``) and of groups (``group``) become their numbers.
        2. *Any other column of the table*, whether it is a feature or not.  The batches of every split get a new
           column, with the text of the condition as its name, which is 1 where the condition holds and 0 elsewhere; the
           subset requires 1 in it.  A second call with the same condition adds no further column.

        Args:
            where: column -> value, list of values, or comparison such as "<25".

        Raises:
            DataError: if there is no such column, or the training split has no such value.

        Example:
            >>> from fcco_lightning import Columns, Splits, TabularDataModule
            >>> people = {"age": [20, 30, 40, 50] * 5, "y": ["no", "yes", "yes", "no"] * 5}
            >>> data = TabularDataModule(people, columns=Columns("y"), splits=Splits(test_fraction=0.4))
            >>> data.setup()
            >>> data.add_subset({"y": "yes", "age": "<35"})
            {'y': 1, 'age<35': 1}
            >>> data.tables["test"].columns["age<35"].sum()
            tensor(3)
        """
        self._table("train")
        numbered: Where = {}
        marks: dict[str, tuple[str, Callable[[pd.Series], Tensor]]] = {}  # added after all conditions are checked
        for column, condition in where.items():
            if self._asks_batches(column, condition):
                numbered[column] = self._numbered(column, condition)
                continue
            train, name = self._rows["train"], described({column: condition})
            require_columns(train, {"where": [column]}, "the table")
            numbered[name], marks[name] = 1, (column, condition_on(train[column], condition))
        for name, mark in marks.items():
            self._with_column(name, *mark)
        return numbered

    def _asks_batches(self, column: str, condition: Condition) -> bool:  # noqa: ARG002
        """Whether a condition is on a column of the batches, rather than on one of the table."""
        return not self._rows or column in self.tables["train"].columns.keys() - self._added - INPUTS

    @property
    def groups_by(self) -> dict[str, list[str]]:
        """Column of the batches from :meth:`add_groups` -> names "COLUMN=VALUE" of its groups 0, 1, ..."""
        return {
            f"group by {column}": [f"{column}={value}" for value in values]
            for column, values in self._groups_by.items()
        }

    def add_groups(self, column: str) -> tuple[str, list[str]]:
        """Return the column of a batch that numbers the groups of ``column``, and the names of the groups 0, 1, ...

        ``y`` and ``group`` are columns of the batches already, with the names of classes and groups.  The groups of any
        other column of the table are its values in the training split, sorted as texts.  For a column "job" with cooks
        and smiths, for example, the batches of every split get a new column "group by job", which is 0 for cooks, 1 for
        smiths, and -1 for empty cells and values without training samples; the result is
        ``("group by job", ["cook", "smith"])``.

        Raises:
            DataError: if there is no such column, or it has one value or more than 50.
        """
        names = self._names_of(column)
        if names:
            return column, names
        if not self._rows:
            raise DataError(
                f"by={column!r}: {type(self).__name__} knows no groups of that column. Use 'group' with a column of "
                "groups (columns.sensitive), or a datamodule of tables, where any column can be named."
            )
        require_columns(self._rows["train"], {"by": [column]}, "the table")
        values = self._groups_by.get(column) or sorted(text_of(self._rows["train"][column]).dropna().unique())
        if not 2 <= len(values) <= MOST_GROUPS:
            raise DataError(
                f"by={column!r}: each value of the column is a group, and there must be 2 to {MOST_GROUPS} values, "
                f"and the training split has {len(values)}. Name a column of categories."
            )
        if column not in self._groups_by:
            self._groups_by[column] = values
            if remark := of_no_group(column, self._rows["train"][column].notna().to_numpy()):
                rank_zero_info(remark)
            for name, rows in self._rows.items():
                if remark := of_unknown_groups(rows[column], values, f"the {name} split"):
                    rank_zero_warn(remark)
        return self._with_column(f"group by {column}", column, partial(places, values)), values

    def add_clusters(self, column: str) -> str:
        """Return the column of evaluation batches with the clusters of samples by a column such as "patient".

        The name of a column of the batches is returned unchanged.  The distinct cells of any other column of the table,
        whether it is a feature or not, are numbered over all splits together, in the order of their occurrence: for a
        column "patient" with "a", "b", "a" in training and "b", "c" in testing, batches get a new column
        "cluster of patient" with 0, 1, 0 and 1, 2, whose name is returned.

        Raises:
            DataError: if there is no such column, or a cell of it is empty.
        """
        splits = list(self.evaluation_loaders())
        shared = set[str].intersection(*(set(self.tables[split].columns) for split in splits)) - self._added - INPUTS
        if column in shared:
            return column
        frames = {split: self._rows[split] for split in splits if split in self._rows}
        names = {str(name) for frame in frames.values() for name in frame.columns}
        if column not in names:
            raise DataError(
                f"feasible.clusters={column!r} is not a column of the data, whose columns are "
                f"{listed(shared - {'index'} | names)}. Name the one that says which samples belong together, or leave "
                "it out if all of them are independent."
            )
        for split, frame in frames.items():
            require_columns(frame, {"feasible.clusters": [column]}, f"the {split} split")
            require_filled(frame[column], "feasible.clusters", f"the {split} split")
        values = pd.concat([text_of(frame[column]) for frame in frames.values()]).unique()
        return self._with_column(f"cluster of {column}", column, partial(places, values))

    def _with_column(self, name: str, column: str, make: Callable[[pd.Series], Tensor]) -> str:
        """Add to the batches of every split a column computed from a column of its table, and return its name."""
        if name not in self._added:
            for split, rows in self._rows.items():
                self.tables[split].columns[name] = make(rows[column])
            self._added.add(name)
        return name

    def _names_of(self, column: str) -> list[str]:
        attribute = {"y": "class_names", "group": "group_names"}.get(column, "")
        return [str(name) for name in getattr(self, attribute, None) or ()]

    def _numbered(self, column: str, condition: Condition) -> Condition:
        names, values = self._names_of(column), values_of(condition, column)
        numbers: list[Value] = [_position(v, names) if isinstance(v, str) else v for v in values]
        unknown = [v for v in numbers if isinstance(v, str) and not comparisons(v)]
        if names and unknown:
            raise DataError(
                f"where={{{column}: {condition!r}}}: {unknown[0]!r} is none of {listed_in_order(names)}, nor a number. "
                "Use one of them."
            )
        return numbers if len(numbers) > 1 else numbers[0]

    def identity(self) -> dict[str, Any]:
        """Properties on which the training batches depend, which must agree on all processes of a job."""
        return {"train_split": self._identified, "batches": self._batch_settings()}

    def _plans_of(self, part: str, name: str, sampling: Sampling, plan: BatchPlan) -> dict[str, tuple[str, BatchPlan]]:
        """Return the part with its plan and, if there is one, the part of the second draw."""
        sample_weight = self._drawn_table(name).columns.get(SAMPLE_WEIGHT)
        if sample_weight is not None:
            plan = plan.of_weighted_samples(sample_weight)
        second = {dual_of(part): (name, plan.second_draw())}
        return {part: (name, plan)} | (second if sampling.two_draws else {})

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the training split, and the requested groups of columns, as plain values."""
        return {"train_split": self._identified, "groups_by": self._groups_by}

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Self:
        """Make a datamodule with the hyperparameters in a checkpoint, as Lightning does, but without running code.

        Raises:
            CheckpointError: naming the file and its fault.
        """
        opened(Path(checkpoint_path))
        datamodule: Self = super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
        return datamodule

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the rows of a checkpoint's dual state belong to the same samples.

        Raises:
            DataError: if the training split is another one (at once, or in ``setup`` if that comes later).
        """
        self._stored_fingerprint = state_dict["train_split"]
        if self.tables:
            self._require_expected_split()

    def _resumable(self, table: TensorTable | LabelTable, plan: BatchPlan) -> ResumableLoader:
        """Return a loader of this process's share of the union batches of ``plan``."""
        rank, world_size = self._place()
        return ResumableLoader(
            table,
            plan,
            rank=rank,
            world_size=world_size,
            num_workers=self.num_workers,
            pin_memory=self._pinned(),
            collate_fn=partial(collate, columns=plan.columns()),
        )

    def _place(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _pinned(self) -> bool:
        """Return whether batches are in pinned memory, for asynchronous copies to a GPU."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _ordered(self, name: str) -> DataLoader[Any]:
        table = self._table(name)
        table = table.plain() if isinstance(table, ImageTable) else table
        weight = table.columns.get(SAMPLE_WEIGHT)
        return DataLoader(
            table,
            batch_size=self.eval_batch_size,
            sampler=OrderedShare(table, *self._place()),
            collate_fn=collate if weight is None else partial(collate, columns={"weight": weight}),
            # else evaluation would use the global random state, see ResumableLoader
            generator=torch.Generator(),
            num_workers=self.eval_workers,
            pin_memory=self._pinned(),
        )

    def _drawn_table(self, name: str) -> TensorTable | LabelTable:
        """Return the table from which training batches are drawn: the view of the split that the sampling needs."""
        table = self._table(name)
        if name != "train":
            return table
        if self._drawn_from is None or self._drawn_from[0] is not table:
            self._drawn_from = table, self.batches.table(table)
        return self._drawn_from[1]

    def _table(self, name: str) -> TensorTable:
        if not self.tables:
            raise DataError(f"The {name} split does not exist before {type(self).__name__}.setup().")
        return self.tables[name]


def _position(text: str, names: list[str]) -> Value:
    """The position of a name; any other text as a number where it is one, or unchanged."""
    return names.index(text) if text in names else number_or_text(text)
