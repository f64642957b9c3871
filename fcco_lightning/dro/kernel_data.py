"""What goes into DRAGO's compiled loop, and what comes out: tuples that numba knows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SQUARED, LOGISTIC, MULTINOMIAL = 0, 1, 2
GO_ON, DONE, DIVERGED = 0, 1, 2
TILE = 128  # samples whose scores stay in the nearest cache; BLAS has code of its own for products so small
SLAB = 2048  # samples whose features, and weights for every class, stay in the second cache


class Pace(NamedTuple):
    """The constants of one iteration.

    Attributes:
        r: ``a_{t-1}/a_t``, the weight of the corrections.
        pull: of ``|w' - w|^2 / 2`` and what follows together in the step of w.
        window: of ``|w' - w_s|^2 / 2`` for each of the M - 1 iterates w_s before w.
        dual: of ``Delta(p, q)`` in the step of q.
    """

    r: float
    pull: float
    window: float
    dual: float


class Growth(NamedTuple):
    """How a_t grows where mu > 0 and nu > 0: ``A_{t-1}/a_t = (1 - lag (1+alpha)^{-t})/alpha``.

    Attributes:
        alpha: step size.
        lag: 0 for what the other two tend to.
        second: ``a_1/a_2``.
    """

    alpha: float
    lag: float
    second: float


class Data(NamedTuple):
    """A problem.

    Attributes:
        x: features (n, d).
        columns: the same (d, n), for few features and one score per sample, where loops over columns are faster than
            BLAS; else (0, n).
        y: targets (k, n).
        edges: of the M blocks, (M + 1,).
        loss: SQUARED, LOGISTIC or MULTINOMIAL.
        cap: the largest weight of a sample.
        unit: curvature of the penalty at nu = 1.
        nu: weight of the penalty.
        mu: weight of the ridge term.
        most_growth: times the objective at w = 0 the iterates have diverged at; infinite for never.
    """

    x: Array
    columns: Array
    y: Array
    edges: NDArray[np.int64]
    loss: int
    cap: float
    unit: float
    nu: float
    mu: float
    most_growth: float


class Ends(NamedTuple):
    """When to stop.

    Attributes:
        gap: at so small a gap.
        calls: after so many evaluations of a sample.
    """

    gap: float
    calls: float


class Tables(NamedTuple):
    """What an iteration changes in place.

    Numbers per sample and class stand block by block, and within a block class by class: (n k,).  The scores of a block
    are then one product of matrices, and a loop over them meets neighbours.

    Attributes:
        w: weights (k d,).
        best: the best weights seen, (k d,).
        total: ``sum_i qhat_i ghat_i``, (k d,).
        change: of total, by the block renewed last, (k d,).
        step: room for a direction, (k d,).
        path: the weights of the last M iterations, (M, k d).
        path_sum: their sum, (k d,).
        q: weights of the samples, (n,).
        losses: lhat, (n,).
        weighted: ``qhat_i phi'_i``, (n k,).
        now: losses at w of the blocks evaluated last, (n,).
        slopes: their slopes, (n k,).
        part: room for slopes times weights, (n k,).
        v: room for the argument of a dual step, (n,).
        room: for the scores of a tile of samples, (k TILE,).
        sums: room for what is summed over classes, (3, TILE).
        worst: the worst weights of the samples at the last look, (n,).
    """

    w: Array
    best: Array
    total: Array
    change: Array
    step: Array
    path: Array
    path_sum: Array
    q: Array
    losses: Array
    weighted: Array
    now: Array
    slopes: Array
    part: Array
    v: Array
    room: Array
    sums: Array
    worst: Array


class Marks(NamedTuple):
    """Where an iteration stands.

    Attributes:
        t: number of the next iteration; 0 before the tables are filled.
        next_look: the iteration to look at the gap after.
        first_gap: what it was at w = 0.
        last: the block renewed last, or -1.
        calls: evaluations of a sample.
        looks: records written.
        value: the best objective.
        lower: the largest lower bound.
        at_step: threshold of the last dual step, or nan.
        at_response: threshold of the last worst weights, or nan.
        limit: the objective at which the iterates have diverged.
        status: GO_ON, DONE or DIVERGED.
    """

    t: int
    next_look: int
    first_gap: float
    last: int
    calls: int
    looks: int
    value: float
    lower: float
    at_step: float
    at_response: float
    limit: float
    status: int
