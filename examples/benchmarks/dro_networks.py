"""Weights of all samples over a network: what a step costs beside the plain mean, and what they are worth on digits.

    uv run python examples/benchmarks/dro_networks.py --part cost --samples 1000000
    uv run python examples/benchmarks/dro_networks.py --part images

- cost: batches of 128, a perceptron (100-256-256-1) and ResNet-18 at 32 x 32, against a plain training step; the steps
  take turns, in seconds of the processor.
- images: scikit-learn's digits, of which the classes 5 to 9 keep a tenth of their training images, and a small
  convolutional network.  Adam; the steps of PG-SMD are its own.  Hyperparameters are searched on images of their own
  (two fifths train, a fifth validates, the rest tests), by the mean accuracy on the rare classes.

Both have the worst samples in two forms: weights q of all samples, which cost O(n) a step (``SampleDRO``), and the
primal one with a trained threshold, in which every sample is a group of its own and a step touches the batch alone.
"""

import argparse
import copy
import json
import math
import time
from contextlib import suppress
from typing import Any

import torch
from runs import Job, arguments, run_all, run_searches, table
from sklearn.datasets import load_digits
from timing import Step, engine_step, interleaved, momentum, plain, report
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fcco_lightning import (
    BSGD,
    OOA,
    PGSMD,
    SGD,
    SOX,
    Algorithm,
    CappedSimplex,
    CrossEntropy,
    CVaRGroupDRO,
    Engine,
    EqualStages,
    KLGroupDRO,
    KLPenalty,
    Objective,
    SampleDRO,
    TabularMLP,
)
from fcco_lightning.errors import NonFiniteError

Columns = dict[str, Tensor]
FIGURES = ("test.worst_class", "test.accuracy", "test.rare", "test.cvar", "train.cvar")
BATCH, CLASSES, RARE, BOUNDS = 64, 10, 5, {"alpha": 1.0}


AT_CHANCE = math.log(CLASSES)  # the loss before training, near which a threshold starts
RATES = {"lr": [0.001, 0.003, 0.01]}
AXES: dict[str, dict[str, list[float]]] = {  # the hyperparameters of a method, from where its search starts
    "mean (ERM)": RATES,
    "CVaR, threshold": RATES | {"alpha": [0.1, 0.3]},
    "KL, threshold": RATES | {"nu": [0.3, 1.0]},
    "CVaR, weights q (OOA)": RATES | {"alpha": [0.1, 0.3], "eta_dual": [1e-4, 1e-3]},
    "KL, weights q (PG-SMD)": {"lr": [0.3, 1.0, 3.0], "nu": [0.3, 1.0]},
}


def parts_of(label: str, given: dict[str, Any], n: int) -> tuple[Objective, Algorithm]:
    """Objective and algorithm of a method, for n samples."""
    match label:
        case "CVaR, threshold":
            return CVaRGroupDRO(given["alpha"], num_groups=n, threshold=AT_CHANCE), BSGD()
        case "KL, threshold":
            return KLGroupDRO(given["nu"], num_groups=n, threshold=AT_CHANCE), BSGD()
        case "CVaR, weights q (OOA)":
            return SampleDRO(CappedSimplex(given["alpha"])), OOA(given["eta_dual"])
        case "KL, weights q (PG-SMD)":
            return SampleDRO(None, KLPenalty(given["nu"])), PGSMD(100.0, EqualStages(8, given["lr"], 1e-4))
        case _:
            return CrossEntropy(), SGD()


