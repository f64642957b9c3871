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
from fcco_lightning.state.row_files import new_file

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
    r"""A row for every sample: what names it, then scores, probabilities and decisions.

    - "values": ``score``, or ``score_k`` of several outputs, and nothing else;
    - "classes": of one score also ``probability`` of the last class and ``decision``, the last class if the rule
      decides positive, else the first; of C scores the softmax and the class of the largest;
    - "labels": of every one of T scores its sigmoid, and 1 if that is above the threshold (1/2), else 0.

    Scores that are no probabilities have none: the column is left out where the objective, such as one of ranking, does
    not make them log-odds and no samples were held out to calibrate them (:meth:`DecisionRule.probabilities`).

    Args:
        outputs: of the network, with first dimension n.
        ids: columns that name the samples, each of length n.
        kind: what the outputs are scores of.
        names: of the classes, or of the labels; their numbers where there are none.
        threshold: of probabilities, in (0, 1], in the place of the rule's decisions; None for these.
        rule: the decisions that the network makes.

    Raises:
        ConfigError: if ``kind`` or ``threshold`` is none, there are no probabilities for a threshold, not as many names
            as the outputs ask for, or ``ids`` has a column of the prediction.
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
    """Of several labels, whose scores are not calibrated."""
    return scores.sigmoid() if rule.proper else None


def write_table(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table to a file, CSV or Parquet by its suffix; a folder that is not there is made.

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
    """What names the samples, and what is predicted of them."""
    shared = sorted(ids.keys() & predicted.keys())
    if shared:
        raise ConfigError(
            f"the columns {shared} name or group the samples, and are columns of the prediction, too. Rename them in "
            "the table, or name the rows by another column."
        )
    return pd.DataFrame({**ids, **predicted})
