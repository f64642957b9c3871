"""Runs of ``fcco fit`` in processes of their own: what the benchmarks of whole trainings share."""

import argparse
import contextlib
import csv
import functools
import itertools
import json
import logging
import math
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[2] / "configs"
CHEAP = {"baseline.enabled": "false", "report.pictures": "false", "trainer.check_val_every_n_epoch": 1000}
Job = dict[str, Any]  # label, config, seed, overrides, curves (logged metrics to keep); once it has run its report too


def arguments(description: str | None, jobs: int | None = 1) -> argparse.ArgumentParser:
    """A parser that knows what benchmarks of whole trainings are asked for; None for runs that go one by one."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    if jobs:
        parser.add_argument("--jobs", type=int, default=jobs, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    return parser


def quiet_trainer(**settings: Any) -> Any:
    """A Trainer on the CPU, one thread, that prints, logs and keeps nothing."""
    import torch
    from lightning.pytorch import Trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return Trainer(accelerator="cpu", **quiet, **settings)


def step_times(module: Any, data: Any, steps: int, clock: Any, callbacks: Any = (), **place: Any) -> list[float]:
    """Seconds of every step of ``Trainer.fit`` but the first, its loader included."""
    from lightning.pytorch.callbacks import LambdaCallback

    ends: list[float] = []
    watch = LambdaCallback(on_train_batch_end=lambda *_: ends.append(clock()))
    limits = {"max_steps": steps, "max_epochs": -1, "limit_val_batches": 0}
    quiet_trainer(callbacks=[watch, *callbacks], **limits, **place).fit(module, data)
    return [after - before for before, after in itertools.pairwise(ends)]


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


def run_all(
    jobs: list[Job],
    workers: int,
    shown: Sequence[str],
    run: Callable[[Job], Job] = train,
    kept: Path | None = None,
) -> list[Job]:
    """All jobs, ``workers`` at a time, with a line each as they end: its figures ``shown`` ("split.name").

    A job is carried out by ``run``: ``fcco fit``, or a loop where a run is over before that has started.  With a file
    ``kept`` every result is a line of it at once, and jobs whose results are there are not carried out again, even if
    the code has changed since: remove it for that.  Results come in the order of the jobs.
    """
    lines = kept.read_text().splitlines() if kept and kept.exists() else []
    known = {_name(line["job"]): line["done"] for line in map(json.loads, lines)}
    left = [job for job in jobs if _name(job) not in known]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are in {kept}; remove it to run them again", flush=True)
    with ProcessPoolExecutor(workers) as pool:
        for job, done in zip(left, pool.map(run, left), strict=True):
            known[_name(job)] = done
            if kept and "failed" not in done:
                with kept.open("a") as file:
                    file.write(json.dumps({"job": job, "done": done}) + "\n")
            figures = " ".join(f"{name}={value(done, name):.4f}" for name in shown) if "train" in done else "FAILED"
            print(
                f"{done['label']} seed {done['seed']} {done['overrides']}: {figures} {done.get('seconds')}s", flush=True
            )
    return [known[_name(job)] for job in jobs]


def _name(job: Job) -> str:
    return json.dumps(job, sort_keys=True, default=str)


Axes = dict[str, list[Any]]  # hyperparameter -> its values, in order
Search = Generator[list[Job], list[Job], None]  # gives jobs, takes their results
SEEDS = (100, 101, 102)  # of tuning; results have other seeds
LONGEST = 4  # values by which an axis may grow on a side


class Tuning:
    """A grid that grows until the best run does not lie on its edge, as a generator of jobs.

    All points of the grid run with the first seed.  While a neighbour of the best one is missing it is run; at the end
    of an axis, that axis grows by a value (in the ratio of the last two; not beyond ``bounds``).  The three best points
    then run with the other seeds, and the best mean wins; if neighbours of that one are missing, the search goes on.

    Args:
        axes: values of every hyperparameter, positive numbers in increasing order.
        make: (overrides, seed) -> job.
        score: of a finished run, to be maximised; a run that failed has minus infinity.
        bounds: largest value of a hyperparameter, where there is one.
        seeds: of the runs; None for three.
        longest: values by which an axis may grow on a side; None for four.
    """

    def __init__(
        self,
        axes: Axes,
        make: Callable[[dict[str, Any], int], Job],
        score: Callable[[Job], float],
        bounds: dict[str, float] | None = None,
        seeds: Sequence[int] | None = None,
        longest: int | None = None,
    ) -> None:
        self.axes = {name: list(values) for name, values in axes.items()}
        self.make, self.score, self.bounds, self.seeds = make, score, bounds or {}, seeds or SEEDS
        self.room = {(name, end): LONGEST if longest is None else longest for name in axes for end in (0, -1)}
        self.runs: dict[tuple[Any, ...], list[Job]] = {}

    def search(self) -> Search:
        """Give jobs until the pick is inside."""
        yield from self._run(list(itertools.product(*self.axes.values())), self.seeds[:1])
        while True:
            while new := self._beyond(self._best(1)[0]):
                yield from self._run(new, self.seeds[:1])
            yield from self._run(self._best(3), self.seeds[1:])
            new = self._beyond(self._pick())
            if not new:
                return
            yield from self._run(new, self.seeds[:1])

    @property
    def picked(self) -> dict[str, Any]:
        """The best hyperparameters."""
        return dict(zip(self.axes, self._pick(), strict=True))

    @property
    def summary(self) -> dict[str, Any]:
        """The pick, what it reached, the number of runs and the axes as they were in the end."""
        point = self._pick()
        ends = [n for n, v in zip(self.axes, point, strict=True) if v in (self.axes[n][0], self.axes[n][-1])]
        edges = [n for n in ends if len(self.axes[n]) > 1 and self.picked[n] != self.bounds.get(n)]
        return {
            "picked": self.picked,
            "scores": [round(self._value(run), 4) for run in self.runs[point]],
            "runs": sum(map(len, self.runs.values())),
            "axes": self.axes,
            "on an edge that could not be moved": edges,
        }

    def _run(self, points: Iterable[tuple[Any, ...]], seeds: Sequence[int]) -> Search:
        known = {(point, run["seed"]) for point, runs in self.runs.items() for run in runs}
        wanted = [pair for pair in itertools.product(points, seeds) if pair not in known]
        results = yield [self.make(dict(zip(self.axes, point, strict=True)), seed) for point, seed in wanted]
        for (point, _), result in zip(wanted, results, strict=True):
            self.runs.setdefault(point, []).append(result)

    def _best(self, number: int) -> list[tuple[Any, ...]]:
        return sorted(self.runs, key=lambda p: self._value(self.runs[p][0]), reverse=True)[:number]

    def _pick(self) -> tuple[Any, ...]:
        most = max(len(runs) for runs in self.runs.values())
        complete = [point for point, runs in self.runs.items() if len(runs) == most]
        return max(complete, key=lambda p: statistics.fmean(self._value(r) for r in self.runs[p]))

    def _value(self, run: Job) -> float:
        return -math.inf if "failed" in run else self.score(run)

    def _beyond(self, point: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The point's neighbours that have not run; an axis grows if the point lies at its end."""
        neighbours = []
        for name, v in zip(self.axes, point, strict=True):
            values = self.axes[name]
            for end in (0, -1) if len(values) > 1 else ():
                if v == values[end]:
                    self._grow(name, end)
                i = values.index(v) + (-1 if end == 0 else 1)
                if 0 <= i < len(values):
                    neighbours.append(
                        tuple(values[i] if n == name else w for n, w in zip(self.axes, point, strict=True))
                    )
        return [p for p in neighbours if p not in self.runs]

    def _grow(self, name: str, end: int) -> None:
        values, most = self.axes[name], self.bounds.get(name, math.inf)
        if not self.room[name, end] or (end == -1 and values[-1] >= most):
            return
        ratio = values[0] / values[1] if end == 0 else values[-1] / values[-2]
        values.insert(0 if end == 0 else len(values), min(float(f"{values[end] * ratio:.3g}"), most))
        self.room[name, end] -= 1


