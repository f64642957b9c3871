"""The algorithm where none is named."""

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.algorithms.sonex import SONEX


def default_algorithm(*, constrained: bool) -> Algorithm:
    """SONEX; with constraints, it remembers their rows for long.

    Most batches speak of every constraint, but with few samples of each subset.  So a small gamma averages over many
    batches, and gamma' = 1 - gamma (Thm 4.7 of the SONEX paper where every batch speaks of a row, somewhat more where
    not) corrects the rows for what the weights do meanwhile: a row is nearly exact, and lags behind nothing.

    Args:
        constrained: whether there are constraints.
    """
    if not constrained:
        return SONEX()
    return SONEX(gamma=0.02, gamma_prime="theory", objective_gamma=0.8, objective_gamma_prime=0.1)
