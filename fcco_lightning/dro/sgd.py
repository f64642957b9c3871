"""Solvers that draw samples: biased and unbiased SGD on the worst case, and variance-reduced steps."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from fcco_lightning.checks import at_least, positive
from fcco_lightning.dro.losses import Array
from fcco_lightning.dro.problem import LinearProblem, Need, Progress, blocks_of, weigh


@dataclass(frozen=True)
class _Drawing:
    """Base class of solvers that draw samples.

    Args:
        block_size: number of samples drawn for a step, >= 1.
        learning_rate: learning rate of the first step, > 0; None to derive it from the data.
    """

    block_size: int
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        at_least("block_size", self.block_size, 1)
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)


class _SGD(_Drawing):
    """Steps ``w <- w - eta / (1 + eta mu t) (gradient + mu w)``; the gap is evaluated once per pass."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    @abstractmethod
    def batches(
        self, problem: LinearProblem, size: int, random: np.random.Generator
    ) -> Iterator[tuple[np.ndarray, Callable[[Array], Array]]]:
        """Yield, without end, the samples of a step and the function from their losses to weights of their slopes."""

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate from w = 0."""
        x = problem.x
        y = problem.y
        mu = problem.mu
        size = min(self.block_size, problem.n)
        problem.ambiguity.check(size)
        curvature = problem.loss.curvature if np.isfinite(problem.loss.curvature) else 1.0
        eta = self.learning_rate or 1 / (curvature * largest_row(x) + mu)
        w, next_look = problem.zeros(), 0
        for t, (indices, weights) in enumerate(self.batches(problem, size, random)):
            if progress.calls >= next_look:
                progress.evaluate(w)
                next_look = progress.calls + problem.n
            rows = x[indices]
            losses, slopes = problem.loss(rows @ w, y[indices])
            w = w - eta / (1 + eta * mu * t) * (rows.T @ weigh(weights(losses), slopes) + mu * w)
            progress.calls += len(indices)


@dataclass(frozen=True)
class MinibatchSGD(_SGD):
    r"""SGD on the worst case within a batch of b samples, which are drawn without replacement.

    **It is biased**: the mean over batches of ``max_q`` within a batch is not the ``max_q`` over all samples, so F
    stays above its minimum by an amount that decreases with b, but not with the number of steps.  The tests measure it.
    Use another solver unless n is too large for a vector q.

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
        """Yield blocks of one random permutation of the samples after another."""
        while True:
            order = random.permutation(problem.n)
            for block in blocks_of(problem.n, size):
                yield order[block], partial(worst, problem)


@dataclass(frozen=True)
class MultilevelSGD(_SGD):
    r"""SGD with the multilevel Monte Carlo estimate of the gradient of the worst case over all samples.

    Let G(S) be the gradient of the worst case within a batch S.  A step draws a level J with ``P(J = j) = 2^{-j}`` for
    j = 1, 2, ... (the last level has the remaining probability), then ``m_J = 2^J b`` samples S without replacement,
    and uses the estimate

    ``G(first b of S) + (G(S) - G(S') / 2 - G(S'') / 2) / P(J)``

    where S' and S'' are the first and the next ``m_{J-1}`` samples of S.  The last level has all n samples, so the sum
    over levels telescopes to the gradient of F, and the estimate is **unbiased**, unlike :class:`MinibatchSGD`, but has
    a larger variance: the gap decreases like 1/t with step sizes like 1/t (for mu = 0 neither decreases).  On 42
    samples with b = 4, F was 3e-7 above the minimum after 3000 passes, where :class:`MinibatchSGD` stays at 1e-5 to
    4e-5, but larger after 300.  A step evaluates m_J samples, each once: about ``b (1 + log2(n/b))`` on average.

    Args:
        block_size: size b of the smallest batch, >= 1.
        learning_rate: eta of the first step, then ``eta / (1 + eta mu t)``; None for the inverse of the smoothness of a
            sample's loss.

    Raises:
        ConfigError: if an argument is out of range; from ``solve`` also if Q is not defined for b samples.
    Source: Levy et al. (2020), the multilevel estimator; there samples are drawn with replacement and the largest batch
    is a parameter.
    """

    block_size: int = 16

    def batches(
        self, problem: LinearProblem, size: int, random: np.random.Generator
    ) -> Iterator[tuple[np.ndarray, Callable[[Array], Array]]]:
        """Yield samples of random levels."""
        levels = Levels(problem.n, size)
        while True:
            level = int(random.choice(len(levels.sizes), p=levels.probabilities))
            indices = random.choice(problem.n, levels.sizes[level], replace=False)
            yield indices, partial(levels.weights, problem, level)


