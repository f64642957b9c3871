"""The table that hands out images with their captions, and what it can be made of."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.images import MOST_PIXELS, Images, ImageTable
from fcco_lightning.data.layouts import require_inside
from fcco_lightning.errors import DataError


class PairTable(ImageTable):
    """Images with captions: samples have ``x`` (3, H, W) float32, ``text`` (L,) int64 and ``index``.

    Args:
        images: n images, see :class:`ImageTable`.
        captions: n captions by position, each a text, or several texts of which one is drawn by (caption_seed, epoch,
            position).
        transform: PIL image in RGB -> float32 tensor of shape (3, H, W).
        tokenizer: list of k texts -> tokens (k, L), int64.
        seed: what random transforms depend on, with the epoch and the position; None for transforms that draw nothing.
        caption_seed: what the choice among several captions depends on.
        corrupt: what becomes of images that are missing or unreadable, see :class:`ImageTable`.
        most_pixels: images of more pixels are not decoded.

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
        images: Images | Sequence[Any],
        captions: Images | Sequence[Any],
        transform: Callable[[Any], Tensor],
        tokenizer: Callable[[list[str]], Tensor],
        *,
        seed: int | None = None,
        caption_seed: int = 0,
        corrupt: Literal["error", "blank", "skip"] = "error",
        most_pixels: int = MOST_PIXELS,
    ) -> None:
        if len(images) != len(captions):
            raise DataError(f"Every image needs a caption, got {len(images)} images and {len(captions)} captions.")
        super().__init__(images, {}, transform, seed=seed, corrupt=corrupt, most_pixels=most_pixels)
        self.captions, self.tokenizer = captions, tokenizer
        self.caption_seed = at_least("caption_seed", caption_seed, 0)

    def caption(self, i: int) -> str:
        """Return the text of sample ``i`` in this epoch."""
        caption = self.captions[i]
        if isinstance(caption, str):
            return caption
        # One number more than for the image: with equal seeds the crop and the text are still drawn independently.
        drawn = np.random.SeedSequence([self.caption_seed, self.epoch, i, 1]).generate_state(1)[0]
        return str(caption[int(drawn) % len(caption)])

    def _columns_of(self, rows: Sequence[int]) -> dict[str, Tensor]:
        return {**super()._columns_of(rows), "text": self.tokenizer([self.caption(i) for i in rows])}


class FilesIn:
    """Images whose paths are relative to a folder.

    Args:
        images: n images, some or all of them paths.
        folder: where the paths start.
        allow_outside: whether paths may lead out of it.

    Raises:
        DataError: when an image is asked for that lies elsewhere and must not.
    """

    def __init__(self, images: Any, folder: str | PathLike[str], *, allow_outside: bool = True) -> None:
        self.images, self.folder, self.allow_outside = images, Path(folder), allow_outside

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Any:
        stored = self.images[i]
        path = stored
        if isinstance(stored, Mapping):  # as tables keep images: their bytes, or where they lie
            path = stored.get("path") if stored.get("bytes") is None else None
        if not isinstance(path, str):
            return stored
        if not self.allow_outside:
            require_inside(self.folder, [path], f"pairs in '{self.folder}'")
        return self.folder / path
