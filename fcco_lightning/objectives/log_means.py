"""Means of exponentials of similarities, every pair of a batch against all others, in memory that a batch needs."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fcco_lightning.distributed import Processes

BLOCK = 2**22  # similarities that are in memory at once


class Weigh(Protocol):
    """Weights of what anchors are compared with."""

    def __call__(self, logits: Tensor, anchors: slice, others: slice) -> float:
        """Add to ``logits`` (m, k) the logarithms of the weights that the samples ``others`` have for ``anchors``.

        Returns: what is to be added to all of them beside that, which costs nothing where it is done later.
        """


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
    by block, and once more in the backward pass unless one block holds them: time O(b B d), memory O(B d + 2^22).  One
    exchange of a few numbers a pair makes the values of all pairs known everywhere, from which every process has the
    exact gradient of a function of all values: that by its own embeddings, and that by all temperatures.

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
        own, learnt = shared.own, ctx.needs_input_grad[2]
        at_once = own.stop - own.start == len(image) and len(image) ** 2 <= BLOCK
        with shared.processes.guard():
            measure = _at_once if at_once else _by_blocks
            sides = measure(image, text, tau, shared, learnt=learnt)
            means = [s.mean for s in sides if s.mean is not None]
            columns = [(image[own] * text[own]).sum(1), *(s.mass for s in sides), *means]
        together = shared.processes.gather([torch.stack(columns, dim=1)]).tensors[0]
        pair, mass = together[:, :1], together[:, 1:3]
        ctx.shared = shared
        gap = together[:, 3:] - pair if learnt else None
        ctx.at_once = at_once
        ctx.save_for_backward(image, text, tau, mass, gap, *(s.kept for s in sides))
        return mass - pair / tau

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, text, tau, mass, gap, *kept = ctx.saved_tensors
        scaled = gradient / tau
        by_tau = None
        if gap is not None:
            by_tau = -scaled / tau * gap
            by_tau = by_tau if tau.dim() else by_tau.sum()
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, by_tau, None
        with torch.autocast(image.device.type, enabled=False):
            if ctx.at_once:
                slope = (kept[0] * scaled[:, :1]).addcmul_(kept[1], scaled[:, 1])
                gradients = [slope @ text, slope.T @ image]
            else:
                gradients = _gradients_by_blocks(image, text, tau, mass, scaled, kept, ctx.shared)
            own = ctx.shared.own
            for by_own, y in zip(gradients, (text, image), strict=True):
                by_own[own] -= scaled[own].sum(1, keepdim=True) * y[own]
        return *gradients, by_tau, None


class _Side(NamedTuple):
    """What a process knows of its own anchors of one side.

    Attributes:
        mass: ``log sum_j W_ij exp(s_ij / tau_i)``, shape (b,).
        mean: the mean of s_ij under these weights, shape (b,), where temperatures are learnt.
        kept: for the backward pass: where both sides are measured at once these weights, (images, texts), which add up
            to 1 for every anchor; else the similarities of the anchors with all, (b, B), if one block holds them.
    """

    mass: Tensor
    mean: Tensor | None
    kept: Tensor | None


def _at_once(image: Tensor, text: Tensor, tau: Tensor, shared: Shared, *, learnt: bool) -> list[_Side]:
    """Both sides where all samples are this process's own and all similarities fit into a block."""
    similarity, sides = image @ text.T, []
    for side, along in enumerate((1, 0)):  # the negatives of an image are in its row, those of a text in its column
        logits = similarity / (tau if tau.dim() == 0 else tau[:, side].unsqueeze(along))
        offset = shared.weigh(logits if side == 0 else logits.T, shared.own, shared.own)
        shares = logits.softmax(along)
        mass = logits.amax(along) - shares.amax(along).log() + offset  # the largest share is no less than 1/B
        mean = (shares * similarity).sum(along) if learnt else None
        sides.append(_Side(mass, mean, shares))
    return sides


def _by_blocks(image: Tensor, text: Tensor, tau: Tensor, shared: Shared, *, learnt: bool) -> list[_Side]:
    """Both sides, of which a block of similarities at a time is in memory."""
    sides = []
    for side, (x, y) in enumerate(((image, text), (text, image))):
        masses, means = [tau.new_empty(0)], [tau.new_empty(0)]
        blocks, similarity = _blocks(shared.own, len(y)), None
        for rows in blocks:
            similarity = x[rows] @ y.T
            logits = similarity / _of(tau, side, rows)
            offset = shared.weigh(logits, rows, slice(0, len(y)))
            mass = logits.logsumexp(1, keepdim=True)
            masses.append(mass.squeeze(1) + offset)
            if learnt:
                means.append(((logits - mass).exp_() * similarity).sum(1))
        kept = similarity if len(blocks) == 1 else None
        sides.append(_Side(torch.cat(masses), torch.cat(means) if learnt else None, kept))
    return sides


def _gradients_by_blocks(
    image: Tensor,
    text: Tensor,
    tau: Tensor,
    mass: Tensor,
    scaled: Tensor,
    kept: Sequence[Tensor | None],
    shared: Shared,
) -> list[Tensor]:
    """Gradients by one's own images and texts, without those by s_ii in the denominators; 0 for all others.

    A sample is an anchor itself, and it is among the negatives of every anchor of the other side.

    Args:
        image: embeddings (B, d).
        text: likewise.
        tau: temperatures.
        mass: of all anchors of both sides, (B, 2), see :class:`_Side`.
        scaled: derivatives by log g, divided by tau, (B, 2).
        kept: similarities of one's own images with all texts, and of one's own texts with all images, or None.
        shared: who computes what.
    """
    every, gradients = slice(0, len(image)), []
    for side, (x, y) in enumerate(((image, text), (text, image))):
        other, gradient, known = 1 - side, torch.zeros_like(x), kept[side]
        for rows in _blocks(shared.own, len(y)):
            similarity = x[rows] @ y.T if known is None else known
            slope = similarity / _of(tau, side, rows)
            offset = shared.weigh(slope, rows, every)
            slope.sub_(mass[rows, side : side + 1] - offset).exp_().mul_(scaled[rows, side : side + 1])
            negative = similarity / (tau[:, other] if tau.dim() else tau)
            offset = shared.weigh(negative.T, every, rows)
            slope.addcmul_(negative.sub_(mass[:, other] - offset).exp_(), scaled[:, other])
            gradient[rows] = slope @ y
        gradients.append(gradient)
    return gradients


def _blocks(own: slice, size: int) -> list[slice]:
    """Consecutive samples of one's own, so many that their similarities with all fit into a block."""
    step = max(1, BLOCK // size)
    return [slice(start, min(start + step, own.stop)) for start in range(own.start, own.stop, step)]


def _of(tau: Tensor, side: int, rows: slice) -> Tensor:
    """Temperatures of anchors, as a column (m, 1) or a scalar."""
    return tau[rows, side].unsqueeze(1) if tau.dim() else tau
