"""Average precision, AUC and robustness as objectives on CIFAR-10: the settings of LibAUC's tutorials and two papers.

    uv run python examples/benchmarks/cifar_pays.py --data ../shared/data --log runs/cifar_pays.jsonl
    uv run python examples/benchmarks/cifar_pays.py --log runs/cifar_pays.jsonl --page   # tables of what is in the log

Three cells, each with one network, one optimizer and one grid for all of its methods:

- ``ap``: classes 5 to 9 against 0 to 4 with 2% positives, LibAUC's tutorial 03 and Table 2 of the SOX paper.  Crops,
  flips, half of every batch positive, sigmoids, margin .6, the rate falls to a tenth at half.  "After cross-entropy"
  means that the first half of the batches minimises cross-entropy, the same weights for all methods of a seed, and the
  second half the method's objective with a new head.  Partial AUC (false positive rates up to .1, standardised),
  two-way (true positive rates of at least .5, too) and the recall among as many images as are positive are here, too.
- ``auc``: the same classes with 10% positives, LibAUC's tutorial 02.  A fifth of a pairwise loss's batch is positive,
  where the name says "balanced batches" half.
- ``dro``: ten classes, of which 5 to 9 keep 100 images, Fig. 3 and 4 of the PG-SMD paper: weights on samples by PG-SMD
  against the average loss.

How hyperparameters are picked, written down before anything was tested: on seed 100 alone, with half of the
epochs, by the cell's figure on a balanced validation part; first the rate among ``RATES`` with the paper's gamma of .1,
then gamma at that rate.  Where one network starts from another, the rate of the start is cross-entropy's own pick.

The folder holds ``cifar10_train.parquet`` and ``cifar10_test.parquet``, ``datasets`` tables of ``image`` and ``label``.
Every finished run is a line of the log at once and is not run again, so that a stopped command goes on where it was.
"""

import argparse
import copy
import functools
import io
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import libauc_losses
import numpy as np
import pandas as pd
import torch
from peer_methods import batches
from peers import advantage
from PIL import Image
from runs import Job, arguments, run_all, seconds, table, value
from sklearn.metrics import average_precision_score, roc_auc_score
from timing import Step, descent, engine_step
from torch import Tensor, nn
from torch.optim import Adam
from xrisk_scores import PLAIN

from fcco_lightning import (
    AUC,
    BSGD,
    MOAP,
    PDSCA,
    PGSMD,
    SGD,
    SOAP,
    SOX,
    Algorithm,
    AUCMargin,
    AveragePrecision,
    BalancedSampling,
    CrossEntropy,
    CVaRPartialAUC,
    Engine,
    KLPartialAUC,
    KLPenalty,
    Objective,
    RecallAtK,
    SampleDRO,
    Sampling,
    SquaredHingePair,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.algorithms import default_algorithm
from fcco_lightning.algorithms.stages import Stage, Stages
from fcco_lightning.evaluation.metrics import partial_auc
from fcco_lightning.models import renew

Columns = dict[str, Tensor]
Splits = dict[str, Columns]
TUNING_SEED, TUNING_SHARE = 100, 0.5
GAMMAS, MARGIN, CROP, RARE = (0.5, 0.9), 0.6, 30, 5  # beside a gamma of .1; classes from 5 on are rare
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)
BASELINE = {"ap": "cross-entropy", "auc": "cross-entropy", "dro": "average loss"}
MAX_FPR, MIN_TPR = 0.1, 0.5


class Cell(NamedTuple):
    """A question.

    Attributes:
        figure: that counts.
        epochs: of a run.
        batch: samples in one.
        rates: of the optimizer, the grid of all methods.
        share: of positives in training; 0 for ten classes.
        drawn: share of positives in the batches of pairwise losses.
    """

    figure: str
    epochs: float
    batch: int
    rates: tuple[float, ...]
    share: float = 0.0
    drawn: float = 0.5


