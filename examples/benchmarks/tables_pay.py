"""Do the objectives of rankings, with their defaults, pay on imbalanced tables?

Methods differ in what they minimise and how they begin, and are all trained in one of the ways that people type:

- ``--way steps``: the module in a Trainer, uniform batches of 128, Adam, steps of its rate at half and three quarters;
- ``--way constant``: the same with the module's own optimizer at a constant rate;
- ``--way recipe``: ``fcco fit TABLE --label y --objective NAME``, with what follows from that.

Figures are average precision, AUC, its part with a false positive rate of at most .1 (standardised), that with a true
positive rate of at least .5, too (two-way), and the recall among as large a share of a split as is positive in
training; k is the number of positives that train.

All have the same perceptron.  Runs of a table and a seed follow each other, and differences to cross-entropy that is
trained in the same way are taken run by run::

    uv run python examples/benchmarks/tables_pay.py --data ../shared/data

``--tables choose`` takes the tables and validation parts on which defaults were chosen, ``--tables test`` (the default)
the others and their test parts.  Tables of files that the folder lacks are left out, and said.  A run takes some
seconds; with ``--kept`` every result is a line of that file at once, and runs that are there are not carried out again.
"""

import contextlib
import io
import json
import logging
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from imbalanced_tables import CHOOSE, TEST, Source, Split, splits_of, tables
from runs import Job, arguments, quiet_trainer, run_all, value
from sklearn.metrics import average_precision_score, roc_auc_score
from torch.optim import Adam

