"""Generated images of digits: sizes, seeds, labels, and handwritings that differ between splits."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from fcco_lightning.data.digits import NAMES, TEMPLATES, digits
from fcco_lightning.errors import ConfigError


def test_sizes_kinds_and_classes():
    made = digits(num_train=205, num_test=100)
    assert (made["train"].images.shape, made["test"].images.shape) == ((205, 16, 16), (100, 16, 16))
    assert made["train"].images.dtype == torch.uint8
    assert torch.bincount(made["train"].labels).tolist() == [21] * 5 + [20] * 5
    assert torch.bincount(made["test"].labels).tolist() == [10] * 10
    assert len(NAMES) == 10
    assert all(template.count("{}") == 1 for template in TEMPLATES)


def test_equal_seeds_give_equal_images():
    one, same, other = digits(50, 50, seed=1), digits(50, 50, seed=1), digits(50, 50, seed=2)
    for split in "train", "test":
        assert torch.equal(one[split].images, same[split].images)
        assert not torch.equal(one[split].images, other[split].images)
    state = torch.get_rng_state()
    digits(20, 20)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("num_val", "sizes"), [(0, (1257, 0, 540)), (4000, (880, 377, 540))])
def test_images_of_different_splits_come_from_different_digits(num_val, sizes, monkeypatch):
    monkeypatch.setattr("fcco_lightning.data.digits._varied", lambda shapes, generator: shapes)
    made, bunch = digits(4000, 4000, num_val=num_val), load_digits()
    assert torch.equal(made["test"].images, digits(10, 4000)["test"].images)
    known = {
        image.tobytes(): (row, label) for row, (image, label) in enumerate(zip(bunch.images, bunch.target, strict=True))
    }
    rows = {"val": set()}
    for name, part in made.items():
        found = [known[(image.double() * 16).numpy().tobytes()] for image in part.images]
        assert [label for _, label in found] == part.labels.tolist()
        assert [row for row, _ in found] == part.handwritings.tolist()
        rows[name] = {row for row, _ in found}
    assert not rows["train"] & rows["test"]
    assert not rows["val"] & (rows["train"] | rows["test"])
    for name, most in zip(("train", "val", "test"), sizes, strict=True):  # nearly all are drawn
        assert 0.95 * most <= len(rows[name]) <= most + 10


def test_labels_are_those_of_the_digits():
    """A linear classifier trained on the original digits reads the variations, far from perfectly."""
    bunch, made = load_digits(), digits(10, 1000)["test"]
    linear = LogisticRegression(max_iter=300).fit(bunch.images.reshape(-1, 64), bunch.target)
    small = made.images.float().reshape(-1, 8, 2, 8, 2).mean(dim=(2, 4)).flatten(1) * (16 / 255)
    accuracy = float(np.mean(linear.predict(small.numpy()) == made.labels.numpy()))
    assert 0.55 < accuracy < 0.99


def test_rejects():
    with pytest.raises(ConfigError, match="num_train"):
        digits(num_train=0)
    with pytest.raises(ConfigError, match="seed"):
        digits(seed=-1)
