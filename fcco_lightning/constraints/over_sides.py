"""Constraints in three parts: a statistic, the sides on which it is measured, and how these are compared."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.constraints.base import Constraint
from fcco_lightning.constraints.compared import AtLeastTimes, Comparison
from fcco_lightning.constraints.decisions import Decisions
from fcco_lightning.constraints.measured import MeanOf, Statistic
from fcco_lightning.constraints.sides import Sides, StrataOfSides
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import KNOWN_STRATUM, POPULATION, SAMPLE_WEIGHT, Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.ratios import shares_of, warn_of_ratios


class OverSides(Constraint):
    """Every row compares a statistic of its sides: sets of samples, of a class or of all.

    A batch without a sample of a side leaves the row untouched.  A mean over the k samples of a side in a batch is a
    ratio of two estimates where these are drawn with different probabilities, and biased by about 1/k.  So it is taken
    stratum by stratum (:class:`StrataOfSides`) where batches mostly have samples for that; elsewhere a warning says so
    if k is small.  All means are taken at once, as one product of matrices, in shapes that follow from the batch's size
    alone; they are weighted by the column ``weight`` where samples are not drawn uniformly.

    Args:
        statistic: what is measured of the samples of a side.
        over: the sides, and which of them a row compares.
        comparison: how.
        kappa: tolerance.
        part: which loader's samples; None for the objective's.

    Raises:
        ConfigError: if the three do not go together.

    Attributes:
        strata: how the training samples of the sides are spread over strata; None where that plays no role.
    """

    strata: StrataOfSides | None = None

    def __init__(
        self,
        statistic: Statistic,
        over: Sides,
        comparison: Comparison,
        kappa: float,
        part: str | tuple[str, ...] | None = None,
    ) -> None:
        self.statistic, self.over, self.comparison, self.kappa, self.part = statistic, over, comparison, kappa, part
        self.range = statistic.range
        self._name()
        self._require_fitting()

    def _require_fitting(self) -> None:
        statistic, over = self.statistic, self.over
        numbers = statistic.numbers * len(over.rows[0])
        if numbers != self.width:
            raise ConfigError(
                f"{type(self.comparison).__name__} compares {self.width} numbers, and {type(statistic).__name__} of "
                f"{len(over.rows[0])} side(s) gives {numbers}. Use a comparison of {numbers}."
            )
        compared = self.comparison
        if isinstance(compared, AtLeastTimes) and compared.ratio > 1:
            pairs = {tuple(sides) for sides in over.rows}
            if any(sides[::-1] in pairs for sides in pairs):
                raise ConfigError(
                    f"ratio={compared.ratio:g} of AtLeastTimes, both ways, asks each side to be larger than the other. "
                    f"Use ratio={1 / compared.ratio:.3g} for at most {compared.ratio:g} times as much."
                )
        if statistic.of_both_classes and list(over.classes) != [1, 0]:
            raise ConfigError(
                f"{type(statistic).__name__} needs sides with classes=[1, 0], got {list(over.classes)}: it is measured "
                "on the samples of both."
            )
        classes = 1 if statistic.of_both_classes else max(1, len(over.classes))
        rows = classes * len(over.rows) * statistic.levels
        if rows != len(over.names):
            raise ConfigError(
                f"there are {rows} rows, of {classes} class(es), {len(over.rows)} comparison(s) and {statistic.levels} "
                f"level(s), and {len(over.names)} names. Give the sides one of `kinds` for every class, and one of "
                "`levels` for every level of the statistic."
            )

    def adapt(self, datamodule: Any) -> None:
        self.over.adapt(datamodule)
        self._name()

    def _name(self) -> None:
        self.names = self.over.names
        picked = [side for sides in self.over.rows for side in sides]
        self._picked = None if picked == list(range(len(picked))) else Known(torch.tensor(picked))

    def decide_by(self, decisions: Decisions) -> None:
        if isinstance(self.statistic, MeanOf):
            self.statistic.quantity = decisions.rate(self.statistic.quantity)

    def check(self, outputs: Any, batch: Any) -> None:
        self.over.check(batch, self)
        some = None if self.strata is None else self.strata.some
        if self.strata is None or some is not None:
            members = self.over.members(batch, self)
            ratios = members if some is None else members[:, ~some.like(members)]
            others = f" or another of {len(self.names)}" if len(self.names) > 1 else ""
            warn_of_ratios(ratios.flatten(0, 1), batch, f"the constraint {self.names[0]!r}{others}")
        self.statistic.check(outputs, batch)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch measures a row if it contains a sample of each of its sides, of the class or of both classes."""
        members, rows = self.over.of_split(columns, self), self.over.rows
        if self.statistic.of_both_classes:
            return [[masks[side] for masks in members for side in sides] for sides in rows]
        by_class = [[masks[side] for side in sides] for masks in members for sides in rows]
        return [sides for sides in by_class for _ in range(self.statistic.levels)]

    def over_strata(self, columns: Columns, strata: Tensor, rows: Tensor) -> StrataOfSides:
        members, counted = self.over.members(columns, self), None
        if SAMPLE_WEIGHT in columns:
            counted = columns[SAMPLE_WEIGHT].double(), columns[POPULATION]
        if bool(rows.all()):
            return StrataOfSides(members, strata, counted=counted)
        some = torch.zeros(members.shape[1], dtype=torch.bool)  # joined constraints have a row and sides each
        some[[side for sides, row in zip(self.over.rows, rows.tolist(), strict=True) if row for side in sides]] = True
        return StrataOfSides(members, strata, some, counted)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        return self.measure_at([outputs], batch)[0]

    def measure_at(self, points: Sequence[Tensor], batch: Columns) -> list[tuple[None, Rows]]:
        """The shares of the samples in the means are the same at all points, and computed once."""
        return self._compared([self.statistic.of_samples(outputs, batch) for outputs in points], batch)

    @property
    def smooths(self) -> bool:
        return self.statistic.smooths

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:
        if not self.smooths:
            return super().decided(outputs, batch)
        return self._compared([self.statistic.of_decisions(outputs.detach(), batch)], batch)[0][1].values

    def vacuous(self, outputs: Tensor, batch: Columns, *, decisions: bool = False) -> str | None:
        return self.statistic.vacuous(outputs, batch, self.positive_share(), decisions=decisions and self.smooths)

    def positive_share(self) -> tuple[float, float]:
        """Between which shares of all samples of a split the positive decisions are asked to be."""
        return 0.0, 1.0

    def _compared(self, numbers: Sequence[Tensor], batch: Columns) -> list[tuple[None, Rows]]:
        """The rows for each of several numbers of the samples, such as those at several weights."""
        shares, known = self._shares(batch, numbers[0].dtype)
        known = known.all(0, keepdim=True) if self.statistic.of_both_classes else known
        known_levels = known if self.statistic.levels == 1 else known.unsqueeze(2).expand(-1, -1, self.statistic.levels)
        weight = self._of_rows(known_levels).all(1)
        return [
            (None, Rows(self._of_rows(self.statistic.over(shares, sample_numbers)), weight))
            for sample_numbers in numbers
        ]

    def _shares(self, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What every sample counts in the mean over each class and side, and of which of these the batch has enough.

        Args:
            batch: columns.
            dtype: of the shares.

        Returns: shares of sum 1, or 0 where there is no sample, shape (c, s, B), and a mask (c, s), bool.
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
        """What the rows compare, (m, k), by class, row and level, from a table of classes and sides.

        Args:
            table: shape (c, s) or (c, s, t), with t levels, or numbers that a side gives to its row.
        """
        if self._picked is not None:
            table = table.index_select(1, self._picked.like(table))
        if self.statistic.levels > 1:
            table = table.view(len(table), len(self.over.rows), -1, *table.shape[2:]).transpose(2, 3)
        return table.reshape(len(self.names), -1)
