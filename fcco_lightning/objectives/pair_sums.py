"""Weighted sums and means of losses over pairs of scores, with derivatives in closed form."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, Protocol

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError

_BLOCK = 2**16  # pairs that are formed at a time where there are many: what fits into a core's cache


class Elementwise(Protocol):
    """A function l of the difference d of two scores, applied to every element."""

    def __call__(self, d: Tensor) -> Tensor:
        """l(d)."""

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """l(d) and l'(d), without graph."""


def pair_sums(
    loss: Elementwise,
    scores: Tensor,
    owners: Tensor,
    others: Tensor | None,
    weights: Tensor,
    thresholds: Tensor | None = None,
    *,
    sign: float = 1.0,
    offset: float = 0.0,
) -> Tensor:
    r"""``v_ik = c + sum_j W_jk l(sign (s_i - s_j))`` for owners i and others j; with thresholds ``[l - t_i]_+`` for l.

    Autograd would keep and pass every step from the scores to the values; here the derivative
    ``dv_ik/ds_i = -sum_j dv_ik/ds_j = sign sum_j W_jk l'_ij`` is one product of matrices.  The result can be
    differentiated as often as the loss can; from the second time on autograd does so.

    Args:
        loss: l.
        scores: s, shape (B,).
        owners: positions of the i, shape (m,), int64.
        others: positions of the j, shape (b,), int64; None for all B.
        weights: W, shape (b, k), without graph; the sums have its dtype.
        thresholds: t, shape (m, 1); None for sums of l itself.
        sign: 1, or -1 where d is the score of the other less that of the owner.
        offset: c.

    Returns: shape (m, k).
    """
    result: Tensor = _PairSums.apply(loss, scores, owners, others, weights, thresholds, sign, offset)
    return result


