"""A checkpoint is a continuation, bit for bit."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    BSGD,
    MOAP,
    MSVR,
    SGD,
    SOAP,
    SONEX,
    SONX,
    SOX,
    AdamType,
    CheckpointError,
    HeavyBall,
    ROCFairness,
    Schedule,
    SOXBoost,
    StepAtFractions,
)
from tests.conftest import make_data, make_frame

ALL_ALGORITHMS = [
    SGD, BSGD, SOAP, MOAP, SOX, MSVR, SONX, SONEX, ALEXR, partial(ALEXR2, K=4), partial(SOXBoost, first_stage=7)
]  # fmt: skip


class SaveAt(Callback):
    """Saves once, after a batch of an epoch, before any hook that follows the batch."""

    def __init__(self, path, epoch, batch):
        self.path, self.epoch, self.batch = path, epoch, batch

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            trainer.save_checkpoint(self.path)


def everything(trainer):
    """All tensors that training has moved, by name."""
    module = trainer.lightning_module
    tensors = {k: v for k, v in module.state_dict().items() if isinstance(v, torch.Tensor)}
    flat = {"optimizer": trainer.optimizers[0].state_dict(), "engine": module.engine.state_dict()}
    todo = list(flat.items())
    while todo:
        name, value = todo.pop()
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif isinstance(value, dict):
            todo += [(f"{name}.{k}", v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            todo += [(f"{name}.{k}", v) for k, v in enumerate(value)]
        elif isinstance(value, int | float):
            tensors[name] = torch.tensor(value)
    return tensors


@pytest.mark.parametrize("algorithm", ALL_ALGORITHMS, ids=lambda a: getattr(a, "__name__", getattr(a, "func", a)))
@pytest.mark.parametrize("batch", [4, 9], ids=["mid-epoch", "epoch's end"])
def test_resume_equals_uninterrupted(algorithm, batch, make_module, make_trainer, tmp_path):
    """Dropout, a schedule per step, and for ALEXR2 (K = 4) the middle of an inner loop."""
    path = tmp_path / "at.ckpt"

    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)  # a resumed run must not depend on its own seed
        module = make_module(
            algorithm=algorithm(),
            optimizer=lambda p: HeavyBall(p, lr=0.05),
            schedule=Schedule(
                None if isinstance(algorithm(), SOXBoost) else lambda o: LambdaLR(o, lambda k: 1 / (1 + k)), "step"
            ),
        )
        trainer = make_trainer(max_epochs=3, callbacks=list(callbacks))
        trainer.fit(module, make_data(), ckpt_path=ckpt_path)
        return trainer

    whole = fit([SaveAt(path, epoch=1, batch=batch)])
    resumed = fit(ckpt_path=path)
    expected, actual = everything(whole), everything(resumed)
    assert expected.keys() == actual.keys()
    different = [name for name in expected if not torch.equal(expected[name], actual[name])]
    assert not different
    assert resumed.global_step == whole.global_step


@pytest.mark.filterwarnings("ignore:precision=.* keeps the weights")
@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "16-true", "bf16-mixed", "16-mixed"])
def test_resume_in_every_precision(precision, make_module, make_trainer, tmp_path):
    path, data = tmp_path / "at.ckpt", {"train": make_frame(60, 0), "test": make_frame(20, 1)}
    flags = {"precision": precision}
    if precision == "16-mixed":  # which Lightning keeps for GPUs
        flags = {"plugins": [MixedPrecision(precision, "cpu", torch.amp.GradScaler("cpu"))]}

    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)
        trainer = make_trainer(max_epochs=2, callbacks=list(callbacks), **flags)
        module = make_module(optimizer=lambda p: HeavyBall(p, lr=0.05))
        trainer.fit(module, make_data(**data), ckpt_path=ckpt_path)
        return trainer

    whole = fit([SaveAt(path, epoch=0, batch=1)])
    expected, actual = everything(whole), everything(fit(ckpt_path=path))
    assert not [name for name in expected if not torch.equal(expected[name], actual[name])]
    evaluated = make_module()
    make_trainer(**flags).validate(evaluated, make_data(**data), path, verbose=False)
    stored = torch.load(path, weights_only=True)["state_dict"]
    assert all(torch.equal(v, stored[f"network.{k}"]) for k, v in evaluated.network.state_dict().items())


def save_one(make_module, make_trainer, path, **parts):
    trainer = make_trainer(max_epochs=1)
    trainer.fit(make_module(**parts), make_data())
    trainer.save_checkpoint(path)


def test_checkpoint_loads_with_weights_only(make_module, make_trainer, tmp_path):
    path = tmp_path / "a.ckpt"
    save_one(make_module, make_trainer, path, algorithm=ALEXR2(K=4))
    stored = torch.load(path, weights_only=True)
    assert stored["fcco"]["algorithm"] == "ALEXR2"
    assert stored["fcco"]["num_samples"] == 200


def test_validate_and_test_from_a_checkpoint(make_module, make_trainer, tmp_path):
    path = tmp_path / "a.ckpt"
    save_one(make_module, make_trainer, path)
    direct = make_trainer().test(make_module(), make_data(), ckpt_path=path, verbose=False)
    again = make_trainer().test(make_module(), make_data(), ckpt_path=path, verbose=False)
    assert direct == again
    assert 0.5 < direct[0]["test_auc"] <= 1


def test_checkpoint_of_another_algorithm(make_module, make_trainer, tmp_path):
    path = tmp_path / "a.ckpt"
    save_one(make_module, make_trainer, path, algorithm=SONEX())
    with pytest.raises(CheckpointError, match="written by SONEX, this run uses SOX"):
        make_trainer(max_epochs=2).fit(make_module(algorithm=SOX()), make_data(), ckpt_path=path)


def test_checkpoint_of_other_constraints_or_data(make_module, make_trainer, tmp_path):
    path = tmp_path / "a.ckpt"
    save_one(make_module, make_trainer, path)
    with pytest.raises(CheckpointError, match="6 x 2 float32, this problem needs 2 x 2 float32"):
        make_trainer(max_epochs=2).fit(
            make_module(constraints=[ROCFairness(thresholds=[0])]), make_data(), ckpt_path=path
        )
    with pytest.raises(ValueError, match="200"):
        make_trainer(max_epochs=2).fit(make_module(), make_data(train=make_frame(160, 0)), ckpt_path=path)


def test_checkpoint_without_algorithm_state(make_module, make_trainer, tmp_path):
    path = tmp_path / "a.ckpt"
    save_one(make_module, make_trainer, path)
    stored = torch.load(path, weights_only=True)
    del stored["fcco"]
    torch.save(stored, path)
    with pytest.raises(CheckpointError, match="was not written by FCCOModule"):
        make_trainer(max_epochs=2).fit(make_module(), make_data(), ckpt_path=path)


def test_adam_state_survives(make_module, make_trainer, tmp_path):
    path = tmp_path / "a.ckpt"

    def fit(epochs, ckpt_path=None):
        torch.manual_seed(1)
        trainer = make_trainer(max_epochs=epochs)
        trainer.fit(make_module(optimizer=lambda p: AdamType(p, lr=0.01)), make_data(), ckpt_path=ckpt_path)
        return trainer

    fit(1).save_checkpoint(path)
    whole, resumed = everything(fit(2)), everything(fit(2, path))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def learning_rates(make_module, make_trainer, epochs, ckpt_path=None, lr=1.0, **schedule):
    """Learning rate of the first batch of every epoch, and the trainer."""
    seen = {}

    class Watch(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            seen.setdefault(trainer.current_epoch, trainer.optimizers[0].param_groups[0]["lr"])

    module = make_module(
        optimizer=lambda p: HeavyBall(p, lr=lr),
        schedule=Schedule(lambda o: StepAtFractions(o, **schedule)),
        algorithm=SOX(),
    )
    trainer = make_trainer(max_epochs=epochs, callbacks=[Watch()])
    trainer.fit(module, make_data(), ckpt_path=ckpt_path)
    return seen, trainer


def test_what_is_typed_on_a_resume_wins(make_module, make_trainer, tmp_path):
    """Number of epochs, fractions and learning rate; nothing changes where nothing was typed."""
    path = tmp_path / "a.ckpt"
    _, trainer = learning_rates(make_module, make_trainer, 2)
    trainer.save_checkpoint(path)
    longer, _ = learning_rates(make_module, make_trainer, 8, path)
    assert longer == pytest.approx({2: 1.0, 3: 1.0, 4: 0.1, 5: 0.1, 6: 0.01, 7: 0.01})
    later, _ = learning_rates(make_module, make_trainer, 8, path, fractions=[0.9])
    assert set(later.values()) == {1.0}
    faster, _ = learning_rates(make_module, make_trainer, 4, path, lr=3.0)
    assert faster == pytest.approx({2: 0.3, 3: 0.03})


def test_a_changed_learning_rate_keeps_what_a_schedule_did(make_module, make_trainer, tmp_path):
    def fit(epochs, lr, ckpt_path=None):
        module = make_module(
            optimizer=lambda p: HeavyBall(p, lr=lr, weight_decay=lr / 100),
            schedule=Schedule(lambda o: ExponentialLR(o, 0.5)),
            algorithm=SOX(),
        )
        trainer = make_trainer(max_epochs=epochs)
        trainer.fit(module, make_data(), ckpt_path=ckpt_path)
        return trainer, trainer.optimizers[0].param_groups[0]

    trainer, group = fit(2, lr=1.0)
    assert group["lr"] == 0.25
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    _, group = fit(3, lr=4.0, ckpt_path=tmp_path / "a.ckpt")
    assert group["lr"] == 0.5
    assert group["weight_decay"] == 0.04


def test_checkpoint_of_another_optimizer(make_module, make_trainer, tmp_path):
    path = tmp_path / "a.ckpt"
    save_one(make_module, make_trainer, path)
    with pytest.raises(CheckpointError, match="state of AdamType, this run uses HeavyBall"):
        make_trainer(max_epochs=2).fit(
            make_module(optimizer=lambda p: HeavyBall(p, lr=0.1)), make_data(), ckpt_path=path
        )


def test_evaluation_needs_only_the_weights(make_module, make_trainer, tmp_path):
    """Another algorithm or other constraints do not matter to `test`."""
    path = tmp_path / "a.ckpt"
    save_one(make_module, make_trainer, path)
    own = make_trainer().test(make_module(), make_data(), ckpt_path=path, verbose=False)
    other = make_module(algorithm=SGD(), constraints=[ROCFairness(thresholds=[-1, 0, 1])])
    assert make_trainer().test(other, make_data(), ckpt_path=path, verbose=False) == own
