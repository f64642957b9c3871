"""Image-text pairs: readers of folders, tables, shards and data sets, and the table of the pairs."""

import glob
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from fcco_lightning.checks import at_least
from fcco_lightning.data import layouts
from fcco_lightning.data.columns import listed, require_columns
from fcco_lightning.data.images import MOST_PIXELS, DatasetColumn, FilesIn, Images, ImageTable
from fcco_lightning.data.sources import is_hub_id, open_dataset, shown
from fcco_lightning.data.text_files import separator
from fcco_lightning.errors import DataError

ACCEPTED = (
    "a folder with metadata.csv or metadata.parquet, a folder written by datasets.save_to_disk, files .csv, .tsv (also "
    ".gz), .parquet, .arrow or .tar (webdataset) given as a path, a pattern with * or {0000..0009}, or a list of "
    "these, a hub id 'owner/name' or 'owner/name:split', or a datasets.Dataset"
)
_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
_IMAGE_NAMES = (
    *("image", "img", "picture", *_EXTENSIONS, "image_path"),
    *("file_name", "filename", "filepath", "file", "path"),
)
_KEY = "__key__"  # column of ``datasets`` with the name of a sample in a shard
_CAPTION_NAMES = ("caption", "text", "txt", "captions", "texts", "title", "json.caption", "json.text")
_KINDS = {".tar", ".parquet", ".pq", ".arrow", ".csv"}
_METADATA = ("metadata.csv", "metadata.parquet")
_MEMBER = re.compile(r"(?P<key>(?:.*/|)[^.]+)[.](?P<extension>[^/]*)")  # names are divided as by webdataset
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


class PairTable(ImageTable):
    """Images with captions: samples have ``x`` (3, H, W) float32, ``text`` (L,) int64 and ``index``.

    Args:
        images: n images, see :class:`ImageTable`.
        captions: n captions by position, each a text, or several texts, one of which is chosen at random as a function
            of (caption_seed, epoch, position).
        transform: PIL image in RGB -> float32 tensor of shape (3, H, W).
        tokenizer: list of k texts -> tokens (k, L), int64.
        seed: seed of random transforms, see :class:`ImageTable`.
        caption_seed: seed of the choice among several captions.
        corrupt: "error" or "skip", see :class:`ImageTable`.
        most_pixels: largest number of pixels of an image that is decoded.
        **options: ``evaluation`` and ``option`` of :class:`ImageTable`.

    Raises:
        DataError: if there is not one caption per image.

    Example:
        >>> import torch
        >>> from PIL import Image
        >>> from torchvision.transforms.functional import to_tensor
        >>> lengths = lambda texts: torch.tensor([[len(text)] for text in texts])
        >>> table = PairTable([Image.new("RGB", (2, 2))], ["a photo"], to_tensor, lengths)
        >>> table[0]["text"]
        tensor([7])
    """

    def __init__(
        self,
        images: Images,
        captions: Images,
        transform: Callable[[Any], Tensor],
        tokenizer: Callable[[list[str]], Tensor],
        *,
        seed: int | None = None,
        caption_seed: int = 0,
        corrupt: Literal["error", "blank", "skip"] = "error",
        most_pixels: int = MOST_PIXELS,
        **options: Any,
    ) -> None:
        if len(images) != len(captions):
            raise DataError(f"Every image needs a caption, got {len(images)} images and {len(captions)} captions.")
        options |= {"seed": seed, "corrupt": corrupt, "most_pixels": most_pixels, "alternatives": ("skip",)}
        super().__init__(images, {}, transform, **options)
        self.captions, self.tokenizer = captions, tokenizer
        self.caption_seed = at_least("caption_seed", caption_seed, 0)

    def caption(self, i: int) -> str:
        """Return the text of sample ``i`` in this epoch."""
        caption = self.captions[i]
        if isinstance(caption, str):
            return caption
        # the additional 1 makes it independent of the random crop if the seeds are equal
        random_number = np.random.SeedSequence([self.caption_seed, self.epoch, i, 1]).generate_state(1)[0]
        return str(caption[int(random_number) % len(caption)])

    def _columns_of(self, rows: Sequence[int]) -> dict[str, Tensor]:
        return {**super()._columns_of(rows), "text": self.tokenizer([self.caption(i) for i in rows])}


