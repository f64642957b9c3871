"""Rates of decisions that hold: ConstrainedClassifier with all defaults beside fairlearn and other dual methods.

The other libraries (fairlearn, cooper-optim, humancompatible-train) are no dependencies; those that are not installed
are left out by name::

    uv pip install fairlearn cooper-optim humancompatible-train
    uv run python examples/benchmarks/decisions.py --adult adult_train.csv adult_test.csv --compas compas.csv \
        --german german.csv --crime crime.csv --tune        # the dual rates of the libraries; picks are kept
    uv run python examples/benchmarks/decisions.py ...      # the same tables without --tune: the runs and the count

A cell is a table with equalized odds or demographic parity at kappa .02.  A table without an official test split is
split anew for every seed.  Fairlearn's ExponentiatedGradient (with the bound that a difference of kappa makes for two
groups) and ThresholdOptimizer (which sees the group of a new sample, too) stand on logistic regression and on
gradient-boosted trees; both draw decisions at random, and the figures are expected values.  Cooper and
humancompatible-train have the features, the network, the batches, the optimizer and its schedule of
ConstrainedClassifier; their dual rate is picked in every cell by a validation part of a fifth of the training split, on
tuning seeds of their own.  Cooper's multipliers follow the smoothed constraint, or with "strict" the decisions.

``gap`` is the largest difference of the groups' rates of decisions, ``floor`` what it would be on the test split for
groups that are the same: its mean over samples in which the groups are shuffled.
"""

import functools
import importlib.util
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import peer_methods
import torch
from peer_methods import OURS, Fairness
from peers import SOURCES, Cell, Cells, advantage, arguments_of, cells_of, data
from runs import Job, run_all, value
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from torch.optim.lr_scheduler import PolynomialLR

from fcco_lightning import ConstrainedClassifier, DemographicParity, EqualizedOdds, TabularMLP
from fcco_lightning.data.features import PiecewiseFeatures
from fcco_lightning.reports import classifier

KAPPA, SLACK = 0.02, 0.005
DUAL_RATES = [0.0008, 0.004, 0.02, 0.1, 0.5, 2.5]
TUNING_SEEDS = (100, 101, 102)
SHUFFLES = 200
PROBLEMS = {"equalized odds": EqualizedOdds, "demographic parity": DemographicParity}
ESTIMATORS = {
    "logistic": lambda: LogisticRegression(max_iter=1000),
    "trees": lambda: HistGradientBoostingClassifier(early_stopping=False, random_state=0),
}
Columns = dict[str, Any]  # of NumPy arrays: x (n, d), y and group (n,)
Decide = Callable[[Columns], np.ndarray]  # the probability of a positive decision, (n,)


def parts(problem: str, columns: Columns) -> list[np.ndarray]:
    """Where rates are compared, as masks (n,): within each class, or among all."""
    y = columns["y"]
    return [y == 1, y == 0] if problem == "equalized odds" else [np.ones(len(y), dtype=bool)]


def gap(problem: str, decided: np.ndarray, columns: Columns) -> float:
    """The largest difference of the groups' rates of decisions."""
    of = [columns["group"] == value for value in (0, 1)]
    return max(abs(float(decided[p & of[1]].mean() - decided[p & of[0]].mean())) for p in parts(problem, columns))


def figures(problem: str, decided: np.ndarray, columns: Columns) -> dict[str, float]:
    """The share of wrong decisions, and the gap."""
    error = float(np.where(columns["y"] == 1, 1 - decided, decided).mean())
    return {"error": error, "gap": gap(problem, decided, columns)}


def floor(problem: str, decided: np.ndarray, columns: Columns, seed: int) -> float:
    """The mean gap of groups that are the same: they are shuffled, where odds are compared within the classes."""
    random, group, gaps = np.random.default_rng(seed), columns["group"], []
    for _ in range(SHUFFLES):
        shuffled = group.copy()
        for part in parts(problem, columns):
            shuffled[part] = random.permutation(group[part])
        gaps.append(gap(problem, decided, columns | {"group": shuffled}))
    return statistics.fmean(gaps)


