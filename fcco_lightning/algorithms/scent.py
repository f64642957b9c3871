"""SCENT."""

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.engine import Problem
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Average, EntropicMirror
from fcco_lightning.outer import Log, LogWithTemperature


class SCENT(SingleLoop):
    r"""Stochastic dual mirror descent for logarithms of means of exponentials: SOX with :class:`EntropicMirror`.

    ``u_i <- u_i (1 + alpha g_i) / (1 + alpha u_i)``, which is a proximal step in nu_i = log u_i on the dual form
    ``log g_i = min over nu of e^-nu g_i + nu - 1`` (derived at :class:`EntropicMirror`), then
    ``G = (1/B1) sum_i Jac g_i^T f'(u_i)``.  It is meant for objectives whose inner values span many orders of
    magnitude, such as a softmax over very many classes (:class:`~fcco_lightning.SampledSoftmax`), global contrastive
    losses and listwise losses, where no constant averaging weight suits both small and large rows.

    Constraints, which are no logarithms, are averaged as in :class:`SOX`.

    Args:
        alpha: step size of nu, > 0; the weight of a new value is ``alpha u_i / (1 + alpha u_i)``.
        gamma: weight of the new value for constraints, in (0, 1].
        fresh: whether outer gradients are taken at the new u_i, which bounds them, but biases G by their covariance
            with the Jacobian; False takes the u_i before the step, see :class:`EntropicMirror`.

    Raises:
        ConfigError: from ``pose`` if the objective's outer function is not a logarithm.
    """

    def __init__(self, alpha: float = 1.0, gamma: float = 0.5, fresh: bool = True) -> None:
        super().__init__(Average(gamma), objective_estimator=EntropicMirror(alpha, fresh))

    def prepare(self, problem: Problem) -> None:
        outer = problem.objective.outer
        if not isinstance(outer, Log | LogWithTemperature):
            raise ConfigError(
                f"{self.name} needs an objective whose outer function is a logarithm; that of "
                f"{type(problem.objective).__name__} is {outer!r}. Use SampledSoftmax or GlobalContrastive, or "
                "another algorithm, such as SOX."
            )
        super().prepare(problem)
