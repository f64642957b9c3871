"""``fcco front``: the front of figures against violation, whose points are trained with warm starts.

Every point is a run of ``fcco fit`` in its own process and folder, which starts from the previous point.
"""

import copy
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from fcco_lightning.checks import non_negative, positive
from fcco_lightning.cli.comparison import HOLDS, LARGEST, Row, alike, figures_of_run, print_rows, write_rows
from fcco_lightning.errors import ConfigError, DataError, FCCOError
from fcco_lightning.evaluation.pictures import plot_front
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.summary_table import METRICS, read_report


def print_front(options: Sequence[str], kappas: str | None, factors: str, out: str) -> None:
    """Train the points that are not finished, and print, write and draw the front.

    Args:
        options: options of ``fcco fit`` for all points.
        kappas: the kappa of all constraints for every point, separated by commas; None to multiply the configuration's.
        factors: the factor on the configuration's kappas for every point, separated by commas.
        out: folder for the points, ``front.csv``, ``front.json`` and ``front.png``.

    Raises:
        ConfigError: see :func:`points`, and if the folder has points of another front.
    """
    folder = Path(out)
    given = _numbers("kappas", kappas) if kappas else None, _numbers("factors", factors)
    planned = points(yaml.safe_load(fit_apart([*options, "--print_config"])), *given)
    before: Path | None = None
    for label, point in planned.items():
        before = train_point(folder / label, point, before)
    rows = front([folder / label for label in planned])
    hidden = "train " if any(name.startswith("test ") for name in rows[0]) else "test "
    print_rows([{name: value for name, value in row.items() if not name.startswith(hidden)} for row in rows])
    write_rows(rows, folder / "front.csv")
    (folder / "front.json").write_text(json.dumps(rows, indent=2) + "\n")
    test_columns = [name.removeprefix("test ") for name in rows[0] if name.startswith("test ")]
    figure = next((name for name in test_columns if name != "violation"), None)
    left_out = LeftOut()
    draw = None if figure is None else partial(plot_front, rows, figure, folder / "front.png")
    file = left_out.make("front.png", draw, None) if draw else None
    if not left_out:
        Console().print(f"Picture: {file}" if file else "No picture: the points have no figure of the test split.")


def points(config: Mapping[str, Any], kappas: Sequence[float] | None, factors: Sequence[float]) -> dict[str, Any]:
    """The configurations of all points by their labels, from the loosest to the tightest.

    Args:
        config: configuration of ``fcco fit``, with all defaults.
        kappas: the kappa of all constraints for every point; None to multiply their own.
        factors: the factor on the kappas for every point.

    Raises:
        ConfigError: if no constraint has a kappa, if kappas differ or are 0 where this is not allowed, if a number is
            out of range, or if no checkpoints are saved for warm starts.
    """
    present = [c["init_args"]["kappa"] for c in config["model"].get("constraints") or [] if "kappa" in c["init_args"]]
    if not present:
        raise ConfigError("a front varies kappa, and no constraint of the configuration has one. Add a constraint.")
    if config["trainer"].get("enable_checkpointing") is False:
        raise ConfigError(
            "trainer.enable_checkpointing=False: each point starts from the checkpoint before it. Leave it out."
        )
    if kappas is not None and len(set(present)) > 1:
        raise ConfigError(
            f"--kappas sets one kappa for all constraints, but those of the configuration differ: {present}. Use "
            "--factors, which multiplies each of them."
        )
    if kappas is None and 0 in present:
        raise ConfigError(
            f"--factors multiplies kappa, and a constraint has kappa 0 ({present}). Give --kappas, or another kappa."
        )
    if kappas is None:
        factors = sorted({positive("factors", f) for f in factors}, reverse=True)
        return {f"factor_{f:.12g}": _with_kappa(config, [f * kappa for kappa in present]) for f in factors}
    kappas = sorted({non_negative("kappas", kappa) for kappa in kappas}, reverse=True)
    return {f"kappa_{kappa:.12g}": _with_kappa(config, [kappa] * len(present)) for kappa in kappas}


