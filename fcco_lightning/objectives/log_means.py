"""Means of exponentials of similarities of all pairs in a batch, in memory linear in the batch size."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fcco_lightning.state.processes import Processes

BLOCK = 2**22  # similarities in memory at a time
_ALONE = Processes(alone=True)


class Weigh(Protocol):
    """Weights of the samples that anchors are compared with."""

    def __call__(self, logits: Tensor, anchors: slice, others: slice) -> None:
        """Add to ``logits`` (m, k), in place, the logarithms of the weights of ``others`` for ``anchors``."""


def on_diagonal(log_weight: float) -> Weigh:
    """The weight of the anchor itself is exp(log_weight), that of all others is 1."""

    def weigh(logits: Tensor, anchors: slice, others: slice) -> None:
        logits.diagonal(anchors.start - others.start).add_(log_weight)

    return weigh


def by_table(logs: Callable[[slice, slice], Tensor], size: int) -> Weigh:
    """Any weights, given a function for blocks (m, k) of their logarithms; one block is computed only once."""
    everyone = slice(0, size)
    table = logs(everyone, everyone) if size**2 <= BLOCK else None

    def weigh(logits: Tensor, anchors: slice, others: slice) -> None:
        logits.add_(logs(anchors, others) if table is None else table[anchors, others])

    return weigh


def log_means(
    image: Tensor,
    text: Tensor | None,
    tau: Tensor,
    weigh: Weigh,
    local: slice | None = None,
    processes: Processes = _ALONE,
) -> Tensor:
    r"""``log g_i1`` and ``log g_i2`` for all pairs of a batch, without keeping all similarities in memory.

    With ``s_ij = <I_i, T_j>``, weights W and temperatures tau_i1, tau_i2:

    ``g_i1 = sum_j W_ij exp((s_ij - s_ii) / tau_i1)`` and ``g_i2 = sum_j W_ij exp((s_ji - s_ii) / tau_i2)``.

    Or, for views v in place of images, where the views v_2i and v_2i+1 = v_p(2i) belong to the same sample:

    ``g_i = sum_j W_ij exp((<v_i, v_j> - <v_i, v_p(i)>) / tau_i)``.

    A process computes the similarities of its own b images with all B texts and of its own b texts with all images,
    block by block, and again in the backward pass unless one block holds them: time O(b B d), memory O(B d + 2^22).
    One exchange of a few numbers per pair gives every process the values of all pairs, and thus the exact gradients
    with respect to its own embeddings and to all temperatures.

    Args:
        image: embeddings of images, or of views, (B, d), at least in float32.
        text: embeddings of texts, (B, d); None for views.
        tau: temperatures, > 0, shape (B, 2), or (B, 1) for views.
        weigh: weights of the negatives.
        local: this process's samples, which are consecutive; None if the batch belongs to this process alone.
        processes: the processes that share the batch.

    Returns: the logarithms, with the shape of ``tau``; they can be differentiated once.
    """
    with torch.autocast(image.device.type, enabled=False):
        if local is None and len(image) ** 2 <= BLOCK:
            at_once: Tensor = _AtOnce.apply(image, text, tau, weigh)
            return at_once
        everyone, processes = slice(0, len(image)), _ALONE if local is None else processes
        by_blocks: Tensor = _ByBlocks.apply(image, text, tau, weigh, local or everyone, processes)
        return by_blocks


class _AtOnce(torch.autograd.Function):
    """The case that all similarities fit into a block: the normalised weights of all terms are kept."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, text: Tensor | None, tau: Tensor, weigh: Weigh) -> Tensor:
        similarity, everyone = image @ (image if text is None else text).T, slice(0, len(image))
        kept, masses, means = [], [], []
        for side in range(tau.shape[1]):
            along = 1 - side  # negatives of an image are in its row, negatives of a text in its column
            logits = similarity / tau[:, side].unsqueeze(along)
            weigh(logits if along else logits.T, everyone, everyone)
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
    """The case that one block of similarities at a time is in memory."""

    @staticmethod
    def forward(
        ctx: Any, image: Tensor, text: Tensor | None, tau: Tensor, weigh: Weigh, local: slice, processes: Processes
    ) -> Tensor:
        ctx.weigh, ctx.local = weigh, local
        with processes.guard():
            blocks = _Blocks(image, text, tau, weigh, local)
            anchors = [blocks.anchors(side, learnt=ctx.needs_input_grad[2]) for side in range(tau.shape[1])]
        together = processes.gather([torch.cat([columns for columns, _ in anchors], 1)]).tensors[0]
        pair, mass, mean = together[:, :1], together[:, 1::3], together[:, 2::3]
        ctx.save_for_backward(image, text, tau, mass, mean - pair, *(similarity for _, similarity in anchors))
        return mass - pair / tau

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        image, text, tau, mass, gap, *kept = ctx.saved_tensors
        scaled, blocks = gradient / tau, _Blocks(image, text, tau, ctx.weigh, ctx.local)
        gradients = [blocks.gradient(side, similarity, mass, scaled) for side, similarity in enumerate(kept)]
        by_tau = -scaled / tau * gap if ctx.needs_input_grad[2] else None
        return gradients[0], None if text is None else gradients[1], by_tau, None, None, None


