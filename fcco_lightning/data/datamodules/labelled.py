"""Where labelled images and texts come from, and how their rows become splits."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, one_of
from fcco_lightning.data import layouts
from fcco_lightning.data.columns import listed, require_columns, require_filled, text_of
from fcco_lightning.data.images import MOST_PIXELS, Images, read_image_dataset
from fcco_lightning.data.sources import is_hub_id, read_table
from fcco_lightning.data.splits import keep_positives, stratified_split, whole_split
from fcco_lightning.data.texts import texts_in
from fcco_lightning.errors import ConfigError, DataError

ROW = "position among the images"
"""A column of every frame read here."""

PARTS = ("train", "val", "id_val", "id_test", "test")


Layout = Literal["folder", "celeba", "camelyon17", "bdd100k", "cifar", "medmnist", "datasets"]


@dataclass(frozen=True)
class LabelledImages:
    """Images with a table of their labels, in one of the layouts that are known.

    Args:
        layout: "folder" (images and metadata.csv, or a subfolder for every class), "celeba", "camelyon17",
            "bdd100k" (these as distributed), "cifar" (the binary version), "medmnist" (an .npz file), see
            :mod:`fcco_lightning.data.layouts`, or "datasets".
        root: folder of the images (the file of "medmnist"); for every layout but "datasets".
        source: for "datasets" only: a ``datasets.Dataset`` or ``DatasetDict``, a folder written by ``save_to_disk``,
            a .parquet file, or a hub id "owner/name" or "owner/name:split".
        metadata: for "folder": name of its table, .csv or .parquet.
        file_column: for "folder": column of the files.
        image_column: for "datasets": column of the images.
        corrupt: "error" refuses missing or unreadable images, "blank" puts black ones in their place, "skip" leaves
            them out of their batch.
        allow_outside: for "folder": whether the table may name files outside of ``root``.
        most_pixels: images of more pixels count as unreadable: one of 67 million takes 200 MB.

    Raises:
        ConfigError: if the layout is none of these, or has no root or source where it needs one.
    """

    layout: Layout = "folder"
    root: str | None = None
    source: Any | None = None
    metadata: str = "metadata.csv"
    file_column: str = "file_name"
    image_column: str = "image"
    corrupt: Literal["error", "blank", "skip"] = "error"
    allow_outside: bool = False
    most_pixels: int = MOST_PIXELS

    whole: ClassVar[str | None] = None
    """The column that ``splits.whole`` is by default."""

    def __post_init__(self) -> None:
        at_least("images.most_pixels", self.most_pixels, 1)
        if self.layout not in get_args(Layout):
            known = ", ".join(map(repr, get_args(Layout)))
            raise ConfigError(
                f"layout must be one of {known}, got {self.layout!r}. Any other folder of images becomes 'folder' with "
                "a metadata.csv of files and labels, or with a subfolder for every class."
            )
        one_of("images.corrupt", self.corrupt, ("error", "blank", "skip"))
        needed, other = ("source", "root") if self.layout == "datasets" else ("root", "source")
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ConfigError(
                f"images.layout={self.layout!r} needs images.{needed}, and no images.{other}. A folder is a `root`; a "
                "Parquet file, a folder of `save_to_disk` or a hub id is the `source` of images.layout='datasets'."
            )

    def prepare(self) -> None:
        """Download hub data."""
        if self.layout == "datasets" and is_hub_id(str(self.source).partition(":")[0]):
            read_image_dataset(self.source, self.image_column)

    def read(self) -> tuple[pd.DataFrame, Images]:
        """Return the columns of all samples with :data:`ROW` (their positions among the images), and the images."""
        images: Images
        root = self.root or ""
        if self.layout == "datasets":
            frame, images = read_image_dataset(self.source, self.image_column)
        elif self.layout in ("cifar", "medmnist"):
            frame, images = {"cifar": layouts.cifar, "medmnist": layouts.medmnist}[self.layout](root)
        elif self.layout == "folder":
            frame = layouts.folder(root, self.metadata, self.file_column, allow_outside=self.allow_outside)
            images = frame.pop("file").tolist()
        else:
            readers = {"celeba": layouts.celeba, "camelyon17": layouts.camelyon17, "bdd100k": layouts.bdd100k}
            frame = readers[self.layout](root)
            images = frame.pop("file").tolist()
        return frame.assign(**{ROW: np.arange(len(frame))}), images


TextLayout = Literal["table", "amazon", "civilcomments"]


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with a table of their labels, in one of the layouts that are known.

    Args:
        source: for "table": path to .csv or .parquet, folder of ``datasets.save_to_disk``, hub id "owner/name:split",
            DataFrame, ``datasets.Dataset`` or dict of columns.
        layout: "table", or "amazon" or "civilcomments" as WILDS distributes them, see
            :mod:`fcco_lightning.data.layouts`.
        root: folder of the files; for every layout but "table".
        column: column of the texts.
        empty: "error" refuses empty and missing texts, "keep" trains on them as empty texts.

    Raises:
        ConfigError: if the layout is none of these, or has no root or source where it needs one.
    """

    source: str | Any | None = None
    layout: TextLayout = "table"
    root: str | None = None
    column: str = "text"
    empty: Literal["error", "keep"] = "error"

    def __post_init__(self) -> None:
        one_of("texts.layout", self.layout, get_args(TextLayout))
        one_of("texts.empty", self.empty, ("error", "keep"))
        needed, other = ("source", "root") if self.layout == "table" else ("root", "source")
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ConfigError(f"texts.layout={self.layout!r} needs texts.{needed}, and no texts.{other}.")

    @property
    def whole(self) -> str | None:
        """The column that ``splits.whole`` is by default: where a text has several rows, its number."""
        return "comment" if self.layout == "civilcomments" else None

    def prepare(self) -> None:
        """Download hub data."""
        if is_hub_id(self.source):
            read_table(self.source, "texts.source")

    def read(self) -> tuple[pd.DataFrame, list[str]]:
        """Return the columns of all samples with :data:`ROW` (their positions among the texts), and the texts."""
        if self.layout == "table":
            frame, where = read_table(self.source, "texts.source", [self.column]), "the table of the texts"
        else:
            readers = {"amazon": layouts.amazon, "civilcomments": layouts.civilcomments}
            frame, where = readers[self.layout](self.root or ""), f"the layout {self.layout!r}"
        require_columns(frame, {"texts.column": [self.column]}, where)
        texts = texts_in(frame.pop(self.column), self.empty, where)
        return frame.assign(**{ROW: np.arange(len(frame))}), texts


