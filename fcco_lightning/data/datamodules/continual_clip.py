"""Image-text pairs to learn from, and labelled images of tasks that must not be forgotten, for Lightning."""

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor
from torch.utils.data import DataLoader

from fcco_lightning.checks import at_least, fraction
from fcco_lightning.data import digits as digit_images
from fcco_lightning.data.columns import listed, require_columns, require_filled, text_of
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.datamodules.labelled import ROW, LabelledImages, checked_fractions, parts_of
from fcco_lightning.data.images import ImageTable, image_transform
from fcco_lightning.data.loader import ResumableLoader
from fcco_lightning.data.pairs import FilesIn, Joined, PairTable, read_pairs
from fcco_lightning.data.plans import BatchPlan, GroupBatches, RowsOf, UniformBatches
from fcco_lightning.data.splits import stratified_split
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.clip_config import clip_config, tokenizer

_PAIRS = "pairs"  # the table that is trained on and never evaluated
_AUGMENT = {"scale": (0.9, 1.0), "hflip": 0.0, "color_jitter": None}  # what open_clip trains with
_CROP_MODES: dict[str, Literal["center", "squash", "border"]] = {
    "shortest": "center",
    "squash": "squash",
    "longest": "border",
}
_LOOKED_AT = 64  # images whose contents tell a data set without file names from others


