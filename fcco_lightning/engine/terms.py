"""One compositional term: its rows, its outer function, and what a batch says of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fcco_lightning.engine.functions import RandomState
from fcco_lightning.engine.multiplier_rows import MultiplierRows
from fcco_lightning.engine.row_weights import RowWeights
from fcco_lightning.errors import ConfigError, DataError, StateIndexError
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import Measurable
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import NoSmoothing, OuterFunction, Range
from fcco_lightning.state import Copies, DualState, Layout, copies
from fcco_lightning.state.processes import Processes


class Reading(NamedTuple):
    """What a batch says of one term, in r entries; several entries may be copies of one row, with equal values.

    Attributes:
        term: the term.
        index: row of every entry, shape (r,), int64; None for all n rows, in their order.
        values: g_i(w; batch), shape (r, k), with graph.
        outer: f with its known parameters at their present values, not smoothed.
        earlier: the same values at other weights, without graph, or None.
        present: whether the batch measures the row, shape (r,), bool.
        portion: how much of its row an entry is, shape (r,): 1, or 1/c of c copies; 0 where nothing is said.
        weight: factor of f_i(u_i) in the estimate of F: the term's share times the weight of the row in the mean over
            all rows; shape (r,), 0 where nothing is said.
        chance: 1/(n p_i), with p_i the probability that a batch measures row i; shape (r,), or one number.
        relevance: what each row counts in the mean over all rows, shape (r,), is part of ``weight``; None for 1.
        decided: the values on decisions, shape (r, k), without graph; None where multipliers do not follow them.
        gap: remembered means of the gap between these and the values, shape (r, k), NaN where never written, or None.
        held: the remembered rows, shape (r, k), NaN where never written; None where the term keeps none.
    """

    term: "Term"
    index: Tensor | None  # type: ignore[assignment]  # the field hides tuple.index
    values: Tensor
    outer: OuterFunction
    earlier: Tensor | None
    present: Tensor
    portion: Tensor
    weight: Tensor
    chance: Tensor | float
    relevance: Tensor | None
    held: Tensor | None
    decided: Tensor | None = None
    gap: Tensor | None = None

    @property
    def inverse(self) -> Tensor | float:
        """1/p_i, shape (r, 1), or one number."""
        chance = self.chance.unsqueeze(1) if isinstance(self.chance, Tensor) and self.chance.dim() else self.chance
        return self.term.num_rows * chance

    def total(self, per_row: Tensor) -> Tensor:
        """``sum_i weight_i v_i`` of values v (r,), a scalar with their graph."""
        return torch.dot(self.weight.to(per_row.dtype), per_row)

    def importances(self) -> tuple[Tensor, Tensor]:
        """The weights of the entries in ``sum_i c_i v_i``, and in the number of rows, both (r,)."""
        if self.relevance is None:
            return self.portion, self.portion
        of = self.portion
        rows = of * torch.as_tensor(self.inverse, dtype=of.dtype, device=of.device).view(-1)
        return rows * self.relevance, rows


class Term(nn.Module):
    r"""``share * (1/n) sum_i f(g_i(w))``.

    Args:
        name: in logs and checkpoints.
        part: what measures it.
        outer: f, or for f with known parameters what says of its class.
        num_rows: n.
        share: weight of the term in F.
        dtype: of the rows.
        weights: of the rows of a batch in the mean over all rows.
        range: the interval in which the inner values are known to lie.
        per_sample: whether single samples own the rows.
        row_of: row of what :meth:`Measurable.rows_of` names, n for none; None if it names the rows themselves.
        num_names: how many names there are.
        repeats: whether a batch may name one row twice.
        processes: that share the rows.
        layout: of the rows, see :class:`DualState`.
        multipliers: of the rows of a constraint, which then say what f is.
        growth: see :class:`~fcco_lightning.estimators.Sampling`.

    Attributes:
        state: the rows; None until :meth:`remember`, for algorithms that keep none.
        smoothed: f as the algorithm smooths it, where it stays the same from step to step; None otherwise.
    """

    part: Measurable

    def __init__(
        self,
        name: str,
        part: Measurable,
        outer: OuterFunction,
        num_rows: int,
        *,
        share: float,
        dtype: torch.dtype,
        weights: RowWeights,
        range: Range = Range(),  # noqa: A002, B008 - the field's word; immutable
        per_sample: bool = False,
        row_of: Tensor | None = None,
        num_names: int | None = None,
        repeats: bool = True,
        processes: Processes | None = None,
        layout: Layout = "auto",
        multipliers: MultiplierRows | None = None,
        growth: float | None = None,
    ) -> None:
        super().__init__()
        self.multipliers = multipliers
        self.__dict__["part"] = part  # no module of this one: its parameters belong to whoever owns the network
        self.name, self.num_rows, self.width = name, num_rows, part.width
        self.share, self.dtype, self.weights, self.range, self.growth = share, dtype, weights, range, growth
        self.per_sample, self.repeats, self.num_names = per_sample, repeats, num_names or num_rows
        self._row_of = None if row_of is None else Known(row_of)
        self._processes, self._layout = processes, layout
        self.state: DualState | None = None
        self._smoothing: Callable[[OuterFunction], OuterFunction] = NoSmoothing()
        self.take(outer)

    def take(self, outer: OuterFunction) -> None:
        """Let f be another function from now on."""
        same = self.multipliers is None and not outer.parameters()
        self.outer, self.smoothed = outer, self._smoothing(outer) if same else None

    def smooth(self, smoothing: Callable[[OuterFunction], OuterFunction]) -> None:
        """Let :attr:`smoothed` be what an algorithm makes of f."""
        self._smoothing = smoothing
        self.take(self.outer)

    def remember(self) -> None:
        """Allocate the rows, unless they are there."""
        if self.state is None:
            sink = self._row_of is not None
            self.state = DualState(self.num_rows, self.width, self.dtype, self._processes, self._layout, sink=sink)

    @property
    def present_outer(self) -> OuterFunction:
        """The outer function of all rows, with their multipliers at the present values."""
        return self.outer if self.multipliers is None else self.multipliers.outer()

    def multiplier_values(self) -> Tensor:
        """The multiplier nu_i of every row of a constraint, shape (n,), float64 on the CPU; empty without multipliers.

        They are those that the gradient is taken with: at a solution ``grad F + sum_i nu_i grad h_i = 0``.
        """
        if self.multipliers is None:
            return torch.empty(0, dtype=torch.float64)
        held = self.multipliers.state.rows
        unknown = held.new_full((self.num_rows, self.width), torch.nan)
        values = unknown if self.state is None else self.state.gather(None)
        if self.multipliers.decisions is not None:
            values = values + self.multipliers.decisions.gather(None)
        return self.multipliers.at(values).cpu().double()

    def reading(self, now: Rows, earlier: Rows | None, batch: Any) -> Reading:
        """What a batch says of the term.

        Args:
            now: as measured at the present weights.
            earlier: at other weights; None where there are none.
            batch: the columns that the term's part was given.

        Raises:
            IndexError: on the host, if the batch names a row that does not exist.
        """
        if now.values.dim() != 2 or now.values.shape[1] != self.width:
            raise self._wrong_width(now.values)
        names = self.part.rows_of(batch)
        index = names if names is None or self._row_of is None else self._row(names)
        again = copies(names) if self.repeats and names is not None else None
        given = None if now.weight.dtype == torch.bool else now.weight
        present = now.weight if given is None else now.weight != 0
        values, portion = now.values, present.to(now.values.dtype)
        relevance = self.weights.relevance(index, given, portion)
        before = None if earlier is None else earlier.values.detach()
        if again is not None:
            portion = portion / again.total(portion).clamp(min=1)
            values = _mean(values, portion, again)
            before = None if before is None else _mean(before, portion, again)
        owners = batch[self.part.part[0]] if isinstance(self.part.part, tuple) else batch
        chance = self.weights(index, owners, portion, again)
        weight = portion * (chance if self.share == 1 else self.share * chance)
        return Reading(
            self,
            index,
            values,
            now.outer or self.present_outer,
            before,
            present,
            portion,
            weight if relevance is None else weight * relevance.to(weight.dtype),
            chance,
            relevance,
            None if self.state is None else self.state.gather(index),
        )

    def check_index(self, batch: Any) -> None:
        """Look at the rows that a batch names.

        Raises:
            StateIndexError: naming one that does not exist, and its position in the batch.
        """
        names = self.part.rows_of(batch)
        wrong = None if names is None else ((names < 0) | (names >= self.num_names)).nonzero().flatten()
        if names is not None and wrong is not None and len(wrong):
            raise StateIndexError(
                f"the dual state of the {self.name} belongs to indices 0..{self.num_names - 1}, got index "
                f"{int(names[wrong[0]])} at batch position {int(wrong[0])}. Index the training split itself from 0, "
                "and let num_samples be its size."
            )

    def check_owners(self, outputs: Any, batch: Any) -> None:
        """Look at the samples that have a row of their own by the columns of a batch.

        Raises:
            DataError: if one of them had none when the rows were given out.
        """
        names = self.part.rows_of(batch)
        if names is None or self._row_of is None:
            return
        with RandomState(names.device).again():
            rows = self.part.measure(outputs, batch)[1]
        assert rows is not None  # noqa: S101 - of a part that names rows
        stray = ((self._row(names) == self.num_rows) & (rows.weight != 0)).nonzero().flatten()
        if len(stray):
            raise DataError(
                f"the sample with index {int(names[stray[0]])} has a row of the {self.name} by the columns of its "
                "batch, but not by those of the training split, from which rows were given out. Let both be the same, "
                "in the same order: IndexedDataset(dataset, columns={'y': labels}), with the labels that samples have."
            )

    def _row(self, names: Tensor) -> Tensor:
        assert self._row_of is not None  # noqa: S101 - the caller has seen to it
        table = self._row_of.like(names)
        if names.device.type != "cpu":  # a device cannot refuse an index: n + 1 is no row, which the state makes known
            names = torch.where((names < 0) | (names >= len(table)), len(table) - 1, names)
        return table.index_select(0, names).long()

    def _wrong_width(self, values: Tensor) -> ConfigError:
        return ConfigError(
            f"inner values of the {self.name} must have shape (r, {self.width}), got {tuple(values.shape)}. Give the "
            "class the right `width`, or return values with two dimensions."
        )


def _mean(values: Tensor, portion: Tensor, again: Copies) -> Tensor:
    """The mean over the copies, the same for all of them."""
    return again.total(values * portion.unsqueeze(1).to(values.dtype))
