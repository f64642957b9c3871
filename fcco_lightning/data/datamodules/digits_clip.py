"""Continual learning of digits: a small problem with pairs and protected tasks that needs no download."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, fraction, list_of, made_of, one_of
from fcco_lightning.data import digits as digit_images
from fcco_lightning.data.batches import Sampling, UniformSampling
from fcco_lightning.data.columns import ROW, listed, require_columns
from fcco_lightning.data.datamodules.clip_parts import Architecture, Classes, Pairs
from fcco_lightning.data.datamodules.continual_clip import ContinualCLIPDataModule
from fcco_lightning.data.datamodules.labelled import LabelledImages
from fcco_lightning.data.fingerprint import digest_of
from fcco_lightning.data.images import FilesIn, augmentation, read_image_dataset
from fcco_lightning.errors import ConfigError, DataError


@dataclass(frozen=True)
class DigitImages:
    """How many images of digits are made by :func:`fcco_lightning.data.digits.digits`, or drawn from a data set.

    Args:
        num_train: number of training images, at least 10.
        num_test: number of test images, at least 10.
        seed: seed of the images, or of the random split of the images of ``source``.
        num_val: number of validation images, of handwritings that are in no other split, 0 or at least 10.  It changes
            the handwritings of the training images, so pretrain with the same number.
        source: a data set of ``datasets`` with columns ``image`` and ``label`` (0..9), such as MNIST: a .parquet file,
            a folder of ``save_to_disk`` or a hub id.  Its images are not changed; for 28 x 28 pixels there is the model
            "tiny-28".  None for images made from the digits that come with scikit-learn.
        augment: random crops of the training images, both of pairs and of protected tasks, as ``augment`` of
            :class:`Pairs`.

    Raises:
        ConfigError: if a number is out of range.
    """

    num_train: int = 6000
    num_test: int = 3000
    seed: int = 0
    num_val: int = 0
    source: str | None = None
    augment: bool | dict[str, Any] = field(default=False, repr=False)  # no part of the images' identity

    def __post_init__(self) -> None:
        augmentation("digits.augment", self.augment)
        at_least("digits.num_train", self.num_train, 10)
        at_least("digits.num_test", self.num_test, 10)
        at_least("digits.seed", self.seed, 0)
        at_least("digits.num_val", self.num_val, 10 if self.num_val else 0)

    def read(self) -> tuple[pd.DataFrame, Any]:
        """Return the digit, the handwriting, the split and the position of every image, and the images.

        Raises:
            DataError: if ``source`` has too few images, or labels other than 0..9.
        """
        sizes = {"test": self.num_test, "val": self.num_val, "train": self.num_train}
        if self.source is None:
            parts = digit_images.digits(self.num_train, self.num_test, self.seed, self.num_val)
            frames = [
                pd.DataFrame({"digit": part.labels, "handwriting": part.handwritings, "split": split})
                for split, part in parts.items()
            ]
            frame = pd.concat(frames, ignore_index=True)
            return frame.assign(**{ROW: range(len(frame))}), torch.cat([part.images for part in parts.values()]).numpy()
        frame, images = read_image_dataset(self.source, "image")
        require_columns(frame, {"the label": ["label"]}, f"digits.source={self.source!r}")
        total = sum(sizes.values())
        if total > len(frame) or not frame["label"].isin(range(10)).all():
            raise DataError(
                f"digits.source={self.source!r} has {len(frame)} images with labels {listed(frame['label'].unique())}. "
                f"Needed are labels 0 to 9, and num_train + num_val + num_test = {total} images: ask for fewer."
            )
        rows = np.random.default_rng(self.seed).permutation(len(frame))[:total]
        facts = {"digit": frame["label"].to_numpy()[rows], "handwriting": rows, ROW: rows}
        return pd.DataFrame(facts | {"split": np.repeat(list(sizes), list(sizes.values()))}), FilesIn(images, "")


class DigitsCLIPDataModule(ContinualCLIPDataModule):
    """A small continual learning problem: learn digits that pretraining hardly saw, without forgetting the others.

    The images are those of :func:`fcco_lightning.data.digits.digits`, with captions such as "a handwritten seven."; the
    classes are "zero" to "nine".  In the stage "pretrain" the pairs are all images of the other digits and a few of the
    target digits, and nothing is protected.  In the stage "continual" the pairs are all images of the target digits and
    a few of the others, and every other digit is a protected task.

    Images made from the same original digit are not independent: the column ``handwriting`` has its number, for
    ``--feasible.clusters handwriting``.  With ``digits.source`` every image counts as a handwriting of its own.

    Args:
        stage: "pretrain" or "continual".
        target: digits 0..9 to be learnt.
        protected: digits that must not be forgotten in the stage "continual"; None for all but ``target``.
        rare: share of the target digits' images that are pairs in the stage "pretrain", in [0, 1].
        general: share of the other digits' images that are pairs in the stage "continual", in [0, 1].
        digits: the number and the source of the images.
        model: the network for which images and texts are prepared.
        batches: how mini-batches of pairs are drawn.
        **loading: ``task_batches``, ``eval_batch_size``, ``eval_train``, ``seed``, ``num_workers`` and
            ``allow_changed``, see :class:`ContinualCLIPDataModule`.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def __init__(
        self,
        *,
        stage: Literal["pretrain", "continual"] = "continual",
        target: list[int] | None = None,
        protected: list[int] | None = None,
        rare: float = 0.02,
        general: float = 0.2,
        digits: DigitImages = DigitImages(),
        model: Architecture = Architecture("tiny"),  # noqa: B008
        batches: Sampling = UniformSampling(batch_size=64),  # noqa: B008
        **loading: Any,
    ) -> None:
        one_of("stage", stage, ("pretrain", "continual"))
        digits = made_of("digits", digits, DigitImages)
        for name, share in {"rare": rare, "general": general}.items():
            if share != 0:
                fraction(name, share)
        source = digits.source
        origin = LabelledImages(root="") if source is None else LabelledImages("datasets", source=source)
        protected_names = None if protected is None else _digit_names("protected", protected)
        super().__init__(
            model=model,
            images=origin,  # without a source the images are made
            classes=Classes(
                _digit_names("target", [7] if target is None else target),
                protected=[] if stage == "pretrain" else protected_names,
                known=list(digit_images.NAMES),
                templates=digit_images.TEMPLATES[:2],
                caption_templates=digit_images.TEMPLATES,
                augment=digits.augment,
            ),
            pairs=Pairs(augment=digits.augment),
            batches=batches,
            **loading,
        )
        self.stage, self.rare, self.general, self.digits = stage, rare, general, digits
        self._synthetic = digits.source is None

    def _read_labelled(self) -> tuple[pd.DataFrame, Any]:
        frame, images = self.digits.read()
        return frame.assign(**{self.classes.label: np.array(digit_images.NAMES)[frame.pop("digit")]}), images

    def _identity(self, images: Any, what: str) -> dict[str, str]:
        return {what: digest_of([str(self.digits)])} if self._synthetic else super()._identity(images, what)

    def _pairs_of_classes(self, y: Tensor) -> Tensor:
        shares = (self.rare, 1.0) if self.stage == "pretrain" else (1.0, self.general)
        rows = []
        for label, name in enumerate(self._class_names):
            members = (y == label).nonzero().flatten()
            rows.append(members[: round(shares[name not in self.target_names] * len(members))])
        return torch.cat(rows).sort().values


def _digit_names(argument: str, values: Sequence[int]) -> list[str]:
    invalid = [value for value in list_of(argument, values) if value not in range(10)]
    if invalid:
        raise ConfigError(f"{argument} must hold digits 0..9, got {invalid}.")
    return [digit_images.NAMES[value] for value in values]
