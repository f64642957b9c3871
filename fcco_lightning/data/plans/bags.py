"""Batches of a few positive and a few negative bags with some instances of each."""

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans.base import (
    BatchPlan,
    cycle,
    mean_product,
    most_of_each,
    none_drawn_of_each,
    require_keyed,
    sum_of_largest,
    with_strata,
)
from fcco_lightning.errors import DataError


class BagBatches(BatchPlan):
    """Every batch holds the same number of positive bags and of negative bags, with as many instances of each.

    The bags of each class are gone through in a random order and shuffled anew when exhausted, and so are the instances
    of every bag.  Where a bag has fewer instances than asked for, all are there and some occur twice or more.  So all
    batches are of one size.

    A batch is laid out instance by instance: one of every bag (the positive bags first), then the next of every bag in
    the same order, and so on.  Contiguous parts of it (one per process) hold about equal shares of every bag.

    Rows are weighted so that means over batches estimate means over all rows, and the strata (the bags) come along.

    Args:
        bags: bag of every row, shape (n,), int64.
        labels: label of its bag, shape (n,); a bag with a row of label 1 counts as positive.
        positive_bags: positive bags in a batch, <= their number.
        negative_bags: negative bags in a batch, <= their number.
        instances_per_bag: instances of each of them, over all processes together.
        seed: whole number >= 0.
        num_batches: batches in an epoch; None for as many as go through all bags once.

    Raises:
        ConfigError: if a number is out of range.
        DataError: if the columns do not fit, or there are fewer bags of a class than a batch asks for.
    """

    def __init__(
        self,
        bags: Tensor,
        labels: Tensor,
        positive_bags: int,
        negative_bags: int,
        instances_per_bag: int,
        seed: int = 0,
        *,
        num_batches: int | None = None,
    ) -> None:
        self.positive_bags = at_least("positive_bags", positive_bags, 1)
        self.negative_bags = at_least("negative_bags", negative_bags, 1)
        self.instances_per_bag = at_least("instances_per_bag", instances_per_bag, 1)
        super().__init__(len(bags), (self.positive_bags + self.negative_bags) * self.instances_per_bag, seed)
        require_keyed(bags, labels, "bags", "labels")
        self._bag: Tensor = torch.unique(bags, return_inverse=True)[1]
        self._sizes = torch.bincount(self._bag)
        self._positive = torch.bincount(self._bag[labels == 1], minlength=len(self._sizes)) > 0
        self._classes = self._bags_of_classes()
        self._rows = torch.split(torch.argsort(self._bag, stable=True), self._sizes.tolist())  # by bag
        if num_batches is None:
            num_batches = max(-(-len(members) // drawn) for members, drawn in self._classes)
        self.num_batches = at_least("num_batches", num_batches, 1)

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (batch_size,); entry j belongs to bag number j mod (their number) of the batch."""
        choices, generator = self.generators(epoch)
        chosen_bags = [list(islice(cycle(m, drawn, choices), self.num_batches)) for m, drawn in self._classes]
        cycles = [cycle(rows, self.instances_per_bag, generator) for rows in self._rows]  # shuffled when first drawn
        for chosen in map(torch.cat, zip(*chosen_bags, strict=True)):
            yield torch.stack([next(cycles[bag]) for bag in chosen.tolist()], dim=1).flatten()

    @property
    def strata(self) -> Tensor:
        """Bag of every row, numbered from 0; shape (n,), int64."""
        return self._bag

    @property
    def stratum_kinds(self) -> Tensor:
        """Bags of one class and size are drawn alike."""
        return 2 * self._sizes + self._positive

    @property
    def distinct(self) -> bool:
        """Whether every bag has as many instances as a batch asks for."""
        return bool((self._sizes >= self.instances_per_bag).all())

    def weights(self) -> Tensor | None:
        """Weight B / (n p) of a row that is in a batch p times on average."""
        chance = torch.empty(len(self._sizes), dtype=torch.float64)
        for members, drawn in self._classes:
            chance[members] = self.instances_per_bag * drawn / len(members) / self._sizes[members].double()
        return (self.batch_size / (self.num_rows * chance))[self._bag].float()

    def columns(self) -> dict[str, Tensor]:
        """``weight`` and the strata."""
        return with_strata(super().columns(), self._bag)

    def _absence(self, counts: Tensor) -> float:
        """Product over the classes, which are drawn from independently, of the mean over all choices of bags."""
        found = 1.0
        for members, drawn in self._classes:
            absences = none_drawn_of_each(self._sizes[members], counts[members], self.instances_per_bag)
            found *= mean_product(absences, drawn)
        return found

    def _most(self, counts: Tensor) -> int:
        own = most_of_each(self._sizes, counts, self.instances_per_bag)
        return sum(sum_of_largest(own[members], drawn) for members, drawn in self._classes)

    def _stratum_sizes(self) -> Tensor:
        return self._sizes

    def _second_half(self) -> Self:
        """The later instances of every bag, exactly so for an even number of instances."""
        half = copy.copy(self)
        half.instances_per_bag = self.instances_per_bag - self.instances_per_bag // 2
        return half

    def _bags_of_classes(self) -> list[tuple[Tensor, int]]:
        """The positive and the negative bags, each with how many of them are drawn."""
        kinds = (("positive", self._positive, self.positive_bags), ("negative", ~self._positive, self.negative_bags))
        for kind, members, drawn in kinds:
            if int(members.sum()) < drawn:
                raise DataError(
                    f"{kind}_bags={drawn} exceeds the {int(members.sum())} {kind} bags among {len(members)}. Lower it, "
                    "or check the columns `bag` and `y`."
                )
        return [(members.nonzero().flatten(), drawn) for _, members, drawn in kinds]
