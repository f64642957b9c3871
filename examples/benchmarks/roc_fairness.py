"""AUC under ROC-fairness constraints: methods x optimizers x seeds on one data set, as JSON, a table and a picture.

Every run goes through the product's own command line and configs, so it is the run that a user gets::

    uv run python examples/benchmarks/roc_fairness.py --data adult --train adult_train.csv --test adult_test.csv --tune
    uv run python examples/benchmarks/roc_fairness.py --data adult ...                  # SONEX paper, Fig. 2
    uv run python examples/benchmarks/roc_fairness.py --data compas --train compas.csv --seeds 5 --jobs 2
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --front --tune   # in the form that cannot be
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --front          # gamed: gap against AUC
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --ablation beta  # SONEX paper, Table 3
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --ablation theta     # what Table 4 is about
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --ablation jacobian      # multipliers, decisions

Results are over seeds 0, 1, ...  Tuning has seeds of its own and holds out a fifth of the training split: every method
starts with the same grid of 9 points, which grows until the pick does not lie on its edge, and the run counts with its
AUC there if its worst training violation is at most 0.005, and otherwise with minus that violation.  The test split is
not looked at.  Picks are kept in the output folder and used by the runs that follow.
"""

import argparse
import functools
import json
import statistics
from pathlib import Path
from typing import Any

from runs import CHEAP, SEEDS, Axes, Job, arguments, median, run_all, run_searches, seconds, spread, table, value

from fcco_lightning.evaluation.pictures import new_figure, quiet_frame, row_of_axes, save

METHODS = {
    "alexr2": "ALEXR2",
    "sonex": "SONEX",
    "sox_squared_hinge": "SOX, squared hinge",
    "sonx": "SONX",
    "icppac": "ICPPAC",
    "sgd": "no constraints",
}
OPTIMIZERS = {  # settings, learning rates that the grid starts with
    "Adam": ({"model.optimizer": "AdamType", "model.optimizer.beta": 0.1}, [1e-3, 3e-3, 1e-2]),
    "momentum": ({"model.optimizer": "HeavyBall", "model.optimizer.beta": 0.1}, [0.3, 0.9, 2.7]),
}
ICPPAC = {  # the paper's grid; ICPPAC has no penalty and an outer step of its own
    "model.algorithm.eta": [0.01, 0.1],
    "model.algorithm.tau": [1.0, 10.0, 100.0],
    "model.algorithm.mu": [1e-4, 1e-3, 1e-2],
}
RHO = {m: {"model.penalty.rho": [4, 12, 36]} for m in ("alexr2", "sonex", "sonx")}
RHO["sox_squared_hinge"] = {"model.penalty.rho": [30, 100, 300]}
TOLERANCE = 0.005
COLUMNS = ("train.auc", "train.worst_violation", "train.roc_gap", "test.auc", "test.worst_violation", "test.roc_gap")
HELD_OUT = {"data.splits.val_fraction": 0.2}

# Quantile thresholds alone; the config has standardised scores beside them.
QUANTILE = {
    "model.constraints": "[{class_path: ROCFairness, init_args: {thresholds: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, "
    "0.85, 0.9, 0.95], kappa: 0.005, temperature: 0.1, scale: QuantileScores}}]"
}
# The front: rho from lenient to strict; a learning rate is judged by the whole front that it gives.
FRONT = QUANTILE | OPTIMIZERS["Adam"][0] | {"trainer.max_epochs": 20, "model.algorithm.gamma": 0.2}
FRONT_RHO = {
    "alexr2": [0.5, 1, 2, 4],
    "sonex": [0.5, 1, 2, 4],
    "sonx": [0.5, 1, 2, 4],
    "sox_squared_hinge": [5, 15, 50, 150],
}
CORNER = (0.3, 0.8)  # gap and AUC that a point of the front must better to count
COLLAPSED = 0.6  # of the AUC: the scores are nearly constant
SHORT = {"model.algorithm": "SONEX", "model.algorithm.gamma": 0.2, "model.algorithm.gamma_prime": 0.1}
RULES: dict[str, dict[str, Any]] = {  # in the form that cannot be gamed; {} is the default
    "rho 3, gamma .2": {"model.penalty": "HingePenalty", "model.penalty.rho": 3} | SHORT,
    "rho 10, gamma .2": {"model.penalty": "HingePenalty", "model.penalty.rho": 10} | SHORT,
    "rho 3": {"model.penalty": "HingePenalty", "model.penalty.rho": 3},
    "rho 10": {"model.penalty": "HingePenalty", "model.penalty.rho": 10},
    "AdaptivePenalty": {},
    **{f"rate {r}": {"model.penalty": "AdaptivePenalty", "model.penalty.rate": r} for r in (0.02, 0.06)},
    "NuPI": {"model.penalty": "NuPI"},
    **{f"NuPI, rate {r}": {"model.penalty": "NuPI", "model.penalty.rate": r} for r in (0.0033, 0.03)},
    **{f"NuPI, part {p}": {"model.penalty": "NuPI", "model.penalty.proportional": p} for p in (0.233, 2.1)},
    "AugmentedLagrangian": {"model.penalty": "AugmentedLagrangian"},
    **{f"c {c}": {"model.penalty": "AugmentedLagrangian", "model.penalty.curvature": c} for c in (0.33, 3.0)},
    "Lagrangian": {"model.penalty": "Lagrangian"},
}
ABLATIONS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "beta": {f"beta={b}": ("alexr2", {"model.optimizer.beta": b}) for b in (0.1, 0.3, 0.5, 1.0)},
    "theta": {f"theta={t}": ("alexr2", {"model.algorithm.gamma_prime": 0.8 * t}) for t in (0.1, 0.3, 0.5, 1.0)},
    "multipliers": {label: ("multipliers", rule | {"trainer.max_epochs": 12}) for label, rule in RULES.items()},
    "decisions": {  # whether multipliers follow decisions at the thresholds, or the smoothed ones
        rule + ", decisions" * follow: (
            "multipliers",
            {"model.penalty": rule, "model.penalty.decisions": follow, "trainer.max_epochs": 12},
        )
        for rule in ("AdaptivePenalty", "Lagrangian")
        for follow in (False, True)
    },
    "jacobian": {
        j: ("alexr2", QUANTILE | {"model.penalty.rho": 3, "trainer.max_epochs": 20, "model.algorithm.jacobian": j})
        for j in ("old", "halves", "reuse")
    },
}


