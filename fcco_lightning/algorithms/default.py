"""The default algorithm."""

from fcco_lightning.algorithms.sgd import SGD
from fcco_lightning.algorithms.sonex import SONEX
from fcco_lightning.engine import Algorithm
from fcco_lightning.objectives import Objective


def default_algorithm(objective: Objective, *, constrained: bool) -> Algorithm:
    """SONEX, with a small gamma if there are constraints; SGD for an objective without inner functions or constraints.

    Most batches measure every constraint, but with few samples of each subset.  So a small gamma averages over many
    batches, and gamma' = 1 - gamma corrects the rows for the change of the weights, so that they do not lag behind.
    This is the gamma' of Thm 4.7 of the SONEX paper if every batch measures a row; for rows of inclusion probability p
    < 1 the theorem has a larger value, which grows with 1/p and makes rows of rare subsets very noisy.

    Args:
        objective: the objective.
        constrained: whether there are constraints.
    """
    if not constrained:
        return SGD() if objective.outer is None else SONEX()
    return SONEX(gamma=0.02, gamma_prime=0.98, objective_gamma=0.8, objective_gamma_prime=0.1)
