"""Readers of well-known data sets in the files that they are distributed in, after unpacking.

Each returns one row per sample with its ``file`` (relative to the root) or ``text``, labels, the columns that define
groups, and usually ``split``.  Images are not decoded, and only the existence of the first one is checked.  CIFAR and
MedMNIST store pixels, which are returned separately.
"""

import csv
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fcco_lightning.data.columns import as_written, listed, require_columns
from fcco_lightning.data.text_files import read_csv, read_text
from fcco_lightning.errors import DataError

Root = str | PathLike[str]
Pixels = NDArray[np.uint8]

_CELEBA = (
    "the layout of CelebA: a folder img_align_celeba of .jpg files, list_attr_celeba.txt (or .csv), and possibly "
    "list_eval_partition.txt (or .csv)"
)
_CAMELYON = "the layout of WILDS' camelyon17_v1.0: metadata.csv and a folder patches of .png files"
_AMAZON = "the layout of WILDS' amazon_v2.1: reviews.csv and splits/user.csv"
_CIVIL_COMMENTS = "the layout of WILDS' civilcomments_v1.0: all_data_with_identities.csv"
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
"""The identities by which WILDS groups CivilComments."""
NO_IDENTITY = "none"
_BDD = (
    "the layout of BDD100K: images/100k/{train,val} with .jpg files, and labels/det_20/det_{train,val}.json, "
    "labels/bdd100k_labels_images_{train,val}.json or labels/100k/{train,val}/*.json"
)
_CIFAR = (
    "the binary version of CIFAR-10 (data_batch_1.bin to data_batch_5.bin, test_batch.bin, batches.meta.txt) or of "
    "CIFAR-100 (train.bin, test.bin, fine_label_names.txt, coarse_label_names.txt), cifar-10-binary.tar.gz or "
    "cifar-100-binary.tar.gz unpacked"
)
CHEST = (
    *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax"),
    *("consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
)
"""The labels of ChestMNIST, in the order of its columns."""
_MEDMNIST = (
    "a file of MedMNIST such as chestmnist.npz, with train_images, val_images and test_images, (n, H, W) or (n, H, W, "
    "3) of uint8, and train_labels, ... of (n, 1), or of (n, 14) for ChestMNIST"
)
_FOLDER = (
    "a folder with metadata.csv (or .parquet), or with one subfolder of images for every class; itself, or in its "
    "subfolders train, val (or validation) and test"
)
_SPLITS = {"train": "train", "val": "val", "validation": "val", "test": "test"}
_OF_IMAGES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


@contextmanager
def _reading(path: Path, prefix: str = "") -> Iterator[None]:
    """Within this context, errors of a missing or damaged file become a :class:`DataError` that names it."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{prefix}'{path}' cannot be read: {error}.") from error


@contextmanager
def _expecting(layout: str) -> Iterator[None]:
    """Within this context, add the expected files to the message of a missing or damaged file."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{error} Expected is {layout}.") from error.__cause__


@_expecting(_CELEBA)
def celeba(root: Root) -> pd.DataFrame:
    """Read CelebA (from its own site, from Kaggle or from WILDS).

    Returns:
        Columns ``file``, the 40 attributes as 0 or 1, and ``split`` ("train", "val" or "test") if the file of the
        partition is there.

    Raises:
        DataError: if files are missing or have another format.
    """
    root = _folder_at(root)
    path = _first([root / "list_attr_celeba.txt", root / "list_attr_celeba.csv"])
    marks = _by_image(path, [], skiprows=1)  # the header has no name for the first column
    _require_announced(path, marks)
    num_invalid = int((~marks.isin([-1, 1])).to_numpy().sum())
    if marks.empty or num_invalid:
        raise DataError(
            f"'{path}' must hold -1 or 1 for every image and attribute, but {num_invalid} cells of {marks.shape[0]} "
            "images hold something else."
        )
    frame = (marks > 0).astype(np.int64)
    for path in (root / "list_eval_partition.csv", root / "list_eval_partition.txt"):
        if path.is_file():
            names = ["image_id", "partition"]
            parts = _by_image(path, ["partition"], header=None, names=names, index_col=0)["partition"]
            frame["split"] = _split_names(parts.reindex(frame.index), {0: "train", 1: "val", 2: "test"}, path)
    # Kaggle's archive unpacks to a folder within a folder of the same name.
    folders = ["img_align_celeba", "img_align_celeba/img_align_celeba"]
    image = _first([root / folder / frame.index[0] for folder in folders])
    frame.insert(0, "file", [(image.parent.relative_to(root) / name).as_posix() for name in frame.index])
    return frame.reset_index(drop=True)