def score(run: Job) -> float:
    """Of a tuning run: AUC on the held-out part if it is feasible in training, else minus the violation."""
    violation = value(run, "train.worst_violation")
    return value(run, "val.auc") if violation <= TOLERANCE or run["method"] == "sgd" else -violation


def hypervolume(runs: list[Job]) -> float:
    """Area of gaps and AUCs on the held-out part that a run of the front dominates."""
    area, gap_before = 0.0, CORNER[0]
    best: list[tuple[float, float]] = sorted((value(r, "val.roc_gap"), value(r, "val.auc")) for r in runs)
    for i in reversed(range(len(best))):
        gap = best[i][0]
        if gap < gap_before:
            area += (gap_before - gap) * max(0.0, max(auc for _, auc in best[: i + 1]) - CORNER[1])
            gap_before = gap
    return area


def front_area(runs: list[Job]) -> float:
    """The mean area over the tuning seeds."""
    finished = [r for r in runs if "failed" not in r]
    return statistics.fmean(hypervolume([r for r in finished if r["seed"] == seed]) for seed in SEEDS)


def vacuous(runs: list[Job]) -> str:
    """In how many runs the constraints had become vacuous."""
    return f"{sum(bool(r['train']['vacuous']) for r in runs)}/{len(runs)}"


def collapsed(runs: list[Job]) -> str:
    """In how many runs the scores had become nearly constant."""
    return f"{sum(value(r, 'test.auc') < COLLAPSED for r in runs)}/{len(runs)}"


def decided(split: str) -> Any:
    """A table's cell: the largest h of decisions at the thresholds, mean and standard deviation over runs."""

    def cell(runs: list[Job]) -> str:
        worst = [max(r[split]["decided"].values()) for r in runs if r[split].get("decided")]
        return spread(worst) if worst else ""

    return cell


def picture(results: list[Job], path: Path, x: str, names: list[str]) -> None:
    """Test AUC against ``x`` on the test split, one colour per name, one dot per seed, medians joined."""
    figure = new_figure(7, 4.5)
    (axes,) = row_of_axes(figure, 1)
    for i, name in enumerate(dict.fromkeys(names)):
        of_method = [r for r, n in zip(results, names, strict=True) if n == name and "test" in r]
        runs = [r for r in of_method if value(r, "test.auc") >= COLLAPSED]
        axes.scatter([value(r, f"test.{x}") for r in runs], [value(r, "test.auc") for r in runs], s=14, color=f"C{i}")
        middle = []
        for label in dict.fromkeys(r["label"] for r in runs):
            mine = [r for r in runs if r["label"] == label]
            middle.append([statistics.median(value(r, c) for r in mine) for c in (f"test.{x}", "test.auc")])
        axes.plot(*zip(*middle, strict=True), "D-", ms=5, color=f"C{i}", label=name)
    name = {"worst_violation": "worst violation max h (test)", "roc_gap": "hard ROC gap (test)"}[x]
    axes.set(xlabel=name, ylabel="AUC (test)")
    quiet_frame(axes)
    axes.legend()
    save(figure, path)