class ContinualCLIPDataModule(SplitDataModule):
    """Image-text pairs for the objective, and labelled images of target classes and of protected tasks.

    A task is a class of labelled images.  With protected tasks a training batch has two parts: "target" with ``x``
    (B, 3, S, S) float32, ``text`` (B, L) int64 and ``index`` (B,) int64 of pairs, and "protected" with ``x``, ``y``
    (class), ``task`` (0..m-1) and ``index`` of ``samples_per_task`` images of each of ``tasks_per_batch`` tasks.
    Without, a batch is the first part alone.  In evaluation batches ``task`` is -1 for target classes and -2 for
    classes that are neither.  ``index`` is the position in the table of pairs or in the split.

    Images are prepared as the model expects them.  Only those of pairs are augmented: what is protected is measured on
    the images as they are.

    Args:
        model: architecture that images and texts are prepared for, as the network's ``name``: a model of open_clip
            ("ViT-B-16"), "tiny", or the path of a .json file.
        pretrained: tag of open_clip whose way of normalising images is taken; None for the usual one of the model.
        pairs: sources of image-text pairs, one or a list, each as :func:`read_pairs` reads them; a list of nothing but
            .tar files is one source.
        pair_image_column: column of the images of ``pairs``; None looks for one.
        caption_column: column of their captions; None looks for one.
        limit_pairs: take at most this many of ``pairs``, drawn at random.
        root: folder of the labelled images; for every layout but "datasets".
        layout: "folder" (images and metadata.csv), "bdd100k", "celeba", "camelyon17" (as distributed, see
            :mod:`fcco_lightning.data.layouts`) or "datasets".
        source: for "datasets" only: a ``datasets.Dataset`` or ``DatasetDict``, a folder written by ``save_to_disk``, or
            a hub id "owner/name" or "owner/name:split".
        label: column of the classes.
        metadata: for "folder": name of its table, .csv or .parquet.
        file_column: for "folder": column of the files.
        image_column: for "datasets": column of the images.
        split_by: "column" takes the column ``split`` of the layout, which must have "train" and "test"; "fractions"
            splits every class at random.
        fractions: shares of training, validation (may be 0) and test, of sum 1; None for 0.8, 0.1, 0.1.
        split_seed: seed of the random split, and of what ``limit_pairs`` draws.
        limit: take only the first labelled rows (of every part of the column), for a quick try.
        classes: classes to tell apart, in this order; images of others are left out.  None for all classes of the
            training images, sorted.
        class_names: class -> what it is called in prompts and captions; others are called as in the table.
        templates: prompts of a class, each with one {} for its name; their embeddings are averaged.  In training all
            prompts of all classes go through the text tower in every step, unless it is frozen.
        target: classes to be learnt.
        protected: classes to be kept, each a task; None for all but ``target``, [] for none.
        target_pairs: whether the training images of ``target`` become pairs as well.
        caption_templates: captions of these, each with one {}, one drawn anew in every epoch; None for ``templates``.
        batch_size: pairs in a training batch of one process.
        tasks_per_batch: protected tasks in a training batch (B1); None for all of them.
        samples_per_task: images of each of them in a training batch of one process (B2).
        num_batches: training batches of an epoch; None for as many as hold every pair once.
        augment: random crops of pairs as open_clip trains with (0.9 to 1 of the area); a mapping changes arguments of
            ``timm.data.create_transform``; False trains on the centre crop.
        corrupt: "error" refuses missing or unreadable images, "skip" leaves them out of their batch.
        eval_batch_size: rows in an evaluation batch of one process.
        eval_train: whether validation goes through the labelled training images too (if there are others).
        seed: seed of the training batches, the augmentation and the choice of captions.
        num_workers: worker processes of every loader.

    Attributes:
        image_size: pixels S of a side of ``x``.
        mean: what is subtracted of the channels of ``x``.
        std: what they are divided by afterwards.
        interpolation: how images are resized.
        resize_mode: what becomes of images that are not square, in open_clip's words.
        context_length: tokens L of a text.
        vocab_size: number of token ids.
        target_names: the target classes.
        task_names: the protected tasks, in the order of their numbers.
        left_out: split -> rows of classes that are not listed.

    Raises:
        ConfigError: from ``__init__`` if an argument is out of range, or arguments contradict each other.
        DataError: from ``setup`` if the data are not what the arguments announce.
    """

    def __init__(
        self,
        *,
        model: str = "ViT-B-16",
        pretrained: str | None = None,
        pairs: str | list[Any] | Any | None = None,
        pair_image_column: str | None = None,
        caption_column: str | None = None,
        limit_pairs: int | None = None,
        root: str | None = None,
        layout: Literal["folder", "bdd100k", "celeba", "camelyon17", "datasets"] = "folder",
        source: str | Any | None = None,
        label: str = "label",
        metadata: str = "metadata.csv",
        file_column: str = "file_name",
        image_column: str = "image",
        split_by: Literal["column", "fractions"] = "column",
        fractions: list[float] | None = None,
        split_seed: int = 0,
        limit: int | None = None,
        classes: list[str] | None = None,
        class_names: dict[str, str] | None = None,
        templates: list[str] | None = None,
        target: list[str],
        protected: list[str] | None = None,
        target_pairs: bool = True,
        caption_templates: list[str] | None = None,
        batch_size: int = 128,
        tasks_per_batch: int | None = None,
        samples_per_task: int = 8,
        num_batches: int | None = None,
        augment: bool | dict[str, Any] = True,
        corrupt: Literal["error", "skip"] = "error",
        eval_batch_size: int = 256,
        eval_train: bool = True,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(eval_batch_size=eval_batch_size, num_workers=num_workers)
        self.eval_workers, self.eval_train = num_workers, eval_train
        self._origin = LabelledImages(layout, root, source, metadata, file_column, image_column)
        self.label, self.split_by, self.split_seed = label, split_by, at_least("split_seed", split_seed, 0)
        self.fractions = checked_fractions(fractions, split_by)
        self.limit = None if limit is None else at_least("limit", limit, 1)
        self._sources = _as_sources(pairs)
        self.pair_columns = pair_image_column, caption_column
        self.limit_pairs = None if limit_pairs is None else at_least("limit_pairs", limit_pairs, 1)
        self.templates = _checked_templates("templates", ["a photo of a {}."] if templates is None else templates)
        captions = self.templates if caption_templates is None else caption_templates
        self.caption_templates = _checked_templates("caption_templates", captions)
        self._classes = None if classes is None else _distinct("classes", classes)
        self._words = dict(class_names or {})
        self.target_names, self.target_pairs = _distinct("target", target), target_pairs
        self._protected = None if protected is None else _distinct("protected", protected)
        self._check_names()
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.tasks_per_batch = None if tasks_per_batch is None else at_least("tasks_per_batch", tasks_per_batch, 1)
        self.samples_per_task = at_least("samples_per_task", samples_per_task, 1)
        self.num_batches = None if num_batches is None else at_least("num_batches", num_batches, 1)
        self.seed = at_least("seed", seed, 0)
        if corrupt not in {"error", "skip"}:
            raise ConfigError(f"corrupt must be 'error' or 'skip', got {corrupt!r}.")
        self.corrupt, self.augment = corrupt, augment
        self.config = clip_config(model, pretrained)
        self.image_size, self.vocab_size = self.config.image_size, self.config.vocab_size
        self.mean, self.std = self.config.mean, self.config.std
        self.interpolation, self.resize_mode = self.config.interpolation, self.config.resize_mode
        self.context_length = self.config.context_length
        self._plain, self._random = self._transform(augment=False), self._transform(augment=augment)
        self._tokenizer = tokenizer(self.config)
        self.task_names: list[str] = []
        self.left_out: dict[str, int] = {}
        self._class_names: list[str] = []
        self._class_tokens = torch.empty(0, 0, 0, dtype=torch.int64)
        self._digests: dict[str, str] = {}
        self._announced = False

    @property
    def num_train(self) -> int:
        """Number of pairs: the rows that a dual state of every sample needs."""
        return len(self._table(_PAIRS))

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def class_names(self) -> list[str]:
        """The classes 0..C-1 as the table calls them."""
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

    @property
    def val_names(self) -> list[str]:
        """Names of the validation loaders, in the order of ``dataloader_idx``: all splits but those for testing."""
        names = [name for name in self._labelled() if not name.endswith("test")]
        return names if self.eval_train or names == ["train"] else names[1:]

    def prepare_data(self) -> None:
        """Download hub data and fill the caches of ``datasets`` once, before every process reads them."""
        self._origin.prepare()
        for source in self._sources:
            if isinstance(source, (str, list)):
                read_pairs(source, *self.pair_columns)

    def setup(self, stage: str | None = None) -> None:
        """Read the tables and the captions; images stay where they are.  A second call changes nothing."""
        if not self.tables:
            self._read_all()
            self._require_expected_split()
        if stage == "fit" and not self._announced:
            self._announced = True
            rank_zero_info(self._summary())

    def train_dataloader(self) -> ResumableLoader | CombinedLoader:
        """Return the loader of pairs, or of "target" and "protected" together if there are protected tasks."""
        table, processes = self._table(_PAIRS), self._place()[1]
        plan = UniformBatches(len(table), self.batch_size * processes, self.seed, num_batches=self.num_batches)
        target = self._resumable(table, plan)
        if not self.task_names:
            return target
        protected = self._protected_plan(processes, plan.num_batches)
        loaders = {"target": target, "protected": self._resumable(self._table("train"), protected)}
        return CombinedLoader(loaders, mode="min_size")

    def evaluation_loaders(self) -> dict[str, DataLoader[Any]]:
        """Return an ordered loader of this process's part of every split of labelled images."""
        return {name: self._ordered(name) for name in self._labelled()}

    def add_columns(self, split: str, columns: Mapping[str, Tensor]) -> None:
        """Let every batch of a split carry further columns, such as what another model made of its images.

        Args:
            split: "train", "val" or "test".
            columns: name -> tensor with first dimension n, in the order of ``index``.

        Raises:
            DataError: if a column does not have n rows, or has the name of one that is there for another purpose.
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
        """Return split -> digest of its images, labels and tasks, and of what the classes are called in prompts.

        Where it is equal, columns that were stored for :meth:`add_columns` belong to these samples.
        """
        prompts = [str(self.class_tokens.tolist()), str(self._seen()), *self.class_names, "", *self.task_names]
        return {name: _digest([*prompts, self._digests[name]]) for name in self._labelled()}

    def _read_labelled(self) -> tuple[pd.DataFrame, Any]:
        """Return the columns of all labelled samples with their positions among the images, and the images."""
        frame, images = self._origin.read()
        return frame, FilesIn(images, self._origin.root or "")

    def _image_names(self, images: Any, rows: Tensor) -> list[str]:
        """Return what tells images apart from others: their paths, or the contents of some that are no files."""
        files = images.images if isinstance(images, FilesIn) else images
        if isinstance(files, list):
            return [str(files[row]) for row in rows.tolist()]
        return [_identity(files[int(row)]) for row in rows[:: 1 + len(rows) // _LOOKED_AT]]

    def _own_pairs(self, y: Tensor) -> Tensor:
        """Return which training images become pairs, given their classes ``y`` (n,)."""
        targets = torch.tensor([self._class_names.index(name) for name in self.target_names], dtype=torch.int64)
        return torch.isin(y, targets).nonzero().flatten() if self.target_pairs else torch.empty(0, dtype=torch.int64)

    def _read_all(self) -> None:
        frame, images = self._read_labelled()
        require_columns(frame, {"label": [self.label]}, "the labelled images")
        require_filled(frame[self.label], "label", "the labelled images")
        parts = self._parts(frame)
        labels = {name: text_of(part[self.label]) for name, part in parts.items()}
        self._class_names = self._classes or sorted(labels["train"].unique())
        self._check_classes(labels)
        numbers = {name: i for i, name in enumerate(self.task_names)} | dict.fromkeys(self.target_names, -1)
        task_of = torch.tensor([numbers.get(name, -2) for name in self._class_names])
        tables: dict[str, TensorTable] = {}
        for name, part in parts.items():
            y = _positions(labels[name], self._class_names)
            known = (y >= 0).nonzero().flatten()
            if len(known) == 0:
                raise DataError(f"None of the {name} images is of the classes {listed(self._class_names)}.")
            self.left_out[name] = len(y) - len(known)
            rows = torch.tensor(part[ROW].tolist())[known]
            shown = Joined([images], rows)
            columns = {"y": y[known], "task": task_of[y[known]]}
            tables[name] = ImageTable(shown, columns, self._plain, corrupt=self.corrupt)
            self._digests[name] = _digest([*self._image_names(images, rows), str(columns["y"].tolist())])
        train = tables["train"]
        assert isinstance(train, ImageTable)  # noqa: S101  (made above)
        tables[_PAIRS] = self._pair_table(train)
        self._class_tokens = self._prompts()
        self._check_tasks(train)
        self.tables = tables

    def _parts(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return the rows of every split."""
        if self.split_by == "column":
            return parts_of(frame, self._origin.layout, self.limit)
        frame = frame if self.limit is None else frame.head(self.limit)
        kinds = _positions(text_of(frame[self.label]), sorted(text_of(frame[self.label]).unique()))
        train, val, test = self.fractions
        rest, held = stratified_split(kinds, test, self.split_seed, "fractions", both_sides=True)
        rows = {"train": rest, "test": held}
        if val:
            ours, theirs = stratified_split(
                kinds[rest], val / (train + val), self.split_seed, "fractions", both_sides=True
            )
            rows = {"train": rest[ours], "val": rest[theirs], "test": held}
        return {name: frame.iloc[part.tolist()].reset_index(drop=True) for name, part in rows.items()}

    def _pair_table(self, train: ImageTable) -> PairTable:
        """Return the table of all pairs: those of ``pairs``, then the labelled ones."""
        read = [read_pairs(source, *self.pair_columns) for source in self._sources]
        images, captions = Joined([images for images, _ in read]), Joined([captions for _, captions in read])
        if self.limit_pairs is not None and self.limit_pairs < len(images):
            drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.split_seed))
            rows = drawn[: self.limit_pairs].sort().values
            images, captions = images.take(rows), captions.take(rows)
        own = self._own_pairs(train.columns["y"])
        of_class = [[t.replace("{}", self._word(name)) for t in self.caption_templates] for name in self._class_names]
        images = Joined([images, Joined([train.images], own)])
        captions = Joined([captions, [of_class[y] for y in train.columns["y"][own].tolist()]])
        if len(images) == 0:
            raise DataError(
                f"There are no pairs to learn from: no pairs are given, and none of the training images is of the "
                f"target classes {self.target_names}, or target_pairs is off. Pass pairs=..., or name a target."
            )
        texts = [text for caption in captions for text in ([caption] if isinstance(caption, str) else caption)]
        if len(images) > 1 and len(set(texts)) == 1:
            raise DataError(
                f"All {len(images)} pairs have the caption {texts[0]!r}: there is nothing to contrast. Pass more pairs "
                "(pairs=...), or several caption_templates."
            )
        self._digests[_PAIRS] = _digest([str(len(images)), *texts])
        return PairTable(
            images,
            captions,
            self._random,
            self._tokenizer,
            seed=None if self.augment is False else self.seed,
            caption_seed=self.seed,
            corrupt=self.corrupt,
        )

    def _prompts(self) -> Tensor:
        texts = [t.replace("{}", self._word(name)) for name in self._class_names for t in self.templates]
        return self._tokenizer(texts).reshape(len(self._class_names), len(self.templates), -1)

    def _word(self, name: str) -> str:
        return self._words.get(name, name)

    def _protected_plan(self, processes: int, num_batches: int) -> BatchPlan:
        task = self._table("train").columns["task"]
        rows = (task >= 0).nonzero().flatten()
        counts = torch.bincount(task[rows])
        size, smallest = self.samples_per_task * processes, int(counts.argmin())
        if counts[smallest] < size:
            raise DataError(
                f"samples_per_task={self.samples_per_task} on {processes} processes asks for {size} different images "
                f"of a protected task, but {self.task_names[smallest]!r} has {int(counts[smallest])} in training. "
                "Lower it, or leave that task out of protected."
            )
        tasks = self.tasks_per_batch or len(counts)
        return RowsOf(GroupBatches(task[rows], tasks, size, self.seed, num_batches=num_batches), rows)

    def _check_names(self) -> None:
        """Check what the arguments say of classes, before any data are read."""
        both = [name for name in self.target_names if name in (self._protected or [])]
        if both:
            raise ConfigError(f"target and protected share {both}: a class is either to be learnt or to be kept.")
        if self._classes is not None:
            named = [*self.target_names, *(self._protected or []), *self._words]
            missing = [name for name in named if name not in self._classes]
            if missing:
                raise ConfigError(
                    f"classes={self._classes} lacks {missing}, which target, protected or class_names name. Add them."
                )

    def _check_classes(self, labels: Mapping[str, pd.Series]) -> None:
        present = sorted(set().union(*(set(column.unique()) for column in labels.values())))
        for name in [*self._class_names, *self.target_names, *(self._protected or []), *self._words]:
            if name not in present:
                close = difflib.get_close_matches(name, present, n=1, cutoff=0.5)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise DataError(f"No labelled image is of class {name!r}.{hint} The classes are {listed(present)}.")
        if len(self._class_names) < 2:
            raise DataError(f"label={self.label!r} must have at least two classes, got {self._class_names}.")
        others = [name for name in self._class_names if name not in self.target_names]
        self.task_names = others if self._protected is None else self._protected
        absent = [name for name in [*self.target_names, *self.task_names] if name not in self._class_names]
        if absent:
            raise DataError(f"The classes of the training images {listed(self._class_names)} lack {absent}.")

    def _check_tasks(self, train: ImageTable) -> None:
        task = train.columns["task"]
        counts = torch.bincount(task[task >= 0], minlength=len(self.task_names))
        if self.task_names and not counts.all():
            raise DataError(
                f"The protected task {self.task_names[int(counts.argmin())]!r} has no training images, so there is "
                "nothing to hold it by. Leave it out of protected."
            )
        if self.tasks_per_batch is not None and self.task_names and self.tasks_per_batch > len(self.task_names):
            raise ConfigError(
                f"tasks_per_batch={self.tasks_per_batch} exceeds the {len(self.task_names)} protected tasks "
                f"{self.task_names}. Lower it, or leave it out for all of them."
            )

    def _summary(self) -> str:
        table, train = self._table(_PAIRS), self._table("train").columns["task"]
        sizes = [int((train == k).sum()) for k in range(len(self.task_names))]
        kept = ", ".join(f"{name} ({size})" for name, size in zip(self.task_names, sizes, strict=True)) or "none"
        return (
            f"{len(table)} pairs; target {', '.join(self.target_names) or 'none'} ({int((train == -1).sum())} training "
            f"images); protected {kept}; {sum(self.left_out.values())} images of other classes left out."
        )

    def _labelled(self) -> list[str]:
        """Return the names of the splits of labelled images, those for training first."""
        self._table("train")
        return [name for name in self.tables if name != _PAIRS]

    def _transform(self, *, augment: bool | dict[str, Any]) -> Any:
        random = augment if augment is False else _AUGMENT | (augment if isinstance(augment, dict) else {})
        made = self.config
        return image_transform(
            made.image_size,
            made.mean,
            made.std,
            augment=random,
            crop_pct=1.0,
            interpolation=made.interpolation,
            crop_mode=_CROP_MODES[made.resize_mode],
        )

    def _seen(self) -> tuple[Any, ...]:
        """Return what the images of evaluation look like."""
        made = self.config
        return made.image_size, made.mean, made.std, made.interpolation, made.resize_mode, self.corrupt

    def _batch_settings(self) -> tuple[Any, ...]:
        sampling = self.batch_size, self.tasks_per_batch, self.samples_per_task, self.num_batches
        return self.seed, *sampling, *self._seen(), str(self.augment)

    def _fingerprint(self) -> dict[str, int | str]:
        """Sizes, and a digest of the captions, of all names and of the order of the labelled training images."""
        digests = self._digests[_PAIRS], self._digests["train"]
        return {
            "pairs": self.num_train,
            "rows": len(self._table("train")),
            "classes": self.num_classes,
            "tasks": len(self.task_names),
            "digest": _digest([*self.class_names, "", *self.task_names, *digests]),
        }

    def _require_expected_split(self) -> None:
        here = self._fingerprint()
        if self._expected is not None and dict(self._expected) != here:
            raise DataError(
                f"The checkpoint was trained on other pairs or labelled images: {dict(self._expected)} there, {here} "
                "here. Pass the same pairs, limit_pairs, layout, label, classes, target, protected, caption_templates, "
                "fractions and split_seed (the digest covers names, captions and the order of the images), or start "
                "without the checkpoint."
            )