class Run:
    """What a step is made of: the network, its data, the hyperparameters ``given``, and the number of steps.

    Attributes:
        optimizer: whose rate falls to a tenth at half, once :meth:`optimize` has made it.
    """

    def __init__(self, network: nn.Module, data: TensorDataModule, given: dict[str, Any], steps: int) -> None:
        self.network, self.data, self.given, self.steps = network, data, given, steps
        self.optimizer: torch.optim.Optimizer | None = None

    def optimize(self, params: Any, by: type[Adam] | type[torch.optim.SGD] = Adam) -> torch.optim.Optimizer:
        """The optimizer of these parameters, Adam in the cells of two classes."""
        self.optimizer = by(params, lr=self.given["lr"])
        return self.optimizer


class Method(NamedTuple):
    """What a run minimises.

    Attributes:
        make: the step of a run.
        batches: of a cell.
        start: the baseline that is minimised first, if any.
        until: for which share of the steps.
        new_head: whether the last layer, the optimizer and its schedule start afresh then.
        gamma: whether there is one to pick.
        given: hyperparameters that are not picked.
        like: another method, whose picks are taken.
    """

    make: Callable[[Run], Step]
    batches: Callable[[Cell], Sampling]
    start: str = ""
    until: float = 0.0
    new_head: bool = False
    gamma: bool = False
    given: dict[str, float] | None = None
    like: str = ""


CELLS = {
    "ap": Cell("average_precision", 2, 64, (1e-3, 3e-3), 0.02),
    "auc": Cell("auc", 1.5, 64, (1e-3, 3e-3), 0.1, 0.2),
    "dro": Cell("accuracy", 3, 128, (0.1, 0.3, 1.0)),
}


def uniform(cell: Cell) -> Sampling:
    """Batches of losses of single samples."""
    return UniformSampling(cell.batch)


def halves(cell: Cell) -> Sampling:
    """Half of a batch is positive, and means over it are those of balanced data."""
    return BalancedSampling(cell.batch, prevalence="batch")


def weighted_halves(cell: Cell) -> Sampling:
    """Half of a batch is positive, and weights make means over it those of the data, as in uniform batches."""
    return BalancedSampling(cell.batch)


def drawn(cell: Cell) -> Sampling:
    """Batches of pairwise losses."""
    return BalancedSampling(cell.batch, positive_fraction=cell.drawn, prevalence="batch")


def plain(name: str, run: Run) -> Step:
    """A loss of single samples, in a loop that anyone would write."""
    columns = run.data.tables["train"].columns

    def loss(batch: Columns) -> Tensor:
        return PLAIN[name](run.network(batch["x"]), batch["y"].float(), columns)

    return descent(loss, run.optimize(run.network.parameters()))


def ours(objective: Callable[[], Objective], algorithm: Callable[..., Algorithm] | None, run: Run) -> Step:
    """An objective of the package; without an algorithm by the one that it comes with."""
    made = objective()
    gamma = {"gamma": run.given["gamma"]} if "gamma" in run.given else {}
    by = default_algorithm(made, constrained=False) if algorithm is None else algorithm(**gamma)
    problem = by.pose(made, num_samples=run.data.num_train, sampling=run.data.sampling())
    engine = Engine(run.network, problem, by)
    return engine_step(engine, run.optimize(engine.params))


def tutorial() -> Objective:
    """Average precision with the arguments of LibAUC's tutorial."""
    return AveragePrecision(SquaredHingePair(MARGIN), sigmoid=True)


def recommended(objective: Callable[[], Objective]) -> Objective:
    """An objective as FCCOModule trains it (behind its start, if it has one), with cross-entropy beside it."""
    made = objective()
    made.recommended = True
    return made


def libauc_precision(run: Run) -> Step:
    """LibAUC's loss of average precision, which sees sigmoids, with the same Adam as all others."""
    from libauc.losses import APLoss

    loss = APLoss(run.data.num_train, gamma=run.given["gamma"], margin=MARGIN, device=torch.device("cpu"))

    def of_sigmoids(batch: Columns) -> Tensor:
        return libauc_losses.value(loss, run.network(batch["x"]).sigmoid(), batch)

    return descent(of_sigmoids, run.optimize(run.network.parameters()))


