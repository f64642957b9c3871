"""Average precision as an objective on imbalanced images (SOX paper, Table 2): methods x starts x shares of positives.

Digits 5 to 9 against 0 to 4; positives are taken out of the training split until their share is 2% or 10%::

    uv run python examples/benchmarks/imbalanced_images.py --data digits28.parquet             # the table
    uv run python examples/benchmarks/imbalanced_images.py --data digits28.parquet --ablation  # of the objective
    uv run python examples/benchmarks/imbalanced_images.py --data digits28.parquet --defaults --starts scratch

A small ResNet of timm starts from random weights, or from half of the epochs on cross-entropy with a new head, so that
all runs see as many batches.  All methods have the same optimizer, the same decay and the same grid of learning rates,
which grows until the pick does not lie on its edge; the search has seeds of its own and picks by the average precision
of the validation split, which is as balanced as the test split is.  ``--ablation`` searches, on these tuning seeds
alone, with changes of the objective, of what is remembered and of the batches.  ``--defaults`` compares the objectives
as FCCOModule trains them (their start, the cross-entropy beside them) with cross-entropy in the same batches.

Finished runs are appended to ``imbalanced_images.jsonl`` in the output folder and are not run again.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import libauc_losses
import torch
from lightning.pytorch import LightningModule, seed_everything
from peers import advantage
from runs import SEEDS, Job, arguments, quiet_trainer, rates, run_all, run_searches, seconds, table, value
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torch.utils.data import default_collate
from xrisk_scores import PLAIN

from fcco_lightning import (
    AUC,
    BSGD,
    MOAP,
    SOAP,
    SOX,
    AveragePrecision,
    BalancedSampling,
    Columns,
    Criterion,
    CVaRPartialAUC,
    FCCOModule,
    GroupedImageDataModule,
    Groups,
    ImageSplits,
    ImageTransform,
    KLPartialAUC,
    LabelledImages,
    LogisticPair,
    Objective,
    RankingEvaluation,
    RecallAtK,
    Schedule,
    SquaredHingePair,
    StepAtFractions,
    TensorDataModule,
    TimmModel,
    UniformSampling,
)
from fcco_lightning.models import head_of, renew

NETWORK, BATCH, EPOCHS = "test_resnet", 64, 8
KEPT = "imbalanced_images.jsonl"
ALGORITHMS: dict[str, Callable[..., Any]] = {"SOX": SOX, "SOAP": SOAP, "MOAP": MOAP, "BSGD": BSGD}
PAIR_LOSSES = {"logistic": LogisticPair(), "margin .3": SquaredHingePair(0.3), "margin 3": SquaredHingePair(3.0)}
LIBAUC = "LibAUC APLoss"
SHARES, STARTS = (0.02, 0.1), ("scratch", "pretrained")
LEARNING_RATES = [3e-3, 1e-2]
FIGURES = ("test.average_precision", "test.rare", "test.auc", "train.average_precision")
OF_SIGMOIDS = {"objective": {"sigmoid": True}}  # as LibAUC's loss has them
CHANGES: dict[str, Job] = {  # of the defaults: arguments of the objective, of the algorithm and of the batches
    "defaults": {},
    "sigmoid": OF_SIGMOIDS,
    "prevalence .5": {"objective": {"prevalence": 0.5}},
    "gamma .1": {"algorithm": {"gamma": 0.1}},
    "gamma .9": {"algorithm": {"gamma": 0.9}},
    "an eighth of a batch positive": {"batches": {"positive_fraction": 1 / 8}},
    **{name: {"loss": name} for name in PAIR_LOSSES},
}
DEFAULTS: dict[str, Callable[[int], Objective]] = {  # by the number of positives that train
    "AveragePrecision()": lambda _: AveragePrecision(),
    "AUC()": lambda _: AUC(),
    "CVaRPartialAUC(.1)": lambda _: CVaRPartialAUC(MAX_FPR),
    "KLPartialAUC()": lambda _: KLPartialAUC(),
    "RecallAtK(n_+)": RecallAtK,
}
MAX_FPR = 0.1  # of the partial AUC
OWN = ("average_precision", "auc", "partial_auc", "recall")  # figures that the defaults are for
Splits = dict[str, dict[str, Tensor]]
Loss = Callable[[Tensor, dict[str, Tensor]], Tensor]


def digits(source: str, share: float, seed: int, folder: str) -> Splits:
    """The digits of every split as grey images, decoded once; of the training split's positives few are left."""
    path = Path(folder) / f"digits_{share:g}_{seed}.pt"
    if not path.exists():
        module = GroupedImageDataModule(
            LabelledImages("datasets", source=source),
            columns=Columns("label", positive=[5, 6, 7, 8, 9]),
            groups=Groups(["label"]),
            splits=ImageSplits("fractions", [0.6, 0.1, 0.3], seed=seed, imbalance=share),
            transform=ImageTransform(28, mean=[0.13] * 3, std=[0.31] * 3, crop_pct=1.0),
        )
        module.setup()
        rows = {
            name: default_collate([images[i] for i in range(len(images))]) for name, images in module.tables.items()
        }
        torch.save({name: {"x": split["x"][:, :1].clone(), "y": split["y"]} for name, split in rows.items()}, path)
    splits: Splits = torch.load(path)
    return splits


