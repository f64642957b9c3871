"""Predictions as tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import fraction, one_of
from fcco_lightning.constraints import DecisionRule
from fcco_lightning.data.columns import listed_in_order
from fcco_lightning.errors import ConfigError
from fcco_lightning.state.new_file import new_file

Kind = Literal["classes", "labels", "values"]
NO_PROBABILITIES = (
    "these scores have none: the objective ranks, and no samples were held out to calibrate them. Hold some out while "
    "training (--data.splits.val_fraction 0.1 for tables), or train with cross-entropy."
)
_PLAIN = DecisionRule()


def prediction_table(
    outputs: Tensor,
    ids: Mapping[str, Any],
    *,
    kind: Kind = "values",
    names: Sequence[str] = (),
    threshold: float | None = None,
    rule: DecisionRule = _PLAIN,
) -> pd.DataFrame:
    r"""Return a table with a row for every sample: its identifiers, scores, probabilities and decisions.

    The columns depend on ``kind``:

    - "values": ``score``, or ``score_k`` for several outputs;
    - "classes": for one score also the ``probability`` of the last class and the ``decision``, the last class if the
      rule decides positive, else the first; for C scores the softmax and the class of the largest score;
    - "labels": for each of T scores also its sigmoid, and 1 if that is above the threshold (1/2), else 0.

    Probabilities are left out if the scores are not log-odds, as those of ranking objectives, and were not calibrated
    on held-out samples (:meth:`DecisionRule.probabilities`).

    Args:
        outputs: outputs of the network, with first dimension n.
        ids: columns that identify the samples, each of length n.
        kind: the meaning of the outputs.
        names: names of the classes or labels; numbers are used if it is empty.
        threshold: threshold of probabilities, in (0, 1], instead of the rule's decisions; None for the rule.
        rule: the decision rule.

    Raises:
        ConfigError: if ``kind`` or ``threshold`` is invalid, there are no probabilities for a threshold, the number of
            names does not fit, or ``ids`` has a column of the prediction.
    """
    one_of("kind", kind, ("classes", "labels", "values"))
    if threshold is not None:
        fraction("threshold", threshold)
    scores = outputs.detach().float().cpu().reshape(len(outputs), -1)
    several = scores.shape[1]
    classes = max(several, 2) if kind == "classes" else several
    if names and len(names) != classes:
        raise ConfigError(f"names must name the {classes} {kind}, got {listed_in_order(names)}.")
    class_names: list[Any] = list(names) if names else list(range(classes))
    ends = [""] if several == 1 else [f"_{name}" for name in class_names]
    table = _columns("score", ends, scores)
    if kind == "values":
        return _joined(ids, table)
    softmax = kind == "classes" and several > 1
    probabilities = _label_probabilities(scores, rule) if kind == "labels" else rule.probabilities(scores)
    if probabilities is not None:
        table |= _columns("probability", ends, probabilities)
    elif threshold is not None:
        raise ConfigError(f"threshold={threshold!r} is of probabilities, and {NO_PROBABILITIES}")
    if softmax:
        decided = scores.argmax(1, keepdim=True)
    elif threshold is not None and probabilities is not None:
        decided = (probabilities > threshold).long()
    elif kind == "labels":
        decided = (scores > 0).long()
    else:
        decided = rule.decided(scores[:, 0], among_themselves=True).long().unsqueeze(1)
    if kind == "labels":
        table |= _columns("decision", ends, decided)
    else:
        table["decision"] = [class_names[k] for k in decided[:, 0].tolist()]
    return _joined(ids, table)


def _label_probabilities(scores: Tensor, rule: DecisionRule) -> Tensor | None:
    """Probabilities of several labels, whose scores are not calibrated; None if they are not log-odds."""
    return scores.sigmoid() if rule.proper else None


def write_table(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table to a file, CSV or Parquet by its suffix; its folder is created.

    Raises:
        ConfigError: if the suffix is another one.
        CheckpointError: if the file cannot be written.
    """
    path = Path(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"out={str(path)!r}: cannot write {path.suffix!r}. Name a .csv or a .parquet file.")
    with new_file(path) as file:
        if path.suffix == ".csv":
            table.to_csv(file, index=False)
        else:
            table.to_parquet(file, index=False)


def _columns(name: str, ends: Sequence[str], values: Tensor) -> dict[str, Any]:
    return {f"{name}{end}": column.numpy() for end, column in zip(ends, torch.unbind(values, 1), strict=True)}


def _joined(ids: Mapping[str, Any], predicted: Mapping[str, Any]) -> pd.DataFrame:
    """The identifiers and the predictions as one table."""
    shared = sorted(ids.keys() & predicted.keys())
    if shared:
        raise ConfigError(
            f"the columns {shared} name or group the samples, and are columns of the prediction, too. Rename them in "
            "the table, or name the rows by another column."
        )
    return pd.DataFrame({**ids, **predicted})
