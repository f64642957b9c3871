"""A checkpoint is a continuation, bit for bit."""

import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim.lr_scheduler import LambdaLR

from fcco_lightning import SGD, SONEX, SOX, CheckpointError, HeavyBall, ROCFairness, Schedule
from tests import jobs
from tests.conftest import make_data, make_frame


@pytest.mark.parametrize("algorithm", [name for name in jobs.ALGORITHMS if name not in ("Switching", "PDSCA")])
@pytest.mark.parametrize("batch", [4, 9], ids=["mid-epoch", "epoch's end"])
def test_resume_equals_uninterrupted(algorithm, batch, make_module, make_trainer, tmp_path):
    """Dropout, a schedule per step, and for ALEXR2 (K = 4) the middle of an inner loop."""
    path = tmp_path / "at.ckpt"
    scheduler = None if algorithm == "SOXBoost" else lambda o: LambdaLR(o, lambda k: 1 / (1 + k))

    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)  # a resumed run must not depend on its own seed
        module = make_module(
            algorithm=jobs.ALGORITHMS[algorithm](),
            optimizer=lambda p: HeavyBall(p, lr=0.05),
            schedule=Schedule(scheduler, "step"),
        )
        trainer = make_trainer(max_epochs=3, callbacks=list(callbacks))
        trainer.fit(module, make_data(), ckpt_path=ckpt_path)
        return trainer

    whole = fit([jobs.save_at(1, batch, path)])
    jobs.require_same(fit(ckpt_path=path), whole)


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

    whole = fit([jobs.save_at(0, 1, path)])
    jobs.require_same(fit(ckpt_path=path), whole)
    evaluated = make_module()
    make_trainer(**flags).validate(evaluated, make_data(**data), path, verbose=False)
    stored = torch.load(path, weights_only=True)["state_dict"]
    assert all(torch.equal(v, stored[f"network.{k}"]) for k, v in evaluated.network.state_dict().items())


def save_one(make_module, make_trainer, path, **parts):
    trainer = make_trainer(max_epochs=1)
    trainer.fit(make_module(**parts), make_data())
    trainer.save_checkpoint(path)


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
    (own,) = make_trainer().test(make_module(), make_data(), ckpt_path=path, verbose=False)
    assert 0.5 < own["test_auc"] <= 1
    other = make_module(algorithm=SGD(), constraints=[ROCFairness(thresholds=[-1, 0, 1])])
    assert make_trainer().test(other, make_data(), ckpt_path=path, verbose=False) == [own]