@_expecting(_CAMELYON)
def camelyon17(root: Root) -> pd.DataFrame:
    """Read Camelyon17 as WILDS distributes it.

    Returns:
        Columns ``file``, ``tumor`` (0 or 1), ``center`` (0..4), ``slide`` (0..49), ``patient``, ``node`` and ``split``:
        "test" for center 2, "val" for center 1, and in the other three centers "train" and "id_val", as WILDS does.

    Raises:
        DataError: if files are missing or have another format.
    """
    root = _folder_at(root)
    path = _first([root / "metadata.csv"])
    table = read_file(path, index_col=0, dtype={"patient": "str"})
    _require_header(table, ["patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"], path)
    split = _split_names(table["split"], {0: "train", 1: "id_val"}, path)
    table["split"] = split.mask(table["center"] == 1, "val").mask(table["center"] == 2, "test")
    place = "patient_" + table["patient"].str.zfill(3) + "_node_" + table["node"].astype(str)
    spot = "_x_" + table["x_coord"].astype(str) + "_y_" + table["y_coord"].astype(str)
    frame = table[["tumor", "center", "slide", "patient", "node", "split"]].copy()
    frame.insert(0, "file", "patches/" + place + "/patch_" + place + spot + ".png")
    _first([root / frame["file"].iloc[0]])
    return frame.reset_index(drop=True)


@_expecting(_AMAZON)
def amazon(root: Root) -> pd.DataFrame:
    """Read the Amazon reviews as WILDS distributes them, without the rows that belong to no split.

    Returns:
        Columns ``text``, ``stars`` (1..5), ``user``, ``product``, ``category``, ``year`` and ``split`` of the split by
        users: "train", "val" and "test" (new users), "id_val" and "id_test" (users of the training split).

    Raises:
        DataError: if files are missing or have another format.
    """
    root = _folder_at(root)
    path, splits = _first([root / "reviews.csv"]), _first([root / "splits" / "user.csv"])
    names = {
        "reviewText": "text",
        "overall": "stars",
        "reviewerID": "user",
        "asin": "product",
        "category": "category",
        "reviewYear": "year",
    }
    # an empty review and the review "NA" are texts, not missing cells
    text = dict.fromkeys(("reviewText", "reviewerID", "asin", "category"), str)
    table = read_file(path, dtype=text, keep_default_na=False, na_values=[], quoting=csv.QUOTE_NONNUMERIC)
    _require_header(table, list(names), path)
    split = read_file(splits)
    _require_header(split, ["split"], splits)
    if len(table) != len(split):
        raise DataError(
            f"'{path}' has {len(table)} reviews but '{splits}' has {len(split)} rows: they must lie side by side. "
            "Unpack the archive again."
        )
    frame = table[list(names)].rename(columns=names)
    codes = {-1: "", 0: "train", 1: "val", 2: "id_val", 3: "test", 4: "id_test"}
    frame["split"] = _split_names(split["split"], codes, splits)
    frame = frame[frame["split"] != ""].reset_index(drop=True)
    return frame.astype({"stars": np.int64, "year": np.int64})


@_expecting(_CIVIL_COMMENTS)
def civilcomments(root: Root) -> pd.DataFrame:
    """Read CivilComments as WILDS distributes it, with a row for every identity that a comment mentions.

    WILDS evaluates the accuracy on 16 groups, each of :data:`IDENTITIES` times toxic or not, which overlap: a comment
    that mentions two identities belongs to both.  With a row for each identity, the groups by ``identity`` and
    ``toxic`` are these 16, and two groups of comments that mention none.

    Returns:
        Columns ``text``, ``toxic`` (0 or 1: at least half of the annotators said so), ``identity`` (as annotated by at
        least half of them; "none" if none is), ``comment`` (number of the comment in the file) and ``split`` ("train",
        "val" or "test"), in the order of the comments.

    Raises:
        DataError: if files are missing or have another format.
    """
    path = _first([_folder_at(root) / "all_data_with_identities.csv"])
    table = read_file(path, index_col=0, low_memory=False)
    _require_header(table, ["comment_text", "split", "toxicity", *IDENTITIES], path)
    mentioned = table[list(IDENTITIES)].to_numpy(dtype=np.float64) >= 0.5
    marked = np.column_stack([mentioned, ~mentioned.any(axis=1)])
    comment, identity = marked.nonzero()
    rows = as_written(table, path, ["comment_text"]).iloc[comment]
    return pd.DataFrame(
        {
            "text": rows["comment_text"].to_numpy(),
            "toxic": (rows["toxicity"].to_numpy() >= 0.5).astype(np.int64),
            "identity": np.array([*IDENTITIES, NO_IDENTITY])[identity],
            "comment": comment,
            "split": rows["split"].to_numpy(),
        }
    )