class Classifier(LightningModule):
    """A network, any loss of its outputs, and Adam; after 50% and 75% of the epochs its learning rate falls to a tenth.

    Args:
        network: gives a score for every image.
        loss: of the scores and the batch; a criterion follows the optimizer.
        lr: learning rate.
    """

    def __init__(self, network: TimmModel, loss: Loss, lr: float) -> None:
        super().__init__()
        self.network, self.loss, self.lr = network, loss, lr

    def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:  # noqa: ARG002
        """The loss of a batch."""
        return self.loss(self.network(batch["x"]), batch)

    def configure_optimizers(self) -> Any:
        """Adam and its decay, as in section 4.1 of the paper."""
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.lr)
        if isinstance(self.loss, Criterion):
            self.loss.follow(optimizer)
        epochs = self.trainer.max_epochs or 1
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [epochs // 2, 3 * epochs // 4])]


def loss_of(job: Job, data: TensorDataModule) -> Loss:
    """The loss of a method."""
    columns, method = data.tables["train"].columns, job["method"]
    if method in PLAIN:
        return lambda scores, batch: PLAIN[method](scores, batch["y"].float(), columns)
    if method == LIBAUC:
        theirs = libauc_losses.made("APLoss", data.num_train, int(columns["y"].sum()))
        return lambda scores, batch: libauc_losses.value(theirs, scores.sigmoid(), batch)
    algorithm = ALGORITHMS[method](**job.get("algorithm", {}))
    given = {"sigmoid": False, "cross_entropy": 0.0, **job.get("objective", {})}
    objective = AveragePrecision(PAIR_LOSSES.get(job.get("loss", "")), **given)
    return Criterion(objective, algorithm, num_samples=data.num_train, sampling=data.sampling())


def fit(network: TimmModel, job: Job, splits: Splits, epochs: int) -> None:
    """Train the network."""
    balanced = BalancedSampling(BATCH, **job.get("batches", {}))
    batches = balanced if job.get("balanced", job["method"] not in PLAIN) else UniformSampling(BATCH)
    data = TensorDataModule(splits, batches=batches, seed=job["seed"])
    data.setup()
    trainer = quiet_trainer(max_epochs=epochs, limit_val_batches=0)
    lr = job["overrides"]["lr"]
    if job["method"] not in DEFAULTS:
        return trainer.fit(Classifier(network, loss_of(job, data), lr), data)
    module = FCCOModule(
        network,
        objective=DEFAULTS[job["method"]](int(splits["train"]["y"].sum())),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=lr),
        schedule=Schedule(StepAtFractions, "step"),
    )
    return trainer.fit(module, data)


def start(network: TimmModel, job: Job, splits: Splits, epochs: int) -> None:
    """Give the network the weights that all methods of a seed and share start from, and a new head."""
    first = {"method": "BCE", "seed": job["seed"], "overrides": {"lr": job["first_lr"]}}
    path = Path(job["folder"]) / f"start_{job['share']:g}_{job['seed']}_{epochs}_{job['first_lr']:g}.pt"
    if not path.exists():
        fit(network, first, splits, epochs)
        torch.save(network.state_dict(), path)
    network.load_state_dict(torch.load(path))
    renew(head_of(network), job["seed"])


def figures(network: TimmModel, columns: dict[str, Tensor], share: float) -> dict[str, float]:
    """Figures of a split as it is, and as ``rare`` its average precision if positives were as rare as in training."""
    network.eval()
    with torch.no_grad():
        scores = torch.cat([network(part) for part in columns["x"].split(500)])
    y = columns["y"]
    found = float(y.float().mean())
    weights = torch.where(y == 1, share / found, (1 - share) / (1 - found))
    rare = average_precision_score(y, scores, sample_weight=weights)
    head = scores.flatten().topk(int(y.sum())).indices
    return RankingEvaluation(top=())(scores, columns) | {
        "rare": float(rare),
        "partial_auc": float(roc_auc_score(y, scores, max_fpr=MAX_FPR)),
        "recall": float(y[head].double().mean()),
    }


def train(job: Job) -> Job:
    """One run."""
    torch.set_num_threads(1)
    began, epochs = time.process_time(), job["epochs"]
    splits = digits(job["data"], job["share"], job["seed"], job["folder"])
    seed_everything(job["seed"], verbose=False)
    network = TimmModel(NETWORK, in_chans=1).to(memory_format=torch.channels_last)
    if job["start"] == "pretrained":
        epochs //= 2
        start(network, job, splits, epochs)
    fit(network, job, splits, epochs)
    result: Job = {name: figures(network, columns, job["share"]) for name, columns in splits.items()}
    return {**job, **result, "seconds": round(time.process_time() - began, 1)}