def read_pairs(
    source: Any, image_column: str | None = None, caption_column: str | None = None, *, allow_outside: bool = False
) -> tuple[Images, Any]:
    """Read image-text pairs without decoding an image.

    Args:
        source: one of :data:`ACCEPTED`.  The table of a folder has ``file_name`` and the caption.  Of subfolders train,
            val and test, and of a hub id without a split, train is read.  Parquet files and shards are copied once to
            the cache of ``datasets``.
        image_column: column of the images: paths (relative to the file that contains them), bytes, or images of
            ``datasets``; None looks for one.
        caption_column: column of the captions, texts or lists of texts, "json.caption" for a field of a mapping; None
            looks for one.
        allow_outside: whether a table may name files outside of its own folder.

    Returns:
        The images and the captions of the same n >= 1 pairs, both by position; a caption is a text or a list of texts.

    Raises:
        DataError: if the source is missing, unreadable or empty, if a column is missing or cannot be found, if a
            caption is missing or empty, naming its row, or if a file lies outside of the table's folder.
    """
    reader = _Reader(source, image_column, caption_column, allow_outside)
    images, captions = reader.read()
    if len(captions) == 0:
        raise DataError(f"{reader.where} has no rows.")
    require_captions(captions, reader.where)
    return images, captions


def require_captions(captions: Any, where: str) -> None:
    """Raise :class:`DataError` if a row has no caption, naming the first such row."""
    invalid = [i for i, caption in enumerate(captions) if not _is_caption(caption)]
    if invalid:
        raise DataError(
            f"{where}: {len(invalid)} of {len(captions)} captions are missing, empty or no text (first: row "
            f"{invalid[0]}, {captions[invalid[0]]!r}). Remove those rows, or name another column as the caption."
        )


def _is_caption(caption: Any) -> bool:
    if isinstance(caption, str):
        return bool(caption.strip())
    return isinstance(caption, Sequence) and len(caption) > 0 and all(isinstance(c, str) and c.strip() for c in caption)


