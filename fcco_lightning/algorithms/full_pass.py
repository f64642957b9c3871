"""A pass over the data at one point, made of the batches of training."""

from typing import Any

import torch
from torch import Tensor

from fcco_lightning.engine import Reading, Term


class FullPass:
    """The values of all n rows at one point, from batches at that point: each row counts with its first value.

    With a batch plan that goes through the data without repeats, and from the start of an epoch, it takes an epoch.

    Attributes:
        values: of the rows, (n,), float64; NaN of rows that have not come.
        begun: whether a batch has come.
        complete: whether every row has come.
    """

    def __init__(self, term: Term, device: torch.device) -> None:
        self.values = torch.full((term.num_rows,), torch.nan, dtype=torch.float64, device=device)
        self.begun = self.complete = False

    def fresh(self, reading: Reading) -> Tensor:
        """Which rows of a reading come for the first time, (r,), bool."""
        known = self.values if reading.index is None else self.values.index_select(0, reading.index)
        return known.isnan() & reading.present

    def joined(self, reading: Reading, values: Tensor) -> Tensor:
        """The values of all rows with those (r, 1) of the rows that come for the first time."""
        known = self.values if reading.index is None else self.values.index_select(0, reading.index)
        new = torch.where(self.fresh(reading), values.detach()[:, 0].double(), known)
        return new if reading.index is None else self.values.index_copy(0, reading.index, new)

    def take(self, values: Tensor, *, complete: bool) -> None:
        """Take the values of :meth:`joined`, and whether they are those of all rows."""
        self.values, self.begun, self.complete = values, True, complete

    def forget(self) -> None:
        """Begin anew."""
        self.values = torch.full_like(self.values, torch.nan)
        self.begun = self.complete = False

    def state_dict(self) -> dict[str, Any]:
        """Tensors only."""
        return {"values": self.values.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""
        self.values.copy_(state["values"])
        missing = self.values.isnan()
        self.begun, self.complete = not bool(missing.all()), not bool(missing.any())
