"""Draws made of other draws: repeated, twice over, or with epochs of another length."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans import BatchPlan, RepeatedBatches
from fcco_lightning.data.sampling.base import Sampling
from fcco_lightning.data.sampling.groups import BagSampling, GroupSampling, QuerySampling
from fcco_lightning.data.sampling.rows import UniformSampling
from fcco_lightning.data.table import LabelTable, TensorTable
from fcco_lightning.errors import ConfigError


@dataclass(frozen=True)
class RepeatedSampling(Sampling):
    """Every sample of a batch comes several times, to be perturbed anew each time: :class:`RepeatedBatches`.

    Args:
        batches: how the samples are drawn; its ``batch_size`` counts each of them once.
        copies: how often a sample comes in its batch, >= 2.

    Raises:
        ConfigError: if ``copies`` is out of range, or ``batches`` are not single draws.
    """

    batches: Sampling
    copies: int = 4

    def __post_init__(self) -> None:
        at_least("copies", self.copies, 2)
        if isinstance(self.batches, TwoDraws):
            raise ConfigError("RepeatedSampling takes single draws as batches, got TwoDraws. Put it inside TwoDraws.")

    def in_parts(self, parts: int) -> tuple["RepeatedSampling", int]:
        batches, size = self.batches.in_parts(parts)
        return replace(self, batches=batches), self.copies * size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> RepeatedBatches:
        """Return the union batches of ``batches``, repeated."""
        return RepeatedBatches(self.batches.plan(columns, seed, world_size), self.copies)


@dataclass(frozen=True)
class TwoDraws(Sampling):
    """Two independent draws in every batch, as methods need that move dual and primal variables by different samples.

    Training batches then have the parts "target" and "dual".  Both have the same composition: as many rows of every
    class, and the same groups in the same order.

    Args:
        batches: how each of them is drawn.

    Raises:
        ConfigError: if ``batches`` is itself a pair of draws.
    """

    batches: Sampling

    def __post_init__(self) -> None:
        if isinstance(self.batches, TwoDraws):
            raise ConfigError("TwoDraws takes single draws as batches, got TwoDraws. Leave one of the two out.")

    def in_parts(self, parts: int) -> tuple["TwoDraws", int]:
        batches, size = self.batches.in_parts(parts)
        return TwoDraws(batches), size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return the first draw; the other one is its :meth:`~BatchPlan.second_draw`."""
        return self.batches.plan(columns, seed, world_size)

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return what the single draws are drawn from."""
        return self.batches.table(table)


def with_num_batches(sampling: Sampling, num_batches: int) -> Sampling:
    """Return ``sampling`` with epochs of ``num_batches`` batches, so that it keeps pace with another part.

    Raises:
        ConfigError: if it is of a kind whose epochs have a length of their own, or was given another length.
    """
    if isinstance(sampling, TwoDraws):
        return TwoDraws(with_num_batches(sampling.batches, num_batches))
    if not isinstance(sampling, UniformSampling | GroupSampling | QuerySampling | BagSampling):
        raise ConfigError(f"{type(sampling).__name__} has epochs of a fixed length. Use GroupSampling here.")
    if sampling.num_batches not in (None, num_batches):
        raise ConfigError(
            f"num_batches={sampling.num_batches} is not the {num_batches} of the target's batches. Leave it out."
        )
    return replace(sampling, num_batches=num_batches)
