"""A run that is interrupted many times, at random moments and in every way, equals the uninterrupted run exactly."""

import os
import random
import signal
from contextlib import suppress

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau

from fcco_lightning import ALEXR2, SONEX, HeavyBall, HingePenalty, Schedule
from fcco_lightning.training import Preemption
from tests.jobs import everything
from tests.tables import make_data, make_frame

EPOCHS = 4
DATA = {"train": make_frame(60, 0), "test": make_frame(20, 1), "batch_size": 12}
WAYS = ["max_steps", "exception", "max_time", "SIGTERM", "SIGKILL"]

SETTINGS = {
    "SONEX, a schedule per step, no validation": {
        "schedule": (lambda o: LambdaLR(o, lambda k: 1 / (1 + k)), "step", None), "limit_val_batches": 0,
    },
    "SONEX, a schedule per epoch, validation": {"schedule": (lambda o: ExponentialLR(o, 0.5), "epoch", None)},
    "SONEX, a plateau of the validation": {
        "schedule": (lambda o: ReduceLROnPlateau(o, "max", patience=0, threshold=0.03), "epoch", "train_auc"),
    },
    "SONEX, a plateau of training, validation in the epoch": {
        "schedule": (lambda o: ReduceLROnPlateau(o, "max", patience=0, threshold=0.03), "epoch", "train_objective"),
        "val_check_interval": 2,
    },
    "ALEXR2, no validation": {"algorithm": ALEXR2, "limit_val_batches": 0},
    "ALEXR2, a schedule per epoch, validation every second epoch": {
        "algorithm": ALEXR2, "schedule": (lambda o: ExponentialLR(o, 0.5), "epoch", None), "check_val_every_n_epoch": 2,
    },
    "ALEXR2, validation in the epoch": {"algorithm": ALEXR2, "val_check_interval": 3},
    "ALEXR2, validation by batches, short epochs": {
        "algorithm": ALEXR2, "check_val_every_n_epoch": None, "val_check_interval": 6, "limit_train_batches": 4,
    },
}  # fmt: skip


class StoppedError(Exception):
    """What a callback raises."""


class Diary(Callback):
    """Batches and validations of all runs of a chain; an entry is lost where the work is."""

    def __init__(self):
        self.entries = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        (group,) = trainer.optimizers[0].param_groups
        rows = batch["index"].tolist()
        self.entries.append(("batch", trainer.current_epoch, batch_idx, trainer.global_step, group["lr"], rows))

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            figures = {name: float(value) for name, value in trainer.callback_metrics.items() if "auc" in name}
            self.entries.append(("validation", trainer.current_epoch, trainer.global_step, figures))

    def state_dict(self):
        return {"entries": self.entries}

    def load_state_dict(self, state_dict):
        self.entries = list(state_dict["entries"])