def digits(seed: int) -> dict[str, Columns]:
    """Splits of the digits; every sample has its index, and is a group of its own."""
    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    fifths = [part.tolist() for part in order.chunk(5)]
    parts = {"train": fifths[0] + fifths[1], "validation": fifths[2], "test": fifths[3] + fifths[4]}
    rare = [i for i in parts["train"] if y[i] >= RARE]
    kept = set(rare[: len(rare) // 10])
    parts["train"] = [i for i in parts["train"] if y[i] < RARE or i in kept]
    return {name: columns(x[rows].float().view(-1, 1, 8, 8) / 16, y[rows]) for name, rows in parts.items()}


def columns(x: Tensor, y: Tensor) -> Columns:
    """A data set."""
    index = torch.arange(len(y))
    return {"x": x, "y": y, "index": index, "group": index}


def network() -> nn.Module:
    """Two convolutions and a linear layer."""
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(128, CLASSES))


@torch.no_grad()
def figures(model: nn.Module, data: Columns) -> dict[str, float]:
    """Accuracies in percent, and the mean loss of the worst tenth."""
    scores = model(data["x"])
    hit, losses = (scores.argmax(1) == data["y"]).double(), cross_entropy(scores, data["y"], reduction="none")
    by_class = torch.stack([hit[data["y"] == c].mean() for c in range(CLASSES)])
    return {
        "accuracy": 100 * float(hit.mean()),
        "worst_class": 100 * float(by_class.min()),
        "rare": 100 * float(by_class[RARE:].mean()),
        "cvar": float(losses.topk(len(losses) // 10).values.mean()),
    }


def run(job: Job) -> Job:
    """One training."""
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    data, given = digits(job["seed"]), job["overrides"]
    train, model, start = data["train"], network(), time.process_time()
    n = len(train["y"])
    objective, algorithm = parts_of(job["label"], given, n)
    engine = Engine(model, algorithm.pose(objective, num_samples=n), algorithm)
    staged = isinstance(algorithm, PGSMD)  # its own steps are inside, the optimizer follows the stage
    make = torch.optim.SGD if staged else torch.optim.Adam
    optimizer = make(engine.params, lr=1.0 if staged else given["lr"])
    generator = torch.Generator().manual_seed(job["seed"])
    with suppress(NonFiniteError):  # a rate of the search that is too large
        for _ in range(job["epochs"]):
            for index in torch.randperm(n, generator=generator).split(BATCH):
                engine.train_batch({name: column[index] for name, column in train.items()}, optimizer)
    results = {name: figures(model, data[name]) for name in data}
    return {**job, **results, "seconds": round(time.process_time() - start, 1)}


def images(args: argparse.Namespace) -> None:
    """Search, then a table over seeds."""

    def make(label: str, overrides: dict[str, Any], seed: int) -> Job:
        return {"label": label, "epochs": args.epochs, "seed": seed, "overrides": overrides}

    picks = run_searches(AXES, make, lambda job: job["validation"]["rare"], 1, ["validation.rare"], run, bounds=BOUNDS)
    jobs = [make(name, pick["picked"], seed) for name, pick in picks.items() for seed in range(args.seeds)]
    results = run_all(jobs, 1, FIGURES, run)
    (args.out / "dro_networks.json").write_text(json.dumps({"picks": picks, "results": results}, indent=1))
    print("\n" + table(results, FIGURES, {}))


def cost(args: argparse.Namespace) -> None:
    """Steps of all methods on the same batches."""
    import timm

    n, results = args.samples, {}
    parts: dict[str, tuple[Objective, Algorithm]] = {
        "mean, by the package": (CrossEntropy(), SGD()),
        "CVaR, threshold": (CVaRGroupDRO(0.1, num_groups=n), BSGD()),
        "KL, threshold": (KLGroupDRO(1.0, num_groups=n), BSGD()),
        "KL, threshold, SOX": (KLGroupDRO(1.0, num_groups=n), SOX(0.8)),
        "KL, weights q (OOA), O(n)": (SampleDRO(None, KLPenalty(1.0)), OOA(1e-8)),
        "CVaR, weights q (OOA), O(n log n)": (SampleDRO(CappedSimplex(0.1)), OOA(1e-8)),
    }
    nets = {"perceptron": (TabularMLP([256, 256], 1, 100), (100,), args.rounds)}
    nets["ResNet-18"] = (timm.create_model("resnet18", num_classes=1), (3, 32, 32), max(2, args.rounds // 10))
    for name, (net, shape, rounds) in nets.items():
        variants: dict[str, Step] = {"plain step": plain(copy.deepcopy(net).train())}
        for label, (objective, algorithm) in parts.items():
            engine = Engine(
                copy.deepcopy(net).train(), algorithm.pose(copy.deepcopy(objective), num_samples=n), algorithm
            )
            variants[label] = engine_step(engine, momentum(engine.params))
        generator, data = torch.Generator().manual_seed(0), []
        for _ in range(4):
            index = torch.randint(n, (128,), generator=generator).unique()
            x, y = torch.randn(len(index), *shape, generator=generator), torch.arange(len(index)) % 2
            data.append({"x": x, "y": y, "index": index, "group": index})
        title = f"{name}, n = {n:,}"
        results[title] = interleaved(variants, data, rounds, "cpu", warm_up=2, clock=time.process_time)
    report(results, args.out / "dro_networks_cost.json")


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, jobs=None)
    parser.add_argument("--part", choices=["cost", "images"], default="images")
    parser.add_argument("--samples", type=int, default=1_000_000, help="n of the costs")
    parser.add_argument("--rounds", type=int, default=100, help="of the costs; a tenth for ResNet-18")
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    {"cost": cost, "images": images}[args.part](args)


if __name__ == "__main__":
    main()
