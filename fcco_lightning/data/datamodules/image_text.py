"""A data module of image-text pairs, some of which are held out for evaluation."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset

from fcco_lightning.checks import at_least, inside, made_of
from fcco_lightning.data.batches import BatchPlan, Sampling, UniformSampling
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.datamodules.clip_parts import Architecture, Pairs, require_two
from fcco_lightning.data.fingerprint import contents_of_images, digest_of, files_of
from fcco_lightning.data.pairs import PairTable
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.clip_config import tokenizer

_HeldOut = float | str | list[Any]
_PREPARED = ("image_size", "mean", "std", "interpolation", "resize_mode", "context_length", "vocab_size")


class PairDataModule(SplitDataModule):
    """Image-text pairs for a contrastive objective, of which some are held out to be evaluated; no labels are needed.

    Training batches have augmented images ``x`` (B, 3, S, S) float32, tokens ``text`` (B, L) int64 of one caption each,
    drawn anew in every epoch, and ``index`` (B,) int64.  Evaluation batches have a row for every caption of a held-out
    image, and also ``image`` (B,) int64, the number of the image.  If several rows of a folder, .csv or .tsv name the
    same file, or one cell holds several texts, these are captions of one image; an image is held out with all of them.

    Training pairs are not evaluated: recall is computed among all pairs of a split, so figures of splits of
    different sizes are not comparable, and their cost grows with the square of the size.

    Args:
        pairs: the pairs; ``pairs.of_others`` must be 0, since there are no labels.
        model: the network for which images and texts are prepared.
        val: the validation split: a share of the images in (0, 1), a number of images, or a source of further pairs, as
            in ``pairs.sources``; 0 for none.
        test: the test split, likewise, but not 0.
        split_seed: seed of the choice of held-out images and of the pairs that ``pairs.limit`` keeps.
        batches: how mini-batches of pairs are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        **loading: ``seed`` (also of augmentation and captions), ``num_workers`` and ``allow_changed``, see
            :class:`SplitDataModule`.

    Attributes:
        image_size, mean, std, interpolation, resize_mode, context_length, vocab_size: how images and texts are
            prepared, see :class:`~fcco_lightning.models.clip_config.CLIPConfig`.

    Raises:
        ConfigError: from ``__init__`` if an argument is out of range.
        DataError: from ``setup`` if the data contradict the arguments, or too few pairs are left for training.
    """

    _identifying = "pairs, val, test and split_seed"

    def __init__(
        self,
        *,
        pairs: Pairs,
        model: Architecture = Architecture(),  # noqa: B008 - frozen
        val: _HeldOut = 0.1,
        test: _HeldOut = 0.1,
        split_seed: int = 0,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 256,
        **loading: Any,
    ) -> None:
        super().__init__(batches=batches, eval_batch_size=eval_batch_size, eval_train=True, **loading)
        self.pairs, model = made_of("pairs", pairs, Pairs), made_of("model", model, Architecture)
        if pairs.of_others:
            raise ConfigError(
                f"pairs.of_others={pairs.of_others} is of labelled images, and there are none. Leave it out."
            )
        if test == 0:
            raise ConfigError(
                "test=0 leaves nothing to evaluate at the end. Give a share, a number of images or a source."
            )
        self.held_out = {"test": _held_out("test", test), "val": _held_out("val", val)}
        self.split_seed, self.eval_workers = at_least("split_seed", split_seed, 0), self.num_workers
        for name in _PREPARED:
            setattr(self, name, getattr(model.config, name))
        self._eval_transform = model.transform(augment=False)
        self._train_transform = model.transform(augment=pairs.augment)
        self._tokenizer = tokenizer(model.config)
        self._digest, self._contents = "", dict[str, str]()

    def prepare_data(self) -> None:
        """Download data from the hub and fill the caches of ``datasets`` once, before all processes read them."""
        for source in [*self.pairs.each, *(held for held in self.held_out.values() if not isinstance(held, float))]:
            if isinstance(source, (str, list)):
                self.pairs.read(source)

    def part_loaders(self, split: str) -> dict[str, DataLoader[Any]]:
        """Return a loader of the pairs of any split in their order, for "train" with the captions of epoch 0."""
        return {"target": self._ordered(split)}

    def _make_tables(self) -> dict[str, TensorTable]:
        images, captions, numbers = self._read()
        units = torch.unique(numbers)
        shares = {name: held for name, held in self.held_out.items() if isinstance(held, float) and held}
        counts = {name: round(held * len(units)) if held < 1 else int(held) for name, held in shares.items()}
        if 0 in counts.values() or sum(counts.values()) > len(units) - 2:
            raise DataError(
                f"of {len(units)} images {counts} are to be held out: there must be one or more in each of them, and "
                "two or more that are left to learn from. Change val and test."
            )
        order = units[torch.randperm(len(units), generator=torch.Generator().manual_seed(self.split_seed))]
        *held_out, left = torch.split(order, [*counts.values(), len(units) - sum(counts.values())])
        tables: dict[str, TensorTable] = {
            name: self._evaluated(images, captions, numbers, _rows_of(numbers, some))
            for name, some in zip(counts, held_out, strict=True)
        }
        for name, source in self.held_out.items():
            if not isinstance(source, float):
                own, texts = self.pairs.read(source)
                tables[name] = self._evaluated(own, texts, _numbers(own), range(len(texts)))
        rest = _rows_of(numbers, left)
        images, captions = Subset(images, rest), [captions[row] for row in rest]
        self._contents = contents_of_images(images, "the images of pairs")
        self._digest = digest_of(chain.from_iterable([text] if isinstance(text, str) else text for text in captions))
        augmented = self.pairs.augment is not False
        train_table = self._table_of(images, captions, self._train_transform, self.seed if augmented else None)
        return {"train": train_table, **{name: tables[name] for name in ("val", "test") if name in tables}}

    def _read(self) -> tuple[Any, list[Any], Tensor]:
        """Return the images and the captions of all sources, and the number (n,) of every row's image."""
        if not self.pairs.each:
            raise DataError(
                "there are no pairs: pairs.sources names none. Give a folder, a table, shards or a data set."
            )
        parts = [self.pairs.read(source) for source in self.pairs.each]
        pictures: list[Any] = [images for images, _ in parts]
        images: Any = ConcatDataset(pictures)
        captions = list(chain.from_iterable(texts for _, texts in parts))
        rows = self.pairs.drawn(len(captions), self.split_seed)
        if rows is not None:
            images, captions = Subset(images, rows), [captions[row] for row in rows]
        return images, captions, _numbers(images)

    def _evaluated(self, images: Any, captions: Any, numbers: Tensor, rows: Sequence[int]) -> PairTable:
        """Return an evaluation table of some rows, with a row for every caption."""
        texts = {row: [captions[row]] if isinstance(captions[row], str) else list(captions[row]) for row in rows}
        repeated = [row for row in rows for _ in texts[row]]
        table = self._table_of(
            Subset(images, repeated), list(chain.from_iterable(texts.values())), self._eval_transform
        )
        table.columns["image"] = numbers[repeated]
        return table

    def _table_of(self, images: Any, captions: Any, transform: Any, seed: int | None = None) -> PairTable:
        return PairTable(
            images,
            captions,
            transform,
            self._tokenizer,
            seed=seed,
            caption_seed=self.seed,
            corrupt=self.pairs.corrupt,
            most_pixels=self.pairs.most_pixels,
            evaluation=self._eval_transform,
            option="pairs.corrupt",
        )

    def _summary(self) -> str:
        sizes = {
            name: (len(torch.unique(t.columns["image"])), len(t)) for name, t in self.tables.items() if name != "train"
        }
        held = ", ".join(f"{images} images with {texts} texts in {name}" for name, (images, texts) in sizes.items())
        return f"{self.num_train} pairs to learn from; held out: {held or 'none'}."

    def _plans(self, world_size: int) -> dict[str, tuple[str, BatchPlan]]:
        plans = super()._plans(world_size)
        require_two(plans["target"][1])
        return plans

    def _splits(self) -> list[str]:
        return [name for name in super()._splits() if name != "train"]

    def _batch_settings(self) -> tuple[Any, ...]:
        prepared = (getattr(self, name) for name in _PREPARED)
        return *super()._batch_settings(), *prepared, str(self.pairs.augment), self.pairs.corrupt

    def _fingerprint(self) -> dict[str, Any]:
        return {"pairs": self.num_train, "digest": self._digest, "contents": self._contents}


def _held_out(name: str, value: Any) -> Any:
    """Return a share or a number of images as a float, and a source unchanged."""
    if not isinstance(value, int | float):
        return value
    number: Any = value  # at_least refuses fractions
    return float(number if number == 0 else inside(name, number) if number < 1 else at_least(name, number, 1))


def _rows_of(numbers: Tensor, units: Tensor) -> list[int]:
    """Return the rows whose image number is among ``units``."""
    rows: list[int] = torch.isin(numbers, units).nonzero().flatten().tolist()
    return rows


def _numbers(images: Any) -> Tensor:
    """Number the images of all rows (n,): rows that name the same file share a number, every other row has its own."""
    files = files_of(images)
    keys = range(len(images)) if files is None else [str(path) for _, path in files]
    return torch.from_numpy(pd.factorize(pd.Series(keys))[0]).long()