def ours(job: Job, split: Columns) -> Decide:
    """This project: everything but the constraint is as it comes."""
    constraint = PROBLEMS[job["problem"]](kappa=KAPPA)
    model = ConstrainedClassifier(constraints=[constraint], random_state=job["seed"])
    model.fit(split["x"], split["y"], sensitive_features=split["group"])
    return lambda columns: model.predict(columns["x"]).astype(float)


def on_trees(job: Job, split: Columns) -> Decide:
    """The same with one column more: the scores of boosted trees, in training of samples that they have not seen."""
    trees, x = ESTIMATORS["trees"](), split["x"]
    unseen = cross_val_predict(trees, x, split["y"], cv=5, method="decision_function")
    decide = ours(job, split | {"x": np.column_stack([x, unseen])})
    trees.fit(x, split["y"])
    return lambda columns: decide({"x": np.column_stack([columns["x"], trees.decision_function(columns["x"])])})


def reduced(estimator: str, job: Job, split: Columns) -> Decide:
    """Fairlearn's reduction, which bounds a group's distance from the mean of all."""
    from fairlearn import reductions

    moment = {"equalized odds": reductions.EqualizedOdds, "demographic parity": reductions.DemographicParity}
    bound = KAPPA * larger_share(job["problem"], split)
    model = reductions.ExponentiatedGradient(
        ESTIMATORS[estimator](), moment[job["problem"]](difference_bound=bound), eps=KAPPA
    )
    model.fit(split["x"], split["y"], sensitive_features=split["group"])
    return lambda columns: np.asarray(model._pmf_predict(columns["x"]))[:, 1]


def larger_share(problem: str, split: Columns) -> float:
    """The share of the larger of two groups, the least over the classes where these are told apart.

    A rate of group a differs from that of all by (1 - share of a) times the difference of the groups.
    """
    shares = [split["group"][part].mean() for part in parts(problem, split)]
    return min(max(share, 1 - share) for share in shares)


def thresholds(estimator: str, job: Job, split: Columns) -> Decide:
    """Fairlearn's thresholds of both groups, equal odds or a tolerance of kappa on the training split."""
    from fairlearn.postprocessing import ThresholdOptimizer

    name = job["problem"].replace(" ", "_")
    tolerance = KAPPA if name == "demographic_parity" else None  # the others it makes equal
    model = ThresholdOptimizer(
        estimator=ESTIMATORS[estimator](), constraints=name, predict_method="predict_proba", tol=tolerance
    )
    model.fit(split["x"], split["y"], sensitive_features=split["group"])
    return lambda columns: model._pmf_predict(columns["x"], sensitive_features=columns["group"])[:, 1]


