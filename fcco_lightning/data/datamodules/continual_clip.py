"""A data module of image-text pairs for training, and of labelled images of tasks that must not be forgotten."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset

from fcco_lightning.checks import made_of
from fcco_lightning.data.batches import (
    BatchPlan,
    GroupSampling,
    Sampling,
    UniformSampling,
)
from fcco_lightning.data.columns import ROW, listed, listed_in_order, places, require_columns, require_filled, text_of
from fcco_lightning.data.datamodules.clip_parts import Architecture, Classes, CLIPDataModule, Pairs
from fcco_lightning.data.datamodules.labelled import LabelledImages
from fcco_lightning.data.datamodules.samples import values_of
from fcco_lightning.data.fingerprint import TIMES, contents_of_images, digest_of
from fcco_lightning.data.images import FilesIn, ImageTable
from fcco_lightning.data.pairs import PairTable
from fcco_lightning.data.splits import PARTS, ImageSplits, stratified_split, whole_split
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError


class ContinualCLIPDataModule(CLIPDataModule):
    """Image-text pairs for the objective, and labelled images of target classes and of protected tasks.

    A task is a class of labelled images.  With protected tasks a training batch has two parts: "target" with ``x``
    (B, 3, S, S) float32, ``text`` (B, L) int64 and ``index`` (B,) int64 of pairs, and "protected" with ``x``, ``y``
    (class), ``task`` (0..m-1) and ``index`` of labelled images of the m tasks.  Without tasks a batch is the first part
    alone.  In evaluation batches ``task`` is -1 for target classes and -2 for classes that are neither.  ``index`` is
    the position in the table of pairs or in the split.

    Images are prepared as the model expects them, and images of pairs are augmented.  Constraints on protected tasks
    are measured on images without augmentation, unless ``classes.augment`` asks for crops: then the loss of a crop is
    compared with the old model's loss of the whole image.  This is stricter on the training images, and the constraints
    hold better on other images.

    Args:
        images: the source of the labelled images.
        classes: their classes: which are to be learnt or protected, and their names in texts.
        model: the network for which images and texts are prepared.
        pairs: the image-text pairs.
        splits: how the labelled images are split; its seed also draws the pairs that ``pairs.limit`` keeps.
        batches: how mini-batches of pairs are drawn.
        task_batches: how mini-batches of protected images are drawn, with tasks as groups: by default 8 images of every
            task in a batch of one process.  An epoch has as many batches as that of the pairs.
        **loading: ``eval_batch_size``, ``seed``, ``num_workers``, ``eval_train`` and ``allow_changed``, see
            :class:`CLIPDataModule`.

    Attributes:
        target_names: the target classes.
        task_names: the protected tasks, in the order of their numbers.
        left_out: split -> number of rows whose class is not among the known ones.

    Raises:
        ConfigError: from ``__init__`` if an argument is out of range, or arguments contradict each other.
        DataError: from ``setup`` if the data contradict the arguments.
    """

    _identifying = "pairs, images, classes and splits"
    _pairs = "pairs"

    def __init__(
        self,
        *,
        images: LabelledImages,
        classes: Classes,
        model: Architecture = Architecture(),  # noqa: B008 - frozen
        pairs: Pairs = Pairs(),  # noqa: B008
        splits: ImageSplits = ImageSplits(),  # noqa: B008
        batches: Sampling = UniformSampling(),  # noqa: B008
        task_batches: Sampling = GroupSampling(groups_per_batch=None),  # noqa: B008
        **loading: Any,
    ) -> None:
        self.splits = made_of("splits", splits, ImageSplits)
        super().__init__(pairs, model, splits.seed, batches=batches, **loading)
        self.origin, self.classes = made_of("images", images, LabelledImages), made_of("classes", classes, Classes)
        self.task_batches, self.target_names = made_of("task_batches", task_batches, Sampling), classes.target
        if images.corrupt == "blank":
            raise ConfigError("images.corrupt must be 'error' or 'skip' here, got 'blank': a black image has no class.")
        if splits.imbalance is not None:
            raise ConfigError(
                f"splits.imbalance={splits.imbalance!r} is a share of positives, which classes to be learnt or kept do "
                "not have. Leave it out."
            )
        self._crops = model.transform(augment=classes.augment)  # of protected images
        self.task_names: list[str] = []
        self.left_out: dict[str, int] = {}
        self._class_names: list[str] = []
        self._class_tokens = torch.empty(0, 0, 0, dtype=torch.int64)
        self._digests: dict[str, str] = {}
        self._captions: list[Any] = []  # of all pairs, if they are all the same

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes 0..C-1 in the table."""
        self._table("train")
        return self._class_names

    @property
    def class_tokens(self) -> Tensor:
        """Tokens of the T prompts of every class, shape (C, T, L), int64."""
        self._table("train")
        return self._class_tokens

    @property
    def group_names(self) -> list[str]:
        """The protected tasks."""
        self._table("train")
        return self.task_names

    def setup(self, stage: str | None = None) -> None:
        """Make all splits; refuse to train on pairs that all have the same captions.

        Raises:
            DataError: see :meth:`SplitDataModule.setup`; also if all pairs have the same captions.
        """
        super().setup(stage)
        if stage == "fit" and self._captions:
            caption = self._captions[0]
            captions = listed_in_order([caption] if isinstance(caption, str) else caption)
            raise DataError(
                f"All {self.num_train} pairs have the same captions, {captions}, as images of "
                "one class have, so a contrastive loss has nothing to learn from. Pass other pairs (pairs.sources), or "
                "make pairs of a share of the other classes' images (--data.pairs.of_others 0.2)."
            )

    def prepare_data(self) -> None:
        """Download data from the hub and fill the caches of ``datasets`` once, before all processes read them."""
        self.origin.prepare()
        super().prepare_data()

    def part_loaders(self, split: str) -> dict[str, DataLoader[Any]]:
        """Return loaders, in a fixed order, of the data of objective and constraints, by part of a training batch.

        Pairs are without augmentation and with the captions of epoch 0, so they are the same for a run and for its
        checkpoint.

        Args:
            split: "train", the only split with pairs.

        Raises:
            ConfigError: for another split.
        """
        if split != "train":
            raise ConfigError(
                f"the {split!r} split has labelled images only: pairs, on which the objective is measured, are in "
                "'train'. Take --diagnostics.split train."
            )
        labelled = {"protected": self._ordered("train")} if self.task_names else {}
        return {"target": self._ordered(self._pairs)} | labelled

    def add_columns(self, split: str, columns: Mapping[str, Tensor]) -> None:
        """Add columns to every batch of a split, such as the outputs of another model for its images.

        Args:
            split: "train", "val" or "test".
            columns: name -> tensor with first dimension n, in the order of ``index``.

        Raises:
            DataError: if a column does not have n rows, or its name is that of a column of the data module.
        """
        table = self._table(split)
        for name, column in columns.items():
            if len(column) != len(table) or name in {"x", "y", "task", "text", "index"}:
                raise DataError(
                    f"A column for {split} needs one row for each of its {len(table)} samples and a name of its own, "
                    f"got {name!r} with {len(column)} rows."
                )
        table.columns |= {name: column.contiguous() for name, column in columns.items()}

    def references(self) -> dict[str, str]:
        """Return split -> digest of its images, labels and tasks, and of the prompts of the classes.

        If the digest is equal, columns that were stored for :meth:`add_columns` belong to these samples.
        """
        prompts = [str(self.class_tokens.tolist()), str(self._image_format()), *self.class_names, "", *self.task_names]
        return {name: digest_of([*prompts, self._digests[name]]) for name in self._splits()}

    def _read_labelled(self) -> tuple[pd.DataFrame, Any]:
        """Return the columns of all labelled samples with their positions among the images, and the images."""
        frame, images = self.origin.read()
        return frame, FilesIn(images, self.origin.root or "")

    def _identity(self, images: Any, what: str) -> dict[str, str]:
        """Return digests that identify labelled images, which are called ``what``."""
        return contents_of_images(images, what)

    def _pairs_of_classes(self, y: Tensor) -> Tensor:
        """Return the positions of the training images that become pairs, given their classes ``y`` (n,)."""
        rows = [torch.empty(0, dtype=torch.int64)]
        for label, name in enumerate(self._class_names):
            members = (y == label).nonzero().flatten()
            share = float(self.pairs.of_target) if name in self.target_names else self.pairs.of_others
            count = round(share * len(members))
            rows.append(members[torch.arange(count) * len(members) // max(1, count)])  # spread evenly over the table
        return torch.cat(rows).sort().values

    def _make_tables(self) -> dict[str, TensorTable]:
        frame, images = self._read_labelled()
        require_columns(frame, {"label": [self.classes.label]}, "the labelled images")
        require_filled(frame[self.classes.label], "label", "the labelled images")
        parts = self._parts(frame)
        labels = {name: text_of(part[self.classes.label]) for name, part in parts.items()}
        self._class_names, self.task_names = self.classes.found_in(labels)
        tables: dict[str, TensorTable] = {
            name: self._image_table(name, part, places(self._class_names, labels[name]), images)
            for name, part in parts.items()
        }
        train = tables["train"]
        assert isinstance(train, ImageTable)  # noqa: S101  (made above)
        counts = [int((train.columns["task"] == task).sum()) for task in range(len(self.task_names))]
        if 0 in counts:
            raise DataError(
                f"The protected task {self.task_names[counts.index(0)]!r} has no training images. Leave it out of "
                "classes.protected."
            )
        prompts = [self.classes.prompts_of(name) for name in self._class_names]
        self._class_tokens = torch.stack([self._tokenizer(texts) for texts in prompts])
        return {**tables, self._pairs: self._all_pairs(train)}

    def _image_table(self, name: str, part: pd.DataFrame, y: Tensor, images: Any) -> ImageTable:
        """Return the table of the images of a split whose class ``y`` (n,) is known; -1 stands for other classes."""
        labelled = (y >= 0).nonzero().flatten()
        if len(labelled) == 0:
            raise DataError(f"None of the {name} images is of the classes {listed(self._class_names)}.")
        self.left_out[name], y, frame = len(y) - len(labelled), y[labelled], part.iloc[labelled.tolist()]
        self._rows[name] = frame.drop(columns=ROW).reset_index(drop=True)
        subset: Any = Subset(images, frame[ROW].tolist())
        identity = self._identity(subset, "the labelled images")
        if name == "train":
            self._contents |= identity
        lasting = [digest for what, digest in identity.items() if not what.startswith(TIMES)]
        self._digests[name] = digest_of([*lasting, str(y.tolist())])
        numbers = {name: i for i, name in enumerate(self.task_names)} | dict.fromkeys(self.target_names, -1)
        task_of = torch.tensor([numbers.get(name, -2) for name in self._class_names])
        crops = name == "train" and self.classes.augment is not False
        return ImageTable(
            subset,
            {"y": y, "task": task_of[y]},
            self._crops if crops else self._eval_transform,
            seed=self.seed if crops else None,
            corrupt=self.origin.corrupt,
            most_pixels=self.origin.most_pixels,
            evaluation=self._eval_transform,
            option="images.corrupt",
            alternatives=("skip",),
        )

    def _parts(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return the rows of every split."""
        parts = {name: rows for name, (rows, _) in self.splits.parts(frame, "labelled images").items()}
        for name, (share, argument) in self.splits.held_out.items():
            train = parts["train"]
            labels, seed = text_of(train[self.classes.label]), self.splits.seed
            kinds = places(sorted(labels.unique()), labels)
            units = values_of(self.splits.whole or self.origin.whole, train)
            if units is None:
                rest, held_out = stratified_split(kinds, share, seed, argument, both_sides=True)
            else:
                rest, held_out = whole_split(units, share, seed, argument, kinds)
            parts |= {"train": train.iloc[rest.tolist()], name: train.iloc[held_out.tolist()]}
        return {name: parts[name].reset_index(drop=True) for name in PARTS if name in parts}

    def _all_pairs(self, train: ImageTable) -> PairTable:
        """Return the table of all pairs: first those of the sources, then those made of labelled images."""
        images, captions = self._read_pairs()
        labelled = self._pairs_of_classes(train.columns["y"])
        class_captions = [self.classes.captions_of(name) for name in self._class_names]
        captions += [class_captions[y] for y in train.columns["y"][labelled].tolist()]
        if not captions:
            raise DataError(
                f"There are no pairs to learn from: pairs.sources={self.pairs.sources} gives none, and no training "
                f"image of the target classes {self.target_names} becomes one. Pass sources, or name a target class "
                "and leave pairs.of_target on."
            )
        self._captions = captions if all(caption == captions[0] for caption in captions) else []
        texts = [text for caption in captions for text in ([caption] if isinstance(caption, str) else caption)]
        self._digests[self._pairs] = digest_of([str(len(captions)), *texts])
        union: Any = ConcatDataset([*images, Subset(train.images, labelled.tolist())])
        return self._pair_table(union, captions, training=True)

    def _plans(self, world_size: int) -> dict[str, tuple[str, BatchPlan]]:
        parts = super()._plans(world_size)
        if not self.task_names:
            return parts
        columns = self._table("train").columns
        rows = (columns["task"] >= 0).nonzero().flatten()
        protected = {"group": columns["task"][rows], "y": columns["y"][rows], "index": torch.arange(len(rows))}
        sampling = self.task_batches.with_num_batches(parts["target"][1].num_batches)
        try:
            of_tasks = sampling.plan(protected, self.seed, world_size).of_rows(rows, len(columns["task"]))
        except (ConfigError, DataError) as error:
            tasks = dict(zip(self.task_names, torch.bincount(protected["group"]).tolist(), strict=True))
            raise type(error)(f"task_batches: {error} The groups are the protected tasks: {tasks}.") from error
        return parts | self._plans_of("protected", "train", self.task_batches, of_tasks)

    def _summary(self) -> str:
        table, train = self._table(self._pairs), self._table("train").columns["task"]
        sizes = [int((train == k).sum()) for k in range(len(self.task_names))]
        tasks = ", ".join(f"{name} ({size})" for name, size in zip(self.task_names, sizes, strict=True)) or "none"
        return (
            f"{len(table)} pairs; target {', '.join(self.target_names) or 'none'} ({int((train == -1).sum())} training "
            f"images); protected {tasks}; {sum(self.left_out.values())} images of other classes left out."
        )

    def _image_format(self) -> tuple[Any, ...]:
        return *super()._image_format(), self.origin.corrupt

    @property
    def _joined(self) -> bool:
        return True

    def _batch_settings(self) -> tuple[Any, ...]:
        return *super()._batch_settings(), self.task_batches, str(self.classes.augment)

    def _fingerprint(self) -> dict[str, Any]:
        """Sizes, and a digest of the captions, of all names and of the labelled training images in their order."""
        digests = self._digests[self._pairs], self._digests["train"]
        return {
            "pairs": self.num_train,
            "rows": len(self._table("train")),
            "classes": self.num_classes,
            "tasks": len(self.task_names),
            "digest": digest_of([*self.class_names, "", *self.task_names, *digests]),
            "contents": self._contents,
        }
