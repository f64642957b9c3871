"""The interface of constraints: rows h_i(w) <= 0, each a function of inner values g_i(w)."""

import math
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fcco_lightning.checks import finite, non_negative
from fcco_lightning.errors import ConfigError, DataError, FCCOError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.measurable import Measurable
from fcco_lightning.outer import Absolute, Linear, OuterFunction, Range, RatioDifference, Shifted
from fcco_lightning.outer.composed import require_weights


@dataclass(frozen=True)
class Comparison:
    """How the inner values u of a row are compared: ``s <= kappa``, or ``|s| <= kappa``, for ``s = sum_j c_j u_j - t``.

    - ``Comparison()``: u <= kappa;
    - ``Comparison(sides=2, targets=(t,))``: |u - t| <= kappa;
    - ``Comparison((1, -1), sides=2)``: |u_1 - u_2| <= kappa;
    - ``Comparison((-1, r))``: r u_2 - u_1 <= kappa; for kappa = 0 it is u_1 >= r u_2, without a division;
    - ``Comparison((1, -1), sides=2, ratios=True)``: |u_1 / u_2 - u_3 / u_4| <= kappa.

    Args:
        weights: c, one finite number for each value that is compared; they must not all be 0.
        sides: 2 for ``|s| <= kappa``, 1 for ``s <= kappa``.
        targets: t, one number for all rows or one for each row; none for 0.
        ratios: whether ratios ``u_1 / u_2`` and ``u_3 / u_4`` take the place of u_1 and u_2; with ``weights=(1, -1)``.
    """

    weights: tuple[float, ...] = (1.0,)
    sides: Literal[1, 2] = 1
    targets: tuple[float, ...] = ()
    ratios: bool = False

    def __post_init__(self) -> None:
        require_weights(self.weights)
        for target in self.targets:
            finite("targets", target)
        if self.ratios and self.weights != (1, -1):
            raise ConfigError(f"weights must be (1, -1) with ratios=True, got {self.weights!r}. Leave ratios out.")

    @property
    def width(self) -> int:
        """k, the number of inner values of a row."""
        return len(self.weights) * (2 if self.ratios else 1)

    @property
    def equalises(self) -> bool:
        """Whether values are compared with each other, as for equal treatment, which random scores satisfy, too."""
        return len(self.weights) > 1

    @cached_property
    def _target(self) -> Tensor:
        return of_rows(self.targets)

    def signed(self, phi: OuterFunction) -> OuterFunction:
        """The outer function ``phi(s(.))`` of the inner values, for a function phi of one variable."""
        phi = Shifted(phi, self._target) if self.targets else phi
        if self.ratios:
            return RatioDifference(phi)
        return phi if self.weights == (1,) else Linear(phi, self.weights)


DIFFERENCE = Comparison((1.0, -1.0), sides=2)


def of_rows(numbers: Sequence[float]) -> Tensor:
    """Numbers of the rows as a tensor of shape (m, 1), or as a scalar tensor if all are equal."""
    alike = len(set(numbers)) == 1
    return torch.tensor(numbers[0] if alike else [[number] for number in numbers], dtype=torch.float64)


class _Itself(OuterFunction):
    """``f(u) = u`` of one variable, so that what is made with it is the number that other functions are given."""

    convex = True
    smooth = True

    def __call__(self, u: Tensor) -> Tensor:
        return u[:, 0]


