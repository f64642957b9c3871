"""The dual state: a table with a row for every inner function."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from fcco_lightning.checks import at_least, one_of
from fcco_lightning.errors import CheckpointError, NonFiniteError, StateIndexError
from fcco_lightning.state.checkpoint_schema import ROWS, require
from fcco_lightning.state.processes import Processes
from fcco_lightning.state.sharded import shard_of

STATE_VERSION = 2
SHARDED_FROM = 1_000_000
"""Number of values (rows x width) from which a table is sharded over the processes and stored in separate files."""
_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}

Layout = Literal["auto", "replicated", "sharded"]


class DualState(nn.Module):
    r"""n rows of width k; row i holds u_i (an estimate of g_i(w)) or y_i (a dual variable) of index i.

    Reading and writing cost O(batch), never O(n).  NaN marks a row that was never written; writing a value that is not
    finite, or to an invalid index, raises an error before anything changes.

    After the rows there is an additional row without meaning, the *sink*: entries of a batch without a row are written
    there, so that batches of the same size read and write the same number of rows.

    With P processes a small table is replicated: every process writes the same values to its own copy.  A large one is
    sharded: process r holds the rows [r ceil(n/P), (r+1) ceil(n/P)), the last processes fewer or none.  The interface
    is the same for both: all processes call with the same index (that of the union of their batches) and the same
    values; reading a sharded table needs one collective of O(batch) bytes, writing none.

    Args:
        num_rows: n, >= 1: samples of the training split, groups, or constraints.
        width: k, >= 1.
        dtype: type of the rows, float32 or float64.
        processes: the processes that share the table; this one alone by default.
        layout: "replicated", "sharded", or "auto": sharded from 1,000,000 values (rows x width) on.
        sink: whether :meth:`gather` and :meth:`scatter_` take n for "no row".

    Attributes:
        partial: whether other processes hold rows that this one does not.

    Example:
        >>> state = DualState(num_rows=3)
        >>> state.write(torch.tensor([2]), torch.tensor([[0.5]]))
        >>> state.read(torch.tensor([0, 2]))
        tensor([[   nan],
                [0.5000]])
    """

    held: Tensor
    """The rows that this process holds, followed by the sink."""
    number: int = 0
    """Position among the states of a problem."""

    def __init__(
        self,
        num_rows: int,
        width: int = 1,
        dtype: torch.dtype = torch.float32,
        processes: Processes | None = None,
        layout: Layout = "auto",
        *,
        sink: bool = False,
    ) -> None:
        super().__init__()
        self.num_rows, self.width = at_least("num_rows", num_rows, 1), at_least("width", width, 1)
        one_of("dtype", dtype, tuple(_BITS))
        one_of("layout", layout, get_args(Layout))
        self.processes, self.sink = processes or Processes(), sink
        self.sharded = layout == "sharded" or (layout == "auto" and num_rows * width >= SHARDED_FROM)
        self.partial = self.sharded and self.processes.size > 1
        process = (self.processes.rank, self.processes.size) if self.sharded else (0, 1)
        self.first, count = shard_of(num_rows, *process)
        self.register_buffer("held", torch.full((count + 1, width), float("nan"), dtype=dtype), persistent=False)

    @property
    def rows(self) -> Tensor:
        """The rows held by this process, a view: shape (n, k), or (about n/P, k) if sharded."""
        return self.held[:-1]

    @property
    def seen(self) -> Tensor:
        """A mask of this process's rows that were ever written, bool.  O(n/P): for reports, not for a step."""
        return ~torch.isnan(self.rows[:, 0])

    def seen_share(self) -> float:
        """Fraction of the n rows that were ever written, in [0, 1]; all processes must call it.  O(n/P)."""
        count = self.seen.sum()
        return (self.processes.sum_(count) if self.partial else count).item() / self.num_rows

    def gather(self, index: Tensor | None) -> Tensor:
        """Rows of a step: as :meth:`read`, without checking values.

        Args:
            index: row numbers, shape (b,), int64, n for the sink; None for all rows in order.

        Returns: shape (b, k), or (n, k), without graph; must not be changed in place.  Infinity for an invalid index,
        unless an error is raised.

        Raises:
            IndexError: for an invalid index, if the rows are on the CPU and not sharded.
        """
        if not self.partial and index is None:
            return self.held[:-1]
        index = torch.arange(self.num_rows, device=self.held.device) if index is None else index
        if not self.partial and self.held.device.type == "cpu":
            return (self.held if self.sink else self.rows).index_select(0, index)
        local, none = self._local(index), (index < 0) | (index >= self.num_rows + self.sink)
        # the owner contributes the bits of its rows and all others zeros: a sum of integers is exact
        bits = self.held.view(_BITS[self.held.dtype]).index_select(0, local)
        bits = bits.masked_fill((local == len(self.held) - 1).unsqueeze(1), 0)
        bits = self.processes.sum_(bits) if self.partial else bits
        return bits.view(self.held.dtype).masked_fill(none.unsqueeze(1), torch.inf)

    def scatter_(self, index: Tensor | None, values: Tensor) -> None:
        """Set rows of a step to finite values (b, k): as :meth:`write`, without checking values.

        Equal indices must have equal values.
        """
        local_rows, values = self.held, values.detach() if values.requires_grad else values
        if index is None:
            rows = local_rows[:-1]
            rows.copy_(values[self.first : self.first + len(rows)] if self.partial else values)
        else:
            local_rows.index_copy_(0, self._local(index) if self.partial else index, values.to(local_rows.dtype))

    def read(self, index: Tensor) -> Tensor:
        """Rows ``index`` (b,), the same on all processes, shape (b, k), a copy; NaN in rows never written.

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
        """
        return self.gather(self.checked_index(index).to(self.held.device))

    def write(self, index: Tensor, values: Tensor) -> None:
        """Set the rows ``index`` (b,), all different, to ``values`` (b, k); each process stores those that it holds.

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
            NonFiniteError: if a value is NaN or infinite in the dtype of the rows; no row has changed then.
        """
        index, values = self.checked_index(index), values.detach().to(self.held.dtype)
        nonfinite = ~torch.isfinite(values).all(dim=1)
        if bool(nonfinite.any()):
            position = int(nonfinite.nonzero()[0])
            raise NonFiniteError(
                f"row {int(index[position])} of the dual state would become {values[position].tolist()} "
                f"(batch position {position}); no row was changed. Look for NaN or infinite scores or losses: "
                "lower the learning rate, or set `execution: {skip_nonfinite: true}` to drop such batches."
            )
        self.scatter_(index.to(self.held.device), values.to(self.held.device))

    @torch.no_grad()
    def scale_(self, factor: float) -> None:
        """Multiply all rows by ``factor``: O(n), only for MOAP, whose update changes all rows."""
        self.held.mul_(factor)

    def checked_index(self, index: Tensor) -> Tensor:
        """``index`` (b,) as int64, see :func:`checked_index`."""
        return checked_index(index, self.num_rows)

    def _local(self, index: Tensor) -> Tensor:
        """Local positions of row numbers in :attr:`held`; the sink for rows of other processes."""
        local = index - self.first
        inside = (local >= 0) & (local < len(self.held) - 1)
        return torch.where(inside, local, len(self.held) - 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = self.held
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.held.dtype in (torch.float16, torch.bfloat16):
            self.held = before.to(self.held.device)  # running averages need more than 8 or 11 bits
        return self

    def get_extra_state(self) -> dict[str, Any]:
        """Version of the format, and the range of rows of this process."""
        return {"version": STATE_VERSION, "num_rows": self.num_rows, "first": self.first}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Refuse rows of another format or of another range, before any is read."""
        if isinstance(state, Mapping) and state.get("version") != STATE_VERSION:
            raise CheckpointError(
                f"the checkpoint's dual state has format version {state.get('version')!r}, this installation reads "
                f"version {STATE_VERSION}. Load it with the version of fcco_lightning that wrote it."
            )
        require(state, ROWS, "the state of rows")
        if (state["num_rows"], state["first"]) != (self.num_rows, self.first):
            raise CheckpointError(
                f"the stored part of a dual state starts at row {state['first']} of {state['num_rows']}, this process "
                f"holds rows from {self.first} of {self.num_rows}. Use the same data and number of processes, or a "
                "Trainer's checkpoint, which any number can read."
            )

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}rows"] = self.rows

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        others = dict(state_dict)
        stored = others.pop(f"{prefix}rows", None)
        if stored is not None:
            require(stored, Tensor, f"the state's `{prefix}rows`")
        if stored is not None and stored.shape != self.rows.shape:
            raise CheckpointError(
                f"the checkpoint's dual state `{prefix}rows` has shape {tuple(stored.shape)} (rows, width), this "
                f"problem needs {tuple(self.rows.shape)}. It was trained on another data set, split or set of "
                "constraints: use the same ones, or start without --ckpt_path."
            )
        super()._load_from_state_dict(others, prefix, *args)
        if stored is None:
            missing: list[str] = args[2]
            missing.append(f"{prefix}rows")
        else:
            self.rows.copy_(stored.detach())


def checked_index(index: Tensor, num_rows: int) -> Tensor:
    """``index`` (b,) as int64.

    Args:
        index: indices of samples.
        num_rows: n.

    Raises:
        StateIndexError: if an index is not a whole number in [0, n).
    """
    if index.dtype not in _INDEX_DTYPES or index.dim() != 1:
        raise StateIndexError(
            f"index must be a 1-D tensor of whole numbers, got {index.dim()}-D {index.dtype}. "
            "Pass the dataset's `index` column, e.g. torch.arange(n)[batch]."
        )
    out_of_range = (index < 0) | (index >= num_rows)
    if bool(out_of_range.any()):
        position = int(out_of_range.nonzero()[0])
        raise StateIndexError(
            f"the dual state holds rows 0..{num_rows - 1}, got index {int(index[position])} at batch position "
            f"{position}. Index the training split itself from 0, and size the state with num_rows=len(train_split)."
        )
    return index.long()
