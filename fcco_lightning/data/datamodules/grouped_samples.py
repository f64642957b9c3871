"""Samples with a table of their labels that form groups: what the datamodules of images and of texts share."""

from typing import Any

import pandas as pd
import torch
from torch.utils.data import DataLoader

from fcco_lightning.data.datamodules.labelled import (
    ImageSplits,
    LabelledImages,
    LabelledTexts,
    held_apart,
    imbalanced,
    parts_of,
)
from fcco_lightning.data.datamodules.labels import LabelledDataModule
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns, LabelledFrame
from fcco_lightning.errors import printable

_MOST_CLASSES = 12  # whose sizes are said


class GroupedSamplesDataModule(LabelledDataModule):
    """Samples whose rows form groups by the joint values of some columns, and how they are divided.

    With ``splits.by="fractions"`` groups are decided on all rows, and every split holds every group, as far as
    ``splits.whole`` leaves it.  With "column" they are decided on the training rows, as 0..G-1; combinations that only
    other splits hold (another hospital) are numbered from G on, and rows of combinations too small for a group are left
    out.

    Args:
        origin: where the samples and the table of their labels are.
        columns: what the columns of that table mean; the label may define groups.
        groups: which columns define the groups.
        splits: how the samples are divided.
        eval_train: whether validation and the report go through the training samples too, which takes as long as an
            epoch's forward passes.
        **loading: ``batches``, ``seed``, ``eval_batch_size``, ``num_workers`` and ``allow_changed``, see
            :class:`SplitDataModule`.
    """

    _kind = "samples"
    """What the samples are, for messages."""

    def __init__(
        self,
        origin: LabelledImages | LabelledTexts,
        *,
        columns: Columns,
        groups: Groups,
        splits: ImageSplits,
        eval_train: bool = False,
        **loading: Any,
    ) -> None:
        super().__init__(columns, groups, eval_train=eval_train, **loading)
        self.eval_workers = self.num_workers
        self.origin, self.splits = origin, splits
        self._samples: Any = []

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Return an ordered loader of this process's part of every split that is evaluated."""
        loaders = super().evaluation_loaders()
        return {name: loaders[name] for name in loaders if name in self.val_names or name.endswith("test")}

    def prepare_data(self) -> None:
        """Download hub data once, before every process reads it."""
        self.origin.prepare()

    def _divided(self) -> dict[str, LabelledFrame]:
        frame = self._frame()
        splits = self._by_fractions(frame) if self.splits.by == "fractions" else self._by_column(frame)
        if self.splits.imbalance is not None:
            train = splits["train"]
            splits["train"] = train.take(imbalanced(train.columns["y"], self.splits.imbalance, self.splits.seed))
        return splits

    def _summary(self) -> str:
        """Say how many samples of each class there are, too."""
        told = [super()._summary()]
        if self.class_names and not self.label_names:
            for name, table in self.tables.items():
                sizes = torch.bincount(table.columns["y"], minlength=len(self.class_names)).tolist()
                classes = [f"{size} of {of}" for size, of in zip(sizes, self.class_names, strict=True)]
                more = f" and {len(classes) - _MOST_CLASSES} more classes" if len(classes) > _MOST_CLASSES else ""
                told.append(
                    f"  {name}: {sum(sizes)} {self._kind}, {printable(', '.join(classes[:_MOST_CLASSES]))}{more}"
                )
        return "\n".join(filter(None, told))

    def _frame(self) -> pd.DataFrame:
        """Return the columns of all samples, which are read."""
        frame, self._samples = self.origin.read()
        return frame

    def _by_fractions(self, frame: pd.DataFrame) -> dict[str, LabelledFrame]:
        """Split every class of every group at random."""
        where, seed = f"the table of the {self._kind}", self.splits.seed
        frame = frame if self.splits.limit is None else frame.head(self.splits.limit)
        self.labels.fit(frame, where)
        _, val, test = self.splits.shares
        train, held = self._held_out(self._labelled(frame, "train", where), test, seed, "splits.fractions")
        if not val:
            return {"train": train, "test": held}
        train, middle = self._held_out(train, val / (1 - test), seed, "splits.fractions")
        return {"train": train, "val": middle, "test": held}

    def _held_out(
        self, split: LabelledFrame, share: float, seed: int, argument: str
    ) -> tuple[LabelledFrame, LabelledFrame]:
        whole = self.splits.whole or self.origin.whole
        if whole is None:
            return super()._held_out(split, share, seed, argument)
        rest, held = held_apart(split.table, split.columns["group"], whole, share, seed)
        return split.take(rest), split.take(held)

    def _by_column(self, frame: pd.DataFrame) -> dict[str, LabelledFrame]:
        """Split as the column ``split`` says."""
        frames = parts_of(frame, self.origin.layout, self.splits.limit)
        self.labels.fit(frames["train"], "the training rows")
        if self.grouping is not None:
            self.grouping.number_unseen({f"the {name} rows": part for name, part in frames.items()})
        return {name: self._labelled(part, name, f"the {name} rows") for name, part in frames.items()}
