"""Tables of images that are decoded when a batch is drawn."""

import copy
import io
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from fcco_lightning.checks import at_least, finite, fraction, list_of, non_negative, one_of
from fcco_lightning.data.columns import require_columns, require_few_lost
from fcco_lightning.data.layouts import require_inside
from fcco_lightning.data.sources import open_dataset
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 1 << 26
"""Largest number of pixels of an image that is decoded, unless another is asked for, 67 million: 200 MB in RGB."""
_MOST_ELONGATED = 256  # the shorter side is enlarged to the size of the network's input, and the longer one with it
_ACCEPTED = (
    "a datasets.Dataset or DatasetDict, a folder written by datasets.save_to_disk, its .parquet file, or a hub id "
    "'owner/name' or 'owner/name:split'"
)
_FATES = {"blank": "put a black image in its place", "skip": "leave it out"}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images(Protocol):
    """n images by position: a list of paths, an array of pixels, or any object with these two methods."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Any: ...


class ImageTable(TensorTable):
    """Images with columns of labels and groups, plus ``index``: the position 0..n-1 of every sample in this table.

    Args:
        images: n images, each a path, the bytes of a file, a dict with ``bytes`` or ``path`` (as ``datasets`` stores
            them), a PIL image, or its pixels, grey (H, W) or coloured (H, W, 3), uint8.  They are rotated by their EXIF
            data and converted to RGB; grey images of 16 bits are divided by 257, so that 65535 is white.  Only
            regular files are opened, since reading a pipe or device may never end.
        columns: name -> tensor with first dimension n, for example ``y`` (n,) int64 and ``group`` (n,) int64.
        transform: PIL image in RGB -> float32 tensor of shape (3, H, W), see :func:`image_transform`.
        seed: seed of random transforms, which depend on it, the epoch and the position; None for transforms without
            random numbers.
        corrupt: "error" refuses images that are missing or unreadable, "blank" replaces them by black images, "skip"
            leaves them out of their batch, which gets shorter.  The latter two count them in :attr:`num_corrupt`, warn
            at the first one, and refuse more than a tenth of all images.
        views: 2 gives a second random view of every image, as the column ``x2``.
        most_pixels: largest number of pixels of an image that is decoded; PIL refuses more than 179 million itself.
            A file is also refused if one side is more than 256 times the other, or if it is PostScript (EPS).
        after: function of the position and a view (3, H, W) that is applied after the transform and returns (3, H, W);
            None for none.
        evaluation: the transform of :meth:`plain`, without random numbers; None for ``transform``.
        option: name of ``corrupt`` in messages, where the table is part of something else.
        alternatives: the values besides "error" that messages recommend.

    Raises:
        ConfigError: if ``corrupt`` is another word.
        DataError: if a column does not have n rows.

    Example:
        >>> from PIL import Image
        >>> red = Image.new("RGB", (4, 4), "red")
        >>> table = ImageTable([red], {"y": torch.tensor([1])}, image_transform(2, mean=(0, 0, 0), std=(1, 1, 1)))
        >>> table[0]["x"][:, 0, 0]
        tensor([1., 0., 0.])
    """

    def __init__(
        self,
        images: Images,
        columns: Mapping[str, Tensor],
        transform: Callable[[Any], Tensor],
        *,
        seed: int | None = None,
        corrupt: Literal["error", "blank", "skip"] = "error",
        views: Literal[1, 2] = 1,
        most_pixels: int = MOST_PIXELS,
        after: Callable[[int, Tensor], Tensor] | None = None,
        evaluation: Callable[[Any], Tensor] | None = None,
        option: str = "corrupt",
        alternatives: Sequence[str] = ("blank", "skip"),
    ) -> None:
        self.corrupt = one_of("corrupt", corrupt, ("error", "blank", "skip"))
        super().__init__(columns, size=len(images))
        if "x" in columns or len(images) != len(self):
            raise DataError(
                f"columns must hold one row per image and no 'x', got {len(images)} images and {len(self)} rows of "
                f"{sorted(columns)}."
            )
        self.images: Any = images
        self.transform, self.evaluation = transform, evaluation or transform
        self.option, self.alternatives = option, alternatives
        self.seed = None if seed is None else at_least("seed", seed, 0)
        self.views = views
        self.most_pixels = at_least("most_pixels", most_pixels, 1)
        self.after = after
        # in shared memory: persistent workers must see the next epoch, and report unreadable images to this process
        self._epoch = _shared(torch.zeros((), dtype=torch.int64))
        self._corrupt = _shared(torch.zeros(len(images), dtype=torch.bool))

    @property
    def epoch(self) -> int:
        """The epoch on which random transforms depend."""
        return int(self._epoch)

    @property
    def num_corrupt(self) -> int:
        """Number of images replaced or left out so far as unreadable, by all workers of this process together."""
        return len(self.corrupt_rows)

    @property
    def corrupt_rows(self) -> list[int]:
        """Positions of the images that were found unreadable."""
        rows: list[int] = self._corrupt.nonzero().flatten().tolist()
        return rows

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch on which random transforms depend; ``ResumableLoader`` calls this."""
        self._epoch.fill_(at_least("epoch", epoch, 0))

    def plain(self) -> Self:
        """Return a table of the same images and columns with the transform of evaluation, always in epoch 0."""
        view = copy.copy(self)
        view.transform, view.seed, view.views = self.evaluation, None, 1
        view._epoch = _shared(torch.zeros((), dtype=torch.int64))
        return view

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        """Return sample ``i``: ``x`` (3, H, W) float32 and every column without its first dimension.

        With a ``seed`` the image is a function of (seed, epoch, i), in every worker and in any order of samples; global
        random states do not change.

        Raises:
            DataError: if the image is missing or unreadable and is not replaced; it names the row and file.
        """
        i = range(len(self))[i]
        batch = self._batch([i])
        if batch is None:
            raise DataError(f"Row {i}: its image cannot be read, and corrupt='skip' leaves it out of batches only.")
        return {name: column[0] for name, column in batch.items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return the batch of the B rows ``indices``: ``x`` (B, 3, H, W) and every column with first dimension B.

        Raises:
            DataError: if an image is missing or unreadable and ``corrupt`` is "error", or none is left with "skip".
        """
        batch = self._batch(indices)
        if batch is None:
            raise DataError(
                f"None of the {len(indices)} images of a batch can be read (first: row {next(iter(indices), None)}): "
                "the images are missing rather than damaged. Check where they are expected to lie."
            )
        return batch

    def _batch(self, indices: Sequence[int]) -> dict[str, Tensor] | None:
        """Return the batch of the rows that are not left out, or None if none is left."""
        with nullcontext() if self.seed is None else _random_states_kept():
            samples = [(i, views) for i, views in ((i, self._views(i)) for i in indices) if views is not None]
        if not samples:
            return None
        rows, pixels = zip(*samples, strict=True)
        # in a worker, torch's default_collate stacks into shared memory, which saves a copy
        stacked = zip(("x", "x2"), zip(*pixels, strict=True), strict=False)
        return {name: default_collate(list(view)) for name, view in stacked} | self._columns_of(rows)

    def _columns_of(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return all columns but the images of some rows, each with first dimension B."""
        return super().__getitems__(rows)

    def _views(self, i: int) -> list[Tensor] | None:
        """Return the views of image ``i``, or None if it is to be left out."""
        image = self._image(i)
        if image is None:
            return None
        if self.seed is not None:
            _seed_from(self.seed, self.epoch, i)
        views = [self.transform(image) for _ in range(self.views)]
        return views if self.after is None else [self.after(i, view) for view in views]

    def _image(self, i: int) -> "Image | None":
        stored = self.images[i]
        try:
            return _decoded(stored, self.most_pixels)
        except Exception as error:  # PIL's decoders raise errors of many classes
            unreadable = f"Row {i}: the image {_name_of(stored)} cannot be read ({type(error).__name__}: {error})"
            if self.corrupt == "error":
                ways = ", or ".join(f"{way!r} to {_FATES[way]}" for way in self.alternatives)
                raise DataError(f"{unreadable}. Restore or remove it, or set {self.option}={ways}.") from error
            return self._instead_of(i, unreadable)

    def _instead_of(self, i: int, unreadable: str) -> "Image | None":
        import PIL.Image  # noqa: PLC0415  (only needed here)

        blank = self.corrupt == "blank"
        if not self._corrupt.any():
            fate = "a black one takes its place" if blank else "it is left out of its batch"
            warnings.warn(
                f"{unreadable}; {fate}. Further ones are counted, for the report, and refused beyond a tenth.",
                stacklevel=2,
            )
        self._corrupt[i] = True
        require_few_lost(
            self.num_corrupt, len(self), "images cannot be read", f"The latest is row {i}. {unreadable}. Restore them."
        )
        return PIL.Image.new("RGB", (224, 224)) if blank else None


class DatasetColumn:
    """A column of a ``datasets.Dataset`` that is read cell by cell, without decoding images.

    Args:
        dataset: the data set.
        name: its column, or "column.field" for the field of a column of mappings.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        import datasets  # noqa: PLC0415  (slow to import, and only needed here)

        column, _, self.field = (name, "", "") if name in dataset.column_names else name.partition(".")
        self.name, self.dataset = column, dataset.select_columns([column])
        if isinstance(dataset.features[column], datasets.Image):
            # left to ImageTable, which decodes all kinds of images alike and names the file that fails
            self.dataset = self.dataset.cast_column(column, datasets.Image(decode=False))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self._inner(self.dataset[int(i)][self.name])

    def __iter__(self) -> Iterator[Any]:
        for batch in self.dataset.iter(batch_size=1000):
            yield from map(self._inner, batch[self.name])

    def _inner(self, cell: Any) -> Any:
        return cell.get(self.field) if self.field and isinstance(cell, Mapping) else cell


class FilesIn:
    """Images whose paths are relative to a folder, and lead out of it only with ``allow_outside``.

    Raises:
        DataError: when an image outside of the folder is requested and not allowed.
    """

    def __init__(self, images: Any, folder: str | PathLike[str], *, allow_outside: bool = True) -> None:
        self.images = images
        self.folder = Path(folder)
        self.allow_outside = allow_outside

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Any:
        stored = self.images[i]
        path = stored
        if isinstance(stored, Mapping):  # {"bytes": ..., "path": ...}
            path = stored.get("path") if stored.get("bytes") is None else None
        if not isinstance(path, str):
            return stored
        if not self.allow_outside:
            require_inside(self.folder, [path], f"pairs in '{self.folder}'")
        return self.folder / path


def read_image_dataset(source: Any, image_column: str) -> tuple[pd.DataFrame, DatasetColumn]:
    """Read a data set of one of the kinds :data:`_ACCEPTED` with an image column, without decoding images.

    Returns:
        The other columns, and the images of the same rows.  Several splits are concatenated, and named in the column
        ``split`` ("validation" as "val").

    Raises:
        DataError: if the source is missing, unreadable, of another kind, or lacks the column.
    """
    import datasets  # noqa: PLC0415  (slow to import, and only needed here)

    loaded = _opened(str(source)) if isinstance(source, (str, PathLike)) else source
    splits = list(loaded.items()) if isinstance(loaded, datasets.DatasetDict) else [("", loaded)]
    if not all(isinstance(part, datasets.Dataset) for _, part in splits):
        raise DataError(f"source is a {type(loaded).__name__}. Accepted are {_ACCEPTED}.")
    dataset = datasets.concatenate_datasets([part for _, part in splits])
    require_columns(pd.DataFrame(columns=dataset.column_names), {"image_column": [image_column]}, "source")
    frame = dataset.remove_columns(image_column).to_pandas()
    if splits[0][0]:
        frame["split"] = ["val" if name == "validation" else name for name, part in splits for _ in range(len(part))]
    return frame, DatasetColumn(dataset, image_column)


def _opened(source: str) -> Any:
    """Open a .parquet file, a folder or a hub id with ``datasets``."""
    if not source.endswith(".parquet"):
        return open_dataset(source, "source", _ACCEPTED, None)
    import datasets  # noqa: PLC0415  (slow to import, and only needed here)
    import pyarrow.parquet  # noqa: PLC0415

    try:  # Dataset.from_parquet would copy the file to a cache
        return datasets.Dataset(pyarrow.parquet.read_table(source))
    except (OSError, ValueError) as error:
        raise DataError(f"source={source!r} is not a readable .parquet file: {error}.") from error


@dataclass(frozen=True)
class ImageTransform:
    """How images become tensors, by :func:`image_transform`.

    Args:
        size: side of the resulting images in pixels.
        mean: means of the three channels, for values in [0, 1], which are subtracted; None for ImageNet's.
        std: standard deviations of the three channels, which divide; None for ImageNet's.
        crop_pct: side of the centre crop as a share of the shorter side, in (0, 1].
        augment: whether training images get timm's default random crops, flips and colours; a mapping changes arguments
            of ``timm.data.create_transform``, such as ``{"scale": [0.7, 1.0], "color_jitter": 0.0}``; with False they
            are transformed as in evaluation.
        views: 2 gives training batches a second random view of every image, as the column ``x2``, for contrastive
            losses; it needs ``augment``.

    Raises:
        ConfigError: if ``views`` is neither 1 nor 2, or is 2 without augmentation.
    """

    size: int = 224
    mean: list[float] | None = None
    std: list[float] | None = None
    crop_pct: float = 0.875
    augment: bool | dict[str, Any] = False
    views: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        augmentation("transform.augment", self.augment)
        if one_of("transform.views", self.views, (1, 2)) == 2 and self.augment is False:
            raise ConfigError("transform.views=2 without augmentation: both views would be equal. Set augment: true.")

    def made(self, *, random: bool) -> Callable[[Any], Tensor]:
        """Return the transform of training, if ``random``, or of evaluation."""
        mean, std = self.mean or IMAGENET_MEAN, self.std or IMAGENET_STD
        augment = self.augment if random else False
        return image_transform(self.size, mean, std, crop_pct=self.crop_pct, augment=augment)


@dataclass(frozen=True)
class ImageNoise:
    """Gaussian noise on pixels whose mean differs from image to image and is a column by which groups can be defined.

    The means are assigned to the images at random and as evenly as possible; the noise of an image is the same whenever
    it is read, in training and evaluation.  ``mean + sqrt(variance) z``, z standard normal, is added to every value
    after resizing and before standardising, where values lie in [0, 1]; the sum is not clipped.

    Args:
        means: the means; None for -0.08, -0.06, ..., 0.1.
        variance: >= 0.
        column: name of the column with every image's mean.
        seed: seed of the noise and of the assignment, a whole number >= 0.

    Raises:
        ConfigError: if a number is out of range, or means are absent or not distinct.
    Source: ALEXR paper, G.1.1, where 10 means times 16 cells make the 160 groups of CelebA; the paper does not say
        at which step noise is added, and how the means are assigned.
    """

    means: list[float] | None = None
    variance: float = 0.08
    column: str = "noise"
    seed: int = 0

    def __post_init__(self) -> None:
        non_negative("noise.variance", self.variance)
        at_least("noise.seed", self.seed, 0)
        for mean in list_of("noise.means", self.levels):
            finite("noise.means", mean)
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise ConfigError(f"noise.means must be different numbers, at least one, got {self.means}.")

    @property
    def levels(self) -> list[float]:
        """The means."""
        return [(2 * k - 8) / 100 for k in range(10)] if self.means is None else self.means

    def kinds(self, count: int) -> NDArray[np.int64]:
        """For each of ``count`` images the number of its mean, (count,)."""
        return np.random.default_rng(self.seed).permutation(np.arange(count) % len(self.levels))

    def added(
        self, rows: NDArray[np.int64], count: int, std: Sequence[float] | None
    ) -> Callable[[int, Tensor], Tensor]:
        """Return the function that adds noise to a view (3, H, W) of image ``i`` of a table, see :class:`ImageTable`.

        Args:
            rows: positions of the table's images among all images, (n,).
            count: number of all images.
            std: standard deviations by which the three channels were divided; None for ImageNet's.
        """
        means = np.array(self.levels)[self.kinds(count)[rows]]
        return partial(self._add, rows, means, torch.tensor(std or IMAGENET_STD)[:, None, None])

    def _add(self, rows: NDArray[np.int64], means: NDArray[np.float64], std: Tensor, i: int, view: Tensor) -> Tensor:
        key = np.random.SeedSequence([self.seed, int(rows[i])])
        generator = torch.Generator().manual_seed(int(key.generate_state(1, np.uint64)[0]))
        noise = float(means[i]) + math.sqrt(self.variance) * torch.randn(view.shape, generator=generator)
        return view + noise / std


def augmentation(name: str, value: bool | dict[str, Any]) -> bool | dict[str, Any]:
    """Return ``value`` if it is a bool or a mapping, else raise :class:`ConfigError` naming the argument."""
    if not isinstance(value, bool | Mapping):
        raise ConfigError(
            f"{name} must be True, False or a mapping of arguments of timm.data.create_transform, got {value!r}."
        )
    return value


def image_transform(
    size: int,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    augment: bool | Mapping[str, Any] = False,
    crop_pct: float = 0.875,
    interpolation: str = "bilinear",
    crop_mode: Literal["center", "squash", "border"] = "center",
) -> Callable[[Any], Tensor]:
    """Return a transform of timm: PIL image in RGB -> float32 tensor of shape (3, size, size).

    ``size``, ``mean``, ``std``, ``augment`` and ``crop_pct`` are those of :class:`ImageTransform`: without ``augment``
    the shorter side becomes ``size / crop_pct`` pixels, and the centre is cropped.  The ``interpolation`` is
    "bilinear", "bicubic" or "nearest".  If images are not square, the ``crop_mode`` "center" crops the longer side,
    "squash" changes the aspect ratio, and "border" pads the shorter side.

    Raises:
        ConfigError: if an argument is out of range, or timm refuses it.
    """
    from timm.data.transforms_factory import create_transform  # noqa: PLC0415  (slow to import)

    options = dict(augment) if isinstance(augment, Mapping) else {}
    if len(list_of("mean", mean)) != 3 or len(list_of("std", std)) != 3 or min(std) <= 0:
        raise ConfigError(f"mean and std must hold 3 numbers each, std > 0, got {list(mean)} and {list(std)}.")
    try:
        transform: Callable[[Any], Tensor] = create_transform(
            at_least("image_size", size, 1),
            is_training=augment is not False,
            mean=tuple(mean),
            std=tuple(std),
            crop_pct=fraction("crop_pct", crop_pct),
            interpolation=interpolation,
            crop_mode=crop_mode,
            **options,
        )
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"timm.data.create_transform does not take augment={options} with interpolation={interpolation!r}: {error}."
        ) from error
    return transform


def _shared(tensor: Tensor) -> Tensor:
    return tensor.share_memory_()  # type: ignore[no-untyped-call,no-any-return]


def _decoded(stored: Any, most_pixels: int) -> "Image":
    import PIL.Image  # noqa: PLC0415  (only needed where images are)
    import PIL.ImageOps  # noqa: PLC0415

    if isinstance(stored, Mapping):
        stored = stored["path"] if stored.get("bytes") is None else stored["bytes"]
    if isinstance(stored, np.ndarray):
        stored = PIL.Image.fromarray(stored)
    if isinstance(stored, PIL.Image.Image):
        return _rgb(PIL.ImageOps.exif_transpose(stored))
    file = io.BytesIO(stored) if isinstance(stored, bytes) else Path(stored)
    if isinstance(file, Path) and file.exists() and not file.is_file():
        raise ValueError("it is not a regular file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)  # most_pixels decides
        opened = PIL.Image.open(file)
    with opened as image:
        if image.width * image.height > most_pixels:
            raise ValueError(
                f"it has {image.width} x {image.height} pixels, more than most_pixels={most_pixels:,}; scale it down, "
                "or raise that"
            )
        if max(image.size) > _MOST_ELONGATED * min(image.size):
            raise ValueError(
                f"it has {image.width} x {image.height} pixels, one side more than {_MOST_ELONGATED} times the other, "
                "and would be enlarged with the shorter one; crop it"
            )
        if image.format == "EPS":
            raise ValueError("it is a PostScript program, which is not run; convert it to PNG")
        return _rgb(PIL.ImageOps.exif_transpose(image), image.format)


def _rgb(image: "Image", kind: str | None = None) -> "Image":
    import PIL.Image  # noqa: PLC0415  (only needed where images are)

    # PIL would clip values above 255; its mode "I" has 32 bits, but files of these kinds have 16
    if image.mode.startswith("I;16") or (image.mode == "I" and kind in ("PNG", "PPM")):
        image = PIL.Image.fromarray(np.round(np.asarray(image) / 257).astype(np.uint8))
    elif image.mode.startswith(("I", "F")):
        raise ValueError(f"its mode is {image.mode!r}, whose value of white is not known; write it with 8 or 16 bits")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _name_of(stored: Any) -> str:
    path = stored.get("path") if isinstance(stored, Mapping) else stored
    return f"'{path}'" if isinstance(path, (str, PathLike)) else f"<{type(stored).__name__}>"


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """Restore the states of all global generators that a transform may use."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002


def _seed_from(*key: int) -> None:
    """Seed all global generators that a transform may use."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    # only the CPU's generator: torch.manual_seed would seed the GPUs, too, which workers must not use
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
