"""CIFAR's binary files, classes that are positive together, imbalance, and two views of an image."""

import numpy as np
import pytest
import torch

from fcco_lightning import (
    BalancedSampling,
    Columns,
    ConfigError,
    GroupedImageDataModule,
    Groups,
    GroupSampling,
    ImageSplits,
    ImageTransform,
    LabelledImages,
    UniformSampling,
)
from fcco_lightning.data.layouts import cifar
from fcco_lightning.errors import DataError

CLASSES = ["airplane", "automobile", "bird", "cat"]


def write_ten(root, per_file=20):
    """Six files; the red, green and blue of an image are its number, its label and 7."""
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = []
        for _ in range(per_file):
            label = number % 4
            records.append(np.concatenate([[label], *(np.full(1024, v) for v in (number, label, 7))]))
            number += 1
        np.concatenate(records).astype(np.uint8).tofile(root / name)
    (root / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")
    return root


def test_ten_classes(tmp_path):
    frame, images = cifar(write_ten(tmp_path / "cifar-10-batches-bin").parent)
    assert frame["split"].value_counts().to_dict() == {"train": 100, "test": 20}
    assert frame["label"].tolist() == [CLASSES[i % 4] for i in range(120)]
    assert images[[0, 5, 119], 30, 3].tolist() == [[0, 0, 7], [5, 1, 7], [119, 3, 7]]


def test_the_order_of_pixels(tmp_path):
    """Red, green and blue one behind the other, each row by row, as the site describes it."""
    write_ten(tmp_path)
    pixels = np.arange(3072) % 251
    np.concatenate([[2], pixels]).astype(np.uint8).tofile(tmp_path / "test_batch.bin")
    _, images = cifar(tmp_path)
    x, y = 5, 9
    assert images[100, y, x].tolist() == [pixels[1024 * c + 32 * y + x] for c in range(3)]


def test_a_hundred_classes(tmp_path):
    for name, count in (("train.bin", 6), ("test.bin", 2)):
        records = [np.concatenate([[i % 2, i % 3], np.full(3072, i)]) for i in range(count)]
        np.concatenate(records).astype(np.uint8).tofile(tmp_path / name)
    (tmp_path / "coarse_label_names.txt").write_text("fish\nflowers\n")
    (tmp_path / "fine_label_names.txt").write_text("ray\nrose\nshark\n")
    frame, images = cifar(tmp_path)
    assert frame["label"].tolist() == ["ray", "rose", "shark"] * 2 + ["ray", "rose"]
    assert frame["coarse"].tolist() == ["fish", "flowers"] * 4
    assert len(images) == 8


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda root: (root / "data_batch_3.bin").unlink(),
            r"data_batch_3.bin' cannot be read.*binary version of CIFAR",
        ),
        (
            lambda root: (root / "test_batch.bin").write_bytes(b"12345"),
            "holds 5 bytes, not a whole number of records of 3073: it is cut off",
        ),
        (lambda root: (root / "batches.meta.txt").write_text("a\nb\n"), "has the label 3, but names of 2 classes"),
        (lambda root: (root / "batches.meta.txt").unlink(), "batches.meta.txt' cannot be read"),
    ],
)
def test_what_is_refused(tmp_path, spoil, message):
    spoil(write_ten(tmp_path))
    with pytest.raises(DataError, match=message):
        cifar(tmp_path)


