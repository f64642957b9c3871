"""A pass over the data at one point, made of the batches of training."""

from typing import Any

import torch
from torch import Tensor

from fcco_lightning.engine import Reading, Term
from fcco_lightning.numerics import send


class FullPass:
    """The values of all n rows at one point, from batches at that point: each row counts with its first value.

    With a batch plan that goes through the data without repeats, and from the start of an epoch, it takes an epoch.

    Attributes:
        values: of the rows, (n,), float64; NaN of rows that have not come.
    """

    def __init__(self, term: Term, device: torch.device) -> None:
        self.values = torch.full((term.num_rows,), torch.nan, dtype=torch.float64, device=device)

    @property
    def complete(self) -> bool:
        """Whether every row has come."""
        return not bool(self.values.isnan().any())

    @property
    def begun(self) -> bool:
        """Whether a row has come."""
        return not bool(self.values.isnan().all())

    def fresh(self, reading: Reading) -> Tensor:
        """Which rows of a reading come for the first time, (b,), bool."""
        return self.values.index_select(0, send(reading.index, self.values)).isnan()

    def add(self, reading: Reading, values: Tensor) -> None:
        """Take the values (b, 1) of the rows that come for the first time."""
        fresh = self.fresh(reading)
        index = send(reading.index, self.values)
        known = self.values.index_select(0, index)
        self.values.index_copy_(0, index, torch.where(fresh, values.detach()[:, 0].double(), known))

    def forget(self) -> None:
        """Begin anew."""
        self.values.fill_(torch.nan)

    def state_dict(self) -> dict[str, Any]:
        """Tensors only."""
        return {"values": self.values.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""
        self.values.copy_(state["values"])
