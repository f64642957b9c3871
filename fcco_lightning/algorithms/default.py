"""The algorithm where none is named."""

from fcco_lightning.algorithms.sgd import SGD
from fcco_lightning.algorithms.sonex import SONEX
from fcco_lightning.engine import Algorithm
from fcco_lightning.objectives import Objective


def default_algorithm(objective: Objective, *, constrained: bool) -> Algorithm:
    """SONEX, which with constraints remembers their rows for long; SGD where there is nothing to remember.

    Most batches measure every constraint, but with few samples of each subset.  So a small gamma averages over many
    batches, and gamma' = 1 - gamma corrects the rows for what the weights do meanwhile, so that they do not lag behind.
    That is the gamma' of Thm 4.7 of the SONEX paper where every batch measures a row; for rarer rows the theorem asks
    for more, which grows with 1/p and makes rows of rare subsets jump.

    Args:
        objective: what is minimised.
        constrained: whether there are constraints.
    """
    if not constrained:
        return SGD() if objective.outer is None else SONEX()
    return SONEX(gamma=0.02, gamma_prime=0.98, objective_gamma=0.8, objective_gamma_prime=0.1)
