"""How a perceptron on a table is trained where nothing else is said, by the classifier and by ``fcco fit`` alike.

AdamW takes steps of a rate that falls to 0, so that weights and multipliers come to rest.  Its decay of the weights
counts, like a ridge, the less the more samples there are.  The numbers were found on tables other than those of the
tests: larger rates and less decay learn rare positives by heart.
"""

import math
from collections.abc import Sequence

LEARNING_RATE = 1e-3
"""Of AdamW, at first."""
LINEAR_LEARNING_RATE = 0.03
"""Likewise, of a linear model of standardised columns: 500 updates at .001 leave its weights near where they begin."""
BATCH_SIZE = 512
MULTIPLIER_RATE = 0.014
"""Of the multipliers: twice the usual one, since such a training is short and its steps fall to 0."""
DECAY_SPREAD = 0.8
"""Standard deviation of scores from which on their network's weights decay in full, where mistakes have costs: two
temperatures of a smoothed decision.  Full decay leaves nothing of a weak signal."""
_EPOCHS, _UPDATES = 12, 500  # at least so many of both
_FEW = 16  # samples of a combination in a batch, below which batches are drawn by class and group


def epochs(updates: int) -> int:
    """Number of epochs with this number of updates each."""
    return max(_EPOCHS, math.ceil(_UPDATES / max(1, updates)))


def weight_decay(effective: float, *, costed: bool = False) -> float:
    """Share of the weights that an update takes away at first.

    Args:
        effective: number of samples, see :func:`effective_size`.
        costed: whether mistakes have costs and constraints say how they are shared.  Then few samples count much, those
            of the rarer class in the smallest group, and what a network knows of them by heart are equal rates that
            later samples do not have.

    Example:
        >>> weight_decay(100_000), weight_decay(100_000, costed=True)
        (0.0001, 0.00025)
    """
    share, cap = (25, 0.02) if costed else (10, 0.01)
    return min(cap, share / max(1.0, effective))


def effective_size(counts: Sequence[float], costs: Sequence[float]) -> float:
    r"""Number of equal samples of which a weighted mean is as certain, ``(sum_i c_i)^2 / sum_i c_i^2`` (Kish, 1965).

    Args:
        counts: number of samples of every class.
        costs: c_i of a sample of it.

    Example:
        >>> round(effective_size([950, 50], [1, 19]))
        190
    """
    pairs = list(zip(counts, costs, strict=True))
    return sum(n * c for n, c in pairs) ** 2 / sum(n * c * c for n, c in pairs)


def log_odds(counts: Sequence[float], costs: Sequence[float] = (1, 1)) -> float:
    """The scores that a network of two classes begins with, log(c_1 n_1 / c_0 n_0), which are right on average.

    From scores of 0 a short training spends its steps on learning that positives are rare, and decay of the weights
    draws it back.

    Args:
        counts: number of samples of class 0 and of class 1, none of them 0.
        costs: of a sample of each.

    Example:
        >>> round(log_odds([950, 50]), 2), round(log_odds([950, 50], [1, 19]), 2)
        (-2.94, 0.0)
    """
    negatives, positives = (n * c for n, c in zip(counts, costs, strict=True))
    return math.log(positives / negatives)


def rare(share: float, batch_size: int) -> bool:
    """Whether uniform batches hold few samples of a combination of class and group that is such a share of all."""
    return share * batch_size < _FEW
