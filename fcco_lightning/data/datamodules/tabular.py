"""The datamodule of tables: reading, splitting, and encoding fitted on the training split."""

import shlex
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from fcco_lightning.checks import list_of, made_of
from fcco_lightning.data.batches import Sampling, UniformSampling
from fcco_lightning.data.columns import as_texts, holds_texts, is_number, require_columns
from fcco_lightning.data.datamodules.samples import SampleDataModule
from fcco_lightning.data.encoding import Encoding, TabularEncoder, unread
from fcco_lightning.data.fingerprint import contents_of
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns, TableRows
from fcco_lightning.data.schema import described as described_columns
from fcco_lightning.data.schema import doubts, numbering, require_seen, settle_types
from fcco_lightning.data.sources import is_hub_id, read_table, with_features
from fcco_lightning.data.splits import Splits
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError, printable

_MOST = 0.8  # a class with a larger share of the rows is rarely meant to be the positive one


class TabularDataModule(SampleDataModule):
    """A table with labels, and perhaps groups and further columns, split, encoded and loaded.

    Batches are dicts with ``x`` (B, d) float32, ``y`` (B,) int64 (float32 if the label is a number, (B, T) int64 for T
    label columns), ``group`` (B,) int64 if there are groups, further columns by their names, and ``index`` (B,) int64:
    the position of the sample within its own split.  With ``LabelSampling`` a training batch has one label of every
    sample, and ``index`` is the number of the pair of sample and label.  The encoding is fitted on the training split.

    The groups are the values of a sensitive column, which is no feature unless ``columns.use_sensitive``; a row with an
    empty cell has no group (-1).  With ``groups`` they are combinations of the values of some columns, numbered
    0..G-1: they are defined by the training table with the pooled ones before it is split, and rows without a
    group are left out of every split.  Every split that is made here then contains every group.

    Columns without a name, and those that number the rows, are no features unless ``encoding`` names them, see
    :func:`fcco_lightning.data.schema.numbering`.

    Args:
        train: training table: path to .csv, .tsv, .parquet or a file of LIBSVM's format, folder of
            ``datasets.save_to_disk``, "sklearn:NAME", hub id "owner/name:split", DataFrame, ``datasets.Dataset`` or
            dict of columns.
        columns: the roles of the columns; the label is never a feature, but may define groups.
        groups: which columns define the groups, instead of a sensitive one.
        pool: tables appended to ``train`` before groups are defined and rows are held out.
        test: test table, or None to hold out ``splits.test_fraction`` of ``train``.
        splits: how rows are divided, stratified by class and group (with several labels by group) unless
            ``splits.whole`` is given.
        encoding: how columns become features.
        batches: how training batches are drawn.
        **loading: see :class:`SplitDataModule`.

    Attributes:
        encoder: encodes columns as features.

    Raises:
        ConfigError: from ``__init__`` if ``groups`` are given with a sensitive column, several labels, or
            ``splits.whole``.
        DataError: from ``__init__`` unless exactly one of ``test`` and ``splits.test_fraction`` is given; from
            ``setup`` if the tables do not fit the arguments.
    """

    _identifying = "train, columns and splits"
    splits: Splits

    def __init__(
        self,
        train: str | Any,
        *,
        columns: Columns,
        groups: Groups | None = None,
        pool: list[str | Any] | None = None,
        test: str | Any | None = None,
        splits: Splits = Splits(),  # noqa: B008 - frozen
        encoding: Encoding = Encoding(),  # noqa: B008
        batches: Sampling = UniformSampling(),  # noqa: B008
        **loading: Any,
    ) -> None:
        super().__init__(columns, groups, splits, batches=batches, **loading)
        if (test is None) == (splits.test_fraction is None):
            raise DataError(
                "Exactly one of test (a table) and splits.test_fraction (a share of train) must be given, got "
                f"{'neither' if test is None else 'both'}. Pass test if there is an official test split, else "
                "splits.test_fraction, for example 0.2."
            )
        if groups is not None and splits.whole is not None:
            raise ConfigError(
                f"splits.whole={splits.whole!r} cannot be combined with groups, since every split must contain all "
                "groups. Leave groups out, or split the table beforehand."
            )
        pooled = {f"pool[{i}]": source for i, source in enumerate(list_of("pool", pool or []))}
        self.sources = {"train": train, **pooled} | ({} if test is None else {"test": test})
        self.encoding = made_of("encoding", encoding, Encoding)
        self.encoder = TabularEncoder(encoding)
        self._unseen: dict[str, dict[str, float]] = {}  # split -> column -> share of values that training lacks
        self._numbering: dict[str, str] = {}  # columns that are no features -> why
        self._doubts: list[str] = []  # warnings about probable mistakes in the table
        self._lost: dict[str, tuple[list[int], int]] = {}
        self._digests: dict[str, str] = {}  # of the columns of the training split

    @property
    def num_features(self) -> int:
        """Width d of ``x``."""
        return len(self.feature_names)

    @property
    def feature_names(self) -> list[str]:
        """Names of the d features, in order."""
        self._table("train")
        return self.encoder.feature_names

    def prepare_data(self) -> None:
        """Download hub data once, before every process reads it."""
        for argument, source in self.sources.items():
            if is_hub_id(source):
                read_table(source, argument)

    def _read_tables(self) -> dict[str, tuple[pd.DataFrame, str]]:
        train = self._table_of("train")
        others = {
            name: with_features(self._table_of(name, train), train.columns) for name in self.sources if name != "train"
        }
        test = {"test": (others.pop("test"), "the test table")} if "test" in others else {}
        if not others:
            return {"train": (train, "the train table"), **test}
        for name, frame in others.items():
            self._require_alike(train, frame, name)
        pooled = [train, *(frame.reindex(columns=train.columns) for frame in others.values())]
        return {"train": (pd.concat(pooled, ignore_index=True), "the train and pool tables"), **test}

    def _require_alike(self, train: pd.DataFrame, frame: pd.DataFrame, name: str) -> None:
        """Refuse a table whose columns are not those of the training table."""
        names = [str(column) for column in train.columns if column not in self._numbering]
        require_columns(frame, {"the column of train": names}, f"{name} table")
        for column in names:
            if is_number(train[column].dtype) != is_number(frame[column].dtype):
                raise DataError(
                    f"Column {column!r} is {train[column].dtype} in train but {frame[column].dtype} in {name}: "
                    "numbers and text cannot be combined. Correct it, or drop it from both tables."
                )

    def _table_of(self, argument: str, train: pd.DataFrame | None = None) -> pd.DataFrame:
        """Read the table of ``argument``, and settle what its columns are before it is split.

        A column that holds texts in ``train`` does so in the other tables, even if all of these look like numbers.
        """
        table = read_table(self.sources[argument], argument)
        if argument == "train":
            asked_for = {*self.roles.named, *self.encoding.numeric, *self.encoding.categorical}
            self._numbering = numbering(table, asked_for)
        if train is not None:
            texts = [name for name in map(str, train.columns) if holds_texts(train[name])]
            table = as_texts(table, self.sources[argument], texts)
        where = f"the {argument} table"
        settled = settle_types(table, self.encoding, {*self.columns.unused, *self._numbering}, where)
        for name, rows in unread(table, settled, self.encoding.numeric).items():
            self._lost[f"cells of {name} in {where} that are no numbers"] = rows, len(table)
        return settled

    def _grouped_rows(self, name: str, frame: pd.DataFrame, where: str) -> TableRows:
        """Take positives out of the training table, too, as ``splits.remove_positives`` says."""
        rows = super()._grouped_rows(name, frame, where)
        return rows.take(self.splits.kept(rows.columns["y"])) if name == "train" else rows

    def _unit_values(self, rows: TableRows) -> Tensor | None:
        column = self.splits.whole
        if column is not None and column not in self.columns.extras:
            raise ConfigError(
                f"splits.whole={column!r} must be one of the further columns of a batch, columns.extra, which are "
                f"{sorted(self.columns.extras)}. Name the column there: extra: {{{column}: COLUMN}}."
            )
        return None if column is None else rows.columns[column]

    def _tables_of(self, splits: dict[str, TableRows]) -> dict[str, TensorTable]:
        features = self.roles.features(splits["train"].table, "the train table", self._numbering)
        labels = self.columns.label_columns if self.columns.target == "class" else []
        self._doubts = doubts(splits["train"].table, list(features.columns), labels, self.columns.sensitive_columns)
        self._digests = {} if self._synthetic else contents_of(features)
        self.encoder.fit(features, "the train split")
        tables = {}
        for name, split in splits.items():
            cells = self.encoder.cells(split.table, f"the {name} split")
            if self.encoder.imputed:
                self._lost[f"rows of {name} with missing cells, which are imputed"] = self.encoder.imputed, len(split)
            self._unseen[name] = {column: n / len(split) for column, n in self.encoder.unknown_counts.items()}
            inferred = [column for column in self.encoder.columns if column.name not in self.encoding.categorical]
            require_seen(inferred, self._unseen[name], split.table, f"the {name} split")
            self._doubts += [f"  {remark}" for remark in self.encoder.far_remarks(f"the {name} split")]
            tables[name] = self.encoder.table(cells, split.columns)
        return tables

    def _summary(self) -> str:
        lost = [f"  {len(rows)} of {total} {description}" for description, (rows, total) in self._lost.items()]
        groups = [name for name in self.columns.sensitive_columns if name in self.columns.unused]
        columns = described_columns(self.encoder.columns, self._unseen, self._numbering, groups)
        lines = super()._summary(), columns, self._frequent_positives(), *self._doubts, *lost
        return "\n".join(filter(None, lines))

    def _frequent_positives(self) -> str:
        """Say which class is positive where most rows have it, since usually the rare class is to be found."""
        share = float(self._table("train").columns["y"].double().mean()) if self.num_classes == 2 else 0.0
        if share <= _MOST:
            return ""
        rare, frequent = map(printable, self.class_names)
        return (
            f"  {frequent} of {self.columns.label} counts as positive, and {share:.0%} of the training rows are; to "
            f"find {rare}: --data.columns.positive {shlex.quote(rare)}"
        )

    def lost(self) -> dict[str, tuple[list[int], int]]:
        """Return cells that were to be numbers and are none, missing ones that are imputed, and rows of no group."""
        without = {
            f"rows of {split} without {column!r}, of no group": (empty.tolist(), len(rows))
            for split, rows in self._rows.items()
            for column in self.columns.sensitive_columns
            if len(empty := np.flatnonzero(rows[column].isna()))
        }
        return self._lost | without

    def state_dict(self) -> dict[str, Any]:
        """Return the encoder and what identifies the training split, as plain values."""
        return {"encoder": self.encoder.state_dict(), **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the encoder, and make sure that the rows of a checkpoint's dual state mean the same samples."""
        super().load_state_dict(state_dict)
        if not self.tables:
            self.encoder.load_state_dict(state_dict["encoder"])

    def _fingerprint(self) -> dict[str, Any]:
        return {**super()._fingerprint(), "features": self.num_features}

    def _inputs(self) -> tuple[list[str], dict[str, str]]:
        return self.feature_names, self._digests
