"""Fingerprints of a training split, by which a checkpoint is never resumed on other data."""

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import ConcatDataset, Subset

from fcco_lightning.data.columns import listed
from fcco_lightning.data.images import FilesIn
from fcco_lightning.errors import DataError

TIMES = "modification times"
"""Begins the names of digests that differ between copies of the same files."""
_AT_ONCE = 256  # columns that are copied together
_LOOKED_AT = 64  # images whose contents identify a data set without file names
_NAMED = 5  # classes or groups that a message lists


def fingerprint(columns: Mapping[str, Tensor], names: Sequence[str], contents: Mapping[str, str]) -> dict[str, Any]:
    """Return the number of rows n, the ``contents``, and a digest of ``names`` and of all ``columns`` (n,) in order.

    The ``contents`` are digests of the network's inputs by name, see :func:`contents_of`.
    """
    digest = hashlib.sha256("\n".join(names).encode())
    # labels and groups, not features: standardised floats may differ from platform to platform
    for name in sorted(columns.keys() - {"index"}):
        digest.update(name.encode() + bytes(_portable(columns[name])))
    return {"rows": len(columns["index"]), "digest": digest.hexdigest()[:16], "contents": dict(contents)}


def contents_of(columns: pd.DataFrame | Mapping[str, Tensor]) -> dict[str, str]:
    """Return column -> digest of its cells in order, which takes about a second per GB.

    The numbers of a table must not be standardised, so that digests agree on all platforms; a number has the same
    digest as int and as float.  The column ``index`` of tensors is left out.
    """
    if isinstance(columns, Mapping):
        return {name: _short(_portable(column)) for name, column in columns.items() if name != "index"}
    numeric = columns.columns[[pd.api.types.is_numeric_dtype(kind) for kind in columns.dtypes]]
    digests: dict[str, str] = {}
    for start in range(0, len(numeric), _AT_ONCE):
        names = numeric[start : start + _AT_ONCE]
        values = columns[names].to_numpy(dtype="<f8", na_value=np.nan).T
        digests |= {str(name): _short(np.ascontiguousarray(row)) for name, row in zip(names, values, strict=True)}
    for name in columns.columns.difference(numeric, sort=False):
        cells = columns[name].astype(object).where(columns[name].notna(), None)
        digests[str(name)] = digest_of(map(str, cells))
    return digests


