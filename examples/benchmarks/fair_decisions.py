"""Equal true positive rates on later rows by one command, beside fairlearn on a balanced logistic regression.

The command is ``fcco fit TABLE --label Y --sensitive G --decisions balanced``, and its decisions are those of ``fcco
predict`` on a table that nobody has seen.  Fairlearn is no dependency; without it its methods are left out::

    uv run --with fairlearn python examples/benchmarks/fair_decisions.py --data FOLDER --seeds 3

Made tables have 7,000 rows, 5% positives (fewer in the smaller group), a smaller group of 5% to 40%, and 100,000 later
rows, so that rates of later rows are known to .02 or .04.  The sensitive column is a feature in half of them ("in").
Two weak tables have 3,000 rows, 10% positives, two groups of one size, and features that hardly tell the label (AUC of
the best score about .6): a step ("weak, step") or a straight line ("weak, line") in an income that tells the group.
FOLDER holds adult_train.csv, adult_test.csv, compas.csv, german.csv and crime.csv; those that it lacks are left out.
Tables without a test split lose 30% of their rows, drawn anew for every seed.

Fairlearn's ExponentiatedGradient (equalized odds, or true positive rates alone) and ThresholdOptimizer (equalized odds,
which see the group of a new row) stand on a logistic regression with balanced weights, on one-hot and standardised
columns; both draw decisions at random, and the figures are expected values.

A run *passes* if the gap of its true positive rates on later rows is no more than .03 above that of the reduction of
the same table, at a balanced accuracy no lower, and it is not vacuous; a case passes if the means over its seeds do.
"""

import contextlib
import importlib.util
import io
import itertools
import json
import resource
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from peers import SOURCES, read
from runs import Job, arguments, run_all, value
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fcco_lightning import ConstrainedClassifier, EqualizedOdds

KAPPA, SLACK = 0.02, 0.03
ROWS, LATER, HELD_OUT = 7_000, 100_000, 0.3
COMMAND, CLASSIFIER = "fcco fit", "ConstrainedClassifier"
OURS = (COMMAND, CLASSIFIER)
REDUCTIONS = ("reduction, odds", "reduction, tpr")
FEW = 0.1  # of a class, decided as it is: below it nearly all are decided alike
MADE = {
    f"made, {100 * share:g}%{kind}": (share, bool(kind)) for share in (0.05, 0.1, 0.2, 0.4) for kind in ("", ", in")
}
WEAK = ("weak, step", "weak, line")


