"""An algorithm is a composition: estimator x smoothing x step."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from fcco_lightning.estimators import Estimator
from fcco_lightning.outer import NoSmoothing, Smoothing
from fcco_lightning.state import DualState
from fcco_lightning.steps import Step


class Algorithm:
    r"""How inner values are remembered, outer functions smoothed, and weights moved.

    The gradient estimate is always ``G = mean over sampled i of Jac g_i(w)^T y_i``; an algorithm only decides the
    y_i and the step.  Named algorithms are subclasses that choose the parts; a new combination needs no class.

    Attributes:
        uses_constraints: whether constraints are penalised, or only measured.
        keeps_rows: whether it remembers earlier values of all rows, which must then be whole on every process.
        max_form: whether it works on the objective's max form, whose weights it keeps.
        sets_step_sizes: whether it changes the optimizer's step size, so that there can be no schedule beside it.

    Args:
        estimator: for the constraints, and for the objective unless it has its own.
        smoothing: map on non-smooth outer functions; None for none.
        step: where gradients are taken and how they move the weights; None for the user's optimizer alone.
        objective_estimator: for the objective's inner functions, if other than ``estimator`` (004 F.3).
    """

    uses_constraints: bool = True
    max_form: bool = False
    sets_step_sizes: bool = False
    keeps_rows: bool = False

    def __init__(
        self,
        estimator: Estimator,
        smoothing: Smoothing | None = None,
        step: Step | None = None,
        objective_estimator: Estimator | None = None,
    ) -> None:
        self._estimator = estimator
        self._objective_estimator = objective_estimator or estimator
        self.smoothing = smoothing or NoSmoothing()
        self.step = step or Step()

    @property
    def name(self) -> str:
        """As written in checkpoints and reports."""
        return type(self).__name__

    @property
    def estimator(self) -> Estimator:
        """For the constraints."""
        return self._estimator

    @property
    def objective_estimator(self) -> Estimator:
        """For the objective's inner functions."""
        return self._objective_estimator

    @property
    def needs_previous(self) -> bool:
        """Whether a second forward pass at the previous weights is made."""
        estimators = (self.estimator, self.objective_estimator)
        return self.step.needs_previous_gradient or any(e.needs_previous for e in estimators)

    def after_update(self, optimizer: Optimizer, states: Sequence[DualState]) -> None:
        """Called after every update of w; for algorithms that run in stages."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and primitives only."""
        return {"name": self.name, "step": self.step.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore after the step was bound to the parameters."""
        self.step.load_state_dict(state["step"])
