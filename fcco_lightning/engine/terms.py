"""One compositional term: its rows, its outer function, and what a batch says of it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fcco_lightning.distributed import Processes
from fcco_lightning.engine.multiplier_rows import MultiplierRows
from fcco_lightning.engine.row_weights import Arrival, EstimatedWeights, RowWeights
from fcco_lightning.engine.union import KnownRows
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Range
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Arrangement, Columns, Inner
from fcco_lightning.state import DualState, Layout, Place, Repeats, RowMap, repeats


class Reading(NamedTuple):
    """What a batch says of one term, every row once.

    Attributes:
        term: the term.
        index: rows, shape (b,), all different, on the host.
        values: g_i(w; batch), shape (b, k), with graph.
        previous: the same at the other weights, or None; with graph only if that was asked for.
        outer: f with its known parameters at their present values, not smoothed.
        previous_outer: f with its known parameters at the other weights.
        weight: factor of ``<y_i, g_i>`` in the surrogate: the term's share times the weight of the row in the mean
            over all rows; shape (b,), or one number for all.
        inverse: 1/p_i, with p_i the probability that a batch speaks of row i; shape (b, 1), or one number for all.
        place: where the rows lie in the term's state; None where it keeps none.
        known: rows that came along with the batches of other processes, or None.
        relevance: what each row counts in the mean over all rows, shape (b,), is part of ``weight``; None for 1.
    """

    term: "Term"
    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index
    values: Tensor
    previous: Tensor | None
    outer: OuterFunction
    previous_outer: OuterFunction | None
    weight: Tensor | float
    inverse: Tensor | float
    place: Place | None
    known: KnownRows | None
    relevance: Tensor | None = None

    def pair(self, y: Tensor) -> Tensor:
        """``sum_i weight_i <y_i, g_i>``, a scalar with graph."""
        return paired(self.weight, y, self.values)

    def importance(self) -> Tensor | None:
        """How much each row counts in an estimate of F, of mean about 1, shape (b,); None where all count alike.

        A row counts by its relevance, and the more the rarer batches speak of it.
        """
        if self.relevance is None:
            return None
        inverse = self.inverse.squeeze(1) if isinstance(self.inverse, Tensor) else torch.ones_like(self.relevance)
        return self.relevance * inverse / inverse.mean()

    def at_previous(self) -> "Reading":
        """The same with the values at the other weights in the place of those at the present ones."""
        if self.previous is None or self.previous_outer is None:
            return self
        return self._replace(values=self.previous, outer=self.previous_outer)

    def total(self, per_row: Tensor) -> Tensor:
        """``sum_i weight_i v_i`` of values v (b,), a scalar."""
        return totalled(self.weight, per_row)


def paired(weight: Tensor | float, y: Tensor, values: Tensor) -> Tensor:
    """``sum_i weight_i <y_i, g_i>`` of values g (b, k) with graph, a scalar."""
    by_row = weight.unsqueeze(1) if isinstance(weight, Tensor) else weight
    if y.requires_grad:
        return (by_row * y.to(values.dtype) * values).sum()
    weighted = (by_row * y).to(values.dtype)
    return torch.dot(weighted.reshape(-1), values.reshape(-1))  # one operator in either direction


def totalled(weight: Tensor | float, per_row: Tensor) -> Tensor:
    """``sum_i weight_i v_i`` of values v (b,), a scalar."""
    return (weight.to(per_row.dtype) * per_row).sum() if isinstance(weight, Tensor) else weight * per_row.sum()


class Arrived(NamedTuple):
    """The rows of a term that a batch speaks of, before their inner values are measured.

    Attributes:
        index, weight, inverse, place, relevance: as of a :class:`Reading`.
        again: how the rows repeat in the batch; None if they are all different.
        outer: f, with the multipliers of the rows where the term has some.
    """

    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index
    weight: Tensor | float
    inverse: Tensor | float
    place: Place | None
    relevance: Tensor | None
    again: Repeats | None
    outer: OuterFunction

    def reading(
        self,
        term: "Term",
        values: Tensor,
        previous: Tensor | None,
        outer: OuterFunction,
        previous_outer: OuterFunction | None,
        known: KnownRows | None,
    ) -> Reading:
        """With the inner values, of every row once."""
        return Reading(
            term,
            self.index,
            values,
            previous,
            outer,
            previous_outer,
            self.weight,
            self.inverse,
            self.place,
            known,
            self.relevance,
        )


class _Whole(NamedTuple):
    """What follows from a batch that speaks of all rows.

    Attributes:
        devices: on which it is.
        same: whether it is the same for all such batches.
        index: all rows, on the host.
        weight, inverse, place: as of a :class:`Reading`.
    """

    devices: tuple[torch.device, torch.device]
    same: bool
    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index
    weight: Tensor | float
    inverse: Tensor | float
    place: Place | None


class Term(nn.Module):
    r"""``share * (1/n) sum_i f(g_i(w))``.

    Args:
        name: in logs and checkpoints.
        outer: f, or for f with known parameters what says of its class.
        num_rows: n.
        width: k.
        share: weight of the term in F.
        distinct: whether the indices of one batch are all different by construction.
        dtype: of the rows.
        weights: of the rows of a batch in the mean over all rows.
        range: the interval in which the inner values are known to lie.
        row_map: the rows of samples, where only some own one; None if row i belongs to sample i, or to group or
            constraint i.
        per_sample: whether single samples own the rows.
        part: of a batch, on which the term is measured; None for the first.
        processes: that share the rows.
        layout: of the rows, see :class:`DualState`.
        multipliers: of the rows of a constraint, which then say what f is.
        growth: see :class:`~fcco_lightning.estimators.Sampling`.

    Attributes:
        state: the rows; None until :meth:`remember`, for algorithms that keep none.
    """

    def __init__(
        self,
        name: str,
        outer: OuterFunction,
        num_rows: int,
        width: int,
        *,
        share: float,
        distinct: bool,
        dtype: torch.dtype,
        weights: RowWeights,
        range: Range = Range(),  # noqa: A002, B008 - the field's word; immutable
        row_map: RowMap | None = None,
        per_sample: bool = False,
        part: str | tuple[str, ...] | None = None,
        processes: Processes | None = None,
        layout: Layout = "auto",
        multipliers: MultiplierRows | None = None,
        growth: float | None = None,
    ) -> None:
        super().__init__()
        self.multipliers = multipliers
        self.name, self.outer, self.num_rows, self.width = name, outer, num_rows, width
        self.share, self.distinct, self.dtype, self.weights = share, distinct, dtype, weights
        self.range, self.row_map, self.per_sample, self.part = range, row_map, per_sample, part
        self._processes, self._layout, self.growth = processes, layout, growth
        self.state: DualState | None = None
        self._whole: _Whole | None = None

    def remember(self) -> None:
        """Allocate the rows, unless they are there."""
        if self.state is None:
            self.state = DualState(self.num_rows, self.width, self.dtype, self._processes, self._layout)
            self._whole = None

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
        index = torch.arange(self.num_rows)
        unknown = held.new_full((self.num_rows, self.width), torch.nan)
        values = unknown if self.state is None else self.state.read(index).values
        return self.multipliers.at(values).cpu().double()

    @property
    def owners_part(self) -> str | None:
        """The part of a batch whose samples own the rows, or are in the groups that do; None for the first one."""
        return self.part[0] if isinstance(self.part, tuple) else self.part

    def reading(
        self, inner: Inner, previous: Inner | None, columns: Columns, known: KnownRows | None
    ) -> Reading | None:
        """What a batch says of the term; None if that is nothing.

        Raises:
            StateIndexError: if a row is none of the term's.
        """
        if not inner.index.numel():
            return None
        self._check_width(inner.values)
        values, before = inner.values, None if previous is None else previous.values
        found = self.arrive(Arrangement(inner.index, None, inner.relevance, inner.owners), columns, values, inner.outer)
        old_outer = None if previous is None else previous.outer or inner.outer
        if found.again is not None:
            values, before = found.again.mean(values), None if before is None else found.again.mean(before)
            old_outer = None if old_outer is None else old_outer.take(send(found.again.first, values))
        if previous is not None and old_outer is None:
            old_outer = found.outer
        return found.reading(self, values, before, found.outer, old_outer, known)

    def arrive(
        self, arrangement: Arrangement, columns: Columns, like: Tensor, outer: OuterFunction | None = None
    ) -> "Arrived":
        """Which rows a batch speaks of, every one once, and what follows from that.

        Args:
            arrangement: of the term, with at least one row.
            columns: of the samples that own the rows.
            like: a tensor of the device of the inner values.
            outer: f of the rows as they come, where the batch says what it is; None takes the term's.

        Raises:
            StateIndexError: if a row is none of the term's.
        """
        index, relevance = arrangement.index, arrangement.relevance
        if relevance is None and self._speaks_of_all(index):
            return self.arrive_with_all(like, outer)
        host = on_host(columns)
        # a custom objective may return the column of the device itself, which the host has
        samples = host["index"] if index is columns.get("index") else index.cpu()
        rows = samples if self.row_map is None else self.row_map.rows(samples)
        owners, copies = None if arrangement.owners is None else arrangement.owners.cpu(), None
        again = None if self.distinct else repeats(rows)
        if again is not None:
            if self.state is not None:
                self.state.checked_index(rows)  # before repeats are merged: an error names the batch's position
            first = again.first
            rows, samples = again.index, samples[first]
            relevance = None if relevance is None else again.mean(relevance)
            owners, copies = None if owners is None else owners[first], again.count
            outer = None if outer is None else outer.take(send(first, like))
        weight = self.weights(Arrival(rows, samples, host, owners, copies))
        weight = send(weight, like) if isinstance(weight, Tensor) else weight
        inverse = self.num_rows * (weight.unsqueeze(1) if isinstance(weight, Tensor) else weight)
        if relevance is not None:
            relevance = send(relevance, like)
            weight = weight * relevance
        place = None if self.state is None else self.state.locate(rows, checked=self.row_map is not None)
        if outer is None:
            outer = self.outer.take(send(rows, like)) if self.multipliers is None else self.multipliers.outer(rows)
        return Arrived(rows, self.share * weight, inverse, place, relevance, again, outer)

    def arrive_with_all(self, like: Tensor, outer: OuterFunction | None = None) -> "Arrived":
        """The same for a batch that speaks of all rows, in their order; they must not be those of samples.

        Args:
            like: see :meth:`arrive`.
            outer: see :meth:`arrive`.
        """
        held = like.device if self.state is None else self.state.rows.device
        same, known = self.weights.same, self._whole
        if known is None or known.devices != (like.device, held) or not (same and known.same):
            every = torch.arange(self.num_rows) if known is None else known.index
            weight = self.weights(Arrival(every, every, {}))
            weight = send(weight, like) if isinstance(weight, Tensor) else weight
            inverse = self.num_rows * (weight.unsqueeze(1) if isinstance(weight, Tensor) else weight)
            place = None if self.state is None else self.state.locate(every)
            known = self._whole = _Whole((like.device, held), same, every, self.share * weight, inverse, place)
        if outer is None:
            outer = self.outer if self.multipliers is None else self.multipliers.outer()
        return Arrived(known.index, known.weight, known.inverse, known.place, None, None, outer)

    def _speaks_of_all(self, index: Tensor) -> bool:
        if not self.distinct or self.per_sample or len(index) != self.num_rows or index.device.type != "cpu":
            return False
        every = torch.arange(self.num_rows) if self._whole is None else self._whole.index
        return bool((index.numpy() == every.numpy()).all())  # in half of torch's time

    def read(self, reading: Reading) -> tuple[Tensor, Tensor | None]:
        """The remembered rows (b, k) of a reading, and which were ever visited (b,); None for all.

        The rows of a term that keeps none have never been visited.
        """
        if self.state is None or reading.place is None:
            values = reading.values.detach()
            return values, torch.zeros(len(values), dtype=torch.bool, device=values.device)
        along = None if reading.known is None else reading.known.select(reading.index)
        return self.state.read(reading.place) if along is None else self.state.marked(along)

    def count(self, index: Tensor) -> None:
        """Take note that a batch has spoken of the rows ``index``, where probabilities are estimated."""
        if isinstance(self.weights, EstimatedWeights):
            self.weights.count(index)

    def _check_width(self, values: Tensor) -> None:
        if values.dim() != 2 or values.shape[1] != self.width:
            raise ConfigError(
                f"inner values of the {self.name} must have shape (b, {self.width}), got {tuple(values.shape)}. Give "
                "the class the right `width`, or return values with two dimensions."
            )


def kept(terms: Sequence[Term]) -> list[DualState]:
    """The dual states of the terms that keep rows."""
    return [term.state for term in terms if term.state is not None]