from fcco_lightning import (
    AUC,
    AveragePrecision,
    BalancedSampling,
    CrossEntropy,
    CVaRPartialAUC,
    FCCOModule,
    KLPartialAUC,
    Pretraining,
    RecallAtK,
    Schedule,
    StepAtFractions,
    TabularMLP,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.evaluation.metrics import partial_auc


class Method(NamedTuple):
    """What is minimised, and how it begins: as arguments of FCCOModule, and as words of ``fcco fit``.

    Attributes:
        parts: the arguments, by the number of positives that train.
        words: with that number in the place of {k}.
        balanced: whether half of a batch is positive, and means are those of such data.
    """

    parts: Callable[[int], dict[str, Any]]
    words: str
    balanced: bool = False


BASELINE = "cross-entropy"
BALANCED = " --data.batches BalancedSampling --data.batches.prevalence batch"
METHODS = {
    BASELINE: Method(lambda _: {"objective": CrossEntropy()}, "CrossEntropy"),
    "cross-entropy, from scores of 0": Method(  # the recipe begins at the log-odds
        lambda _: {"objective": CrossEntropy()}, "CrossEntropy --model.network.offset 0"
    ),
    "cross-entropy, balanced batches": Method(
        lambda _: {"objective": CrossEntropy()}, f"CrossEntropy{BALANCED}", balanced=True
    ),
    "AveragePrecision(), balanced batches": Method(
        lambda _: {"objective": AveragePrecision()}, f"AveragePrecision{BALANCED}", balanced=True
    ),
    "AUC(), balanced batches": Method(lambda _: {"objective": AUC()}, f"AUC{BALANCED}", balanced=True),
    "AveragePrecision()": Method(lambda _: {"objective": AveragePrecision()}, "AveragePrecision"),
    "no pretraining": Method(
        lambda _: {"objective": AveragePrecision(), "pretrain": None}, "AveragePrecision --model.pretrain null"
    ),
    "no pretraining, sigmoid=False": Method(
        lambda _: {"objective": AveragePrecision(sigmoid=False), "pretrain": None},
        "AveragePrecision --model.objective.sigmoid false --model.pretrain null",
    ),
    "sigmoid=False": Method(
        lambda _: {"objective": AveragePrecision(sigmoid=False)}, "AveragePrecision --model.objective.sigmoid false"
    ),
    "Pretraining(0.5)": Method(
        lambda _: {"objective": AveragePrecision(), "pretrain": Pretraining(0.5)},
        "AveragePrecision --model.pretrain.epochs 0.5",
    ),
    "AUC()": Method(lambda _: {"objective": AUC()}, "AUC"),
    "KLPartialAUC()": Method(lambda _: {"objective": KLPartialAUC()}, "KLPartialAUC"),
    "CVaRPartialAUC(.1)": Method(
        lambda _: {"objective": CVaRPartialAUC(0.1)}, "CVaRPartialAUC --model.objective.max_fpr 0.1"
    ),
    "CVaRPartialAUC(.1, .5)": Method(
        lambda _: {"objective": CVaRPartialAUC(0.1, 0.5)},
        "CVaRPartialAUC --model.objective.max_fpr 0.1 --model.objective.min_tpr 0.5",
    ),
    "KLPartialAUC(tau=1)": Method(
        lambda _: {"objective": KLPartialAUC(tau=1.0)}, "KLPartialAUC --model.objective.tau 1"
    ),
    "RecallAtK(k)": Method(lambda k: {"objective": RecallAtK(k)}, "RecallAtK --model.objective.k {k}"),
    "RecallAtK(k), ranks alone": Method(
        lambda k: {"objective": RecallAtK(k, sigmoid=False), "pretrain": None},
        "RecallAtK --model.objective.k {k} --model.objective.sigmoid false --model.pretrain null",
    ),
}
STEPS: dict[str, dict[str, Any]] = {  # of a way
    "steps": {"optimizer": lambda params: Adam(params, lr=1e-3), "schedule": Schedule(StepAtFractions, "step")},
    "constant": {},
}
WAYS = (*STEPS, "recipe")
USUAL_STEPS = 1500
FIGURES = {
    "average precision": "average_precision",
    "AUC": "auc",
    "partial AUC": "partial_auc",
    "two-way partial AUC": "two_way_partial_auc",
    "recall": "recall",
}
MAX_FPR, MIN_TPR = 0.1, 0.5  # of the partial AUCs
PARTS = {"choose": (CHOOSE, "val"), "test": (TEST, "test")}


def source(job: Job) -> Source:
    """The table of a job."""
    return PARTS[job["tables"]][0][job["table"]]


def train(job: Job) -> Job:
    """One run; the job with the figures of the splits."""
    torch.set_num_threads(1)
    splits = splits_of(source(job), Path(job["data"]), job["seed"])
    start = time.perf_counter()
    figures = fitted(job, splits) if job["way"] == "recipe" else trained(job, splits)
    seconds = round(time.perf_counter() - start, 2)
    return {**job, **figures, "overrides": {"table": job["table"], "way": job["way"]}, "seconds": seconds}


def trained(job: Job, splits: Split) -> dict[str, dict[str, float]]:
    """Figures of a module that a Trainer fits."""
    rows = len(splits["train"]["y"])
    batch = min(128, rows // 2)
    torch.manual_seed(job["seed"])
    method = METHODS[job["label"]]
    module = FCCOModule(TabularMLP([64, 64]), **STEPS[job["way"]], **method.parts(int(splits["train"]["y"].sum())))
    batches = (
        BalancedSampling(batch, allow_repeats=True, prevalence="batch") if method.balanced else UniformSampling(batch)
    )
    data = TensorDataModule({name: splits[name] for name in ("train", "test")}, batches=batches, seed=job["seed"])
    epochs = math.ceil((job["steps"] or USUAL_STEPS) / (rows // batch))
    quiet_trainer(max_epochs=epochs, limit_val_batches=0).fit(module, data)
    figures = {}
    with torch.no_grad():
        for name, columns in splits.items():
            y, scores = columns["y"], module.network(columns["x"]).flatten()
            figures[name] = {
                "average_precision": float(average_precision_score(y, scores)),
                "auc": float(roc_auc_score(y, scores)),
                "partial_auc": float(roc_auc_score(y, scores, max_fpr=MAX_FPR)),
                "two_way_partial_auc": float(partial_auc(scores, y, MAX_FPR, MIN_TPR)),
                "recall": float(y[scores.topk(head_of(splits, name)).indices].sum() / y.sum()),
            }
    return figures


def head_of(splits: Split, name: str) -> int:
    """Number of samples that are as large a share of a split as the positives are of the training split."""
    return max(1, round(float(splits["train"]["y"].double().mean()) * len(splits[name]["y"])))


def fitted(job: Job, splits: Split) -> dict[str, Mapping[str, float]]:
    """Figures of ``fcco fit`` on a file of the training rows; the rows that count are its test file."""
    from fcco_lightning.cli import run

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    counted = PARTS[job["tables"]][1]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        files = {}
        for name in ("train", counted):
            x, y = splits[name]["x"].numpy(), splits[name]["y"].numpy()
            files[name] = f"{folder}/{name}.parquet"
            pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])]).assign(y=y).to_parquet(files[name])
        objective = METHODS[job["label"]].words.format(k=int(splits["train"]["y"].sum()))
        words = f"fit {files['train']} --test {files[counted]} --label y --objective {objective}"
        words += f" --model.evaluation RankingEvaluation --model.evaluation.max_fpr {MAX_FPR}"  # the same of all
        words += f" --model.evaluation.min_tpr {MIN_TPR}"
        words += f" --model.evaluation.top [{(head := head_of(splits, counted))}]"
        words += f" --seed {job['seed']} --report.folder {folder} --report.table false --report.pictures false"
        words += f" --trainer.logger false --trainer.enable_progress_bar false --trainer.default_root_dir {folder}"
        if job["steps"] is not None:
            words += f" --trainer.max_steps {job['steps']}"
        if status := run(words.split()):
            raise RuntimeError(f"fcco {words} ended with status {status}")
        report = json.loads(Path(folder, "report.json").read_text())
    return {"train": report["train"], counted: report["test"] | {"recall": report["test"][f"recall_at_{head}"]}}


