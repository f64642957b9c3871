"""Images whose labels and attributes form groups, for Lightning."""

import hashlib
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.checks import at_least
from fcco_lightning.data.columns import listed, text_of
from fcco_lightning.data.datamodules.grouped import GroupedFrame, GroupedTabularDataModule, _class_names
from fcco_lightning.data.datamodules.labelled import ROW, LabelledImages, checked_fractions, parts_of
from fcco_lightning.data.grouping import GroupBy
from fcco_lightning.data.images import IMAGENET_MEAN, IMAGENET_STD, ImageColumn, ImageTable, image_transform
from fcco_lightning.errors import ConfigError, DataError


class GroupedImageDataModule(GroupedTabularDataModule):
    """Images whose rows form groups by the joint values of some columns, split, decoded and loaded group by group.

    Batches are dicts with ``x`` (B, 3, S, S) float32, ``y`` (B,) int64, ``group`` (B,) int64, and ``index`` (B,) int64:
    the position of the sample within its own split.  A training batch of one process holds ``samples_per_group``
    samples of each of ``groups_per_batch`` groups (see :class:`GroupBatches`).  Images are decoded when a batch asks
    for them; random augmentation depends on (seed, epoch, index) only, so that a resumed run sees the same images.

    With ``split_by="fractions"`` groups are decided on all rows, and every split holds every group.  With "column" they
    are decided on the training rows, as 0..G-1; combinations that only other splits hold (another hospital) are
    numbered from G on, and rows of combinations too small for a group are left out.

    Args:
        root: folder of the images; for every layout but "datasets".
        layout: "folder" (images and metadata.csv), "celeba", "camelyon17", "bdd100k" (these as distributed, see
            :mod:`fcco_lightning.data.layouts`) or "datasets".
        source: for "datasets" only: a ``datasets.Dataset`` or ``DatasetDict``, a folder written by ``save_to_disk``, or
            a hub id "owner/name" or "owner/name:split".
        label: column of the classes; it may define groups as well.
        group_by: columns that define the groups: names, :class:`GroupBy`, or mappings with its arguments.
        positive: value of a ``label`` with two classes that becomes y = 1; None numbers the classes 0..C-1 in sorted
            order.
        metadata: for "folder": name of its table, .csv or .parquet.
        file_column: for "folder": column of the files.
        image_column: for "datasets": column of the images.
        split_by: "column" takes the column ``split`` of the layout, which must have "train" and "test" and may have
            "val", "id_val" and "id_test"; "fractions" splits every group at random.
        fractions: shares of training, validation (may be 0) and test, of sum 1; None for 0.8, 0.1, 0.1.
        split_seed: seed of the random split.
        min_size: rows that make a group, counted where groups are decided.
        small: what becomes of smaller ones: "drop" leaves their rows out, "error" refuses them, "merge" makes one group
            "other" of them all.
        limit: take only the first rows (of every part of the column), for a quick try.
        image_size: pixels S of a side of ``x``.
        mean: what is subtracted of the three channels, with values in [0, 1]; None for ImageNet's.
        std: what they are divided by; None for ImageNet's.
        crop_pct: side of the centre crop as a share of the shorter side, in (0, 1].
        augment: random crops, flips and colours in training as timm makes them by default; a mapping changes arguments
            of ``timm.data.create_transform``; False trains on what is evaluated.
        corrupt: "error" refuses missing or unreadable images, "blank" puts black ones in their place.
        groups_per_batch: groups in a training batch (B1).
        samples_per_group: samples of each of them in a training batch of one process (B2).
        replacement: draw the samples of a group with replacement.
        batch_size: None samples groups; a number draws that many rows per process uniformly, whatever their group.
        num_batches: training batches of an epoch; None for as many as hold n samples.  Only when groups are sampled.
        eval_batch_size: rows in an evaluation batch of one process.
        seed: seed of the training batches and of the augmentation.
        num_workers: worker processes of every loader.
        eval_train: whether validation and the report go through the training images too, which takes as long as an
            epoch's forward passes.

    Raises:
        ConfigError: from ``__init__`` if an argument is out of range, or does not go with ``layout``.
        DataError: from ``setup`` if the data are not what the arguments announce.
    """

    _identifying: ClassVar[str] = (
        "layout, label, positive, group_by, min_size, small, limit, split_by, fractions and split_seed (the digest "
        "covers names and the order of the images)"
    )

    def __init__(
        self,
        root: str | None = None,
        *,
        label: str,
        group_by: list[str | GroupBy],
        layout: Literal["folder", "celeba", "camelyon17", "bdd100k", "datasets"] = "folder",
        source: str | Any | None = None,
        positive: str | int | float | None = None,
        metadata: str = "metadata.csv",
        file_column: str = "file_name",
        image_column: str = "image",
        split_by: Literal["column", "fractions"] = "column",
        fractions: list[float] | None = None,
        split_seed: int = 0,
        min_size: int = 1,
        small: Literal["drop", "error", "merge"] = "drop",
        limit: int | None = None,
        image_size: int = 224,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        crop_pct: float = 0.875,
        augment: bool | dict[str, Any] = False,
        corrupt: Literal["error", "blank"] = "error",
        groups_per_batch: int = 8,
        samples_per_group: int = 8,
        replacement: bool = False,
        batch_size: int | None = None,
        num_batches: int | None = None,
        eval_batch_size: int = 256,
        seed: int = 0,
        num_workers: int = 0,
        eval_train: bool = False,
    ) -> None:
        self.eval_train = eval_train
        self.layout, self.root = layout, root
        self._origin = LabelledImages(layout, root, source, metadata, file_column, image_column)
        self.fractions = checked_fractions(fractions, split_by)
        _, val, test = self.fractions
        super().__init__(
            root if source is None else source,
            label=label,
            group_by=group_by,
            positive=positive,
            test_fraction=test,
            val_fraction=val / (1 - test),
            split_seed=split_seed,
            min_size=min_size,
            small=small,
            groups_per_batch=groups_per_batch,
            samples_per_group=samples_per_group,
            replacement=replacement,
            batch_size=batch_size,
            num_batches=num_batches,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )
        self.split_by = split_by
        self.eval_workers = num_workers
        self.limit = None if limit is None else at_least("limit", limit, 1)
        self.image_size, self.mean, self.std = image_size, mean or IMAGENET_MEAN, std or IMAGENET_STD
        self.crop_pct, self.augment, self.corrupt = crop_pct, augment, corrupt
        self._plain = image_transform(image_size, self.mean, self.std, crop_pct=crop_pct)
        self._random = image_transform(image_size, self.mean, self.std, crop_pct=crop_pct, augment=augment)
        if corrupt not in {"error", "blank"}:
            raise ConfigError(f"corrupt must be 'error' or 'blank', got {corrupt!r}.")
        self._images: list[str] | ImageColumn = []
        self._evaluated: dict[str, ImageTable] = {}
        self._unseen: list[str] = []
        self._files_digest = ""

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
    def num_features(self) -> int:
        """Images have none: a network whose input width is open has to be told it."""
        raise AttributeError(f"{type(self).__name__} has images of {self.image_size} pixels a side, not features.")

    @property
    def val_names(self) -> list[str]:
        """Names of the validation loaders, in the order of ``dataloader_idx``: all splits but those for testing."""
        self._table("train")
        names = [name for name in self.tables if not name.endswith("test")]
        return names if self.eval_train or names == ["train"] else names[1:]

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Return an ordered loader of this process's part of every split that is evaluated."""
        return {name: self._ordered(name) for name in self.tables if name in self.val_names or name.endswith("test")}

    def prepare_data(self) -> None:
        """Download hub data once, before every process reads it."""
        self._origin.prepare()

    def setup(self, stage: str | None = None) -> None:
        """Read the tables, form groups and split; images stay where they are.  A second call changes nothing."""
        if not self.tables:
            splits = self._read_splits()
            for name, split in splits.items():
                rows = torch.tensor(split.features[ROW].tolist(), dtype=torch.int64)
                self._evaluated[name] = self._image_table(split, rows, random=False)
                random = name == "train" and self.augment is not False
                self.tables[name] = self._image_table(split, rows, random=True) if random else self._evaluated[name]
            files = self._images if isinstance(self._images, list) else []
            train = [files[row] for row in splits["train"].features[ROW]] if files else []
            self._files_digest = hashlib.sha256("\n".join(train).encode()).hexdigest()[:16]
            self._require_expected_split()
        super().setup(stage)

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
            columns[f"{self.label}={self.class_names[1]}"] = shares
        return pd.DataFrame(columns, index=pd.Index(names, name="group")).to_string()

    def state_dict(self) -> dict[str, Any]:
        """Return what identifies the training split, as plain values."""
        return {"train_split": self._fingerprint()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make sure that the rows of a checkpoint's dual state mean the same samples.

        Raises:
            DataError: if the training split is another one (at once, or in ``setup`` if that comes later).
        """
        self._expected = state_dict["train_split"]
        if self.tables:
            self._require_expected_split()

    def _read(self) -> pd.DataFrame:
        """Return the columns of all samples, with their positions in ``_images``."""
        frame, self._images = self._origin.read()
        return frame

    def _pooled(self) -> pd.DataFrame:
        frame = self._read()
        return frame if self.limit is None else frame.head(self.limit)

    def _read_splits(self) -> dict[str, GroupedFrame]:
        if self.split_by == "fractions":
            return super()._read_splits()
        frames = parts_of(self._read(), self.layout, self.limit)
        train = frames["train"]
        self._require_columns(train, "the training rows")
        self.class_names = _class_names(train[self.label], self.positive, "the training rows")
        self.grouping.fit(train, self.min_size, self.small, "the training rows")
        groups = {name: self.grouping.assign(frame, f"the {name} rows") for name, frame in frames.items()}
        cells = {name: self._cells(frame, f"the {name} rows") for name, frame in frames.items()}
        new = {n: (groups[n] < 0).numpy() & ~cells[n].isin(list(self.grouping.left_out)).to_numpy() for n in frames}
        self._unseen = sorted(set().union(*(cells[name][new[name]] for name in frames)))
        number = {cell: len(self.grouping.names) + i for i, cell in enumerate(self._unseen)}
        for name, rows in new.items():
            groups[name][torch.from_numpy(rows)] = torch.tensor([number[cell] for cell in cells[name][rows]]).long()
        splits = {name: self._labelled(frame, groups[name], name) for name, frame in frames.items()}
        self._check(splits)
        return splits

    def _cells(self, frame: pd.DataFrame, where: str) -> pd.Series:
        """Return the name of every row's combination, whether it is a group or not."""
        parts = pd.DataFrame({by.column: by.column + "=" + by.read(frame, where) for by in self.grouping.by})
        return parts.agg(", ".join, axis=1)

    def _labelled(self, frame: pd.DataFrame, group: Tensor, name: str) -> GroupedFrame:
        """Return the rows of ``frame`` that are of a group."""
        self._require_columns(frame, f"the {name} rows")
        classes = text_of(frame[self.label])
        y = pd.Index(self.class_names, dtype=object).get_indexer(pd.Index(classes, dtype=object))
        if (y < 0).any():
            raise DataError(
                f"label={self.label!r} has classes {listed(classes[y < 0].unique())} in the {name} rows that the "
                f"training rows do not have; theirs are {listed(self.class_names)}. Repair the table."
            )
        known = (group >= 0).nonzero().flatten()
        self.dropped[name] = len(group) - len(known)
        if len(known) == 0:
            raise DataError(
                f"All combinations of group_by in the {name} rows are too small for a group in the training rows. "
                f"Lower min_size={self.min_size}, or set small='merge'."
            )
        return GroupedFrame(frame[[ROW]], torch.from_numpy(y.astype(np.int64)), group).take(known)

    def _check(self, splits: dict[str, GroupedFrame]) -> None:
        counts = torch.bincount(splits["train"].y, minlength=len(self.class_names))
        if not counts.all():
            raise DataError(
                f"The training rows of the groups have none of class {self.class_names[int(counts.argmin())]!r} of "
                f"label={self.label!r} (rows per class: {counts.tolist()}). Use more data, or a smaller min_size."
            )
        names = self.grouping.names
        for name, split in splits.items():
            present = set(split.group.tolist())
            absent = [group for i, group in enumerate(names) if i not in present]
            if 0 < len(absent) < len(names):  # a split with none of them is one of other groups on purpose
                rank_zero_warn(
                    f"The {name} split has no rows of {len(absent)} of the {len(names)} groups: {listed(absent)}. "
                    "Whatever is measured on it leaves them out."
                )

    def _image_table(self, split: GroupedFrame, rows: Tensor, *, random: bool) -> ImageTable:
        images = self._images
        return ImageTable(
            images.take(rows) if isinstance(images, ImageColumn) else [images[row] for row in rows.tolist()],
            {"y": split.y, "group": split.group},
            self._random if random else self._plain,
            seed=self.seed if random else None,
            corrupt=self.corrupt,
            root=self.root or "",
        )

    def _evaluation_table(self, name: str) -> ImageTable:
        self._table(name)
        return self._evaluated[name]

    def _batch_settings(self) -> tuple[Any, ...]:
        seen = self.image_size, tuple(self.mean), tuple(self.std), self.crop_pct, str(self.augment), self.corrupt
        return (*super()._batch_settings(), *seen)

    def _fingerprint(self) -> dict[str, int | str]:
        """Sizes, and a digest of all names and of the order of files, labels and groups."""
        return self._sizes_and_digest([*self.class_names, *self.grouping.names, self._files_digest])
