"""Parameters that belong to single samples, trained beside the weights at the cost of the batch alone."""

import torch
from torch import Tensor, nn

from fcco_lightning.engine.estimates import Proposal
from fcco_lightning.models.batch import Batch
from fcco_lightning.objectives import SampleParameters
from fcco_lightning.state import Copies, DualState, Layout, copies
from fcco_lightning.state.processes import Processes


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
        repeats: whether a batch may hold a sample twice.
    """

    def __init__(
        self,
        spec: SampleParameters,
        num_rows: int,
        processes: Processes,
        layout: Layout,
        dtype: torch.dtype = torch.float32,
        *,
        repeats: bool = True,
    ) -> None:
        super().__init__()
        self.spec, self.repeats = spec, repeats
        self.state = DualState(num_rows, spec.width, dtype, processes, layout)
        self.leaf: Tensor | None = None
        """The parameters attached last, by which surrogates are differentiated, until :meth:`step` has been taken."""
        self._index = torch.empty(0, dtype=torch.int64)

    def attach(self, batch: Batch) -> Batch:
        """The batch with the samples' parameters as one more column of its first part."""
        name, columns = next(iter(batch.items()))
        self._index = columns["index"]
        held = self.state.gather(self._index)
        self.leaf = torch.where(held.isnan(), self.spec.start, held).requires_grad_()
        return {**batch, name: {**columns, self.spec.name: self.leaf}}

    def step(self, gradient: Tensor | None) -> list[Proposal]:
        """What the parameters attached last become.

        Args:
            gradient: of a surrogate with respect to them, (b, k), in true units; None where it does not depend on them.
        """
        leaf, self.leaf = self.leaf, None
        if leaf is None or gradient is None:
            return []
        again: Copies | None = copies(self._index) if self.repeats else None
        number: Tensor | int = len(leaf)  # the surrogate is a mean over the sampled i, a repeated one counting once
        if again is not None:
            gradient, number = again.total(gradient), (1 / again.count.to(leaf.dtype)).sum().round()
        moved = leaf.detach() - self.spec.lr * number * gradient.detach()
        return [Proposal(self.state, self._index, moved.clamp(self.spec.least, self.spec.most))]
