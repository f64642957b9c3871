"""AUC under ROC-fairness constraints: methods x seeds on one data set, as a JSON file, a table and a picture.

Every run goes through the product's own command line and configs, so it is the run that a user gets::

    uv run python examples/benchmarks/roc_fairness.py --data adult --train adult_train.csv --test adult_test.csv
    uv run python examples/benchmarks/roc_fairness.py --data compas --train compas.csv --seeds 5 --jobs 2
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --tune          # the grids, one seed each
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --ablation beta  # SONEX paper, Table 3
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --ablation type  # SONEX paper, Table 5
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --ablation pareto  # cannot be gamed
    uv run python examples/benchmarks/roc_fairness.py --data adult ... --ablation quantile  # methods in that form

A row reports mean +- standard deviation over seeds.  Tuning holds out a fifth of the training split and takes the run
with the highest AUC there among those whose worst training violation is at most 0.005; every method gets the same
number of runs, and the test split is not looked at.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from runs import run_all, seconds, table

METHODS = ("alexr2", "sonex", "sox_squared_hinge", "sonx", "sgd")
TOLERANCE = 0.005
COLUMNS = ("train.auc", "train.worst_violation", "train.roc_gap", "test.auc", "test.worst_violation", "test.roc_gap")

# The same budget for every method: 12 runs.  Values from the grids of F.2 of the SONEX paper.
GRIDS: dict[str, dict[str, list[Any]]] = {
    "alexr2": {
        "model.penalty.rho": [4, 10, 40],
        "model.optimizer.lr": [1e-3, 1e-2],
        "model.algorithm.eta+nu": [(0.1, 0.1), (0.01, 0.01)],
    },
    "sonex": {
        "model.penalty.rho": [4, 10, 40],
        "model.optimizer.lr": [1e-3, 1e-2],
        "model.algorithm.lam": [2e-2, 2e-3],
    },
    "sox_squared_hinge": {
        "model.penalty.rho": [10, 100, 400, 1000],
        "model.optimizer.lr": [1e-2, 1e-3, 1e-4],
    },
    "sonx": {
        "model.penalty.rho": [4, 10, 40],
        "model.optimizer.lr": [0.1, 1e-2, 1e-3, 1e-4],
    },
}
# Quantile thresholds alone; the config has standardised scores beside them.
QUANTILE = {
    "model.constraints": "[{class_path: ROCFairness, init_args: {thresholds: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, "
    "0.85, 0.9, 0.95], kappa: 0.005, temperature: 0.1, scale: QuantileScores}}]"
}
ABLATIONS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "beta": {f"beta={b}": ("alexr2", {"model.optimizer.beta": b}) for b in (0.1, 0.3, 0.5, 1.0)},
    "type": {
        "Adam": ("alexr2", {}),
        **{
            f"momentum lr={lr}": ("alexr2", {"model.optimizer": "HeavyBall", "model.optimizer.lr": lr})
            for lr in (1.0, 0.1, 0.01)
        },
    },
    "pareto": {
        **{f"rho={rho}": ("ungameable", {"model.penalty.rho": rho}) for rho in (2, 3, 5)},
        **{
            f"quantiles alone rho={rho}": ("ungameable", QUANTILE | {"model.penalty.rho": rho})
            for rho in (0.5, 1, 2, 3, 5, 8)
        },
    },
    "quantile": {
        **{f"SONEX rho={rho}": ("ungameable", QUANTILE | {"model.penalty.rho": rho}) for rho in (1, 3)},
        **{
            f"ALEXR2 rho={rho}": (
                "ungameable",
                QUANTILE
                | {"model.penalty.rho": rho, "model.algorithm": "ALEXR2", "model.algorithm.gamma": 0.2}
                | {"model.algorithm.lam": 0.002, "model.optimizer.lr": 1e-2},
            )
            for rho in (3, 10)
        },
        **{
            f"SOX, squared hinge rho={rho}": (
                "ungameable",
                QUANTILE
                | {"model.penalty": "SquaredHingePenalty", "model.penalty.rho": rho, "model.algorithm": "SOX"}
                | {"model.algorithm.gamma": 0.2},
            )
            for rho in (30, 100)
        },
        **{
            f"SONX rho={rho}": (
                "ungameable",
                QUANTILE
                | {"model.penalty.rho": rho, "model.algorithm": "SONX", "model.algorithm.gamma": 0.2}
                | {"model.optimizer": "HeavyBall", "model.optimizer.beta": 1.0, "model.optimizer.lr": 0.1},
            )
            for rho in (1, 3)
        },
    },
}


def picked(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The tuned run: highest validation AUC among those feasible in training, else the least violation."""
    finished = [r for r in results if "train" in r]
    feasible = [r for r in finished if r["train"]["worst_violation"] <= TOLERANCE]
    if feasible:
        return max(feasible, key=lambda r: r["val"]["auc"])
    return min(finished, key=lambda r: r["train"]["worst_violation"])


