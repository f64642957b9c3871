"""Random compositions, each interrupted and resumed along a random chain, equal the uninterrupted run exactly."""

import random
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR

from fcco_lightning import (
    AUC,
    AdamType,
    AUCMargin,
    AugmentedLagrangian,
    AveragePrecision,
    Clipping,
    CrossEntropy,
    CVaRGroupDRO,
    CVaRPartialAUC,
    DemographicParity,
    EqualOpportunity,
    FCCOModule,
    HeavyBall,
    HingePenalty,
    KLGroupDRO,
    KLPartialAUC,
    MeanAtMost,
    NuPI,
    PNormPush,
    ROCFairness,
    SampleDRO,
    Schedule,
    SmoothedHingePenalty,
    SoftRate,
    Splits,
    TabularMLP,
    UniformSampling,
    WeightAverage,
)
from fcco_lightning.errors import FCCOError
from fcco_lightning.reports import BestFeasible
from tests.contracts.registry_algorithms import ALGORITHMS
from tests.evidence import count
from tests.jobs import everything
from tests.tables import make_data, make_frame
from tests.training.test_chains import Stop, StoppedError

SEED, EPOCHS, BATCHES = 7, 4, 5
TABLES = {"train": make_frame(75, 0), "test": make_frame(20, 1), "splits": Splits(val_fraction=0.2)}
OBJECTIVES = [
    AUC, AUCMargin, AveragePrecision, CrossEntropy, KLPartialAUC, PNormPush, SampleDRO,
    partial(CVaRPartialAUC, 0.5), partial(CVaRGroupDRO, 0.5, num_groups=2), partial(KLGroupDRO, num_groups=2),
]  # fmt: skip
CONSTRAINTS = [
    partial(ROCFairness, thresholds=[-1, 0, 1]), DemographicParity, EqualOpportunity,
    partial(MeanAtMost, SoftRate(temperature=0.5), kappa=0.3, where={"y": 0}),
]  # fmt: skip
PENALTIES = [
    partial(HingePenalty, 3.0), partial(SmoothedHingePenalty, 3.0), partial(AugmentedLagrangian, 5.0, 0.3),
    partial(NuPI, 0.3, 2.0, 0.5),
]  # fmt: skip
OPTIMIZERS = [
    partial(HeavyBall, lr=0.02, beta=0.3), partial(AdamType, lr=0.01), partial(torch.optim.SGD, lr=0.02, momentum=0.9),
    partial(torch.optim.AdamW, lr=0.01), partial(torch.optim.Adagrad, lr=0.02), partial(torch.optim.RMSprop, lr=0.01),
]  # fmt: skip
SCHEDULES = [
    None, partial(ExponentialLR, gamma=0.7), partial(CosineAnnealingLR, T_max=7),
    partial(LambdaLR, lr_lambda=lambda k: 1 / (1 + k)),
]  # fmt: skip
CALLBACKS = {
    "none": lambda _: [],
    "EarlyStopping": lambda _: [EarlyStopping("train_objective", patience=1, check_on_train_epoch_end=True)],
    "ModelCheckpoint": lambda path: [
        ModelCheckpoint(path, "{epoch}", "train_objective", save_top_k=2, save_on_train_epoch_end=True)
    ],
    "BestFeasible": lambda _: [BestFeasible(enabled=True)],
    "Timer": lambda _: [Timer(duration="00:01:00:00")],
}
AVERAGES = [lambda: None, lambda: None, partial(WeightAverage, 0.8), partial(WeightAverage, None, start=3)]
PRECISIONS = ["32-true", "32-true", "64-true", "bf16-mixed"]


