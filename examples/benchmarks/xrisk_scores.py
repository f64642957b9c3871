"""Training with five positives: part ``scores`` of xrisk.py.

A run takes about a second, less than ``fcco fit`` takes to start, so the engine is driven in a loop.
"""

import functools
import importlib.util
import itertools
import time
from collections.abc import Callable
from typing import Any

import libauc_losses
import torch
from libauc_losses import RANKING, RankingLoss, libauc_step, through_engine
from peer_methods import batches
from runs import Job, rates, run_all, run_searches, seconds, table, value
from timing import Step, descent
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Adam

from fcco_lightning import (
    AUC,
    SGD,
    BalancedSampling,
    CrossEntropy,
    RankingEvaluation,
    Sampling,
    TabularMLP,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.data.splits import stratified_split
from fcco_lightning.models import head_of, renew

DATA = {"breast cancer": "malignant tumours", "digits": "eights against the rest"}
POSITIVES, STEPS, BATCH = 5, 600, 32
LEARNING_RATES = [1e-3, 3e-3, 1e-2]
BALANCED = BalancedSampling(BATCH, positive_fraction=1 / 8)
FIGURES = ("test.auc", "test.average_precision", "test.partial_auc")

Split = dict[str, dict[str, Tensor]]


@functools.cache
def samples(name: str) -> tuple[Tensor, Tensor]:
    """Features (n, d) and labels (n,) of a data set of scikit-learn."""
    from sklearn import datasets

    x, label = getattr(datasets, f"load_{name.replace(' ', '_')}")(return_X_y=True)
    return torch.tensor(x).float(), torch.tensor(label == (8 if name == "digits" else 0)).long()


def split(name: str, seed: int) -> Split:
    """A third each for training, where five positives are left, validation and testing; standardised features."""
    x, y = samples(name)
    rest, test = stratified_split(y, 1 / 3, seed, "test")
    train, val = (rest[rows] for rows in stratified_split(y[rest], 1 / 2, seed + 1, "val"))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    positive = y[train[order]] == 1
    train = train[order][~positive | (positive.cumsum(0) <= POSITIVES)].sort().values
    mean, std = x[train].mean(0), x[train].std(0)
    x = ((x - mean) / torch.where(std > 0, std, 1.0)).clamp(-5, 5)
    return {n: {"x": x[rows], "y": y[rows]} for n, rows in (("train", train), ("val", val), ("test", test))}


def weighted(scores: Tensor, y: Tensor, columns: dict[str, Tensor]) -> Tensor:
    """Cross-entropy in which both classes weigh the same."""
    labels = columns["y"]
    return binary_cross_entropy_with_logits(scores, y, pos_weight=(labels == 0).sum() / (labels == 1).sum())


def focal(scores: Tensor, y: Tensor, columns: dict[str, Tensor]) -> Tensor:  # noqa: ARG001
    """Focal loss with gamma = 2 and alpha = 0.25, as its paper recommends."""
    from torchvision.ops import sigmoid_focal_loss

    loss: Tensor = sigmoid_focal_loss(scores, y, reduction="mean")
    return loss


PLAIN: dict[str, Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]] = {
    "BCE": lambda scores, y, columns: binary_cross_entropy_with_logits(scores, y),  # noqa: ARG005
    "BCE, classes weighted": weighted,
    "focal loss": focal,
}
OURS = {
    "AUC": RANKING["AUC"],
    "AUC, SigmoidPair": RankingLoss(AUC, SGD, "pairwise AUC"),
    "AUC margin": RANKING["AUC margin"],
    "AP, pretrained": RANKING["AP"],
    "pAUC, KL": RANKING["pAUC, KL"],
    "pAUC, CVaR": RANKING["pAUC, CVaR"],
}
BOUNDED = ", of sigmoid"  # as LibAUC's tutorials have it: what the loss sees is the sigmoid of a score
LIBAUC = {
    "LibAUC pairwise AUC": "pairwise AUC",
    "LibAUC AUCM": "AUCM",
    "LibAUC AP, pretrained": "APLoss",
    "LibAUC pAUC, KL": "pAUC_KL",
    "LibAUC pAUC, CVaR": "pAUC_CVaR",
}
TREES = "LightGBM" if importlib.util.find_spec("lightgbm") else "HistGradientBoosting (scikit-learn)"


def methods() -> list[str]:
    """Those that can run here."""
    bounded = [name + BOUNDED for name in OURS if name != "AUC, SigmoidPair"]
    return [*PLAIN, TREES, *OURS, *bounded, *(LIBAUC if libauc_losses.available() else ())]