class _Blocks:
    """Similarities of this process's samples with all samples, one block at a time.

    Args: see :func:`log_means`.
    """

    def __init__(self, image: Tensor, text: Tensor | None, tau: Tensor, weigh: Weigh, local: slice) -> None:
        self.sides = [(image, image)] if text is None else [(image, text), (text, image)]
        self.tau = tau
        self.weigh = weigh
        self.everyone = slice(0, len(image))
        self.partners = _partners(image, text)
        step = max(2, BLOCK // len(image) // 2 * 2)  # both views of a sample are in one block
        self.rows = [slice(start, min(start + step, local.stop)) for start in range(local.start, local.stop, step)]

    def anchors(self, side: int, *, learnt: bool) -> tuple[Tensor, Tensor | None]:
        """Statistics of this process's anchors of one side (images or texts).

        Returns: for every anchor the similarity with its partner, ``log sum_j W_ij exp(s_ij / tau_i)``, and the mean of
        s_ij under these weights, or 0 if not ``learnt``, shape (b, 3); and the similarities with all samples, (b, B),
        if one block holds them.
        """
        (x, y), parts, similarity = self.sides[side], [self.tau.new_empty(0, 3)], None
        for rows in self.rows:
            similarity = x[rows] @ y.T
            logits = similarity / self.tau[rows, side : side + 1]
            self.weigh(logits, rows, self.everyone)
            mass, pair = logits.logsumexp(1, keepdim=True), similarity.gather(1, self.partners[rows])
            mean = logits.sub_(mass).exp_().mul_(similarity).sum(1, keepdim=True) if learnt else torch.zeros_like(mass)
            parts.append(torch.cat([pair, mass, mean], 1))
        return torch.cat(parts), similarity if len(self.rows) == 1 else None

    def gradient(self, side: int, known: Tensor | None, mass: Tensor, scaled: Tensor) -> Tensor:
        """The gradient with respect to this process's images, texts or views, (B, d); 0 for all others.

        Args:
            side: 0 for images or views, 1 for texts.
            known: the similarities, if they were kept.
            mass: ``log sum_j W_ij exp(s_ij / tau_i)`` of all anchors, with the shape of tau.
            scaled: derivatives with respect to log g, divided by tau, with the shape of tau.
        """
        x, y = self.sides[side]
        gradient = torch.zeros_like(x)
        for rows in self.rows:
            similarity = x[rows] @ y.T if known is None else known
            gradient[rows] = self._slopes(similarity, rows, side, mass, scaled) @ y
        return gradient

    def _slopes(self, similarity: Tensor, rows: slice, side: int, mass: Tensor, scaled: Tensor) -> Tensor:
        """Derivatives with respect to similarities (m, B).

        A sample is an anchor itself, and a negative of every anchor of the other side.
        """
        partners = self.partners[rows]
        everyone = self.everyone
        other = len(self.sides) - 1 - side
        slope = self._weights(similarity, rows, everyone, side, mass).mul_(scaled[rows, side : side + 1])
        slope.addcmul_(self._weights(similarity.T, everyone, rows, other, mass).T, scaled[:, other])
        return slope.scatter_add_(1, partners, -scaled[rows, side : side + 1] - scaled[partners, other])

    def _weights(self, similarity: Tensor, anchors: slice, others: slice, side: int, mass: Tensor) -> Tensor:
        """Normalised weights of the terms of anchors, with the shape (m, k) of the similarities."""
        logits = similarity / self.tau[anchors, side : side + 1]
        self.weigh(logits, anchors, others)
        return logits.sub_(mass[anchors, side : side + 1]).exp_()


def _partners(image: Tensor, text: Tensor | None) -> Tensor:
    """The position of each anchor's own text, or other view, shape (B, 1)."""
    positions = torch.arange(len(image), device=image.device).unsqueeze(1)
    return positions ^ 1 if text is None else positions
