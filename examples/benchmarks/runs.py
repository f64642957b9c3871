"""Runs of ``fcco fit`` in processes of their own: what the benchmarks of whole trainings share."""

import csv
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[2] / "configs"
Job = dict[str, Any]  # label, config, seed, overrides, curves (logged metrics to keep); once it has run its report too


def train(job: Job) -> Job:
    """One run through the command line; the job with the report's figures and the curves."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from fcco_lightning.cli import run

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["fit", "--config", str(CONFIGS / f"{job['config']}.yaml"), "--seed_everything", str(job["seed"])]
        arguments += ["--data.seed", str(job["seed"]), "--report.folder", folder, "--report.table", "false"]
        arguments += ["--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", folder]
        arguments += ["--checkpoint.save_last", "false"]
        if job.get("curves"):
            arguments += ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", folder]
        else:
            arguments += ["--trainer.logger", "false"]
        arguments += [f"--{key}={value}" for key, value in expand(job["overrides"]).items()]
        with Path(os.devnull).open("w") as silent:
            stderr, sys.stderr = sys.stderr, sys.stderr if job.get("verbose") else silent
            status = run(arguments)
            sys.stderr = stderr
        if status:
            return {**job, "failed": status}
        report = json.loads((Path(folder) / "report.json").read_text())
        curves = {name: read_curve(Path(folder), name) for name in job.get("curves", ())}
    report.pop("config")
    for split in ("train", "val", "test"):
        for table in ("constraints", "groups"):
            report.get(split, {}).pop(table, None)
    return {**job, **report, **({"curves": curves} if curves else {})}


def read_curve(folder: Path, name: str) -> list[float]:
    """A metric after every epoch, from the CSV log."""
    with next(folder.rglob("metrics.csv")).open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def expand(overrides: dict[str, Any]) -> dict[str, Any]:
    """``a.b+c: (1, 2)`` as ``a.b: 1, a.c: 2``."""
    flat: dict[str, Any] = {}
    for key, value in overrides.items():
        stem, _, names = key.rpartition(".")
        if "+" in names:
            flat.update({f"{stem}.{n}": v for n, v in zip(names.split("+"), value, strict=True)})
        else:
            flat[key] = value
    return flat


def run_all(jobs: list[Job], workers: int, shown: Sequence[str]) -> list[Job]:
    """All jobs, ``workers`` at a time, with a line each as they end: its figures ``shown`` ("split.name")."""
    results = []
    with ProcessPoolExecutor(workers) as pool:
        for done in pool.map(train, jobs):
            results.append(done)
            figures = " ".join(f"{name}={value(done, name):.4f}" for name in shown) if "train" in done else "FAILED"
            print(
                f"{done['label']} seed {done['seed']} {done['overrides']}: {figures} {done.get('seconds')}s", flush=True
            )
    return results


def value(job: Job, column: str) -> float:
    """A figure of a finished run, "split.name"."""
    split, name = column.split(".")
    return float(job[split][name])


def table(
    results: list[Job], columns: Sequence[str], extra: dict[str, Callable[[list[Job]], str]], scale: float = 1.0
) -> str:
    """Markdown: mean +- standard deviation over seeds per label, and ``extra`` columns made of a label's runs."""
    lines = ["| run | seeds | " + " | ".join([*columns, *extra]) + " |", "|---" * (len(columns) + len(extra) + 2) + "|"]
    for label in dict.fromkeys(r["label"] for r in results):
        runs = [r for r in results if r["label"] == label and "train" in r]
        cells = []
        for column in columns:
            values = [scale * value(r, column) for r in runs]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.fmean(values):.4f} +- {spread:.4f}")
        cells += [make(runs) for make in extra.values()]
        lines.append(f"| {label} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def seconds(runs: list[Job]) -> str:
    """Median time of a run."""
    return f"{statistics.median(r['seconds'] for r in runs):.0f}"
