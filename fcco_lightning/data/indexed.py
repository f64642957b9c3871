"""A wrapper of map-style data sets that adds the ``index`` of every sample."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    TensorDataset,
)

from fcco_lightning.checks import list_of
from fcco_lightning.data.batches import BatchPlan, Drawn, UniformBatches
from fcco_lightning.data.loader import RankBatches
from fcco_lightning.data.roles import of_mean_one
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import SAMPLE_WEIGHT, TARGET


class IndexedDataset(Dataset[dict[str, Any]]):
    """Makes samples of another data set mappings with their ``index``, by which the rows of a dual state are found.

    A sample ``(x, y)`` becomes ``{"x": x, "y": y, "index": i}``, where i is its position 0..n-1 in this data set; a
    sample that is a mapping keeps its names.  Wrap the training split itself (the ``Subset``, not the whole data set).

    Args:
        dataset: map-style data set with a length.
        names: names of the entries of a sample that is a tuple.
        columns: columns of all samples that are known without loading them, name -> (n,).  Objectives such as average
            precision need the labels ``y`` to know which samples have rows.  The default are the ``targets`` of
            torchvision's data sets, after their ``target_transform``, and the tensors of a ``TensorDataset``; also of a
            ``Subset`` or ``ConcatDataset`` of these.  The column ``sample_weight`` weights samples: numbers >= 0, which
            are divided by their mean; samples then have it, and the columns that objectives derive from it.

    Attributes:
        columns: the given or default columns, with ``index``.

    Raises:
        DataError: if a column has another length than the data set, or a weight is no finite number >= 0; later, if the
            entries of a sample do not match ``names``, or a sample has ``weight`` although ``sample_weight`` is given.

    Example:
        >>> IndexedDataset(TensorDataset(torch.eye(2), torch.tensor([1, 0])))[1]
        {'x': tensor([0., 1.]), 'y': tensor(0), 'index': 1}
    """

    def __init__(
        self, dataset: Any, names: Sequence[str] = ("x", "y"), columns: Mapping[str, Any] | None = None
    ) -> None:
        self.dataset, self.names = dataset, tuple(list_of("names", names))
        labels = _known_columns(dataset, self.names) if columns is None else columns
        self.columns = {name: torch.as_tensor(column) for name, column in labels.items()}
        for name, column in self.columns.items():
            if len(column) != len(self):
                raise DataError(f"columns[{name!r}] has {len(column)} rows, the data set has {len(self)} samples.")
        self.columns["index"] = torch.arange(len(self))
        self._weights: dict[str, Tensor] = {}  # columns of weighted samples
        if SAMPLE_WEIGHT in self.columns:
            self.columns[SAMPLE_WEIGHT] = of_mean_one(self.columns[SAMPLE_WEIGHT].flatten(), "the data set")
            weighted = UniformBatches(len(self), 1).of_weighted_samples(self.columns[SAMPLE_WEIGHT])
            self._weights = {SAMPLE_WEIGHT: self.columns[SAMPLE_WEIGHT], **weighted.columns()}
        self._may_have_weight = not self._weights or _numbers(dataset) is not None  # of one of these inside

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Return sample ``i`` by name."""
        i = range(len(self))[i]
        sample = self.dataset[i]
        if isinstance(sample, Mapping):
            return self._numbered(sample, i)
        parts = sample if isinstance(sample, tuple | list) else (sample,)
        if len(parts) != len(self.names):
            raise DataError(
                f"sample {i} has {len(parts)} parts, and names={list(self.names)} has {len(self.names)}. Name each "
                "part, for example names=('x', 'y', 'group')."
            )
        return self._numbered(dict(zip(self.names, parts, strict=True)), i)

    def _numbered(self, sample: Mapping[str, Any], i: int) -> dict[str, Any]:
        """A sample with its ``index`` i and, if samples are weighted, with its weights."""
        if not self._may_have_weight and "weight" in sample:
            raise DataError(
                f"a sample has a column `weight`, which this data set makes of `{SAMPLE_WEIGHT}`. Leave one of them "
                "out; where your own sampler prefers some samples, give `weight` alone, times how much each counts."
            )
        return {**sample, **{name: column[i] for name, column in self._weights.items()}, "index": i}

    def drawn(self, batch_size: int, *, drop_last: bool = False) -> dict[str, Drawn]:
        """Return how shuffled batches of these samples are drawn, for ``sampling`` of a problem or a criterion.

        Args:
            batch_size: number of samples in a batch of all processes together.
            drop_last: whether an epoch's last batch is left out if it is short.
        """
        size = batch_size if drop_last else min(batch_size, len(self))  # else torch yields one short batch
        return self.drawn_from(UniformBatches(len(self), size, drop_last=drop_last, certain=False))

    def drawn_from(self, plan: BatchPlan) -> dict[str, Drawn]:
        """Return the same for batches that are drawn by a plan without weights."""
        weight = self.columns.get(SAMPLE_WEIGHT)
        return {TARGET: Drawn(self.columns, plan if weight is None else plan.of_weighted_samples(weight))}