def plain(network: nn.Module, method: str, module: TensorDataModule, lr: float) -> Step:
    """A loss of single samples."""
    columns = module.tables["train"].columns

    def loss(batch: dict[str, Tensor]) -> Tensor:
        return PLAIN[method](network(batch["x"]), batch["y"].float(), columns)

    return descent(loss, Adam(network.parameters(), lr=lr))


def main_step(network: nn.Module, method: str, module: TensorDataModule, lr: float) -> Step:
    """A step of the method proper, all with the same optimizer."""
    adam = functools.partial(Adam, lr=lr)
    if method in PLAIN:
        return plain(network, method, module, lr)
    if (name := method.removesuffix(BOUNDED)) in OURS:
        ours = OURS[name]
        objective = ours.objective(sigmoid=name != method)
        return through_engine(network, objective, ours.algorithm(), module, adam)
    loss = libauc_losses.made(LIBAUC[method], module.num_train, POSITIVES)
    return libauc_step(network, loss, adam)


def fitted(method: str, splits: Split, lr: float, seed: int) -> Callable[[Tensor], Tensor]:
    """A trained network; what is pretrained spends half of its steps on cross-entropy and then gets a new head."""
    torch.manual_seed(seed)
    sampling: Sampling = UniformSampling(BATCH) if method in PLAIN else BALANCED
    module = TensorDataModule(splits, batches=sampling, seed=seed)
    module.setup()
    network = TabularMLP([32], in_features=module.num_features)
    drawn, left, adam = batches(module, STEPS), STEPS, functools.partial(Adam, lr=lr)
    if "pretrained" in method:
        step, left = through_engine(network, CrossEntropy(), SGD(), module, adam), STEPS // 2
        for batch in itertools.islice(drawn, left):
            step(batch)
        renew(head_of(network), seed)
    step = main_step(network, method, module, lr)
    for batch in itertools.islice(drawn, left):
        step(batch)
    return network


def trees(splits: Split, lr: float, seed: int) -> Callable[[Tensor], Tensor]:
    """Gradient boosting with 100 trees, whose leaves may hold two samples, as there are five positives."""
    x, y = splits["train"]["x"].numpy(), splits["train"]["y"].numpy()
    if TREES == "LightGBM":
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(
            learning_rate=lr, num_leaves=7, min_child_samples=2, random_state=seed, n_jobs=1, verbose=-1
        )
    else:
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(
            learning_rate=lr, max_leaf_nodes=7, min_samples_leaf=2, early_stopping=False, random_state=seed
        )
    model.fit(x, y)
    return lambda x: torch.from_numpy(model.predict_proba(x.numpy())[:, 1])


def train(job: Job) -> Job:
    """One run; the job with the figures of all splits."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    splits = split(job["data"], job["seed"])
    lr = job["overrides"]["lr"]
    model = trees(splits, lr, job["seed"]) if job["method"] == TREES else fitted(job["method"], splits, lr, job["seed"])
    evaluation = RankingEvaluation(max_fpr=libauc_losses.MAX_FPR, top=())
    with torch.no_grad():
        figures = {name: evaluation(model(columns["x"]), columns) for name, columns in splits.items()}
    return {**job, **figures, "seconds": round(time.perf_counter() - start, 2)}


def scores(seeds: int, workers: int) -> tuple[dict[str, Any], list[Job]]:
    """Pick every method's learning rate by the area under the ROC curve on the validation part, then run it."""
    pairs = {f"{data}: {method}": (data, method) for data in DATA for method in methods()}

    def job(label: str, overrides: dict[str, Any], seed: int) -> Job:
        data, method = pairs[label]
        return {"label": label, "data": data, "method": method, "seed": seed, "overrides": overrides}

    grids = {label: {"lr": [0.03, 0.1, 0.3] if TREES in label else LEARNING_RATES} for label in pairs}
    picks = run_searches(grids, job, lambda run: value(run, "val.auc"), workers, ["val.auc"], train)
    jobs = [job(label, pick["picked"], seed) for label, pick in picks.items() for seed in range(seeds)]
    results = run_all(jobs, workers, FIGURES, train)
    extra = {"picked": rates, "seconds": seconds}
    for data, positives in DATA.items():
        print(f"\n{data}, {positives}\n" + table([r for r in results if r["data"] == data], FIGURES, extra))
    return picks, results
