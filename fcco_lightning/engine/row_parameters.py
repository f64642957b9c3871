"""Parameters of single samples, trained with the weights at a cost that depends on the batch size alone."""

import torch
from torch import Tensor, nn

from fcco_lightning.engine.estimates import NewRows
from fcco_lightning.models.batch import DUAL, Batch, Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import SampleParameters
from fcco_lightning.objectives.self_weights import expected_copies
from fcco_lightning.state import Copies, DualState, Layout, copies, replaced
from fcco_lightning.state.processes import Processes


class RowParameters(nn.Module):
    r"""Row i holds parameters theta_i of sample i, on which only the i-th term of F depends.

    ``theta_i <- clamp(theta_i - lr dF_i/d theta_i, least, most)`` for the sampled i: projected gradient descent by
    blocks.  dF_i is averaged over the batches that hold sample i, however samples are drawn.  The rows are stored as
    dual states are: sharded if large, and part of every checkpoint.

    The previous weights are used with the parameters from before the last step.  These differ from the present ones
    only for the samples of one batch, which are stored for this purpose.

    Args:
        spec: the parameters that the objective asks for.
        num_rows: n.
        processes: the processes that share the rows.
        layout: where rows are stored, see :class:`DualState`.
        dtype: type of the rows.
        repeats: whether a batch may hold a sample twice.
        shares: average weight of every sample in a batch that holds it, shape (n,); None if it follows from the columns
            of the batch.

    Attributes:
        with_previous: whether batches are also measured at the previous weights.
        before: the samples that the last committed step changed (``index``), and their parameters before it
            (``values``).
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
        shares: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.repeats = spec, repeats
        self._known = None if shares is None else Known(shares)
        self.state = DualState(num_rows, spec.width, dtype, processes, layout)
        self.leaf: Tensor | None = None
        """The parameters attached last, with respect to which F is differentiated; None after :meth:`step`."""
        self.with_previous = False
        self._columns: Columns = {}
        self.before: dict[str, Tensor] = {}
        self._next: dict[str, Tensor] = {}  # `before` of a step that is not committed yet

    def attach(self, batch: Batch) -> Batch:
        """The batch with the samples' parameters as a column of its first part, and of that part's independent draw."""
        name, columns = next(iter(batch.items()))
        self._columns = columns
        self.leaf = self._held(columns).requires_grad_()
        self._next = {}
        attached = {**batch, name: self._with(columns, self.leaf)}
        if DUAL in batch:
            attached[DUAL] = self._with(batch[DUAL], self._held(batch[DUAL]))
        return attached

    def at_previous(self, batch: Batch) -> Batch:
        """A batch with attached parameters, which are replaced by those from before the last step."""
        name, before = self.spec.name, f"{self.spec.name} before"
        return {part: {**c, name: c[before]} if before in c else c for part, c in batch.items()}

    def committed(self) -> None:
        """Record that the step of :meth:`step` is being committed."""
        self.before, self._next = self._next, {}

    def _with(self, columns: Columns, rows: Tensor) -> Columns:
        attached = {**columns, self.spec.name: rows}
        if self.with_previous and self.before:
            before = replaced(rows.detach(), columns["index"], self.before["index"], self.before["values"])
            attached[f"{self.spec.name} before"] = before
        return attached

    def _held(self, columns: Columns) -> Tensor:
        held = self.state.gather(columns["index"])
        return torch.where(held.isnan(), self.spec.start, held)

    def step(self, gradient: Tensor | None) -> list[NewRows]:
        """The new values of the parameters attached last.

        Args:
            gradient: gradient of F with respect to them, (b, k), unscaled; None if F does not depend on them.
        """
        leaf, self.leaf = self.leaf, None
        if leaf is None or gradient is None:
            return []
        index, rows = self._columns["index"], leaf.detach()
        self._next = {"index": index, "values": rows}
        again = copies(index) if self.repeats else None
        gradient = gradient if again is None else again.total(gradient)
        shares = self._shares(again, rows).clamp(min=torch.finfo(rows.dtype).tiny)  # where it is 0, so is the gradient
        moved = torch.addcdiv(rows, gradient.detach(), shares, value=-self.spec.lr)
        return [NewRows(self.state, index, moved.clamp(self.spec.least, self.spec.most))]

    def _shares(self, again: Copies | None, leaf: Tensor) -> Tensor:
        """The weight of a sample with all of its copies in F, a mean over samples; (b, 1), or a scalar."""
        index, weight = self._columns["index"], self._columns.get("weight")
        if self._known is not None:
            return self._known.like(leaf, leaf.dtype).index_select(0, index).unsqueeze(1)
        if weight is None:
            alone = leaf.new_full((), 1 / len(index))
            return alone if again is None else 1 / (1 / again.count.to(leaf.dtype)).sum().round()
        if "replaced" in self._columns:
            weight = weight * expected_copies(self._columns)
        elif again is not None:
            weight = weight * again.count
        return (weight.to(leaf.dtype) / len(index)).unsqueeze(1)
