"""Default settings for training a perceptron on a table, shared by the classifier and by ``fcco fit``.

The learning rate of AdamW decays to 0, so that weights and multipliers converge.  Like a ridge penalty, weight decay
matters less the more samples there are.  The constants were chosen on tables other than those of the tests: larger
learning rates and less weight decay overfit rare positives.
"""

import math
from collections.abc import Sequence

LEARNING_RATE = 1e-3
"""Initial learning rate of AdamW."""
LINEAR_LEARNING_RATE = 0.03
"""Initial learning rate for a linear model of standardised columns, which 500 updates at .001 hardly move."""
BATCH_SIZE = 512
MULTIPLIER_RATE = 0.014
"""Learning rate of the multipliers: twice the usual one, since training is short and its learning rate decays."""
DECAY_SPREAD = 0.8
"""Standard deviation of the scores at which weight decay reaches its full value if mistakes have costs: two
temperatures of a smoothed decision.  Full decay from the start would suppress a weak signal."""
_EPOCHS, _UPDATES = 12, 500  # lower bounds
_FEW = 16  # with fewer samples of a class and group in a batch, batches are drawn by class and group


def epochs(updates: int) -> int:
    """Number of epochs, given the number of updates per epoch: at least 12 epochs and 500 updates in total."""
    return max(_EPOCHS, math.ceil(_UPDATES / max(1, updates)))


def weight_decay(effective: float, *, costed: bool = False) -> float:
    """Share of the weights that the first update subtracts: ``lr * weight_decay`` of AdamW.

    Args:
        effective: effective number of samples, see :func:`effective_size`.
        costed: whether mistakes have costs and there are constraints.  Then the few samples of the rarer class in the
            smallest group have much weight, and a network that memorises them has equal rates only in training.

    Example:
        >>> weight_decay(100_000), weight_decay(100_000, costed=True)
        (0.0001, 0.00025)
    """
    share, cap = (25, 0.02) if costed else (10, 0.01)
    return min(cap, share / max(1.0, effective))


def effective_size(counts: Sequence[float], costs: Sequence[float]) -> float:
    r"""Effective number of samples with weights c_i, ``(sum_i c_i)^2 / sum_i c_i^2`` (Kish, 1965).

    Args:
        counts: number of samples of every class.
        costs: weight c_i of the samples of every class.

    Example:
        >>> round(effective_size([950, 50], [1, 19]))
        190
    """
    pairs = list(zip(counts, costs, strict=True))
    return sum(n * c for n, c in pairs) ** 2 / sum(n * c * c for n, c in pairs)


def log_odds(counts: Sequence[float], costs: Sequence[float] = (1, 1)) -> float:
    """The initial score of a binary classifier, the log-odds log(c_1 n_1 / (c_0 n_0)) of the weighted classes.

    From an initial score of 0 a short training spends its updates on learning that positives are rare, against weight
    decay.

    Args:
        counts: numbers n_0 and n_1 of samples of the classes 0 and 1, both positive.
        costs: weights c_0 and c_1 of their samples.

    Example:
        >>> round(log_odds([950, 50]), 2), round(log_odds([950, 50], [1, 19]), 2)
        (-2.94, 0.0)
    """
    negatives, positives = (n * c for n, c in zip(counts, costs, strict=True))
    return math.log(positives / negatives)


def rare(share: float, batch_size: int) -> bool:
    """Whether a uniform batch has few samples, on average, of a class and group with this share of all samples."""
    return share * batch_size < _FEW
