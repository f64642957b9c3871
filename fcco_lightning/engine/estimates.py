"""What follows from a batch: the estimate of F with its gradient, new rows, and what is logged of the summands of F."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.engine.terms import Seen, Term
from fcco_lightning.state import DualState, replaced

_TOGETHER = 32  # batches


class Outputs(NamedTuple):
    """The network's outputs for the samples of a batch, of all processes together.

    Attributes:
        now: by part, at the weights that the parameters hold, with graph.
        columns: by part, all but the network's input where processes share the batch.
        before: the outputs at the previous weights, without graph; None where there are none.
        previous: these weights.
        local: the outputs for the samples of this process alone.
    """

    now: dict[str, Any]
    columns: Mapping[str, Any]
    before: dict[str, Any] | None
    previous: Sequence[Tensor] | None
    local: Mapping[str, Any]

    def at_present(self) -> "Outputs":
        """The same without those at the previous weights."""
        return self._replace(before=None, previous=None)


class NewRows(NamedTuple):
    """New values of rows of a state, which are written once all of an iteration is known to be finite.

    Attributes:
        state: whose rows these are.
        rows: which rows, shape (r,), int64; None for all, in their order.
        values: what they become, shape (r, k), without graph.
        decay: factor on all other rows.
        finite: what must be finite for that; None for the values.  (A row that a batch does not contain may be one
            never written, which is NaN.)
    """

    state: DualState
    rows: Tensor | None
    values: Tensor
    decay: float = 1.0
    finite: Tensor | None = None


class Summand(NamedTuple):
    """A summand of F as a batch estimates it: a number, or a sum over rows and how many these are.

    Attributes:
        name: of the summand.
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
    """Estimates of the summands of F by name, detached scalars, at the weights and parameters of their batch.

    They are computed when asked for, so a step costs nothing.  A summand of which the batch contains nothing is NaN.

    Args:
        summands: what they are computed from; those of one name are added.
    """

    def __init__(self, summands: Iterable[Summand] = ()) -> None:
        self.summands = list(summands)

    def __getitem__(self, name: str) -> Tensor:
        sums = [summand.summed() for summand in self.summands if summand.name == name]
        if not sums:
            raise KeyError(name)
        values = [total if rows is None else total / rows for total, rows in sums]
        stacked = torch.stack([v.to(values[0].dtype).reshape(()) for v in values])
        return torch.where(stacked.isnan().all(), torch.nan, stacked.nansum())

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(summand.name for summand in self.summands))

    def __len__(self) -> int:
        return len(list(iter(self)))


class Estimate:
    r"""An estimate of F on a batch, whose gradient in the weights is the algorithm's G.

    ``g_0(w) + sum over terms, sum over rows i of the batch, of weight_i f_i(stop(u_i) + g_i(w) - stop(g_i(w)))``, where
    stop is stop_gradient: its value is that of F at the remembered u_i, its gradient ``sum_i weight_i [Jac g_i]^T
    grad f_i(u_i)``, and parameters of f_i, such as a threshold, have theirs.  With it goes what a step is going to
    write.

    Args:
        g0: estimate of g_0 with graph, a scalar, or None.

    Attributes:
        summands: what is added in it, without graph.
        new: rows to be written.
        counted: terms whose probabilities are estimated, with the rows that the batch contains and their shares.
        gradients: with respect to the parameters, and behind them those of samples, where they have been computed with
            it; else None.
    """

    def __init__(self, g0: Tensor | None) -> None:
        self._value = g0
        self.summands: list[Summand] = []
        self.new: list[NewRows] = []
        self.counted: list[tuple[Term, Tensor | None, Tensor]] = []
        self.gradients: Sequence[Tensor | None] | None = None
        if g0 is not None:
            self.note("objective", g0)

    @property
    def value(self) -> Tensor:
        """The scalar, with graph unless :attr:`gradients` are known; 0 of nothing."""
        return torch.zeros(()) if self._value is None else self._value

    @value.setter
    def value(self, value: Tensor) -> None:
        self._value = value

    def add(self, seen: Seen, values: Tensor) -> None:
        """Add a term, given ``f_i(u_i)`` of its rows with graph, (r,), see :meth:`Estimator.estimate`."""
        total = torch.dot(seen.weight.to(values.dtype), values)
        self._value = total if self._value is None else self._value + total
        self.log(seen, values)

    def log(self, seen: Seen, values: Tensor) -> None:
        """Let ``share * mean_i c_i f(u_i)`` over the rows of the batch be logged, given the f(u_i), (r,), and count.

        c is 1, or where rows have a relevance this, the larger the rarer batches contain the row; of mean about 1.
        """
        if seen.term.counts is not None:
            self.count(seen)
        weights = rows = seen.share
        if seen.relevance is not None:
            inverse = torch.as_tensor(seen.inverse_inclusion, dtype=rows.dtype, device=rows.device)
            rows = rows * inverse.view(-1)
            weights = rows * seen.relevance
        self.summands.append(Summand(seen.term.name, values.detach(), seen.term.share, weights, rows))

    def note(self, name: str, value: Tensor) -> None:
        """Let a number be logged as a summand of F."""
        moves = torch.compiler.is_compiling() or value.is_leaf or value._is_view()  # with a parameter
        self.summands.append(Summand(name, value.detach().clone() if moves else value.detach()))

    def count(self, seen: Seen) -> None:
        """Let the rows of the batch count, for estimates of how likely a batch contains them."""
        self.counted.append((seen.term, seen.rows, seen.share))

    def remember(
        self, seen: Seen, values: Tensor, decay: float = 1.0, of: tuple[DualState, Tensor] | None = None
    ) -> None:
        """Let rows (r, k) be written where the batch contains them; the others only decay.

        Args:
            seen: what the batch contains.
            values: what its rows become, shape (r, k).
            decay: factor on all others.
            of: whose rows they are, and what these hold, (r, k); None for the term's own, if it keeps some.
        """
        state, held = of or (seen.term.state, seen.held)
        if state is None or held is None:
            return
        values, others = values.to(held.dtype), held if decay == 1 else decay * held
        new = torch.where(seen.present.unsqueeze(1), values, others)
        self.new.append(NewRows(state, seen.rows, new, decay, values))

    def latest(self, seen: Seen) -> Seen:
        """What a batch contains, with the rows that are going to be written in the place of the remembered ones."""
        multipliers = seen.term.multipliers
        for state, rows, values, *_ in self.new:
            if multipliers is not None and state is multipliers.decisions:
                seen = seen._replace(gap=values)
            elif state is seen.term.state and seen.held is not None:
                seen = seen._replace(held=replaced(seen.held, seen.rows, rows, values))
        return seen


