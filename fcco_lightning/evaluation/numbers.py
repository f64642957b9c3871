"""Figures of regression, and of a value function on transitions."""

import math
from typing import Any

from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation, mean_of, require_columns, weight_of
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import one_label_each, one_tensor
from fcco_lightning.objectives.others.bellman import TemporalDifference, mean_residuals, state_values


class NumberEvaluation(Evaluation):
    r"""Errors of predicted numbers.

    The outputs and the column ``y`` have n numbers each, or n x T for T labels.

    - ``rmse``: root of the mean squared error, in units of the label;
    - ``mae``: mean absolute error, in units of the label;
    - ``r2``: share of the labels' variance that is explained, ``1 - mse / variance``; for several labels the mean over
      those with a positive variance; absent if there is none.
    """

    bar = ("rmse", "r2")
    merit = "r2"

    def check(self, outputs: Any, batch: Columns) -> None:
        require_columns(batch, "y", figures="figures of predicted numbers")
        if isinstance(outputs, Tensor) and outputs.numel() != batch["y"].numel():
            raise DataError(
                f"figures of predicted numbers need one output for every label, got outputs {tuple(outputs.shape)} for "
                f"{batch['y'].numel()} labels. Give the network one output, or choose another evaluation "
                "(--model.evaluation)."
            )

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        self.check(outputs, batch)
        y, outputs = batch["y"].double(), one_tensor(outputs)
        y = y.reshape(len(y), -1)
        residuals, weight = outputs.double().reshape(y.shape) - y, weight_of(batch, y, self)
        share = (weight / weight.sum()).unsqueeze(1)  # normalised weights of the samples, (n, 1)
        squares = (share * residuals.square()).sum(0)
        figures = {"rmse": squares.mean().sqrt().item(), "mae": (share * residuals.abs()).sum(0).mean().item()}
        varied = ((y != y[share.argmax()]) & (share > 0)).any(0)
        shares = 1 - squares[varied] / (share * (y - (share * y).sum(0)).square()).sum(0)[varied]
        return figures | ({"r2": shares.mean().item()} if len(shares) else {})


class ValueEvaluation(Evaluation):
    r"""Residuals of a value function V_w in the Bellman equation, and its error if the true value function V is known.

    The outputs are the values of both states of n transitions, shape (n, 2) or (n, 2, 1).

    - ``bellman_error``: root of the mean over states of the squared mean temporal difference of a state;
    - ``td_error``: root of the mean over transitions of the squared temporal difference, which is positive even for V
      if next states are random;
    - ``value_error``: root mean square of V_w(s) - V(s) over the transitions' first states, if the split has a column
      ``value`` (n,) with the true V(s).

    Args:
        discount: discount factor of the objective, in [0, 1).

    Raises:
        ConfigError: if ``discount`` is out of range.
    """

    bar = ("bellman_error",)

    def __init__(self, discount: float = 0.95) -> None:
        self.discount = TemporalDifference(discount).discount  # TemporalDifference checks it

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        require_columns(batch, "group", "reward", figures="figures of a value function")
        values = state_values(outputs).double()
        single = TemporalDifference(self.discount)(values, batch)
        state, weight = one_label_each(batch, self, "group"), weight_of(batch, values, self)
        figures = {
            "bellman_error": mean_residuals(single, state, weight).square().mean().sqrt().item(),
            "td_error": math.sqrt(mean_of(single.square(), weight)),
        }
        if "value" in batch:
            figures["value_error"] = math.sqrt(
                mean_of((values[:, 0] - one_label_each(batch, self, "value").double()).square(), weight)
            )
        return figures
