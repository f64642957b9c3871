"""The results of a batch: the estimate of F with its gradient, the new rows, and the logged summands of F."""

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
        now: the outputs by part at the present weights, with graph.
        columns: the columns by part, without the network's input if several processes share the batch.
        before: the outputs at the previous weights, without graph, or None.
        previous: the previous weights, or None.
        local: the outputs for the samples of this process alone.
    """

    now: dict[str, Any]
    columns: Mapping[str, Any]
    before: dict[str, Any] | None
    previous: Sequence[Tensor] | None
    local: Mapping[str, Any]

    def at_present(self) -> "Outputs":
        """The same without the outputs at the previous weights."""
        return self._replace(before=None, previous=None)


class NewRows(NamedTuple):
    """New values of rows of a state, which are written after all values of an iteration are known to be finite.

    Attributes:
        state: the state to write to.
        rows: the row numbers, shape (r,), int64; None for all rows in order.
        values: the new values, shape (r, k), without graph.
        decay: factor on all other rows.
        finite: the tensor that must be finite; None for ``values``. (``values`` may be NaN in a row that the batch does
            not contain and that was never written.)
    """

    state: DualState
    rows: Tensor | None
    values: Tensor
    decay: float = 1.0
    finite: Tensor | None = None


class Summand(NamedTuple):
    """A summand of F as estimated on a batch: a number, or a sum over rows with their number.

    Attributes:
        name: name of the summand.
        values: the number, or the sum; or f(u_i) of the rows, shape (r,).
        share: factor on the sum.
        weights: weights of the rows in the sum, shape (r,), or None.
        rows: share of a row in every entry, shape (r,), 0 for rows that the batch does not contain; or their sum; or
            None for a number.
    """

    name: str
    values: Tensor
    share: float = 1.0
    weights: Tensor | None = None
    rows: Tensor | None = None

    def summed(self) -> tuple[Tensor, Tensor | None]:
        """The number and None, or the sum over the rows and the number of rows."""
        if self.weights is None or self.rows is None:
            return self.values, self.rows
        total = torch.dot(self.weights.to(self.values.dtype), torch.where(self.rows > 0, self.values, 0.0))
        return total if self.share == 1 else self.share * total, self.rows.sum()


class Estimates(Mapping[str, Tensor]):
    """Estimates of the summands of F by name, detached scalars, at the weights and parameters of their batch.

    They are computed only when read.  A summand of which the batch contains no row is NaN.

    Args:
        summands: the summands; those with the same name are added.
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
    r"""An estimate of F on a batch, whose gradient with respect to the weights is the algorithm's G.

    ``g_0(w) + sum over terms, sum over rows i of the batch, of weight_i f_i(stop(u_i) + g_i(w) - stop(g_i(w)))``, where
    stop is stop_gradient: its value is that of F at the remembered u_i, and its gradient ``sum_i weight_i [Jac g_i]^T
    grad f_i(u_i)``; parameters of f_i, such as a threshold, get their gradients, too.  The object also collects the
    rows that the step is going to write.

    Args:
        g0: estimate of g_0 with graph, a scalar, or None.

    Attributes:
        summands: the summands of the value, without graph.
        new: the rows to write.
        counted: the terms with estimated inclusion probabilities, with the rows that the batch contains and their
            shares.
        gradients: gradients with respect to the trained parameters, followed by those of single samples, if they were
            computed together with the value; otherwise None.
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
        """The estimate, a scalar, with graph unless :attr:`gradients` are known; 0 without summands."""
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
        """Log ``share * mean_i c_i f(u_i)`` over the rows of the batch, given the f(u_i), (r,), and count the rows.

        c_i is 1, or the relevance of row i divided by its inclusion probability and normalised, so that its mean is
        about 1.
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
        """Log a number as a summand of F."""
        moves = torch.compiler.is_compiling() or value.is_leaf or value._is_view()  # changes with a parameter
        self.summands.append(Summand(name, value.detach().clone() if moves else value.detach()))

    def count(self, seen: Seen) -> None:
        """Count the rows of the batch, for estimates of their inclusion probabilities."""
        self.counted.append((seen.term, seen.rows, seen.share))

    def remember(
        self, seen: Seen, values: Tensor, decay: float = 1.0, of: tuple[DualState, Tensor] | None = None
    ) -> None:
        """Collect new rows (r, k) to be written where the batch contains them; other rows are multiplied by ``decay``.

        Args:
            seen: the rows that the batch contains.
            values: their new values, shape (r, k).
            decay: factor on all other rows.
            of: the state to write to, and its present rows, (r, k); None for the term's own state, if it has one.
        """
        state, held = of or (seen.term.state, seen.held)
        if state is None or held is None:
            return
        values, others = values.to(held.dtype), held if decay == 1 else decay * held
        new = torch.where(seen.present.unsqueeze(1), values, others)
        self.new.append(NewRows(state, seen.rows, new, decay, values))

    def latest(self, seen: Seen) -> Seen:
        """``seen`` with the rows that are going to be written in place of the remembered ones."""
        multipliers = seen.term.multipliers
        for state, rows, values, *_ in self.new:
            if multipliers is not None and state is multipliers.decisions:
                seen = seen._replace(gap=values)
            elif state is seen.term.state and seen.held is not None:
                seen = seen._replace(held=replaced(seen.held, seen.rows, rows, values))
        return seen


class Averages:
    """Averages of estimates over batches; every batch is weighted by how much of a summand it contains.

    For a sum over rows the weight is the number of rows; for g_0 it is the number of samples, or 0 where the estimate
    is 0 because the batch lacks samples for it.  Several batches are added at once, which keeps the cost of a step
    small.

    Args:
        direct_weight: the factor on estimates of g_0, see :class:`Problem`, if batches may lack the samples for it;
            None if no batch does.
    """

    def __init__(self, direct_weight: float | None = None) -> None:
        self._direct_weight = direct_weight
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}  # by name and position: the weighted sum, and the weight
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
        """The weighted sums over all batches, and their weights."""
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
        """The weighted sum of summands of the same kind and name, and its weight."""
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
        """The state from which the averages continue bit for bit."""
        waiting = [([tuple(summand) for summand in summands], size) for summands, size in self._waiting]
        held = {"sums": self._sums, "batches": waiting}
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.cpu().clone(), held)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore the state; an unusable one raises before anything changes."""
        held = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), dict(state))
        sums = held.get("so_far", held.get("sums", {}))  # "so_far" in earlier versions
        restored = Averages(self._direct_weight)
        restored._sums = {key: (total.reshape(()), weight.reshape(())) for key, (total, weight) in sums.items()}
        restored._waiting = [([Summand(*one) for one in summands], size) for summands, size in held.get("batches", [])]
        dict(restored.values())
        self._sums, self._waiting = restored._sums, restored._waiting
