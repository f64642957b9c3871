"""Batches with a fixed number of events, for survival times."""

from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans.balanced import BalancedBatches
from fcco_lightning.data.plans.base import with_strata
from fcco_lightning.errors import DataError


class EventBatches(BalancedBatches):
    """Every batch holds the same number of samples with an event and of censored ones.

    They are :class:`BalancedBatches` by the event: rows are weighted, and the strata (censored, event) come along, so
    that sums over a risk set can be estimated from the samples of a batch.

    Args:
        events: whether a row is an event (1) or censored (0), shape (n,).
        events_per_batch: rows with an event in a batch, over all processes together.
        censored_per_batch: censored rows in a batch, likewise.
        seed: whole number >= 0.
        allow_repeats: let a row occur twice in a batch that asks for more rows of a kind than there are.

    Raises:
        ConfigError: if a number is out of range.
        DataError: if a kind has no rows, or fewer than a batch asks for.
    """

    def __init__(
        self,
        events: Tensor,
        events_per_batch: int,
        censored_per_batch: int,
        seed: int = 0,
        *,
        allow_repeats: bool = False,
    ) -> None:
        at_least("events_per_batch", events_per_batch, 2)
        size = events_per_batch + at_least("censored_per_batch", censored_per_batch, 2)
        for value, kind in ((1, "events"), (0, "censored samples")):
            if not bool((events == value).any()):
                raise DataError(
                    f"Batches of events need both kinds of samples, but the {len(events)} training samples hold no "
                    f"{kind}. Use UniformSampling, or check the column."
                )
        super().__init__(events, size, seed, positive_fraction=events_per_batch / size, allow_repeats=allow_repeats)

    def columns(self) -> dict[str, Tensor]:
        """``weight`` and the strata."""
        return with_strata(super().columns(), self._strata)