@dataclass(frozen=True)
class _Reader:
    """Reads a source of pairs, given the names of its columns, or None to find them, and ``allow_outside``."""

    source: Any
    image: str | None
    caption: str | None
    outside: bool

    @property
    def where(self) -> str:
        """The source, for messages."""
        return f"pairs={shown(self.source)}"

    def read(self) -> tuple[Any, Any]:
        source = self.source
        if isinstance(source, (list, tuple)):
            return self._files(source)
        if not isinstance(source, (str, PathLike)):
            return self._dataset(source)
        path = Path(source)
        for name in _METADATA:
            if (path / name).is_file() or (path / "train" / name).is_file():
                return self._folder(path, name)
        if path.is_dir() or (is_hub_id(str(source)) and path.suffix.lower() not in _KINDS):
            return self._dataset(open_dataset(str(source), "pairs", ACCEPTED))
        return self._files([source])

    def _folder(self, folder: Path, metadata: str) -> tuple[FilesIn, list[Any]]:
        frame = layouts.folder(folder, metadata, self.image or "file_name", allow_outside=self.outside)
        if "split" in frame and not (folder / metadata).is_file():
            frame = frame[frame["split"] == "train"]
        caption = self._caption_among(list(frame.columns.drop("file")), f"'{folder / metadata}'")
        return FilesIn(frame["file"].tolist(), folder), _cells(frame[caption])

    def _files(self, patterns: Sequence[Any]) -> tuple[Any, Any]:
        paths = [path for pattern in patterns for path in _expanded(pattern)]
        kinds = {".csv" if separator(Path(path)) else Path(path).suffix.lower() for path in paths}
        if len(kinds) != 1 or not kinds <= _KINDS:
            raise DataError(f"{self.where} are files of the kinds {sorted(kinds)}. Accepted are {ACCEPTED}.")
        readers = {".csv": self._csvs, ".tar": self._shards}
        return readers.get(kinds.pop(), self._columnar)(paths)

    def _columnar(self, paths: list[str]) -> tuple[FilesIn, DatasetColumn]:
        """Read files of ``datasets`` or .parquet, whose images may be paths."""
        if Path(paths[0]).suffix.lower() == ".arrow":
            dataset = self._loaded(lambda d: d.concatenate_datasets([d.Dataset.from_file(path) for path in paths]))
        else:
            dataset = self._loaded(lambda d: d.load_dataset("parquet", data_files=paths, split="train"))
        images, captions = self._dataset(dataset)
        folders = {Path(path).parent for path in paths}
        if len(folders) > 1 and isinstance(images[0], str) and not Path(images[0]).is_absolute():
            raise DataError(
                f"{self.where} lie in {len(folders)} folders and name their images by relative paths, such as "
                f"{images[0]!r}. Give a source for each folder."
            )
        return FilesIn(images, Path(paths[0]).parent, allow_outside=self.outside), captions

    def _shards(self, paths: list[str]) -> tuple[Any, DatasetColumn]:
        """Read the image and caption of every sample of webdataset shards by the builder of ``datasets``."""
        import datasets  # noqa: PLC0415  (slow to import, and only needed here)

        sample = _first_sample(paths[0])
        fields = sample.get("json")
        values = {f"json.{key}": value for key, value in fields.items()} if isinstance(fields, dict) else {}
        image, caption = self._image_among(list(sample)), self._caption_among([*sample, *values])
        extensions = {extension.lower() for extension in sample}  # a second image of the first sample may be a mask
        kinds = [image, *(kind for kind in _EXTENSIONS if self.image is None and kind not in extensions)]
        text: Any = datasets.Value("string")
        if isinstance(values.get(caption), list):
            text = [text]
        # given explicitly, because the builder infers types from five samples and fails if a later one differs
        name, _, field = caption.partition(".") if caption in values else (caption, "", "")
        features = datasets.Features(
            {_KEY: datasets.Value("string"), name: {field: text} if field else text}
            | {kind: datasets.Image() for kind in kinds}
        )
        # with the key "train": else a name like "test-000.tar" would become a split of that name
        files = {"train": paths}
        dataset = self._loaded(
            lambda d: d.load_dataset("webdataset", data_files=files, split="train", features=features)
        )
        return self._first_images(dataset, kinds), DatasetColumn(dataset, caption)

    def _first_images(self, dataset: Any, kinds: Sequence[str]) -> Any:
        """Return for every sample the image in the first column, of those for ``kinds``, that is not empty."""
        valid = np.stack([dataset.data.column(kind).is_valid().to_numpy() for kind in kinds])
        missing = np.flatnonzero(~valid.any(axis=0))
        if len(missing):
            raise DataError(
                f"{self.where}: {len(missing)} of {len(dataset)} samples have no image (first: "
                f"{dataset[int(missing[0])][_KEY]!r}), that is no file with one of the extensions {list(kinds)}. Add "
                "them, or remove these samples."
            )
        images: list[Any] = [DatasetColumn(dataset, kind) for kind in kinds]
        return Subset(ConcatDataset(images), (valid.argmax(axis=0) * len(dataset) + np.arange(len(dataset))).tolist())

    def _csvs(self, paths: list[str]) -> tuple[Any, list[Any]]:
        parts = [self._csv(Path(path)) for path in paths]
        images: list[Any] = [files for files, _ in parts]
        return ConcatDataset(images), [text for _, captions in parts for text in captions]

    def _csv(self, path: Path) -> tuple[FilesIn, list[Any]]:
        frame = layouts.read_file(path, skipinitialspace=True)
        columns = [str(name) for name in frame.columns]
        image, caption = self._image_among(columns, f"'{path}'"), self._caption_among(columns, f"'{path}'")
        if frame[image].isna().any():
            raise DataError(f"pairs: '{path}' must name a file in every row of {image!r}.")
        files = frame[image].astype(str).tolist()
        if not self.outside:
            layouts.require_inside(path.parent, files, f"pairs: '{path}'")
        return FilesIn(files, path.parent), _cells(frame[caption])

    def _dataset(self, dataset: Any) -> tuple[DatasetColumn, DatasetColumn]:
        import datasets  # noqa: PLC0415  (slow to import, and only needed here)

        if isinstance(dataset, datasets.DatasetDict):
            if "train" not in dataset:
                raise DataError(f"{self.where} has the splits {sorted(dataset)}, none of them 'train'. Pass one.")
            dataset = dataset["train"]
        if not isinstance(dataset, datasets.Dataset):
            raise DataError(f"pairs is a {type(dataset).__name__}. Accepted are {ACCEPTED}.")
        names = list(dataset.column_names)
        pictures = [name for name in names if isinstance(dataset.features[name], datasets.Image)]
        only = pictures[0] if self.image is None and len(pictures) == 1 else None
        fields = [f"{name}.{field}" for name in names for field in _fields(dataset, name)]
        image = only or self._image_among(names)
        return DatasetColumn(dataset, image), DatasetColumn(dataset, self._caption_among(names + fields))

    def _image_among(self, columns: Sequence[str], where: str | None = None) -> str:
        return _resolved_column(columns, self.image, _IMAGE_NAMES, "image_column", where or self.where)

    def _caption_among(self, columns: Sequence[str], where: str | None = None) -> str:
        return _resolved_column(columns, self.caption, _CAPTION_NAMES, "caption_column", where or self.where)

    def _loaded(self, load: Callable[[Any], Any]) -> Any:
        import datasets  # noqa: PLC0415  (slow to import, and only needed here)

        try:
            return load(datasets)
        except Exception as error:  # builders raise errors of many classes
            cause = error.__cause__ or error
            raise DataError(
                f"{self.where} cannot be read by datasets: {type(cause).__name__}: {cause}. Accepted are {ACCEPTED}."
            ) from error


