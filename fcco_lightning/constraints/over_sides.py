"""Constraints composed of a statistic, the sides on which it is measured, and a comparison of these."""

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
    """Every row compares a statistic of its sides, which are sets of samples (of one class or of all classes).

    A batch without a sample of a side leaves the row unchanged.  If samples are drawn with different probabilities, the
    mean over the k samples of a side in a batch is a ratio of two estimates, with a bias of about 1/k.  It is therefore
    taken stratum by stratum (:class:`StrataOfSides`) if most batches have the samples for this; otherwise a small k
    causes a warning.  All means are one matrix product, with shapes that depend on the batch size only; they are
    weighted by the column ``weight`` if samples are not drawn uniformly.

    Args:
        statistic: the statistic of the samples of a side.
        over: the sides, and which of them a row compares.
        comparison: how the statistics of a row's sides are compared.
        kappa: tolerance.
        part: part of the batch; None for the objective's.

    Raises:
        ConfigError: if statistic, sides and comparison do not fit together.

    Attributes:
        strata: how the training samples of the sides are distributed over strata; None if strata are not used.
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
        """A batch measures a row if it holds a sample of each of its sides, of the row's class or of both."""
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
        some = torch.zeros(members.shape[1], dtype=torch.bool)  # joined constraints: one row each
        some[[side for sides, row in zip(self.over.rows, rows.tolist(), strict=True) if row for side in sides]] = True
        return StrataOfSides(members, strata, some, counted)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        return self.measure_at([outputs], batch)[0]

    def measure_at(self, points: Sequence[Tensor], batch: Columns) -> list[tuple[None, Rows]]:
        """See the base class; the samples' shares in the means are computed once for all points."""
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
        """Bounds that the constraint sets for the fraction of positive decisions in a split."""
        return 0.0, 1.0

    def _compared(self, numbers: Sequence[Tensor], batch: Columns) -> list[tuple[None, Rows]]:
        """The rows for each of several tensors of the samples' numbers, such as those at several weights."""
        shares, known = self._shares(batch, numbers[0].dtype)
        known = known.all(0, keepdim=True) if self.statistic.of_both_classes else known
        known_levels = known if self.statistic.levels == 1 else known.unsqueeze(2).expand(-1, -1, self.statistic.levels)
        weight = self._of_rows(known_levels).all(1)
        return [
            (None, Rows(self._of_rows(self.statistic.over(shares, sample_numbers)), weight))
            for sample_numbers in numbers
        ]

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
        if self.statistic.levels > 1:
            table = table.view(len(table), len(self.over.rows), -1, *table.shape[2:]).transpose(2, 3)
        return table.reshape(len(self.names), -1)