class DigitsCLIPDataModule(ContinualCLIPDataModule):
    """Continual learning in small: a model that hardly saw some digits is to learn them and keep the others.

    The images are those of :func:`fcco_lightning.data.digits.digits`, with captions such as "a handwritten seven."; the
    classes are "zero" to "nine".  In the stage "pretrain" all digits are pairs, but of the target digits only a few,
    and nothing is protected.  In the stage "continual" all images of the target digits are pairs, with a few of the
    others', and every other digit is a protected task.

    Args:
        stage: "pretrain" or "continual".
        target: digits 0..9 to be learnt.
        protected: digits to be kept in the stage "continual"; None for all but ``target``.
        rare: share of the target digits' images that are pairs in the stage "pretrain", in [0, 1].
        general: share of the other digits' images that are pairs in the stage "continual", in [0, 1].
        num_train: training images.
        num_test: test images.
        model: architecture that images and texts are prepared for.
        templates: prompts of a class, each with one {}; None for two.
        caption_templates: captions, each with one {}, one drawn anew in every epoch; None for four.
        batch_size: pairs in a training batch of one process.
        tasks_per_batch: protected tasks in a training batch; None for all of them.
        samples_per_task: images of each of them in a training batch of one process.
        num_batches: training batches of an epoch; None for as many as hold every pair once.
        eval_batch_size: rows in an evaluation batch of one process.
        data_seed: seed of the images.
        seed: seed of the training batches and of the choice of captions.
        num_workers: worker processes of every loader.

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
        num_train: int = 6000,
        num_test: int = 3000,
        model: str = "tiny",
        templates: list[str] | None = None,
        caption_templates: list[str] | None = None,
        batch_size: int = 64,
        tasks_per_batch: int | None = None,
        samples_per_task: int = 8,
        num_batches: int | None = None,
        eval_batch_size: int = 512,
        data_seed: int = 0,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        if stage not in {"pretrain", "continual"}:
            raise ConfigError(f"stage must be 'pretrain' or 'continual', got {stage!r}.")
        for name, share in {"rare": rare, "general": general}.items():
            if share != 0:
                fraction(name, share)
        kept = None if protected is None else _digit_names("protected", protected)
        super().__init__(
            model=model,
            root="",  # the images are made, not read
            classes=list(digit_images.NAMES),
            templates=digit_images.TEMPLATES[:2] if templates is None else templates,
            target=_digit_names("target", [7] if target is None else target),
            protected=[] if stage == "pretrain" else kept,
            caption_templates=digit_images.TEMPLATES if caption_templates is None else caption_templates,
            batch_size=batch_size,
            tasks_per_batch=tasks_per_batch,
            samples_per_task=samples_per_task,
            num_batches=num_batches,
            augment=False,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )
        self.stage, self.rare, self.general, self.data_seed = stage, rare, general, at_least("data_seed", data_seed, 0)
        self.sizes = at_least("num_train", num_train, 10), at_least("num_test", num_test, 10)

    def _read_labelled(self) -> tuple[pd.DataFrame, Any]:
        made = digit_images.digits(*self.sizes, self.data_seed)
        frames = [
            pd.DataFrame({self.label: [digit_images.NAMES[i] for i in part.labels], "split": split})
            for split, part in made.items()
        ]
        frame = pd.concat(frames, ignore_index=True)
        images = digit_images.GreyImages(torch.cat([part.images for part in made.values()]))
        return frame.assign(**{ROW: range(len(frame))}), images

    def _image_names(self, images: Any, rows: Tensor) -> list[str]:  # noqa: ARG002  (all made from one seed)
        return [str((self.sizes, self.data_seed))]

    def _own_pairs(self, y: Tensor) -> Tensor:
        shares = (self.rare, 1.0) if self.stage == "pretrain" else (1.0, self.general)
        rows = []
        for label, name in enumerate(self._class_names):
            own = (y == label).nonzero().flatten()
            rows.append(own[: round(shares[name not in self.target_names] * len(own))])
        return torch.cat(rows).sort().values


def _as_sources(pairs: Any) -> list[Any]:
    if pairs is None:
        return []
    if not isinstance(pairs, (list, tuple)):
        return [pairs]
    shards = [isinstance(source, (str, Path)) and str(source).endswith(".tar") for source in pairs]
    return [list(pairs)] if shards and all(shards) else list(pairs)


def _checked_templates(argument: str, templates: Sequence[str]) -> list[str]:
    wrong = [template for template in templates if template.count("{}") != 1]
    if isinstance(templates, str) or not templates or wrong:
        raise ConfigError(
            f"{argument} must be a list of texts, each with one {{}} where the name of a class goes, got "
            f"{wrong or templates!r}."
        )
    return list(templates)


def _distinct(argument: str, names: Iterable[str]) -> list[str]:
    names = [str(name).strip() for name in names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{argument} names {twice} more than once.")
    return names


def _digit_names(argument: str, values: Sequence[int]) -> list[str]:
    wrong = [value for value in values if value not in range(10)]
    if wrong:
        raise ConfigError(f"{argument} must hold digits 0..9, got {wrong}.")
    return [digit_images.NAMES[value] for value in values]


def _positions(labels: pd.Series, names: Sequence[str]) -> Tensor:
    """Return the place of every label among ``names``, or -1, shape (n,), int64."""
    place = {name: i for i, name in enumerate(names)}
    return torch.tensor([place.get(label, -1) for label in labels], dtype=torch.int64)


def _identity(stored: Any) -> str:
    """A digest of an image as it is stored: a file's bytes or path, or pixels."""
    if isinstance(stored, Mapping):
        stored = stored["path"] if stored.get("bytes") is None else stored["bytes"]
    content = stored.tobytes() if hasattr(stored, "tobytes") else stored
    return hashlib.sha256(content if isinstance(content, bytes) else str(content).encode()).hexdigest()[:16]


def _digest(texts: Iterable[str]) -> str:
    made = hashlib.sha256()
    for text in texts:
        made.update(text.encode() + b"\0")
    return made.hexdigest()[:16]
