"""The multipliers of a constraint's rows: remembered, checkpointed and shared among processes as dual states are."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.constraints import Constraint, Multipliers
from fcco_lightning.distributed import Processes
from fcco_lightning.numerics import send
from fcco_lightning.outer import Multiplied, OuterFunction, excess
from fcco_lightning.state import DualState, Place


class MultiplierRows(nn.Module):
    """Row i holds what a rule of multipliers remembers of the sides of row i of a constraint.

    It is in units of the absolute value of the objective at the first batch, or of 1 where that is not positive.  That
    batch itself moves the weights by the objective alone: in an unknown unit nothing can be said of a multiplier.

    Args:
        rule: by which the multipliers are found.
        constraint: whose they are.
        dtype: of the rows.
        processes: that share the rows.
    """

    unit: Tensor

    def __init__(self, rule: Multipliers, constraint: Constraint, dtype: torch.dtype, processes: Processes) -> None:
        super().__init__()
        self.register_buffer("unit", torch.tensor(float("nan"), dtype=dtype))
        self.rule, self.constraint, self._measured = rule, constraint, False
        start = torch.tensor(rule.begin(constraint.together), dtype=dtype).repeat_interleave(constraint.sides)
        self.state = DualState(constraint.num_rows, len(start), dtype, processes)
        self.state.write(torch.arange(constraint.num_rows), start.expand(constraint.num_rows, -1))

    @torch.no_grad()
    def measure(self, estimates: Mapping[str, Tensor]) -> None:
        """Take the unit from the first batch that speaks of the objective."""
        if self._measured:  # looked at on the device once only, since a step waits for it
            return
        if bool(self.unit.isnan()) and "objective" in estimates:
            size = estimates["objective"].abs().to(self.unit.dtype)
            self.unit.copy_(torch.where(size > 0, size, 1.0))
        self._measured = not bool(self.unit.isnan())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._measured = False  # the unit is that of the checkpoint, which may not know it

    def outer(self, index: Tensor | None = None) -> OuterFunction:
        """L_i of the rows ``index`` (b,), or of all, at the present multipliers."""
        constraint = self._of_rows(index)
        return constraint.signed(self._of_sides(self._memory(self._all() if index is None else index), constraint))

    def moved(self, index: Tensor, values: Tensor, pace: float) -> tuple[Place, Tensor]:
        """Where the rows ``index`` (b,) lie, and what they hold next.

        Args:
            index: rows, all different, on the host.
            values: their inner values u_i, shape (b, k).
            pace: learning rate of the weights as a share of its first value.
        """
        place = self.state.locate(index)
        exceeded = excess(self._signed(values, index), self._of_rows(index).limit, self._sides)
        rows = self.rule.moved(self._memory(place), exceeded, pace)
        return place, rows.flatten(1)

    @torch.no_grad()
    def at(self, values: Tensor) -> Tensor:
        """What multiplies grad h_i in the gradient, shape (n,); of two sides, how much one pushes more than the other.

        Args:
            values: the inner values u_i of all rows, shape (n, k); where they are not known (NaN), the multiplier is
                that at ``h_i = 0``.
        """
        of_sides = self._of_sides(self._memory(self._all()), self.constraint)
        pressure = of_sides.pressure(self._signed(values))
        pressure = torch.where(pressure.isnan(), of_sides.multiplier.to(pressure.dtype), pressure)
        return pressure[:, 0] if self._sides == 1 else (pressure[:, 0] - pressure[:, 1]).abs()

    @property
    def _sides(self) -> int:
        return self.constraint.sides

    def _all(self) -> Tensor:
        return torch.arange(self.state.num_rows)

    def _of_rows(self, index: Tensor | None) -> Constraint:
        return self.constraint if index is None else self.constraint.take(send(index, self.state.rows))

    def _memory(self, index: Tensor | Place) -> Tensor:
        """What is remembered of b rows, shape (b, values, sides)."""
        rows = self.state.read(index).values
        return rows.view(len(rows), -1, self._sides)

    def _of_sides(self, memory: Tensor, constraint: Constraint) -> Multiplied:
        return self.rule.outer(memory, constraint.limit).scaled(self.unit.nan_to_num(0.0))

    def _signed(self, values: Tensor, index: Tensor | None = None) -> Tensor:
        """``h + kappa``, or s of two sides, of the rows ``index`` (b,) or of all, shape (b, 1)."""
        constraint = self._of_rows(index)
        values = values.to(self.state.rows.dtype)
        return constraint.number(values).value(values).unsqueeze(1)