def picked(jobs: dict[str, Job], seeds: Iterable[int], given: argparse.Namespace) -> list[Job]:
    """The search for the learning rate of every label, unless it is given; the jobs with the rate, for every seed."""

    def make(label: str, overrides: dict[str, Any], seed: int) -> Job:
        return {**jobs[label], "label": label, "overrides": overrides, "seed": seed}

    if given.rate:
        return [make(label, {"lr": given.rate}, seed) for label in jobs for seed in seeds]
    figure, tuning = "val.average_precision", SEEDS[: given.tuning_seeds]
    picks = run_searches(
        {label: {"lr": LEARNING_RATES} for label in jobs},
        make,
        lambda run: value(run, figure),
        1,
        [figure],
        train,
        given.out / KEPT,
        seeds=tuning,
    )
    return [make(label, pick["picked"], seed) for label, pick in picks.items() for seed in seeds]


def setting(share: float, begin: str, given: argparse.Namespace) -> Job:
    """What all runs at a share of positives and from a start have in common; cross-entropy's own rate pretrains."""
    common: Job = {"data": given.data, "folder": str(given.out), "epochs": given.epochs}
    common |= {"share": share, "start": begin}
    if begin == "pretrained":
        plain = setting(share, "scratch", given) | {"method": "BCE"}
        common["first_lr"] = picked({"BCE": plain}, [0], given)[0]["overrides"]["lr"]
    return common


def ahead(runs: list[Job], plain: list[Job], figure: str = FIGURES[0]) -> str:
    """By how much a method's figure is above that of cross-entropy, seed by seed, and its standard error."""
    mean, error = advantage(plain, runs, figure)
    return f"{mean:+.4f} +- {error:.4f}"


def compare(share: float, begin: str, given: argparse.Namespace) -> None:
    """Search, run and print all methods."""
    common = setting(share, begin, given)
    methods: dict[str, Job] = {name: {"method": name} for name in (*PLAIN, *ALGORITHMS)}
    methods["SOX, sigmoid"] = {"method": "SOX", **OF_SIGMOIDS}
    methods |= {LIBAUC: {"method": LIBAUC}} if libauc_losses.available() else {}
    jobs = {label: common | method for label, method in methods.items()}
    results = run_all(picked(jobs, range(given.seeds), given), 1, FIGURES[:2], train, given.out / KEPT)
    plain = [run for run in results if run["label"] == "BCE"]
    extra = {"above BCE": functools.partial(ahead, plain=plain), "picked": rates, "s": seconds}
    print(f"\n{share:.0%} positives, {begin}\n" + table(results, FIGURES, extra) + "\n", flush=True)


def defaults(share: float, begin: str, given: argparse.Namespace) -> None:
    """Search, run and print the objectives as FCCOModule trains them, beside cross-entropy in the same batches."""
    common = setting(share, begin, given)
    jobs = {
        f"{method}, {'balanced' if balanced else 'uniform'}": common
        | {"method": method, "balanced": balanced, "batches": {"prevalence": "batch"}}
        for balanced, method in itertools.product((True, False), ("BCE", *given.objectives))
    }
    results = run_all(picked(jobs, range(given.seeds), given), 1, FIGURES[:2], train, given.out / KEPT)
    for name in OWN:
        extra = {
            f"above BCE, {batches}": functools.partial(
                ahead, plain=[run for run in results if run["label"] == f"BCE, {batches}"], figure=f"test.{name}"
            )
            for batches in ("uniform", "balanced")
        }
        columns = (f"test.{name}", f"train.{name}")
        print(f"\n{share:.0%} positives, {begin}\n" + table(results, columns, extra | {"picked": rates}), flush=True)


def ablation(share: float, begin: str, given: argparse.Namespace) -> None:
    """Print the picked runs of SOX with changes of its defaults, on tuning seeds."""
    common = setting(share, begin, given) | {"method": "SOX"}
    runs = picked({name: common | change for name, change in CHANGES.items()}, SEEDS[: given.tuning_seeds], given)
    columns = ("val.average_precision", *FIGURES)
    results = run_all(runs, 1, columns, train, given.out / KEPT)  # the search has run and kept them
    print(f"\n{share:.0%} positives, {begin}, SOX\n" + table(results, columns, {"picked": rates}) + "\n", flush=True)


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments(__doc__, jobs=None)
    parser.add_argument("--data", required=True, help="table of images and labels, for `datasets`")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, help="of positives in training")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS)
    parser.add_argument("--ablation", action="store_true", help="changes of the objective, on tuning seeds")
    parser.add_argument("--defaults", action="store_true", help="objectives as FCCOModule trains them")
    parser.add_argument("--objectives", nargs="+", choices=DEFAULTS, default=list(DEFAULTS), help="of --defaults")
    parser.add_argument("--rate", type=float, help="of all methods, in place of the search")
    parser.add_argument("--tuning-seeds", type=int, default=1, choices=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of pretrained runs half are pretraining")
    parser.set_defaults(out=Path("runs/benchmarks/imbalanced_images"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    work = ablation if given.ablation else defaults if given.defaults else compare
    for share, begin in itertools.product(given.shares, given.starts):
        work(share, begin, given)


if __name__ == "__main__":
    main()