def run_searches(
    grids: dict[str, Axes],
    make: Callable[[str, dict[str, Any], int], Job],
    score: Callable[[Job], float],
    workers: int,
    shown: Sequence[str],
    run: Callable[[Job], Job] = train,
    kept: Path | None = None,
    **limits: Any,
) -> dict[str, dict[str, Any]]:
    """The searches of all labels side by side, so that no worker waits for the end of a small grid.

    ``make`` is told the label, too; ``limits`` are further arguments of :class:`Tuning`, ``kept`` is as in
    :func:`run_all`.  The summaries are also printed.
    """
    tunings = {label: Tuning(axes, functools.partial(make, label), score, **limits) for label, axes in grids.items()}
    open_searches = {label: tuning.search() for label, tuning in tunings.items()}
    wanted = {label: next(search) for label, search in open_searches.items()}
    while wanted:
        results = iter(run_all([job for jobs in wanted.values() for job in jobs], workers, shown, run, kept))
        following = {}
        for label, jobs in wanted.items():
            with contextlib.suppress(StopIteration):
                following[label] = open_searches[label].send([next(results) for _ in jobs])
        wanted = following
    picks = {label: tuning.summary for label, tuning in tunings.items()}
    for label, pick in picks.items():
        print(f"picked {label}: {pick}", flush=True)
    return picks


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
        cells = [spread([scale * value(r, column) for r in runs]) for column in columns]
        cells += [make(runs) for make in extra.values()]
        lines.append(f"| {label} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean +- standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} +- {deviation:.{digits}f}"


def band(axes: Any, x: Sequence[float], curves: Sequence[Sequence[float]], label: str) -> None:
    """Draw the mean of the curves of several seeds, and their range."""
    columns = list(zip(*curves, strict=True))
    (line,) = axes.plot(x, [statistics.fmean(column) for column in columns], label=label)
    low, high = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(x, low, high, alpha=0.15, color=line.get_color())


def median(column: str, runs: list[Job]) -> str:
    """The median of a figure."""
    return f"{statistics.median(value(run, column) for run in runs):.4f}"


def seconds(runs: list[Job]) -> str:
    """Median time of a run."""
    return f"{statistics.median(r['seconds'] for r in runs):.1f}"


def rates(runs: list[Job]) -> str:
    """The learning rates and others that the search has picked."""
    picked = {name: rate for name, rate in runs[0]["overrides"].items() if name in ("lr", "dual", "model.optimizer.lr")}
    return ", ".join(f"{name.rpartition('.')[2]} {rate:g}" for name, rate in picked.items()) or "default"
