"""The multipliers of a constraint's rows, stored, checkpointed and shared among processes as dual states."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.constraints import Constraint, Multipliers
from fcco_lightning.numerics import widest
from fcco_lightning.outer import Multiplied, OuterFunction, excess
from fcco_lightning.state import DualState
from fcco_lightning.state.processes import Processes


class MultiplierRows(nn.Module):
    """Row i holds the multipliers of row i of a constraint, and what else their update rule remembers.

    Multipliers are stored in units of the absolute value of the objective at the first batch, or of 1 if that is 0.  In
    that batch itself the weights follow the objective alone, as the unit is not known yet.

    Args:
        rule: the update rule of the multipliers.
        constraint: the constraint.
        dtype: type of the rows.
        processes: the processes that share the rows.

    Attributes:
        decisions: running averages of the constraint's values on decisions minus the smooth ones; None if the
            multipliers follow the smooth values.
        pace: present learning rate of the weights over its largest value so far, which scales the dual step.
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
        """Scale the dual steps with the present learning rate."""
        group = optimizer.param_groups[0]
        rate = float(group["lr"])
        self._seen = max(rate, float(group.get("initial_lr", 0.0)), self._largest)  # schedulers store the initial rate
        pace = rate / self._seen if self._seen else 1.0
        if pace != self._pace:
            self._pace, self.pace = pace, torch.tensor(pace, dtype=torch.float64)

    def note_rate(self) -> None:
        """Store the largest learning rate; called when a step with it is taken."""
        if self._seen != self._largest:
            self._largest = self._seen
            self.largest_rate.fill_(self._seen)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {"unit": self.unit, "largest_rate": self.largest_rate}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, number in kept.items():  # like rows they keep their type, whatever the module's precision
            setattr(self, name, number.to(getattr(self, name).device))
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._largest = self._seen = float(self.largest_rate)

    @torch.no_grad()
    def measure(self, objective: Tensor, *, zero_is_none: bool) -> None:
        """Set the unit from the first batch that measures the objective.

        Args:
            objective: estimate of the objective on a batch, a scalar; NaN if the batch does not measure it.
            zero_is_none: whether 0 also means that the batch does not measure it.
        """
        size = objective.abs().to(self.unit.dtype)
        first = torch.where(size > 0, size, torch.where(size == 0, torch.nan if zero_is_none else 1.0, torch.nan))
        self.unit.copy_(torch.where(self.unit.isnan(), first, self.unit))

    def outer(self) -> OuterFunction:
        """The outer functions L_i of all rows with the present multipliers."""
        return self.constraint.signed(self._of_sides())

    def noted(self) -> Tensor:
        """The present rows and the unit, shape (n, numbers + 1), as an argument for :meth:`outer_of`."""
        rows = self.state.gather(None)
        return torch.cat([rows, self.unit.nan_to_num(0.0).expand(len(rows), 1)], dim=1)

    def outer_of(self, noted: Tensor) -> OuterFunction:
        """The outer functions L_i at the time when ``noted`` was returned by :meth:`noted`."""
        memory = noted[:, :-1].reshape(len(noted), -1, self.constraint.sides)
        return self.constraint.signed(self.rule.outer(memory, self.constraint.limit, noted[0, -1]))

    def moved(self, values: Tensor) -> Tensor:
        """The next values of the rows, shape (n, numbers), given the inner values u_i (n, k)."""
        exceeded, memory = excess(self._signed(values), self.constraint.limit, self.constraint.sides), self._memory()
        return self.rule.moved(memory, exceeded.to(memory.dtype), self.pace).flatten(1)

    @torch.no_grad()
    def at(self, values: Tensor) -> Tensor:
        """The factor on grad h_i in the gradient, shape (n,); of two sides, the absolute difference of their factors.

        Args:
            values: the inner values u_i of all rows, shape (n, k); where they are unknown (NaN), the factor at ``h_i =
                0`` is returned.
        """
        multiplied = self._of_sides()
        pressure = multiplied.pressure(self._signed(values))
        pressure = torch.where(pressure.isnan(), multiplied.multiplier.to(pressure.dtype), pressure)
        return pressure[:, 0] if self.constraint.sides == 1 else (pressure[:, 0] - pressure[:, 1]).abs()

    def _memory(self) -> Tensor:
        """The stored numbers of the rule, shape (n, numbers, sides)."""
        rows = self.state.gather(None)
        return rows.view(len(rows), -1, self.constraint.sides)

    def _of_sides(self) -> Multiplied:
        return self.rule.outer(self._memory(), self.constraint.limit, self.unit.nan_to_num(0.0))

    def _signed(self, values: Tensor) -> Any:
        """``h + kappa``, or the signed value s if a constraint has two sides, shape (n, 1)."""
        return self.constraint.number(values.to(widest(values))).unsqueeze(1)