class Levels:
    """The levels of the multilevel estimate.

    Args:
        n: number of samples.
        smallest: b, at most n.

    Attributes:
        sizes: m_0 = b, m_1, ... with ``m_j = 2^j b``, the last one n; n alone if n < 2 b.
        probabilities: probabilities of the levels; 0 for level 0 unless it is the only one.
    """

    def __init__(self, n: int, smallest: int) -> None:
        count = (n // smallest).bit_length() - 1
        self.sizes = [2**j * smallest for j in range(count)] + [n]
        self.probabilities = [0.0] + [0.5**j for j in range(1, count)] + [0.5 ** (count - 1)] if count else [1.0]

    def weights(self, problem: LinearProblem, level: int, losses: Array) -> Array:
        """Weights of the slopes of ``m_level`` samples in the estimate, given their losses, in the same shape."""
        if level == 0:
            return worst(problem, losses)
        b, half, probability = self.sizes[0], self.sizes[level - 1], self.probabilities[level]
        weights = worst(problem, losses) / probability
        for part in (slice(half), slice(half, 2 * half)):
            weights[part] -= worst(problem, losses[part]) / (2 * probability)
        weights[:b] += worst(problem, losses[:b])
        return weights


def worst(problem: LinearProblem, losses: Array) -> Array:
    """The worst weights within a batch, given its losses: (m,) -> (m,)."""
    return np.asarray(problem.ambiguity.best_response(torch.from_numpy(losses), problem.penalty).q.numpy())


@dataclass(frozen=True)
class LSVRG(_Drawing):
    r"""Epochs of n/b steps ``w <- w - eta ((n/b) sum_{i in B} q_i (grad l_i(w) - grad l_i(wbar)) + G + mu w)``.

    At the start of an epoch wbar = w, q is the best response to l(wbar), and G the full gradient there.  The weights q
    are constant within an epoch, so eta must be small enough; by default it starts at the inverse of the smoothness of
    a step.  If F has increased over an epoch, the epoch is undone and eta halved.

    Args:
        block_size: number b of samples drawn uniformly per step, >= 1.
        learning_rate: initial eta, > 0; None for the default above.
    Source: a baseline of the DRAGO paper, whose text gives the epoch length only.
    """

    block_size: int = 1
    needs: ClassVar[frozenset[Need]] = frozenset({"a smooth loss", "nu > 0"})

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate from w = 0."""
        w, n = problem.zeros(), problem.n
        b = min(self.block_size, n)
        eta = self.learning_rate or 1 / (3 * (problem.loss.curvature * largest_row(problem.x) + problem.mu))
        point = progress.evaluate(w)
        while True:
            progress.calls += n
            new = self._epoch(problem, w, point.q, point.gradient, eta, random.integers(n, size=(-(-n // b), b)))
            progress.calls += 2 * b * -(-n // b)
            ahead = problem.point(new)
            if ahead.value <= point.value:
                w, point = new, ahead
            else:
                eta /= 2
            progress.record(w, point)

    def _epoch(self, problem: LinearProblem, w: Array, q: Array, full: Array, eta: float, draws: np.ndarray) -> Array:
        x, y, loss, n = problem.x, problem.y, problem.loss, problem.n
        with np.errstate(over="ignore", invalid="ignore"):
            stored_slopes = weigh(q, loss(x @ w, y)[1])  # q_i phi'_i at the snapshot
            for indices in draws:
                rows = x[indices]
                batch_slopes = weigh(q[indices], loss(rows @ w, y[indices])[1])
                step = rows.T @ (batch_slopes - stored_slopes[indices])
                w = w - eta * ((n / len(indices)) * step + full + problem.mu * w)
        return w


def largest_row(x: Array) -> float:
    """The largest ``|x_i|^2``."""
    squares = x.multiply(x) if hasattr(x, "multiply") else x * x
    return float(np.max(squares.sum(axis=1)))
