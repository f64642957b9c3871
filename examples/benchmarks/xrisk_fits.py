"""Whole trainings with X-risks, every run through ``fcco fit``: the parts of xrisk.py from ``push`` on."""

import argparse
import functools
import importlib.util
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from runs import CHEAP, SEEDS, Job, median, rates, run_all, run_searches, seconds, spread, table, value
from torch import Tensor

from fcco_lightning import (
    Columns,
    EventSampling,
    GaussianGroups,
    GradedLists,
    NeighbourEvaluation,
    ProportionalHazards,
    QuerySampling,
    RankingEvaluation,
    RetrievalEvaluation,
    Splits,
    SurvivalEvaluation,
    SyntheticDataModule,
    TabularDataModule,
)
from fcco_lightning.evaluation.metrics.survival import partial_likelihood

Overrides = dict[str, Any]
LEARNING_RATES = [1e-3, 3e-3, 1e-2]
PUSH_EXPONENT = 4.0


def algorithms(gamma: float) -> dict[str, Overrides]:
    """Four ways to remember inner values, with the same gamma."""
    named = {name: {"model.algorithm": name, "model.algorithm.gamma": gamma} for name in ("SOX", "MOAP", "SOAP")}
    return named | {"BSGD": {"model.algorithm": "BSGD"}}


class Comparison(NamedTuple):
    """Methods on one problem.

    Attributes:
        config: under ``configs/``.
        methods: label -> overrides.
        columns: of the table, "split.name".
        common: seed -> overrides of all runs.
        score: of a run of the search for the learning rate, maximised; None keeps that of the config.
        rates: learning rates that the search starts with.
        tuning: seed -> further overrides of the search's runs.
        others: seed -> what runs beside ``fcco fit``, as finished jobs.
        extra: further columns, made of a label's runs.
    """

    config: str
    methods: dict[str, Overrides]
    columns: tuple[str, ...]
    common: Callable[[int], Overrides]
    score: Callable[[Job], float] | None = None
    rates: list[float] = LEARNING_RATES
    tuning: Callable[[int], Overrides] = lambda seed: {}  # noqa: ARG005
    others: Callable[[int], Iterable[Job]] = lambda seed: ()  # noqa: ARG005
    extra: dict[str, Callable[[list[Job]], str]] = {}  # noqa: RUF012

    def job(self, label: str, overrides: Overrides, seed: int) -> Job:
        """One run."""
        given = CHEAP | self.common(seed) | self.methods[label] | overrides
        return {"label": label, "config": self.config, "seed": seed, "overrides": given}

    def tuning_job(self, label: str, overrides: Overrides, seed: int) -> Job:
        """A run of the search."""
        return self.job(label, self.tuning(seed) | overrides, seed)


def compare(part: str, given: argparse.Namespace) -> tuple[dict[str, Any], list[Job]]:
    """Search, run and print; the picks and the runs."""
    what = COMPARISONS[part](given.out)
    picks: dict[str, Any] = {}
    if what.score is not None:
        grids = {label: {"model.optimizer.lr": what.rates} for label in what.methods}
        tuning_seeds = SEEDS[: given.tuning_seeds]
        picks = run_searches(grids, what.tuning_job, what.score, given.jobs, [], seeds=tuning_seeds)
    jobs = [
        what.job(label, picks.get(label, {"picked": {}})["picked"], seed)
        for label in what.methods
        for seed in range(given.seeds)
    ]
    results = run_all(jobs, given.jobs, what.columns)
    results += [job for seed in range(given.seeds) for job in what.others(seed)]
    extra = what.extra | ({"picked": rates} if picks else {}) | {"s": seconds}
    print(f"\n{part}\n" + table(results, what.columns, extra))
    return picks, results


def beside(label: str, seed: int, run: Callable[[], dict[str, dict[str, float]]]) -> Job:
    """What is no run of ``fcco fit``, as a finished job: figures by split, and seconds."""
    start = time.perf_counter()
    figures = run()
    return {
        "label": label,
        "seed": seed,
        "overrides": {},
        "train": {},
        **figures,
        "seconds": time.perf_counter() - start,
    }


# ---------------------------------------------------------------------------------------------------------------- push


class PushLoss(RankingEvaluation):
    """Beside the ranking figures ``push_loss``: the p-norm push over the negatives, p = 4, with exponential losses."""

    def __call__(self, outputs: Tensor, batch: dict[str, Tensor]) -> dict[str, float]:
        scores, positive = outputs.double().flatten(), batch["y"] == 1
        means = (torch.logsumexp(-scores[positive], 0) + scores[~positive]).exp() / positive.sum()
        return super().__call__(outputs, batch) | {"push_loss": float(means.pow(PUSH_EXPONENT).mean())}