def pair_mean(loss: Elementwise, scores: Tensor, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """``sum_ij v_i w_j l(s_i - s_j)`` over positives i and negatives j, all pairs at once.

    Args:
        loss: l.
        scores: s, shape (B,).
        positives: positions of the i, shape (a,), int64, all different.
        negatives: positions of the j, shape (b,), int64, all different.
        v: weights of the positives, shape (a,), without graph.
        w: weights of the negatives, shape (b,), without graph.

    Returns: a scalar, which can be differentiated as often as the loss can.
    """
    result: Tensor = _PairMean.apply(loss, scores, positives, negatives, v, w)
    return result


def label_pair_sums(
    loss: Elementwise, outputs: Tensor, owner: Tensor, label: Tensor, positive: Tensor, shares: Tensor
) -> Tensor:
    """``sum_j W_rj l(s_i - s_j)`` over the positives j of a label, and over all j; a row r is an owner and a label.

    Args:
        loss: l.
        outputs: scores, a column for every label, shape (B, T).
        owner: position of i for every row, shape (r,), int64.
        label: its label, shape (r,), int64.
        positive: whether j is a positive of it, shape (r, B), bool.
        shares: W, broadcast to (r, B), without graph.

    Returns: shape (r, 2), which can be differentiated as often as the loss can.
    """
    result: Tensor = _LabelPairSums.apply(loss, outputs, owner, label, positive, shares)
    return result


def mean_by_blocks(loss: Elementwise, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """The same of the scores of positives (a,) and negatives (b,) in memory O(a + b); it has one derivative."""
    result: Tensor = _MeanByBlocks.apply(loss, positives, negatives, v, w)
    return result


def _exact(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The backward pass with autocast off, as the forward pass has it; the caller of backward may have it on."""

    @wraps(backward)
    def run(ctx: Any, *gradients: Tensor) -> Any:
        device = gradients[0].device.type
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            return backward(ctx, *gradients)

    return run


def _differences(scores: Tensor, owners: Tensor, others: Tensor | None, sign: float) -> Tensor:
    mine = scores.index_select(0, owners).unsqueeze(1)
    opposite = scores if others is None else scores.index_select(0, others)
    return mine - opposite if sign > 0 else opposite - mine


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        loss: Elementwise,
        scores: Tensor,
        owners: Tensor,
        others: Tensor | None,
        weights: Tensor,
        thresholds: Tensor | None,
        sign: float,
        offset: float,
    ) -> Tensor:
        d = _differences(scores, owners, others, sign)
        losses, slopes = loss.with_slope(d) if ctx.needs_input_grad[1] else (loss(d), None)
        above = None
        if thresholds is not None:
            above = losses >= thresholds
            losses = (losses - thresholds).clamp_(min=0)
        ctx.loss, ctx.sign = loss, sign
        ctx.save_for_backward(scores, owners, others, weights, thresholds, slopes, above)
        sums = losses.to(weights.dtype) @ weights
        return sums.add_(offset) if offset else sums

    @staticmethod
    @_exact
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scores, owners, others, weights, thresholds, slopes, above = ctx.saved_tensors
        (gradient,) = gradients
        if torch.is_grad_enabled():
            wanted = [t for t in (scores, thresholds) if t is not None and t.requires_grad]
            losses = ctx.loss(_differences(scores, owners, others, ctx.sign))
            if thresholds is not None:
                losses = (losses - thresholds).clamp(min=0)
            sums = losses.to(weights.dtype) @ weights
            found = iter(torch.autograd.grad(sums, wanted, gradient, create_graph=True))
            by_scores, by_thresholds = (
                next(found) if t is not None and t.requires_grad else None for t in (scores, thresholds)
            )
            return None, by_scores, None, None, None, by_thresholds, None, None
        by_scores = by_thresholds = None
        of_pairs = gradient @ weights.T
        if above is not None and ctx.needs_input_grad[5]:
            by_thresholds = -(of_pairs * above).sum(1, keepdim=True).to(thresholds.dtype)
        if slopes is not None:
            of_pairs = of_pairs if above is None else of_pairs * above
            table = of_pairs.to(slopes.dtype).mul_(slopes) if ctx.sign > 0 else of_pairs.to(slopes.dtype) * -slopes
            by_others = table.sum(0).neg_().to(scores.dtype)
            by_scores = by_others if others is None else torch.zeros_like(scores).index_copy_(0, others, by_others)
            by_scores.index_add_(0, owners, table.sum(1).to(scores.dtype))
        return None, by_scores, None, None, None, by_thresholds, None, None


class _LabelPairSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        loss: Elementwise,
        outputs: Tensor,
        owner: Tensor,
        label: Tensor,
        positive: Tensor,
        shares: Tensor,
    ) -> Tensor:
        d, slopes = _label_differences(outputs, owner, label), None
        if ctx.needs_input_grad[1]:
            losses, slopes = loss.with_slope(d)
            slopes = slopes * shares
        else:
            losses = loss(d)
        ctx.loss = loss
        ctx.save_for_backward(outputs, owner, label, positive, shares, slopes)
        return _over_positives_and_all(losses * shares, positive)

    @staticmethod
    @_exact
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        outputs, owner, label, positive, shares, slopes = ctx.saved_tensors
        (gradient,) = gradients
        if torch.is_grad_enabled():
            losses = ctx.loss(_label_differences(outputs, owner, label)) * shares
            sums = _over_positives_and_all(losses, positive)
            (by_outputs,) = torch.autograd.grad(sums, outputs, gradient, create_graph=True)
        else:
            table = torch.addcmul(gradient[:, 1:], gradient[:, :1], positive).mul_(slopes)
            by_outputs = outputs.new_zeros(outputs.shape[1], outputs.shape[0]).index_add_(0, label, table, alpha=-1).T
            by_outputs = by_outputs.index_put((owner, label), table.sum(1), accumulate=True)
        return None, by_outputs, None, None, None, None


def _label_differences(outputs: Tensor, owner: Tensor, label: Tensor) -> Tensor:
    return outputs[owner, label].unsqueeze(1) - outputs.T.index_select(0, label)


def _over_positives_and_all(losses: Tensor, positive: Tensor) -> Tensor:
    return torch.stack([(losses * positive).sum(1), losses.sum(1)], dim=1)


class _PairMean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, loss: Elementwise, scores: Tensor, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor
    ) -> Tensor:
        d = _differences(scores, positives, negatives, 1.0)
        ctx.loss = loss
        losses, slopes = loss.with_slope(d) if ctx.needs_input_grad[1] else (loss(d), None)
        ctx.save_for_backward(scores, positives, negatives, v, w, slopes)
        return v @ (losses @ w)

    @staticmethod
    @_exact
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scores, positives, negatives, v, w, slopes = ctx.saved_tensors
        (gradient,) = gradients
        if torch.is_grad_enabled():
            mean = v @ (ctx.loss(_differences(scores, positives, negatives, 1.0)) @ w)
            (by_scores,) = torch.autograd.grad(mean, scores, gradient, create_graph=True)
        else:
            v = gradient * v
            by_scores = torch.zeros_like(scores).index_copy_(0, positives, (slopes @ w).mul_(v))
            by_scores.index_copy_(0, negatives, (v @ slopes).mul_(w).neg_())
        return None, by_scores, None, None, None, None


class _MeanByBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Elementwise, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor) -> Tensor:
        wanted = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        total = torch.zeros((), dtype=torch.float64, device=positives.device)
        of_positives, of_negatives = [], torch.zeros_like(negatives)
        size = max(1, _BLOCK // len(negatives))
        for first in range(0, len(positives), size):
            share, d = v[first : first + size], positives[first : first + size].unsqueeze(1) - negatives
            losses, slopes = loss.with_slope(d) if wanted else (loss(d), None)
            total += share @ (losses @ w)
            if slopes is not None:
                of_positives.append((slopes @ w).mul_(share))
                of_negatives -= share @ slopes
        if wanted:
            ctx.save_for_backward(torch.cat(of_positives), of_negatives.mul_(w))
        return total.to(positives.dtype)

    @staticmethod
    @_exact
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # the slopes would count as constants
            raise ConfigError(
                "a mean over very many pairs has no second derivative here. Use smaller batches, or the loss "
                "SquaredPair or SquaredHingePair."
            )
        of_positives, of_negatives = ctx.saved_tensors
        (gradient,) = gradients
        return None, gradient * of_positives, gradient * of_negatives, None, None
