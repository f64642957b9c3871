"""Fairness constraints with this project's defaults, beside other libraries at their best: a table and a verdict.

The other libraries (cooper-optim, humancompatible-train, fairret, fairlearn) are no dependencies; those that are not
installed are left out by name::

    uv pip install cooper-optim fairret fairlearn humancompatible-train
    uv run python examples/benchmarks/peers.py --tune       # the search on the embedded problem; picks are kept
    uv run python examples/benchmarks/peers.py              # then the table
    uv run python examples/benchmarks/peers.py --adult adult_train.csv adult_test.csv --compas compas.csv \
        --german german.csv --crime crime.csv --tune        # then without --tune

A cell is a table with a constraint.  In every cell every peer searches its learning rate and its dual rate (the weight
of the penalty for fairret, none for fairlearn's thresholds) on a grid of 3 x 3, with two seeds, by a validation part of
a fifth of the training split.  There a run counts with its objective less twice the largest h, where that is positive.
(With a strict order, feasible runs first, noise in h would make peers prefer models that rank nothing.)  This project
has nothing tuned: default algorithm, penalty, optimizer and learning rate.  Then all run with seeds 0, 1, ... on the
whole training split.  Tables without an official test split are split anew for every seed.

``violation`` is the largest h of the smoothed rates that were constrained, ``hard`` that of the decisions s > 0; for
ROC fairness the hard ROC gap less kappa.
"""

import argparse
import functools
import json
import math
import statistics
import time
from typing import Any, NamedTuple

import pandas as pd
import peer_methods
import torch
from peer_methods import OURS, PROBLEMS
from runs import Job, arguments, rates, run_all, run_searches, seconds, table, value

from fcco_lightning import Columns, Splits, SyntheticDataModule, TabularDataModule, TabularMLP, UniformSampling

LEARNING_RATES = [1e-3, 3e-3, 1e-2]
DUAL_RATES = {"cooper": [0.004, 0.02, 0.1], "humancompatible": [0.004, 0.02, 0.1], "fairret": [0.02, 0.1, 0.5]}
SEEDS = (100, 101)  # of the search
TOLERANCE = 0.01
BATCH, HIDDEN = 128, [64, 64]
Cells = dict[str, dict[str, list[Job]]]  # a table with a constraint -> method -> its runs there
COLUMNS = ("test.objective", "test.violation", "train.violation", "test.hard", "train.hard")


class Source(NamedTuple):
    """Where the samples of a benchmark come from.

    Attributes:
        columns: what the columns of the table mean.
        epochs: of every run.
        unused: beginnings of the names of columns that are left out.
    """

    columns: Columns
    epochs: int
    unused: tuple[str, ...] = ()


SYNTHETIC_EPOCHS, SYNTHETIC_ROWS = 10, (4000, 10_000)  # for training and for testing
SOURCES = {
    "adult": Source(Columns("income", ">50K", sensitive="sex", favoured="Male", use_sensitive=True), 3),
    "compas": Source(
        Columns("two-year-recid", 1, sensitive="race", favoured="Caucasian", use_sensitive=True), 10, ("decile-score",)
    ),
    "german": Source(Columns("credit-label", 1, sensitive="sex", favoured=1, use_sensitive=True), 30, ("sex-age",)),
    "crime": Source(
        Columns("high_crime", 1, sensitive=">0.06black", favoured=0, use_sensitive=True),
        20,
        ("communityname", "fold", "state_", "ViolentCrimesPerPop"),
    ),
}


class Cell(NamedTuple):
    """A table, by its name and its files, with a constraint."""

    data: str
    paths: list[str]
    problem: str

    @property
    def name(self) -> str:
        return f"{self.data}, {self.problem}"

    def job(self, method: str, seed: int, overrides: dict[str, Any], held_out: float = 0.0) -> Job:
        """One run; its label is that of the cell and of the method."""
        named = {"label": f"{self.name}: {method}", "cell": self.name, "method": method}
        return named | self._asdict() | {"held_out": held_out, "seed": seed, "overrides": overrides}


def read(path: str, unused: tuple[str, ...]) -> pd.DataFrame:
    """A table without the columns that are left out."""
    frame = pd.read_csv(path)
    return frame.drop(columns=[name for name in frame if str(name).startswith(unused)]) if unused else frame


@functools.cache
def data(name: str, paths: tuple[str, ...], seed: int, held_out: float) -> TabularDataModule:
    """The splits of a seed."""
    batches = UniformSampling(BATCH)
    if not paths:
        return SyntheticDataModule(*SYNTHETIC_ROWS, data_seed=seed, val_fraction=held_out, batches=batches, seed=seed)
    source = SOURCES[name]
    frames = [read(path, source.unused) for path in paths]
    splits = Splits(None if len(frames) > 1 else 0.2, held_out, seed)
    test = frames[1] if len(frames) > 1 else None
    return TabularDataModule(frames[0], columns=source.columns, test=test, splits=splits, batches=batches, seed=seed)


def train(job: Job) -> Job:
    """One run; the job with the figures of all splits."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    module = data(job["data"], tuple(job["paths"]), job["seed"], job["held_out"])
    module.setup()
    torch.manual_seed(job["seed"])
    network = TabularMLP(HIDDEN, in_features=module.num_features)
    problem = PROBLEMS[job["problem"]]
    try:
        model = peer_methods.fitted(job["method"], problem, network, module, job["epochs"], job["overrides"])
        figures = {name: problem.figures(model(split.columns), split.columns) for name, split in module.tables.items()}
    except Exception as error:
        return {**job, "failed": repr(error)[:200]}
    return {**job, **figures, "seconds": round(time.perf_counter() - start, 2)}


def score(run: Job) -> float:
    """Of a run of the search: the objective of the validation part, less twice what the constraint lacks there."""
    return value(run, "val.objective") - 2 * max(0.0, value(run, "val.violation"))


def advantage(ours: list[Job], theirs: list[Job], column: str) -> tuple[float, float]:
    """By how much the peer's figure is larger, seed by seed: the mean and its standard error."""
    mine = {run["seed"]: value(run, column) for run in ours}
    differences = [value(run, column) - mine[run["seed"]] for run in theirs if run["seed"] in mine]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return statistics.fmean(differences), error


