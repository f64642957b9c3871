"""Figures of predicted numbers."""

from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation, require_columns
from fcco_lightning.models.batch import Columns


class NumberEvaluation(Evaluation):
    r"""How far predictions are from the labels, which are numbers.

    The outputs and the column ``y`` have n numbers each.

    - ``rmse``: root of the mean squared error, in units of the label;
    - ``mae``: mean absolute error, likewise;
    - ``r2``: share of the labels' variance that is predicted, ``1 - mse / variance``; absent for equal labels.
    """

    bar = ("rmse", "r2")
    merit = "r2"

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        require_columns(batch, "y", figures="figures of predicted numbers")
        y = batch["y"].double().flatten()
        if outputs.numel() != len(y):
            raise DataError(
                f"figures of predicted numbers need one output for every label, got outputs {tuple(outputs.shape)} for "
                f"{len(y)} labels. Give the network one output, or choose another evaluation (--model.evaluation)."
            )
        apart = outputs.double().flatten() - y
        error, variance = apart.square().mean(), y.var(correction=0)
        figures = {"rmse": error.sqrt().item(), "mae": apart.abs().mean().item()}
        return figures | ({"r2": (1 - error / variance).item()} if variance > 0 else {})