def dual(name: str, job: Job, split: Columns) -> Decide:
    """Another library's dual method, with what ConstrainedClassifier has by default."""
    settings, n = ConstrainedClassifier().get_params(), len(split["y"])
    batch = min(settings["batch_size"], n)
    epochs = max(classifier._EPOCHS, math.ceil(classifier._UPDATES / (n // batch)))
    torch.manual_seed(job["seed"])
    features = PiecewiseFeatures().fit(split["x"])
    network = TabularMLP(settings["hidden"], in_features=features.transform(split["x"][:1]).shape[1])
    schedules: list[PolynomialLR] = []

    def optimizer(params: Any, lr: float) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(params, lr=lr, weight_decay=classifier.default_decay(n) / lr)
        schedules.append(PolynomialLR(made, epochs * (n // batch)))
        return made

    problem = Fairness(functools.partial(PROBLEMS[job["problem"]], kappa=KAPPA), [])
    problem.rate = PROBLEMS[job["problem"]]().rate
    step = DUAL[name](
        network, problem, lr=settings["learning_rate"], dual=job["overrides"]["dual"], optimizer=optimizer
    )
    tensors = {name: torch.as_tensor(column) for name, column in split.items()}
    tensors["x"] = torch.as_tensor(features.transform(split["x"])).float()
    for _ in range(epochs):
        for i in torch.randperm(n)[: n // batch * batch].split(batch):
            step({name: column[i] for name, column in tensors.items()})
            schedules[0].step()

    def decide(columns: Columns) -> np.ndarray:
        scores = network(torch.as_tensor(features.transform(columns["x"])).float())
        return (scores.detach().numpy().ravel() > 0).astype(float)

    return decide


ON_TREES = f"{OURS}, scores of trees"
METHODS: dict[str, Callable[[Job, Columns], Decide]] = {OURS: ours, ON_TREES: on_trees}
FAIRLEARN: list[str] = []
for _name in ESTIMATORS:
    METHODS[f"reduction, {_name}"] = functools.partial(reduced, _name)
    METHODS[f"thresholds, {_name}"] = functools.partial(thresholds, _name)
    FAIRLEARN += [f"reduction, {_name}", f"thresholds, {_name}"]
DUAL = {
    "cooper": peer_methods.cooper,
    "cooper, strict": functools.partial(peer_methods.cooper, strict=True),
    "humancompatible": peer_methods.humancompatible,
}
METHODS |= {name: functools.partial(dual, name) for name in DUAL}


def train(job: Job) -> Job:
    """One run; the job with the figures of all splits."""
    torch.set_num_threads(1)
    module = data(job["data"], tuple(job["paths"]), job["seed"], job["held_out"])
    module.setup()
    splits = {
        name: {column: split.columns[column].numpy() for column in ("x", "y", "group")}
        for name, split in module.tables.items()
    }
    for columns in splits.values():
        columns["x"] = columns["x"].astype(float)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        decide = METHODS[job["method"]](job, splits["train"])
    seconds = round(time.perf_counter() - start, 2)
    decided = {name: decide(columns) for name, columns in splits.items()}
    found = {name: figures(job["problem"], decided[name], columns) for name, columns in splits.items()}
    found["test"]["floor"] = floor(job["problem"], decided["test"], splits["test"], job["seed"])
    return {**job, **found, "seconds": seconds}


def score(run: Job) -> float:
    """Of a run of the search: accuracy on the validation part, less twice what the constraint lacks there."""
    return 1 - value(run, "val.error") - 2 * max(0.0, value(run, "val.gap") - KAPPA)


def picks(cells: list[Cell], methods: list[str], workers: int) -> dict[str, float]:
    """The best dual rate of every dual method in every cell."""
    jobs = [
        cell.job(method, seed, {"dual": rate}, 0.2)
        for cell in cells
        for method in methods
        if method in DUAL
        for rate in DUAL_RATES
        for seed in TUNING_SEEDS
    ]
    scores: dict[str, dict[float, float]] = {}  # method in a cell -> rate -> sum over the tuning seeds
    for run in run_all(jobs, workers, ["val.error", "val.gap"], train):
        of_rates, rate = scores.setdefault(run["label"], dict.fromkeys(DUAL_RATES, 0.0)), run["overrides"]["dual"]
        of_rates[rate] += score(run)
    best = {label: max(found, key=found.__getitem__) for label, found in scores.items()}
    edges = [label for label, rate in best.items() if rate in (DUAL_RATES[0], DUAL_RATES[-1])]
    print(f"picked on an edge of the grid: {'; '.join(edges) or 'none'}")
    return best


def mean(runs: list[Job], column: str) -> str:
    """Mean and standard error over seeds."""
    values = [value(run, column) for run in runs]
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def table(cells: Cells) -> str:
    """Markdown: a row of every method in every cell."""
    lines = [
        "| | | gap, training | largest | error, test | gap, test | floor | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell, methods in sorted(cells.items()):
        for method, runs in methods.items():
            shown = [mean(runs, column) for column in ("train.gap", "test.error", "test.gap")]
            shown.insert(1, f"{max(value(run, 'train.gap') for run in runs):.4f}")
            shown.append(f"{statistics.fmean(value(run, 'test.floor') for run in runs):.3f}")
            shown.append(f"{statistics.median(run['seconds'] for run in runs):.1f}")
            lines.append(f"| {cell} | {method} | {' | '.join(shown)} |")
    return "\n".join(lines)


def count(cells: Cells) -> list[str]:
    """What the bar asks: in how many runs training holds, and in how many cells fairlearn is not ahead."""
    runs = [run for methods in cells.values() for run in methods[OURS]]
    held = sum(value(run, "train.gap") <= KAPPA + SLACK for run in runs)
    said = [f"gap at most {KAPPA + SLACK:g} on the training split: {held} of {len(runs)} runs"]
    rules = {"ahead in one figure and not behind in the other": dominates, "ahead in a figure": ahead_in_one}
    for what, rule in rules.items():
        lost = []
        for cell, methods in sorted(cells.items()):
            rivals = [name for name in FAIRLEARN if name in methods and rule(methods[name], methods[OURS])]
            lost += [f"{cell} ({', '.join(rivals)})"] if rivals else []
        counted = f"{len(cells) - len(lost)} of {len(cells)} cells"
        said.append(f"no method of fairlearn is {what}: {counted}; not in: {'; '.join(lost)}")
    floors = {cell: statistics.fmean(value(run, "test.floor") for run in runs[OURS]) for cell, runs in cells.items()}
    noisy = [cell for cell, least in sorted(floors.items()) if least > KAPPA]
    said.append(f"test split too small to tell a gap of {KAPPA:g}: {'; '.join(noisy) or 'none'}")
    return said


def dominates(one: list[Job], other: list[Job]) -> bool:
    """Whether the first is ahead in error or gap, and not behind in the other, beyond a standard error of pairs."""
    signs = [ahead(one, other, column) for column in ("test.error", "test.gap")]
    return max(signs) > 0 and min(signs) >= 0


def ahead_in_one(one: list[Job], other: list[Job]) -> bool:
    """Whether the first is ahead in error or gap."""
    return any(ahead(one, other, column) > 0 for column in ("test.error", "test.gap"))


def ahead(one: list[Job], other: list[Job], column: str) -> int:
    """1 if a figure of the first is smaller beyond a standard error, -1 if it is larger, 0 if neither."""
    difference, error = advantage(other, one, column)
    return 0 if abs(difference) <= error else int(math.copysign(1, -difference))


def available() -> list[str]:
    """This project, and the methods of the libraries that are installed."""
    of_others = [*FAIRLEARN, *DUAL]
    libraries = {name: name.split(",")[0] if name in DUAL else "fairlearn" for name in of_others}
    missing = sorted({home for home in libraries.values() if importlib.util.find_spec(home) is None})
    if missing:
        print(f"Not installed, so left out: {', '.join(missing)} ({peer_methods.INSTALL})")
    return [OURS, ON_TREES, *(name for name, home in libraries.items() if home not in missing)]


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments_of(__doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="by default all that are installed")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    tables = {name: getattr(given, name) for name in SOURCES if getattr(given, name)}
    cells = [Cell(name, paths, problem) for name, paths in tables.items() for problem in PROBLEMS]
    methods = [name for name in available() if given.methods is None or name in given.methods]
    kept, results = given.out / "decisions_picks.json", given.out / "decisions.json"
    rates = json.loads(kept.read_text()) if kept.exists() else {}
    if given.tune:
        kept.write_text(json.dumps(rates | picks(cells, methods, given.jobs), indent=1))
        return
    official = {name for name, paths in tables.items() if len(paths) > 1}
    done = json.loads(results.read_text()) if results.exists() else []
    for method in methods:
        jobs = []
        for cell in cells:
            overrides = {"dual": rates.get(f"{cell.name}: {method}", DUAL_RATES[2])} if method in DUAL else {}
            seeds = 1 if cell.data in official and method in FAIRLEARN else given.seeds  # the same for all
            jobs += [cell.job(method, seed, overrides) for seed in range(seeds)]
        repeated = {job["label"] for job in jobs}
        done = [run for run in done if run["label"] not in repeated]
        done += run_all(jobs, given.jobs, ["train.gap", "test.error", "test.gap"], train)
        results.write_text(json.dumps(done, indent=1))
    report(done, official, given.seeds)


def report(done: list[Job], official: set[str], seeds: int) -> None:
    """Print the table and the count; fairlearn's run on an official split stands for every seed."""
    order = {name: i for i, name in enumerate(METHODS)}
    whole = [
        {**run, "seed": seed}
        for run in sorted(done, key=lambda run: order[run["method"]])
        for seed in (range(seeds) if run["data"] in official and run["method"] in FAIRLEARN else [run["seed"]])
    ]
    cells = cells_of(whole)
    print("\n" + table(cells) + "\n")
    if all(OURS in runs for runs in cells.values()):
        print("\n".join(count(cells)))


if __name__ == "__main__":
    main()
