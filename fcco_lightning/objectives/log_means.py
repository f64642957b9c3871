"""Means of exponentials of similarities, every pair of a batch against all others, in memory that a batch needs."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fcco_lightning.distributed import Processes

BLOCK = 2**22  # similarities that are in memory at once


class Weigh(Protocol):
    """Weights of what anchors are compared with."""

    def __call__(self, logits: Tensor, anchors: slice, others: slice) -> None:
        """Add to ``logits`` (m, k) the logarithms of the weights that the samples ``others`` have for ``anchors``."""


class Shared(NamedTuple):
    """Who computes what.

    Attributes:
        own: the samples of this process, consecutive ones.
        processes: that share the batch.
        weigh: weights of the negatives.
    """

    own: slice
    processes: Processes
    weigh: Weigh


def log_means(image: Tensor, text: Tensor, tau: Tensor, shared: Shared) -> Tensor:
    r"""``log g_i1`` and ``log g_i2`` for all pairs of a batch, up to rounding as if all similarities were in memory.

    With ``s_ij = <I_i, T_j>``, weights W and temperatures tau_i1, tau_i2:

    ``g_i1 = sum_j W_ij exp((s_ij - s_ii) / tau_i1)`` and ``g_i2 = sum_j W_ij exp((s_ji - s_ii) / tau_i2)``.

    A process forms the similarities of its own b images with all B texts and of its own b texts with all images, block
    by block, here and once more in the backward pass: time O(b B d), memory O(B d + 2^22).  One exchange of a few numbers a
    pair makes the values of all pairs known everywhere, from which every process has the exact gradient of a function
    of all values with respect to its own embeddings, and, with respect to the temperatures, of all.

    Args:
        image: embeddings (B, d), at least in float32.
        text: likewise.
        tau: temperatures > 0: a scalar, or (B, 2).
        shared: who computes what.

    Returns: shape (B, 2).  It can be differentiated once.
    """
    with torch.autocast(image.device.type, enabled=False):
        result: Tensor = _LogMeans.apply(image, text, tau, shared)
    return result


class _LogMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, text: Tensor, tau: Tensor, shared: Shared) -> Tensor:
        sides, own, learnt = ((image, text), (text, image)), shared.own, ctx.needs_input_grad[2]
        whole = own.stop - own.start == len(image) and len(image) ** 2 <= BLOCK
        with shared.processes.guard():
            known = image @ text.T if whole else None  # all similarities, where one block holds them
            columns = [(image[own] * text[own]).sum(1)]
            for side, (x, y) in enumerate(sides):
                blocks = _blocks(x, y, own) if known is None else [(own, known.T if side else known)]
                columns += _anchors(blocks, tau, side, shared.weigh, learnt=learnt)
        together = shared.processes.gather([torch.stack(columns, dim=1)]).tensors[0]
        pair, mass = together[:, :1], together[:, 1:3] if not learnt else together[:, 1::2]
        ctx.shared = shared
        ctx.save_for_backward(image, text, tau, mass, together[:, 2::2] - pair if learnt else None, known)
        return mass - pair / tau

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(gradient.device.type, enabled=False):
            return _LogMeans._gradients(ctx, gradient)

    @staticmethod
    def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, text, tau, mass, gap, known = ctx.saved_tensors
        own, scaled = ctx.shared.own, gradient / tau
        by_tau = None
        if gap is not None:
            by_tau = -scaled / tau * gap
            by_tau = by_tau if tau.dim() else by_tau.sum()
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, by_tau, None
        gradients = []
        if known is not None:
            share = _shares(known, own, tau, mass, scaled, 0, ctx.shared.weigh)
            gradients = [share @ text, share.T @ image]
        else:
            for side, (x, y) in enumerate(((image, text), (text, image))):
                gradients.append(torch.zeros_like(x))
                for rows, similarity in _blocks(x, y, own):
                    gradients[side][rows] = _shares(similarity, rows, tau, mass, scaled, side, ctx.shared.weigh) @ y
        for by_own, y in zip(gradients, (text, image), strict=True):
            by_own[own] -= scaled[own].sum(1, keepdim=True) * y[own]
        return *gradients, by_tau, None


def _blocks(x: Tensor, y: Tensor, own: slice) -> Iterator[tuple[slice, Tensor]]:
    """Consecutive samples of one's own, so many that their similarities with all fit into a block, and these."""
    step = max(1, BLOCK // len(y))
    for start in range(own.start, own.stop, step):
        rows = slice(start, min(start + step, own.stop))
        yield rows, x[rows] @ y.T


def _of(tau: Tensor, side: int, rows: slice) -> Tensor:
    """Temperatures of anchors, as a column (m, 1) or a scalar."""
    return tau[rows, side].unsqueeze(1) if tau.dim() else tau


def _anchors(
    blocks: Iterable[tuple[slice, Tensor]], tau: Tensor, side: int, weigh: Weigh, *, learnt: bool
) -> list[Tensor]:
    """For one's own anchors: ``log sum_j W_ij exp(s_ij / tau_i)``; for a learnt tau also the mean of s_ij under it."""
    masses, means = [tau.new_empty(0)], [tau.new_empty(0)]
    for rows, similarity in blocks:
        logits = similarity / _of(tau, side, rows)
        weigh(logits, rows, slice(0, similarity.shape[1]))
        mass = logits.logsumexp(1, keepdim=True)
        masses.append(mass.squeeze(1))
        if learnt:
            means.append(((logits - mass).exp_() * similarity).sum(1))
    return [torch.cat(masses), torch.cat(means)] if learnt else [torch.cat(masses)]


def _shares(
    similarity: Tensor, rows: slice, tau: Tensor, mass: Tensor, scaled: Tensor, side: int, weigh: Weigh
) -> Tensor:
    """Derivatives by the similarities of ``rows`` with all samples, where no sample is compared with itself: (m, B).

    A sample is an anchor itself, and it is among the negatives of every anchor of the other side.

    Args:
        similarity: of the rows with all, (m, B).
        rows: samples of a side.
        tau: temperatures.
        mass: logarithms of the sums of exponentials of all anchors of both sides, (B, 2).
        scaled: derivatives by log g, divided by tau, (B, 2).
        side: of the rows.
        weigh: weights of the negatives.
    """
    every, other = slice(0, len(mass)), 1 - side
    share = similarity / _of(tau, side, rows)
    weigh(share, rows, every)
    share.sub_(mass[rows, side : side + 1]).exp_().mul_(scaled[rows, side : side + 1])
    as_negative = similarity / (tau[:, other] if tau.dim() else tau)
    weigh(as_negative.T, every, rows)
    return share.add_(as_negative.sub_(mass[:, other]).exp_().mul_(scaled[:, other]))