def _with_kappa(config: Mapping[str, Any], kappas: Sequence[float]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    constraint_arguments = [c["init_args"] for c in changed["model"]["constraints"] if "kappa" in c["init_args"]]
    for arguments, kappa in zip(constraint_arguments, kappas, strict=True):
        arguments["kappa"] = kappa
    return changed


def train_point(folder: Path, config: Mapping[str, Any], before: Path | None) -> Path:
    """Train a point unless it is finished; resume it if it was interrupted.

    Args:
        folder: folder of the point.
        config: configuration with its kappas.
        before: checkpoint of the previous point, whose weights and multipliers are the start; None for none.

    Returns: the checkpoint of the point.

    Raises:
        ConfigError: if the folder has a point with other options.
        FCCOError: if training has failed.
    """
    point = copy.deepcopy(dict(config))
    checkpoints = folder / "checkpoints"
    point["trainer"]["default_root_dir"] = str(folder)
    point["checkpoint"] = {**(point.get("checkpoint") or {}), "dirpath": str(checkpoints), "save_last": True}
    point["report"] = {**(point.get("report") or {}), "enabled": True, "folder": str(folder)}
    if before is not None:  # the baseline would start with these weights, too
        point["warm_start"], point["baseline"] = {"ckpt": str(before)}, {"enabled": False}
    path, text = folder / "point.yaml", yaml.safe_dump(point, sort_keys=False)
    finished = read_report(folder) is not None
    trained = finished or checkpoints.is_dir()
    if trained and path.is_file() and path.read_text() != text:
        raise ConfigError(
            f"{path} holds other options than this front. Choose another folder with --out, or remove this one."
        )
    if not finished:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        fit_apart(["--config", str(path), "--ckpt_path", "auto"])
        if read_report(folder) is None:
            raise FCCOError(f"the point {folder} is not finished. Repeat the same command to continue it.")
    return checkpoints / "last.ckpt"


def front(folders: Sequence[Path]) -> list[Row]:
    """Return a row for every point: last estimate of the objective, largest h in training at its own kappas, figures.

    ``SPLIT violation`` is comparable between points: it is the largest h at the kappas of the tightest point.

    Args:
        folders: folders of finished points, from the loosest to the tightest.

    Raises:
        DataError: if a report is missing, or has other constraints.
    """
    reports = {folder: read_report(folder) for folder in folders}
    missing = [str(folder) for folder, report in reports.items() if not (report and report.get("kappas"))]
    if missing:
        raise DataError(f"{missing[0]} has no report of a run with constraints. Train this point first.")
    finished = {folder: report for folder, report in reports.items() if report is not None}
    kappas = [report["kappas"] for report in finished.values()]
    if any(first.keys() != other.keys() for first, other in pairwise(kappas)):
        raise DataError(
            f"the points of {folders[0].parent} have different constraints. Choose another folder with --out."
        )
    tightest = kappas[-1]
    return alike([_row(folder, report, tightest) for folder, report in finished.items()])


def _row(folder: Path, report: Mapping[str, Any], tightest: Mapping[str, float]) -> Row:
    logs = sorted(folder.rglob(METRICS), key=lambda path: path.stat().st_mtime)
    reached = figures_of_run(logs[-1].parent if logs else folder, report)
    row: Row = {"point": folder.name, "objective": reached["objective"]}
    row[LARGEST] = reached.get(LARGEST)
    row[HOLDS] = reached.get(HOLDS)
    for split in ("train", "val", "test"):
        values = report.get(split, {})
        constraints = values.get("constraints", {}) | (values.get("decided", {}) if report.get("decisions") else {})
        shifts = {name: report["kappas"][name] - tightest[name] for name in constraints}
        if constraints:
            complete = None not in constraints.values()  # None: NaN in JSON
            row[f"{split} violation"] = max(h + shifts[name] for name, h in constraints.items()) if complete else None
        figures = {k: v for k, v in report.get(split, {}).items() if f"test_{k}" in reached}
        row |= {f"{split} {name}": figure for name, figure in figures.items()}
    return row


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--{name} {text}: numbers separated by commas are needed, such as 0.1,0.05.") from error


def fit_apart(options: Sequence[str]) -> str:
    """Run ``fcco fit`` in its own process, and wait until it has saved if this process is interrupted.

    Returns: its output, if the options contain ``--print_config``.

    Raises:
        ConfigError: if it has refused an option.
        FCCOError: if it has failed for another reason.
    """
    prints_config = "--print_config" in options
    command = [sys.executable, "-m", "fcco_lightning", "fit", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE if prints_config else None, text=True) as process:  # noqa: S603
        try:
            printed, _ = process.communicate()
        except KeyboardInterrupt:
            process.wait()
            raise
    if process.returncode:
        raise (ConfigError if process.returncode == 2 else FCCOError)(
            f"fcco fit ended with status {process.returncode}; its message is above. Correct the cause and repeat "
            "this command, which continues from there."
        )
    return printed or ""
