"""One compositional term: rows, estimator and outer function of a set of inner functions."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fcco_lightning.distributed import Processes
from fcco_lightning.estimators import Estimator, Sampling
from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Inner, Tracked
from fcco_lightning.state import DualState, Layout, merge_duplicates


class TermStep(NamedTuple):
    """What a term contributes to one step.

    Attributes:
        surrogate: ``mean_i <y_i, g_i(w)>``, scalar with graph; only its gradient means anything.
        previous_surrogate: the same at the previous weights with the rows from before the step, or None.
        estimate: inner values at which f estimates the term, for the log.
        index: the rows to write.
        tracked: their new values.
    """

    surrogate: Tensor
    previous_surrogate: Tensor | None
    estimate: Tensor
    index: Tensor  # type: ignore[assignment]
    tracked: Tracked


class Term(nn.Module):
    r"""``share * (1/n) sum_i f(g_i(w))`` with remembered rows.

    Args:
        name: in logs.
        num_rows: n.
        width: k.
        share: weight of the term in F.
        distinct: the indices of one batch are all different by construction.
        remembers: whether rows are kept.
        dtype: of the rows.
        processes: that share the rows.
        layout: of the rows, see :class:`DualState`.

    Attributes:
        per_sample: row i belongs to sample i of the training split.
    """

    per_sample: bool = False

    def __init__(
        self,
        name: str,
        num_rows: int,
        width: int,
        share: float,
        distinct: bool,
        remembers: bool,
        dtype: torch.dtype,
        processes: Processes | None = None,
        layout: Layout = "auto",
    ) -> None:
        super().__init__()
        self.name, self.num_rows, self.share, self.distinct, self.dtype = name, num_rows, share, distinct, dtype
        self.state = DualState(num_rows, width, dtype, processes, layout) if remembers else None

    def step(
        self, inner: Inner, previous: Inner | None, outer: OuterFunction, estimator: Estimator, *, with_previous: bool
    ) -> TermStep:
        """Outer gradients and surrogate; nothing is written yet (see :meth:`commit`)."""
        if self.state is not None and not self.distinct:
            self.state.owns(inner.index)  # raises before merging, so that an error names the batch's position
        index, values = inner if self.distinct else merge_duplicates(*inner)
        before = None if previous is None else (previous.values if self.distinct else merge_duplicates(*previous)[1])
        sampling = Sampling(self.num_rows, index.numel())
        dtype = self.dtype if self.state is None else self.state.rows.dtype
        fresh = values.detach().to(dtype)
        old = None if before is None else before.detach().to(dtype)
        with torch.no_grad():
            if self.state is None:
                start = fresh if old is None else old
                tracked = estimator.update(fresh, fresh, old, outer, sampling)
            else:
                if estimator.dense:
                    sampling = sampling._replace(index=self.state.checked_index(index))
                    index = torch.arange(self.num_rows, device=index.device)
                rows, seen = self.state.read(index)
                start = estimator.start(rows, seen, fresh, outer) if with_previous else rows
                tracked = estimator.track(rows, seen, fresh, old, outer, sampling)
            if with_previous and before is not None:
                start = estimator.weights(start, outer)
        surrogate = _pair(tracked.weights, values)
        before_surrogate = _pair(start, before) if with_previous and before is not None else None
        estimate = estimator.estimate(fresh, tracked)
        return TermStep(surrogate, before_surrogate, estimate, index, tracked)

    def commit(self, step: TermStep, estimator: Estimator) -> None:
        """Write the rows of ``step``."""
        if self.state is None:
            return
        if estimator.decay() != 1:
            self.state.scale_(estimator.decay())
        self.state.write(step.index, step.tracked.rows)


def _pair(weights: Tensor, values: Tensor) -> Tensor:
    """``mean_i <y_i, g_i>``."""
    return (weights.to(values.dtype) * values).sum() / len(values)
