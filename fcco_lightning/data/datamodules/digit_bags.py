"""Bags of digits: a small problem of multi-instance learning that needs no download."""

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.digits import Digits, digits
from fcco_lightning.data.sampling import BagSampling, Sampling


class DigitBagsDataModule(TensorDataModule):
    """Bags of images of digits, of which those are positive that hold a nine.

    The images are those of :func:`fcco_lightning.data.digits.digits`, equally many of every digit, divided at random
    among the bags.  An instance is one of them: batches have ``x`` (B, 256) float32, grey levels of mean about 0
    and variance about 1, ``bag`` (B,), ``y`` (B,), the label of the bag, and ``index`` (B,).

    Args:
        num_train: number of training bags.
        num_test: number of test bags.
        bag_size: number of images in a bag; of 8, 57% are positive.
        data_seed: seed of the images and the bags.
        batches: how training instances are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.

    Raises:
        ConfigError: if a number is out of range.
    """

    _made = True

    def __init__(
        self,
        num_train: int = 400,
        num_test: int = 400,
        *,
        bag_size: int = 8,
        data_seed: int = 0,
        batches: Sampling = BagSampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        at_least("bag_size", bag_size, 1)
        train, test = at_least("num_train", num_train, 1) * bag_size, at_least("num_test", num_test, 1) * bag_size
        generator = torch.Generator().manual_seed(data_seed)
        super().__init__(
            {split: _bags(part, bag_size, generator) for split, part in digits(train, test, data_seed).items()},
            batches=batches,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )


def _bags(images: Digits, size: int, generator: torch.Generator) -> dict[str, Tensor]:
    order = torch.randperm(len(images.labels), generator=generator)
    positive = (images.labels[order] == 9).view(-1, size).any(1).long()
    bag = torch.arange(len(order)) // size
    return {"x": (images.images[order].flatten(1) / 255 - 0.2) / 0.3, "bag": bag, "y": positive[bag]}
