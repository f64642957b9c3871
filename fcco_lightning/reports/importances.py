"""How much columns of a table matter to a trained network: what shuffling one of them costs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.data.encoding import TabularEncoder
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.evaluation import Evaluation, direction
from fcco_lightning.models.batch import Columns

MOST_ROWS = 5000  # of a split, whose figures are made again for every shuffle
REPEATS = 5
_SEED = 0


class Features(NamedTuple):
    """The features of a split, and what a network makes of others in their place.

    Attributes:
        x: the features, shape (n, d).
        columns: for each of the d features, the column of the table that it is made of.
        outputs: gives the network's outputs for features (r, d) of the samples at some positions (r,) of the split.
    """

    x: Tensor
    columns: Sequence[str]
    outputs: Callable[[Tensor, Tensor], Any]


class _Figure:
    """A figure as what scikit-learn calls an estimator: nothing is fitted, and ``score`` is larger where it is better.

    A row of X holds, for each column of the table, the sample from which it takes the cell, so that one that is
    shuffled takes all of its features along: the categories, the parts of a date, or the pieces of a number.
    """

    def __init__(self, features: Features, batch: Columns, evaluation: Evaluation, figure: str) -> None:
        self.features, self.batch, self.evaluation, self.figure = features, batch, evaluation, figure
        self.names = list(dict.fromkeys(features.columns))
        self.sign = 1 if direction(figure) == "max" else -1
        place = {name: k for k, name in enumerate(self.names)}
        self._column = torch.tensor([place[name] for name in features.columns])

    def fit(self) -> None:
        """Do nothing: the network is trained."""

    def score(self, X: Any, y: Any) -> float:
        samples = torch.from_numpy(y)
        x = self.features.x.gather(0, torch.from_numpy(X)[:, self._column])
        batch = {name: column[samples] for name, column in self.batch.items()}
        figures = self.evaluation(self.features.outputs(x, samples), batch)
        if not np.isfinite(figures.get(self.figure, np.nan)):
            raise DataError(f"the split has no figure {self.figure!r}, which importances are changes of.")
        return self.sign * figures[self.figure]


@torch.no_grad()
def importances_of(
    features: Features, batch: Columns, evaluation: Evaluation, figure: str | None = None
) -> dict[str, Any]:
    r"""Importances of columns by permutation (Breiman, *Random Forests*, Machine Learning 2001, Section 10).

    For a figure s, here the larger, the better, and every column j they are the mean and the standard deviation of

    .. math:: s - s_{j,k}, \qquad k = 1, \dots, 5,

    where :math:`s_{j,k}` is the figure with the cells of column j shuffled among the samples.  All features that are
    made of a column are shuffled together.  They are measured on at most 5,000 random samples, or on all where the
    evaluation is about whole lists, and take 1 + 5 passes for each column through the network.  Weights of samples and
    unknown labels count as in the figure.

    Args:
        features: of the split.
        batch: its columns, as the evaluation takes them.
        evaluation: whose figure of merit is measured.
        figure: another figure of the evaluation.

    Returns:
        ``figure``, its ``value``, the number of ``rows``, and ``columns``, the largest first, each with ``column``, the
        mean ``change`` for the worse, and its ``std``.

    Raises:
        ConfigError: if the evaluation does not say which of its figures counts.
        DataError: if the split has no such figure, or there is no column.
    """
    from sklearn.inspection import permutation_importance  # noqa: PLC0415 - slow to import

    measured = _Figure(features, batch, evaluation, evaluation.figure_of_merit(figure))
    n = len(features.x)
    rows = np.arange(n)
    if evaluation.separable and n > MOST_ROWS:
        rows = np.sort(np.random.default_rng(_SEED).choice(n, MOST_ROWS, replace=False))
    places = np.repeat(rows[:, None], len(measured.names), axis=1)
    result = permutation_importance(measured, places, rows, n_repeats=REPEATS, random_state=_SEED)
    records = [
        {"column": name, "change": float(mean), "std": float(std)}
        for name, mean, std in zip(measured.names, result.importances_mean, result.importances_std, strict=True)
    ]
    return {
        "figure": measured.figure,
        "value": measured.sign * measured.score(places, rows),
        "rows": len(rows),
        "columns": sorted(records, key=lambda record: -record["change"]),
    }


def columns_of_features(encoder: object, argument: str) -> list[str]:
    """The column of the table that each feature is made of.

    Args:
        encoder: of a datamodule or a checkpoint.
        argument: that asks for importances, for the message.

    Raises:
        ConfigError: if the features are not made of the columns of a table.
    """
    if isinstance(encoder, TabularEncoder):
        return [column.name for column in encoder.columns for _ in column.features]
    raise ConfigError(
        f"{argument} needs a table with columns of numbers and categories, of which one at a time is shuffled: images, "
        "texts and tensors have no such columns. Leave it out."
    )
