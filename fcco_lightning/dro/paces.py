"""How DRAGO weighs its iterations: the sequence a_t, and what follows from it."""

import math
from collections.abc import Iterator
from itertools import count
from typing import Literal

import numpy as np

from fcco_lightning.ambiguity import KLPenalty
from fcco_lightning.dro.kernel import WINDOW, Growth, Pace, pace
from fcco_lightning.dro.problem import LinearProblem, square

Start = Literal["practice", "theory", "steady"]
_LARGEST = 0.1  # alpha, where blocks are large


def regularised(problem: LinearProblem, blocks: int, alpha: float, start: Start) -> Growth:
    """The paces for mu > 0 and nu > 0, with M = ``blocks``: see :class:`DRAGO` for the starts."""
    faster = 1 + alpha
    lag, second = {
        "practice": (faster, 1 / faster),
        "theory": (0.75 * faster**2, 1 / (4 * alpha)),
        "steady": (0.0, 1 / faster),
    }[start]
    return Growth(float(problem.mu), float(problem.penalty.nu), blocks, alpha, lag, second)


def paces(growth: Growth) -> Iterator[Pace]:
    """Those of iteration 1, 2, ..."""
    return (pace(growth, t) for t in count(1))


def unregularised(problem: LinearProblem, blocks: int, caution: float) -> Iterator[Pace]:
    r"""The paces for mu = 0 or nu = 0, with M = ``blocks``.

    ``a_1 = 1`` and ``a_t = min((A mu + mu_1)/K, (1 + 1/M) a_{t-1}, sqrt((A mu + mu_1) (A nu + nu_1))/G)`` with
    ``A = A_{t-1}``, ``mu_1 = K`` and ``nu_1 = G^2/K``: constant where mu = 0, growing like t where only nu is.  K and G
    are ``caution`` times those of :func:`steepness`, G also times sqrt(M) for the noise of a block that stands for all;
    the proof takes both much larger, and M in place of sqrt(M), which was slower in most of the cases tried.

    Where mu = 0 the sum A starts anew at t = 4M, 8M, 16M, ..., which the paper does not have: else A nu slows the steps
    of q down for ever, and gaps of 1e-7 took up to ten times the passes.

    Source: DRAGO paper, C.4.1 and C.4.3.
    """
    smoothness, coupling = (caution * (c or 1.0) for c in steepness(problem))  # 0 where w = 0 is the minimum
    coupling *= math.sqrt(blocks)
    mu = problem.mu
    nu = problem.penalty.nu
    others = max(blocks - 1, 1)
    before, total, renewal = 0.0, 0.0, 4 * blocks
    for t in count(1):
        primal, dual = total * mu + smoothness, total * nu + coupling**2 / smoothness
        fastest = (1 + 1 / blocks) * before if before > 0 else math.inf
        a = min(primal / smoothness, fastest, math.sqrt(primal * dual) / coupling)
        yield Pace(before / a, primal / a, primal / (a * WINDOW * others**2), dual / a)
        before, total = a, total + a
        if mu == 0 and t == renewal:
            total, renewal = 0.0, 2 * renewal


def steepness(problem: LinearProblem) -> tuple[float, float]:
    r"""K of ``mu/alpha >= K`` and G of ``sqrt(mu nu)/alpha >= G``, without which steps with all samples are unstable.

    ``K = 4 L`` with L the curvature of the mean loss, and ``G^2 = 4 sum_i |grad l_i|^2 / C`` with C the curvature of
    the penalty at nu = 1; both are estimated at w = 0, the first from up to 1000 samples.
    """
    spread, n = problem.spread(), problem.n
    slopes = problem.loss(np.zeros(problem.y.shape), problem.y)[1]
    curvature = problem.dual.unit * (n if isinstance(problem.penalty, KLPenalty) else 1)
    return 4 * problem.loss.curvature * spread, 2 * math.sqrt(spread * square(slopes) / curvature)


def default_alpha(problem: LinearProblem, block_size: int) -> float:
    r"""``min(0.1, b/(2n), mu/K, sqrt(mu nu)/G)`` with K and G of :func:`steepness`, which seldom needs tuning.

    Theory has the same terms with smaller constants (DRAGO paper, Thm 2).
    """
    smoothness, coupling = steepness(problem)
    bounds = [_LARGEST, block_size / (2 * problem.n)]
    if smoothness > 0:
        bounds.append(problem.mu / smoothness)
    if coupling > 0:
        bounds.append(math.sqrt(problem.mu * problem.penalty.nu) / coupling)
    return min(bounds)


def expected_passes(problem: LinearProblem, block_size: int, alpha: float, fall: float) -> float:
    r"""Passes over the data in which the gap falls by a factor ``fall`` >= 1 where mu > 0 and nu > 0, roughly.

    An iteration evaluates three blocks (one, if a block is all samples), and the gap is taken to fall like
    ``(1+alpha)^{-4t}``.  The proof has the exponent t.  But K is four times the curvature, and with alpha = mu/K, where
    this matters, passes were 0.8 to 1.2 of that on the diabetes data for mu from 1 to 0.01.  They grow like L/mu, as
    the theory has it, ``(M + kappa L/mu + M sqrt(n G^2/(mu nu))) log(1/eps)`` iterations with ``kappa = n max_q q_i``:
    that is n on the whole simplex, where the method is no better than subgradients of all samples.

    Source: DRAGO paper, eq. (4) and App. B.
    """
    blocks = 1 if block_size >= problem.n else 3
    return blocks * block_size / problem.n * math.log(max(fall, 1.0)) / (4 * math.log1p(alpha))