@_expecting(_BDD)
def bdd100k(root: Root) -> pd.DataFrame:
    """Read the images of BDD100K with the attributes of the whole scene, as it is distributed (or from Kaggle).

    Its test images have no labels and are left out; the official validation images become the test split.

    Returns:
        Columns ``file``, ``weather``, ``scene`` and ``timeofday`` ("undefined" if the annotators gave no value), and
        ``split``: "train", and "test" for the official validation split.

    Raises:
        DataError: if files are missing or have another format.
    """
    root = _folder_at(root)
    nested = [root, root / "bdd100k", root / "bdd100k" / "bdd100k"]
    images = _first([base / "images" / "100k" for base in nested], folder=True)
    labels = [base / "labels" for base in [*nested, root / "bdd100k_labels_release" / "bdd100k"]]
    parts = {"train": "train", "val": "test"}
    frames = [_bdd_part(root, images, labels, part).assign(split=name) for part, name in parts.items()]
    return pd.concat(frames, ignore_index=True)


@_expecting(_CIFAR)
def cifar(root: Root) -> tuple[pd.DataFrame, Pixels]:
    """Read the binary version of CIFAR-10 or CIFAR-100 in ``root`` (or in the folder to which it unpacks).

    The version for Python is a pickle, which can run arbitrary code; the binary version on the same site has the same
    images as plain bytes.

    Returns:
        One row per image: ``label``, the name of its class; for CIFAR-100 also ``coarse``, that of its superclass; and
        ``split``, "train" or "test".  Second, the pixels of the same rows, (n, 32, 32, 3).

    Raises:
        DataError: if files are missing, cut off, or hold a label without a name.
    """
    for base in [Path(root) / name for name in (".", "cifar-10-batches-bin", "cifar-100-binary")]:
        if (base / "data_batch_1.bin").is_file():
            train = [base / f"data_batch_{i}.bin" for i in range(1, 6)]
            return _cifar_images(train, base / "test_batch.bin", {"label": base / "batches.meta.txt"})
        if (base / "train.bin").is_file():
            names = {"coarse": base / "coarse_label_names.txt", "label": base / "fine_label_names.txt"}
            return _cifar_images([base / "train.bin"], base / "test.bin", names)
    pickled = any((Path(root) / name).exists() for name in ("cifar-10-batches-py", "data_batch_1", "cifar-100-python"))
    hint = " What lies there is the version for Python, whose pickles can run any code: download the binary version."
    raise DataError(
        f"root='{root}': there is neither data_batch_1.bin nor train.bin (working directory: {Path.cwd()})."
        f"{hint if pickled else ''}"
    )


@_expecting(_MEDMNIST)
def medmnist(path: Root) -> tuple[pd.DataFrame, Pixels]:
    """Read the .npz file of a two-dimensional data set of MedMNIST.

    Returns:
        One row per image: ``label``, the number of its class, or for ChestMNIST the columns :data:`CHEST` of 0 and 1;
        and ``split``, "train", "val" or "test".  Second, the pixels of the same rows, (n, H, W) or (n, H, W, 3).

    Raises:
        DataError: if the file is missing, damaged, or has another format.
    """
    parts = ("train", "val", "test")
    arrays = _arrays(Path(path), [f"{part}_{kind}" for part in parts for kind in ("images", "labels")])
    images = [arrays[f"{part}_images"] for part in parts]
    labels = [arrays[f"{part}_labels"] for part in parts]
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
    return frame.assign(split=np.repeat(parts, counts)), np.concatenate(images)