class Constraint(Measurable, ABC):
    r"""m rows ``h_i(w) <= 0`` with ``h_i = h(g_i(w))`` for inner values g_i of width k.

    A penalty phi of one variable (hinge, smoothed hinge, squared hinge, at tolerance kappa) becomes an outer function
    of g_i through :meth:`outer`, so that a constraint is one more compositional term.  :meth:`measure` estimates the
    g_i of all m rows in their order; a row has weight 0 where the batch lacks samples that it compares.

    Attributes:
        kappa: the enforced tolerance.
        names: a short name for each of the m rows, used in logs and pictures.
        range: an interval that contains the inner values for all weights.
        comparison: how the inner values of a row are compared; by default a single value must be at most kappa.
        strata: the result of :meth:`over_strata`, set by the problem for its batches; None if means are not taken by
            strata.
    """

    kappa: float
    names: list[str]
    range: Range = Range()
    comparison: Comparison = Comparison()
    strata: Any = None
    _tolerance: float | None = None

    @property
    def width(self) -> int:  # type: ignore[override]
        """Number of inner values of a row."""
        return self.comparison.width

    @property
    def sides(self) -> Literal[1, 2]:
        """2 where ``h_i = |s_i| - kappa`` for a number s_i of either sign, else 1."""
        return self.comparison.sides

    @property
    def tolerance(self) -> float:
        """The tolerance that the user gave, which :meth:`violation` uses; a margin makes :attr:`kappa` smaller."""
        return self.kappa if self._tolerance is None else self._tolerance

    @property
    def limit(self) -> Tensor | float:
        """The enforced kappa: a number, or a tensor of shape (m, 1) if it differs between rows."""
        return self.kappa

    @property
    def least_kappa(self) -> float:
        """The smallest kappa for which the constraint can be met; -inf if it is not known."""
        if self.sides == 2:
            return 0.0
        return -math.inf if self.width > 1 or self.range.least is None else self.range.least

    def decide_by(self, decisions: Any) -> None:
        """Let rates without a threshold of their own be rates of the given decisions.

        Args:
            decisions: how scores become decisions, see :class:`~fcco_lightning.Decisions`.
        """

    def tighten(self, margin: float) -> None:
        """Enforce ``h_i <= -margin`` with a smaller kappa, but not below :attr:`least_kappa`.

        Multipliers use it at once, penalties from the next epoch on.

        Args:
            margin: in units of h, >= 0; 0 restores the tolerance that the user gave.
        """
        self._tolerance = self.tolerance
        self.kappa = max(self._tolerance - non_negative("margin", margin), min(self.least_kappa, self._tolerance))

    def standard_error(self, columns: Columns) -> float:
        r"""An upper bound on the standard error of a difference of two means, the largest of all rows.

        The mean of n numbers from an interval of length c has a standard error of at most ``c / (2 sqrt(n))``, and that
        of a difference of two means is the root of the sum of their squares.

        Args:
            columns: the columns of the training split.

        Returns: the bound, in units of h; 0 if it is not known, as for other comparisons.
        """
        least, most = self.range
        subsets = self.subsets(columns) if self.comparison == DIFFERENCE else None
        if subsets is None or least is None or most is None:
            return 0.0
        shares = (sum(1 / max(1, int(subset.sum())) for subset in row) for row in subsets)
        return (most - least) / 2 * math.sqrt(max(shares))

    @property
    def num_rows(self) -> int:
        """Number of rows h_i."""
        return len(self.names)

    @property
    def together(self) -> int:
        """Number of rows per constraint as the user gave it: all rows, unless several constraints were joined."""
        return self.num_rows

    def reference(self, outputs: object, batch: Columns) -> dict[str, Tensor]:  # noqa: ARG002
        """Columns (n,) to store about the initial weights; by default none.

        Args:
            outputs: the network's outputs with the initial weights, for a whole split.
            batch: the split's columns.
        """
        return {}

    def over_strata(self, columns: Columns, strata: Tensor, rows: Tensor) -> Any:  # noqa: ARG002
        """How the training samples that the rows compare are distributed over separately drawn strata.

        The result is set as :attr:`strata` if batches, which then have the column ``known_stratum``, are measured
        stratum by stratum; a row then needs samples from every stratum in which its subsets have samples.

        Args:
            columns: the columns of the training samples.
            strata: stratum of every sample, shape (n,), int64, -1 for samples that are never drawn.
            rows: the rows to measure in this way, a mask (m,), bool: all rows, or some of the rows of joined
                constraints.

        Returns: None, the default, if the constraint does not support this.
        """
        return None

    def outer(self, phi: OuterFunction) -> OuterFunction:
        """The outer function ``phi(h(.) + kappa)`` of the inner values: ``phi(s)``, or ``phi(|s|)`` with two sides."""
        return self.signed(phi if self.sides == 1 else Absolute(phi))

    def signed(self, phi: OuterFunction) -> OuterFunction:
        """The outer function ``phi(s(.))`` of the inner values; with one side ``s = h + kappa``."""
        return self.comparison.signed(phi)

    @cached_property
    def number(self) -> OuterFunction:
        """The number s_i as a function of the inner values, (b, k) -> (b,); with one side it is ``h_i + kappa``."""
        return self.signed(_Itself())

    def violation(self, values: Tensor) -> Tensor:
        """h_i with the :attr:`tolerance` as kappa, from inner values: (b, k) -> (b,).  Positive if violated."""
        s = self.number(values)
        return (s if self.sides == 1 else s.abs()) - self.tolerance

    @property
    def smooths(self) -> bool:
        """Whether the inner values are smoothed rates of decisions; :meth:`decided` then returns the hard rates."""
        return False

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:  # noqa: ARG002
        """The inner values computed on decisions instead of the smooth values of :meth:`measure`.

        A rate of decisions is a mean of zeros and ones, which has no useful gradient; :meth:`measure` therefore uses a
        smooth function of the scores.

        Returns: shape (m, k), without graph, finite where the batch does not measure a row.
        """
        raise ConfigError(f"{type(self).__name__} smooths no decisions: look at measure(outputs, {sorted(batch)}).")

    def vacuous(self, outputs: Tensor, batch: Columns, *, decisions: bool = False) -> str | None:  # noqa: ARG002
        """A sentence on why the constraint is vacuous for these outputs, or None.

        Args:
            outputs: the network's outputs.
            batch: columns.
            decisions: whether rates of decisions are enforced themselves, so that the softness of smoothed rates does
                not matter.
        """
        return None


def unique_names(constraints: Iterable[Constraint]) -> list[str]:
    """The names of the rows of some constraints, with apostrophes where one came before."""
    unique: list[str] = []
    for constraint in constraints:
        for name in constraint.names:
            while name in unique:
                name += "'"  # noqa: PLW2901
            unique.append(name)
    return unique


def require_columns(constraints: Sequence[Constraint], train: Columns, splits: Mapping[str, Columns]) -> None:
    """Refuse splits that lack a column of the training split that a constraint needs.

    Args:
        constraints: the constraints of the run; those on another part of the batches are skipped.
        train: columns of the training split.
        splits: columns of the splits on which constraints are evaluated, by name.

    Raises:
        DataError: naming the split, the constraint and the columns.
    """
    for split, columns in splits.items():
        lacking = sorted(train.keys() - columns.keys())
        common = {name: column for name, column in train.items() if name in columns}
        for constraint in constraints if lacking else ():
            if constraint.part is not None:
                continue
            try:
                constraint.subsets(common)
            except FCCOError as error:
                raise DataError(
                    f"the {split} split lacks a column of the training split (it has no {', '.join(lacking)}) that the "
                    f"constraint {constraint.names[0]!r} needs: {error} Add it to the {split} table: constraints are "
                    "evaluated there, too."
                ) from error
