"""Group DRO: methods x seeds on Adult (83 groups) or CelebA's attributes (16 groups).

Every run goes through ``fcco fit`` and a config, so it is the run that a user gets::

    uv run python examples/benchmarks/group_dro.py --data adult --train adult_train.csv --test adult_test.csv --tune
    uv run python examples/benchmarks/group_dro.py --data adult ... --alpha 0.1        # ALEXR paper, Table 2
    uv run python examples/benchmarks/group_dro.py --data celeba_attributes --train celeba_attributes.parquet

A row reports mean +- standard deviation over seeds 0, 1, ...  ``--tune`` starts with 9 points per method, a grid that
grows until the pick does not lie on its edge; it has seeds of its own and picks by the validation split, never by the
test split: on Adult the highest accuracy on the worst groups, as Table 2 of the ALEXR paper reports it, on CelebA the
least CVaR of the losses, as in Fig. 1 of the SONEX paper.  Its picks are kept in the output folder and used later.
Beside the JSON file and the table a picture shows the CVaR of the training losses after every epoch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runs import Axes, Job, arguments, band, run_all, run_searches, seconds, table, value

from fcco_lightning.evaluation.pictures import label_epochs, new_figure, row_of_axes, save

METHODS = {
    "adult": ("sgd", "sgd_uw", "ooa", "bsgd", "sox", "msvr", "sonx", "alexr", "sonex", "alexr2"),
    "celeba_attributes": ("sgd", "ooa", "sonx", "sonex"),
}
PAPER = {  # ALEXR paper, Table 2, Adult: alpha -> method -> accuracy on the worst groups, in percent
    0.1: {"sgd": 0.71, "sgd_uw": 23.70, "ooa": 51.46, "bsgd": 55.81, "sox": 56.34, "msvr": 47.78, "alexr": 56.58},
    0.15: {"sgd": 1.87, "sgd_uw": 26.26, "ooa": 54.12, "bsgd": 58.58, "sox": 58.36, "msvr": 49.49, "alexr": 58.52},
}
LEARNING_RATES = {"adult": [0.05, 0.2, 0.8], "celeba_attributes": [0.02, 0.1, 0.5]}
GAMMAS = {"model.algorithm.gamma": [0.1, 0.3, 0.9]}
LAMS = {"model.algorithm.lam": [0.001, 0.01, 0.1]}  # lam = eps / C_f with C_f = 1/alpha
EPOCHS = {"trainer.max_epochs": [5, 10, 20]}
GRIDS: dict[str, Axes] = {  # beside the learning rates, so 9 runs for every method
    "sgd": EPOCHS,
    "sgd_uw": EPOCHS,
    "bsgd": EPOCHS,
    "ooa": {"model.algorithm.eta_dual": [1e-3, 1e-2, 1e-1]},
    "sox": GAMMAS,
    "msvr": GAMMAS,
    "sonx": GAMMAS,
    "alexr": {"model.algorithm.tau": [0.3, 1.0, 3.0]},
    "sonex": LAMS,
    "alexr2": LAMS,
}
BOUNDS = {"model.algorithm.gamma": 1.0, "trainer.max_epochs": 20}
SCORES: dict[str, Callable[[Job], float]] = {
    "adult": lambda r: value(r, "val.tail_accuracy"),
    "celeba_attributes": lambda r: -value(r, "val.cvar_loss"),
}
FIGURES = ("test.tail_accuracy", "test.worst_group_accuracy", "test.accuracy", "test.cvar_loss", "train.cvar_loss")
CURVE = "train_cvar_loss"


def grid(method: str, data: str, epochs: int | None) -> Axes:
    """The grid of a method; the learning rates alone if ``epochs`` are given and nothing else is to be tuned."""
    rates = [0.1, 0.5, 2.5] if method == "alexr2" else LEARNING_RATES[data]  # its step moves along an average
    other = {} if epochs and GRIDS[method] == EPOCHS else GRIDS[method]
    return {"model.optimizer.lr": rates, **other}


def picture(results: list[Job], path: Path) -> None:
    """CVaR of the training losses against epochs: the mean over seeds, and their range."""
    figure = new_figure(7, 4.5)
    (axes,) = row_of_axes(figure, 1)
    for label in dict.fromkeys(r["label"] for r in results):
        curves = [r["curves"][CURVE] for r in results if r["label"] == label and "curves" in r]
        band(axes, range(1, len(curves[0]) + 1), curves, label)
    label_epochs(axes, "CVaR of the groups' training losses", "")
    axes.legend()
    save(figure, path)


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments(__doc__, jobs=2)
    parser.add_argument("--data", choices=sorted(METHODS), required=True)
    parser.add_argument("--train", required=True, help="training table")
    parser.add_argument("--test", help="test table of Adult, which is pooled with the training table")
    parser.add_argument("--alpha", type=float, help="share of the groups; as in the configs by default")
    parser.add_argument("--methods", nargs="+", help="all by default")
    parser.add_argument("--epochs", type=int, help="as tuned, or as in the configs, by default")
    parser.add_argument("--tune", action="store_true", help="the grids with one seed")
    given = parser.parse_args()
    methods = given.methods or METHODS[given.data]
    if unknown := set(methods) - set(METHODS[given.data]):
        parser.error(f"--methods {sorted(unknown)}: choose from {', '.join(METHODS[given.data])}.")

    common: dict[str, Any] = {"data.train": given.train, "report.pictures": "false"} | (
        {"data.pool": f"[{given.test}]"} if given.test else {}
    )
    picks_file = given.out / f"group_dro_{given.data}_picks.json"
    picks = json.loads(picks_file.read_text()) if picks_file.exists() else {}

    def job(method: str, overrides: dict[str, Any], seed: int) -> Job:
        chosen = common | ({} if given.tune else picks.get(method, {"picked": {}})["picked"]) | overrides
        if given.alpha:
            chosen["model.evaluation.alpha"] = given.alpha
            if not method.startswith("sgd"):
                chosen["model.objective.alpha"] = given.alpha
        if given.epochs:
            chosen["trainer.max_epochs"] = given.epochs
        config = f"group_dro/{given.data}_{method}"
        curves = [] if given.tune else [CURVE]
        return {"label": method, "config": config, "seed": seed, "overrides": chosen, "curves": curves}

    given.out.mkdir(parents=True, exist_ok=True)
    if given.tune:
        grids = {m: grid(m, given.data, given.epochs) for m in methods}
        shown = ["val.tail_accuracy", "val.cvar_loss"]
        picks |= run_searches(grids, job, SCORES[given.data], given.jobs, shown, bounds=BOUNDS)
        picks_file.write_text(json.dumps(picks, indent=1))
        return
    jobs = [job(m, {}, seed) for m in methods for seed in range(given.seeds)]
    results = run_all(jobs, given.jobs, FIGURES[:3])
    name = f"group_dro_{given.data}" + (f"_{given.alpha:g}" if given.alpha else "")
    (given.out / f"{name}.json").write_text(json.dumps(results, indent=1))
    paper = PAPER.get(given.alpha or 0.1, {}) if given.data == "adult" else {}
    columns = {"seconds": seconds} | ({"paper": lambda runs: f"{paper.get(runs[0]['label'], '')}"} if paper else {})
    print("\n" + table(results, FIGURES, columns))
    picture(results, given.out / f"{name}.png")
    print(f"\n{given.out / name}.json, .png")


if __name__ == "__main__":
    main()