@dataclass(frozen=True)
class ImageSplits:
    """How labelled images or texts are divided.

    Args:
        by: "column" takes the column ``split`` of the layout, which must have "train" and "test" and may have "val",
            "id_val" and "id_test", or the numbers 0, 1 and 2 for "train", "val" and "test"; "fractions" splits every
            class, and in groups every class of a group, at random.
        fractions: shares of training, validation (may be 0) and test, of sum 1; None for 0.8, 0.1, 0.1.
        seed: seed of the random split, a whole number >= 0.
        limit: take only the first rows (of every part of the column), for a quick try.
        imbalance: share of positives (y = 1) that is left in the training split, in (0, 1): as many positives are taken
            out at random (by ``seed``) as it takes; None leaves all.  The other splits stay as they are.
        whole: a column of the table, of which "fractions" divides no value, such as a patient of several images; the
            shares are then those of its values.  None for the number of a comment in "civilcomments", whose rows are
            one for each identity that it mentions, and for no column elsewhere.

    Raises:
        ConfigError: if the shares are none, or are given although ``by`` is "column", or a number is out of range.
    """

    by: Literal["column", "fractions"] = "column"
    fractions: list[float] | None = None
    seed: int = 0
    limit: int | None = None
    imbalance: float | None = None
    whole: str | None = None

    def __post_init__(self) -> None:
        one_of("splits.by", self.by, ("column", "fractions"))
        for name in ("fractions", "whole"):
            if getattr(self, name) is not None and self.by == "column":
                raise ConfigError(
                    f"splits.{name}={getattr(self, name)!r} goes with splits.by='fractions' only. Leave it out, or set "
                    "that."
                )
        shares = self.shares
        possible = len(shares) == 3 and shares[0] > 0 and shares[1] >= 0 and shares[2] > 0
        if not possible or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise ConfigError(
                "splits.fractions must be the shares of training (> 0), validation (>= 0) and test (> 0), of sum 1, "
                f"got {list(shares)}."
            )
        if self.imbalance is not None and not 0 < self.imbalance < 1:
            raise ConfigError(
                f"splits.imbalance must be a share of positives in (0, 1), got {self.imbalance!r}; 0.01 leaves one "
                "positive for 99 negatives."
            )
        at_least("splits.seed", self.seed, 0)
        if self.limit is not None:
            at_least("splits.limit", self.limit, 1)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of training, validation and test."""
        return (0.8, 0.1, 0.1) if self.fractions is None else tuple(self.fractions)


def held_apart(
    frame: pd.DataFrame, kinds: Tensor, whole: str | None, held_out: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Split rows at random so that each of their ``kinds`` (n,) gives the same share, and the other part has it, too.

    Args:
        frame: the rows.
        kinds: whole numbers.
        whole: a column of which no value is divided; None for none.
        held_out: share of the rows, or of the values, that the second part has.
        seed: of the split.

    Returns: row numbers of both parts, in ascending order.

    Raises:
        DataError: if there is no such column, or one part would have none.
    """
    argument = "splits.fractions"
    if whole is None:
        return stratified_split(kinds, held_out, seed, argument, both_sides=True)
    require_columns(frame.drop(columns=ROW), {"splits.whole": [whole]}, "the table of the samples")
    return whole_split(torch.from_numpy(pd.factorize(frame[whole])[0]), held_out, seed, argument, kinds)


