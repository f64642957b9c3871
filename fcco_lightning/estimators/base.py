"""What an estimator is: a pure map from remembered rows and fresh inner values to new rows and outer gradients."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Tracked


class Sampling(NamedTuple):
    """How the outer batch was drawn.

    Attributes:
        num_rows: n.
        batch: B1, the number of different rows in the batch.
        index: which rows these are, shape (b,); only dense estimators need to know.
    """

    num_rows: int
    batch: int
    index: Tensor | None = None  # type: ignore[assignment]  # the field hides tuple.index


class Estimator(ABC):
    r"""Tracks inner values from mini-batches and says how much every inner function matters.

    All tensors have shape (b, k) and carry no graph.

    Attributes:
        remembers: the estimator keeps rows; without, no state is allocated.
        convex_only: it takes dual steps, so f must be convex.
        dense: every step reads and rewrites all n rows: ``rows`` and ``seen`` are of all of them then, inner values
            still of the batch (``sampling.index``).
    """

    remembers: ClassVar[bool] = True
    convex_only: ClassVar[bool] = False
    dense: ClassVar[bool] = False

    @property
    def needs_previous(self) -> bool:
        """Whether g_i(w_{t-1}; batch) is needed, i.e. a second forward pass at the previous weights."""
        return False

    def decay(self) -> float:
        """Factor on ALL rows before the sampled ones are written; 1 except for MOAP."""
        return 1.0

    def first(self, inner: Tensor, outer: OuterFunction) -> Tensor:  # noqa: ARG002
        """The row that an index never seen counts as having: the fresh value, so that the first visit is exact."""
        return inner

    def weights(self, rows: Tensor, outer: OuterFunction) -> Tensor:
        """Outer gradients y_i that remembered rows stand for."""
        return outer.subgradient(rows)

    @abstractmethod
    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, sampling: Sampling
    ) -> Tracked:
        """New rows and outer gradients.

        Args:
            rows: remembered rows; for an index never seen, :meth:`first`.
            inner: g_i(w_t; batch).
            previous: g_i(w_{t-1}; batch) on the same samples (equal to ``inner`` for an index never seen), or None if
                there is no previous point (then it counts as equal to ``inner``).
            outer: f, smoothed if the algorithm smooths.
            sampling: n and B1.
        """

    def track(
        self,
        rows: Tensor,
        seen: Tensor | None,
        inner: Tensor,
        previous: Tensor | None,
        outer: OuterFunction,
        sampling: Sampling,
    ) -> Tracked:
        """:meth:`update` with indices never seen replaced by their first value.

        ``seen`` has shape (b,); None says that all were.
        """
        if seen is not None:
            rows = self.start(rows, seen, inner, outer)
            previous = None if previous is None else torch.where(seen.unsqueeze(1), previous, inner)
        return self.update(rows, inner, previous, outer, sampling)

    def estimate(self, inner: Tensor, tracked: Tracked) -> Tensor:  # noqa: ARG002
        """Inner values (b, k) at which f estimates its term, for the log; ``inner`` are the fresh ones."""
        return tracked.rows

    def start(self, rows: Tensor, seen: Tensor | None, inner: Tensor, outer: OuterFunction) -> Tensor:
        """Rows with those never seen replaced by :meth:`first`."""
        return rows if seen is None else torch.where(seen.unsqueeze(1), rows, self.first(inner, outer))
