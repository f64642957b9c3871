"""What a batch says, and what follows from it: the estimate of F, new rows, and what is logged of the parts of F."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.engine.row_weights import RowWeights
from fcco_lightning.engine.terms import Reading
from fcco_lightning.models.batch import Batch
from fcco_lightning.state import DualState, replaced

_TOGETHER = 32  # batches
_Waiting = tuple[Tensor, Tensor | None, Tensor | None, int]  # values, weights, rows, and the size of the batch


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


class Summand(NamedTuple):
    """One summand of a part of F, as a batch estimates it: a number, or a sum over rows and how many these are.

    Attributes:
        name: of the part.
        values: the number, or the sum; or f(u_i) of the rows, shape (r,).
        share: factor of the sum.
        weights: of the rows in the sum, shape (r,), or None.
        rows: how much of a row every entry is, shape (r,), 0 of rows that the batch does not contain; their sum; or
            None for a number.
    """

    name: str
    values: Tensor
    share: float = 1.0
    weights: Tensor | None = None
    rows: Tensor | None = None

    def summed(self) -> tuple[Tensor, Tensor | None]:
        """The number and None, or the sum over the rows and how many these are."""
        if self.weights is None or self.rows is None:
            return self.values, self.rows
        total = torch.dot(self.weights.to(self.values.dtype), torch.where(self.rows > 0, self.values, 0.0))
        return total if self.share == 1 else self.share * total, self.rows.sum()


class Estimates(Mapping[str, Tensor]):
    """Running estimates of the parts of F by name, detached scalars, at the weights and parameters of their batch.

    They are computed when asked for, so a step costs nothing.  A part of which the batch contains nothing is NaN.

    Args:
        direct: estimate of g_0, or None.
        known: estimates that have been computed, by name.

    Attributes:
        summands: of the parts.
    """

    def __init__(self, direct: Tensor | None, known: Iterable[tuple[str, Tensor]] = ()) -> None:
        self.summands = [Summand(name, value) for name, value in known]
        if direct is not None:
            self.add_number("objective", direct)

    def add(self, reading: Reading, values: Tensor) -> None:
        """Add ``share * mean_i c_i f(u_i)`` to a part, given the f(u_i), (r,), with the importances c of the rows.

        c is 1, or where rows have a relevance this, the larger the rarer batches contain the row; of mean about 1.
        """
        term, (weights, rows) = reading.term, reading.importances()
        self.summands.append(Summand(term.name, values.detach(), term.share, weights, rows))

    def add_number(self, name: str, value: Tensor) -> None:
        """Add a number to a part."""
        moves = torch.compiler.is_compiling() or value.is_leaf or value._is_view()  # with a parameter
        self.summands.append(Summand(name, value.detach().clone() if moves else value.detach()))

    def __getitem__(self, name: str) -> Tensor:
        sums = [summand.summed() for summand in self.summands if summand.name == name]
        if not sums:
            raise KeyError(name)
        values = [total if rows is None else total / rows for total, rows in sums]
        every = torch.stack([v.to(values[0].dtype).reshape(()) for v in values])
        return torch.where(every.isnan().all(), torch.nan, every.nansum())

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(summand.name for summand in self.summands))

    def __len__(self) -> int:
        return len(list(iter(self)))


class Averages:
    """Means of estimates over batches, where every batch counts as much as it contains of a summand.

    Of a sum over rows that is their number, so that a batch without any changes nothing; of g_0 the number of samples,
    or 0 where the estimate is 0 and some batches have none.  Rows of several batches are taken together, so that a
    step costs next to nothing.

    Args:
        direct_weight: what estimates of g_0 are multiplied by, see :class:`Problem`, where they are 0 in batches that
            lack the samples; None where no batch does.
    """

    def __init__(self, direct_weight: float | None = None) -> None:
        self._direct_weight = direct_weight
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}  # by name and position: the sum, and how much it is of
        self._waiting: dict[str, list[_Waiting]] = {}
        self._last: dict[str, Summand] = {}
        self._restored: dict[str, tuple[Tensor, Tensor]] = {}  # of summands that no batch has given since

    def add(self, estimates: Estimates, size: int) -> None:
        """Add the estimates of a batch of ``size`` samples."""
        for position, summand in enumerate(estimates.summands):
            key = f"{summand.name}/{position}"
            one = self._last[key] = summand
            waiting, so_far = self._waiting.setdefault(key, []), self._restored.pop(key, None)
            if waiting and so_far is not None and _kind(one.values, one.weights) != _kind(*waiting[-1][:2]):
                self._sums[key] = so_far  # those of the checkpoint were computed in another way, as compiled ones are
                waiting.clear()
            waiting.append((one.values, one.weights, one.rows, size))
            if len(waiting) == _TOGETHER:
                self._sums[key] = self._summed(key)
                waiting.clear()

    def values(self) -> Estimates:
        """The means so far, by name; none before the first batch."""
        sums = self._all_summed().items()
        return Estimates(None, [(key.split("/")[0], total / weight) for key, (total, weight) in sums])

    def _all_summed(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {**self._restored, **{key: self._summed(key) for key in self._last}}

    @torch.no_grad()
    def _summed(self, key: str) -> tuple[Tensor, Tensor]:
        """The sum of all batches, and how much it is of."""
        known, waiting = self._sums.get(key), self._waiting[key]
        if not waiting and known is not None:
            return known
        values, weights, rows, sizes = zip(*waiting, strict=True)
        if rows[0] is None:
            total, weight = self._of_numbers(key, torch.stack(values), sizes)
        elif weights[0] is None:
            total, weight = torch.stack(values).sum(), torch.stack(rows).sum()
        else:
            together = self._last[key]._replace(
                values=torch.cat(values), weights=torch.cat(weights), rows=torch.cat(rows)
            )
            total, of_rows = together.summed()
            assert of_rows is not None  # noqa: S101 - there are some
            weight = of_rows
        return (total, weight) if known is None else (known[0] + total, known[1] + weight)

    def _of_numbers(self, key: str, values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        weight = torch.ones_like(values)
        if self._direct_weight is not None and key.startswith("objective/"):
            values, weight = values / self._direct_weight, (values != 0).to(values.dtype)
        weight = torch.stack(torch._foreach_mul(list(weight.unbind()), [float(size) for size in sizes]))
        return torch.dot(weight, values), weight.sum()

    def state_dict(self) -> dict[str, Any]:
        """What a continuation needs, to the bit."""
        held = {"sums": self._sums, "waiting": self._waiting, "so_far": self._all_summed()}
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.cpu().clone(), held)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on from there."""
        held = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), dict(state))
        waiting = {key: list(each) for key, each in held.get("waiting", {}).items()}
        self._sums, self._waiting, self._last = dict(held.get("sums", {})), waiting, {}
        self._restored = dict(held.get("so_far", {}))