def libauc_margin(run: Run) -> Step:
    """LibAUC's margin loss of AUC, whose dual variable ascends, with the same Adam as all others."""
    columns = run.data.tables["train"].columns
    loss = libauc_losses.made("AUCM", run.data.num_train, int(columns["y"].sum()))
    return libauc_losses.libauc_step(run.network, loss, run.optimize)


def average_loss(run: Run) -> Step:
    """The mean loss by plain SGD."""
    algorithm = SGD()
    engine = Engine(run.network, algorithm.pose(CrossEntropy(), num_samples=run.data.num_train), algorithm)
    return engine_step(engine, run.optimize(engine.params, torch.optim.SGD))


class GrowingStages(Stages):
    """Stages of (t + 3)^2 inner steps, as in case D1, with the steps that the paper gives for its network by epochs."""

    def __init__(self, eta: float, eta_dual: float, steps: int) -> None:
        self.eta, self.eta_dual, self.steps = eta, eta_dual, steps

    def __call__(self, t: int, gamma: float, mu: float) -> Stage:  # noqa: ARG002
        """Of 120 epochs the paper's ends of constant steps are 5, 25 and 70."""
        passed = sum((k + 3) ** 2 - 1 for k in range(t)) / self.steps
        times = next(of for end, of in ((5, 1.0), (25, 0.5), (70, 0.3), (math.inf, 0.25)) if passed < end / 120)
        return Stage((t + 3) ** 2, self.eta * times, self.eta_dual * times)


def guided(eta_dual: float, run: Run) -> Step:
    """PG-SMD on weights of all samples, with the KL penalty of the paper."""
    algorithm = PGSMD(100.0, GrowingStages(run.given["lr"], eta_dual, run.steps))
    problem = algorithm.pose(SampleDRO(None, KLPenalty(5.0)), num_samples=run.data.num_train)
    engine = Engine(run.network, problem, algorithm)
    return engine_step(engine, torch.optim.SGD(engine.params, lr=1.0))