class Composition:
    """Parts drawn at random."""

    def __init__(self, seed):
        chance = random.Random(seed)  # noqa: S311
        self.member = chance.choice(list(ALGORITHMS))
        member = ALGORITHMS[self.member]
        self.objective = member.objective or chance.choice(OBJECTIVES)
        self.constraints = chance.sample(CONSTRAINTS, chance.choice([0, 0, 1, 2]))
        self.penalty = chance.choice([member.penalty, *PENALTIES])
        self.optimizer, self.schedule = chance.choice(OPTIMIZERS), chance.choice(SCHEDULES)
        if self.member == "SOXBoost":  # which sets the momentum of its stages itself
            self.optimizer = OPTIMIZERS[0]
        self.interval, self.precision = chance.choice(["step", "epoch"]), chance.choice(PRECISIONS)
        self.dropout, self.workers = chance.choice([0.0, 0.2]), chance.choice([0] * 9 + [1])
        self.validation, self.clip = chance.choice([0, 0, 1.0]), chance.choice([None, 1.0])
        self.draws = member.jacobian == "part"
        self.callbacks, self.average = chance.choice(list(CALLBACKS)), chance.choice(AVERAGES)
        self.stops = sorted(chance.sample(range(1, EPOCHS * BATCHES), chance.randint(1, 4)))
        self.at_ends = [chance.random() < 0.4 for _ in self.stops]

    def __str__(self):
        parts = [self.objective, *self.constraints, self.penalty, self.optimizer, self.schedule]
        names = [getattr(getattr(part, "func", part), "__name__", "none") for part in parts]
        more = f"{self.interval}, {self.precision}, {self.callbacks}, {self.average}"
        return f"{self.member}, {names}, {more}, stops {self.stops} {self.at_ends}"

    def fit(self, make_trainer, folder, seed, path=None, callbacks=()):
        """Train on, from a checkpoint if there is one; the trainer."""
        torch.manual_seed(seed)
        module = FCCOModule(
            TabularMLP(hidden=[6], dropout=self.dropout),
            objective=self.objective(),
            constraints=[make() for make in self.constraints],
            penalty=self.penalty() if self.constraints else None,
            algorithm=ALGORITHMS[self.member].make(),
            optimizer=self.optimizer,
            schedule=Schedule(self.schedule, self.interval),
            clipping=Clipping(self.clip),
            average=self.average(),
        )
        data = make_data(**TABLES, batches=UniformSampling(12, two_draws=self.draws), num_workers=self.workers)
        trainer = make_trainer(
            max_epochs=EPOCHS,
            precision=self.precision,
            limit_val_batches=self.validation,
            enable_checkpointing=self.callbacks == "ModelCheckpoint",
            callbacks=[*CALLBACKS[self.callbacks](folder), *callbacks],
        )
        with suppress(StoppedError):
            trainer.fit(module, data, ckpt_path=path)
        return trainer

    def chain(self, make_trainer, folder):
        """The same, stopped again and again."""
        path = None
        for number, (batches, at_end) in enumerate(zip(self.stops, self.at_ends, strict=True)):
            stop = Stop("exception", "epoch end" if at_end else "batch end", batches, folder / f"{number}.ckpt")
            trainer = self.fit(make_trainer, folder, 100 + number if number else SEED, path, [stop])
            if not stop.path.exists():  # the run has ended before
                return trainer
            path = stop.path
        return self.fit(make_trainer, folder, 200, path)


def final(trainer):
    """All tensors that training has moved, and what Lightning's callbacks have remembered, by name."""
    figures = {"epoch": trainer.current_epoch, "step": trainer.global_step}
    for callback in trainer.callbacks:
        if isinstance(callback, EarlyStopping | ModelCheckpoint):
            remembered = callback.state_dict()
            names = ("wait_count", "stopped_epoch", "best_score", "best_model_score")
            figures |= {name: remembered[name] for name in names if remembered.get(name) is not None}
            figures |= {f"kept {k}": v for k, v in enumerate(sorted(remembered.get("best_k_models", {}).values()))}
    return everything(trainer) | {name: torch.as_tensor(value) for name, value in figures.items()}


def fuzz(make_trainer, folder, first, wanted):
    """Try compositions until so many have been compared; how often what happened."""
    seen, seed = Counter(), first
    while seen["compared"] < wanted:
        composition = Composition(seed)
        for name in ("whole", "chain"):
            (own := folder / str(seed)).joinpath(name).mkdir(parents=True)
        seed += 1
        try:
            whole = composition.fit(make_trainer, own / "whole", SEED)
        except FCCOError:  # parts that do not go together
            seen["refused"] += 1
            continue
        found = final(composition.chain(make_trainer, own / "chain"))
        where = partial("seed {}: {}: {}".format, seed - 1, composition)
        torch.testing.assert_close(found, final(whole), rtol=0, atol=0, equal_nan=True, msg=where)
        seen["compared"] += 1
    return seen


pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
]


def test_random_compositions(make_trainer, tmp_path):
    seen = fuzz(make_trainer, tmp_path, 0, count(30, 300))
    assert seen["refused"] < 3 * seen["compared"]