class Logged(DummyLogger):
    """What was logged where: a step that is repeated must give the same values."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def log_metrics(self, metrics, step=None):
        for name, value in metrics.items():
            assert self.values.setdefault((step, name), value) == value, (step, name)


class Stop(Callback):
    """Ends the run in one way, in the first hook of a name after so many batches, and leaves a checkpoint."""

    def __init__(self, way, hook, batches, path):
        self.way, self.hook, self.batches, self.path = way, hook, batches, path

    def _at(self, trainer, hook):
        trained = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        if trainer.sanity_checking or hook != self.hook or trained < self.batches:
            return
        if self.way == "max_time":
            trainer.should_stop = True
        elif self.way == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            raise StoppedError

    def on_train_batch_start(self, trainer, *args):
        self._at(trainer, "batch start")

    def on_train_batch_end(self, trainer, *args):
        self._at(trainer, "batch end")

    def on_validation_start(self, trainer, *args):
        self._at(trainer, "validation start")

    def on_validation_batch_end(self, trainer, *args):
        self._at(trainer, "validation batch")

    def on_validation_end(self, trainer, *args):
        self._at(trainer, "validation end")

    def on_train_epoch_end(self, trainer, *args):
        self._at(trainer, "epoch end")

    def on_exception(self, trainer, module, exception):
        if self.way == "exception":
            trainer.save_checkpoint(self.path)


HOOKS = {
    "exception": ["batch start", "batch end", "validation start", "validation batch", "validation end", "epoch end"],
    "max_time": ["batch end", "validation end"],
    "SIGTERM": ["batch start", "validation start"],
    "SIGKILL": ["batch start", "batch end", "validation batch", "epoch end"],
}


class Chain:
    """A run of one of the settings, whole or in pieces, with checkpoints in a folder."""

    def __init__(self, make_module, make_trainer, folder, setting):
        self.make_module, self.make_trainer, self.folder = make_module, make_trainer, folder
        self.flags = dict(setting)
        self.algorithm = self.flags.pop("algorithm", SONEX)
        self.schedule = self.flags.pop("schedule", (None, "epoch", None))
        self.values, self.pieces, self.checkpoint = {}, 0, None

    def fit(self, callbacks=(), **flags):
        """Continue from the last checkpoint, to the end or until it is stopped; the trainer."""
        torch.manual_seed(7 if self.checkpoint is None else 100 + self.pieces)
        module = self.make_module(
            algorithm=ALEXR2(K=3, nu=1.0) if self.algorithm is ALEXR2 else SONEX(),
            optimizer=lambda p: HeavyBall(p, lr=0.05),
            penalty=HingePenalty(4.0),
            schedule=Schedule(*self.schedule),
        )
        flags = {"max_epochs": EPOCHS, "log_every_n_steps": 1, "num_sanity_val_steps": 1} | self.flags | flags
        trainer = self.make_trainer(callbacks=[Diary(), *callbacks], logger=Logged(self.values), **flags)
        with suppress(StoppedError, SIGTERMException):
            trainer.fit(module, make_data(**DATA), ckpt_path=self.checkpoint)
        return trainer

    def stop(self, way, chance, batches):
        """One piece, to be stopped after so many batches or later; the number it has trained."""
        self.pieces += 1
        path = self.folder / f"{self.pieces}.ckpt"
        every, flags, callbacks = chance.randint(1, 4), {}, []
        if way == "max_steps":
            flags = {"max_steps": batches if self.algorithm is SONEX else -(-batches // 3)}
        else:
            callbacks = [Stop(way, chance.choice(HOOKS[way]), batches, path)]
        if way == "SIGTERM":
            callbacks.append(Preemption(folder=str(path.parent / path.stem)))
            path = path.parent / path.stem / "interrupted.ckpt"
        if way == "SIGKILL":
            saver = ModelCheckpoint(path.parent / path.stem, every_n_train_steps=every, save_top_k=1, save_last=True)
            callbacks, flags = [*callbacks, saver], {"enable_checkpointing": True}
            path = path.parent / path.stem / "last.ckpt"
        trainer = self.fit(callbacks, **flags)
        if way in ("max_steps", "max_time"):
            trainer.save_checkpoint(path)
        if path.exists():  # a kill comes before the first checkpoint, a signal after the last batch
            self.checkpoint = path
        return trainer.fit_loop.epoch_loop.batch_progress.total.processed

    def outcome(self):
        """Continue to the end."""
        self.pieces += 1
        trainer = self.fit()
        diary = next(c for c in trainer.callbacks if isinstance(c, Diary))
        schedules = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
        return {
            "tensors": everything(trainer),
            "counts": (trainer.global_step, trainer.current_epoch),
            "diary": diary.entries,
            "schedules": [{k: v for k, v in state.items() if k != "lr_lambdas"} for state in schedules],
            "logged": self.values,
        }


def require_same(found, expected):
    assert found["diary"] == expected["diary"]
    assert found["counts"] == expected["counts"]
    assert found["schedules"] == expected["schedules"]
    torch.testing.assert_close(found["tensors"], expected["tensors"], rtol=0, atol=0)
    assert found["logged"] == expected["logged"]


def run_chains(make_module, make_trainer, folder, seeds):
    """Chains of one to five stops, each compared with the uninterrupted run of its settings."""
    whole = {}
    for seed in seeds:
        name = list(SETTINGS)[seed % len(SETTINGS)]
        chance = random.Random(seed)  # noqa: S311
        if name not in whole:
            whole[name] = Chain(make_module, make_trainer, folder, SETTINGS[name]).outcome()
        (own := folder / str(seed)).mkdir()
        chain, trained, stops = Chain(make_module, make_trainer, own, SETTINGS[name]), 0, []
        for _ in range(chance.randint(1, 5)):
            way = chance.choice(WAYS)
            stops.append((way, trained + chance.randint(1, 7)))
            trained = chain.stop(stops[-1][0], chance, stops[-1][1])
        try:
            require_same(chain.outcome(), whole[name])
        except AssertionError as error:
            raise AssertionError(f"chain {seed} ({name}), stops {stops}: {error}") from error


pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in ("Using ModelCheckpoint with manual", "Be aware that when using", "The dirpath has changed")
]


@pytest.mark.slow
def test_random_chains(make_module, make_trainer, tmp_path):
    run_chains(make_module, make_trainer, tmp_path, range(len(SETTINGS)))


@pytest.mark.slow
def test_many_random_chains(make_module, make_trainer, tmp_path):
    run_chains(make_module, make_trainer, tmp_path, range(100, 200))