class Averages:
    """Means of estimates over batches, where every batch counts as much as it contains of a summand.

    Of a sum over rows that is their number, so that a batch without any changes nothing; of g_0 the number of samples,
    or 0 where the estimate is 0 and some batches have none.  Several batches are taken together, so that a step costs
    next to nothing.

    Args:
        direct_weight: what estimates of g_0 are multiplied by, see :class:`Problem`, where they are 0 in batches that
            lack the samples; None where no batch does.
    """

    def __init__(self, direct_weight: float | None = None) -> None:
        self._direct_weight = direct_weight
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}  # by name and position: the sum, and how much it is of
        self._waiting: list[tuple[list[Summand], int]] = []  # summands and sizes of batches

    def add(self, estimates: Estimates, size: int) -> None:
        """Add the estimates of a batch of ``size`` samples."""
        self._waiting.append((estimates.summands, size))
        if len(self._waiting) == _TOGETHER:
            self._sums, self._waiting = self._summed(), []

    def values(self) -> Estimates:
        """The means so far, by name; none before the first batch."""
        return Estimates(Summand(key.split("/")[0], total / weight) for key, (total, weight) in self._summed().items())

    @torch.no_grad()
    def _summed(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The sums of all batches, and how much they are of."""
        alike: dict[tuple[Any, ...], list[tuple[Summand, int]]] = {}  # compiled steps give sums, others rows
        for summands, size in self._waiting:
            for position, summand in enumerate(summands):
                kind = summand.values.dim(), summand.weights is None, summand.rows is None
                alike.setdefault((f"{summand.name}/{position}", *kind), []).append((summand, size))
        sums = dict(self._sums)
        for (key, *_), several in alike.items():
            total, weight = self._of_summands(*zip(*several, strict=True))
            known = sums.get(key)
            sums[key] = (total, weight) if known is None else (known[0] + total, known[1] + weight)
        return sums

    def _of_summands(self, summands: Sequence[Summand], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The sum of summands of one kind and name, and how much it is of."""
        values, rows = [one.values for one in summands], [one.rows for one in summands if one.rows is not None]
        weights = [one.weights for one in summands if one.weights is not None]
        if not rows:
            return self._of_numbers(summands[0].name, torch.stack(values), sizes)
        if not weights:
            return torch.stack(values).sum(), torch.stack(rows).sum()
        together = summands[0]._replace(values=torch.cat(values), weights=torch.cat(weights), rows=torch.cat(rows))
        total, number = together.summed()
        assert number is not None  # noqa: S101 - there are rows
        return total, number

    def _of_numbers(self, name: str, values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        weight = torch.ones_like(values)
        if self._direct_weight is not None and name == "objective":
            values, weight = values / self._direct_weight, (values != 0).to(values.dtype)
        weight = torch.stack(torch._foreach_mul(list(weight.unbind()), [float(size) for size in sizes]))
        return torch.dot(weight, values), weight.sum()

    def state_dict(self) -> dict[str, Any]:
        """What a continuation needs, to the bit."""
        waiting = [([tuple(summand) for summand in summands], size) for summands, size in self._waiting]
        held = {"sums": self._sums, "batches": waiting}
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.cpu().clone(), held)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on from there; what cannot be added is found now, before anything changes."""
        held = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), dict(state))
        sums = held.get("so_far", held.get("sums", {}))  # the former of earlier versions
        restored = Averages(self._direct_weight)
        restored._sums = {key: (total.reshape(()), weight.reshape(())) for key, (total, weight) in sums.items()}
        restored._waiting = [([Summand(*one) for one in summands], size) for summands, size in held.get("batches", [])]
        dict(restored.values())
        self._sums, self._waiting = restored._sums, restored._waiting