def vacuous(runs: list[dict[str, Any]]) -> str:
    """In how many runs the constraints had become vacuous."""
    return f"{sum(bool(r['train']['vacuous']) for r in runs)}/{len(runs)}"


def picture(results: list[dict[str, Any]], path: Path, x: str) -> None:
    """Test AUC against ``x`` on the test split, one colour per label, one dot per seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for label in dict.fromkeys(r["label"] for r in results):
        runs = [r for r in results if r["label"] == label and "test" in r]
        axes.scatter([r["test"][x] for r in runs], [r["test"]["auc"] for r in runs], label=label, s=28)
    axes.set_xlabel({"worst_violation": "worst violation max h (test)", "roc_gap": "hard ROC gap (test)"}[x])
    axes.set_ylabel("AUC (test)")
    axes.grid(alpha=0.3)
    axes.legend()
    FigureCanvasAgg(figure).print_figure(path, dpi=130)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["adult", "compas"], required=True)
    parser.add_argument("--train", required=True, help="training table")
    parser.add_argument("--test", help="test table (Adult)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="as in the configs by default")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--tune", action="store_true", help="the grids with one seed, then the picked run of each")
    parser.add_argument("--ablation", choices=sorted(ABLATIONS))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    given = parser.parse_args()

    common = {"data.train": given.train} | ({"data.test": given.test} if given.test else {})
    if given.epochs:
        common["trainer.max_epochs"] = given.epochs

    def job(label: str, config: str, seed: int, overrides: dict[str, Any]) -> dict[str, Any]:
        return {
            "label": label,
            "config": f"roc_fairness/{given.data}_{config}",
            "seed": seed,
            "overrides": common | overrides,
        }

    if given.ablation:
        runs = ABLATIONS[given.ablation].items()
        jobs = [job(label, config, s, o) for label, (config, o) in runs for s in range(given.seeds)]
    elif given.tune:
        jobs = [
            job(m, m, 0, {"data.splits.val_fraction": 0.2} | dict(zip(GRIDS[m], values, strict=True)))
            for m in given.methods
            if m in GRIDS
            for values in itertools.product(*GRIDS[m].values())
        ]
    else:
        jobs = [job(m, m, s, {}) for m in given.methods for s in range(given.seeds)]
    results = run_all(jobs, given.jobs, ["train.auc", "train.worst_violation", "train.roc_gap"])

    given.out.mkdir(parents=True, exist_ok=True)
    name = f"roc_fairness_{given.data}_{'tune' if given.tune else given.ablation or 'methods'}"
    (given.out / f"{name}.json").write_text(json.dumps(results, indent=1))
    if given.tune:
        for m in dict.fromkeys(r["label"] for r in results):
            best = picked([r for r in results if r["label"] == m])
            print(f"picked {m}: {best['overrides']} train {best['train']} val {best['val']}")
        return
    print("\n" + table(results, COLUMNS, {"vacuous": vacuous, "seconds": seconds}))
    picture(
        results, given.out / f"{name}.png", "roc_gap" if given.ablation in ("pareto", "quantile") else "worst_violation"
    )
    print(f"\n{given.out / name}.json, .png")


if __name__ == "__main__":
    main()