def better(one: list[Job], other: list[Job], column: str) -> bool:
    """Whether the second has a smaller violation and a better objective, both beyond one standard error."""
    objective, spread = advantage(one, other, "test.objective")
    violation, noise = advantage(one, other, column)
    return objective > spread and -violation > noise


def verdict(cells: Cells, column: str, *, ahead: bool) -> str:
    """In how many cells a peer is better than this project in both respects, or ``ahead``: this project than a peer."""
    found = []
    for cell, methods in cells.items():
        pairs = {name: (methods[OURS], runs) for name, runs in methods.items() if name != OURS}
        names = [name for name, pair in pairs.items() if better(*(pair[::-1] if ahead else pair), column)]
        found += [f"{cell} ({', '.join(names)})"] if names else []
    who = f"{OURS} is better than a peer" if ahead else f"a peer is better than {OURS}"
    return f"by {column} {who} in both respects in {len(found)} of {len(cells)} cells: {'; '.join(found) or '-'}"


def feasibility(cells: Cells) -> str:
    """In which cells a peer satisfies the constraint on the training split and this project does not."""

    def holds(runs: list[Job]) -> bool:
        return statistics.fmean(value(run, "train.violation") for run in runs) <= TOLERANCE

    lost = [cell for cell, runs in cells.items() if any(map(holds, runs.values())) and not holds(runs[OURS])]
    return f"constraint holds in training for a peer but not here (up to {TOLERANCE:g}): {'; '.join(lost) or 'nowhere'}"


class Benchmark:
    """The jobs of the cells that are asked for on the command line."""

    def __init__(self, given: argparse.Namespace) -> None:
        tables = {name: getattr(given, name) for name in SOURCES if getattr(given, name)} or {"synthetic": []}
        self.given, self.peers = given, peer_methods.available()
        cells = [Cell(name, paths, problem) for name, paths in tables.items() for problem in given.problems]
        self.cells = {cell.name: cell for cell in cells}

    def job(self, label: str, overrides: dict[str, Any], seed: int, held_out: float = 0.0) -> Job:
        """One run; its label is that of a cell and of a method."""
        name, _, method = label.partition(": ")
        cell = self.cells[name]
        epochs = SOURCES[cell.data].epochs if cell.data in SOURCES else SYNTHETIC_EPOCHS
        return cell.job(method, seed, overrides, held_out) | {"epochs": self.given.epochs or epochs}

    def search(self) -> dict[str, dict[str, Any]]:
        """What the search found for every peer in every cell that it knows."""
        grids = {
            f"{cell}: {peer}": {"lr": LEARNING_RATES} | ({"dual": DUAL_RATES[peer]} if peer in DUAL_RATES else {})
            for cell, asked in self.cells.items()
            for peer in self.peers
            if peer_methods.applies(peer, PROBLEMS[asked.problem])
        }
        make = functools.partial(self.job, held_out=0.2)
        shown = ["val.objective", "val.violation"]
        return run_searches(grids, make, score, self.given.jobs, shown, train, seeds=SEEDS, longest=0)

    def results(self, picks: dict[str, dict[str, Any]]) -> list[Job]:
        """The runs of the table."""
        jobs = []
        for cell in self.cells:
            labels = [f"{cell}: {method}" for method in self.peers if f"{cell}: {method}" in picks]
            picked = {f"{cell}: {OURS}": {}} | {label: picks[label]["picked"] for label in labels}
            for label, overrides in picked.items():
                jobs += [self.job(label, overrides, seed) for seed in range(self.given.seeds)]
        return run_all(jobs, self.given.jobs, ["test.objective", "test.violation"], train)


def arguments_of(description: str | None) -> argparse.ArgumentParser:
    """A parser that also takes the tables."""
    parser = arguments(description)
    parser.add_argument("--adult", nargs=2, metavar=("TRAIN", "TEST"), help="tables of UCI Adult")
    for name in ("compas", "german", "crime"):
        parser.add_argument(f"--{name}", nargs=1, metavar="TABLE")
    parser.add_argument("--tune", action="store_true", help="the search, whose picks are kept")
    return parser


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments_of(__doc__)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--epochs", type=int, help="of every run; by default one number for every table")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    benchmark = Benchmark(given)
    kept = given.out / "peers_picks.json"
    if given.tune:
        kept.write_text(json.dumps(benchmark.search(), indent=1))
        return
    results = benchmark.results(json.loads(kept.read_text()) if kept.exists() else {})
    (given.out / "peers.json").write_text(json.dumps(results, indent=1))
    finished = [run for run in results if "failed" not in run]
    print("\n" + table(finished, COLUMNS, {"rates": rates, "seconds": seconds}) + "\n")
    for run in results:
        if "failed" in run:
            print(f"{run['label']}, seed {run['seed']}, broke down: {run['failed']}")
    cells = cells_of(finished)
    for column in ("test.violation", "test.hard"):
        print(verdict(cells, column, ahead=False))
        print(verdict(cells, column, ahead=True))
    print(feasibility(cells))


def cells_of(results: list[Job]) -> Cells:
    """The finished runs, by cell and method."""
    cells: Cells = {}
    for run in results:
        cells.setdefault(run["cell"], {}).setdefault(run["method"], []).append(run)
    return cells


if __name__ == "__main__":
    main()
