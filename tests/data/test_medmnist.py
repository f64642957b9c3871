"""MedMNIST's files: one or fourteen label columns, three splits, and refused files."""

import numpy as np
import pytest
import torch

from fcco_lightning import Columns, GroupedImageDataModule, Groups, ImageTransform, LabelledImages, TabularMLP
from fcco_lightning.data.layouts import CHEST, medmnist
from fcco_lightning.errors import DataError

COUNTS = {"train": 8, "val": 4, "test": 4}


def write(path, labels=14, shape=(28, 28), **changes):
    """A file whose image i is filled with i; the cardiomegaly of every second image, the mass of every fourth."""
    arrays, number = {}, 0
    for part, count in COUNTS.items():
        rows = np.arange(number, number + count)
        marks = np.zeros((count, labels), dtype=np.uint8)
        marks[:, 0 if labels == 1 else 1] = rows % 2
        if labels == 14:
            marks[:, 4] = rows % 4 == 0
        arrays[f"{part}_images"] = np.broadcast_to(rows.reshape(-1, *[1] * len(shape)), (count, *shape)).astype(
            np.uint8
        )
        arrays[f"{part}_labels"] = marks
        number += count
    np.savez(path, **arrays | changes)
    return path


def test_chest_has_fourteen_labels_and_three_splits(tmp_path):
    frame, images = medmnist(write(tmp_path / "chestmnist.npz"))
    assert frame.columns.tolist() == [*CHEST, "split"]
    assert frame["cardiomegaly"].tolist() == [i % 2 for i in range(16)]
    assert frame["mass"].tolist() == [int(i % 4 == 0) for i in range(16)]
    assert frame["split"].tolist() == ["train"] * 8 + ["val"] * 4 + ["test"] * 4
    assert images[[0, 9, 15], 5, 3].tolist() == [0, 9, 15]


def test_other_sets_have_one_label_and_may_have_colours(tmp_path):
    frame, images = medmnist(write(tmp_path / "pathmnist.npz", labels=1, shape=(28, 28, 3)))
    assert frame["label"].tolist() == [i % 2 for i in range(16)]
    assert images[7, 0, 0].tolist() == [7, 7, 7]


def test_a_linear_network_on_the_pixels(tmp_path):
    data = GroupedImageDataModule(
        LabelledImages(layout="medmnist", root=str(write(tmp_path / "chestmnist.npz"))),
        columns=Columns(label="mass", positive=1),
        groups=Groups(by=["mass"]),
        transform=ImageTransform(size=28, crop_pct=1.0, mean=[0.0] * 3, std=[1.0] * 3),
    )
    data.setup()
    batch = data.tables["train"][3]
    assert torch.allclose(batch["x"], torch.full((3, 28, 28), 3 / 255))
    network = TabularMLP(hidden=[], flatten=True)
    scores = network(torch.stack([data.tables["train"][i]["x"] for i in range(4)]))
    layer = network.head()
    assert layer.weight.shape == (1, 3 * 28 * 28)
    expected = torch.arange(4) / 255 * layer.weight.sum() + layer.bias
    assert torch.allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": np.zeros((8, 3), dtype=np.uint8)}, "labels of .*Expected is a file of MedMNIST"),
        ({"val_labels": np.zeros((3, 14), dtype=np.uint8)}, "labels of"),
        ({"test_images": np.zeros((4, 64, 64), dtype=np.uint8)}, "images of"),
        ({"test_images": np.zeros((4, 28, 28))}, "images of"),
        ({"val_images": np.array([{}], dtype=object)}, "cannot be read"),
    ],
    ids=["three labels", "few labels", "size", "type", "pickle"],
)
def test_other_files_are_refused(tmp_path, changes, message):
    path = write(tmp_path / "chestmnist.npz", **changes)
    with pytest.raises(DataError, match=message):
        medmnist(path)


def test_damaged_and_missing_files_are_refused(tmp_path):
    path = write(tmp_path / "chestmnist.npz")
    path.write_bytes(path.read_bytes()[:2000])
    (tmp_path / "words.npz").write_text("no archive")
    np.savez(tmp_path / "few.npz", train_images=np.zeros(3))
    for name in ("chestmnist.npz", "words.npz", "few.npz", "none.npz"):
        with pytest.raises(DataError, match="cannot be read"):
            medmnist(tmp_path / name)
