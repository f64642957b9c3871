"""Parameters that belong to single samples, trained beside the weights at the cost of the batch alone."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fcco_lightning.distributed import Processes
from fcco_lightning.hosted import on_host, with_column
from fcco_lightning.numerics import send
from fcco_lightning.objectives import SampleParameters
from fcco_lightning.records import Batch
from fcco_lightning.state import DualState, Layout


class RowStep(NamedTuple):
    """New values (b, k) of the rows ``index`` (b,), all different."""

    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index
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
        self._leaf: tuple[Tensor, Tensor] | None = None

    def attach(self, batch: Batch) -> Batch:
        """The batch with the samples' parameters as one more column of its first part."""
        name, columns = next(iter(batch.items()))
        index = on_host(columns)["index"]
        rows, seen = self.state.read(index)
        if seen is not None:
            rows = torch.where(seen.unsqueeze(1), rows, self.spec.start)
        self._leaf = index, rows.requires_grad_()
        return {**batch, name: with_column(columns, self.spec.name, rows)}

    def step(self, surrogate: Tensor) -> RowStep | None:
        """What the parameters attached last become; the graph of ``surrogate`` is kept."""
        leaf, self._leaf = self._leaf, None
        if leaf is None or not surrogate.requires_grad:
            return None
        positions, values = leaf
        (gradient,) = torch.autograd.grad(
            surrogate, values, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        index, at = torch.unique(positions, return_inverse=True)
        at = send(at, values)
        start = values.new_empty(len(index), values.shape[1]).index_copy_(0, at, values.detach())
        # the surrogate is a mean over the sampled i, a repeated one counting once
        slope = len(index) * torch.zeros_like(start).index_add_(0, at, gradient)
        return RowStep(index, (start - self.spec.lr * slope).clamp(self.spec.least, self.spec.most))

    def commit(self, step: RowStep | None) -> None:
        """Write the rows of ``step``."""
        if step is not None:
            self.state.write(*step, checked=True)
