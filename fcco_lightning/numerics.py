"""Small numerical functions: simplex projection, monotone roots, exponentials without overflow, checks."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_BISECTIONS = 100  # reduce any float64 bracket to its last bit
_ROOT = 1e-14  # absolute and relative error of a root
_MOST_STEPS = 10_000  # enough for Brent's method from any bracket
_FEW = 1024  # number of entries up to which a table of all pairs is faster than sorting


def widest(values: Tensor) -> torch.dtype:
    """The widest dtype that the device of a tensor computes in: float64, except on Apple's GPUs, which lack it."""
    return values.dtype if values.device.type == "mps" else torch.float64


def project_to_simplex(v: Tensor, radius: float = 1.0) -> Tensor:
    """Euclidean projection of each row onto ``{p >= 0, sum p = radius}``.

    Solves ``argmin_p |p - v|^2 / 2`` by sorting: ``p = max(v - t, 0)`` with t such that the row sums to ``radius``.

    Args:
        v: rows to project, shape (B, k).
        radius: sum of a projected row, > 0.

    Returns: shape (B, k), dtype and device of ``v``.
    Source: Duchi et al., Efficient Projections onto the l1-Ball (2008), Figure 1.
    """
    v = v - v.amax(dim=-1, keepdim=True)  # changes nothing, and avoids cancellation for large rows
    descending = v.sort(dim=-1, descending=True).values
    excess = descending.cumsum(dim=-1) - radius
    rank = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    support = (descending * rank > excess).sum(dim=-1, keepdim=True)
    shift = excess.gather(-1, support - 1) / support.to(v.dtype)
    return (v - shift).clamp(min=0)


def increasing_root(h: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Elementwise root of a non-decreasing function by bisection.

    Args:
        h: maps a tensor to a tensor of the same shape, non-decreasing in each entry.
        low: entries with ``h(low) <= 0``.
        high: entries with ``h(high) >= 0``, same shape.

    Returns: the root to the last bit of the dtype.
    """
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_negative = h(middle) < 0
        low, high = torch.where(is_negative, middle, low), torch.where(is_negative, high, middle)
    return (low + high) / 2


def exp_with_tangent(x: Tensor, start: float = 60.0) -> Tensor:
    """``exp(x)`` up to ``start``, continued by its tangent: convex, increasing, and finite where exp overflows.

    Score differences above 60 occur only in models that have diverged, or whose inputs are not scaled; sums of many
    exp(60) = 1e26, and their squares in float64, do not overflow.
    """
    # not x - excess, which differs from `start` by rounding for a large x
    is_beyond = x > start
    return torch.where(is_beyond, start, x).exp() * (1 + torch.where(is_beyond, x - start, 0.0))


def bounded_exp(logs: Tensor, bound: float = 600.0) -> Tensor:
    """``exp(logs)`` in float64, clipped to [e^-bound, e^bound].

    Its derivative equals its value everywhere, so that the quotient with an equally clipped average has a gradient.

    Args:
        logs: tensor of any shape.
        bound: bound of the exponent, > 0 and < 700, where float64 overflows.
    """
    wide = logs.double()
    value = wide.detach().clamp(-bound, bound).exp()
    return value * (1 + wide - wide.detach()) if logs.requires_grad else value


class Known:
    """A constant tensor that can be used on any device; it is copied there once.

    Args:
        values: the tensor.

    Example:
        >>> Known(torch.arange(3)).like(torch.zeros(1))
        tensor([0, 1, 2])
    """

    def __init__(self, values: Tensor) -> None:
        self.values = self._converted = values

    def like(self, other: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on the device of ``other``, in ``dtype`` or its own dtype."""
        tensor, dtype = self._converted, dtype or self.values.dtype
        if tensor.device != other.device or tensor.dtype != dtype:
            with torch.inference_mode(False):  # it may be part of a graph later
                self._converted = tensor = self.values.to(device=other.device, dtype=dtype)
        return tensor


def counts(values: Tensor) -> Tensor:
    """The number of entries with the same value, for every entry, shape (b,), int64."""
    if len(values) <= _FEW:
        return (values.unsqueeze(1) == values).sum(1)
    ordered = values.sort().values
    return torch.searchsorted(ordered, values, right=True) - torch.searchsorted(ordered, values)


def first_of_equals(index: Tensor) -> Tensor:
    """The position of the first entry with the same value, for every entry of ``index`` (b,), int64."""
    if 0 < len(index) <= _FEW:
        return (index.unsqueeze(1) == index).to(torch.int8).argmax(1)
    ordered, order = index.sort(stable=True)
    return order[torch.searchsorted(ordered, index)]


def mean_of_equals(values: Tensor, keys: Tensor) -> Tensor:
    """The mean of the values over the entries with the same key, for every entry, both (n,).

    It makes results that depend on sorting by keys independent of the order of equal keys.
    """
    first = torch.searchsorted(keys.sort().values, keys).clamp(max=len(keys) - 1)  # a NaN is sorted last
    return values.new_zeros(len(keys)).index_add(0, first, values)[first] / counts(keys).clamp(min=1)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no value of the tensors is NaN or infinite."""
    return look(tensors)[0]


def look(tensors: Sequence[Tensor], questions: Sequence[Tensor] = ()) -> tuple[bool, list[bool]]:
    """Whether all values of the tensors are finite, and some truth values, with a single transfer from the device.

    Args:
        tensors: tensors of any shapes.
        questions: truth values, scalar tensors.
    """
    tensors = [t.detach() if t.requires_grad else t for t in tensors if t.numel()]
    if not questions:
        norms = torch.stack(torch._foreach_norm(tensors)) if tensors else torch.zeros(1)
        largest, answers = norms.sum(dtype=torch.float32).item(), list[bool]()
    else:
        numbers = [n.float() for n in torch._foreach_norm(tensors)] if tensors else []
        numbers_read = torch.stack([*numbers, *(question.float() for question in questions)]).tolist()
        largest, answers = math.fsum(numbers_read[: len(numbers)]), list(map(bool, numbers_read[len(numbers) :]))
    # the norm of finite numbers may overflow
    return math.isfinite(largest) or bool(torch.stack([torch.isfinite(t).all() for t in tensors]).all()), answers


def root(h: Callable[[float], float], tolerance: float) -> float:
    """Root of a non-decreasing function of one number: doubling steps from 0, then Brent's method.

    Args:
        h: continuous and non-decreasing function with a root.
        tolerance: a point with ``|h|`` at most this is accepted as a root while stepping.

    Returns: the root to about 1e-14.
    """
    from scipy.optimize import brentq  # noqa: PLC0415 (slow to import)

    before = 0.0
    point = 0.0
    value = h(0.0)
    step = 1.0 if value < 0 else -1.0
    while value * step < 0 and abs(value) > tolerance:
        before, point, step = point, point + step, 2 * step
        value = h(point)
    if not abs(value) > tolerance:  # found, or NaN
        return point
    return float(brentq(h, before, point, xtol=_ROOT, rtol=_ROOT, maxiter=_MOST_STEPS))
