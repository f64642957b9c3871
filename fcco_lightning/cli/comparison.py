"""``fcco compare``: a table of the settings and figures of finished runs."""

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from fcco_lightning.cli.yaml_files import by_key
from fcco_lightning.errors import ConfigError, DataError, printable
from fcco_lightning.evaluation import is_feasible
from fcco_lightning.evaluation.pictures import plot_comparison
from fcco_lightning.reports.summary_table import METRICS, print_tables, read_metrics, read_report, render_records
from fcco_lightning.state.new_file import new_file

_OBJECTIVE, LARGEST, HOLDS = "objective", "largest h", "holds"
_BESIDE = ("score_min", "score_max", "vacuous", "worst_violation")  # figures that are not compared
_HIDDEN = ("report.", "checkpoint.", "trainer.logger", "trainer.default_root_dir")  # settings of folders

_SAY_NOTHING = ("enabled", "name", "value")  # meaningless without their section

Row = dict[str, Any]


def compare(folders: Sequence[str | Path]) -> list[Row]:
    """Return a row for every run: its name, the settings in which the runs differ, and its figures.

    The name is the run's path if two runs have the same name.
    ``objective`` is the last estimate of the objective in training.  Values of different objectives are not comparable:
    if the runs have several objectives, each has a column ``objective NAME``.
    ``largest h`` is the largest constraint value on the training split, ``holds`` whether the constraints hold there
    ("yes", "no", or "vacuous"), and ``test_NAME`` the figures of the test split.  Absent values are None.

    Args:
        folders: folders of finished runs, each with a ``report.json``; other folders are skipped.

    Raises:
        DataError: if no folder has a report.
    """
    runs = {Path(folder): read_report(Path(folder)) for folder in folders}
    reports = {folder: report for folder, report in runs.items() if report is not None}
    if not reports:
        raise DataError(
            f"none of {[str(folder) for folder in folders]} has a report.json. Give the folders of finished runs, "
            "for example runs/*."
        )
    settings = {folder: dict(_settings(report)) for folder, report in reports.items()}
    differing = _differing(list(settings.values()))
    reached = {folder: figures_of_run(folder, report) for folder, report in reports.items()}
    short = _short_names(differing, {"run", *(name for figures in reached.values() for name in figures)})
    columns = _objective_columns(settings)
    rows = []
    names = Counter(folder.name for folder in reports)
    for folder, figures in reached.items():
        differences = {short[key]: settings[folder].get(key) for key in differing}
        name = folder.name if names[folder.name] == 1 else str(folder)
        values = dict.fromkeys(columns.values()) | {columns[folder]: figures.pop(_OBJECTIVE)}
        rows.append({"run": name, **differences, **values, **figures})
    return alike(rows)


def alike(rows: Sequence[Row]) -> list[Row]:
    """The rows with the keys of all of them, and None for absent values."""
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def print_comparison(folders: Sequence[str], out: str | None, picture: str) -> None:
    """Print the table of :func:`compare`, draw it, and write it as CSV if ``out`` is given."""
    for name, path, kind in (("out", out, ".csv"), ("picture", picture, ".png")):
        if path is not None and Path(path).suffix != kind:
            raise ConfigError(
                f"{name}={path!r}: the file is written in the format {kind}. Give the name of a {kind} file."
            )
    rows = compare(folders)
    print_rows(rows)
    if out is not None:
        write_rows(rows, Path(out))
    names = list(rows[0])
    # columns before the objective are settings, and one may be called test_fraction
    first = next(k for k, name in enumerate(names) if name.startswith(_OBJECTIVE))
    figure = next((name for name in names[first:] if name.startswith("test_")), None)
    file = None if figure is None else plot_comparison(rows, figure, LARGEST, Path(picture))
    Console().print(f"Picture: {file}" if file else "No picture: the runs have no figure of the test split in common.")


def print_rows(rows: Sequence[Row], title: str | None = None) -> None:
    """Print records with the same keys as a table: one row per record or, if that is too wide, one row per key."""
    texts: list[dict[str, str | Text]] = [{name: Text(printable(_text(v))) for name, v in row.items()} for row in rows]
    cells = [[str(cell) for cell in column] for column in zip(rows[0], *map(dict.values, texts), strict=True)]
    width = 1 + sum(3 + max(map(len, column)) for column in cells)
    if width > Console().width and len(rows) < len(cells):
        first, *others = rows[0]
        texts = [{"": name, **{str(row[first]): row[name] for row in texts}} for name in others]
    print_tables([render_records(title, texts)])


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write records with the same keys as CSV."""
    with new_file(path) as file:
        pd.DataFrame(rows, dtype=object).to_csv(file, index=False)


def figures_of_run(folder: Path, report: Mapping[str, Any]) -> Row:
    """The results of a run: last estimate of the objective, largest h in training, figures of the test split.

    Args:
        folder: folder of the run, with the CSV log.
        report: report of the run.
    """
    figures: Row = {_OBJECTIVE: _last_objective(folder)}
    if "worst_violation" in report.get("train", {}):
        train = report["train"]
        worst = figures[LARGEST] = train["worst_violation"]
        holds = "yes" if is_feasible(math.nan if worst is None else worst) else "no"  # None: NaN in JSON
        figures[HOLDS] = "vacuous" if train.get("vacuous") else holds
    test = report.get("test", {})
    numbers = {k: v for k, v in test.items() if isinstance(v, int | float) and k not in _BESIDE}
    return figures | {f"test_{name}": value for name, value in numbers.items()}


def _last_objective(folder: Path) -> float | None:
    logged = read_metrics(folder).get("train_objective", pd.Series(dtype=float)).dropna()
    if not pd.api.types.is_numeric_dtype(logged):
        raise DataError(f"{folder / METRICS} is no readable log: train_objective contains text. Leave its folder out.")
    return float(logged.iloc[-1]) if len(logged) else None


def _objective_columns(settings: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    """The name of the column for every run's objective; runs with equal objectives and arguments share it."""
    key = f"model.{_OBJECTIVE}"
    own = {f: {k: v for k, v in config.items() if k.startswith(key)} for f, config in settings.items()}
    if not _differing(list(own.values())):
        return dict.fromkeys(own, _OBJECTIVE)
    columns = {}
    for folder, config in own.items():
        arguments = _differing([other for other in own.values() if other.get(key) == config.get(key)])
        shown = [f"{name.rpartition('.')[2]}={config.get(name)}" for name in arguments]
        columns[folder] = " ".join([_OBJECTIVE, str(config.get(key)), *shown])
    return columns


def _settings(report: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a run by dotted key, without those of folders."""
    for key, value in by_key(report.get("config", {})):
        if not key.startswith(_HIDDEN):
            yield key, json.dumps(value) if isinstance(value, list) else value


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for config in settings for key in config)
    return [key for key in keys if len({repr(config.get(key)) for config in settings}) > 1]


def _short_names(keys: Sequence[str], used_names: Collection[str]) -> dict[str, str]:
    """The last part of every dotted key, or the whole key if that part is used or ambiguous."""
    names = {key: key.rpartition(".")[2] for key in keys}
    names |= {key: ".".join(key.split(".")[-2:]) for key, name in names.items() if name in _SAY_NOTHING}
    counts = Counter(names.values())
    return {key: name if counts[name] == 1 and name not in used_names else key for key, name in names.items()}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return "" if value is None else str(value)
