"""The report of a finished run as tables for the terminal and as a JSON file for programs.

A *report* has the metrics of each split, ``seconds`` (wall-clock time of the run) and ``config``::

    {"train": {"auc": 0.89, "worst_violation": -0.001, "roc_gap": 0.28, "vacuous": True},
     "test": {"auc": 0.88, "roc_gap": 0.27}, "seconds": 93.4, "config": {"seed": 0}}

Every key is optional.  ``unconstrained`` has the metrics by split of a model without constraints, which become further
columns.  A split may also have lists of records, such as ``"groups": [{"name": "a", "size": 10}]``.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from fcco_lightning.errors import DataError, printable, printable_lines
from fcco_lightning.evaluation import direction, shown_split
from fcco_lightning.evaluation.base import Pictures
from fcco_lightning.evaluation.pictures import plot_calibration, plot_importances
from fcco_lightning.state.new_file import new_file

REPORT, METRICS = "report.json", "metrics.csv"
"""Names of files in a run's folder: its report, and the log of all figures."""
PRINTED_ROWS = 10  # largest number of rows of a table in the terminal or a notebook
_MAPPINGS = ("all of it", "config", "kappas", "left_out", "train", "val", "test")
_MOST_DIGITS = 300  # whole numbers with more digits overflow a float
_NOT_SPLITS = ("config", "kappas", "left_out", "selected", "unconstrained")
TITLES = {
    "target_accuracy": "accuracy, target",
    "delta_target": "change of accuracy, target",
    "protected_accuracy": "accuracy, protected tasks",
    "worst_change": "change of accuracy, worst task",
    "satisfied": "tasks not forgotten (accuracy)",
    "worst_loss_change": "change of loss, worst task",
    "satisfied_loss": "tasks not forgotten (loss)",
    "accuracy": "accuracy",
    "worst_group_accuracy": "accuracy, worst group",
    "tail_accuracy": "accuracy, worst groups",
    "group_balanced_accuracy": "accuracy, mean of groups",
    "loss": "loss",
    "worst_group_loss": "loss, worst group",
    "cvar_loss": "loss, CVaR of groups",
    "auc": "AUC",
    "worst_violation": "worst violation, max h",
    "roc_gap": "hard ROC gap",
    "vacuous": "constraints vacuous",
    "decision_cost": "cost of decisions, per sample",
    "constant_decision_cost": "the same of deciding all alike",
    "brier_loss": "Brier score of the probabilities",
    "calibration_error": "calibration error, 10 bins",
}
_SIGNIFICANT_DIGITS = 7  # precision of float32
VACUOUS_WARNING = (
    "Constraints vacuous: nearly all decisions are alike, or the scores rank by chance, lie outside the thresholds' "
    "window or span less than a temperature, so a small violation means nothing. Read the hard rates and gaps."
)
_DRAWN = ("calibration",)  # records that are shown as a picture instead
_INTERVAL = "95% interval"
_ANY_WIDTH = 10_000
_LEAST_WIDTH = 10  # smallest width of a column of words
_METHODS = {"binomial": "exact binomial", "normal": "normal"}


class FittingTable(Table):
    """A table that is split, if it is too wide, into parts with the first column each; ``print`` shows it, too."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in self._parts(console, options):
            yield from Table.__rich_console__(part, console, options)

    def __repr__(self) -> str:
        console = Console()
        with console.capture() as text:
            console.print(self)
        return f"\n{text.get()}"

    def _parts(self, console: Console, options: ConsoleOptions) -> list[Table]:
        parts, unshown = [self._with_columns([])], self.columns[1:]
        for column in unshown:
            wider = self._with_columns([*parts[-1].columns[1:], column])
            if _least_width(wider, console, options) <= options.max_width:
                parts[-1] = wider
            else:
                parts.append(self._with_columns([column]))
        first, *_ = parts = [part for part in parts if len(part.columns) > 1] or parts
        first.title, parts[-1].caption = self.title, self.caption
        return parts

    def _with_columns(self, columns: Sequence[Column]) -> Table:
        """A table of the first column and some of the others."""
        part = Table(*map(copy.copy, [*self.columns[:1], *columns]), caption_justify=self.caption_justify)
        part.rows = self.rows
        return part


def _least_width(table: Table, console: Console, options: ConsoleOptions) -> int:
    return Table.__rich_measure__(table, console, options.update_width(_ANY_WIDTH)).minimum


def splits_of(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The entries of a report that belong to splits, by the splits' names."""
    return {name: part for name, part in report.items() if isinstance(part, Mapping) and name not in _NOT_SPLITS}


