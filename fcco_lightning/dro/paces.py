"""DRAGO's sequence a_t, and the constants of its iterations that follow from it."""

import math
from collections.abc import Iterator
from itertools import count
from typing import Literal

import numpy as np

from fcco_lightning.ambiguity import KLPenalty
from fcco_lightning.dro.kernel import WINDOW, Growth, Pace, pace
from fcco_lightning.dro.problem import LinearProblem, square

Start = Literal["practice", "theory", "steady"]
_LARGEST = 0.1  # largest default alpha


def regularised(problem: LinearProblem, blocks: int, alpha: float, start: Start) -> Growth:
    """The growth of a_t for mu > 0 and nu > 0, with M = ``blocks``; see :class:`DRAGO` for ``start``."""
    faster = 1 + alpha
    lag, second = {
        "practice": (faster, 1 / faster),
        "theory": (0.75 * faster**2, 1 / (4 * alpha)),
        "steady": (0.0, 1 / faster),
    }[start]
    return Growth(float(problem.mu), float(problem.penalty.nu), blocks, alpha, lag, second)


def paces(growth: Growth) -> Iterator[Pace]:
    """The paces of iterations 1, 2, ..."""
    return (pace(growth, t) for t in count(1))


def unregularised(problem: LinearProblem, blocks: int, caution: float) -> Iterator[Pace]:
    r"""The paces for mu = 0 or nu = 0, with M = ``blocks``.

    ``a_1 = 1`` and ``a_t = min((A mu + mu_1)/K, (1 + 1/M) a_{t-1}, sqrt((A mu + mu_1) (A nu + nu_1))/G)`` with
    ``A = A_{t-1}``, ``mu_1 = K`` and ``nu_1 = G^2/K``: constant if mu = 0, growing like t if only nu = 0.  K and G
    are ``caution`` times those of :func:`steepness`, G also times sqrt(M) for the noise of the block estimates;
    the proof has much larger ones, and M instead of sqrt(M), which was slower in most of the cases tried.

    If mu = 0, the sum A restarts at t = 4M, 8M, 16M, ..., unlike in the paper: otherwise A nu makes the steps of q
    smaller and smaller, and gaps of 1e-7 took up to ten times as many passes.

    Source: DRAGO paper, C.4.1 and C.4.3.
    """
    smoothness, coupling = (caution * (c or 1.0) for c in steepness(problem))  # 0 if w = 0 is the minimum
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
    r"""K and G of the conditions ``mu/alpha >= K`` and ``sqrt(mu nu)/alpha >= G``, which even full-batch steps need.

    ``K = 4 L`` with L the curvature of the mean loss, and ``G^2 = 4 sum_i |grad l_i|^2 / C`` with C the curvature of
    the penalty at nu = 1; both are estimated at w = 0, the first from up to 1000 samples.
    """
    spread, n = problem.largest_eigenvalue(), problem.n
    slopes = problem.loss(np.zeros(problem.y.shape), problem.y)[1]
    curvature = problem.dual.unit * (n if isinstance(problem.penalty, KLPenalty) else 1)
    return 4 * problem.loss.curvature * spread, 2 * math.sqrt(spread * square(slopes) / curvature)


def default_alpha(problem: LinearProblem, block_size: int) -> float:
    r"""The default step size ``min(0.1, b/(2n), mu/K, sqrt(mu nu)/G)``, with K and G of :func:`steepness`.

    The theory has the same terms with smaller constants (DRAGO paper, Thm 2).  It seldom needs tuning.
    """
    smoothness, coupling = steepness(problem)
    bounds = [_LARGEST, block_size / (2 * problem.n)]
    if smoothness > 0:
        bounds.append(problem.mu / smoothness)
    if coupling > 0:
        bounds.append(math.sqrt(problem.mu * problem.penalty.nu) / coupling)
    return min(bounds)


def expected_passes(problem: LinearProblem, block_size: int, alpha: float, fall: float) -> float:
    r"""A rough estimate of the passes in which the gap decreases by a factor ``fall`` >= 1, for mu > 0 and nu > 0.

    An iteration evaluates three blocks (one, if a block is all samples), and the gap is assumed to decrease like
    ``(1+alpha)^{-4t}``.  The proof has the exponent t.  But K is four times the curvature, and with alpha = mu/K, for
    which the estimate matters, the number of passes was 0.8 to 1.2 of the estimate on the diabetes data for mu from 1
    to 0.01.  It grows like L/mu, as in the theory, which has ``(M + kappa L/mu + M sqrt(n G^2/(mu nu))) log(1/eps)``
    iterations with ``kappa = n max_q q_i``; kappa is n on the whole simplex, where the method is no better than
    subgradients of all samples.

    Source: DRAGO paper, eq. (4) and App. B.
    """
    blocks = 1 if block_size >= problem.n else 3
    return blocks * block_size / problem.n * math.log(max(fall, 1.0)) / (4 * math.log1p(alpha))
