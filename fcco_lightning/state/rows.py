"""The dual state: what is remembered of every inner function."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from fcco_lightning.checks import at_least
from fcco_lightning.errors import CheckpointError, NonFiniteError, StateIndexError

STATE_VERSION = 1
_SMALL = 4096
_INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Rows(NamedTuple):
    """Rows read from a state.

    Attributes:
        values: shape (b, k), a copy without graph.
        seen: whether the row was ever written, shape (b,), bool; None if every row of the table was.
    """

    values: Tensor
    seen: Tensor | None


class DualState(nn.Module):
    r"""n rows of width k; row i holds u_i (an estimate of g_i(w)) or y_i (a dual variable) of index i.

    Reading and writing cost O(batch), never O(n).  A row never written says so in ``seen``.  A value that is not finite
    and an index that names no row never get in: both raise before anything changes.

    Args:
        num_rows: n, >= 1: samples of the training split, groups, or constraints.
        width: k, >= 1.
        dtype: of the rows.

    Shapes:
        rows (n, k); seen (n,) bool.

    Example:
        >>> state = DualState(num_rows=3)
        >>> state.write(torch.tensor([2]), torch.tensor([[0.5]]))
        >>> state.read(torch.tensor([0, 2]))
        Rows(values=tensor([[0.0000],
                [0.5000]]), seen=tensor([False,  True]))
    """

    rows: Tensor
    seen: Tensor

    def __init__(self, num_rows: int, width: int = 1, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        at_least("num_rows", num_rows, 1)
        at_least("width", width, 1)
        self.register_buffer("rows", torch.zeros(num_rows, width, dtype=dtype))
        self.register_buffer("seen", torch.zeros(num_rows, dtype=torch.bool))
        self._all_seen = False  # known only of small tables, where asking is cheap

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    @property
    def width(self) -> int:
        """Values per row."""
        return self.rows.shape[1]

    def seen_share(self) -> float:
        """Share of the rows that were ever written, in [0, 1].  O(n): for reports, not for a step."""
        return self.seen.float().mean().item()

    def read(self, index: Tensor) -> Rows:
        """Rows ``index`` (b,).

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
        """
        index = self.checked_index(index)
        values = self.rows.index_select(0, index)
        return Rows(values, None if self._all_seen else self.seen.index_select(0, index))

    @torch.no_grad()
    def write(self, index: Tensor, values: Tensor) -> None:
        """Set rows ``index`` (b,), all different, to ``values`` (b, k).

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
            NonFiniteError: if a value is NaN or infinite; no row has changed then.
        """
        index, values = self.checked_index(index), values.to(self.rows.dtype)  # a value may overflow the rows' dtype
        finite = torch.isfinite(values)
        if not bool(finite.all()):
            where = int((~finite).any(dim=-1).nonzero()[0])
            raise NonFiniteError(
                f"row {int(index[where])} of the dual state would become {values[where].tolist()} "
                f"(batch position {where}); no row was changed. Look for NaN or infinite scores or losses: "
                "lower the learning rate, or set `skip_nonfinite: true` to drop such batches."
            )
        self.rows.index_copy_(0, index, values)
        self.seen.index_fill_(0, index, True)
        if not self._all_seen and self.num_rows <= _SMALL:
            self._all_seen = bool(self.seen.all())

    @torch.no_grad()
    def scale_(self, factor: float) -> None:
        """Multiply every row by ``factor``: O(n), only for MOAP, whose definition is dense."""
        self.rows.mul_(factor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.rows.dtype in (torch.float16, torch.bfloat16):
            self.rows = self.rows.float()  # averages of thousands of steps do not survive 8 or 11 bits
        return self

    def rewritten(self) -> None:
        """Say that ``rows`` and ``seen`` were overwritten from outside, perhaps by an earlier state of theirs."""
        self._all_seen = False

    def checked_index(self, index: Tensor) -> Tensor:
        """``index`` (b,) as int64.

        Raises:
            StateIndexError: if an index is not a whole number in [0, n).
        """
        if index.dtype not in _INDEX_DTYPES or index.dim() != 1:
            raise StateIndexError(
                f"index must be a 1-D tensor of whole numbers, got {index.dim()}-D {index.dtype}. "
                "Pass the dataset's `index` column, e.g. torch.arange(n)[batch]."
            )
        if index.numel() == 0:
            return index.long()
        low, high = (int(end) for end in index.aminmax())
        if low < 0 or high >= self.num_rows:
            worst = low if low < 0 else high
            where = int((index == worst).nonzero()[0])
            raise StateIndexError(
                f"the dual state holds rows 0..{self.num_rows - 1}, got index {worst} at batch position {where}. "
                "Index the training split itself from 0, and size the state with num_rows=len(train_split)."
            )
        return index.long()

    def get_extra_state(self) -> dict[str, Any]:
        """Version of the format, so that an old checkpoint can be told apart."""
        return {"version": STATE_VERSION}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Nothing to restore; the version was checked before the rows were read."""

    @staticmethod
    def _check_version(state: dict[str, Any]) -> None:
        if state.get("version") != STATE_VERSION:
            raise CheckpointError(
                f"the checkpoint's dual state has format version {state.get('version')!r}, this installation reads "
                f"version {STATE_VERSION}. Load it with the version of fcco_lightning that wrote it."
            )

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._check_version(state_dict.get(f"{prefix}_extra_state", {"version": STATE_VERSION}))
        stored = state_dict.get(f"{prefix}rows")
        if stored is not None and stored.shape != self.rows.shape:
            raise CheckpointError(
                f"the checkpoint's dual state `{prefix}rows` has shape {tuple(stored.shape)} (rows, width), this "
                f"problem needs {tuple(self.rows.shape)}. It was trained on another data set, split or set of "
                "constraints: use the same ones, or start without --ckpt_path."
            )
        self.rewritten()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