PLAINEST, BALANCED = "cross-entropy", "cross-entropy, balanced batches"
WEIGHTED = "cross-entropy, balanced batches, weighted"
AFTER: dict[str, Any] = {"start": PLAINEST, "until": 0.5, "new_head": True}
GOING_ON: dict[str, Any] = {"start": PLAINEST, "until": 0.75}  # as FCCOModule does by itself
GOING_ON_BALANCED: dict[str, Any] = {"start": BALANCED, "until": 0.75}
TUTORIAL = {"lr": 1e-3, "gamma": 0.1}
PRECISION, AREA = (functools.partial(recommended, objective) for objective in (AveragePrecision, AUC))
PAIRS = functools.partial(ours, AUC, None)
POSITIVES = 490  # that train in the cell of average precision
TOPS = {
    name: Method(
        functools.partial(ours, functools.partial(recommended, objective), None),
        halves,
        like=BALANCED,
        **(GOING_ON_BALANCED if objective().recommended_start else {}),
    )
    for name, objective in (
        ("KLPartialAUC()", KLPartialAUC),
        ("KLPartialAUC(tau=1)", lambda: KLPartialAUC(tau=1.0)),
        ("CVaRPartialAUC(.1)", lambda: CVaRPartialAUC(MAX_FPR)),
        ("CVaRPartialAUC(.1, .5)", lambda: CVaRPartialAUC(MAX_FPR, MIN_TPR)),
        ("RecallAtK(n_+)", lambda: RecallAtK(POSITIVES)),
    )
}
METHODS: dict[str, dict[str, Method]] = {
    "ap": {
        "cross-entropy": Method(functools.partial(plain, "BCE"), uniform),
        BALANCED: Method(functools.partial(plain, "BCE"), halves),
        WEIGHTED: Method(functools.partial(ours, CrossEntropy, None), weighted_halves, like=BALANCED),
        "SOX": Method(functools.partial(ours, tutorial, SOX), halves, **AFTER, gamma=True),
        "AveragePrecision()": Method(functools.partial(ours, PRECISION, None), uniform, **GOING_ON),
        "AveragePrecision(), balanced batches": Method(
            functools.partial(ours, PRECISION, None), halves, **GOING_ON_BALANCED
        ),
        **{f"{name}, balanced batches": of for name, of in TOPS.items()},
        "AveragePrecision(cross_entropy=0)": Method(
            functools.partial(ours, AveragePrecision, None), uniform, **GOING_ON
        ),
        "AveragePrecision(cross_entropy=0), balanced batches": Method(
            functools.partial(ours, AveragePrecision, None), halves, **GOING_ON_BALANCED
        ),
        "SOAP": Method(functools.partial(ours, tutorial, SOAP), halves, **AFTER, gamma=True),
        "MOAP": Method(functools.partial(ours, tutorial, MOAP), halves, **AFTER, gamma=True),
        "BSGD": Method(functools.partial(ours, tutorial, BSGD), halves, **AFTER),
        "LibAUC APLoss": Method(libauc_precision, halves, **AFTER, gamma=True),
        "cross-entropy, weighted": Method(functools.partial(plain, "BCE, classes weighted"), uniform, like=PLAINEST),
        "focal loss": Method(functools.partial(plain, "focal loss"), uniform, like=PLAINEST),
        "SOX, after balanced batches": Method(
            functools.partial(ours, tutorial, SOX),
            halves,
            start=BALANCED,
            until=0.5,
            new_head=True,
            like="SOX",
        ),
        "SOX, from scratch": Method(functools.partial(ours, tutorial, SOX), halves, given=TUTORIAL),
        "LibAUC APLoss, from scratch": Method(libauc_precision, halves, given=TUTORIAL),
    },
    "auc": {
        "cross-entropy": Method(functools.partial(plain, "BCE"), uniform),
        BALANCED: Method(functools.partial(plain, "BCE"), halves),
        WEIGHTED: Method(functools.partial(ours, CrossEntropy, None), weighted_halves, like=BALANCED),
        "AUC()": Method(functools.partial(ours, AREA, None), drawn),
        "AUC(), balanced batches": Method(functools.partial(ours, AREA, None), halves),
        "AUC(), uniform batches": Method(functools.partial(ours, AREA, None), uniform),
        "AUC(cross_entropy=0)": Method(PAIRS, drawn),
        "AUC(cross_entropy=0), balanced batches": Method(PAIRS, halves),
        "AUCMargin()": Method(functools.partial(ours, AUCMargin, None), drawn),
        "LibAUC AUCM": Method(libauc_margin, drawn),
        "cross-entropy, weighted": Method(functools.partial(plain, "BCE, classes weighted"), uniform, like=PLAINEST),
        "focal loss": Method(functools.partial(plain, "focal loss"), uniform, like=PLAINEST),
        "AUC(SquaredHingePair(), cross_entropy=0)": Method(
            functools.partial(ours, lambda: AUC(SquaredHingePair()), None), drawn
        ),
        "AUCMargin(), compositional": Method(functools.partial(ours, AUCMargin, PDSCA), drawn, like="AUCMargin()"),
    },
    "dro": {
        "average loss": Method(average_loss, uniform),
        "PG-SMD": Method(functools.partial(guided, 1e-5), uniform),
        "PG-SMD, weights stay uniform": Method(functools.partial(guided, 1e-12), uniform, like="PG-SMD"),
        "PG-SMD, dual steps x 100": Method(functools.partial(guided, 1e-3), uniform, like="PG-SMD"),
    },
}