def render_summary(report: Mapping[str, Any]) -> Table:
    """Lay out a report, see the module, with one row per metric and one column per split.

    A worst violation above 0 is red, otherwise green; if constraints are vacuous, there is a warning below the table.
    """
    splits, others = {}, report.get("unconstrained", {})
    for name, part in splits_of(report).items():
        splits[name] = _scalars(part)
        if name in others:
            splits[f"{name} unconstrained"] = _scalars(others[name])
    present = dict.fromkeys(key for part in splits.values() for key in part)
    rows: list[dict[str, Any]] = []
    for key in sorted(present, key=lambda key: list(TITLES).index(key) if key in TITLES else len(TITLES)):
        cells = {split: _cell(key, part.get(key)) for split, part in splits.items()}
        of_decisions = " of decisions" if key == "worst_violation" and report.get("decisions") else ""
        rows.append({"metric": f"{TITLES.get(key, key)}{of_decisions}", **cells})
    return render_records("Summary of the run", rows, _caption(report, splits))


def render_records(title: str | None, records: Sequence[Mapping[str, Any]], caption: Text | None = None) -> Table:
    """Lay out records, which have the keys of the first one, with one row per record and one column per key.

    Values are numbers, words, or texts of ``rich``.  If the table is too wide, words are broken into lines, but not
    numbers.
    """
    title_text = None if title is None else Text(printable(title))
    table = FittingTable(title=title_text, caption=caption, caption_justify="left")
    for key, value in records[0].items() if records else ():
        cells = [record[key] if isinstance(record[key], Text) else _cell(key, record[key]) for record in records]
        numbers = isinstance(value, float) or key == _INTERVAL
        header = printable(key)
        width = max(len(text) for text in [header, *map(str, cells)])
        table.add_column(
            Text(header),
            overflow="fold",
            no_wrap=numbers,
            justify="left" if isinstance(value, str) and not numbers else "right",
            min_width=width if numbers else min(width, _LEAST_WIDTH),
        )
    for record in records:
        table.add_row(*(v if isinstance(v, Text) else _cell(key, v) for key, v in record.items()))
    return table


def constraint_records(report: Mapping[str, Any], most: int | None = None) -> tuple[str, list[dict[str, Any]]]:
    """The constraints with the largest multipliers, followed by those with the largest violations.

    A record has h on every split and, for the split "test" (else the last one), h on decisions (if the constraint
    smooths decisions), the confidence interval and the noise floor: the 95% quantile of the |difference| between groups
    without any difference on such a split.

    Args:
        report: splits with ``constraints`` (name to h), and optionally ``decided`` (name to h on decisions),
            ``intervals`` (name to low, high, noise and method) and ``multipliers`` by name; optionally ``clusters``,
            the column whose values are independent for the intervals, and ``kappas`` of all constraints.
        most: largest number of records; None for all.

    Returns:
        The title of the table, and the records; no records without constraints.
    """
    splits = {name: part for name, part in splits_of(report).items() if part.get("constraints")}
    if not splits:
        return "", []
    last = shown_split(splits)
    values, bounds = splits[last]["constraints"], splits[last].get("intervals", {})
    multipliers: Mapping[str, float] = splits[last].get("multipliers", {})
    decided: Mapping[str, float] = splits[last].get("decided", {})
    names = dict.fromkeys(name for part in splits.values() for name in part["constraints"])
    names |= dict.fromkeys(report.get("kappas", {}))  # also constraints without samples in any split
    order = sorted(names, key=lambda name: (-_number(multipliers.get(name), 0.0), -_number(values.get(name))))[:most]
    records = []
    for name in order:
        record: dict[str, Any] = {"constraint": name}
        record |= {f"h {split}": part["constraints"].get(name) for split, part in splits.items()}
        if decided:
            record["h of decisions"] = decided.get(name)
        if bounds:
            record |= {_INTERVAL: _ends(bounds.get(name)), "noise floor": bounds.get(name, {}).get("noise")}
        records.append(record | ({"multiplier": multipliers.get(name)} if multipliers else {}))
    methods = dict.fromkeys(_METHODS[bound["method"]] for bound in bounds.values())
    title = f"Constraints{', largest multipliers first' if multipliers else ''}"
    count = f" ({len(records)} of {len(names):,})" if len(records) < len(names) else ""
    cluster_clause = f", by clusters of {report['clusters']}" if report.get("clusters") else ""
    decision_clause = " for decisions" if decided and report.get("decisions") else ""
    intervals = f"; intervals on {last}{decision_clause}: {' or '.join(methods)}{cluster_clause}" if methods else ""
    return title + count + intervals, records


