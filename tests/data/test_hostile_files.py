"""Damaged or truncated files and files of other kinds: what can be read is used, or the file is refused by name."""

import io
import random
import warnings

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fcco_lightning.data import Columns, Splits
from fcco_lightning.data.datamodules import TabularDataModule
from fcco_lightning.data.images import ImageTable, image_transform
from fcco_lightning.data.sources import read_table
from fcco_lightning.errors import DataError
from tests.evidence import count
from tests.images import as_bytes

ROWS = 40
TRIALS = [20, pytest.param(0, marks=pytest.mark.slow)]


def tables():
    """The bytes of a table in every format of files."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=ROWS), "w": rng.choice(["u", "v"], ROWS), "y": np.arange(ROWS) % 2})
    parquet = io.BytesIO()
    frame.to_parquet(parquet)
    lines = "".join(f"{y} qid:1 1:{a:.3f} 3:1\n" for y, a in zip(frame["y"], frame["a"], strict=True))
    return {".csv": frame.to_csv(index=False).encode(), ".parquet": parquet.getvalue(), ".svm": lines.encode()}


def images():
    pixels = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        yield as_bytes(Image.fromarray(pixels), kind)


def spoilt(content, chance):
    """Cut, with other bytes, with a piece of something else, or altogether random."""
    content = bytearray(content)
    way, at = (
        chance.choice(["cut", "bits", "bytes", "piece", "random", "zeros", "twice"]),
        chance.randrange(len(content)),
    )
    if way == "bits":
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    pieces = {
        "cut": content[:at],
        "bytes": content[:at] + chance.randbytes(20) + content[at + 20 :],
        "piece": content[:at] + b'\x00"\n;,\xff\xfe{[(' + content[at:],
        "random": chance.randbytes(chance.choice([0, 1, 100, 5000])),
        "zeros": bytes(len(content)),
        "twice": content + content,
    }
    return bytes(pieces.get(way, content))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".svm"])
def test_tables_are_read_or_refused_by_name(trials, suffix, tmp_path):
    chance, path, refused = random.Random(suffix), tmp_path / f"t{suffix}", 0  # noqa: S311
    trials = trials or count(200, 1000)
    for _ in range(trials):
        path.write_bytes(spoilt(tables()[suffix], chance))
        try:
            read_table(path, "train")
            label = "label" if suffix == ".svm" else "y"
            TabularDataModule(path, columns=Columns(label), splits=Splits(test_fraction=0.25)).setup()
        except DataError:
            refused += 1
    assert refused > trials // 4


@pytest.mark.parametrize("trials", TRIALS)
def test_images_are_read_or_refused_by_name(trials):
    chance, whole, refused = random.Random(0), list(images()), 0  # noqa: S311
    trials = trials or count(300, 2000)
    for _ in range(trials):
        table = ImageTable([spoilt(chance.choice(whole), chance)], {}, image_transform(8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the decoders
            try:
                assert table[0]["x"].isfinite().all()
            except DataError as error:
                assert "Row 0: the image <bytes> cannot be read" in str(error)  # noqa: PT017
                refused += 1
    assert refused > trials // 4
