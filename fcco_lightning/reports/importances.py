"""Permutation importances of the columns of a table for a trained network."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.data.encoding import TabularEncoder
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.evaluation import Evaluation, direction
from fcco_lightning.models.batch import Columns

MOST_ROWS = 5000  # largest number of samples that are evaluated for every shuffle
REPEATS = 5
_SEED = 0


class Features(NamedTuple):
    """The features of a split, and the network's outputs as a function of changed features.

    Attributes:
        x: the features, shape (n, d).
        columns: for each of the d features, its column of the table.
        outputs: function from features (r, d) and positions (r,) of samples in the split to the network's outputs.
    """

    x: Tensor
    columns: Sequence[str]
    outputs: Callable[[Tensor, Tensor], Any]


@torch.no_grad()
def importances_of(
    features: Features, batch: Columns, evaluation: Evaluation, figure: str | None = None
) -> dict[str, Any]:
    r"""Permutation importances of columns (Breiman, *Random Forests*, Machine Learning 2001, Section 10).

    For a figure s (if larger values are better, else its negative) and every column j they are the mean and the
    standard deviation of

    .. math:: s - s_{j,k}, \qquad k = 1, \dots, 5,

    where :math:`s_{j,k}` is the figure with the cells of column j shuffled among the samples, including all features
    that are computed from them.  They are measured on at most 5,000 random samples, or on all samples if the figures of
    the evaluation are not separable, and take one pass through the network plus 5 for each column.

    Args:
        features: the features of the split.
        batch: the columns of the split for the evaluation.
        evaluation: the evaluation, whose figure of merit is measured.
        figure: another figure of the evaluation to be measured.

    Returns:
        ``figure``, its ``value``, the number of ``rows``, and ``columns``, sorted by decreasing importance, each with
        ``column``, the mean ``change`` (positive if shuffling makes the figure worse), and its ``std``.

    Raises:
        ConfigError: if the evaluation has several figures but no figure of merit.
        DataError: if the split has no such figure, or there is no column.
    """
    from sklearn.dummy import DummyClassifier  # noqa: PLC0415 - slow to import
    from sklearn.inspection import permutation_importance  # noqa: PLC0415 - slow to import

    measured, names = evaluation.figure_of_merit(figure), list(dict.fromkeys(features.columns))
    sign, place = 1 if direction(measured) == "max" else -1, {name: k for k, name in enumerate(names)}
    table_column = torch.tensor([place[name] for name in features.columns])

    def score(_: object, cells: Any, rows: Any) -> float:
        """The figure of the samples ``rows`` (r,), if sample i has the cell of sample ``cells[i, j]`` in column j.

        Shuffling ``cells`` thus moves all features of a cell together, such as those of a category, date or piece.
        """
        samples = torch.from_numpy(rows)
        x = features.x.gather(0, torch.from_numpy(cells)[:, table_column])
        figures = evaluation(features.outputs(x, samples), {name: c[samples] for name, c in batch.items()})
        if not np.isfinite(figures.get(measured, np.nan)):
            raise DataError(f"importances are changes of the figure {measured!r}, which is not defined on the split.")
        return sign * figures[measured]

    n = len(features.x)
    rows = np.arange(n)
    if evaluation.separable and n > MOST_ROWS:
        rows = np.sort(np.random.default_rng(_SEED).choice(n, MOST_ROWS, replace=False))
    cells = np.repeat(rows[:, None], len(names), axis=1)
    # with `scoring` the classifier is not used
    result = permutation_importance(
        DummyClassifier(), cells, rows, scoring=score, n_repeats=REPEATS, random_state=_SEED
    )
    records = [
        {"column": name, "change": float(mean), "std": float(std)}
        for name, mean, std in zip(names, result.importances_mean, result.importances_std, strict=True)
    ]
    return {
        "figure": measured,
        "value": sign * score(None, cells, rows),
        "rows": len(rows),
        "columns": sorted(records, key=lambda record: -record["change"]),
    }


def columns_of_features(encoder: object, argument: str) -> list[str]:
    """For every feature its column of the table.

    Args:
        encoder: the encoder of a datamodule or a checkpoint.
        argument: name of the argument that asks for importances, for the message.

    Raises:
        ConfigError: if the features are not computed from the columns of a table.
    """
    if isinstance(encoder, TabularEncoder):
        return [column.name for column in encoder.columns for _ in column.features]
    raise ConfigError(
        f"{argument} needs a table with columns of numbers and categories, which are shuffled one at a time. Images, "
        "texts and tensors have no such columns. Leave it out."
    )