def table_makers(report: Mapping[str, Any], most: int | None = None) -> dict[str, Callable[[], Table | None]]:
    """Functions that make the tables of a report, by the tables' names; they return None if there is nothing to show.

    The tables are the summary, the records of the split "test" (else the last one), its importances, the constraints,
    and the samples that were lost.

    Args:
        report: see the module.
        most: largest number of rows of a table of records; None for all.
    """
    splits = splits_of(report)
    split = shown_split(splits)
    figures = splits.get(split, {})
    makers: dict[str, Callable[[], Table | None]] = {"the table of the summary": partial(render_summary, report)}
    for name, records in figures.items():
        if isinstance(records, list) and records and (most is None or name not in _DRAWN):
            title = f"{name.replace('_', ' ').capitalize()} ({split})"
            makers[f"the table of {name} ({split})"] = partial(_records, title, records, most)
    if measured := figures.get("importances"):
        makers["the table of importances"] = partial(_importances, measured, split, most)
    makers["the table of constraints"] = partial(_constraints, report, most)
    if lost := report.get("lost"):
        makers["the table of lost samples"] = partial(render_records, "Lost in the data", lost)
    return makers


def report_pictures(report: Mapping[str, Any]) -> Pictures:
    """Functions that draw pictures of probabilities and importances, if a report has them, by the files' names."""
    splits = splits_of(report)
    pictures: Pictures = {}
    calibrated = {name: part for name, part in splits.items() if "calibration_error" in part}  # not survival
    if calibration := {name: part["calibration"] for name, part in calibrated.items() if part.get("calibration")}:
        pictures["calibration.png"] = partial(plot_calibration, calibration)
    split = shown_split(splits)
    if measured := splits.get(split, {}).get("importances"):
        title = f"Importance of columns ({split})"
        label = f"{_change_of(measured['figure'])} if shuffled"
        pictures["importances.png"] = partial(plot_importances, measured["columns"], label=label, title=title)
    return pictures


def _change_of(figure: str) -> str:
    return f"{'decrease' if direction(figure) == 'max' else 'increase'} of {_title(figure)}"


def _title(figure: str) -> str:
    return TITLES.get(figure, figure.replace("_", " "))


def _importances(measured: Mapping[str, Any], split: str, most: int | None) -> Table:
    change = f"{_change_of(measured['figure'])} if shuffled"
    rows = [
        {"column": record["column"], change: _cell("change", record["change"], record["std"])}
        for record in measured["columns"][:most]
    ]
    part = f": the first {len(rows)} of {len(measured['columns']):,}" if len(rows) < len(measured["columns"]) else ""
    caption = (
        f"{_title(measured['figure'])} is {measured['value']:.4f} on {measured['rows']:,} rows. The table shows how "
        "much worse it becomes if the cells of one column are shuffled: mean ± standard deviation of 5 shuffles. "
        "Columns with the same information share their importance, so each may appear unimportant."
    )
    return render_records(f"Importance of columns ({split}){part}", rows, Text(caption, style="dim not italic"))


def _records(title: str, records: Sequence[Mapping[str, Any]], most: int | None) -> Table:
    first = [{key.replace("_", " "): value for key, value in record.items()} for record in records[:most]]
    part = f": the first {len(first)} of {len(records):,}" if len(first) < len(records) else ""
    return render_records(title + part, first)


def _constraints(report: Mapping[str, Any], most: int | None) -> Table | None:
    title, records = constraint_records(report, most)
    return render_records(title, records) if records else None


def print_tables(tables: Iterable[Table], line: str | None = None) -> None:
    """Print tables, and a line in bold below them."""
    console = Console()
    for table in tables:
        console.print(table)
    if line is not None:
        console.print(printable_lines(line), style="bold", highlight=False, markup=False, soft_wrap=True)


def write_report(report: Mapping[str, Any], path: str | Path) -> Path:
    """Write a report as JSON, completely or not at all.

    Tensors and numpy values become numbers or lists, paths become strings.  Numbers that are not finite become null,
    which JSON lacks.  Other floats are rounded to 7 significant digits, except under ``config``, which is exact.

    The folder is created, and an older file is replaced.

    Returns: the path of the file.

    Raises:
        TypeError: if a value cannot be converted to JSON; an older file is then kept.
        CheckpointError: if the file cannot be written; an older file is then kept.
    """
    content = {str(key): _json_value(part, exact=key == "config") for key, part in report.items()}
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    with new_file(Path(path)) as file:
        file.write(text.encode())
    return Path(path)


