"""Every callback of Lightning works, also when resumed, or is refused by name with an alternative."""

import inspect
import signal
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, callbacks
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger

from fcco_lightning import CheckpointError, Columns, ConfigError, DataError, HeavyBall, TabularMLP
from fcco_lightning.cli.checkpoint_tools import describe
from fcco_lightning.reports import PredictionWriter
from fcco_lightning.training import Checkpoints, Preemption
from fcco_lightning.training.trainers import REFUSED
from tests.jobs import require_same, save_at
from tests.tables import make_data, make_frame

DATA = {"train": make_frame(36, 0), "test": make_frame(20, 1), "batch_size": 12}
EPOCHS, BATCHES = 3, 3
BASES = {"Callback", "Checkpoint", "ProgressBar"}  # which do nothing by themselves
SHIPPED = {
    name for name, kind in vars(callbacks).items() if inspect.isclass(kind) and issubclass(kind, callbacks.Callback)
} - BASES


class FirstLayerLater(callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.network.layers[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.network.layers[0], optimizer)


class Kept(callbacks.OnExceptionCheckpoint):
    def teardown(self, *args, **kwargs):  # which would remove the checkpoint
        pass


def saved(folder):
    return sorted(path.name for path in folder.glob("*.ckpt"))


def logged(trainer):
    return "".join(path.read_text() for path in Path(trainer.log_dir).glob("*.csv"))


def by_monitor(folder):
    return ModelCheckpoint(folder / "best", monitor="train_auc", mode="max", save_top_k=2, save_last=True)


def by_updates(folder):
    return ModelCheckpoint(folder / "updates", "{step}", every_n_train_steps=4, save_top_k=-1)


def by_time(folder):
    return Checkpoints(folder / "time", "{step}", train_time_interval=timedelta(0), save_top_k=-1)


# What makes callbacks, all of one run together, for a folder; flags of the Trainer; what holds of each afterwards.
PASSIVE = {"enable_progress_bar": True, "enable_model_summary": True}
RUNS = {
    "what watches": (PASSIVE, {
        "BasePredictionWriter": (lambda f: PredictionWriter(), None),
        "DeviceStatsMonitor": (lambda f: callbacks.DeviceStatsMonitor(cpu_stats=False), None),
        "LambdaCallback": (
            lambda f: callbacks.LambdaCallback(on_train_end=lambda *_: (f / "end").mkdir(parents=True)),
            lambda c, t, f: (f / "end").is_dir(),
        ),
        "LearningRateMonitor": (
            lambda f: callbacks.LearningRateMonitor("step"), lambda c, t, f: "lr-HeavyBall" in logged(t),
        ),
        "RichModelSummary": (lambda f: callbacks.RichModelSummary(), None),
        "RichProgressBar": (lambda f: callbacks.RichProgressBar(), None),
        "ThroughputMonitor": (
            lambda f: callbacks.ThroughputMonitor(batch_size_fn=lambda batch: len(batch["index"]), window_size=2),
            lambda c, t, f: "train/device/samples_per_sec" in logged(t),
        ),
        "Timer": (lambda f: callbacks.Timer(timedelta(hours=1)), lambda c, t, f: c.time_elapsed() > 0),
    }),
    "other bars": (PASSIVE, {
        "ModelSummary": (lambda f: callbacks.ModelSummary(), None),
        "TQDMProgressBar": (lambda f: callbacks.TQDMProgressBar(), None),
    }),
    "what saves": ({}, {
        "ModelCheckpoint": (ModelCheckpoint, lambda c, t, f: saved(f) == ["epoch=2-step=9.ckpt"]),
        "ModelCheckpoint, the best": (by_monitor, lambda c, t, f: len(saved(f / "best")) == 3),
        "ModelCheckpoint, by updates": (by_updates, lambda c, t, f: "step=8.ckpt" in saved(f / "updates")),
        "ModelCheckpoint, by time": (by_time, lambda c, t, f: len(saved(f / "time")) >= 4),
    }),
    "what stops": ({}, {
        "EarlyStopping": (
            lambda f: callbacks.EarlyStopping("train_auc", mode="min", patience=1),
            lambda c, t, f: t.current_epoch == 2 == c.stopped_epoch + 1,
        ),
    }),
    "what thaws": ({}, {
        "BaseFinetuning": (lambda f: FirstLayerLater(), lambda c, t, f: len(t.optimizers[0].param_groups) == 2),
    }),
}  # fmt: skip

REFUSALS = {
    "BackboneFinetuning": ({}, r"module\.network"),
    "BatchSizeFinder": ({}, "micro_batch"),
    "EMAWeightAveraging": ({}, r"model\.average\.decay"),
    "GradientAccumulationScheduler": ({"scheduling": {1: 2}}, "micro_batch"),
    "LearningRateFinder": ({}, "train_objective"),
    "ModelCheckpoint": ({"train_time_interval": timedelta(1)}, r"training\.Checkpoints"),
    "ModelPruning": ({"pruning_fn": "l1_unstructured"}, r"utils\.prune"),
    "SpikeDetection": ({}, "skip_nonfinite"),
    "StochasticWeightAveraging": ({"swa_lrs": 0.1}, r"model\.average\.decay"),
    "WeightAveraging": ({}, r"model\.average\.decay"),
}

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        "Using ModelCheckpoint with manual", "The dirpath has changed", "Checkpoint directory", "When using the `Thr",
        ".*was called without a model", ".*there is no last checkpoint",
    )
]  # fmt: skip