def _first_sample(path: str) -> dict[str, Any]:
    """Return extension -> content for the files of a shard's first sample: the mapping of a .json, else None."""
    sample: dict[str, Any] = {}
    first = None
    try:
        with tarfile.open(path) as shard:
            for member in shard:
                match = _MEMBER.fullmatch(member.name)
                if match is None or not member.isfile():
                    continue
                first = match["key"] if first is None else first
                if match["key"] != first:
                    break
                content = shard.extractfile(member) if match["extension"] == "json" else None
                sample[match["extension"]] = None if content is None else json.load(content)
    except (OSError, tarfile.TarError, ValueError) as error:
        raise DataError(f"pairs: '{path}' is not a readable shard: {type(error).__name__}: {error}.") from error
    return sample


def _fields(dataset: Any, name: str) -> list[str]:
    """Return the keys of a column of mappings, from its type or else its first cell."""
    feature = dataset.features[name]
    if isinstance(feature, Mapping):
        return list(feature)
    first = dataset[0][name] if type(feature).__name__ == "Json" and len(dataset) else None
    return list(first) if isinstance(first, Mapping) else []


def _resolved_column(
    columns: Sequence[str], requested: str | None, usual_names: Iterable[str], argument: str, where: str
) -> str:
    """Return the ``requested`` column, or the first of ``usual_names`` that is a column."""
    if requested is not None:
        require_columns(pd.DataFrame(columns=list(columns)), {argument: [requested]}, where)
        return requested
    lower = {column.lower(): column for column in reversed(columns)}
    for name in usual_names:
        if name in lower:
            return lower[name]
    raise DataError(
        f"{where}: none of the columns {listed(columns)} has a usual name of the {argument.removesuffix('_column')} "
        f"column ({', '.join(usual_names)}). Set {argument}."
    )


def _cells(column: pd.Series) -> list[Any]:
    """Return the cells; arrays of texts (of a parquet file) as lists."""
    return [list(cell) if isinstance(cell, np.ndarray) else cell for cell in column]


def _expanded(pattern: Any) -> list[str]:
    """Return the files that match a path or a pattern with * or {0000..0009}."""
    if not isinstance(pattern, (str, PathLike)):
        raise DataError(f"pairs holds a {type(pattern).__name__} among files. Accepted are {ACCEPTED}.")
    text = str(pattern)
    braces = _BRACES.search(text)
    if braces is not None:
        first, last = braces.groups()
        numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
        return [path for n in numbers for path in _expanded(text[: braces.start()] + n + text[braces.end() :])]
    paths = [text] if Path(text).is_file() else sorted(glob.glob(text))  # noqa: PTH207  (Path.glob takes no absolute pattern)
    if not paths:
        raise DataError(
            f"pairs={text!r}: no such file or folder (working directory: {Path.cwd()}). Accepted are {ACCEPTED}."
        )
    return paths
