"""Tables with labels and perhaps two groups, for Lightning."""

from typing import Any

import torch
from torch import Tensor

from fcco_lightning.data.datamodules.tables import TableDataModule
from fcco_lightning.data.encoding import Encoding
from fcco_lightning.data.roles import Columns, LabelledFrame
from fcco_lightning.data.sampling import Sampling, UniformSampling
from fcco_lightning.data.sources import with_features_of
from fcco_lightning.data.splits import Splits, require_all_cells, stratified_split, whole_split
from fcco_lightning.errors import ConfigError


class TabularDataModule(TableDataModule):
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
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.
        allow_changed: whether a checkpoint is continued although the training table was changed, with a warning.

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
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
        allow_changed: bool = False,
    ) -> None:
        super().__init__(
            {"train": train, "test": test},
            columns=columns,
            splits=splits,
            encoding=encoding,
            batches=batches,
            seed=seed,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            allow_changed=allow_changed,
        )

    @property
    def group_names(self) -> list[str]:
        """What the groups 0 and 1 are called in the table; empty without a sensitive column."""
        return self.labels.group_names

    @property
    def label_names(self) -> list[str]:
        """The columns of several labels; empty if there is one."""
        return self.columns.several

    def _group_names(self) -> list[str]:
        return self.group_names

    def _read_splits(self) -> dict[str, LabelledFrame]:
        splits = self._divided()
        if self.class_names:
            for name, split in splits.items():
                group = split.columns.get("group")
                require_all_cells(split.columns["y"], group, self.class_names, self.group_names, f"{name} split")
        return splits

    def _divided(self) -> dict[str, LabelledFrame]:
        table = self._table_of("train")
        self.labels.fit(table, "the train table")
        train = self._labelled(table, "the train table")
        if self.splits.test_fraction is None:
            test = self._labelled(with_features_of(self._table_of("test"), table), "the test table")
        else:
            train, test = self._held_out(train, self.splits.test_fraction, "test_fraction")
        if not self.splits.val_fraction:
            return {"train": train, "test": test}
        train, val = self._held_out(train, self.splits.val_fraction, "val_fraction")
        return {"train": train, "val": val, "test": test}

    def _labelled(self, table: Any, where: str) -> LabelledFrame:
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
