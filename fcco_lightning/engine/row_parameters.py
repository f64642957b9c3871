"""Parameters that belong to single samples, trained beside the weights at the cost of the batch alone."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fcco_lightning.distributed import Processes
from fcco_lightning.hosted import on_host, with_column
from fcco_lightning.numerics import send
from fcco_lightning.objectives import SampleParameters
from fcco_lightning.records import Batch
from fcco_lightning.state import DualState, Layout, Place, repeats


class RowStep(NamedTuple):
    """New values (b, k) of rows that are all different: their numbers (b,), or their place."""

    at: Tensor | Place
    values: Tensor


class RowParameters(nn.Module):
    r"""Row i holds parameters theta_i of sample i, on which only the i-th term of F depends.

    ``theta_i <- clamp(theta_i - lr dF_i/d theta_i, least, most)`` for the sampled i: projected gradient descent by
    blocks.  The rows are kept as dual states are: sharded if large, part of every checkpoint.

    Args:
        spec: what the objective asks for.
        num_rows: n.
        processes: that share the rows.
        layout: of the rows, see :class:`DualState`.
        dtype: of the rows.
    """

    def __init__(
        self,
        spec: SampleParameters,
        num_rows: int,
        processes: Processes,
        layout: Layout,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.state = DualState(num_rows, spec.width, dtype, processes, layout)
        self._leaf: tuple[Place, Tensor] | None = None

    def attach(self, batch: Batch) -> Batch:
        """The batch with the samples' parameters as one more column of its first part."""
        name, columns = next(iter(batch.items()))
        place = self.state.locate(on_host(columns)["index"])
        rows, seen = self.state.read(place)
        if seen is not None:
            rows = torch.where(seen.unsqueeze(1), rows, self.spec.start)
        self._leaf = place, rows.requires_grad_()
        return {**batch, name: with_column(columns, self.spec.name, rows)}

    @property
    def leaf(self) -> Tensor | None:
        """The parameters attached last, by which surrogates are differentiated, until :meth:`step` has been taken."""
        return None if self._leaf is None else self._leaf[1]

    def step(self, gradient: Tensor | None) -> RowStep | None:
        """What the parameters attached last become.

        Args:
            gradient: of a surrogate with respect to them, (b, k), in true units; None where it does not depend on them.
        """
        leaf, self._leaf = self._leaf, None
        if leaf is None or gradient is None:
            return None
        place, values = leaf
        start, gradient, again = values.detach(), gradient.detach(), repeats(place.index)
        if again is not None:  # a sample that came more than once has one row
            at = send(again.position, values)
            start = start.new_empty(len(again.index), start.shape[1]).index_copy_(0, at, start)
            gradient = torch.zeros_like(start).index_add_(0, at, gradient)
        # the surrogate is a mean over the sampled i, a repeated one counting once
        moved = torch.sub(start, gradient, alpha=self.spec.lr * len(start)).clamp_(self.spec.least, self.spec.most)
        return RowStep(place if again is None else again.index, moved)

    def commit(self, step: RowStep | None) -> None:
        """Write the rows of ``step``."""
        if step is not None:
            self.state.write(*step, checked=True)