def imbalanced(y: Tensor, share: float, seed: int) -> Tensor:
    """Return the rows, in order, that are left when positives are taken out at random until their share is ``share``.

    Raises:
        DataError: if the labels are not 0 and 1, if there are too few positives already, or if none would be left.
    """
    if not bool(((y == 0) | (y == 1)).all()):
        raise DataError(
            "splits.imbalance needs two classes, but the labels have more. Say which classes are positive "
            "(columns.positive: [cat, dog])."
        )
    positives = int((y == 1).sum())
    wanted = round(share / (1 - share) * (len(y) - positives))
    if not 1 <= wanted <= positives:
        raise DataError(
            f"splits.imbalance={share!r} asks for {wanted} positives beside {len(y) - positives} negatives; the "
            f"training split has {positives}. Choose a share between those of 1 and {positives} positives."
        )
    return keep_positives(y, wanted, seed)


def parts_of(frame: pd.DataFrame, layout: str, limit: int | None = None) -> dict[str, pd.DataFrame]:
    """Return the rows of every value of the column ``split``, those of training first, at most ``limit`` of each.

    The numbers 0, 1 and 2 are "train", "val" and "test", as the metadata of Waterbirds and of WILDS have them.

    Raises:
        DataError: if the data set ``layout`` has no such column, or it holds other values than :data:`PARTS`, or no
            training or testing.
    """
    where = f"layout {layout!r}"
    if "split" not in frame:
        raise DataError(
            f"splits.by='column' needs a column 'split', which {where} lacks here (its columns are "
            f"{listed(frame.columns.drop(ROW))}; CelebA has it from list_eval_partition). Add it, or set "
            "splits.by='fractions' (--data.splits.by fractions)."
        )
    require_filled(frame["split"], "split", where)
    split = text_of(frame["split"]).replace("validation", "val")
    if {"0", "2"} <= set(split) <= {"0", "1", "2"}:
        split = split.replace({"0": "train", "1": "val", "2": "test"})
    found = set(split)
    if not {"train", "test"} <= found <= set(PARTS):
        raise DataError(
            f"The column 'split' of {where} must hold 'train' and 'test', and possibly 'val', 'id_val' and "
            f"'id_test', or 0 for training, 1 for validation and 2 for testing; got {listed(found)}. Repair it, or set "
            "splits.by='fractions'."
        )
    limit = len(frame) if limit is None else limit
    return {name: frame[split == name].head(limit).reset_index(drop=True) for name in PARTS if name in found}
