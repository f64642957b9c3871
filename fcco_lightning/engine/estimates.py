"""What a batch says, and what follows from it: the surrogate, new rows, and the estimates of F that are logged."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.engine.row_weights import RowWeights
from fcco_lightning.engine.terms import Reading
from fcco_lightning.models.batch import Batch
from fcco_lightning.outer import OuterFunction
from fcco_lightning.state import DualState, replaced


class Evaluated(NamedTuple):
    """The network's outputs for the samples of a batch, of all processes together.

    Attributes:
        outputs: by part, at the weights that the parameters hold, with graph.
        batch: columns by part, all but the network's input where processes share the batch.
        earlier: the outputs at other weights, without graph; None where there are none.
        before: these weights.
        own: the outputs for the samples of this process alone.
    """

    outputs: dict[str, Any]
    batch: Batch
    earlier: dict[str, Any] | None
    before: Sequence[Tensor] | None
    own: Mapping[str, Any]

    def at_present(self) -> "Evaluated":
        """The same without the second evaluation."""
        return self._replace(earlier=None, before=None)


class Measured(NamedTuple):
    """What a batch says.

    Attributes:
        direct: estimate of g_0 with graph, a scalar, or None.
        readings: of the terms.
    """

    direct: Tensor | None
    readings: list[Reading]


class Estimates(Mapping[str, Tensor]):
    """Running estimates of the parts of F by name, detached scalars; computed when asked for, so a step costs nothing.

    A part of which the batch says nothing is NaN.

    Args:
        direct: estimate of g_0, or None.
        known: estimates that have been computed, by name.
    """

    def __init__(self, direct: Tensor | None, known: Iterable[tuple[str, Tensor]] = ()) -> None:
        self.direct = None if direct is None else direct.detach()
        self._terms: list[tuple[Reading, OuterFunction, Tensor]] = []
        self._others: list[tuple[str, Tensor]] = [*known]

    def add(self, reading: Reading, outer: OuterFunction, at: Tensor) -> None:
        """Add ``share * mean_i c_i f(u_i)`` to a part, with u (r, k) and the importances c of the rows."""
        self._terms.append((reading._replace(values=reading.values.detach()), outer, at))  # without the step's graph

    def add_number(self, name: str, value: Tensor) -> None:
        """Add a number to a part."""
        self._others.append((name, value.detach()))

    def __getitem__(self, name: str) -> Tensor:
        with torch.no_grad():  # no decorator: torch 2.11 cannot compile the subscript then
            return self._sum_of(name)

    def _sum_of(self, name: str) -> Tensor:
        values = [r.mean(outer.value(at)) for r, outer, at in self._terms if r.term.name == name]
        values += [value for part, value in self._others if part == name]
        if name == "objective" and self.direct is not None:
            values.append(self.direct)
        if not values:
            raise KeyError(name)
        every = torch.stack([v.to(values[0].dtype).reshape(()) for v in values])
        return torch.where(every.isnan().all(), torch.nan, every.nansum())

    def __iter__(self) -> Iterator[str]:
        direct = [] if self.direct is None else ["objective"]
        others = (name for name, _ in self._others)
        return iter(dict.fromkeys([*direct, *(r.term.name for r, _, _ in self._terms), *others]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def computed(self) -> list[tuple[str, Tensor]]:
        """All of them, by name."""
        return [(name, self[name]) for name in self]


class Proposal(NamedTuple):
    """New values of rows of a state, not yet written.

    Attributes:
        state: whose rows these are.
        index: which rows, shape (r,), int64; None for all, in their order.
        rows: their new values, shape (r, k), without graph.
        decay: factor on all other rows.
        finite: what must be finite for that; None for the rows.  (A row of which a batch says nothing may be one never
            written, which is NaN.)
    """

    state: DualState
    index: Tensor | None  # type: ignore[assignment]  # the field hides tuple.index
    rows: Tensor
    decay: float = 1.0
    finite: Tensor | None = None


class Surrogate:
    r"""``S(w) = g_0(w) + sum over terms, sum over rows i of the batch, of weight_i <y_i, g_i(w)>``.

    Its gradient is the estimate G of grad F; its value means nothing.  With it goes what a step is going to write.

    Args:
        direct: estimate of g_0 with graph, or None.

    Attributes:
        estimates: of the parts of F.
        proposals: rows to be written, once all is known to be finite.
        counted: rows of which the batch speaks, where their probabilities are estimated.
        gradients: of S with respect to the parameters, where they have been computed with it; else None.
        by_rows: the same with respect to the parameters of samples.
    """

    def __init__(self, direct: Tensor | None) -> None:
        self._parts = [] if direct is None else [direct]
        self.estimates = Estimates(direct)
        self.proposals: list[Proposal] = []
        self.counted: list[tuple[RowWeights, Tensor | None, Tensor]] = []
        self.gradients: Sequence[Tensor | None] | None = None
        self.by_rows: Tensor | None = None

    def add(self, reading: Reading, y: Tensor, outer: OuterFunction, at: Tensor, known: Tensor | None = None) -> None:
        """Add a term.

        Args:
            reading: of the term.
            y: outer gradients, shape (r, k).
            outer: f, as it is smoothed.
            at: inner values at which the outer gradients are taken, shape (r, k).
            known: what carries the gradient of known parameters of f, shape (r,).
        """
        self._parts.append(reading.pair(y))
        if known is not None:
            self._parts.append(reading.total(known))
        self.estimates.add(reading, outer, at)
        if reading.term.weights.counted:
            self.counted.append((reading.term.weights, reading.index, reading.each))

    def plus(self, value: Tensor) -> None:
        """Add a scalar with graph, of which nothing is estimated."""
        self._parts.append(value)

    def remember(self, reading: Reading, rows: Tensor, decay: float = 1.0) -> None:
        """Propose new rows (r, k) of a term that keeps some; those of which the batch says nothing only decay."""
        state, held = reading.term.state, reading.held
        if state is not None and held is not None:
            self.propose(reading, state, held if decay == 1 else decay * held, rows, decay)

    def propose(self, reading: Reading, state: DualState, held: Tensor, rows: Tensor, decay: float = 1.0) -> None:
        """Propose rows of a state for those of which the batch says something; the others stay ``held``."""
        rows = rows.to(held.dtype)
        new = torch.where(reading.present.unsqueeze(1), rows, held)
        self.proposals.append(Proposal(state, reading.index, new, decay, rows))

    def latest(self, reading: Reading) -> Reading:
        """A reading with the rows that have been proposed in the place of those that are remembered."""
        multipliers = reading.term.multipliers
        for state, index, rows, *_ in self.proposals:
            if multipliers is not None and state is multipliers.decisions:
                reading = reading._replace(apart=rows)
            if state is not reading.term.state or reading.held is None:
                continue
            reading = reading._replace(held=replaced(reading.held, reading.index, index, rows))
        return reading

    def replaced(self, value: Tensor) -> "Surrogate":
        """Another scalar with graph in the place of S; the same proposals and estimates of F."""
        other = Surrogate(value)
        other.estimates, other.proposals, other.counted = self.estimates, self.proposals, self.counted
        return other

    @property
    def value(self) -> Tensor:
        """S, a scalar with graph unless :attr:`gradients` are known."""
        total = self._parts[0] if self._parts else torch.zeros(())
        for part in self._parts[1:]:
            total = total + part
        return total
