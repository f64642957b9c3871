"""A DataLoader that resumes exactly at the batch of a checkpoint."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from fcco_lightning.data.batches import BatchPlan
from fcco_lightning.data.table import collate
from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.checkpoint_schema import LOADER, require


class RankBatches(DistributedSampler[Any]):
    """This process's share of a plan's batches: rows [rank U // P, (rank + 1) U // P) of a union batch of U rows.

    It is a ``DistributedSampler`` so that Lightning does not replace it and calls its ``set_epoch``, but it yields
    whole batches.

    Args:
        dataset: the data set that the batches index.
        plan: plan of the union batches of all ``world_size`` processes.
        rank: number of this process, in 0..world_size-1.
        world_size: number of processes P.
    """

    def __init__(self, dataset: Dataset[Any], plan: BatchPlan, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(dataset, num_replicas=world_size, rank=rank, shuffle=False)
        self.plan = plan
        self.first = 0

    def __len__(self) -> int:
        return self.plan.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in islice(self.plan.batches(int(self.epoch)), self.first, None):
            size = len(batch)
            yield batch[self.rank * size // self.num_replicas : (self.rank + 1) * size // self.num_replicas].tolist()


class OrderedShare(DistributedSampler[Any]):
    """One process's consecutive part of a data set, without repeats, for evaluation; sizes differ by one at most."""

    def __init__(self, dataset: Dataset[Any], rank: int = 0, world_size: int = 1) -> None:
        super().__init__(dataset, num_replicas=world_size, rank=rank, shuffle=False)
        size = len(dataset)  # type: ignore[arg-type]
        self.part = range(rank * size // world_size, (rank + 1) * size // world_size)

    def __len__(self) -> int:
        return len(self.part)

    def __iter__(self) -> Iterator[int]:
        return iter(self.part)


class ResumableLoader(DataLoader[Any]):
    """Training loader whose position is part of a checkpoint, with any number of workers and processes.

    Batches are those of ``plan`` for the current epoch.  ``set_epoch`` of :attr:`sampler` (which Lightning calls)
    starts another epoch; iterating again without it repeats the epoch.  The global random state does not change.

    Args:
        dataset: map-style data set; its ``__getitems__`` and ``set_epoch`` are used if it has them.
        plan: plan of the union batches of all processes.
        rank: number of this process.
        world_size: number of processes.
        num_workers: number of worker processes; batches that they have prefetched do not count as given.
        **options: further arguments of ``DataLoader``.

    Example:
        >>> from fcco_lightning.data.batches import UniformBatches
        >>> from fcco_lightning.data.table import TensorTable
        >>> table = TensorTable({"y": torch.zeros(6)})
        >>> loader = ResumableLoader(table, UniformBatches(6, batch_size=2))
        >>> everything = [batch["index"].tolist() for batch in loader]
        >>> loader.load_state_dict({"epoch": 0, "given": 1, "batch_size": 2})
        >>> [batch["index"].tolist() for batch in loader] == everything[1:]
        True
    """

    sampler: RankBatches

    def __init__(
        self,
        dataset: Dataset[Any],
        plan: BatchPlan,
        *,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        share = RankBatches(dataset, plan, rank, world_size)
        options.setdefault("collate_fn", collate)
        # Without its own generator the loader would draw the workers' seed from the global random state in every epoch,
        # and random numbers of a resumed run (dropout) would differ from those of an uninterrupted one.
        worker_seeds = torch.Generator()
        super().__init__(dataset, batch_sampler=share, num_workers=num_workers, generator=worker_seeds, **options)
        # torch forbids the argument `sampler` with `batch_sampler`, but Lightning looks at the attribute `sampler` for
        # set_epoch and for a DistributedSampler, which it does not replace.
        self.__dict__["sampler"] = share
        self._counted_epoch = self._num_yielded = 0
        self._loaded: tuple[int, int] | None = None  # epoch and batches given, until an iteration starts

    def __len__(self) -> int:
        return self.sampler.plan.num_batches

    # A generator function on purpose: Lightning calls iter() before set_epoch, so the epoch must not be read before the
    # first batch is requested.
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        share, epoch = self.sampler, int(self.sampler.epoch)
        share.first = self._num_yielded = self._loaded[1] if self._loaded and self._loaded[0] == epoch else 0
        self._counted_epoch, self._loaded = epoch, None
        self.generator.manual_seed(share.plan.generator(epoch).initial_seed())
        if hasattr(self.dataset, "set_epoch"):  # its random transforms depend on the epoch
            self.dataset.set_epoch(epoch)
        for batch in super().__iter__():
            self._num_yielded += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the ``epoch``, the number of batches ``given`` in it and the union ``batch_size``."""
        epoch = int(self.sampler.epoch)
        counted = self._loaded or (self._counted_epoch, self._num_yielded)
        return {
            "epoch": epoch,
            "given": counted[1] if counted[0] == epoch else 0,
            "batch_size": self.sampler.plan.batch_size,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume after the last batch given before ``state`` was taken, possibly with another number of processes.

        The next iteration is the rest of that epoch, which may be empty, unless ``set_epoch`` chooses another epoch,
        which then starts at its first batch.

        Raises:
            CheckpointError: if the union batch has another size, so that the position is not defined, or the state is
                incomplete.
        """
        require(state, LOADER, "the loader's state")
        size = self.sampler.plan.batch_size
        if state["batch_size"] != size:
            raise CheckpointError(
                f"The checkpoint's loader gave union batches of {state['batch_size']} rows, this one gives {size}. "
                f"Set batch_size so that batch_size * number of processes = {state['batch_size']}."
            )
        self.sampler.set_epoch(state["epoch"])
        self._loaded = state["epoch"], state["given"]
