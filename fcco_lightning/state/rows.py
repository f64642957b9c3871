"""The dual state: what is remembered of every inner function."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, NoReturn, Self

import torch
from torch import Tensor, nn

from fcco_lightning.checks import at_least
from fcco_lightning.distributed import Processes
from fcco_lightning.errors import CheckpointError, ConfigError, NonFiniteError, StateIndexError
from fcco_lightning.numerics import send

STATE_VERSION = 2
SHARDED_FROM = 1_000_000
"""Values (rows x width) from which a table is divided among the processes and kept in files of its own."""
_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}

Layout = Literal["auto", "replicated", "sharded"]


class Rows(NamedTuple):
    """Rows read from a state.

    Attributes:
        values: shape (b, k), a copy without graph; NaN in rows never written.
        seen: whether the row was ever written, shape (b,), bool; None says that all of them were.
    """

    values: Tensor
    seen: Tensor | None


class Place(NamedTuple):
    """Where rows lie, checked: ``rows[local]`` on this process are those of ``index[positions]``.

    Attributes:
        index: the rows asked for, shape (b,), int64, where they were asked for: best on the host.
        local: which of the rows held here these are, on the device of the rows.
        positions: which entries of ``index`` are held here, there too; None for all of them.
    """

    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index
    local: Tensor
    positions: Tensor | None


class DualState(nn.Module):
    r"""n rows of width k; row i holds u_i (an estimate of g_i(w)) or y_i (a dual variable) of index i.

    Reading and writing cost O(batch), never O(n).  A row never written holds NaN, which no row that was written can: a
    value that is not finite and an index that names no row never get in, both raise before anything changes.

    With P processes a small table is replicated: every process writes the same values to its own copy.  A large one is
    sharded: process r holds the rows [r ceil(n/P), (r+1) ceil(n/P)), the last ones fewer or none.  Whoever reads or
    writes cannot tell: all processes call with the same index (that of the union of their batches) and the same values;
    reading a sharded table costs one collective of O(batch) bytes, writing none.

    Args:
        num_rows: n, >= 1: samples of the training split, groups, or constraints.
        width: k, >= 1.
        dtype: of the rows, float32 or float64.
        processes: that share the table; this one alone by default.
        layout: "replicated", "sharded", or "auto": sharded from 1,000,000 values (rows x width) on.

    Shapes:
        rows (n, k), or (about n/P, k) where sharded.

    Example:
        >>> state = DualState(num_rows=3)
        >>> state.write(torch.tensor([2]), torch.tensor([[0.5]]))
        >>> state.read(torch.tensor([0, 2]))
        Rows(values=tensor([[   nan],
                [0.5000]]), seen=tensor([False,  True]))
    """

    rows: Tensor

    def __init__(
        self,
        num_rows: int,
        width: int = 1,
        dtype: torch.dtype = torch.float32,
        processes: Processes | None = None,
        layout: Layout = "auto",
    ) -> None:
        super().__init__()
        at_least("num_rows", num_rows, 1)
        at_least("width", width, 1)
        if dtype not in _BITS:
            raise ConfigError(f"dtype of a dual state must be float32 or float64, got {dtype}.")
        if layout not in ("auto", "replicated", "sharded"):
            raise ConfigError(f"layout must be 'auto', 'replicated' or 'sharded', got {layout!r}.")
        self.num_rows, self.processes = num_rows, processes or Processes()
        self.sharded = layout == "sharded" or (layout == "auto" and num_rows * width >= SHARDED_FROM)
        self.first, count = 0, num_rows
        if self.sharded:
            self.first, count = shard_of(num_rows, self.processes.rank, self.processes.size)
        self.register_buffer("rows", torch.full((count, width), float("nan"), dtype=dtype))

    @property
    def width(self) -> int:
        """Values per row."""
        return self.rows.shape[1]

    @property
    def divided(self) -> bool:
        """Whether other processes hold rows that this one does not."""
        return self.sharded and self.processes.size > 1

    @property
    def seen(self) -> Tensor:
        """Which of the rows held here were ever written, bool.  O(n/P): for reports, not for a step."""
        return ~torch.isnan(self.rows[:, 0])

    def seen_share(self) -> float:
        """Share of the n rows that were ever written, in [0, 1]; all processes call it.  O(n/P)."""
        count = self.seen.sum()
        return (self.processes.sum_(count) if self.divided else count).item() / self.num_rows

    def locate(self, index: Tensor, *, checked: bool = False) -> Place:
        """Check ``index`` (b,) and say where its rows lie; :meth:`read` and :meth:`write` take the result.

        Args:
            index: rows.
            checked: whether they are known to be rows, int64.

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
        """
        if checked and not self.divided:
            return Place(index, send(index, self.rows), None)
        local, low, high = self._checked(index)
        index, positions, end = local, None, self.first + len(self.rows)
        if low < self.first or high >= end:
            positions = ((local >= self.first) & (local < end)).nonzero().squeeze(1)
            local = local.index_select(0, positions)
        if self.first:
            local = local - self.first
        return Place(index, send(local, self.rows), None if positions is None else send(positions, self.rows))

    def owns(self, index: Tensor) -> bool:
        """Whether all rows ``index`` (b,) are held here."""
        return self.locate(index).positions is None

    def read(self, index: Tensor | Place) -> Rows:
        """Rows ``index`` (b,), the same on all processes, or the rows of a place.

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
        """
        place = index if isinstance(index, Place) else self.locate(index)
        if not self.divided:
            return self.marked(self.rows.index_select(0, place.local))
        # the owner contributes the bits of its rows and everybody else zeros: a sum of integers is exact
        held = self.rows.view(_BITS[self.rows.dtype]).index_select(0, place.local)
        bits = held
        if place.positions is not None:
            bits = held.new_zeros(len(place.index), self.width).index_copy_(0, place.positions, held)
        return self.marked(self.processes.sum_(bits).view(self.rows.dtype))

    def read_own(self, index: Tensor) -> Tensor:
        """Values (b, k) of rows that are held here (see :meth:`owns`): no communication, another index on each process.

        Raises:
            StateIndexError: if an index is not held here.
        """
        place = self.locate(index)
        if place.positions is not None:
            raise StateIndexError(
                f"process {self.processes.rank} holds rows {self.first}..{self.first + len(self.rows) - 1}, got "
                f"indices {int(index.min())}..{int(index.max())}. Use read(), or OwnerBatches as the sampler."
            )
        return self.rows.index_select(0, place.local)

    def write(self, index: Tensor | Place, values: Tensor, *, checked: bool = False) -> None:
        """Set rows ``index`` (b,), all different, to ``values`` (b, k); each process keeps those that it holds.

        Args:
            index: rows, or their place.
            values: what they shall hold.
            checked: whether the values are known to be finite in the dtype of the rows.

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
            NonFiniteError: if a value is NaN or infinite; no row has changed then.
        """
        place = index if isinstance(index, Place) else self.locate(index)
        values = (values.detach() if values.requires_grad else values).to(self.rows.dtype)  # which it may overflow
        if not checked and not math.isfinite(values.sum()):  # the sum of finite values may overflow, so look again
            _require_finite(place.index, values)
        if place.positions is not None:
            values = values.index_select(0, place.positions)
        self.rows.index_copy_(0, place.local, values)

    @torch.no_grad()
    def scale_(self, factor: float) -> None:
        """Multiply every row by ``factor``: O(n), only for MOAP, whose definition is dense."""
        self.rows.mul_(factor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = self.rows
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.rows.dtype in (torch.float16, torch.bfloat16):
            self.rows = kept.to(self.rows.device)  # averages of thousands of steps do not survive 8 or 11 bits
        return self

    def checked_index(self, index: Tensor) -> Tensor:
        """``index`` (b,) as int64.

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
        """
        return self._checked(index)[0]

    def _checked(self, index: Tensor) -> tuple[Tensor, int, int]:
        """``index`` as int64, its least and its largest element."""
        if index.dtype not in _INDEX_DTYPES or index.dim() != 1:
            raise StateIndexError(
                f"index must be a 1-D tensor of whole numbers, got {index.dim()}-D {index.dtype}. "
                "Pass the dataset's `index` column, e.g. torch.arange(n)[batch]."
            )
        if not index.numel():
            return index.long(), self.first, self.first - 1
        low, high = _ends(index)
        if low < 0 or high >= self.num_rows:
            self._refuse(index, low if low < 0 else high)
        return index.long(), low, high

    def _refuse(self, index: Tensor, worst: int) -> NoReturn:
        where = int((index == worst).nonzero()[0])
        raise StateIndexError(
            f"the dual state holds rows 0..{self.num_rows - 1}, got index {worst} at batch position {where}. "
            "Index the training split itself from 0, and size the state with num_rows=len(train_split)."
        )

    def marked(self, values: Tensor) -> Rows:
        """Values (b, k) of rows with the mark of those that were ever written."""
        # a finite sum says in one pass that there is no NaN; elsewhere than on the host it would be waited for
        whole = values.device.type == "cpu" and math.isfinite(values.sum())
        return Rows(values, None if whole else ~torch.isnan(values[:, 0]))

    def get_extra_state(self) -> dict[str, Any]:
        """Version of the format, and which rows these are."""
        return {"version": STATE_VERSION, "num_rows": self.num_rows, "first": self.first}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Nothing to restore; it was checked before the rows were read."""

    def _check_extra_state(self, prefix: str, stored: Mapping[str, Any]) -> None:
        if stored.get("version") != STATE_VERSION:
            raise CheckpointError(
                f"the checkpoint's dual state has format version {stored.get('version')!r}, this installation reads "
                f"version {STATE_VERSION}. Load it with the version of fcco_lightning that wrote it."
            )
        if (stored["num_rows"], stored["first"]) != (self.num_rows, self.first):
            raise CheckpointError(
                f"the stored part of the dual state `{prefix}rows` starts at row {stored['first']} of "
                f"{stored['num_rows']}, this process holds rows from {self.first} of {self.num_rows}. Use the same "
                "data and number of processes, or a Trainer's checkpoint, which any number can read."
            )

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        stored = state_dict.get(f"{prefix}rows")
        if stored is not None and stored.shape != self.rows.shape:
            raise CheckpointError(
                f"the checkpoint's dual state `{prefix}rows` has shape {tuple(stored.shape)} (rows, width), this "
                f"problem needs {tuple(self.rows.shape)}. It was trained on another data set, split or set of "
                "constraints: use the same ones, or start without --ckpt_path."
            )
        if f"{prefix}_extra_state" in state_dict:
            self._check_extra_state(prefix, state_dict[f"{prefix}_extra_state"])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _ends(index: Tensor) -> tuple[int, int]:
    """The least and the largest of some whole numbers."""
    numbers = index.cpu().numpy()  # on the few rows of a batch it takes half of torch's time
    return int(numbers.min()), int(numbers.max())


def _require_finite(index: Tensor, values: Tensor) -> None:
    finite = torch.isfinite(values)
    if not bool(finite.all()):
        where = int((~finite).any(dim=-1).nonzero()[0])
        raise NonFiniteError(
            f"row {int(index[where])} of the dual state would become {values[where].tolist()} "
            f"(batch position {where}); no row was changed. Look for NaN or infinite scores or losses: "
            "lower the learning rate, or set `skip_nonfinite: true` to drop such batches."
        )


def shard_of(num_rows: int, rank: int, size: int) -> tuple[int, int]:
    """First row and number of rows of a process: ceil(n/P) each as ``torch.chunk`` does, so the last may hold none."""
    each = -(-num_rows // size)
    first = min(rank * each, num_rows)
    return first, min(each, num_rows - first)