def test_every_callback_is_decided_upon():
    """One that a new version of Lightning ships fails here: let it work, or refuse it, and put it into the guide."""
    works = {name.partition(",")[0] for _, parts in RUNS.values() for name in parts}
    assert works | set(REFUSALS) | {"OnExceptionCheckpoint"} == SHIPPED
    assert {kind.__name__ for kind in REFUSED} <= set(REFUSALS)


def fit(make_module, make_trainer, folder, added, ckpt_path=None, **flags):
    torch.manual_seed(3 if ckpt_path is None else 99)
    network = TabularMLP(hidden=[8], dropout=0.2, in_features=7)
    module = make_module(network=network, optimizer=lambda p: HeavyBall(p, lr=0.05))
    flags = {"max_epochs": EPOCHS, "logger": CSVLogger(folder, name=""), "log_every_n_steps": 1} | flags
    flags["enable_checkpointing"] = any(isinstance(c, callbacks.Checkpoint) for c in added)
    trainer = make_trainer(callbacks=added, **flags)
    trainer.fit(module, make_data(**DATA), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize("name", RUNS)
def test_a_run_with_it_is_resumed_bit_for_bit(name, make_module, make_trainer, tmp_path):
    flags, parts = RUNS[name]

    def run(folder, more=(), ckpt_path=None):
        own = [make(folder) for make, _ in parts.values()]
        trainer = fit(make_module, make_trainer, tmp_path / "log", [*own, *more], ckpt_path, **flags)
        for callback, (_, holds) in zip(own, parts.values(), strict=True):
            assert holds is None or holds(callback, trainer, folder), callback
        return trainer

    whole = run(tmp_path / "whole", [save_at(1, 1, tmp_path / "at.ckpt")])
    require_same(run(tmp_path / "resumed", ckpt_path=tmp_path / "at.ckpt"), whole)


def test_a_run_that_was_stopped_early_stays_stopped(make_module, make_trainer, tmp_path):
    def stopped():
        return callbacks.EarlyStopping("train_auc", mode="min", patience=1)

    saver = ModelCheckpoint(tmp_path, save_last=True, save_on_train_epoch_end=True)
    whole = fit(make_module, make_trainer, tmp_path, [stopped(), saver], max_epochs=9)
    assert whole.current_epoch == 2
    again = [stopped(), ModelCheckpoint(tmp_path, save_last=True, save_on_train_epoch_end=True)]
    require_same(fit(make_module, make_trainer, tmp_path, again, tmp_path / "last.ckpt", max_epochs=9), whole)


def test_the_best_so_far_is_known_in_another_folder(make_module, make_trainer, tmp_path):
    class Figure(Callback):
        def on_train_epoch_end(self, trainer, module):
            module.log("figure", [0.5, 0.9, 0.7, 0.8][trainer.current_epoch])

    def run(folder, epochs, ckpt_path=None):
        saver = Checkpoints(tmp_path / folder, "{epoch}", monitor="figure", mode="max", save_top_k=1, save_last=True)
        fit(make_module, make_trainer, tmp_path, [Figure(), saver], ckpt_path, max_epochs=epochs)
        return saver

    first = run("a", 2)
    assert first.best_model_path == str(tmp_path / "a/epoch=1.ckpt")
    second = run("b", 4, tmp_path / "a/last.ckpt")
    assert (second.best_model_path, float(second.best_model_score)) == (first.best_model_path, pytest.approx(0.9))
    assert saved(tmp_path / "a") == ["epoch=1.ckpt", "last.ckpt"]
    assert saved(tmp_path / "b") == ["last.ckpt"]


@pytest.mark.parametrize("name", REFUSALS)
def test_a_callback_that_cannot_work_is_refused(name, make_module, make_trainer):
    arguments, way_out = REFUSALS[name]
    callback = getattr(callbacks, name)(**arguments)
    with pytest.raises(ConfigError, match=f"{name} is refused: (.|\n)*{way_out}"):
        make_trainer(callbacks=[callback], enable_checkpointing=True).fit(make_module(), make_data(**DATA))


def test_weights_alone_are_evaluated_but_not_continued(make_module, make_trainer, tmp_path):
    saver = ModelCheckpoint(tmp_path, "weights", save_weights_only=True)
    trainer, path = fit(make_module, make_trainer, tmp_path, [saver], max_epochs=1), tmp_path / "weights.ckpt"
    (own,) = trainer.test(trainer.lightning_module, make_data(**DATA), verbose=False)
    (again,) = make_trainer().test(make_module(), make_data(**DATA), ckpt_path=path, verbose=False)
    assert own == again
    assert describe(path)["global_step"] == BATCHES
    with pytest.raises(CheckpointError, match="save_weights_only"):
        fit(make_module, make_trainer, tmp_path, [], path)


class Failing(Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 5:
            raise RuntimeError("failing")


def test_a_checkpoint_of_an_exception_continues(make_module, make_trainer, tmp_path):
    with pytest.raises(RuntimeError, match="failing"):
        fit(make_module, make_trainer, tmp_path, [Failing(), Kept(tmp_path)])
    resumed = fit(make_module, make_trainer, tmp_path, [], tmp_path / "on_exception.ckpt")
    require_same(resumed, fit(make_module, make_trainer, tmp_path, []))


class FailsAtFirst(Callback):
    def on_sanity_check_start(self, *args):
        raise RuntimeError("failing")


FAILURES = {
    "the data": ({"columns": Columns("nolabel")}, {}, [], DataError, "nolabel"),
    "another callback": ({}, {}, [callbacks.StochasticWeightAveraging(0.1)], ConfigError, "StochasticWeightAveraging"),
    "the optimizer": ({}, {"optimizer": torch.optim.LBFGS}, [], ConfigError, "LBFGS"),
    "the sanity check": ({}, {}, [FailsAtFirst()], RuntimeError, "failing"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_fit_that_fails_before_it_trains_says_why_and_leaves_no_checkpoint(name, make_module, make_trainer, tmp_path):
    data, parts, others, error, message = FAILURES[name]
    flags = {"enable_checkpointing": True, "num_sanity_val_steps": 1}
    with pytest.raises(error, match=message):
        make_trainer(callbacks=[*others, Kept(tmp_path)], **flags).fit(make_module(**parts), make_data(**data))
    assert saved(tmp_path) == []
    trainer = make_trainer(callbacks=[Kept(tmp_path)], **flags)
    trainer.fit(make_module(), make_data())  # Lightning continues a file of that name unasked
    assert trainer.global_step == 20


@pytest.mark.parametrize("work", ["fit", "validate", "failed"])
def test_a_callback_saves_for_other_modules_what_it_is_asked_for(work, make_module, make_trainer, tmp_path):
    """Behind work on a module of this package, too."""
    kept, others = Kept(tmp_path), [FailsAtFirst()] if work == "failed" else []
    flags = {"enable_checkpointing": True, "num_sanity_val_steps": 1}
    with pytest.raises(RuntimeError, match="failing") if others else nullcontext():
        trainer = make_trainer(callbacks=[kept, *others], **flags)
        (trainer.validate if work == "validate" else trainer.fit)(make_module(), make_data())
    with pytest.raises(RuntimeError, match="failing"):
        make_trainer(callbacks=[kept, FailsAtFirst()], **flags).fit(BoringModel())
    assert saved(tmp_path) == [kept.filename + ".ckpt"]


def test_a_trainer_that_is_used_again_is_not_told_what_it_replaces(make_module, make_trainer, caplog):
    module, trainer = make_module(), make_trainer(max_epochs=1)
    with caplog.at_level("INFO"):
        trainer.fit(module, make_data(**DATA))
        trainer.test(module, make_data(**DATA), verbose=False)
        kinds = [type(callback) for callback in trainer.callbacks]
    assert len(set(kinds)) == len(kinds)
    assert "will override" not in caplog.text


def test_nothing_is_warned_of_checkpoints_after_every_step(make_module, make_trainer, tmp_path, recwarn):
    """That they hold the weights after the step is how they are meant."""
    before = list(warnings.filters)
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
    trainer = make_trainer(max_epochs=1, callbacks=[saver], enable_checkpointing=True)
    trainer.fit(make_module(), make_data(**DATA))
    assert len(saved(tmp_path)) == BATCHES
    assert not [str(one.message) for one in recwarn if "AFTER optimization" in str(one.message)]
    assert warnings.filters == before


def test_a_signal_that_another_program_listens_to_is_left_to_it(make_module, make_trainer, small_data, monkeypatch):
    """Python knows no handler that R or Julia, in which it runs, have set, and could not give it back."""
    known, listening = signal.getsignal, signal.signal

    def left(number, handler):
        assert number != signal.SIGINT
        assert handler is not None
        return listening(number, handler)

    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGINT else known(number))
    monkeypatch.setattr(signal, "signal", left)
    make_trainer(max_epochs=1, callbacks=[Preemption(signals=("SIGINT", "SIGUSR1"))]).fit(make_module(), small_data)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP", "SIGNAL"])
def test_a_signal_that_no_program_hears_is_refused(name):
    with pytest.raises(ConfigError, match=rf"signals names \['{name}'\].*Use e\.g\. SIGTERM"):
        Preemption(signals=("SIGTERM", name))
