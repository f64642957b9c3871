"""MedMNIST's small medical images, as they are distributed: one .npz file for each of its data sets."""

import zipfile
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fcco_lightning.data.layouts import expecting
from fcco_lightning.errors import DataError

CHEST = (
    *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax"),
    *("consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
)
"""The labels of ChestMNIST, in the order of its columns."""
_PARTS = ("train", "val", "test")
_EXPECTED = (
    "a file of MedMNIST such as chestmnist.npz, with train_images, val_images and test_images, (n, H, W) or (n, H, W, "
    "3) of uint8, and train_labels, ... of (n, 1), or of (n, 14) for ChestMNIST"
)


@expecting(_EXPECTED)
def medmnist(path: str | PathLike[str]) -> tuple[pd.DataFrame, NDArray[np.uint8]]:
    """Read a two-dimensional data set of MedMNIST.

    Args:
        path: its .npz file.

    Returns:
        One row per image: ``label``, the number of its class, or of ChestMNIST the columns :data:`CHEST` of 0 and 1;
        and ``split``, "train", "val" or "test".  Beside it the pixels of the same rows, (n, H, W) or (n,
        H, W, 3).

    Raises:
        DataError: if the file is missing, damaged, or holds something else.
    """
    arrays = _arrays(Path(path))
    images = [arrays[f"{part}_images"] for part in _PARTS]
    labels = [arrays[f"{part}_labels"] for part in _PARTS]
    width = labels[0].shape[1] if labels[0].ndim == 2 else 0
    names = {1: ("label",), len(CHEST): CHEST}.get(width)
    counts = [len(part) for part in images]
    shapes = {part.shape[1:] for part in images}
    pixels = all(part.dtype == np.uint8 for part in images) and len(shapes) == 1 and images[0].ndim in (3, 4)
    if names is None or not pixels or [part.shape for part in labels] != [(n, width) for n in counts]:
        raise DataError(
            f"'{path}' holds images of {[part.shape for part in images]} and labels of "
            f"{[part.shape for part in labels]}."
        )
    frame = pd.DataFrame(np.concatenate(labels).astype(np.int64), columns=list(names))
    return frame.assign(split=np.repeat(_PARTS, counts)), np.concatenate(images)


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """The arrays of the file, without running what a pickle in it might hold."""
    names = [f"{part}_{kind}" for part in _PARTS for kind in ("images", "labels")]
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"root='{path}' cannot be read: {error}.") from error