def as_json(part: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a part of a report to JSON values as :func:`write_report` does.

    Raises:
        TypeError: if a value cannot be converted to JSON.
    """
    content: dict[str, Any] = json.loads(json.dumps(_json_value(part), allow_nan=False))
    return content


def last_line(report: Mapping[str, Any]) -> str:
    """The verdict or headline of a report; empty if it has none."""
    return str(report.get("verdict") or report.get("headline") or "")


def read_report(folder: Path) -> Mapping[str, Any] | None:
    """The report of a finished run; None if its folder has none.

    Raises:
        DataError: if it cannot be read, or an entry does not have the form that :func:`write_report` writes.
    """
    path = folder / REPORT
    if not path.is_file():
        return None
    try:
        report: Any = json.loads(path.read_text(encoding="utf-8"), parse_int=_whole)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no readable report: {error}. Leave its folder out.") from error
    parts = report.items() if isinstance(report, dict) else [("all of it", report)]
    wrong = [(name, part) for name, part in parts if name in _MAPPINGS and not isinstance(part, dict)]
    wrong += [
        (f"{split}.{name}", value)
        for split, part in parts
        if split in _MAPPINGS and isinstance(part, dict)
        for name, value in part.items()
        if name == "worst_violation" and not isinstance(value, int | float | None)
    ]
    if wrong:
        name, value = wrong[0]
        raise DataError(
            f"{path} is no readable report: {printable(name)} is {printable(value, 40)!r}, and must be a "
            f"{'number' if '.' in name else 'mapping'}. Leave its folder out."
        )
    return report  # type: ignore[no-any-return]


def read_metrics(folder: Path) -> pd.DataFrame:
    """The CSV log of a run: a row for each time of logging, a column for each figure; empty if there is no such log.

    Raises:
        DataError: if it cannot be read.
    """
    path = folder / METRICS
    if not path.is_file():
        return pd.DataFrame()
    try:
        return pd.read_csv(path)
    except ValueError as error:  # errors of pandas, too
        raise DataError(f"{path} is no readable log: {error}. Leave its folder out, or remove the file.") from error


def _whole(digits: str) -> float:
    """A whole number, or infinity if it overflows a float."""
    return int(digits) if len(digits) < _MOST_DIGITS else float(digits)


def _ends(interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return "-"
    return f"[{_number(interval['low']):+.4f}, {_number(interval['high'], math.inf):+.4f}]"


def _number(value: float | None, unknown: float = -math.inf) -> float:
    """A number of a report, or ``unknown`` if it is None."""
    return unknown if value is None else value


def _scalars(part: Mapping[str, Any]) -> dict[str, Any]:
    """The scalar metrics, without values of single constraints and groups, which have tables of their own."""
    return {k: v for k, v in part.items() if "/" not in k and not isinstance(v, dict | list | str)}


def _json_value(value: Any, *, exact: bool = False) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_value(item, exact=exact) for key, item in value.items()}
    if hasattr(value, "tolist"):  # values of torch and numpy
        return _json_value(value.tolist(), exact=exact)
    if isinstance(value, float):
        rounded = value if exact else float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
        return rounded if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_json_value(item, exact=exact) for item in value]
    return value


def _cell(key: str, value: Any, error: Any = None) -> Text:
    value, error = _json_value(value), _json_value(error)
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no", style="bold red" if key == "vacuous" and value else "")
    if not isinstance(value, float):
        return Text(printable(value))
    if key == "worst_violation":
        return Text(f"{value:+.4f}", style="red" if value > 0 else "green")
    return Text(f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.1g}")


def _caption(report: Mapping[str, Any], splits: Mapping[str, Mapping[str, Any]]) -> Text:
    seconds = _json_value(report.get("seconds"))
    config = report.get("config")
    settings = {key: value for key, value in config.items() if isinstance(value, str | int | float)} if config else {}
    caption = Text(style="not italic")
    parts = [f"{seconds:.1f} s"] if seconds is not None else []
    caption.append(", ".join(parts + [f"{key}={value}" for key, value in settings.items()]), style="dim")
    if any(part.get("vacuous") for name, part in splits.items() if name in report):  # not those of the baseline
        caption.append(f"\n{VACUOUS_WARNING}", style="bold red")
    return caption