def push(folder: Path) -> Comparison:
    """The p-norm push of a linear model, p = 4, batches of 64 (SOX paper, Tables 3 and 4), on tables written here."""
    data: Overrides = {"data.columns.label": "y", "data.columns.positive": 1}
    for seed, split in enumerate(("train", "test")):
        sample = GaussianGroups().sample(8000, torch.Generator().manual_seed(seed))
        data[f"data.{split}"] = folder / f"push_{split}.csv"
        write(sample["x"], sample["y"], data[f"data.{split}"])
    shape = {"model.network.hidden": [], "data.batches.batch_size": 64, "model.objective.p": PUSH_EXPONENT}
    shape |= {"trainer.max_epochs": 5}
    return Comparison(
        "xrisk/adult_p_norm_push",
        algorithms(0.5),
        ("train.push_loss", "test.push_loss", "test.auc"),
        lambda seed: data | shape | {"model.evaluation": "xrisk_fits.PushLoss"},  # noqa: ARG005
        lambda run: -value(run, "val.push_loss"),
        tuning=lambda seed: {"data.splits.val_fraction": 0.2, "data.splits.seed": seed},
        extra={"test, median": functools.partial(median, "test.push_loss")},
    )


def write(x: Tensor, y: Tensor, path: Path) -> None:
    """A table with the columns x00, x01, ... and y."""
    frame = pd.DataFrame(x.numpy(), columns=[f"x{i:02d}" for i in range(x.shape[1])])
    frame.assign(y=y.numpy()).to_csv(path, index=False)


# ---------------------------------------------------------------------------------------------------------- neighbours


def neighbours(folder: Path) -> Comparison:  # noqa: ARG001
    """Linear maps of scikit-learn's digits to 8 dimensions, judged by 3 nearest neighbours within the test split."""
    return Comparison(
        "xrisk/digits_nca_sox",
        {name: overrides for name, overrides in algorithms(0.5).items() if name != "MOAP"},
        ("train.knn_accuracy", "test.knn_accuracy"),
        lambda seed: {"data.splits.seed": seed},
        others=other_neighbours,
    )


def other_neighbours(seed: int) -> Iterable[Job]:
    """Scikit-learn's method with the full gradient, principal components, and the pixels as they are."""
    from sklearn.decomposition import PCA
    from sklearn.neighbors import NeighborhoodComponentsAnalysis

    splits = Splits(test_fraction=0.3, seed=seed)
    module = TabularDataModule("sklearn:digits", columns=Columns("target"), splits=splits)
    module.setup()
    columns = {name: module.tables[name].columns for name in ("train", "test")}
    evaluation = NeighbourEvaluation(k=3, distance="euclidean")

    def judged(transform: Callable[[Any], Any]) -> dict[str, dict[str, float]]:
        points = {name: np.asarray(transform(split["x"].numpy())) for name, split in columns.items()}
        return {name: evaluation(torch.from_numpy(points[name]), split) for name, split in columns.items()}

    x, y = columns["train"]["x"].numpy(), columns["train"]["y"].numpy()
    nca = NeighborhoodComponentsAnalysis(n_components=8, random_state=seed)
    yield beside("scikit-learn", seed, lambda: judged(nca.fit(x, y).transform))
    yield beside("8 principal components", seed, lambda: judged(PCA(8, random_state=seed).fit(x).transform))
    yield beside("pixels", seed, lambda: judged(lambda x: x))


# ------------------------------------------------------------------------------------------------------------ survival


PATIENTS, STEPS = 1000, 500
REMEMBERED: dict[str, Overrides] = {
    "SOX": {"model.algorithm": "SOX", "model.algorithm.gamma": 0.5},
    "SONEX": {"model.algorithm": "SONEX", "model.algorithm.gamma+gamma_prime": (0.3, 0.3)},
    "in-batch Cox (BSGD)": {"model.algorithm": "BSGD"},
}


