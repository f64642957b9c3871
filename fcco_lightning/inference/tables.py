"""Predictions as tables."""

import math
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

    A probability is one only if the objective makes it one (cross-entropy does, a loss of ranking does not).

    Args:
        outputs: of the network, with first dimension n.
        ids: columns that name the samples, each of length n.
        kind: what the outputs are scores of.
        names: of the classes, or of the labels; their numbers where there are none.
        threshold: of probabilities, in (0, 1], in the place of the rule's decisions; None for these.
        rule: the decisions that the network makes.

    Raises:
        ConfigError: if ``kind`` or ``threshold`` is none, there are not as many names as the outputs ask for, or
            ``ids`` has a column of the prediction.
    """
    one_of("kind", kind, ("classes", "labels", "values"))
    if threshold is not None:
        fraction("threshold", threshold)
    scores = outputs.detach().float().cpu().reshape(len(outputs), -1)
    several = scores.shape[1]
    classes = max(several, 2) if kind == "classes" else several
    if names and len(names) != classes:
        raise ConfigError(f"names must name the {classes} {kind}, got {listed_in_order(names)}.")
    called: list[Any] = list(names) if names else list(range(classes))
    ends = [""] if several == 1 else [f"_{name}" for name in called]
    table = _columns("score", ends, scores)
    if kind == "values":
        return _beside(ids, table)
    softmax = kind == "classes" and several > 1
    log_odds = scores if kind == "labels" else rule.log_odds(scores)
    table |= _columns("probability", ends, log_odds.softmax(1) if softmax else log_odds.sigmoid())
    if kind == "labels":
        table |= _columns("decision", ends, _above(scores, threshold or 0.5))
    else:
        one = (
            rule.decided(scores[:, 0], among_themselves=True).long()
            if threshold is None
            else _above(log_odds[:, 0], threshold)
        )
        table["decision"] = [called[k] for k in (scores.argmax(1) if softmax else one).tolist()]
    return _beside(ids, table)


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


def _above(scores: Tensor, threshold: float) -> Tensor:
    """1 where a probability is above the threshold, else 0: at 0.5 where the score is positive, to its last digit."""
    log_odds = math.log(threshold / (1 - threshold)) if threshold < 1 else math.inf
    return (scores > log_odds).long()


def _columns(name: str, ends: Sequence[str], values: Tensor) -> dict[str, Any]:
    return {f"{name}{end}": column.numpy() for end, column in zip(ends, torch.unbind(values, 1), strict=True)}


def _beside(ids: Mapping[str, Any], predicted: Mapping[str, Any]) -> pd.DataFrame:
    """What names the samples, and what is predicted of them."""
    both = sorted(ids.keys() & predicted.keys())
    if both:
        raise ConfigError(
            f"the columns {both} name or group the samples, and are columns of the prediction, too. Rename them in the "
            "table, or name the rows by another column."
        )
    return pd.DataFrame({**ids, **predicted})