class Benchmark:
    """The jobs of what is asked for on the command line."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.common = CHEAP | {"data.train": given.train} | ({"data.test": given.test} if given.test else {})
        self.kept = given.out / f"roc_fairness_{given.data}_picks.json"
        self.picks = json.loads(self.kept.read_text()) if self.kept.exists() else {}
        penalised = [m for m in given.methods if m != "icppac"]
        self.methods: dict[str, tuple[str, dict[str, Any], Axes]] = {
            f"{METHODS[m]} ({name})": (m, settings, {"model.optimizer.lr": rates} | RHO.get(m, {}))
            for m in penalised
            for name, (settings, rates) in OPTIMIZERS.items()
        }
        if "icppac" in given.methods:
            self.methods[METHODS["icppac"]] = ("icppac", {}, ICPPAC)
        self.fronts = [m for m in given.methods if m in FRONT_RHO]

    def job(self, label: str, method: str, seed: int, overrides: dict[str, Any]) -> Job:
        """One run."""
        given = self.given
        overrides = self.common | overrides | ({"trainer.max_epochs": given.epochs} if given.epochs else {})
        config = f"roc_fairness/{given.data}_{method}"
        return {"label": label, "method": method, "config": config, "seed": seed, "overrides": overrides}

    def tune(self) -> None:
        """Search for learning rates and rho."""
        grids = {label: axes for label, (_, _, axes) in self.methods.items()}
        shown = ["train.auc", "train.worst_violation", "val.auc"]
        self.picks |= run_searches(grids, self.tuning_job, score, self.given.jobs, shown)

    def tuning_job(self, label: str, overrides: dict[str, Any], seed: int) -> Job:
        """A run of the search, which holds out a fifth of the training split."""
        method, settings, _ = self.methods[label]
        return self.job(label, method, seed, settings | HELD_OUT | overrides)

    def tune_fronts(self) -> None:
        """Search for the learning rate of every method's front, with more of them while the best is an end of the grid.

        Rates that an earlier search has measured are not measured again.
        """
        for m in self.fronts:
            key, rates = f"front {m}", list(OPTIMIZERS["Adam"][1])
            areas = {float(lr): area for lr, area in self.picks.get(key, {}).get("areas", {}).items()}
            while rates:
                areas |= {lr: front_area(self._front(m, lr)) for lr in rates if lr not in areas}
                best = max(areas, key=lambda lr: areas[lr])
                beyond = [best * 3] if best == max(areas) else [best / 3] if best == min(areas) else []
                rates = [float(f"{lr:.3g}") for lr in beyond]
            self.picks[key] = {"model.optimizer.lr": best, "areas": areas}
            print(f"picked {key}: {self.picks[key]}", flush=True)

    def _front(self, m: str, lr: float) -> list[Job]:
        """The runs of a front in the search."""
        changes = FRONT | HELD_OUT | {"model.optimizer.lr": lr}
        jobs = [self.job(m, m, seed, changes | {"model.penalty.rho": rho}) for rho in FRONT_RHO[m] for seed in SEEDS]
        return run_all(jobs, self.given.jobs, ["train.auc", "train.worst_violation", "val.auc", "val.roc_gap"])

    def results(self) -> list[Job]:
        """The jobs of a table."""
        seeds, picks = range(self.given.seeds), self.picks
        if self.given.ablation:
            runs = ABLATIONS[self.given.ablation].items()
            return [self.job(label, m, s, o) for label, (m, o) in runs for s in seeds]
        if self.given.front:
            return [
                self.job(f"{METHODS[m]} rho={rho}", m, s, FRONT | {"model.penalty.rho": rho, "model.optimizer.lr": lr})
                for m in self.fronts
                for lr in [picks.get(f"front {m}", {"model.optimizer.lr": 1e-3})["model.optimizer.lr"]]
                for rho in FRONT_RHO[m]
                for s in seeds
            ]
        return [
            self.job(label, m, s, settings | picks.get(label, {"picked": {}})["picked"])
            for label, (m, settings, _) in self.methods.items()
            for s in seeds
        ]


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments(__doc__, jobs=2)
    parser.add_argument("--data", choices=["adult", "compas"], required=True)
    parser.add_argument("--train", required=True, help="training table")
    parser.add_argument("--test", help="test table (Adult)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--epochs", type=int, help="as in the configs by default")
    parser.add_argument("--tune", action="store_true", help="the search, whose picks are kept")
    parser.add_argument("--front", action="store_true", help="gap against AUC in the form that cannot be gamed")
    parser.add_argument("--ablation", choices=sorted(ABLATIONS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    benchmark = Benchmark(given)
    if given.tune:
        benchmark.tune_fronts() if given.front else benchmark.tune()
        benchmark.kept.write_text(json.dumps(benchmark.picks, indent=1))
        return
    results = run_all(benchmark.results(), given.jobs, ["train.auc", "train.worst_violation", "train.roc_gap"])
    what = given.ablation or ("front" if given.front else "methods")
    name = f"roc_fairness_{given.data}_{what}"
    (given.out / f"{name}.json").write_text(json.dumps(results, indent=1))
    extra = {f"{split} h of decisions": decided(split) for split in ("train", "test")}
    extra |= {"vacuous": vacuous, "collapsed": collapsed, "seconds": seconds}
    medians = {f"median {c}": functools.partial(median, c) for c in COLUMNS[3:]}
    print("\n" + table(results, COLUMNS, medians | extra))
    x = "worst_violation" if what == "methods" else "roc_gap"
    names = [r["label"] if given.ablation else METHODS[r["method"]] for r in results]
    picture(results, given.out / f"{name}.png", x, names)
    print(f"\n{given.out / name}.json, .png")


if __name__ == "__main__":
    main()