def contents_of_images(images: Any, what: str, root: str | PathLike[str] = "") -> dict[str, str]:
    """Return digests that identify images, called ``what``, without decoding any.

    For files they cover the names relative to ``root`` (or to their common folder), the sizes and the times of the last
    modification; for pixels in memory, all pixels; for other data sets, the contents of 64 images.
    """
    files = files_of(FilesIn(images, root))
    if files is not None:
        facts = [_stat(path) for _, path in files]
        return {
            f"names of {what}": digest_of(name for name, _ in files),
            f"sizes of {what}": digest_of(str(size) for size, _ in facts),
            f"{TIMES} of {what}": digest_of(str(time) for _, time in facts),
        }
    if isinstance(images, Subset) and isinstance(images.dataset, np.ndarray):
        images = images.dataset[list(images.indices)]
    if isinstance(images, np.ndarray):
        return {what: _short(np.ascontiguousarray(images))}
    looked_at = range(0, len(images), 1 + len(images) // _LOOKED_AT)
    return {what: digest_of([str(len(images)), *(identity_of(images[i]) for i in looked_at)])}


def identity_of(stored: Any) -> str:
    """Return a digest of an image as it is stored: a file's bytes or path, or pixels."""
    if isinstance(stored, Mapping):
        stored = stored["path"] if stored.get("bytes") is None else stored["bytes"]
    content = stored.tobytes() if hasattr(stored, "tobytes") else stored
    return _short(content if isinstance(content, bytes) else str(content).encode())


def digest_of(texts: Iterable[str]) -> str:
    """Return a digest of texts and their order."""
    return _short("\0".join([*texts, ""]).encode())


def require_same(
    stored: Mapping[str, Any],
    present: Mapping[str, Any],
    identifying: str,
    *,
    allow_changed: bool | None = None,
    option: str = "allow_changed (--data.allow_changed true)",
) -> None:
    """Require that the fingerprint ``stored`` in a checkpoint agrees with the ``present`` one.

    Files with the same names and sizes but other times of modification only cause a warning, since copies are such.
    With ``allow_changed`` all differences only cause a warning; None if there is no such option.  ``option`` is its
    name in the message.

    Raises:
        DataError: naming the differences, and the arguments that identify a split.
    """
    different = [
        _difference(name, stored[name], present[name])
        for name in present
        if name not in ("digest", "contents") and stored.get(name, present[name]) != present[name]
    ]
    stored_contents, contents = stored.get("contents", present["contents"]), present["contents"]
    other = [name for name in {**stored_contents, **contents} if stored_contents.get(name) != contents.get(name)]
    if other:
        different.append(f"the contents or the order of {listed(other)}")
    only_times = len(different) == 1 and bool(other) and all(name.startswith(TIMES) for name in other)
    if (only_times or not different) and stored.get("digest", present.get("digest")) != present.get("digest"):
        different.append("names of features, classes or groups, or the order of labels, groups and further columns")
        only_times = False
    if not different:
        return
    difference = f"The checkpoint was trained on another training split. What differs: {'; '.join(different)}."
    if allow_changed or only_times:
        warnings.warn(f"{difference} The rows of the dual state go to the samples now in their places.", stacklevel=2)
        return
    choice = "" if allow_changed is None else f"; or resume nevertheless with {option}"
    raise DataError(f"{difference} Pass the same {identifying}, or start without the checkpoint{choice}.")


def require_same_where_known(
    stored: Mapping[str, Any], present: Mapping[str, Any], *, allow_changed: bool = False
) -> None:
    """Do the same as :func:`require_same` for the user's own loaders, comparing only keys that both fingerprints have.

    Raises:
        DataError: naming the differences.
    """
    shared = sorted(stored["contents"].keys() & present["contents"].keys())
    old, new = ({**d, "contents": {n: d["contents"][n] for n in shared}} for d in (stored, present))
    require_same(old, new, "samples in the same order", allow_changed=allow_changed, option="allow_changed=True")


def contents_of_samples(samples: Sequence[Any]) -> str:
    """Return a digest of samples of a data set from their tensors, arrays, images, numbers and texts."""
    return digest_of(
        identity_of(_bytes_of(leaf))
        for leaf in pytree.tree_leaves(samples)
        if isinstance(leaf, Tensor | str | bytes | int | float) or hasattr(leaf, "tobytes")
    )


def _bytes_of(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().to_dense().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _difference(name: str, stored: Any, present: Any) -> str:
    if isinstance(present, list):  # lists of names may be long
        first = next(i for i, (a, b) in enumerate(zip_longest(stored, present)) if a != b)
        name, stored, present = f"{name} from number {first} on", stored[first:][:_NAMED], present[first:][:_NAMED]
    return f"{name}: {stored} there, {present} here"


def _portable(column: Tensor) -> NDArray[Any]:
    """The numbers in a representation that is the same on all platforms, contiguous in memory."""
    kind, order = (torch.float32, "<f4") if column.is_floating_point() else (torch.int64, "<i8")
    return column.contiguous().to(kind).numpy().astype(order, copy=False)


def _short(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def files_of(images: Any) -> list[tuple[str, Path]] | None:
    """Return names and paths if the images are files; None if they are not, or if listing them would take long."""
    if isinstance(images, ConcatDataset):
        parts = [files_of(part) for part in images.datasets]
        return None if None in parts else [file for part in parts if part is not None for file in part]
    if isinstance(images, Subset):
        files = files_of(images.dataset)
        return None if files is None else [files[row] for row in images.indices]
    if isinstance(images, FilesIn):
        inside = files_of(images.images)
        return None if inside is None else [(name, images.folder / path) for name, path in inside]
    if isinstance(images, list) and all(isinstance(file, str | Path) for file in images):
        return [(str(file), Path(file)) for file in images]
    return None


def _stat(path: Path) -> tuple[int, int]:
    """Size in bytes and time of modification in ns; -1 for a missing file."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns
