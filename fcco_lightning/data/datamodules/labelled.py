"""Sources of labelled images and texts."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd

from fcco_lightning.checks import at_least, one_of
from fcco_lightning.data import layouts
from fcco_lightning.data.columns import ROW, require_columns
from fcco_lightning.data.images import MOST_PIXELS, Images, read_image_dataset
from fcco_lightning.data.sources import is_hub_id, read_table
from fcco_lightning.data.texts import texts_in
from fcco_lightning.errors import ConfigError

Layout = Literal["folder", "celeba", "camelyon17", "bdd100k", "cifar", "medmnist", "datasets"]


@dataclass(frozen=True)
class LabelledImages:
    """Images with a table of their labels, in one of the known layouts.

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
        corrupt: "error" refuses missing or unreadable images, "blank" replaces them by black images, "skip" leaves
            them out of their batch.
        allow_outside: for "folder": whether the table may name files outside of ``root``.
        most_pixels: images with more pixels count as unreadable; one with 67 million takes 200 MB.

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
            layouts = ", ".join(map(repr, get_args(Layout)))
            raise ConfigError(
                f"layout must be one of {layouts}, got {self.layout!r}. Any other folder of images becomes 'folder' "
                "with a metadata.csv of files and labels, or with a subfolder for every class."
            )
        one_of("images.corrupt", self.corrupt, ("error", "blank", "skip"))
        required, other = ("source", "root") if self.layout == "datasets" else ("root", "source")
        if getattr(self, required) is None or getattr(self, other) is not None:
            raise ConfigError(
                f"images.layout={self.layout!r} needs images.{required}, and no images.{other}. A folder is a `root`; "
                "a Parquet file, a folder of `save_to_disk` or a hub id is the `source` of images.layout='datasets'."
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
    """Texts with a table of their labels, in one of the known layouts.

    Args:
        source: for "table": path to .csv, .tsv or .parquet, folder of ``datasets.save_to_disk``, hub id
            "owner/name:split", DataFrame, ``datasets.Dataset`` or dict of columns.
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
        required, other = ("source", "root") if self.layout == "table" else ("root", "source")
        if getattr(self, required) is None or getattr(self, other) is not None:
            raise ConfigError(f"texts.layout={self.layout!r} needs texts.{required}, and no texts.{other}.")

    @property
    def whole(self) -> str | None:
        """The default of ``splits.whole``: the column with the number of a text, if texts have several rows."""
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
