"""Algorithms with one loop: every batch is one update of w."""

from fcco_lightning.algorithms.estimation import Estimation
from fcco_lightning.engine import Engine, Problem
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import Batch


class SingleLoop(Estimation):
    """``G`` with outer gradients from the estimator, then the user's optimizer.

    An instance of this class is an algorithm without a name of its own: any estimator with any smoothing.

    Raises:
        ConfigError: from ``pose``, if it would remember inner functions and the problem has none.
    """

    def prepare(self, problem: Problem) -> None:
        if not problem.all_terms and problem.penalty.acts and self.estimator.remembers:
            raise ConfigError(
                f"{self.name} would do nothing that SGD does not: {type(problem.objective).__name__} has no inner "
                "functions, and there are no constraints. Use SGD, add a constraint, or choose an objective with inner "
                "functions, such as AveragePrecision."
            )
        super().prepare(problem)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        engine.descend(self.surrogate(engine, batch))
        engine.commit()
        if self.needs_previous:
            self._previous.remember(engine.params)
        engine.update()