def differences(results: Sequence[Job], label: str, column: str) -> dict[str, list[float]]:
    """By table the differences of a method to the baseline, seed by seed."""
    found: dict[tuple[str, str, int], float] = {(r["label"], r["table"], r["seed"]): value(r, column) for r in results}
    by_table: dict[str, list[float]] = {}
    for (name, table, seed), figure in found.items():
        if name == label:
            by_table.setdefault(table, []).append(figure - found[BASELINE, table, seed])
    return by_table


def compared(results: Sequence[Job], labels: Sequence[str], split: str) -> str:
    """Markdown: mean over tables +- standard error of the tables' mean differences, and the worst single run."""
    head = [f"{name}, to {BASELINE} | worst run | tables ahead" for name in FIGURES]
    lines = [f"| method | {' | '.join(head)} | s |", "|---" * (2 + 3 * len(FIGURES)) + "|"]
    for label in labels:
        cells = []
        for figure in FIGURES.values():
            by_table = differences(results, label, f"{split}.{figure}")
            means = [statistics.fmean(of) for of in by_table.values()]
            error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
            cells.append(f"{statistics.fmean(means):+.4f} +- {error:.4f}")
            cells.append(f"{min(min(of) for of in by_table.values()):+.3f}")
            cells.append(f"{sum(mean > 0 for mean in means)} of {len(means)}")
        times = [r["seconds"] for r in results if r["label"] == label]
        lines.append(f"| {label} | {' | '.join(cells)} | {statistics.median(times):.1f} |")
    return "\n".join(lines)


def by_table(results: Sequence[Job], labels: Sequence[str], split: str) -> str:
    """Markdown: every table's average precision of the baseline, and what the methods add to it."""
    lines = [f"| table | {BASELINE} | {' | '.join(labels)} |", "|---" * (2 + len(labels)) + "|"]
    for table in dict.fromkeys(r["table"] for r in results):
        column = f"{split}.average_precision"
        plain = [value(r, column) for r in results if r["table"] == table and r["label"] == BASELINE]
        cells = [f"{statistics.fmean(differences(results, label, column)[table]):+.3f}" for label in labels]
        lines.append(f"| {table} | {statistics.fmean(plain):.3f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the arguments, run and print."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the tables of files")
    parser.add_argument("--tables", choices=PARTS, default="test")
    parser.add_argument("--only", nargs="+", default=[], help="tables whose names begin so")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--way", choices=WAYS, default="steps", help="how all methods are trained")
    parser.add_argument("--steps", type=int, help=f"{USUAL_STEPS:,} by default, with the recipe what follows from it")
    parser.add_argument("--kept", type=Path)
    given = parser.parse_args()
    sources, split = PARTS[given.tables]
    sources = {name: of for name, of in sources.items() if not given.only or name.startswith(tuple(given.only))}
    known = list(tables(sources, given.data))
    if missing := sources.keys() - known:
        print(f"left out, as {given.data} has no such files: {', '.join(sorted(missing))}", flush=True)
    methods = list(dict.fromkeys([BASELINE, *given.methods]))
    common = {"tables": given.tables, "way": given.way, "steps": given.steps, "data": str(given.data)}
    jobs = [
        {"label": label, "table": table, "seed": seed, **common}
        for table in known
        for seed in range(given.seeds)
        for label in methods
    ]
    results = run_all(jobs, given.jobs, [f"{split}.{name}" for name in FIGURES.values()], train, given.kept)
    others = [label for label in methods if label != BASELINE]
    print(f"\n{compared(results, others, split)}\n\n{by_table(results, others, split)}")


if __name__ == "__main__":
    main()