class Residual(nn.Module):
    """Two convolutions beside a shortcut, with batch normalisation."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        convolve = functools.partial(nn.Conv2d, bias=False)
        self.main = nn.Sequential(
            *(convolve(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()),
            *(convolve(after, after, 3, 1, 1), nn.BatchNorm2d(after)),
        )
        self.shortcut = nn.Sequential(convolve(before, after, 1, 2), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        found: Tensor = (self.main(x) + self.shortcut(x)).relu()
        return found


def network_of(outputs: int) -> nn.Sequential:
    """A residual network of 73 thousand weights; with one output per sample of shape (B,)."""
    layers = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Residual(16, 32), Residual(32, 64)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, outputs), nn.Flatten(0 if outputs == 1 else 1)]
    return nn.Sequential(*layers, *head).to(memory_format=torch.channels_last)


def images(data: Path, folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """All images (n, 3, 32, 32), uint8, and their classes; decoded once, and kept in a folder."""
    kept = folder / f"cifar10_{part}.pt"
    if not kept.exists():
        table = pd.read_parquet(data / f"cifar10_{part}.parquet")
        pixels = [np.asarray(Image.open(io.BytesIO(image["bytes"])).convert("RGB")) for image in table["image"]]
        stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
        torch.save((stacked, torch.tensor(table["label"].to_numpy())), kept)
    found: tuple[Tensor, Tensor] = torch.load(kept)
    return found


def splits_of(name: str, seed: int, data: Path, folder: Path) -> Splits:
    """Training, validation (as balanced as the test split is) and the whole test split.

    For validation some images of each frequent class are set aside, and as many of the rare classes, where they come
    out of what is taken away in any case.
    """
    pixels, label = images(data, folder, "train")
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(seed))
    rows = [order[label[order] == c] for c in range(2 * RARE)]
    aside = len(rows[0]) // (25 if CELLS[name].share else 50)
    frequent = [of[aside:] for of in rows[:RARE]]
    share = CELLS[name].share
    left = round(share / (1 - share) * sum(map(len, frequent)) / RARE) if share else len(rows[0]) // 50
    kept = [of[:left] for of in rows[RARE:]]
    aside = min(aside, min(len(of) for of in rows[RARE:]) - left)
    parts = {
        "train": torch.cat([*frequent, *kept]),
        "val": torch.cat([of[:aside] for of in rows[:RARE]] + [of[left : left + aside] for of in rows[RARE:]]),
    }
    splits = {part: {"x": pixels[at], "y": label[at]} for part, at in parts.items()}
    splits["test"] = dict(zip(("x", "y"), images(data, folder, "test"), strict=True))
    if share:
        splits = {part: columns | {"y": (columns["y"] >= RARE).long()} for part, columns in splits.items()}
    return splits


def normalised(x: Tensor) -> Tensor:
    """Pixels as the network sees them."""
    mean, std = (torch.tensor(of).view(3, 1, 1) * 255 for of in (MEAN, STD))
    return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


def augmented(x: Tensor, seed: int) -> Tensor:
    """A crop of every image, and every other one is flipped; by the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.randint(x.shape[-1] - CROP + 1, (2, len(x), 1), generator=generator)
    rows, columns = corner + torch.arange(CROP)
    flip = torch.rand(len(x), 1, generator=generator) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    at = torch.arange(len(x)).view(-1, 1, 1)
    return normalised(x[at, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2).float())


def centred(x: Tensor) -> Tensor:
    """The middle of every image."""
    border = (x.shape[-1] - CROP) // 2
    return normalised(x[..., border : border + CROP, border : border + CROP].float())