@_expecting(_FOLDER)
def folder(
    root: Root, metadata: str = "metadata.csv", file_column: str = "file_name", *, allow_outside: bool = False
) -> pd.DataFrame:
    """Read a folder of images with a table of their labels, or with one subfolder for every class.

    The former is the imagefolder of ``datasets``, the latter torchvision's ``ImageFolder``.  Files without the ending
    of an image, and names that begin with "." or "__", are ignored.

    Args:
        root: the folder.  If it has neither a table nor classes, its subfolders ``train``, ``val`` (or
            ``validation``) and ``test`` are read in the same way, and their names become the column ``split``.
        metadata: name of the table, .csv or .parquet.
        file_column: column of the table with the files, relative to the table's folder.
        allow_outside: whether the table may name files outside of ``root``, as ``../other/1.png`` or ``/other/1.png``.

    Returns:
        The columns of the table, ``file_column`` renamed to ``file``; without a table ``file`` and ``label``, the name
        of the subfolder.

    Raises:
        DataError: if files are missing or have another format; or if, without a table, a class has subfolders or no
            images, there are images beside the folders of classes, or there is only one class.
    """
    root = _folder_at(root)
    parts = [part for part in _SPLITS if (root / part / metadata).is_file()]
    if not parts and not (root / metadata).is_file() and metadata == "metadata.csv" and _subfolders_and_images(root)[0]:
        return _class_folders(root)
    if (root / metadata).is_file() or not parts:
        table = _first([root / metadata, root / "train" / metadata])
        return _folder_table(root, table, file_column, allow_outside=allow_outside)
    frames = [
        _folder_table(root, root / part / metadata, file_column, allow_outside=allow_outside).assign(
            split=_SPLITS[part]
        )
        for part in parts
    ]
    return pd.concat(frames, ignore_index=True)


def _class_folders(root: Path) -> pd.DataFrame:
    """Read a folder whose subfolders are the classes, or splits with classes in them."""
    inside = _folders_in(root)
    if set(inside) <= _SPLITS.keys():
        parts = [_images_of_classes(root, Path(part)).assign(split=_SPLITS[part]) for part in inside]
        frame = pd.concat(parts, ignore_index=True)
    else:
        frame = _images_of_classes(root, Path())
    if frame["label"].nunique() < 2:
        raise DataError(
            f"'{root}' has no metadata.csv, and all images in one subfolder, {frame['label'][0]!r}, which would be the "
            "only class. Give every class a folder, or list the files with their labels in a metadata.csv."
        )
    return frame


def _images_of_classes(root: Path, part: Path) -> pd.DataFrame:
    """Read the images below ``root / part``, whose labels are the names of their folders."""
    rows: list[tuple[str, str]] = []
    for label in _folders_in(root / part):
        deeper, images = _subfolders_and_images(root / part / label)
        if deeper:
            raise DataError(
                f"'{root / part / label}' would be a class and has subfolders itself ({listed(deeper)}): all images "
                "of a class lie in one folder. Move them up, call the folders of splits train, val and test, or list "
                "all files in a metadata.csv."
            )
        if not images:
            raise DataError(
                f"'{root / part / label}' would be a class and holds no image ({', '.join(_OF_IMAGES)}). Remove it, or "
                "list all files in a metadata.csv."
            )
        rows += [((part / label / name).as_posix(), label) for name in images]
    frame = pd.DataFrame(rows, columns=["file", "label"])
    order = frame.groupby("label").cumcount().argsort(kind="stable")  # classes alternate
    return frame.iloc[order].reset_index(drop=True)


def _folders_in(folder: Path) -> list[str]:
    """Return the names of the subfolders of a folder that has some, and no images beside them."""
    inside, images = _subfolders_and_images(folder)
    if images:
        raise DataError(
            f"'{folder}' has images beside its subfolders (the first is {images[0]!r}), so their "
            "class is not known. Move each into the folder of its class, or list all files in a metadata.csv."
        )
    if not inside:
        raise DataError(f"'{folder}' has no subfolder. Make one for every class.")
    return inside


