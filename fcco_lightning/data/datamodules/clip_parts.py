"""Settings of data modules of image-text pairs: classes, pairs, and the network for which both are prepared."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from fcco_lightning.checks import at_least, fraction, list_of, one_of
from fcco_lightning.data.batches import BatchPlan, UniformBatches
from fcco_lightning.data.columns import listed
from fcco_lightning.data.images import MOST_PIXELS, Images, augmentation, image_transform
from fcco_lightning.data.pairs import read_pairs
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.clip_config import CLIPConfig, clip_config

_AUGMENT = {"scale": (0.9, 1.0), "hflip": 0.0, "color_jitter": None}  # as in the training of open_clip
_CROP_MODES: dict[str, Literal["center", "squash", "border"]] = {
    "shortest": "center",
    "squash": "squash",
    "longest": "border",
}


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
                close = difflib.get_close_matches(name, present, n=1, cutoff=0.5)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise DataError(f"No labelled image is of class {name!r}.{hint} The classes are {listed(present)}.")
        if len(classes) < 2:
            raise DataError(f"label={self.label!r} must have at least two classes, got {classes}.")
        others = [name for name in classes if name not in self.target]
        protected = others if self.protected is None else self.protected
        absent = [name for name in [*self.target, *protected] if name not in classes]
        if absent:
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

    def drawn(self, size: int, seed: int) -> list[int] | None:
        """Return the positions of the pairs, out of ``size``, that ``limit`` keeps, in order; None for all."""
        if self.limit is None or self.limit >= size:
            return None
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        rows: list[int] = order[: self.limit].sort().values.tolist()
        return rows

    def read(self, source: Any) -> tuple[Images, Any]:
        """Return the images and the captions of one source."""
        return read_pairs(source, self.image_column, self.caption_column, allow_outside=self.allow_outside)


def require_two(plan: BatchPlan) -> None:
    """Raise :class:`DataError` if a batch of pairs would hold a single one."""
    if isinstance(plan, UniformBatches) and plan.smallest == 1 < plan.batch_size:
        raise DataError(
            f"batches.drop_last=false leaves a last batch of one pair, {plan.num_rows} pairs being drawn "
            f"{plan.batch_size} at a time (by all processes): there is nothing to contrast it with. Set "
            "batches.drop_last=true, or another batches.batch_size."
        )


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