@torch.no_grad()
def figures(network: nn.Module, columns: Columns) -> dict[str, float]:
    """Figures of a split."""
    network.eval()
    outputs = torch.cat([network(centred(part)) for part in columns["x"].split(500)])
    network.train()
    y = columns["y"]
    if outputs.dim() == 1:
        head = outputs.topk(int(y.sum())).indices
        return {
            "average_precision": float(average_precision_score(y, outputs)),
            "auc": float(roc_auc_score(y, outputs)),
            "partial_auc": float(partial_auc(outputs, y, MAX_FPR)),
            "two_way_partial_auc": float(partial_auc(outputs, y, MAX_FPR, MIN_TPR)),
            "recall": float(y[head].double().mean()),
        }
    hit = (outputs.argmax(1) == y).double()
    return {"accuracy": float(hit.mean()), "rare": float(hit[y >= RARE].mean())}


def some(columns: Columns, *, balanced: bool) -> Columns:
    """Training samples to look at: all positives and as many negatives, or every tenth."""
    y = columns["y"]
    at = torch.arange(0, len(y), 10)
    if balanced:
        at = torch.cat([(y == 0).nonzero().flatten()[: int(y.sum())], (y == 1).nonzero().flatten()])
    return {name: column[at] for name, column in columns.items()}


def settled(network: nn.Module, data: TensorDataModule) -> nn.Module:
    """A copy whose batch normalisation knows the data at the present weights, which may be a mean of others."""
    found = copy.deepcopy(network)
    for layer in found.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None  # the plain mean over batches
    with torch.no_grad():
        for batch in itertools.islice(batches(data, 1), 20):
            found(augmented(batch["x"], 0))
    return found