def _subfolders_and_images(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the subfolders and of the images of a folder, each in order."""
    with os.scandir(folder) as entries:
        visible = sorted((entry for entry in entries if not entry.name.startswith((".", "__"))), key=lambda e: e.name)
    folders = [entry.name for entry in visible if entry.is_dir()]
    return folders, [e.name for e in visible if e.name.lower().endswith(_OF_IMAGES) and not e.is_dir()]


def require_inside(root: Path, files: Sequence[str], where: str) -> None:
    """Refuse names of files that lead out of the folder ``root``; symbolic links in it are allowed.

    Raises:
        DataError: naming the first such row of the table ``where``.
    """
    top = os.path.normpath(root.absolute())
    for row, name in enumerate(files):
        suspect = ".." in name or Path(name).is_absolute()
        if suspect and not Path(os.path.normpath(root.absolute() / name)).is_relative_to(top):
            raise DataError(
                f"{where}, row {row}: the file '{name}' lies outside of '{root}'. Move it there, or set allow_outside "
                "(--data.images.allow_outside true, or of data.pairs) if you trust the table."
            )


def read_file(path: Path, **options: Any) -> pd.DataFrame:
    """Return the rows of a .parquet file or of a text file, which is read with ``options`` of ``pandas.read_csv``.

    Raises:
        DataError: if it cannot be read, or has no rows.
    """
    with _reading(path):
        frame: pd.DataFrame = (
            pd.read_parquet(path) if path.suffix == ".parquet" else read_csv(path, f"'{path}'", **options)
        )
    if frame.empty:
        raise DataError(f"'{path}' has no rows.")
    return frame


_BDD_ATTRIBUTES = ("weather", "scene", "timeofday")
_CHUNK = 1 << 22


def _bdd_part(root: Path, images: Path, labels: Sequence[Path], part: str) -> pd.DataFrame:
    rows = []
    for path, entry in _bdd_entries(labels, part):
        attributes = entry.get("attributes") if isinstance(entry, dict) else None
        if not isinstance(attributes, dict) or not isinstance(entry.get("name"), str):
            raise DataError(f"'{path}' has an entry without name or attributes: {str(entry)[:80]}.")
        name = Path(entry["name"]).stem + ".jpg"  # per-image files have names without suffix
        rows.append((name, *(attributes.get(key) or "undefined" for key in _BDD_ATTRIBUTES)))
    if not rows:
        raise DataError(f"The labels of the {part} images of '{root}' are empty.")
    _first([images / part / rows[0][0]])
    frame = pd.DataFrame(rows, columns=["file", *_BDD_ATTRIBUTES])
    prefix = (images / part).relative_to(root).as_posix()
    return frame.assign(file=prefix + "/" + frame["file"])


def _bdd_entries(labels: Sequence[Path], part: str) -> Iterator[tuple[Path, Any]]:
    """Yield for every image the file of its labels and the labels."""
    for base in labels:
        for path in base / "det_20" / f"det_{part}.json", base / f"bdd100k_labels_images_{part}.json":
            if path.is_file():
                yield from ((path, entry) for entry in _json_items(path))
                return
        if (base / "100k" / part).is_dir():
            for path in sorted((base / "100k" / part).glob("*.json")):
                with _reading(path):
                    entry = json.loads(path.read_text(encoding="utf-8"))
                yield path, entry
            return
    looked = ", ".join(f"'{base}'" for base in labels)
    raise DataError(f"There are no labels of the {part} images in {looked}.")


def _json_items(path: Path) -> Iterator[Any]:
    """Yield the members of a JSON list one by one, to save memory: BDD100K's file has more than a gigabyte."""
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8") as stream:
        text = stream.read(_CHUNK).lstrip()
        if not text.startswith("["):
            raise DataError(f"'{path}' must hold a list.")
        start = 1
        while True:
            while start < len(text) and text[start] in ", \t\r\n":
                start += 1
            if text[start : start + 1] == "]":
                return
            try:
                item, end = decoder.raw_decode(text, start)
            except ValueError as error:
                chunk = stream.read(_CHUNK)
                if not chunk:
                    raise DataError(f"'{path}' cannot be read: {error}.") from error
                text, start = text[start:] + chunk, 0
                continue
            yield item
            start = end


def _cifar_images(train: Sequence[Path], test: Path, names: Mapping[str, Path]) -> tuple[pd.DataFrame, Pixels]:
    """Read records of one byte per kind of label, followed by 3 x 32 x 32 bytes, the pixels channel by channel."""
    size = len(names) + 3 * 32 * 32
    tables, splits = [], []
    for path in [*train, test]:
        with _reading(path):
            records = np.fromfile(path, dtype=np.uint8)
        if records.size == 0 or records.size % size:
            raise DataError(
                f"'{path}' holds {records.size} bytes, not a whole number of records of {size}: it is cut off, or "
                "something else."
            )
        tables.append(records.reshape(-1, size))
        splits += ["test" if path == test else "train"] * len(tables[-1])
    table = np.concatenate(tables)
    columns = {}
    for position, (kind, path) in enumerate(names.items()):
        codes, class_names = table[:, position], _lines(path)
        if codes.max() >= len(class_names):
            raise DataError(f"'{path.parent}' has the label {codes.max()}, but names of {len(class_names)} classes.")
        columns[kind] = np.array(class_names, dtype=object)[codes]
    pixels = table[:, len(names) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return pd.DataFrame({**columns, "split": splits}), np.ascontiguousarray(pixels)


def _lines(path: Path) -> list[str]:
    with _reading(path):
        return [line.strip() for line in read_text(path, f"'{path}'").splitlines() if line.strip()]


def _arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """The arrays of an .npz file; pickles in it are refused."""
    with _reading(path, "root="), path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        return {name: file[name] for name in names}


def _folder_table(root: Path, path: Path, file_column: str, *, allow_outside: bool) -> pd.DataFrame:
    frame = read_file(path, skipinitialspace=True)
    require_columns(frame, {"file_column": [file_column]}, f"'{path}'")
    frame = as_written(frame, path, [file_column])
    if file_column != "file" and "file" in frame:
        raise DataError(
            f"'{path}' has both {file_column!r} and 'file', the name that it would get. Rename the column 'file'."
        )
    if (frame[file_column].isna() | (frame[file_column] == "")).any():
        raise DataError(f"'{path}' must name a file in every row of {file_column!r}.")
    prefix = path.parent.relative_to(root)
    frame[file_column] = [(prefix / str(name).strip()).as_posix() for name in frame[file_column]]
    if not allow_outside:
        require_inside(root, frame[file_column].tolist(), f"'{path}'")
    _first([root / frame[file_column].iloc[0]])
    return frame.rename(columns={file_column: "file"}).reset_index(drop=True)


def _by_image(path: Path, columns: Sequence[str], **text_options: Any) -> pd.DataFrame:
    """Return one row per image, indexed by its file, of a list of CelebA: the original .txt, or Kaggle's .csv."""
    if path.suffix == ".csv":
        frame = read_file(path)
        _require_header(frame, ["image_id", *columns], path)
        return frame.set_index("image_id")
    frame = read_file(path, sep=r"\s+", **{"index_col": None, **text_options})
    if not all(isinstance(name, str) for name in frame.index):
        raise DataError(f"The rows of '{path}' must start with the name of a file.")
    return frame


def _require_announced(path: Path, marks: pd.DataFrame) -> None:
    if path.suffix != ".txt":
        return
    with path.open() as lines:
        announced = lines.readline().strip()
    if announced != str(len(marks)):
        raise DataError(
            f"'{path}' announces {announced!r} images in its first line and lists {len(marks)}: it is damaged, or "
            "something else."
        )


def _split_names(codes: pd.Series, names: Mapping[int, str], path: Path) -> pd.Series:
    """Replace the codes of splits by names; every row must have one."""
    splits = codes.map(dict(names))
    if splits.isna().any():
        raise DataError(
            f"'{path}' must give every row one of the splits {sorted(names)}, but {int(splits.isna().sum())} rows have "
            f"none or {listed(codes[splits.isna()].unique())}."
        )
    return splits


def _folder_at(root: Root) -> Path:
    if not Path(root).is_dir():
        raise DataError(f"root='{root}': no such folder (working directory: {Path.cwd()}).")
    return Path(root)


def _first(paths: Sequence[Path], *, folder: bool = False) -> Path:
    """Return the first of the files, or folders, that exists."""
    existing = [path for path in paths if (path.is_dir() if folder else path.is_file())]
    if not existing:
        raise DataError(f"There is no {'folder ' if folder else ''}{' nor '.join(f'{str(p)!r}' for p in paths)}.")
    return existing[0]


def _require_header(frame: pd.DataFrame, required: Sequence[str], path: Path) -> None:
    missing = [name for name in required if name not in frame.columns]
    if missing:
        raise DataError(f"'{path}' lacks the columns {missing}; it has {listed(frame.columns)}.")