def survival(folder: Path) -> Comparison:  # noqa: ARG001
    """A linear Cox model from batches that hold as many events as censored patients."""
    rows = patients(0).num_train
    methods = {
        f"batch {size}, {name}": overrides
        | {f"data.batches.{kind}_per_batch": size // 2 for kind in ("events", "censored")}
        | {"trainer.max_epochs": max(1, round(STEPS * size / rows))}
        for size in (4, 16, 64)
        for name, overrides in REMEMBERED.items()
    }
    shape = {"model.network.hidden": [], "model.objective.ties": "breslow"}

    @functools.cache
    def best(seed: int) -> dict[str, dict[str, float]]:
        return full_batch(patients(seed))

    def gap(runs: list[Job]) -> str:
        shares = [
            100 * (value(r, "train.loss") - best(r["seed"])["train"]["loss"]) / best(r["seed"])["range"]["loss"]
            for r in runs
        ]
        return spread(shares, digits=2)

    return Comparison(
        "xrisk/synthetic_cox_sox",
        methods,
        ("train.loss", "test.c_index"),
        lambda seed: shape | {"data.data_seed": seed, "data.num_train": PATIENTS},
        lambda run: -value(run, "train.loss"),
        rates=[0.001, 0.003, 0.01],
        others=lambda seed: [beside("full batch, L-BFGS", seed, lambda: best(seed))],
        extra={"gap, % of F(0) - F*": gap},
    )


def patients(seed: int) -> SyntheticDataModule:
    """The data of the config."""
    module = SyntheticDataModule(PATIENTS, 4000, problem=ProportionalHazards(), batches=EventSampling(), data_seed=seed)
    module.setup()
    return module


def optimum(columns: dict[str, Tensor]) -> Tensor:
    """The weights (d,) at which the exact partial likelihood (ties by Breslow's method) is largest, by L-BFGS."""
    from scipy.optimize import minimize

    x, times, event = columns["x"].double(), columns["time"].double(), columns["event"] == 1
    order = times.argsort(descending=True)
    last = torch.searchsorted(-times[order], -times, right=True) - 1  # of those at risk, in this order

    def loss(w: Any) -> tuple[float, Any]:
        weights = torch.tensor(w, requires_grad=True)
        risk = x @ weights
        mean = (torch.logcumsumexp(risk[order], 0)[last] - risk)[event].mean()
        return mean.item(), torch.autograd.grad(mean, weights)[0].numpy()

    options = {"ftol": 1e-14, "gtol": 1e-9}
    return torch.from_numpy(minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options=options).x)


def full_batch(module: SyntheticDataModule) -> dict[str, dict[str, float]]:
    """What the optimum reaches, and F(0) - F*."""
    train, test = (module.tables[name].columns for name in ("train", "test"))
    w = optimum(train)

    def loss(weights: Tensor) -> float:
        return partial_likelihood(train["time"].double(), train["event"] == 1, train["x"].double() @ weights)

    concordance = SurvivalEvaluation()(test["x"].double() @ w, test)["c_index"]
    best = loss(w)
    return {"train": {"loss": best}, "test": {"c_index": concordance}, "range": {"loss": loss(0 * w) - best}}


# ------------------------------------------------------------------------------------------------------------- ranking


def ranking(folder: Path) -> Comparison:  # noqa: ARG001
    """ListNet, NDCG by default, from scratch and after ListNet, of the same number of epochs each, and LambdaMART."""
    smooth = {"model.objective": "NDCG", "model.objective.loss": "SigmoidPair", "model.objective.loss.scale": 0.5}
    first = {
        "model.pretrain.epochs": 15,
        "model.pretrain.objective": "ListNet",
        "model.pretrain.algorithm": "SOX",
    }
    return Comparison(
        "xrisk/synthetic_list_net_sox",
        {
            "ListNet": {},
            "NDCG, default": {"model.objective": "NDCG"},
            "NDCG, after ListNet": smooth | first | {"model.pretrain.new_head": "false"},
            "NDCG, from scratch": smooth | {"model.pretrain": "null"},
        },
        ("test.ndcg_5", "test.ndcg_10"),
        lambda seed: {"data.data_seed": seed},
        others=lambda_mart,
    )


def lambda_mart(seed: int) -> Iterable[Job]:
    """LightGBM's, with its default parameters, on the same splits."""
    if not importlib.util.find_spec("lightgbm"):
        return
    from lightgbm import LGBMRanker

    module = SyntheticDataModule(400, 200, problem=GradedLists(), batches=QuerySampling(), data_seed=seed)
    module.setup()
    train, test = (module.tables[name].columns for name in ("train", "test"))

    def run() -> dict[str, dict[str, float]]:
        order = train["query"].argsort(stable=True)
        sizes = torch.unique(train["query"], return_counts=True)[1]
        model = LGBMRanker(random_state=seed, n_jobs=1, verbose=-1)
        model.fit(train["x"][order].numpy(), train["y"][order].long().numpy(), group=sizes.numpy())
        scores = torch.from_numpy(model.predict(test["x"].numpy()))
        return {"test": RetrievalEvaluation(k=[5, 10])(scores, test)}

    yield beside("LambdaMART (LightGBM)", seed, run)


COMPARISONS: dict[str, Callable[[Path], Comparison]] = {
    "push": push,
    "neighbours": neighbours,
    "survival": survival,
    "ranking": ranking,
}
