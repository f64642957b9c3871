"""SGD on the worst case: of mini-batches alone, which is biased, and with corrections of random size, which is not."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from fcco_lightning.dro.problem import Array, LinearProblem, Progress, weigh
from fcco_lightning.dro.solvers import Drawing, Need, blocks_of, largest_row


class _SGD(Drawing):
    """Steps ``w <- w - eta / (1 + eta mu t) (gradient + mu w)``, with a look at the gap once a pass."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    @abstractmethod
    def batches(
        self, problem: LinearProblem, size: int, random: np.random.Generator
    ) -> Iterator[tuple[np.ndarray, Callable[[Array], Array]]]:
        """Samples of a step, and the weights of their slopes as a function of their losses, without end."""

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate from w = 0."""
        x, y, mu, size = problem.x, problem.y, problem.mu, min(self.block_size, problem.n)
        problem.ambiguity.check(size)
        curvature = problem.loss.curvature if np.isfinite(problem.loss.curvature) else 1.0
        eta = self.learning_rate or 1 / (curvature * largest_row(x) + mu)
        w, next_look = problem.zeros(), 0
        for t, (drawn, weights) in enumerate(self.batches(problem, size, random)):
            if progress.calls >= next_look:
                progress.look(w)
                next_look = progress.calls + problem.n
            rows = x[drawn]
            losses, slopes = problem.loss(rows @ w, y[drawn])
            w = w - eta / (1 + eta * mu * t) * (rows.T @ weigh(weights(losses), slopes) + mu * w)
            progress.calls += len(drawn)


@dataclass(frozen=True)
class MinibatchSGD(_SGD):
    r"""Steps along the gradient of the worst case of b samples alone, drawn without replacement.

    **It is biased**: the mean over batches of ``max_q`` within a batch is not the ``max_q`` over all samples, so F
    stays above its minimum by an amount that falls with b and not with the number of steps.  The tests measure it.  Use
    another solver unless n is too large for a vector q.

    Args:
        block_size: b, >= 1.
        learning_rate: eta of the first step, then ``eta / (1 + eta mu t)``; None for the inverse of the smoothness of a
            sample's loss.
    Source: a baseline of the DRAGO paper.
    """

    block_size: int = 64

    def batches(
        self, problem: LinearProblem, size: int, random: np.random.Generator
    ) -> Iterator[tuple[np.ndarray, Callable[[Array], Array]]]:
        """Blocks of one random order of the samples after another."""
        while True:
            order = random.permutation(problem.n)
            for block in blocks_of(problem.n, size):
                yield order[block], partial(worst, problem)


@dataclass(frozen=True)
class MultilevelSGD(_SGD):
    r"""Steps along the multilevel Monte Carlo estimate of the gradient of the worst case over all samples.

    With G(S) the gradient of the worst case within a batch S, a step draws a level J, ``P(J = j) = 2^{-j}`` for
    j = 1, 2, ..., the last one with what is left, then ``m_J = 2^J b`` samples S without replacement, and takes

    ``G(first b of S) + (G(S) - G(S') / 2 - G(S'') / 2) / P(J)``

    with S' and S'' the first and the next ``m_{J-1}`` samples of S.  The last level has all n samples, so the sum over
    levels telescopes to the gradient of F and the estimate has **no bias**, unlike :class:`MinibatchSGD`.  The price is
    variance: the gap falls like 1/t with steps that fall like 1/t (with mu = 0 neither does).  On 42 samples with
    b = 4 it came to 3e-7 above the minimum in 3000 passes, where :class:`MinibatchSGD` stays at 1e-5 to 4e-5, but was
    behind it after 300.  A step evaluates m_J samples, each once: a mean of about ``b (1 + log2(n/b))``.

    Args:
        block_size: b, >= 1, of the smallest batch.
        learning_rate: eta of the first step, then ``eta / (1 + eta mu t)``; None for the inverse of the smoothness of a
            sample's loss.

    Raises:
        ConfigError: if an argument is out of range; from ``solve`` also if Q makes no sense for b samples.
    Source: Levy et al. (2020), the multilevel estimator; there samples are drawn with replacement and the largest batch
    is a parameter.
    """

    block_size: int = 16

    def batches(
        self, problem: LinearProblem, size: int, random: np.random.Generator
    ) -> Iterator[tuple[np.ndarray, Callable[[Array], Array]]]:
        """Samples of a random level."""
        levels = Levels(problem.n, size)
        while True:
            level = int(random.choice(len(levels.sizes), p=levels.chances))
            drawn = random.choice(problem.n, levels.sizes[level], replace=False)
            yield drawn, partial(levels.weights, problem, level)


class Levels:
    """The batches of the estimate.

    Args:
        n: number of samples.
        smallest: b, at most n.

    Attributes:
        sizes: m_0 = b, m_1, ... with ``m_j = 2^j b``, the last one n; n alone where n < 2 b.
        chances: of the levels; 0 for level 0 where there are others.
    """

    def __init__(self, n: int, smallest: int) -> None:
        count = (n // smallest).bit_length() - 1
        self.sizes = [2**j * smallest for j in range(count)] + [n]
        self.chances = [0.0] + [0.5**j for j in range(1, count)] + [0.5 ** (count - 1)] if count else [1.0]

    def weights(self, problem: LinearProblem, level: int, losses: Array) -> Array:
        """Those of the slopes of ``m_level`` samples in the estimate: losses -> like them."""
        if level == 0:
            return worst(problem, losses)
        b, half, chance = self.sizes[0], self.sizes[level - 1], self.chances[level]
        weights = worst(problem, losses) / chance
        for part in (slice(half), slice(half, 2 * half)):
            weights[part] -= worst(problem, losses[part]) / (2 * chance)
        weights[:b] += worst(problem, losses[:b])
        return weights


def worst(problem: LinearProblem, losses: Array) -> Array:
    """The worst weights of a batch alone: (m,) -> (m,)."""
    return np.asarray(problem.ambiguity.best_response(torch.from_numpy(losses), problem.penalty).q.numpy())