def test_pickles_are_not_read(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(DataError, match=r"pickles can run any code: download the binary version"):
        cifar(tmp_path)


def module(root, **changes):
    arguments = {
        "columns": Columns("label", positive=["cat", "bird"]),
        "groups": Groups(["label"]),
        "transform": ImageTransform(8, [0.0] * 3, [1.0] * 3, 1.0),
        "batches": BalancedSampling(8, 0.25),
    }
    made = GroupedImageDataModule(LabelledImages("cifar", str(root)), **(arguments | changes))
    made.setup()
    return made


def test_classes_that_are_positive_together_and_imbalance_in_training_only(tmp_path):
    data = module(write_ten(tmp_path), splits=ImageSplits(imbalance=0.1))
    train, test = data.tables["train"].columns, data.tables["test"].columns
    assert data.class_names == ["not cat or bird", "cat or bird"]
    assert (int((train["y"] == 1).sum()), int((train["y"] == 0).sum())) == (6, 50)  # 50 / 9 positives
    assert (int((test["y"] == 1).sum()), int((test["y"] == 0).sum())) == (10, 10)
    batch = next(iter(data.train_dataloader()))
    number = (batch["x"][:, 0, 0, 0] * 255).round().long()
    assert batch["y"].tolist() == [int(n % 4 >= 2) for n in number]
    again = module(tmp_path, splits=ImageSplits(imbalance=0.1))
    assert torch.equal(again.tables["train"].columns["y"], train["y"])


def test_groups_that_imbalance_empties_are_named(tmp_path):
    """Of 50 positives of two classes one is left."""
    with pytest.warns(UserWarning, match=r"no rows of 1 of the 4 groups: \['label=bird'\].*remove fewer positives"):
        data = module(write_ten(tmp_path), splits=ImageSplits(imbalance=0.02, seed=1), batches=GroupSampling(2, 1))
    with pytest.raises(DataError, match=r"Let the training split hold rows of every group"):
        data.train_dataloader()


@pytest.mark.parametrize(
    ("share", "message"),
    [(0.6, r"asks for 9 positives beside 6 negatives; the training split has 4"), (0.01, "asks for 0 positives")],
)
def test_a_share_that_cannot_be_had(share, message):
    with pytest.raises(DataError, match=message):
        ImageSplits(imbalance=share).kept(torch.tensor([1, 0, 0, 1, 0, 0, 1, 0, 0, 1]))


def test_which_positives_are_left_depends_on_the_seed():
    y = (torch.arange(1000) % 2 == 0).long()
    first, second = (ImageSplits(imbalance=0.1, seed=seed).kept(y) for seed in (0, 1))
    assert len(first) == len(second) == 556
    assert not torch.equal(first, second)
    assert bool((first.diff() > 0).all())


def test_imbalance_of_many_classes_and_out_of_range():
    with pytest.raises(DataError, match=r"needs two classes.*columns.positive: \[cat, dog\]"):
        ImageSplits(imbalance=0.1).kept(torch.tensor([0, 1, 2]))
    for share in (0.0, 1.0, 1.5):
        with pytest.raises(ConfigError, match=rf"splits.imbalance must be a share of .* in \(0, 1\), got {share}"):
            ImageSplits(imbalance=share)


def test_two_views_differ_and_depend_on_epoch_and_sample_only(tmp_path):
    transform = ImageTransform(8, augment={"color_jitter": 0.8, "scale": [0.3, 1.0]}, views=2)
    data = module(write_ten(tmp_path), transform=transform)
    table = data.tables["train"]
    batch = table.__getitems__([5, 6])
    assert batch["x"].shape == batch["x2"].shape == (2, 3, 8, 8)
    assert not torch.equal(batch["x"], batch["x2"])
    assert torch.equal(table.__getitems__([6])["x2"][0], batch["x2"][1])
    table.set_epoch(1)
    assert not torch.equal(table.__getitems__([6])["x2"][0], batch["x2"][1])
    assert "x2" not in next(iter(data.test_dataloader()))
    assert "x2" not in data.sampling()["target"].columns


def test_views_and_copies_that_would_be_equal_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"views=2 without augmentation: both views would be equal"):
        ImageTransform(8, views=2)
    folder = write_ten(tmp_path)
    with pytest.raises(ConfigError, match="all copies of an image would be the same"):
        module(folder, transform=ImageTransform(8, augment=True), batches=UniformSampling(4, copies=2))