class Table(NamedTuple):
    """A table and later rows of it, with what their columns mean."""

    rows: pd.DataFrame
    later: pd.DataFrame
    label: str
    positive: Any
    sensitive: str
    inside: bool = False  # whether the sensitive column is a feature

    def features(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The columns that are features."""
        return rows.drop(columns=[self.label, *([] if self.inside else [self.sensitive])])

    def truth(self, rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Labels 0 and 1, and groups as texts."""
        return (rows[self.label] == self.positive).to_numpy(int), rows[self.sensitive].astype(str).to_numpy()


Predict = Callable[[pd.DataFrame], np.ndarray]  # the probability of a positive decision of every row


def made(n: int, small: float, seed: int, positives: float = 0.05) -> pd.DataFrame:
    """Customers of two regions, the smaller of which has fewer positives; scores bend and columns act together."""
    random = np.random.default_rng(seed)
    b = random.random(n) < small
    age, visits = random.normal(45, 14, n).clip(18, 90).round(), random.poisson(3 + ~b)
    income = random.lognormal(10 + 0.1 * ~b, 0.6)
    plan = random.choice(["basic", "plus", "pro"], n, p=[0.6, 0.3, 0.1])
    city = random.integers(0, 20, n)
    m = random.normal(size=(n, 3))
    score = 0.03 * (age - 45) + 0.9 * (np.log(income) - 10) - 0.25 * (visits - 3) + 0.7 * (plan == "pro") + 0.5 * ~b
    score += 0.4 * m[:, 0] * m[:, 1] + 0.5 * np.sin(2 * m[:, 2]) + 0.2 * (city % 3) + random.logistic(0, 0.8, n)
    columns = {"age": age, "income": income.round(2), "visits": visits, "plan": plan}
    columns |= {"city": [f"city {i}" for i in city], "region": np.where(b, "b", "a")}
    columns |= {f"m{i}": m[:, i].round(4) for i in range(m.shape[1])}
    return pd.DataFrame(columns | {"answer": np.where(score > np.quantile(score, 1 - positives), "yes", "no")})


def weak(case: str, n: int, seed: int) -> pd.DataFrame:
    """People whose answer depends on their income alone, and little."""
    random = np.random.default_rng(seed)
    m = random.random(n) < 0.5
    income, age = random.normal(30 + 5 * m, 8), random.normal(40, 10, n)
    line = 1 / (1 + np.exp(2.2 - 0.5 * (income - 32.5) / 8))
    probability = 0.08 + 0.1 * (income > 38) if case == WEAK[0] else line
    columns = {"age": age, "job": random.choice(list("abc"), n), "income": income, "sex": np.where(m, "m", "f")}
    return pd.DataFrame(columns | {"answer": np.where(random.random(n) < probability, "yes", "no")})


def table(case: str, folder: Path, seed: int) -> Table:
    """The table of a case as a seed makes or divides it."""
    if case in WEAK:
        whole = weak(case, 3_000 + LATER, 9_000 + 100 * WEAK.index(case) + seed)
        return Table(whole[:3_000], whole[3_000:], "answer", "yes", "sex")
    if case in MADE:
        small, inside = MADE[case]
        whole = made(ROWS + LATER, small, 1000 + 100 * list(MADE).index(case) + seed)
        return Table(whole[:ROWS], whole[ROWS:], "answer", "yes", "region", inside)
    source = SOURCES[case]
    found = [read(str(path), source.unused) for path in files(case, folder)]
    if len(found) == 1:
        order, later = np.random.default_rng(seed).permutation(len(found[0])), int(HELD_OUT * len(found[0]))
        found = [found[0].iloc[order[later:]], found[0].iloc[order[:later]]]
    return Table(found[0], found[1], source.columns.label, source.columns.positive, source.columns.sensitive)


def files(case: str, folder: Path) -> list[Path]:
    """The files of a table."""
    return [folder / f"{name}.csv" for name in (("adult_train", "adult_test") if case == "adult" else (case,))]


def figures(decided: np.ndarray, y: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Gaps of true and of false positive rates, balanced accuracy, and whether nearly all are decided alike."""
    rates = {c: [decided[(y == c) & (group == g)].mean() for g in np.unique(group[y == c])] for c in (0, 1)}
    tpr, fpr = decided[y == 1].mean(), decided[y == 0].mean()
    gaps = {name: float(max(rates[c]) - min(rates[c])) for name, c in (("tpr_gap", 1), ("fpr_gap", 0))}
    return gaps | {"balanced": float(tpr + 1 - fpr) / 2, "vacuous": float(min(tpr, 1 - fpr) < FEW)}


def fcco(*arguments: str) -> None:
    """A command of this project, in this process and silently."""
    from fcco_lightning.cli import run

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = run(list(arguments))
    if status:
        raise RuntimeError(f"fcco {' '.join(arguments)} ended with {status}: {said.getvalue()[-800:]}")


def by_command(of: Table, seed: int, folder: Path) -> Predict:
    """One command with the label, the sensitive column and "balanced", on a file."""
    of.rows.to_csv(folder / "train.csv", index=False)
    asked = ["--label", of.label, "--positive", str(of.positive), "--sensitive", of.sensitive]
    asked += ["--decisions", "balanced", "--seed", str(seed), "--trainer.default_root_dir", str(folder)]
    asked += ["--data.columns.use_sensitive", "true"] if of.inside else []
    fcco("fit", str(folder / "train.csv"), *asked)
    (checkpoint,) = folder.rglob("last.ckpt")

    def predict(rows: pd.DataFrame) -> np.ndarray:
        rows.to_csv(folder / "later.csv", index=False)
        fcco("predict", str(checkpoint), str(folder / "later.csv"), "--out", str(folder / "decided.csv"))
        decided = pd.read_csv(folder / "decided.csv")["decision"]
        return (decided.astype(str) == str(of.positive)).to_numpy(float)

    return predict


def by_classifier(of: Table, seed: int, folder: Path) -> Predict:  # noqa: ARG001
    """The estimator, with the constraint that the command assumes."""
    columns, (y, group) = encoded(of), of.truth(of.rows)
    model = ConstrainedClassifier(constraints=[EqualizedOdds(KAPPA)], decisions="balanced", random_state=seed)
    model.fit(columns.transform(of.rows), y, sensitive_features=group)
    return lambda rows: model.predict(columns.transform(rows)).astype(float)


def reduced(moment: str, of: Table, seed: int, folder: Path) -> Predict:  # noqa: ARG001
    """Fairlearn's reduction to a series of weighted logistic regressions."""
    from fairlearn import reductions

    columns, (y, group) = encoded(of), of.truth(of.rows)
    constraint = getattr(reductions, moment)(difference_bound=KAPPA)
    model = reductions.ExponentiatedGradient(balanced_regression(), constraint)
    model.fit(columns.transform(of.rows), y, sensitive_features=group)
    return lambda rows: np.asarray(model._pmf_predict(columns.transform(rows)))[:, 1]


def thresholds(of: Table, seed: int, folder: Path) -> Predict:  # noqa: ARG001
    """Fairlearn's thresholds for each group."""
    from fairlearn.postprocessing import ThresholdOptimizer

    columns, (y, group) = encoded(of), of.truth(of.rows)
    settings = {"constraints": "equalized_odds", "objective": "balanced_accuracy_score"}
    model = ThresholdOptimizer(estimator=balanced_regression(), predict_method="predict_proba", **settings)
    model.fit(columns.transform(of.rows), y, sensitive_features=group)
    return lambda rows: model._pmf_predict(columns.transform(rows), sensitive_features=of.truth(rows)[1])[:, 1]


def balanced_regression() -> LogisticRegression:
    """What fairlearn's methods stand on."""
    return LogisticRegression(class_weight="balanced", max_iter=300)


def encoded(of: Table) -> Any:
    """Categories in columns of their own, and standardised numbers; fitted, and told the rows with all columns."""
    numbers = [name for name, kind in of.features(of.rows).dtypes.items() if pd.api.types.is_numeric_dtype(kind)]
    others = [name for name in of.features(of.rows) if name not in numbers]
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_column_transformer((one_hot, others), (StandardScaler(), numbers)).fit(of.rows)


METHODS: dict[str, Callable[[Table, int, Path], Predict]] = {
    COMMAND: by_command,
    CLASSIFIER: by_classifier,
    REDUCTIONS[0]: lambda *given: reduced("EqualizedOdds", *given),
    REDUCTIONS[1]: lambda *given: reduced("TruePositiveRateParity", *given),
    "thresholds": thresholds,
}


def train(job: Job) -> Job:
    """One run; the job with its figures on the training table and on later rows, and seconds of one core."""
    torch.set_num_threads(1)
    of = table(job["case"], Path(job["folder"]), job["seed"])
    before = cpu_seconds()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        try:
            predict = METHODS[job["method"]](of, job["seed"], Path(folder))
        except Exception as error:
            return {**job, "failed": repr(error)[:200]}
        seconds = round(cpu_seconds() - before, 1)
        found = {name: figures(predict(r), *of.truth(r)) for name, r in (("train", of.rows), ("later", of.later))}
    return {**job, **found, "seconds": seconds}


def cpu_seconds() -> float:
    """Of this process and those that it has waited for, on which other work of the machine has no influence."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def mean(runs: list[Job], column: str) -> float:
    """Over seeds."""
    return statistics.fmean(value(run, column) for run in runs)


def passes(ours: list[Job], reduction: list[Job]) -> bool:
    """Whether a case, or a single run, is as good as the reduction."""
    gap, accuracy = (mean(ours, f"later.{of}") - mean(reduction, f"later.{of}") for of in ("tpr_gap", "balanced"))
    return gap <= SLACK and accuracy >= 0 and not any(value(run, "later.vacuous") for run in ours)


def report(results: list[Job]) -> str:
    """Markdown: mean and standard deviation over seeds of every method on every table, then the count."""
    head = "| | | TPR gap, later | FPR gap, later | balanced accuracy | TPR gap, training | vacuous | s |"
    lines = [head, "|---" * 8 + "|"]
    cases: dict[str, dict[str, list[Job]]] = {}
    for run in results:
        if "failed" in run:
            lines.insert(0, f"{run['label']}, seed {run['seed']}, broke down: {run['failed']}\n")
            continue
        cases.setdefault(run["case"], {}).setdefault(run["method"], []).append(run)
    for case, methods in cases.items():
        for method, runs in methods.items():
            shown = [cell(runs, name) for name in ("later.tpr_gap", "later.fpr_gap", "later.balanced", "train.tpr_gap")]
            vacuous = f"{int(sum(value(run, 'later.vacuous') for run in runs))}/{len(runs)}"
            seconds = f"{statistics.median(run['seconds'] for run in runs):.1f}"
            lines.append(f"| {case} | {method} | {' | '.join([*shown, vacuous, seconds])} |")
    return "\n".join([*lines, "", *count(cases)])


def cell(runs: list[Job], column: str) -> str:
    """Mean and standard deviation over seeds."""
    values = [value(run, column) for run in runs]
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def count(cases: dict[str, dict[str, list[Job]]]) -> list[str]:
    """In how many cases, and single runs, this project is as good as either reduction."""
    lines = []
    for ours in OURS:
        for reduction in REDUCTIONS:
            both = {case: (of[ours], of[reduction]) for case, of in cases.items() if {ours, reduction} <= of.keys()}
            failed = [case for case, pair in both.items() if not passes(*pair)]
            single = [passes([a], [b]) for pair in both.values() for a, b in zip(pair[0], itertools.cycle(pair[1]))]
            lines.append(
                f"{ours} beside {reduction}: {len(both) - len(failed)} of {len(both)} cases pass, {sum(single)} of "
                f"{len(single)} single runs; not {'; '.join(failed) or '-'}"
            )
    return lines


def available() -> list[str]:
    """The methods that can run here."""
    if importlib.util.find_spec("fairlearn"):
        return list(METHODS)
    print("Fairlearn is not installed, so its methods are left out (uv run --with fairlearn python ...)")
    return list(OURS)


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments(__doc__, jobs=2)
    parser.set_defaults(seeds=3)
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the real tables, by default this one")
    parser.add_argument("--cases", nargs="+", choices=[*MADE, *WEAK, *SOURCES], help="by default all")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="by default all that are installed")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    cases = []
    for case in given.cases or [*MADE, *WEAK, *SOURCES]:
        if case in {*MADE, *WEAK} or all(path.exists() for path in files(case, given.data)):
            cases.append(case)
        else:
            print(f"{case} is left out: --data {given.data} does not hold it")
    jobs = [
        {"label": f"{case}: {m}", "case": case, "method": m, "folder": str(given.data), "seed": seed, "overrides": {}}
        for case in cases
        for m in given.methods or available()
        for seed in range(1 if case == "adult" and m not in OURS else given.seeds)  # where nothing is drawn
    ]
    shown = ["later.tpr_gap", "later.balanced", "train.tpr_gap"]
    results = run_all(jobs, given.jobs, shown, train, given.out / "fair_decisions.jsonl")
    (given.out / "fair_decisions.json").write_text(json.dumps(results, indent=1))
    print("\n" + report(results))


if __name__ == "__main__":
    main()
