"""Weighted sums and means of losses over pairs of scores, with derivatives in closed form."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import reduce, wraps
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from fcco_lightning.objectives.measurable import nan_where

FEW_PAIRS = 2**17
"""Number of pairs up to which all are computed at once, which is then fastest."""
_MOST_KEPT = 2**21  # pairs up to which derivatives are kept for the backward pass
_BLOCK = 2**16  # pairs computed at a time: they fit into a core's cache
_BLOCK_OF_TABLE = 2**20  # the same with tables of weights, each of which is costly
_MOST_COMPILED = 16  # blocks, where they are compiled
_ALL = slice(None)

Table: TypeAlias = Callable[[slice], Tensor]
"""A function that returns the weights of the pairs of all samples j with some owners i, (B, m'), without graph."""


class Few:
    """At most q samples of a batch, in shapes that do not depend on their number.

    Args:
        marked: a mask of the samples, shape (B,), bool.
        most: q.

    Attributes:
        places: positions of the samples, padded with B, shape (q,), int64.
        beyond: whether more than q samples are marked.
    """

    def __init__(self, marked: Tensor, most: int) -> None:
        self.size = len(marked)
        self.places = torch.nonzero_static(marked, size=most, fill_value=self.size).squeeze(1)
        self.beyond = marked.sum() > most

    def of(self, values: Tensor) -> Tensor:
        """Select their values from the values (..., B) of all samples, padded with 0, shape (..., q)."""
        return pad(values, (0, 1)).index_select(-1, self.places)

    def spread(self, values: Tensor) -> Tensor:
        """Scatter their values (q, k) into zeros for all samples, shape (B, k); NaN if more than q are marked."""
        padded = values.new_zeros(self.size + 1, values.shape[1]).index_copy(0, self.places, values)
        return nan_where(self.beyond, padded[: self.size])


class Strata:
    """Weights ``a_j + m_i [j is in the stratum of i]`` of pairs: a :data:`Table` that squared losses need not evaluate.

    Args:
        stratum: stratum of every sample, shape (B,).
        owners: the samples i; None for all.
    """

    across: Tensor
    more: Tensor

    def __init__(self, stratum: Tensor, owners: Few | None = None) -> None:
        self.stratum, self.owners = stratum, owners
        self.of_owners = stratum if owners is None else owners.of(stratum)
        self._same = self._table(_ALL) if owners is None and len(stratum) ** 2 <= FEW_PAIRS else None

    def held(self) -> Tensor:
        """The number of samples of every sample's stratum in the batch, shape (B,)."""
        if self._same is not None:
            return self._same.sum(0)
        ordered = self.stratum.sort().values
        return torch.searchsorted(ordered, self.stratum, right=True) - torch.searchsorted(ordered, self.stratum)

    def weighted(self, across: Tensor, more: Tensor) -> "Strata":
        """Set the weights a and m, shape (B,) each, and return the table."""
        self.across, self.more = across, more if self.owners is None else self.owners.of(more)
        return self

    def __call__(self, some: slice) -> Tensor:
        same = self._table(some) if self._same is None else _part(self._same, some)
        return torch.addcmul(self.across.unsqueeze(1), same.to(self.across.dtype), _part(self.more, some))

    def _table(self, some: slice) -> Tensor:
        return (self.stratum.unsqueeze(1) - _part(self.of_owners, some)).eq_(0)


class PairLoss(ABC):
    """An elementwise loss of a score difference d (any shape) that decreases with d.

    Attributes:
        square: "everywhere" if it is ``(margin - d)^2``, "hinge" if it is that for ``d < margin`` and 0 beyond, else
            "no".  Sums of squared losses over many pairs are computed without forming the pairs.
        margin: margin of a squared loss.
    """

    square: ClassVar[Literal["no", "everywhere", "hinge"]] = "no"
    margin: float

    @abstractmethod
    def __call__(self, d: Tensor) -> Tensor:
        """l(d), the shape of ``d``."""

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """l(d) and its derivative l'(d), both without graph.

        The default uses autograd; a subclass may use a formula, which is cheaper.
        """
        with torch.enable_grad():
            d = d.detach().requires_grad_()
            losses = self(d)
            (slopes,) = torch.autograd.grad(losses.sum(), d)
        return losses.detach(), slopes


class _Pairs(NamedTuple):
    """Arguments of :func:`pair_sums`: scores of the samples (..., B) and of the owners (m,), thresholds (m,)."""

    loss: PairLoss
    table: Table | None
    scores: Tensor
    weights: Tensor
    owners: Tensor | None
    thresholds: Tensor | None = None

    @property
    def mine(self) -> Tensor:
        """Scores of the owners."""
        return self.scores if self.owners is None else self.owners

    @property
    def number(self) -> int:
        """The number of pairs."""
        return self.mine.numel() * self.scores.shape[-1]

    def blocks(self) -> list[slice]:
        """Slices of the owners, one per block of pairs."""
        cheap, m = self.table is None or isinstance(self.table, Strata), self.mine.shape[-1]
        size = max(1, (_BLOCK if cheap else _BLOCK_OF_TABLE) // self.scores.shape[-1])
        if torch.compiler.is_compiling():  # every block is compiled separately
            size = max(size, -(-m // _MOST_COMPILED))
        if m <= size or self.scores.dim() > 1:
            return [_ALL]
        return [slice(first, first + size) for first in range(0, m, size)]

    def differences(self, some: slice) -> Tensor:
        """``s_i - s_j``, shape (..., B, m')."""
        return _part(self.mine, some).unsqueeze(-2) - self.scores.unsqueeze(-1)

    def sums(self) -> Tensor:
        """The sums (..., k, m), computed with differentiable operators."""
        parts = []
        for some in self.blocks():
            losses = self.loss(self.differences(some))
            if self.thresholds is not None:
                losses = (losses - _part(self.thresholds, some)).relu()
            if self.table is not None:
                losses = losses * self.table(some)
            parts.append(self.weights @ losses.to(self.weights.dtype))
        return _joined(parts)

    def with_slopes(self, some: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sums of some owners (..., k, m'), derivatives (..., B, m'), minus those by thresholds (k, m'); no graph."""
        losses, slopes = self.loss.with_slope(self.differences(some))
        table, above = None if self.table is None else self.table(some), None
        if self.thresholds is not None:
            excess = losses - _part(self.thresholds, some)
            losses, above = excess.relu(), excess.gt_(0)
            slopes, above = slopes * above, above if table is None else above * table
            above = self.weights @ above.to(self.weights.dtype)
        if table is not None:
            losses, slopes = losses * table, slopes * table
        return self.weights @ losses.to(self.weights.dtype), slopes, above


def _part(values: Tensor, some: slice) -> Tensor:
    return values if some == _ALL else values[..., some]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -1)


def pair_sums(
    loss: PairLoss,
    scores: Tensor,
    weights: Tensor,
    owners: Few | None = None,
    *,
    partners: Few | None = None,
    table: Table | None = None,
    thresholds: Tensor | None = None,
) -> Tensor:
    r"""``v_ik = sum_j W_kj T_ji l(s_i - s_j)`` over all samples j; with thresholds ``[l - t_i]_+`` in place of l.

    Autograd would store every intermediate result from the scores to the sums; here the derivative ``dv_ik = sum_j W_kj
    T_ji l'_ij (ds_i - ds_j)`` is one matrix product.  Few pairs are computed all at once; for many pairs, squared
    losses use sorting and prefix sums, O(B log B), and other losses are computed block by block in O(B) memory, and
    again for the derivative.  The result can be differentiated as often as the loss; for second and higher derivatives
    autograd is used, which keeps all pairs.

    Args:
        loss: l.
        scores: s, shape (B,), or (T, B) for T separate sets of scores.
        weights: W, shape (k, B), or (T, k, B), without graph; the sums have its dtype.
        owners: the samples i; the sums of other samples are 0.  None for all.
        partners: the samples j with W > 0, if they are known and there is no table; otherwise None.
        table: T; None for 1.
        thresholds: t, shape (B,); None for sums of l itself.

    Returns: shape (B, k), or (T, B, k).
    """
    if owners is not None:
        thresholds = None if thresholds is None else owners.of(thresholds)
        return owners.spread(_sums(_Pairs(loss, table, scores, weights, owners.of(scores), thresholds)))
    if partners is not None:
        arguments = partners.of(scores), partners.of(weights), scores
        return nan_where(partners.beyond, _sums(_Pairs(loss, None, *arguments, thresholds)))
    pairs = _Pairs(loss, table, scores, weights, None, thresholds)
    if scores.dim() > 1 and scores.shape[-1] ** 2 > FEW_PAIRS:
        return torch.stack([pair_sums(loss, *one_set, table=table) for one_set in zip(scores, weights, strict=True)])
    return _sums(pairs)


def pair_mean(loss: PairLoss, scores: Tensor, v: Tensor, w: Tensor, owners: Few | None = None) -> Tensor:
    """``sum_ij v_i w_j l(s_i - s_j)`` over all pairs of samples, a scalar, computed as in :func:`pair_sums`.

    Args:
        loss: l.
        scores: s, shape (B,).
        v: weights of the i, shape (B,), without graph.
        w: weights of the j, shape (B,), without graph.
        owners: the samples i with v > 0, if they are known; otherwise None.
    """
    mine, v = (None, v) if owners is None else (owners.of(scores), owners.of(v))
    pairs = _Pairs(loss, None, scores, w, mine)
    sums = None
    if pairs.number > FEW_PAIRS:  # sums over the owners, which may be few
        sums = _sorted_sums(_Pairs(loss, None, -pairs.mine, v.unsqueeze(0), -scores))
    if sums is not None:
        mean = (sums[0] @ w.double()).to(scores.dtype)
    else:
        mean = (_PairMean.apply if _by_formula() else _plain_mean)(v, *pairs)
    return mean if owners is None else nan_where(owners.beyond, mean)


def _sums(pairs: _Pairs) -> Tensor:
    """The sums (..., m, k), computed in the fastest way."""
    few = pairs.number <= FEW_PAIRS or pairs.scores.dim() > 1
    sums = None if few else _sorted_sums(pairs)
    if sums is None:
        sums = (_PairSums.apply if _by_formula() else _plain_sums)(*pairs)
    return sums.to(pairs.weights.dtype).mT


def _sorted_sums(pairs: _Pairs) -> Tensor | None:
    """The sums (k, m) of squared losses by sorting and prefix sums; None where this is impossible."""
    square, table, thresholds = pairs.loss.square, pairs.table, pairs.thresholds
    if square == "no" or (table and not isinstance(table, Strata)) or (square != "hinge" and thresholds is not None):
        return None
    middle, weights = pairs.scores.detach().double().mean(), pairs.weights.double()  # limits cancellation
    x, c = middle - pairs.scores.double(), pairs.loss.margin - (pairs.mine.double() - middle)
    if table is None:
        return _squares(pairs, c, x, weights)
    return _squares(pairs, c, x, weights * table.across) + table.more * _squares(pairs, c, x, weights, table)


def _squares(pairs: _Pairs, c: Tensor, x: Tensor, weights: Tensor, within: "Strata | None" = None) -> Tensor:
    """``sum_j W_kj [(c_i - x_j)^2 - t_i]_+ = c_i^2 V_0 - 2 c_i V_1 + V_2 - t_i V_0``, see :func:`_moments` for V."""
    thresholds, reach = pairs.thresholds, c.detach()
    if pairs.loss.square != "hinge":
        reach = torch.full_like(reach, torch.inf)
    elif thresholds is not None:
        reach = reach - thresholds.detach().clamp(min=0).sqrt()
    v0, v1, v2 = _moments(x, weights, reach, within)
    squares: Tensor = c.square() * v0 - 2 * c * v1 + v2
    return squares if thresholds is None else squares - thresholds * v0


def _moments(x: Tensor, weights: Tensor, reach: Tensor, strata: Strata | None) -> Tensor:
    """Sums of W, W x and W x^2 over j with ``x_j < reach_i`` (and in the stratum of i, if given), shape (3, k, m)."""
    order = x.detach().argsort()
    if strata is not None:
        order = order[strata.stratum[order].argsort(stable=True)]
    x, weights = x[order], weights[:, order]
    before, place = pad(torch.stack([weights, weights * x, weights * x.square()]).cumsum(-1), (1, 0)), x.detach()
    if strata is None:
        return before.index_select(-1, torch.searchsorted(place, reach))
    stratum = strata.stratum[order]
    first, last = (torch.searchsorted(stratum, strata.of_owners, right=right) for right in (False, True))
    offset = 2 * (place.amax() - place.amin()) + 1  # separates the strata, so that one search serves all
    end = torch.searchsorted(place + offset * torch.searchsorted(stratum, stratum), reach + offset * first)
    return before.index_select(-1, end.clamp(first, last)) - before.index_select(-1, first)


def _by_formula() -> bool:
    """Whether to use the custom autograd functions: gradients are enabled, and no functorch transform is active."""
    return torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def _plain_sums(*fields: Any) -> Tensor:
    return _Pairs(*fields).sums()


def _plain_mean(v: Tensor, *fields: Any) -> Tensor:
    pairs = _Pairs(*fields)
    return (pairs.sums().double() @ v.double()).to(pairs.scores.dtype)


def _exact(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Run a backward pass with autocast off, as in the forward pass, even if it is on for the caller."""

    @wraps(backward)
    def run(ctx: Any, gradient: Tensor) -> Any:
        device = gradient.device.type
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            return backward(ctx, gradient)

    return run


def _by_autograd(function: Callable[..., Tensor], arguments: tuple[Any, ...], gradient: Tensor) -> tuple[Any, ...]:
    """Gradients with respect to the arguments that require them, with graph."""
    needed = [isinstance(one, Tensor) and one.requires_grad for one in arguments]
    # separate leaves: some arguments may be functions of others
    views = [one.view_as(one) if need else one for one, need in zip(arguments, needed, strict=True)]
    leaves = [one for one, need in zip(views, needed, strict=True) if need]
    gradients = iter(torch.autograd.grad(function(*views), leaves, gradient, create_graph=True))
    return tuple(next(gradients) if need else None for need in needed)


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *fields: Any) -> Tensor:
        pairs, ctx.constants = _Pairs(*fields), fields[:2]
        if not any(ctx.needs_input_grad) or pairs.number > _MOST_KEPT:
            ctx.save_for_backward(*fields[2:])
            return pairs.sums()
        parts: list[Tensor] = []
        kept: list[Tensor | None] = []
        for some in pairs.blocks():
            sums, *slopes = pairs.with_slopes(some)
            parts.append(sums)
            kept += slopes
        ctx.save_for_backward(*fields[2:], *kept)
        return _joined(parts)

    @staticmethod
    @_exact
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pairs = _Pairs(*ctx.constants, *ctx.saved_tensors[:4])
        kept = ctx.saved_tensors[4:]
        parts = []
        if torch.is_grad_enabled():
            return _by_autograd(_plain_sums, pairs, gradient)
        for number, some in enumerate(pairs.blocks()):
            slopes, above = kept[2 * number : 2 * number + 2] or pairs.with_slopes(some)[1:]
            upstream = _part(gradient, some)
            pair_gradients = (pairs.weights.mT @ upstream).to(slopes.dtype).mul_(slopes)
            parts.append(
                (pair_gradients.sum(-2), pair_gradients.sum(-1), None if above is None else -(upstream * above).sum(-2))
            )
        owner_parts, other_parts, threshold_parts = zip(*parts, strict=True)
        by_owners, by_others = _joined(owner_parts), reduce(torch.add, other_parts)
        by_thresholds = None if pairs.thresholds is None else _joined(threshold_parts)
        if pairs.owners is None:
            return None, None, by_owners - by_others, None, None, by_thresholds
        return None, None, -by_others, None, by_owners, by_thresholds


class _PairMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, *fields: Any) -> Tensor:
        pairs = _Pairs(*fields)
        parts = []
        ctx.constants = fields[:2]
        if not any(ctx.needs_input_grad):
            return _plain_mean(v, *fields)
        w = pairs.weights
        for some in pairs.blocks():
            losses, slopes = pairs.loss.with_slope(_part(pairs.mine, some).unsqueeze(1) - pairs.scores)
            share = _part(v, some)
            parts.append((share @ (losses @ w), (slopes @ w).mul_(share), share @ slopes))
        means, owner_parts, other_parts = zip(*parts, strict=True)
        ctx.save_for_backward(v, *fields[2:], _joined(owner_parts), reduce(torch.add, other_parts).mul_(w))
        mean: Tensor = reduce(torch.add, means)
        return mean

    @staticmethod
    @_exact
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        v, *tensors, by_owners, by_others = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _by_autograd(_plain_mean, (v, *ctx.constants, *tensors), gradient)
        if tensors[2] is None:
            return None, None, None, gradient * (by_owners - by_others), None, None, None
        return None, None, None, -gradient * by_others, None, gradient * by_owners, None