def drawn_by(loader: DataLoader[Any], world_size: int) -> dict[str, Drawn] | None:
    """Return how the batches of one process's loader, of ``world_size``, are drawn; None if that is not known.

    It is known if the data set is an :class:`IndexedDataset` with columns, and batches are shuffled by torch's own
    samplers or drawn by a plan without weights; other samplers may prefer some samples.
    """
    data, size, sampler = loader.dataset, loader.batch_size, loader.sampler
    if not isinstance(data, IndexedDataset) or len(data.columns) == 1:
        return None
    if isinstance(sampler, RankBatches):
        return None if sampler.plan.columns() else data.drawn_from(sampler.plan)
    if size is None:
        return None
    shuffled = isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(data)
    if not shuffled and not (isinstance(sampler, DistributedSampler) and sampler.shuffle):
        return None
    return data.drawn(size * world_size, drop_last=loader.drop_last)


def require_own_index(dataset: Any) -> None:
    """Refuse a data set derived from an :class:`IndexedDataset` in which ``index`` is not the position of a sample.

    In a ``ConcatDataset`` of two, two samples would share a row; in a ``Subset`` of one, rows would have no sample.

    Raises:
        DataError: with the data set to use instead.
    """
    if not isinstance(dataset, ConcatDataset | Subset) or (numbers := _numbers(dataset)) is None:
        return
    misplaced = (numbers != torch.arange(len(numbers))).nonzero().flatten()
    if len(misplaced):
        position, kind = int(misplaced[0]), type(dataset).__name__
        inside = "dataset, rows" if isinstance(dataset, Subset) else "[first, second]"
        raise DataError(
            f"sample {position} of the training data, a {kind} of {len(numbers)} samples, has the index "
            f"{int(numbers[position])} of an IndexedDataset inside it ({len(set(numbers.tolist()))} indices are "
            "different), so its row would be that of another sample. Number the whole training split, "
            f"IndexedDataset({kind}({inside}))."
        )


def _numbers(dataset: Any) -> Tensor | None:
    """The ``index`` of every sample; None if no :class:`IndexedDataset` sets it."""
    if isinstance(dataset, IndexedDataset):
        return torch.arange(len(dataset))
    if isinstance(dataset, Subset):
        inside = _numbers(dataset.dataset)
        return None if inside is None else inside[torch.as_tensor(list(dataset.indices), dtype=torch.int64)]
    if isinstance(dataset, ConcatDataset):
        parts = [part for part in map(_numbers, dataset.datasets) if part is not None]
        return torch.cat(parts) if len(parts) == len(dataset.datasets) else None
    return None


def _known_columns(dataset: Any, names: Sequence[str]) -> Mapping[str, Tensor]:
    if isinstance(dataset, IndexedDataset):
        return {name: column for name, column in dataset.columns.items() if name != "index"}
    if isinstance(dataset, Subset):
        rows = torch.as_tensor(list(dataset.indices), dtype=torch.int64)
        return {name: column[rows] for name, column in _known_columns(dataset.dataset, names).items()}
    if isinstance(dataset, ConcatDataset):
        parts = [_known_columns(part, names) for part in dataset.datasets]
        common = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: torch.cat([part[name] for part in parts]) for name in common}
    if isinstance(dataset, TensorDataset):
        return dict(list(zip(names, dataset.tensors, strict=False))[1:])
    if "y" not in names or not hasattr(dataset, "targets"):
        return {}
    transform = getattr(dataset, "target_transform", None)
    targets = torch.as_tensor(dataset.targets)
    return {"y": targets if transform is None else torch.as_tensor([transform(y) for y in targets.tolist()])}
