"""Constraints composed of a quantity, the sides on which it is measured, and a comparison of these."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.constraints.base import Comparison, Constraint
from fcco_lightning.constraints.decisions import Decisions
from fcco_lightning.constraints.measured import PrecisionOf
from fcco_lightning.constraints.sides import Sides, StrataOfSides
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import KNOWN_STRATUM, POPULATION, SAMPLE_WEIGHT, Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import Quantity
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.ratios import shares_of, warn_of_ratios
from fcco_lightning.objectives.vacuity import enough_decisions


class OverSides(Constraint):
    """Every row compares a quantity of its sides, which are sets of samples (of one class or of all classes).

    A batch without a sample of a side leaves the row unchanged.  If samples are drawn with different probabilities, the
    mean over the k samples of a side in a batch is a ratio of two estimates, with a bias of about 1/k.  It is therefore
    taken stratum by stratum (:class:`StrataOfSides`) if most batches have the samples for this; otherwise a small k
    causes a warning.  All means are one matrix product, with shapes that depend on the batch size only; they are
    weighted by the column ``weight`` if samples are not drawn uniformly.

    Args:
        quantity: the quantity of the samples of a side.
        over: the sides, and which of them a row compares.
        comparison: how the values of a row's sides are compared.
        kappa: tolerance.
        part: part of the batch; None for the objective's.

    Raises:
        ConfigError: if quantity, sides and comparison do not fit together, or no values can meet a single row, such as
            a rate below 0.

    Attributes:
        strata: how the training samples of the sides are distributed over strata; None if strata are not used.
    """

    strata: StrataOfSides | None = None

    def __init__(
        self,
        quantity: Quantity,
        over: Sides,
        comparison: Comparison,
        kappa: float,
        part: str | tuple[str, ...] | None = None,
    ) -> None:
        self.quantity, self.over, self.comparison, self.kappa, self.part = quantity, over, comparison, kappa, part
        self.range = quantity.range
        self._name()
        self._require_fitting()
        if self.width == self.num_rows == 1:
            self._require_reachable()

    def _require_fitting(self) -> None:
        over, sides, levels = self.over, len(self.over.rows[0]), max(1, len(self.over.levels))
        numbers = sides * self.quantity.numbers
        if numbers != self.width * levels:
            raise ConfigError(
                f"the comparison is of {self.width} numbers, and {type(self.quantity).__name__} of {sides} side(s) "
                f"gives {numbers}, at {levels} level(s). Use a comparison of {numbers}, or name each of several levels "
                "of the quantity in `levels` of the sides."
            )
        weights = self.comparison.weights
        pairs = {tuple(row) for row in over.rows}
        is_ratio = self.sides == 1 and len(weights) == 2 and weights[0] < 0 < sum(weights)  # r u_2 - u_1, r > 1
        if is_ratio and any(pair[::-1] in pairs for pair in pairs):
            raise ConfigError(
                f"weights={weights} of the comparison, both ways, ask each side to be larger than the other. Use "
                f"(-1, {-weights[0] / weights[1]:.3g}) for at most {weights[1] / -weights[0]:g} times as much."
            )
        if self.quantity.of_both_classes and list(over.classes) != [1, 0]:
            raise ConfigError(
                f"{type(self.quantity).__name__} needs sides with classes=[1, 0], got {list(over.classes)}: it is "
                "measured on the samples of both."
            )
        classes = 1 if self.quantity.of_both_classes else max(1, len(over.classes))
        if classes * len(over.rows) * levels != len(over.names):
            raise ConfigError(
                f"there are {classes * len(over.rows) * levels} rows, of {classes} class(es), {len(over.rows)} "
                f"comparison(s) and {levels} level(s), and {len(over.names)} names. Give the sides one of `kinds` for "
                "every class."
            )

    @property
    def allowed(self) -> tuple[float, float]:
        """The interval that the constraint allows for the value of a row that compares a single one with a number."""
        target, (weight, *_) = sum(self.comparison.targets), self.comparison.weights
        least = target - self.tolerance if self.sides == 2 else -math.inf
        low, high = sorted((least / weight, (target + self.tolerance) / weight))
        return low, high

    def _require_reachable(self) -> None:
        (low, high), least, most = self.allowed, self.range.least, self.range.most
        below, above = least is not None and high < least, most is not None and low > most
        if below or above:
            required, bound = (f"at most {high:g}", f">= {least:g}") if below else (f"at least {low:g}", f"<= {most:g}")
            raise ConfigError(
                f"no model can reach the constraint {self.names[0]!r}: the mean of {self.quantity!r} is to be "
                f"{required}, and it is always {bound}. Change kappa{'' if self.sides == 1 else ' or target'}."
            )

    def adapt(self, datamodule: Any) -> None:
        self.over.adapt(datamodule)
        self._name()

    def _name(self) -> None:
        self.names = self.over.names
        picked = [side for sides in self.over.rows for side in sides]
        self._picked = None if picked == list(range(len(picked))) else Known(torch.tensor(picked))

    def decide_by(self, decisions: Decisions) -> None:
        if isinstance(self.quantity, PrecisionOf):
            self.quantity = PrecisionOf(decisions.rate(self.quantity.rate))
        else:
            self.quantity = decisions.rate(self.quantity)

    def check(self, outputs: Any, batch: Any) -> None:
        self.over.check(batch, self)
        some = None if self.strata is None else self.strata.some
        if self.strata is None or some is not None:
            members = self.over.members(batch, self)
            ratios = members if some is None else members[:, ~some.like(members)]
            others = f" or another of {len(self.names)}" if len(self.names) > 1 else ""
            warn_of_ratios(ratios.flatten(0, 1), batch, f"the constraint {self.names[0]!r}{others}")
        self.quantity.check(outputs, batch)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch measures a row if it holds a sample of each of its sides, of the row's class or of both."""
        self.over.check(columns, self, split=True)
        members, rows = self.over.members(columns, self), self.over.rows
        if self.quantity.of_both_classes:
            return [[masks[side] for masks in members for side in sides] for sides in rows]
        by_class = [[masks[side] for side in sides] for masks in members for sides in rows]
        return [sides for sides in by_class for _ in range(max(1, len(self.over.levels)))]

    def over_strata(self, columns: Columns, strata: Tensor, rows: Tensor) -> StrataOfSides:
        members, counted = self.over.members(columns, self), None
        if SAMPLE_WEIGHT in columns:
            counted = columns[SAMPLE_WEIGHT].double(), columns[POPULATION]
        if bool(rows.all()):
            return StrataOfSides(members, strata, counted=counted)
        some = torch.zeros(members.shape[1], dtype=torch.bool)  # joined constraints: one row each
        some[[side for sides, row in zip(self.over.rows, rows.tolist(), strict=True) if row for side in sides]] = True
        return StrataOfSides(members, strata, some, counted)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        return self.measure_at([outputs], batch)[0]

    def measure_at(self, points: Sequence[Tensor], batch: Columns) -> list[tuple[None, Rows]]:
        """See the base class; the samples' shares in the means are computed once for all points."""
        values, numbers = [self.quantity(outputs, batch) for outputs in points], self.quantity.numbers
        if values[0].shape[1:] not in (((), (1,)) if numbers == 1 else ((numbers,),)):
            raise DataError(
                f"{type(self).__name__} needs {'one number' if numbers == 1 else f'{numbers} numbers'} per sample, "
                f"{type(self.quantity).__name__} gave {tuple(values[0].shape)}. Use a quantity of one of them, such as "
                "a class of your own that picks it, in a constraint for each."
            )
        return self._compared(values, batch)

    @property
    def smooths(self) -> bool:
        return self.quantity.smooths

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:
        if not self.smooths:
            return super().decided(outputs, batch)
        return self._compared([self.quantity.decided(outputs.detach(), batch)], batch)[0][1].values

    def vacuous(self, outputs: Tensor, batch: Columns, *, decisions: bool = False) -> str | None:
        (low, high), (least, most) = self.quantity.positive_share(batch), (0.0, 1.0)
        if self.over.everyone:  # the constraint itself may bound the fraction of positive decisions
            least, most = self.allowed
        enough = enough_decisions(batch, len(outputs), (max(low, least), min(high, most)))
        return self.quantity.vacuous(outputs, batch, enough, decisions and self.smooths)

    def _compared(self, values: Sequence[Tensor], batch: Columns) -> list[tuple[None, Rows]]:
        """The rows for each of several tensors of the samples' quantities, such as those at several weights."""
        shares, known = self._shares(batch, values[0].dtype)
        known, levels = known.all(0, keepdim=True) if self.quantity.of_both_classes else known, len(self.over.levels)
        weight = self._of_rows(known.unsqueeze(2).expand(-1, -1, levels) if levels else known).all(1)
        return [(None, Rows(self._of_rows(self.quantity.over(shares, one)), weight)) for one in values]

    def _shares(self, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The weights of samples in the mean over each class and side, and a mask of means that the batch measures.

        Args:
            batch: columns.
            dtype: type of the shares.

        Returns: the shares, which sum to 1, or to 0 without samples, shape (c, s, B); and the mask (c, s), bool.
        """
        members = self.over.members(batch, self)
        if self.strata is None or KNOWN_STRATUM not in batch:
            shares, totals = shares_of(members, batch, dtype)
            return shares, totals.squeeze(-1) > 0
        by_strata, known = self.strata.shares(members, batch[KNOWN_STRATUM], dtype, batch.get(SAMPLE_WEIGHT))
        if self.strata.some is None:
            return by_strata, known
        ratios, totals = shares_of(members, batch, dtype)
        some = self.strata.some.like(members)
        return torch.where(some.unsqueeze(1), by_strata, ratios), torch.where(some, known, totals.squeeze(-1) > 0)

    def _of_rows(self, table: Tensor) -> Tensor:
        """The inner values (m, k) of the rows, ordered by class, row and level, from a table of classes and sides.

        Args:
            table: shape (c, s) or (c, s, t), with t levels or t numbers per side.
        """
        if self._picked is not None:
            table = table.index_select(1, self._picked.like(table))
        if self.over.levels:
            table = table.view(len(table), len(self.over.rows), -1, *table.shape[2:]).transpose(2, 3)
        return table.reshape(len(self.names), -1)
