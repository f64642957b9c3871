"""What datamodules of tables share: reading, splitting, and one encoder fitted on the training split."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]

from fcco_lightning.data.columns import condition_on, require_columns, text_of
from fcco_lightning.data.conditions import Condition, Where, described
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.encoding import Encoding
from fcco_lightning.data.fingerprint import contents_of, fingerprint
from fcco_lightning.data.plans import BatchPlan
from fcco_lightning.data.roles import Columns, LabelledFrame, Labels
from fcco_lightning.data.sampling import Sampling
from fcco_lightning.data.schema import described as described_columns
from fcco_lightning.data.schema import require_seen, settle_types
from fcco_lightning.data.sources import is_hub_id, read_table
from fcco_lightning.data.splits import Splits
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import DataError

_MOST_GROUPS = 50  # a column with more values is a number or a name, and no group has enough samples


class TableDataModule(SplitDataModule):
    """A table that is split, encoded and loaded; subclasses say what its groups are.

    Args:
        sources: argument -> table, for ``prepare_data``.
        columns: what the columns of the table mean.
        splits: how its rows are divided.
        encoding: how its columns become features.
        batches: how training batches are drawn.
        seed: seed of the training batches.
        eval_batch_size: number of rows in an evaluation batch of one process.
        num_workers: number of worker processes of the training loader.
        allow_changed: whether a checkpoint is continued although the training table was changed, with a warning.

    Attributes:
        labels: classes, sensitive groups and further columns.
        encoder: from columns to features.

    Raises:
        DataError: unless exactly one of ``sources["test"]`` and ``splits.test_fraction`` is given.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        *,
        columns: Columns,
        splits: Splits,
        encoding: Encoding,
        batches: Sampling,
        seed: int,
        eval_batch_size: int,
        num_workers: int,
        allow_changed: bool,
    ) -> None:
        super().__init__(
            batches=batches,
            seed=seed,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            allow_changed=allow_changed,
        )
        if (sources["test"] is None) == (splits.test_fraction is None):
            given = "neither" if sources["test"] is None else "both"
            raise DataError(
                f"Exactly one of test (a table) and splits.test_fraction (a share of train) must be given, got {given}."
                " Pass test if there is an official test split, else splits.test_fraction, for example 0.2."
            )
        self.sources, self.splits = dict(sources), splits
        self.labels = Labels(columns)
        self.encoding, self.encoder = encoding, encoding.encoder()
        self._unseen: dict[str, dict[str, float]] = {}  # split -> column -> share of values that training lacks
        self._contents: dict[str, str] = {}  # of the training split
        self._announced = False

    @abstractmethod
    def _read_splits(self) -> dict[str, LabelledFrame]:
        """Read the tables and return the checked splits "train", "val" (if held out) and "test"."""

    @property
    def columns(self) -> Columns:
        """What the columns of the table mean."""
        return self.labels.columns

    @property
    def class_names(self) -> list[str]:
        """What the labels 0..C-1 are called in the table; empty if the label is a number."""
        return self.labels.class_names

    @property
    def num_train(self) -> int:
        """Number of rows that training batches are drawn from: those that a per-sample dual state needs."""
        return len(self._drawn_table("train"))

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
        return ["train", "val"] if self.splits.val_fraction else ["train"]

    def prepare_data(self) -> None:
        """Download hub data once, before every process reads it."""
        for argument, source in self.sources.items():
            if is_hub_id(source):
                read_table(source, argument)

    def setup(self, stage: str | None = None) -> None:
        """Read, split, check and encode all splits, which share one encoder; a second call changes nothing.

        Before training it says what the columns were taken for.

        Raises:
            DataError: if the tables are not what the arguments announce, or most of a column of categories in a split
                are values that the training split lacks.
        """
        if not self.tables:
            self._make_tables()
            self._require_expected_split()
        if stage == "fit" and not self._announced:
            self._announced = True
            rank_zero_info(self._summary())

    def _make_tables(self) -> None:
        splits = self._read_splits()
        self._contents = {} if self._made else contents_of(splits["train"].features)
        self.encoder.fit(splits["train"].features, "the train split")
        tables = {}
        for name, split in splits.items():
            x = self.encoder.transform(split.features, f"the {name} split")
            self._unseen[name] = {column: n / len(split) for column, n in self.encoder.unknown_counts.items()}
            inferred = [column for column in self.encoder.columns if column.name not in self.encoding.categorical]
            require_seen(inferred, self._unseen[name], split.features, f"the {name} split")
            tables[name] = TensorTable({"x": x, **split.columns})
            if split.table is not None:
                self._rows[name] = split.table
        self.tables = tables

    def _table_of(self, argument: str) -> pd.DataFrame:
        """Read the table of ``argument``, and settle what its columns are before it is split."""
        encoding = self.encoding
        return settle_types(
            read_table(self.sources[argument], argument),
            numeric=set(encoding.numeric),
            categorical=set(encoding.categorical),
            unused=self.columns.unused,
            impute=encoding.missing == "impute",
            where=f"the {argument} table",
        )

    def _summary(self) -> str:
        """What is said before training."""
        return described_columns(self.encoder.columns, self._unseen)

    def resolve_where(self, where: Where) -> Where:
        """Return a subset that names any columns of the table as one that batches can be asked for.

        Columns that batches have (``y``, ``group``, further columns) are meant first; a condition on any other column
        of the table becomes a column of the batches that marks the samples which meet it.

        Args:
            where: column -> value, list of values, or comparison such as "<25".

        Raises:
            DataError: if there is no such column, or the training split has no such value.
        """
        present = self._table("train").columns.keys() - self._added - {"x"}
        known = {column: condition for column, condition in where.items() if column in present}
        return super().resolve_where(known) | {
            self._marked(column, condition): 1 for column, condition in where.items() if column not in present
        }

    def groups_of(self, column: str) -> tuple[str, list[str]]:
        """Return the column of a batch that numbers the values of any column of the table, and their names.

        Raises:
            DataError: if there is no such column, or it has one value or more than 50.
        """
        if column in self._table("train").columns and self._names_of(column):
            return super().groups_of(column)
        require_columns(self._rows["train"], {"by": [column]}, "the table")
        texts = {split: text_of(rows[column]) for split, rows in self._rows.items()}
        names = sorted(str(value) for value in texts["train"].dropna().unique())
        if not 2 <= len(names) <= _MOST_GROUPS:
            raise DataError(
                f"by={column!r}: the groups of a column are its values, of which there must be 2 to {_MOST_GROUPS}, "
                f"and the training split has {len(names)}. Name a column of categories."
            )
        name, index = f"group by {column}", pd.Index(names, dtype=object)
        for split, cells in texts.items():
            codes = index.get_indexer(pd.Index(cells, dtype=object)).astype(np.int64)  # -1: none of the groups
            self.tables[split].columns[name] = torch.from_numpy(codes)
        self._added.add(name)
        return name, names

    def _marked(self, column: str, condition: Condition) -> str:
        """Return the name of a column of all splits, int64, that is 1 where the condition holds."""
        name = described({column: condition})
        if name not in self._added:
            require_columns(self._rows["train"], {"where": [column]}, "the table")
            test = condition_on(self._rows["train"][column], condition)
            for split, rows in self._rows.items():
                self.tables[split].columns[name] = test(rows[column])
            self._added.add(name)
        return name

    def state_dict(self) -> dict[str, Any]:
        """Return the encoder and what identifies the training split, as plain values."""
        return {"encoder": self.encoder.state_dict(), "train_split": self._identified()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the encoder, and make sure that the rows of a checkpoint's dual state mean the same samples.

        Raises:
            DataError: if the training split is another one (at once, or in ``setup`` if that comes later).
        """
        super().load_state_dict(state_dict)
        if not self.tables:
            self.encoder.load_state_dict(state_dict["encoder"])

    def _plans(self, world_size: int) -> dict[str, tuple[str, BatchPlan]]:
        plan = self.batches.plan(self._drawn_table("train").columns, self.seed, world_size)
        return self._drawn("target", "train", self.batches, plan)

    def _fingerprint(self) -> dict[str, Any]:
        columns = {
            name: column for name, column in self._table("train").columns.items() if name not in {"x", *self._added}
        }
        names = self._group_names()
        return {
            **fingerprint(
                columns,
                [*self.feature_names, *self.class_names, *self.columns.several, *names],
                contents_of(columns) | self._contents,
            ),
            "features": self.num_features,
            "classes": len(self.class_names),
            "groups": len(names),
        }

    @abstractmethod
    def _group_names(self) -> list[str]:
        """Return the names of the groups, none of them where there are none."""
