"""Means of exponentials of similarities, every pair of a batch against all others, in memory that a batch needs."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fcco_lightning.distributed import Processes

BLOCK = 2**22  # similarities that are in memory at once
_ALONE = Processes(alone=True)


class Weigh(Protocol):
    """Weights of what anchors are compared with."""

    def __call__(self, logits: Tensor, anchors: slice, others: slice) -> None:
        """Add to ``logits`` (m, k), in place, the logarithms of the weights of ``others`` for ``anchors``."""


def on_diagonal(own: float) -> Weigh:
    """All others weigh 1, the anchor itself has another weight, of which ``own`` is the logarithm."""

    def weigh(logits: Tensor, anchors: slice, others: slice) -> None:
        logits.diagonal(anchors.start - others.start).add_(own)

    return weigh


def by_table(logs: Callable[[slice, slice], Tensor], size: int) -> Weigh:
    """Any weights, given the logarithms (m, k) of some; those of a batch that fits into a block are formed once."""
    every = slice(0, size)
    table = logs(every, every) if size**2 <= BLOCK else None

    def weigh(logits: Tensor, anchors: slice, others: slice) -> None:
        logits.add_(logs(anchors, others) if table is None else table[anchors, others])

    return weigh


class Shared(NamedTuple):
    """Which samples of a batch are whose.

    Attributes:
        own: those of this process, consecutive ones.
        processes: that share the batch.
    """

    own: slice
    processes: Processes


def log_means(image: Tensor, text: Tensor | None, tau: Tensor, weigh: Weigh, shared: Shared | None = None) -> Tensor:
    r"""``log g_i1`` and ``log g_i2`` for all pairs of a batch, up to rounding as if all similarities were in memory.

    With ``s_ij = <I_i, T_j>``, weights W and temperatures tau_i1, tau_i2:

    ``g_i1 = sum_j W_ij exp((s_ij - s_ii) / tau_i1)`` and ``g_i2 = sum_j W_ij exp((s_ji - s_ii) / tau_i2)``.

    Or, of views v in the place of images, where v_2i and v_2i+1 = v_p(2i) are those of one sample:

    ``g_i = sum_j W_ij exp((<v_i, v_j> - <v_i, v_p(i)>) / tau_i)``.

    A process forms the similarities of its own b images with all B texts and of its own b texts with all images, block
    by block, and once more in the backward pass unless one block holds them: time O(b B d), memory O(B d + 2^22).  One
    exchange of a few numbers a pair makes the values of all pairs known everywhere, from which every process has the
    exact gradient of a function of all values: that by its own embeddings, and that by all temperatures.

    Args:
        image: embeddings of images, or of views, (B, d), at least in float32.
        text: those of texts, likewise; None for views.
        tau: temperatures > 0, shape (B, 2), or (B, 1) of views.
        weigh: weights of the negatives.
        shared: who computes what; None where the batch is this process's alone.

    Returns: shape of ``tau``.  It can be differentiated once.
    """
    with torch.autocast(image.device.type, enabled=False):
        if (shared is None or shared.processes.size == 1) and len(image) ** 2 <= BLOCK:
            at_once: Tensor = _AtOnce.apply(image, text, tau, weigh)
            return at_once
        by_blocks: Tensor = _ByBlocks.apply(image, text, tau, weigh, shared or Shared(slice(0, len(image)), _ALONE))
        return by_blocks


class _AtOnce(torch.autograd.Function):
    """Where all similarities fit into a block: the weights of all terms, which add up to 1, are kept."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, text: Tensor | None, tau: Tensor, weigh: Weigh) -> Tensor:
        similarity, every = image @ (image if text is None else text).T, slice(0, len(image))
        kept, masses, means = [], [], []
        for side in range(tau.shape[1]):
            along = 1 - side  # the negatives of an image are in its row, those of a text in its column
            logits = similarity / tau[:, side].unsqueeze(along)
            weigh(logits if along else logits.T, every, every)
            shares = logits.softmax(along)
            masses.append(logits.amax(along) - shares.amax(along).log())  # the largest share is no less than 1/B
            means += [(shares * similarity).sum(along)] if ctx.needs_input_grad[2] else []
            kept.append(shares)
        pair = similarity.gather(1, _partners(image, text))
        gap = torch.stack(means, 1) - pair if means else None
        ctx.save_for_backward(image, text, tau, gap, *kept)
        return torch.stack(masses, 1) - pair / tau

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, text, tau, gap, *kept = ctx.saved_tensors
        scaled = gradient / tau
        by_tau = None if gap is None else -scaled / tau * gap
        slope = kept[0] * scaled[:, :1]
        if text is not None:
            slope.addcmul_(kept[1], scaled[:, 1])
        slope.scatter_add_(1, _partners(image, text), -scaled.sum(1, keepdim=True))
        if text is None:
            return (slope + slope.T) @ image, None, by_tau, None
        return slope @ text, slope.T @ image, by_tau, None


