"""The multipliers of a constraint's rows: remembered, checkpointed and shared among processes as dual states are."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.constraints import Constraint, Multipliers
from fcco_lightning.outer import Multiplied, OuterFunction, excess, widest
from fcco_lightning.state import DualState
from fcco_lightning.state.processes import Processes


class MultiplierRows(nn.Module):
    """Row i holds what a rule of multipliers remembers of the sides of row i of a constraint.

    It is in units of the absolute value of the objective at the first batch, or of 1 where that is not positive.  That
    batch itself moves the weights by the objective alone: in an unknown unit nothing can be said of a multiplier.

    Args:
        rule: by which the multipliers are found.
        constraint: whose they are.
        dtype: of the rows.
        processes: that share the rows.

    Attributes:
        decisions: running means of how far the constraint's values on decisions are from the smooth ones; None where
            the multipliers follow the smooth values.
        pace: learning rate of the weights as a share of its largest value so far, on which the dual step depends.
    """

    unit: Tensor
    largest_rate: Tensor

    def __init__(self, rule: Multipliers, constraint: Constraint, dtype: torch.dtype, processes: Processes) -> None:
        super().__init__()
        self.register_buffer("unit", torch.tensor(float("nan"), dtype=dtype))
        self.rule, self.constraint = rule, constraint
        self.register_buffer("largest_rate", torch.zeros((), dtype=torch.float64))
        self._largest = self._seen = 0.0
        self._pace, self.pace = 1.0, torch.ones((), dtype=torch.float64)
        start = torch.tensor(rule.begin(constraint.together), dtype=dtype).repeat_interleave(constraint.sides)
        self.state = DualState(constraint.num_rows, len(start), dtype, processes)
        self.state.scatter_(None, start.expand(constraint.num_rows, -1))
        self.decisions: DualState | None = None
        if rule.decisions and constraint.smooths:
            self.decisions = DualState(constraint.num_rows, constraint.width, dtype, processes)

    def follow(self, optimizer: Optimizer) -> None:
        """Let the dual steps follow the schedule of the learning rate."""
        group = optimizer.param_groups[0]
        rate = float(group["lr"])
        self._seen = max(rate, float(group.get("initial_lr", 0.0)), self._largest)  # a schedule notes the first one
        pace = rate / self._seen if self._seen else 1.0
        if pace != self._pace:
            self._pace, self.pace = pace, torch.tensor(pace, dtype=torch.float64)

    def note_rate(self) -> None:
        """Remember the largest learning rate, now that a step with it is taken."""
        if self._seen != self._largest:
            self._largest = self._seen
            self.largest_rate.fill_(self._seen)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {"unit": self.unit, "largest_rate": self.largest_rate}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, number in kept.items():  # as rows are, in their digits whatever the module's precision
            setattr(self, name, number.to(getattr(self, name).device))
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._largest = self._seen = float(self.largest_rate)

    @torch.no_grad()
    def measure(self, objective: Tensor, *, zero_is_none: bool) -> None:
        """Take the unit from the first batch that measures the objective, given its estimate there.

        Args:
            objective: NaN where the batch does not measure it.
            zero_is_none: whether 0 means that, too.
        """
        size = objective.abs().to(self.unit.dtype)
        first = torch.where(size > 0, size, torch.where(size == 0, torch.nan if zero_is_none else 1.0, torch.nan))
        self.unit.copy_(torch.where(self.unit.isnan(), first, self.unit))

    def outer(self) -> OuterFunction:
        """L_i of all rows, at the present multipliers."""
        return self.constraint.signed(self._of_sides())

    def noted(self) -> Tensor:
        """What :meth:`outer_of` makes L_i of, shape (n, numbers + 1): what the rows hold, and the unit."""
        rows = self.state.gather(None)
        return torch.cat([rows, self.unit.nan_to_num(0.0).expand(len(rows), 1)], dim=1)

    def outer_of(self, noted: Tensor) -> OuterFunction:
        """L_i as it was when this was :meth:`noted`."""
        memory = noted[:, :-1].reshape(len(noted), -1, self.constraint.sides)
        return self.constraint.signed(self.rule.outer(memory, self.constraint.limit, noted[0, -1]))

    def moved(self, values: Tensor) -> Tensor:
        """What the rows hold next, shape (n, numbers), from their inner values u_i (n, k)."""
        exceeded, memory = excess(self._signed(values), self.constraint.limit, self.constraint.sides), self._memory()
        return self.rule.moved(memory, exceeded.to(memory.dtype), self.pace).flatten(1)

    @torch.no_grad()
    def at(self, values: Tensor) -> Tensor:
        """What multiplies grad h_i in the gradient, shape (n,); of two sides, how much one pushes more than the other.

        Args:
            values: the inner values u_i of all rows, shape (n, k); where they are not known (NaN), the multiplier is
                that at ``h_i = 0``.
        """
        multiplied = self._of_sides()
        pressure = multiplied.pressure(self._signed(values))
        pressure = torch.where(pressure.isnan(), multiplied.multiplier.to(pressure.dtype), pressure)
        return pressure[:, 0] if self.constraint.sides == 1 else (pressure[:, 0] - pressure[:, 1]).abs()

    def _memory(self) -> Tensor:
        """What is remembered, shape (n, numbers, sides)."""
        rows = self.state.gather(None)
        return rows.view(len(rows), -1, self.constraint.sides)

    def _of_sides(self) -> Multiplied:
        return self.rule.outer(self._memory(), self.constraint.limit, self.unit.nan_to_num(0.0))

    def _signed(self, values: Tensor) -> Any:
        """``h + kappa``, or s of two sides, shape (n, 1)."""
        return self.constraint.number(values.to(widest(values))).unsqueeze(1)