def carry_out(job: Job, label: str, until: float, splits: Splits, folder: Path, network: nn.Module) -> list[Job]:
    """Train the network by a method for a share of its steps; the figures after every epoch of ten classes."""
    cell, method, seed = CELLS[job["cell"]], METHODS[job["cell"]][label], job["seed"]
    data = TensorDataModule({part: splits[part] for part in ("train", "test")}, batches=method.batches(cell), seed=seed)
    data.setup()
    steps = max(4, round(job["epochs"] * (data.num_train // cell.batch)))
    run = Run(network, data, job["overrides"], steps)
    begin, before = round(method.until * steps), {}
    if method.start:
        before = start_of(job, method, splits, folder)
        network.load_state_dict(before["network"])
        if method.new_head:
            renew(network.get_submodule("7"), seed)
    half = (begin + steps) // 2 if method.new_head else steps // 2
    step = method.make(run)
    if before and not method.new_head and run.optimizer is not None:
        own = run.optimizer.state_dict()  # an objective may have a parameter more, behind those of the network
        run.optimizer.load_state_dict({**own, "state": before["optimizer"]["state"]})
    curve = []
    passes = batches(data, math.ceil(steps / (data.num_train // cell.batch)) + 1)
    for number, batch in enumerate(itertools.islice(passes, round(until * steps))):
        if number < begin:
            continue
        if run.optimizer is not None:
            run.optimizer.param_groups[0]["lr"] = run.given["lr"] * (1 if number < half else 0.1)
        step({**batch, "x": augmented(batch["x"], 100_003 * seed + number)})
        for share in STARTS:
            if number + 1 == round(share * steps) and run.optimizer is not None and label in BEGINNINGS:
                state = {"network": network.state_dict(), "optimizer": run.optimizer.state_dict()}
                torch.save(state, start_file(job, share, folder))
        if not cell.share and ((number + 1) % (data.num_train // cell.batch) == 0 or number + 1 == steps):
            now = settled(network, data)
            seen = {"train": some(splits["train"], balanced=False), "test": splits["test"]}
            seen = {} if seed == TUNING_SEED else seen
            curve.append({part: figures(now, columns) for part, columns in seen.items()})
    return curve


STARTS = (0.75, 1.0)
BEGINNINGS = {method.start for methods in METHODS.values() for method in methods.values()}


def start_file(job: Job, share: float, folder: Path) -> Path:
    """Where the state of a baseline is kept after a share of its steps."""
    name = job["label"].replace(", ", "_").replace(" ", "_")
    return folder / f"{job['cell']}_{name}_{job['seed']}_{job['epochs']:g}_{job['overrides']['lr']:g}_{share:g}.pt"


def start_of(job: Job, method: Method, splits: Splits, folder: Path) -> dict[str, Any]:
    """The state of a method's baseline: after a share of its run, or after a shorter run with a schedule of its own."""
    first = {**job, "label": method.start, "overrides": {"lr": job["first_lr"]}}
    share = method.until
    if method.new_head:
        first, share = {**first, "epochs": share * job["epochs"]}, 1.0
    path = start_file(first, share, folder)
    if not path.exists():
        torch.manual_seed(job["seed"])
        carry_out(first, method.start, share, splits, folder, network_of(1))
    state: dict[str, Any] = torch.load(path)
    return state


def train(job: Job, data: Path, folder: Path) -> Job:
    """One run; the job with the figures of all splits."""
    torch.set_num_threads(1)
    began = time.process_time()
    cell, splits = CELLS[job["cell"]], splits_of(job["cell"], job["seed"], data, folder)
    torch.manual_seed(job["seed"])
    network = network_of(1 if cell.share else 2 * RARE)
    curve = carry_out(job, job["label"], 1.0, splits, folder, network)
    if not cell.share:
        tables = TensorDataModule({p: splits[p] for p in ("train", "test")}, batches=uniform(cell), seed=job["seed"])
        tables.setup()
        network = settled(network, tables)
    seen = {**splits, "train": some(splits["train"], balanced=cell.share > 0)}
    if job["seed"] == TUNING_SEED:
        del seen["test"]
    result = {part: figures(network, columns) for part, columns in seen.items()}
    return {**job, **result, "curve": curve, "seconds": round(time.process_time() - began, 1)}


def picked(name: str, label: str, epochs: float, carry: Callable[[list[Job]], list[Job]], first_lr: float) -> Job:
    """The hyperparameters of a method, as the head of this file says."""
    cell, method = CELLS[name], METHODS[name][label]
    common = {"cell": name, "label": label, "seed": TUNING_SEED, "epochs": TUNING_SHARE * epochs}
    common |= {"first_lr": first_lr} if method.start else {}

    def best(trials: list[dict[str, float]]) -> dict[str, float]:
        runs = carry([{**common, "overrides": trial} for trial in trials])
        pick: dict[str, float] = max(runs, key=lambda run: value(run, f"val.{cell.figure}"))["overrides"]
        return pick

    if method.given is not None:
        return method.given
    found = best([{"lr": lr, **({"gamma": 0.1} if method.gamma else {})} for lr in cell.rates])
    return best([found, *({**found, "gamma": gamma} for gamma in GAMMAS)]) if method.gamma else found


def jobs_of(name: str, labels: Sequence[str], given: argparse.Namespace, carry: Any) -> list[Job]:
    """The runs of a cell, with what was picked for each."""
    epochs = given.epochs or CELLS[name].epochs
    picks: dict[str, dict[str, float]] = {}
    needed = list(labels)
    for label in needed:  # grows by what those need that are there
        needed += {METHODS[name][label].start, METHODS[name][label].like} - {"", *needed}
    for label, method in METHODS[name].items():
        if label in needed:
            first = picks[method.start]["lr"] if method.start else 0.0
            same = method.start and not method.new_head  # nothing changes but the objective: its rate is the start's
            known = {"lr": first} if same else picks.get(method.like)
            picks[label] = known or picked(name, label, epochs, carry, first)
            print(f"picked {name}, {label}: {picks[label]}", flush=True)
    return [
        {"cell": name, "label": label, "seed": seed, "epochs": epochs, "overrides": picks[label]}
        | ({"first_lr": picks[METHODS[name][label].start]["lr"]} if METHODS[name][label].start else {})
        for seed in range(given.seeds)
        for label in labels
    ]


def to_baseline(runs: list[Job], plain: list[Job], column: str) -> str:
    """By how much a method is ahead of the baseline, seed by seed, and the standard error."""
    if not {run["seed"] for run in runs} & {run["seed"] for run in plain}:
        return ""
    mean, error = advantage(plain, runs, column)
    return f"{mean:+.4f}" + (f" +- {error:.4f}" if math.isfinite(error) else "")


def by_epoch(runs: list[Job], part: str) -> str:
    """Errors after every epoch, means over seeds, in percent."""
    curves = [[100 * (1 - at[part]["accuracy"]) for at in run["curve"]] for run in runs]
    return ", ".join(f"{statistics.fmean(at):.1f}" for at in zip(*curves, strict=True))


def hyperparameters(runs: list[Job]) -> str:
    """The rate and gamma of a method's runs."""
    return ", ".join(f"{name} {of:g}" for name, of in runs[0]["overrides"].items())


def page(log: Path) -> str:
    """The tables of all cells and numbers of epochs in the log, runs of the tuning seed left out."""
    lines = [json.loads(line)["done"] for line in log.read_text().splitlines()]
    found: dict[tuple[str, float], list[Job]] = {}
    for run in lines:
        if run["seed"] != TUNING_SEED:
            found.setdefault((run["cell"], run["epochs"]), []).append(run)
    parts = []
    for (name, epochs), runs in found.items():
        order = list(METHODS[name])
        runs.sort(key=lambda run: (order.index(run["label"]), run["seed"]))
        cell, plain = CELLS[name], [run for run in runs if run["label"] == BASELINE[name]]
        column = f"test.{cell.figure}"
        known = [figure for figure in runs[0]["test"] if all(figure in run["test"] for run in runs)]
        columns = [f"test.{figure}" for figure in known] + [f"train.{cell.figure}"]
        extra = {f"to {BASELINE[name]}": functools.partial(to_baseline, plain=plain, column=column)}
        if balanced := [run for run in runs if run["label"] == BALANCED]:
            extra["to balanced batches"] = functools.partial(to_baseline, plain=balanced, column=column)
        if not cell.share:
            extra |= {f"{part} error by epoch, %": functools.partial(by_epoch, part=part) for part in ("train", "test")}
        extra |= {"picked": hyperparameters, "s": seconds}
        parts.append(f"### {name}, {epochs:g} epochs\n\n{table(runs, columns, extra)}")
    return "\n\n".join(parts)


def main() -> None:
    """Parse the arguments, run and print."""
    parser = arguments(__doc__, jobs=None)
    parser.set_defaults(seeds=3)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the two parquet files")
    parser.add_argument("--log", type=Path, default=Path("runs/cifar_pays.jsonl"))
    parser.add_argument("--only", nargs="+", choices=CELLS, default=list(CELLS), help="cells")
    parser.add_argument("--methods", nargs="+", help="methods by their names in the tables; by default all")
    parser.add_argument("--epochs", type=float, help="of every run; by default those of its cell")
    parser.add_argument("--page", action="store_true", help="print the tables of the log, and run nothing")
    given = parser.parse_args()
    if given.page:
        print(page(given.log))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    given.log.parent.mkdir(parents=True, exist_ok=True)
    run = functools.partial(train, data=given.data, folder=given.out)
    theirs = libauc_losses.available()
    wanted = {
        name: [label for label in METHODS[name] if theirs or not label.startswith("LibAUC")] for name in given.only
    }
    if given.methods:
        wanted = {name: [label for label in labels if label in given.methods] for name, labels in wanted.items()}

    def carry(jobs: list[Job]) -> list[Job]:
        split = "val" if jobs[0]["seed"] == TUNING_SEED else "test"
        return run_all(jobs, 1, [f"{split}.{CELLS[jobs[0]['cell']].figure}"], run, given.log)

    jobs = {name: jobs_of(name, labels, given, carry) for name, labels in wanted.items() if labels}
    for seed in range(given.seeds):
        for of in jobs.values():
            carry([job for job in of if job["seed"] == seed])
    print(f"\n{page(given.log)}")


if __name__ == "__main__":
    main()