class _ByBlocks(torch.autograd.Function):
    """Where a block of similarities at a time is in memory, of this process's own samples with all."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, text: Tensor | None, tau: Tensor, weigh: Weigh, shared: Shared) -> Tensor:
        own, learnt, partners = shared.own, ctx.needs_input_grad[2], _partners(image, text)
        with shared.processes.guard():
            found = [
                _own_anchors(x, y, each, partners, weigh, own, learnt=learnt)
                for (x, y), each in zip(_sides(image, text), tau.T, strict=True)
            ]
        together = shared.processes.gather([torch.cat([columns for columns, _ in found], 1)]).tensors[0]
        pair, mass, mean = together[:, :1], together[:, 1::3], together[:, 2::3]
        ctx.weigh, ctx.own = weigh, own
        ctx.save_for_backward(image, text, tau, mass, mean - pair, *(similarity for _, similarity in found))
        return mass - pair / tau

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, text, tau, mass, gap, *kept = ctx.saved_tensors
        scaled, partners, found = gradient / tau, _partners(image, text), []
        for side, (x, y) in enumerate(_sides(image, text)):
            total = torch.zeros_like(x)
            for rows in _blocks(ctx.own, len(y)):
                similarity = x[rows] @ y.T if kept[side] is None else kept[side]
                total[rows] = _slopes(similarity, tau, mass, scaled, partners, ctx.weigh, rows, side) @ y
            found.append(total)
        by_tau = -scaled / tau * gap if ctx.needs_input_grad[2] else None
        return found[0], None if text is None else found[1], by_tau, None, None


def _sides(image: Tensor, text: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Anchors, and what they are compared with."""
    return [(image, image)] if text is None else [(image, text), (text, image)]


def _partners(image: Tensor, text: Tensor | None) -> Tensor:
    """The number of an anchor's own text, or other view, shape (B, 1)."""
    every = torch.arange(len(image), device=image.device).unsqueeze(1)
    return every ^ 1 if text is None else every


def _own_anchors(
    x: Tensor, y: Tensor, tau: Tensor, partners: Tensor, weigh: Weigh, own: slice, *, learnt: bool
) -> tuple[Tensor, Tensor | None]:
    """What a process knows of its own anchors of one side.

    Args:
        x: embeddings of all anchors, (B, d).
        y: those of what they are compared with, likewise.
        tau: temperatures of the anchors, (B,).
        partners: see :func:`_partners`.
        weigh: weights of the negatives.
        own: which anchors are its own, b.
        learnt: whether means are wanted.

    Returns: the similarity of an anchor with its partner, ``log sum_j W_ij exp(s_ij / tau_i)``, and the mean of s_ij
        under these weights, or 0, shape (b, 3); and the similarities with all, (b, B), if one block holds them.
    """
    parts, blocks, similarity = [tau.new_empty(0, 3)], _blocks(own, len(y)), None
    for rows in blocks:
        similarity = x[rows] @ y.T
        logits = similarity / tau[rows].unsqueeze(1)
        weigh(logits, rows, slice(0, len(y)))
        mass, pair = logits.logsumexp(1, keepdim=True), similarity.gather(1, partners[rows])
        mean = (logits.sub_(mass).exp_() * similarity).sum(1, keepdim=True) if learnt else torch.zeros_like(mass)
        parts.append(torch.cat([pair, mass, mean], 1))
    return torch.cat(parts), similarity if len(blocks) == 1 else None


def _slopes(
    similarity: Tensor,
    tau: Tensor,
    mass: Tensor,
    scaled: Tensor,
    partners: Tensor,
    weigh: Weigh,
    rows: slice,
    side: int,
) -> Tensor:
    """Derivatives by the similarities (m, B) of some of one's own images, texts or views with all others.

    A sample is an anchor itself, and it is among the negatives of every anchor of the other side.

    Args:
        similarity: shape (m, B).
        tau: temperatures, (B, 2), or (B, 1) of views.
        mass: of all anchors, see :func:`_own_anchors`, likewise.
        scaled: derivatives by log g, divided by tau, likewise.
        partners: see :func:`_partners`.
        weigh: weights of the negatives.
        rows: which samples, m.
        side: 0 for images or views, 1 for texts.
    """
    slope, every, other = torch.zeros_like(similarity), slice(0, len(tau)), tau.shape[1] - 1 - side
    for block, similar, anchors, others, column in (
        (slope, similarity, rows, every, side),
        (slope.T, similarity.T, every, rows, other),
    ):
        at = anchors, slice(column, column + 1)
        logits = similar / tau[at]
        weigh(logits, anchors, others)
        block.addcmul_(logits.sub_(mass[at]).exp_(), scaled[at])
    both = scaled[rows, side : side + 1] + scaled[partners[rows, 0], other : other + 1]
    return slope.scatter_add_(1, partners[rows], -both)


def _blocks(own: slice, size: int) -> list[slice]:
    """Consecutive samples of one's own, so many that their similarities with all fit into a block; both its views."""
    step = max(2, BLOCK // size // 2 * 2)
    return [slice(start, min(start + step, own.stop)) for start in range(own.start, own.stop, step)]