def _kind(values: Tensor, weights: Tensor | None) -> tuple[int, bool]:
    """What batches have in common that can be summed together."""
    return values.dim(), weights is None


class Proposal(NamedTuple):
    """New values of rows of a state, not yet written.

    Attributes:
        state: whose rows these are.
        index: which rows, shape (r,), int64; None for all, in their order.
        rows: their new values, shape (r, k), without graph.
        decay: factor on all other rows.
        finite: what must be finite for that; None for the rows.  (A row that a batch does not measure may be one never
            written, which is NaN.)
    """

    state: DualState
    index: Tensor | None  # type: ignore[assignment]  # the field hides tuple.index
    rows: Tensor
    decay: float = 1.0
    finite: Tensor | None = None


class Estimate:
    r"""An estimate of F on a batch, whose gradient in the weights is the algorithm's G.

    ``g_0(w) + sum over terms, sum over rows i of the batch, of weight_i f_i(stop(u_i) + g_i(w) - stop(g_i(w)))``, where
    stop is stop_gradient: its value is that of F at the remembered u_i, its gradient ``sum_i weight_i [Jac g_i]^T
    grad f_i(u_i)``, and parameters of f_i, such as a threshold, have theirs.  With it goes what a step is going to
    write.

    Args:
        direct: estimate of g_0 with graph, or None.

    Attributes:
        parts: the same by parts of F, without graph.
        proposals: rows to be written, once all is known to be finite.
        counted: rows that the batch contains, where their probabilities are estimated.
        gradients: with respect to the parameters, where they have been computed with it; else None.
        by_rows: the same with respect to the parameters of samples.
    """

    def __init__(self, direct: Tensor | None) -> None:
        self._summed = [] if direct is None else [direct]
        self.parts = Estimates(direct)
        self.proposals: list[Proposal] = []
        self.counted: list[tuple[RowWeights, Tensor | None, Tensor]] = []
        self.gradients: Sequence[Tensor | None] | None = None
        self.by_rows: Tensor | None = None

    def add(self, reading: Reading, values: Tensor) -> None:
        """Add a term, given ``f_i(u_i)`` of its rows with graph, (r,), see :meth:`Estimator.estimate`."""
        self._summed.append(reading.total(values))
        self.parts.add(reading, values)
        if reading.term.weights.counted:
            self.counted.append((reading.term.weights, reading.index, reading.portion))

    def plus(self, value: Tensor) -> None:
        """Add a scalar with graph, of which nothing is logged."""
        self._summed.append(value)

    def remember(self, reading: Reading, rows: Tensor, decay: float = 1.0) -> None:
        """Propose new rows (r, k) of a term that keeps some; those that the batch does not measure only decay."""
        state, held = reading.term.state, reading.held
        if state is not None and held is not None:
            self.propose(reading, state, held if decay == 1 else decay * held, rows, decay)

    def propose(self, reading: Reading, state: DualState, held: Tensor, rows: Tensor, decay: float = 1.0) -> None:
        """Propose rows of a state for those that the batch measures; the others stay ``held``."""
        rows = rows.to(held.dtype)
        new = torch.where(reading.present.unsqueeze(1), rows, held)
        self.proposals.append(Proposal(state, reading.index, new, decay, rows))

    def latest(self, reading: Reading) -> Reading:
        """A reading with the rows that have been proposed in the place of those that are remembered."""
        multipliers = reading.term.multipliers
        for state, index, rows, *_ in self.proposals:
            if multipliers is not None and state is multipliers.decisions:
                reading = reading._replace(gap=rows)
            if state is not reading.term.state or reading.held is None:
                continue
            reading = reading._replace(held=replaced(reading.held, reading.index, index, rows))
        return reading

    def replaced(self, value: Tensor) -> "Estimate":
        """Another scalar with graph in its place; the same proposals and parts of F."""
        other = Estimate(value)
        other.parts, other.proposals, other.counted = self.parts, self.proposals, self.counted
        return other

    @property
    def value(self) -> Tensor:
        """The scalar, with graph unless :attr:`gradients` are known."""
        total = self._summed[0] if self._summed else torch.zeros(())
        for part in self._summed[1:]:
            total = total + part
        return total
