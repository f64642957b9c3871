"""What data modules of image-text pairs share: classes, pairs, and the network for which both are prepared."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch.utils.data import ConcatDataset, Subset

from fcco_lightning.checks import at_least, fraction, list_of, made_of, one_of
from fcco_lightning.data.batches import BatchPlan, Sampling, UniformBatches
from fcco_lightning.data.columns import did_you_mean, listed
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.fingerprint import contents_of_images
from fcco_lightning.data.images import MOST_PIXELS, Images, augmentation, image_transform
from fcco_lightning.data.pairs import PairTable, read_pairs
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.clip_config import CLIPConfig, clip_config, tokenizer

_AUGMENT = {"scale": (0.9, 1.0), "hflip": 0.0, "color_jitter": None}  # as in the training of open_clip
_CROP_MODES: dict[str, Literal["center", "squash", "border"]] = {
    "shortest": "center",
    "squash": "squash",
    "longest": "border",
}
_IMAGE_FORMAT = ("image_size", "mean", "std", "interpolation", "resize_mode")


@dataclass(frozen=True)
class Classes:
    """The classes of labelled images: which are to be learnt or protected from forgetting, and their names in texts.

    Args:
        target: classes to be learnt.
        label: column with the classes.
        protected: classes that must not be forgotten, each a task; None for all but ``target``, [] for none.
        known: classes to be distinguished, in this order; images of other classes are left out.  None for all classes
            of the training images, sorted.
        names: class -> its name in prompts and captions; other classes have their names in the table.
        templates: prompts of a class, each with one {} for its name; their embeddings are averaged.  In training all
            prompts of all classes go through the text tower in every step, unless it is frozen.  None for
            "a photo of a {}.".
        caption_templates: captions of the images of a class, each with one {}, of which one is drawn anew in every
            epoch; None for ``templates``.
        augment: random crops of the protected training images, as ``augment`` of :class:`Pairs`; evaluation uses the
            images without crops.

    Raises:
        ConfigError: if a class is named twice, is in both ``target`` and ``protected``, or is not among ``known``; or
            if a template does not have exactly one {}.
    """

    target: list[str]
    label: str = "label"
    protected: list[str] | None = None
    known: list[str] | None = None
    names: dict[str, str] | None = None
    templates: list[str] | None = None
    caption_templates: list[str] | None = None
    augment: bool | dict[str, Any] = False

    def __post_init__(self) -> None:
        augmentation("classes.augment", self.augment)
        lists = {"target": self.target, "protected": self.protected, "known": self.known}
        for argument, value in lists.items():
            if value is not None:
                object.__setattr__(self, argument, _distinct(f"classes.{argument}", value))
        shared = [name for name in self.target if name in (self.protected or [])]
        if shared:
            raise ConfigError(f"target and protected share {shared}: a class is either to be learnt or to be kept.")
        for argument in ("templates", "caption_templates"):
            if (templates := getattr(self, argument)) is not None:
                _check_templates(f"classes.{argument}", templates)
        missing = [] if self.known is None else [name for name in self.mentioned if name not in self.known]
        if missing:
            raise ConfigError(
                f"classes.known={self.known} lacks {missing}, which target, protected or names mention. Add them."
            )

    @property
    def mentioned(self) -> list[str]:
        """The classes in ``target``, ``protected`` and ``names``."""
        return [*self.target, *(self.protected or []), *(self.names or {})]

    def prompts_of(self, name: str) -> list[str]:
        """Return the prompts of a class."""
        return self._filled(["a photo of a {}."] if self.templates is None else self.templates, name)

    def captions_of(self, name: str) -> list[str]:
        """Return the captions of images of a class."""
        return self.prompts_of(name) if self.caption_templates is None else self._filled(self.caption_templates, name)

    def found_in(self, labels: Mapping[str, pd.Series]) -> tuple[list[str], list[str]]:
        """Return the names of the classes 0..C-1, and of the protected classes among them.

        Args:
            labels: split -> labels of its images, as text; "train" is required.

        Raises:
            DataError: if a class of :attr:`mentioned` or ``known`` has no images, a target or protected class has no
                training images, or there are fewer than two classes.
        """
        classes = self.known or sorted(labels["train"].unique())
        present = sorted(set().union(*(column.unique() for column in labels.values())))
        for name in [*classes, *self.mentioned]:
            if name not in present:
                raise DataError(
                    f"No labelled image is of class {name!r}.{did_you_mean(name, present)} The classes are "
                    f"{listed(present)}."
                )
        if len(classes) < 2:
            raise DataError(f"label={self.label!r} must have at least two classes, got {classes}.")
        others = [name for name in classes if name not in self.target]
        protected = others if self.protected is None else self.protected
        if absent := [name for name in [*self.target, *protected] if name not in classes]:
            raise DataError(f"The classes of the training images {listed(classes)} lack {absent}.")
        return classes, protected

    def _filled(self, templates: Sequence[str], name: str) -> list[str]:
        return [template.replace("{}", (self.names or {}).get(name, name)) for template in templates]


@dataclass(frozen=True)
class Architecture:
    """The network for which images and texts are prepared, by arguments of :class:`CLIPModel`.

    Args:
        name: the network's ``name``: a model of open_clip ("ViT-B-16"), "tiny", or the path of a .json file.
        pretrained: tag of pretrained weights of open_clip, which determines the normalisation of images; None for the
            model's default.
    """

    name: str = "ViT-B-16"
    pretrained: str | None = None

    @cached_property
    def config(self) -> CLIPConfig:
        """The format of images and texts that the network expects."""
        return clip_config(self.name, self.pretrained)

    def transform(self, *, augment: bool | dict[str, Any]) -> Any:
        """Return the transform from images to tensors; ``augment`` is as in :class:`Pairs`."""
        random = augment if augment is False else _AUGMENT | (augment if isinstance(augment, dict) else {})
        config = self.config
        return image_transform(
            config.image_size,
            config.mean,
            config.std,
            augment=random,
            crop_pct=1.0,
            interpolation=config.interpolation,
            crop_mode=_CROP_MODES[config.resize_mode],
        )


@dataclass(frozen=True)
class Pairs:
    """Image-text pairs for training.

    Args:
        sources: one source of :func:`read_pairs` or a list of them; a list of .tar files only is one source.  None for
            no pairs except those of labelled images.
        image_column: column of the images; None searches for it.
        caption_column: column of the captions; None searches for it.
        limit: maximal number of pairs from ``sources``, drawn at random.
        of_target: whether the training images of the target classes become pairs, too.
        of_others: share in [0, 1] of the training images of every other class that become pairs, too, with captions
            made in the same way.  All images of a class have the same captions, so a contrastive loss needs pairs of
            other classes to learn what distinguishes it.
        augment: True for random crops as in the training of open_clip (0.9 to 1 of the area); a mapping changes
            arguments of ``timm.data.create_transform``; False for the centre crop.
        corrupt: "error" refuses missing or unreadable images, "skip" leaves them out of their batch.
        allow_outside: whether a table may name files outside its folder.
        most_pixels: images with more pixels count as unreadable; an image of 67 million pixels takes 200 MB.

    Raises:
        ConfigError: if an argument is out of range.
    """

    sources: str | list[Any] | Any | None = None
    image_column: str | None = None
    caption_column: str | None = None
    limit: int | None = None
    of_target: bool = True
    of_others: float = 0.0
    augment: bool | dict[str, Any] = True
    corrupt: Literal["error", "skip"] = "error"
    allow_outside: bool = False
    most_pixels: int = MOST_PIXELS

    def __post_init__(self) -> None:
        augmentation("pairs.augment", self.augment)
        at_least("pairs.most_pixels", self.most_pixels, 1)
        if self.of_others != 0:
            fraction("pairs.of_others", self.of_others)
        if self.limit is not None:
            at_least("pairs.limit", self.limit, 1)
        one_of("pairs.of_target", self.of_target, (True, False))
        one_of("pairs.corrupt", self.corrupt, ("error", "skip"))

    @property
    def each(self) -> list[Any]:
        """The sources one by one."""
        pairs = self.sources
        if pairs is None:
            return []
        if not isinstance(pairs, (list, tuple)):
            return [pairs]
        shards = [isinstance(source, (str, Path)) and str(source).endswith(".tar") for source in pairs]
        return [list(pairs)] if shards and all(shards) else list(pairs)

    def read(self, source: Any) -> tuple[Images, Any]:
        """Return the images and the captions of one source."""
        return read_pairs(source, self.image_column, self.caption_column, allow_outside=self.allow_outside)


class CLIPDataModule(SplitDataModule):
    """Image-text pairs that are prepared for a CLIP model; subclasses say what is evaluated.

    Args:
        pairs: the image-text pairs.
        model: the network for which images and texts are prepared.
        pair_seed: seed of the pairs that ``pairs.limit`` keeps.
        batches: how mini-batches of pairs are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        **loading: ``seed`` (also of augmentation and captions), ``num_workers`` (of every loader), ``eval_train`` and
            ``allow_changed``, see :class:`SplitDataModule`.

    Attributes:
        image_size, mean, std, interpolation, resize_mode, context_length, vocab_size: how images and texts are
            prepared, see :class:`~fcco_lightning.models.clip_config.CLIPConfig`.
    """

    _pairs = "train"
    """The table of the pairs, which are trained on and never evaluated."""

    def __init__(
        self,
        pairs: Pairs,
        model: Architecture,
        pair_seed: int,
        *,
        batches: Sampling,
        eval_batch_size: int = 256,
        **loading: Any,
    ) -> None:
        made_of("model", model, Architecture)
        super().__init__(batches=batches, eval_batch_size=eval_batch_size, **loading)
        self.pairs, self.eval_workers = made_of("pairs", pairs, Pairs), self.num_workers
        for name in (*_IMAGE_FORMAT, "context_length", "vocab_size"):
            setattr(self, name, getattr(model.config, name))
        self._pair_seed, self._tokenizer = pair_seed, tokenizer(model.config)
        self._eval_transform = model.transform(augment=False)
        self._train_transform = model.transform(augment=pairs.augment)
        self._contents: dict[str, str] = {}  # digests of the training images

    def prepare_data(self) -> None:
        """Download data from the hub and fill the caches of ``datasets`` once, before all processes read them."""
        for source in self._sources():
            if isinstance(source, (str, list)):
                self.pairs.read(source)

    def _sources(self) -> list[Any]:
        """Return all sources of pairs."""
        return self.pairs.each

    def _read_pairs(self) -> tuple[list[Any], list[Any]]:
        """Return the images, in one or several parts, and the captions of the pairs that ``pairs.limit`` keeps."""
        parts = [self.pairs.read(source) for source in self.pairs.each]
        for number, (pictures, _) in enumerate(parts):
            self._contents |= contents_of_images(pictures, f"the images of pairs.sources[{number}]")
        images: list[Any] = [pictures for pictures, _ in parts]
        captions = list(chain.from_iterable(texts for _, texts in parts))
        if self.pairs.limit is None or self.pairs.limit >= len(captions):
            return images, captions
        order = torch.randperm(len(captions), generator=torch.Generator().manual_seed(self._pair_seed))
        rows = order[: self.pairs.limit].sort().values.tolist()
        return [Subset(ConcatDataset(images), rows)], [captions[row] for row in rows]

    def _pair_table(self, images: Any, captions: Sequence[Any], *, training: bool) -> PairTable:
        """Return a table of pairs, which are augmented in training."""
        return PairTable(
            images,
            captions,
            self._train_transform if training else self._eval_transform,
            self._tokenizer,
            seed=self.seed if training and self.pairs.augment is not False else None,
            caption_seed=self.seed,
            corrupt=self.pairs.corrupt,
            most_pixels=self.pairs.most_pixels,
            evaluation=self._eval_transform,
            option="pairs.corrupt",
        )

    @property
    def num_train(self) -> int:
        """Number of training pairs, which is the number of rows of a dual state with a row for every sample."""
        return len(self._table(self._pairs))

    def _splits(self) -> list[str]:
        return [name for name in super()._splits() if name != self._pairs]

    def _plans(self, world_size: int) -> dict[str, tuple[str, BatchPlan]]:
        plan = self.batches.plan(self._table(self._pairs).columns, self.seed, world_size)
        if isinstance(plan, UniformBatches) and plan.smallest == 1 < plan.batch_size:
            raise DataError(
                f"batches.drop_last=false leaves a last batch of one pair, {plan.num_rows} pairs being drawn "
                f"{plan.batch_size} at a time (by all processes). Set it to true, or change batches.batch_size."
            )
        return self._plans_of("target", self._pairs, self.batches, plan)

    def _image_format(self) -> tuple[Any, ...]:
        """Return the settings that determine the images in evaluation."""
        return tuple(getattr(self, name) for name in _IMAGE_FORMAT)

    def _batch_settings(self) -> tuple[Any, ...]:
        return *super()._batch_settings(), *self._image_format(), str(self.pairs.augment), self.pairs.corrupt


def _check_templates(argument: str, templates: Sequence[str]) -> None:
    invalid = [template for template in list_of(argument, templates) if template.count("{}") != 1]
    if not templates or invalid:
        raise ConfigError(
            f"{argument} must be a list of texts, each with one {{}} where the name of a class goes, got "
            f"{invalid or templates!r}."
        )


def _distinct(argument: str, names: Iterable[str]) -> list[str]:
    names = [str(name).strip() for name in list_of(argument, names)]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"{argument} names {repeated} more than once.")
    return names
