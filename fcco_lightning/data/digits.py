"""Handwritten digits as labelled images: a small image-text problem that needs no download."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fcco_lightning.checks import at_least
from fcco_lightning.data.splits import stratified_split

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEMPLATES = [
    "a photo of the digit {}.",
    "a handwritten {}.",
    "a {} written by hand.",
    "a scan of a {}.",
]
SIZE = 16
_HELD_OUT = 0.3
_NUMBERS = {"train": 0, "test": 1, "val": 2}  # numbers of the random streams


class Digits(NamedTuple):
    """n images with their labels.

    Attributes:
        images: grey levels, shape (n, 16, 16), uint8.
        labels: the digits 0..9, shape (n,), int64.
        handwritings: which of the 1797 digits an image was made from, shape (n,), int64.
    """

    images: Tensor
    labels: Tensor
    handwritings: Tensor


def digits(num_train: int = 6000, num_test: int = 3000, seed: int = 0, num_val: int = 0) -> dict[str, Digits]:
    """Make training and test images from the 1797 handwritten digits of 8 x 8 pixels that come with scikit-learn.

    Every image is one of the digits, enlarged to 16 x 16 pixels, turned by up to 15 degrees, scaled by 0.85 to 1.15,
    shifted by up to 1.5 pixels, changed in contrast (0.6 to 1) and covered with noise of standard deviation 0.06.  The
    test images are made from 30 % of the digits of every class, validation images, if any, from 30 % of the others, and
    the training images from the rest, so that no handwriting is in two splits.

    Args:
        num_train: number of training images, divided as evenly as possible among the ten classes.
        num_test: number of test images, divided likewise.
        seed: equal seeds give equal images.
        num_val: number of validation images, divided likewise; 0 for none.

    Returns:
        The images of "train", "val" (if there are any) and "test", whose classes alternate 0, 1, ..., 9, 0, ....

    Source:
        E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.

    Example:
        >>> made = digits(num_train=20, num_test=10)
        >>> made["train"].images.shape, made["test"].labels.tolist()
        (torch.Size([20, 16, 16]), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    from sklearn.datasets import load_digits  # noqa: PLC0415  (slow to import)

    bunch = load_digits()
    shapes = torch.from_numpy(bunch.images / 16.0).float()
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    train, test = stratified_split(labels, _HELD_OUT, seed, "test share")
    parts = {"train": train, "test": test}
    if num_val:
        fitted, held_out = stratified_split(labels[train], _HELD_OUT, seed, "validation share")
        parts = {"train": train[fitted], "val": train[held_out], "test": test}
    sizes = {"train": at_least("num_train", num_train, 1), "test": at_least("num_test", num_test, 1)}
    sizes |= {"val": at_least("num_val", num_val, 0)}
    digit_sets = {}
    for name, rows in parts.items():
        # SeedSequence mixes the pair: seed + number would make the test images of seed 0 the training ones of seed 1.
        mixed = np.random.SeedSequence([at_least("seed", seed, 0), _NUMBERS[name]]).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(mixed))
        new_labels = torch.arange(sizes[name]) % len(NAMES)
        sources = torch.empty_like(new_labels)
        for label in range(len(NAMES)):
            members, slots = rows[labels[rows] == label], (new_labels == label).nonzero().flatten()
            sources[slots] = members[torch.randint(len(members), (len(slots),), generator=generator)]
        digit_sets[name] = Digits(_varied(shapes[sources], generator), new_labels, sources)
    return digit_sets


def _varied(shapes: Tensor, generator: torch.Generator) -> Tensor:
    """Return one variation of each of n shapes (n, 8, 8) with values in [0, 1] as grey levels (n, 16, 16), uint8."""
    n = len(shapes)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator)

    angle, scale = uniform(-math.pi / 12, math.pi / 12), uniform(0.85, 1.15)
    reach = 2 * 1.5 / SIZE  # in the coordinates of affine_grid an image has width 2
    shift = torch.stack([uniform(-reach, reach), uniform(-reach, reach)], dim=1)
    rotation = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).reshape(n, 2, 2)
    places = torch.cat([rotation / scale[:, None, None], shift[:, :, None]], dim=2)
    grid = F.affine_grid(places, [n, 1, SIZE, SIZE], align_corners=False)
    images = F.grid_sample(shapes[:, None], grid, align_corners=False)[:, 0] * uniform(0.6, 1.0)[:, None, None]
    images = images + 0.06 * torch.randn(images.shape, generator=generator)
    return images.clamp(0, 1).mul(255).round().byte()
