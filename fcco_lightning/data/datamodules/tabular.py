"""Tables with labels and perhaps two groups, for Lightning: read, split, and encoded as the training split says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from torch import Tensor

from fcco_lightning.data.columns import condition_on, require_columns, text_of
from fcco_lightning.data.conditions import Condition, Where, described
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.encoding import Encoding
from fcco_lightning.data.fingerprint import contents_of, fingerprint
from fcco_lightning.data.roles import Columns, LabelledFrame, Labels
from fcco_lightning.data.sampling import Sampling, UniformSampling
from fcco_lightning.data.schema import described as described_columns
from fcco_lightning.data.schema import require_seen, settle_types
from fcco_lightning.data.sources import is_hub_id, read_table, with_features_of
from fcco_lightning.data.splits import Splits, keep_positives, require_all_cells, stratified_split, whole_split
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError

_MOST_GROUPS = 50  # a column with more values is a number or a name, and no group has enough samples


class TabularDataModule(SplitDataModule):
    """A table with a label, and perhaps two groups and further columns, split, encoded and loaded.

    Batches are dicts with ``x`` (B, d) float32, ``y`` (B,) int64 (float32 if the label is a number, (B, T) int64 for T
    label columns), ``group`` (B,) int64 in {0, 1} if there is a sensitive column, further columns by their names, and
    ``index`` (B,) int64: the position of the sample within its own split.  With ``LabelSampling`` a training batch has
    one label of every sample, and ``index`` numbers the pairs of both.  Everything learnt for encoding comes from the
    training split.

    Args:
        train: training table: path to .csv, .parquet or a file of LIBSVM's format, folder of
            ``datasets.save_to_disk``, "sklearn:NAME", hub id "owner/name:split", DataFrame, ``datasets.Dataset`` or
            dict of columns.
        columns: what the columns of the table mean.
        test: test table, or None to hold out ``splits.test_fraction`` of ``train``.
        splits: how rows are divided, stratified by class and group (with several labels: by group) unless
            ``splits.whole`` is given.
        encoding: how columns become features.
        batches: how training batches are drawn; batches of groups are those of the sensitive column.
        **loading: ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.

    Attributes:
        labels: classes, sensitive groups and further columns.
        encoder: from columns to features.

    Raises:
        DataError: from ``__init__`` unless exactly one of ``test`` and ``splits.test_fraction`` is given; from
            ``setup`` if the tables are not what the arguments announce.
    """

    _identifying = "train, columns and splits"

    def __init__(
        self,
        train: str | Any,
        *,
        columns: Columns,
        test: str | Any | None = None,
        splits: Splits = Splits(),  # noqa: B008 - frozen
        encoding: Encoding = Encoding(),  # noqa: B008
        batches: Sampling = UniformSampling(),  # noqa: B008
        **loading: Any,
    ) -> None:
        super().__init__(batches=batches, **loading)
        if (test is None) == (splits.test_fraction is None):
            raise DataError(
                "Exactly one of test (a table) and splits.test_fraction (a share of train) must be given, got "
                f"{'neither' if test is None else 'both'}. Pass test if there is an official test split, else "
                "splits.test_fraction, for example 0.2."
            )
        self.sources, self.splits = {"train": train, "test": test}, splits
        self.labels = Labels(columns)
        self.encoding, self.encoder = encoding, encoding.encoder()
        self._unseen: dict[str, dict[str, float]] = {}  # split -> column -> share of values that training lacks
        self._contents: dict[str, str] = {}  # of the training split
        self._announced = False

    @property
    def columns(self) -> Columns:
        """What the columns of the table mean."""
        return self.labels.columns

    @property
    def class_names(self) -> list[str]:
        """What the labels 0..C-1 are called in the table; empty if the label is a number."""
        return self.labels.class_names

    @property
    def label_names(self) -> list[str]:
        """The columns of several labels; empty if there is one."""
        return self.columns.several

    @property
    def group_names(self) -> list[str]:
        """What the groups 0, 1, ... are called; empty if there are none."""
        return self.labels.group_names

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
            splits = self._divided()
            self._check(splits)
            self.tables = self._encoded(splits)
            self._require_expected_split()
        if stage == "fit" and not self._announced:
            self._announced = True
            rank_zero_info(self._summary())

    def _divided(self) -> dict[str, LabelledFrame]:
        """Read the tables and return the splits "train", "val" (if held out) and "test"."""
        table, where = self._training_table()
        self._fit(table, where)
        train = self._thinned(self._labelled(table, "train", where))
        if self.splits.test_fraction is None:
            test = self._labelled(with_features_of(self._table_of("test"), table), "test", "the test table")
        else:
            train, test = self._held_out(train, self.splits.test_fraction, "test_fraction")
        if not self.splits.val_fraction:
            return {"train": train, "test": test}
        train, val = self._held_out(train, self.splits.val_fraction, "val_fraction")
        return {"train": train, "val": val, "test": test}

    def _thinned(self, train: LabelledFrame) -> LabelledFrame:
        """Take positives out, as ``splits.remove_positives`` says."""
        removed = self.splits.remove_positives
        if not removed:
            return train
        if len(self.class_names) != 2:
            raise DataError(
                f"splits.remove_positives={removed!r} needs one label of two classes. Say which values are positive "
                "(columns.positive)."
            )
        y = train.columns["y"]
        kept = round((1 - removed) * int(y.sum()))
        if not kept:
            raise DataError(f"splits.remove_positives={removed!r} leaves none of {int(y.sum())} positives. Lower it.")
        return train.take(keep_positives(y, kept, self.splits.seed))

    def _training_table(self) -> tuple[pd.DataFrame, str]:
        """Return what is split, and what it is called in messages."""
        return self._table_of("train"), "the train table"

    def _table_of(self, argument: str) -> pd.DataFrame:
        """Read the table of ``argument``, and settle what its columns are before it is split."""
        table = read_table(self.sources[argument], argument)
        return settle_types(table, self.encoding, self.columns.unused, f"the {argument} table")

    def _fit(self, table: pd.DataFrame, where: str) -> None:
        """Decide classes and groups on the table, not yet split."""
        self.labels.fit(table, where)

    def _labelled(self, table: pd.DataFrame, name: str, where: str) -> LabelledFrame:  # noqa: ARG002  (of groups)
        return LabelledFrame(self.labels.features(table, where), self.labels.read(table, where), table)

    def _held_out(self, split: LabelledFrame, share: float, argument: str) -> tuple[LabelledFrame, LabelledFrame]:
        whole, seed = self.splits.whole, self.splits.seed
        if whole is None:
            rest, held = stratified_split(self._cells(split), share, seed, argument)
        elif whole not in self.columns.extras:
            raise ConfigError(
                f"splits.whole={whole!r} must be one of the further columns of a batch, columns.extra, which are "
                f"{sorted(self.columns.extras)}. Name the column there: extra: {{{whole}: COLUMN}}."
            )
        else:
            rest, held = whole_split(split.columns[whole], share, seed, argument)
        return split.take(rest), split.take(held)

    def _cells(self, split: LabelledFrame) -> Tensor:
        """Return group x class of every row as one number, shape (n,); numbers to be predicted are no class."""
        cells = split.columns.get("group", torch.zeros(len(split), dtype=torch.int64))
        return len(self.class_names) * cells + split.columns["y"] if self.class_names else cells

    def _check(self, splits: dict[str, LabelledFrame]) -> None:
        """Raise :class:`DataError` unless every split has all that is measured on it."""
        for name, split in splits.items() if self.class_names else ():
            group = split.columns.get("group")
            require_all_cells(split.columns["y"], group, self.class_names, self.group_names, f"{name} split")

    def _encoded(self, splits: dict[str, LabelledFrame]) -> dict[str, TensorTable]:
        self._contents = {} if self._made else contents_of(splits["train"].features)
        self.encoder.fit(splits["train"].features, "the train split")
        tables = {}
        for name, split in splits.items():
            x = self.encoder.transform(split.features, f"the {name} split")
            self._unseen[name] = {column: n / len(split) for column, n in self.encoder.unknown_counts.items()}
            inferred = [column for column in self.encoder.columns if column.name not in self.encoding.categorical]
            require_seen(inferred, self._unseen[name], split.features, f"the {name} split")
            tables[name] = TensorTable({"x": x, **split.columns})
            self._rows[name] = split.table
        return tables

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
        names = sorted(text_of(self._rows["train"][column]).dropna().unique())
        if not 2 <= len(names) <= _MOST_GROUPS:
            raise DataError(
                f"by={column!r}: the groups of a column are its values, of which there must be 2 to {_MOST_GROUPS}, "
                f"and the training split has {len(names)}. Name a column of categories."
            )

        def number(cells: pd.Series) -> Tensor:  # -1: none of the groups
            codes = pd.Index(names, dtype=object).get_indexer(pd.Index(text_of(cells), dtype=object))
            return torch.from_numpy(codes.astype(np.int64))

        return self._with_column(f"group by {column}", column, number), names

    def _marked(self, column: str, condition: Condition) -> str:
        """Return the name of a column of all splits, int64, that is 1 where the condition holds."""
        name = described({column: condition})
        if name in self._added:
            return name
        require_columns(self._rows["train"], {"where": [column]}, "the table")
        return self._with_column(name, column, condition_on(self._rows["train"][column], condition))

    def _with_column(self, name: str, column: str, made: Callable[[pd.Series], Tensor]) -> str:
        """Add to the batches of every split what is made of a column of the table, and return the name of it."""
        for split, rows in self._rows.items():
            self.tables[split].columns[name] = made(rows[column])
        self._added.add(name)
        return name

    def state_dict(self) -> dict[str, Any]:
        """Return the encoder and what identifies the training split, as plain values."""
        return {"encoder": self.encoder.state_dict(), **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the encoder, and make sure that the rows of a checkpoint's dual state mean the same samples.

        Raises:
            DataError: if the training split is another one (at once, or in ``setup`` if that comes later).
        """
        super().load_state_dict(state_dict)
        if not self.tables:
            self.encoder.load_state_dict(state_dict["encoder"])

    def _fingerprint(self) -> dict[str, Any]:
        table = self._table("train").columns
        columns = {name: column for name, column in table.items() if name not in {"x", *self._added}}
        names = [*self.feature_names, *self.class_names, *self.label_names, *self.group_names]
        return {
            **fingerprint(columns, names, contents_of(columns) | self._contents),
            "features": self.num_features,
            "classes": len(self.class_names),
            "groups": len(self.group_names),
        }
