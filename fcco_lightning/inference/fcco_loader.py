"""Loads a network written by ``fcco export``, and predicts rows; needs only numpy, and torch or onnxruntime.

This file and NETWORK.json must be in the folder of the network NETWORK:

    model = Exported("network.pt2")
    model.predict(csv.DictReader(open("new.csv")))  # {"score": ..., "probability": ..., "decision": ...}
    model.predict([{"age": 31, "job": "cook"}, {"age": None, "job": "smith"}])
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

_ONE_DIGIT = re.compile(r"(?<![\d.,])\d(?!\d)")  # single digit of a month, day or time, which pandas accepts
MISSING = frozenset({
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
})  # fmt: skip
"""What stands for no value in a .csv, as pandas reads it."""


class Exported:
    """A network with the description of its inputs and outputs.

    Args:
        path: path of the network, whose description has the same name with .json appended.
    """

    def __init__(self, path: str | Path) -> None:
        self.told: dict[str, Any] = json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
        self.network = _onnx(path) if str(path).endswith(".onnx") else _torch(path)

    def predict(self, rows: Any) -> dict[str, Any]:
        """Return the predictions of n rows by column, as ``fcco predict`` writes them.

        Args:
            rows: rows of a table, each a mapping from column to cell; or, if the network was not trained on a table,
                its inputs (n, ...).
        """
        encoding, kind, names = self.told["encoding"], self.told["kind"], self.told["names"]
        x = np.asarray(rows, dtype=np.float32) if encoding is None else features(encoding, list(rows))
        if not len(x):
            raise ValueError("There are no rows to predict.")
        scores = np.asarray(self.network(x), dtype=np.float64).reshape(len(x), -1)
        if nonfinite := np.flatnonzero(~np.isfinite(scores).all(1)).tolist():
            raise ValueError(
                f"Rows {nonfinite[:9]} have no finite score: a number there is too far from those of training."
            )
        several = scores.shape[1] > 1
        names = names or list(range(scores.shape[1] if several or kind != "classes" else 2))
        ends = [f"_{name}" for name in names] if several else [""]
        table = _columns("score", ends, scores)
        if kind == "values":
            return table
        rule = self.told["decisions"]
        if kind == "labels":
            probability = _sigmoid(scores) if rule["proper"] else None
            decided = _columns("decision", ends, 1 * (scores > 0))
        else:
            probability = probabilities(rule, scores)
            decided = {"decision": [names[k] for k in decisions(rule, scores)]}
        return table | ({} if probability is None else _columns("probability", ends, probability)) | decided


def features(encoding: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> Any:
    """Return the features of n rows of a table, (n, d) float32."""
    parts, names = [], [column["name"] for column in encoding["columns"]]
    for number, row in enumerate(rows):
        if missing := [name for name in names if name not in row]:
            raise ValueError(f"Row {number} lacks the columns {missing}. Give all of {names}; None is a missing cell.")
    for column in encoding["columns"]:
        cells = [row[column["name"]] for row in rows]
        if "categories" in column:
            parts.append(_hot(cells, column, encoding))
            continue
        values = np.array([_number(cell, column["name"], encoding) for cell in cells])
        values = np.where(np.isfinite(values), values, column["median"])[:, None]
        if "edges" in column:
            parts.append(np.eye(len(column["edges"]) + 1)[np.searchsorted(column["edges"], values[:, 0])])
            continue
        parts.append((values - column["mean"]) / (column["std"] or np.inf))
        ends = np.array(column["ends"])
        if len(ends):
            parts.append(np.clip((values - ends[:-1]) / np.diff(ends), 0, 1))
        for period in column["periods"]:
            parts += [np.sin(2 * np.pi * values / period), np.cos(2 * np.pi * values / period)]
    with np.errstate(over="ignore"):  # then the scores are not finite
        return np.concatenate(parts, axis=1, dtype=np.float32)


def probabilities(rule: Mapping[str, Any], scores: Any) -> Any:
    """Return the probabilities (n, k) of scores (n, k); None if they are not log-odds."""
    costs, calibration = np.log(rule["costs"] or np.ones(max(2, scores.shape[1]))), rule["calibration"]
    if scores.shape[1] > 1:
        return _softmax(scores - costs)
    if calibration is None:
        return _sigmoid(scores - (costs[1] - costs[0])) if rule["proper"] else None
    if "slope" in calibration:
        return _sigmoid(calibration["slope"] * scores + calibration["intercept"])
    return np.interp(scores, calibration["scores"], calibration["probabilities"])


def decisions(rule: Mapping[str, Any], scores: Any) -> Any:
    """Return the numbers (n,) of the decided classes for scores (n, k)."""
    if scores.shape[1] > 1:
        return scores.argmax(1)
    share, values = rule["asked"].get("share"), scores[:, 0]
    positive = values > rule["division"]
    if share is not None:  # share of these rows; none of the equal scores at the threshold
        positive = len(values) - np.searchsorted(np.sort(values), values) <= share * len(values) * (1 + 1e-12)
    return 1 * positive


def _hot(cells: list[Any], column: Mapping[str, Any], encoding: Mapping[str, Any]) -> Any:
    """0/1 features (n, k) of a categorical column; all are 0 for an unknown category."""
    places = {category: place for place, category in enumerate(column["categories"])}
    hot = np.zeros((len(cells), len(places) + 1))
    for row, cell in enumerate(cells):
        name = _category(cell, as_written=column["name"] in encoding["texts"])
        if name not in places and _is_missing(cell):
            name = _missing("(missing)", column["name"], encoding)
        hot[row, places.get(name, -1)] = 1
    return hot[:, :-1]


def _category(cell: Any, *, as_written: bool) -> str:
    """The category of a cell; if categories are numbers, "1.0" is 1."""
    cell = cell.strip() if isinstance(cell, str) else cell
    if isinstance(cell, str) and not as_written and "_" not in cell:  # int() would read "1_1" as 11
        if cell.capitalize() in ("True", "False"):
            return cell.capitalize()
        for kind in (int, float):  # int first: floats are inexact beyond 2^53
            with suppress(ValueError):
                cell = kind(cell)
                break
    is_integer = isinstance(cell, float | np.floating) and cell.is_integer()
    return str(int(cell)) if is_integer else str(cell)


def _number(cell: Any, name: str, encoding: Mapping[str, Any]) -> float:
    """A cell as a number; a date in days since 1970."""
    if _is_missing(cell):
        return float(_missing(np.nan, name, encoding))
    if name not in encoding["dates"]:  # in which 20260131 is a date
        with suppress(ValueError, TypeError):
            cell = cell if "_" in str(cell) else float(cell)
        if isinstance(cell, float):
            return cell if np.isfinite(cell) else float(_missing(np.nan, name, encoding))
    with suppress(ValueError):
        date = datetime.fromisoformat(_ONE_DIGIT.sub(r"0\g<0>", str(cell).strip().replace("/", "-")))
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() / 86400
    if name in (*encoding["numeric"], *encoding["dates"]):
        return float(_missing(np.nan, name, encoding))
    raise ValueError(f"{cell!r} in the column {name!r} is no number.")


def _is_missing(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip() in MISSING)  # noqa: PLR0124 - NaN


def _missing(instead: Any, name: str, encoding: Mapping[str, Any]) -> Any:
    if encoding["missing"] == "error":
        raise ValueError(f"The column {name!r} has a cell without a value, of which there were none in training.")
    return instead


def _columns(name: str, ends: list[str], values: Any) -> dict[str, Any]:
    return {f"{name}{end}": column for end, column in zip(ends, values.T, strict=True)}


def _sigmoid(log_odds: Any) -> Any:
    return 1 / (1 + np.exp(-log_odds))


def _softmax(logits: Any) -> Any:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def _torch(path: str | Path) -> Callable[[Any], Any]:
    import torch  # noqa: PLC0415 - one of the two is enough

    network = torch.export.load(path).module()
    return lambda x: network(torch.from_numpy(x)).detach().numpy()


def _onnx(path: str | Path) -> Callable[[Any], Any]:
    import onnxruntime  # noqa: PLC0415

    session = onnxruntime.InferenceSession(path)
    (argument,) = session.get_inputs()
    return lambda x: session.run(None, {argument.name: x})[0]
