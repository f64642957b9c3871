"""Digits from a `datasets` table in a .parquet file: continual CLIP on images of 28 x 28 pixels."""

import shutil

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fcco_lightning import Architecture, CLIPModel, ConfigError, DataError, DigitsCLIPDataModule
from fcco_lightning.data.datamodules import labelled
from fcco_lightning.data.datamodules.digits_clip import DigitImages
from fcco_lightning.data.digits import NAMES
from fcco_lightning.data.images import read_image_dataset

COUNT = 120


def write(path, labels=None, shade=0):
    """Images of 28 x 28 whose pixels are their number, beside a ``shade``; the label is its last decimal."""
    labels = [i % 10 for i in range(COUNT)] if labels is None else labels
    images = [Image.fromarray(np.full((28, 28), i + shade, dtype=np.uint8)) for i in range(len(labels))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_dict({"image": images, "label": labels}, features).to_parquet(str(path))
    return str(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write(tmp_path_factory.mktemp("digits") / "digits.parquet")


def make(source, seed=0, **changes):
    chosen = DigitImages(num_train=60, num_test=30, num_val=20, seed=seed, source=source)
    data = DigitsCLIPDataModule(target=[8], digits=chosen, model=Architecture("tiny-28"), **changes)
    data.setup()
    return data


def numbers(data, split):
    """The images of a split, from their pixels."""
    x = torch.cat([batch["x"] for batch in data.evaluation_loaders()[split]])
    return ((x[:, 0, 14, 14] * 0.5 + 0.5) * 255).round().long().tolist()


def test_a_parquet_file_is_read_without_decoding(source):
    frame, images = read_image_dataset(source, "image")
    assert frame["label"].tolist() == [i % 10 for i in range(COUNT)]
    assert images[7]["bytes"].startswith(b"\x89PNG")


def test_splits_are_disjoint_and_follow_the_seed(source):
    data = make(source)
    found = {split: numbers(data, split) for split in ("train", "val", "test")}
    assert {split: len(rows) for split, rows in found.items()} == {"train": 60, "val": 20, "test": 30}
    assert len(set().union(*found.values())) == 110
    assert numbers(make(source), "test") == found["test"] != numbers(make(source, seed=1), "test")
    for split, rows in found.items():
        labels = torch.cat([batch["y"] for batch in data.evaluation_loaders()[split]]).tolist()
        assert [data.class_names[y] for y in labels] == [NAMES[row % 10] for row in rows]


def test_a_network_of_28_pixels_takes_them(source):
    data = make(source, stage="pretrain")
    assert data.image_size == 28
    network = CLIPModel("tiny-28")
    network.adapt(data)
    batch = next(iter(data.evaluation_loaders()["test"]))
    assert batch["x"].shape[1:] == (3, 28, 28)
    assert network.eval()({"x": batch["x"]}).shape == (30, 10)
    sizes = [sum(p.numel() for p in CLIPModel(name).parameters()) for name in ("tiny", "tiny-28")]
    assert sizes[1] - sizes[0] == 64 * 3 * (7 * 7 - 4 * 4)  # pixels of a patch: there are 4 x 4 of them in both


def test_a_checkpoint_knows_the_images_and_not_where_they_lie(source, tmp_path):
    state, told = make(source).state_dict(), make(source).references()
    copied = shutil.copy(source, tmp_path / "copy.parquet")
    make(copied).load_state_dict(state)
    assert make(copied).references() == told
    other = write(tmp_path / "other.parquet", shade=100)
    assert make(other).references() != told
    with pytest.raises(DataError, match=r"the labelled images.*--data.allow_changed true"):
        make(other).load_state_dict(state)
    with pytest.warns(UserWarning, match="the labelled images"):
        make(other, allow_changed=True).load_state_dict(state)


def test_what_is_not_there_is_refused(source, tmp_path):
    few = write(tmp_path / "few.parquet", [0, 1, 2])
    with pytest.raises(DataError, match="has 3 images with labels"):
        make(few)
    with pytest.raises(DataError, match="Needed are labels 0 to 9"):
        make(write(tmp_path / "wide.parquet", [i % 11 for i in range(COUNT)]))
    (tmp_path / "words.parquet").write_text("no table")
    for name in ("words.parquet", "none.parquet"):
        with pytest.raises(DataError, match=r"is not a readable .parquet file"):
            make(str(tmp_path / name))
    with pytest.raises(ConfigError, match="num_val must be"):
        DigitImages(num_val=5, source=source)


def test_digits_are_not_augmented():
    data = DigitsCLIPDataModule(target=[8], digits=DigitImages(num_train=60, num_test=30), model=Architecture("tiny"))
    data.setup()
    pairs = data.tables["pairs"]
    first = [pairs[i]["x"] for i in range(5)]
    pairs.set_epoch(1)
    assert all(torch.equal(pairs[i]["x"], x) for i, x in enumerate(first))


def test_a_table_of_the_hub_is_downloaded_once_before_all_processes_read_it(monkeypatch):
    downloaded = []
    monkeypatch.setattr(labelled, "read_image_dataset", lambda *asked: downloaded.append(asked))
    DigitsCLIPDataModule(digits=DigitImages(source="owner/digits")).prepare_data()
    assert downloaded == [("owner/digits", "image")]
