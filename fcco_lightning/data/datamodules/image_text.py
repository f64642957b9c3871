"""A data module of image-text pairs, some of which are held out for evaluation."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset

from fcco_lightning.checks import at_least, inside
from fcco_lightning.data.batches import Sampling, UniformSampling
from fcco_lightning.data.datamodules.clip_parts import Architecture, CLIPDataModule, Pairs
from fcco_lightning.data.fingerprint import digest_of, files_of
from fcco_lightning.data.pairs import PairTable
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError

_HeldOut = float | str | list[Any]


class PairDataModule(CLIPDataModule):
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
        **loading: ``eval_batch_size``, ``seed``, ``num_workers`` and ``allow_changed``, see :class:`CLIPDataModule`.

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
        **loading: Any,
    ) -> None:
        self.split_seed = at_least("split_seed", split_seed, 0)
        super().__init__(pairs, model, split_seed, batches=batches, eval_train=True, **loading)
        if pairs.of_others:
            raise ConfigError(
                f"pairs.of_others={pairs.of_others} is of labelled images, and there are none. Leave it out."
            )
        if test == 0:
            raise ConfigError(
                "test=0 leaves nothing to evaluate at the end. Give a share, a number of images or a source."
            )
        self.held_out = {"test": _held_out("test", test), "val": _held_out("val", val)}
        self._digest = ""

    def _sources(self) -> list[Any]:
        return [*super()._sources(), *(held for held in self.held_out.values() if not isinstance(held, float))]

    def part_loaders(self, split: str) -> dict[str, DataLoader[Any]]:
        """Return a loader of the pairs of any split in their order, for "train" with the captions of epoch 0."""
        return {"target": self._ordered(split)}

    def _make_tables(self) -> dict[str, TensorTable]:
        parts, captions = self._read_pairs()
        if not parts:
            raise DataError(
                "there are no pairs: pairs.sources names none. Give a folder, a table, shards or a data set."
            )
        images: Any = ConcatDataset(parts)
        numbers = _numbers(images)
        units = torch.unique(numbers)
        shares = {name: held for name, held in self.held_out.items() if isinstance(held, float) and held}
        counts = {name: round(held * len(units)) if held < 1 else int(held) for name, held in shares.items()}
        if 0 in counts.values() or sum(counts.values()) > len(units) - 2:
            raise DataError(
                f"of {len(units)} images {counts} are to be held out: every split needs at least one image, and "
                "training at least two. Change val and test."
            )
        order = units[torch.randperm(len(units), generator=torch.Generator().manual_seed(self.split_seed))]
        *held_out, left = torch.split(order, [*counts.values(), len(units) - sum(counts.values())])
        rows = {name: _rows_of(numbers, some) for name, some in zip([*counts, "train"], [*held_out, left], strict=True)}
        tables: dict[str, TensorTable] = {
            name: self._evaluated(images, captions, numbers, rows[name]) for name in counts
        }
        for name, source in self.held_out.items():
            if not isinstance(source, float):
                own, texts = self.pairs.read(source)
                tables[name] = self._evaluated(own, texts, _numbers(own), range(len(texts)))
        captions = [captions[row] for row in rows["train"]]
        self._digest = digest_of(chain.from_iterable([text] if isinstance(text, str) else text for text in captions))
        train = self._pair_table(Subset(images, rows["train"]), captions, training=True)
        return {"train": train, **{name: tables[name] for name in ("val", "test") if name in tables}}

    def _evaluated(self, images: Any, captions: Any, numbers: Tensor, rows: Sequence[int]) -> PairTable:
        """Return an evaluation table of some rows, with a row for every caption."""
        texts = {row: [captions[row]] if isinstance(captions[row], str) else list(captions[row]) for row in rows}
        repeated = [row for row in rows for _ in texts[row]]
        table = self._pair_table(Subset(images, repeated), list(chain.from_iterable(texts.values())), training=False)
        table.columns["image"] = numbers[repeated]
        return table

    def _summary(self) -> str:
        sizes = {
            name: (len(torch.unique(t.columns["image"])), len(t)) for name, t in self.tables.items() if name != "train"
        }
        held = ", ".join(f"{images} images with {texts} texts in {name}" for name, (images, texts) in sizes.items())
        return f"{self.num_train} pairs to learn from; held out: {held or 'none'}."

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
