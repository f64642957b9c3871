"""CIFAR-10 and CIFAR-100 in their binary version, as it lies on disk after unpacking.

The version for Python is a pickle, which runs whatever code its maker put into it; the binary version of the same
site holds the same images as plain bytes and is the one that is read.
"""

from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fcco_lightning.data.layouts import expecting
from fcco_lightning.errors import DataError

_SIDE = 32
_BYTES = 3 * _SIDE * _SIDE
_EXPECTED = (
    "the binary version of CIFAR-10 (data_batch_1.bin to data_batch_5.bin, test_batch.bin, batches.meta.txt) or of "
    "CIFAR-100 (train.bin, test.bin, fine_label_names.txt, coarse_label_names.txt), cifar-10-binary.tar.gz or "
    "cifar-100-binary.tar.gz unpacked"
)


@expecting(_EXPECTED)
def cifar(root: str | PathLike[str]) -> tuple[pd.DataFrame, NDArray[np.uint8]]:
    """Read CIFAR-10 or CIFAR-100, whichever binary version lies in ``root`` (or in the folder that it unpacks to).

    Returns:
        One row per image: ``label``, the name of its class; for CIFAR-100 also ``coarse``, that of its superclass; and
        ``split``, "train" or "test".  Beside it the pixels of the same rows, (n, 32, 32, 3).

    Raises:
        DataError: if files are missing, cut off, or hold a label without a name.
    """
    folders = [Path(root) / name for name in (".", "cifar-10-batches-bin", "cifar-100-binary")]
    for folder in folders:
        if (folder / "data_batch_1.bin").is_file():
            train = [folder / f"data_batch_{i}.bin" for i in range(1, 6)]
            return _read(train, [folder / "test_batch.bin"], {"label": _names(folder / "batches.meta.txt")})
        if (folder / "train.bin").is_file():
            names = {kind: _names(folder / f"{kind}_label_names.txt") for kind in ("coarse", "fine")}
            return _read(
                [folder / "train.bin"], [folder / "test.bin"], {"coarse": names["coarse"], "label": names["fine"]}
            )
    pickled = any((Path(root) / name).exists() for name in ("cifar-10-batches-py", "data_batch_1", "cifar-100-python"))
    hint = " What lies there is the version for Python, whose pickles can run any code: download the binary version."
    raise DataError(
        f"root='{root}': there is neither data_batch_1.bin nor train.bin (working directory: {Path.cwd()})."
        f"{hint if pickled else ''}"
    )


def _read(train: list[Path], test: list[Path], names: dict[str, list[str]]) -> tuple[pd.DataFrame, NDArray[np.uint8]]:
    """Read records of one byte for each kind of label, and the pixels channel by channel."""
    tables, splits = [], []
    for path in [*train, *test]:
        records = _bytes(path)
        if records.size == 0 or records.size % (len(names) + _BYTES):
            raise DataError(
                f"'{path}' holds {records.size} bytes, not a whole number of records of {len(names) + _BYTES}: it is "
                "cut off, or something else."
            )
        tables.append(records.reshape(-1, len(names) + _BYTES))
        splits += ["train" if path in train else "test"] * len(tables[-1])
    table = np.concatenate(tables)
    columns = {}
    for position, (kind, known) in enumerate(names.items()):
        codes = table[:, position]
        if codes.max() >= len(known):
            raise DataError(f"'{train[0].parent}' has the label {codes.max()}, but names of {len(known)} classes.")
        columns[kind] = np.array(known, dtype=object)[codes]
    pixels = table[:, len(names) :].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return pd.DataFrame({**columns, "split": splits}), np.ascontiguousarray(pixels)


def _bytes(path: Path) -> NDArray[np.uint8]:
    try:
        return np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error}.") from error


def _names(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"'{path}' cannot be read: {error}.") from error
