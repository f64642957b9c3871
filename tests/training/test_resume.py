"""A resumed run equals the uninterrupted one bit for bit."""

import shutil

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim.lr_scheduler import LambdaLR, StepLR

from fcco_lightning import (
    ALEXR2,
    PGSVRG,
    SGD,
    SONEX,
    SOX,
    AdaptivePenalty,
    CheckpointError,
    CrossEntropy,
    EqualizedOdds,
    FCCOModule,
    HeavyBall,
    HingePenalty,
    KLPenalty,
    Lagrangian,
    LogisticLoss,
    MeanAtMost,
    ROCFairness,
    SampleDRO,
    Schedule,
    SoftRate,
    TabularMLP,
    TensorDataModule,
    UniformSampling,
    WeightAverage,
)
from fcco_lightning.training import WarmStart
from tests import jobs
from tests.tables import make_data, make_frame
from tests.training.conftest import quick

RESUMED = [name for name in jobs.ALGORITHMS if name not in ("Switching", "PDSCA")]


@pytest.mark.parametrize("algorithm", quick(RESUMED, "MSVR"))
def test_resume_equals_uninterrupted(algorithm, make_module, make_trainer, tmp_path):
    """Mid-epoch, for ALEXR2 (K = 4) in an inner loop, and at an epoch's end; with dropout and a schedule per step.

    Chains of stops are quick for SONEX and ALEXR2, the contract of algorithms for all.
    """
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

    paths = {batch: tmp_path / f"{batch}.ckpt" for batch in (4, 9)}
    whole = fit([jobs.save_at(1, batch, path) for batch, path in paths.items()])
    for path in paths.values():
        jobs.require_same(fit(ckpt_path=path), whole)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_the_objective_of_an_epoch_that_ends_in_a_pass_is_that_of_the_uninterrupted_run(
    make_module, make_trainer, tmp_path
):
    """Batches of a pass over the data, in which nothing moves, estimate nothing: the last estimate before is logged."""
    logged = []

    class Diary(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            logged.append(float(trainer.callback_metrics["train_objective"]))

    samples = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    columns = {"x": samples, "y": (samples[:, 0] > 0).long()}

    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)
        module = make_module(
            network=TabularMLP(hidden=[4], in_features=4),
            objective=SampleDRO(None, KLPenalty(0.5)),
            constraints=[],
            penalty=None,
            algorithm=PGSVRG(2.0, 0.2, 0.3, J=5, K=2),
            optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        )
        batches = UniformSampling(8, drop_last=False, num_batches=20)
        data = TensorDataModule({"train": columns, "test": columns}, batches=batches)
        trainer = make_trainer(max_epochs=3, callbacks=[Diary(), *callbacks])
        trainer.fit(module, data, ckpt_path=ckpt_path)
        return trainer

    path = tmp_path / "at.ckpt"
    whole = fit([jobs.save_at(1, 15, path)])
    jobs.require_same(fit(ckpt_path=path), whole)
    assert logged[3:] == logged[1:3]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("loops", [{}, {"limit_train_batches": 5}], ids=["whole epochs", "part of them"])
def test_a_run_of_which_nothing_is_left_ends_with_the_weights_after_recovery(
    loops, make_module, make_trainer, tmp_path
):
    def fit(ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)
        module = make_module(algorithm=ALEXR2(K=4, gamma=0.5, recovery_steps=10))
        saver = [ModelCheckpoint(tmp_path, save_last=True, save_on_train_epoch_end=True)] if ckpt_path is None else []
        trainer = make_trainer(max_epochs=2, enable_checkpointing=bool(saver), callbacks=saver, **loops)
        trainer.fit(module, make_data(), ckpt_path=ckpt_path)
        return trainer

    whole = fit()
    for name in ("last", "recovered"):
        jobs.require_same(fit(tmp_path / f"{name}.ckpt"), whole)


def test_settings_may_be_numbers_of_numpy(make_module, make_trainer, small_data, tmp_path):
    path = tmp_path / "at.ckpt"

    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)
        schedule = Schedule(lambda o: StepLR(o, 1, gamma=np.float64(0.5)))
        module = make_module(optimizer=lambda p: HeavyBall(p, lr=np.float64(0.05)), schedule=schedule)
        make_trainer(callbacks=list(callbacks)).fit(module, small_data, ckpt_path=ckpt_path)
        return torch.cat([p.detach().flatten() for p in module.parameters()])

    whole = fit([jobs.save_at(1, 4, path)])
    assert torch.equal(fit(ckpt_path=path), whole)


class Versioned(torch.nn.Linear):
    """Knows in which form its weights are stored by their version, as torchvision's MNASNet."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *args):
        assert metadata.get("version") == 2
        super()._load_from_state_dict(state, prefix, metadata, *args)


def test_layers_are_told_the_version_of_their_weights(make_trainer, tmp_path):
    def made():
        return FCCOModule(torch.nn.Sequential(Versioned(7, 1)), average=WeightAverage(0.9))

    first, path = made(), tmp_path / "a.ckpt"
    trainer = make_trainer(max_epochs=1)
    trainer.fit(first, make_data())
    trainer.save_checkpoint(path)
    make_trainer(max_epochs=2).fit(made(), make_data(), ckpt_path=path)
    make_trainer(max_epochs=1, callbacks=[WarmStart(str(path))]).fit(made(), make_data())
    make_trainer().validate(made(), make_data(), path, verbose=False)
    again = FCCOModule.load_from_checkpoint(path, network=torch.nn.Sequential(Versioned(7, 1)))
    assert torch.equal(again.network[0].weight, first.network[0].weight)


@pytest.mark.filterwarnings("ignore:precision=.* keeps the weights")
@pytest.mark.parametrize(
    "precision", quick(["64-true", "bf16-true", "16-true", "bf16-mixed", "16-mixed"], "bf16-true", "16-mixed")
)
def test_resume_in_every_precision(precision, make_module, make_trainer, tmp_path):
    path, data = tmp_path / "at.ckpt", {"train": make_frame(60, 0), "test": make_frame(20, 1)}
    flags = {"precision": precision}
    if precision == "16-mixed":  # which Lightning keeps for GPUs
        flags = {"plugins": [MixedPrecision(precision, "cpu", torch.amp.GradScaler("cpu"))]}

    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)
        trainer = make_trainer(max_epochs=2, callbacks=list(callbacks), **flags)
        module = make_module(optimizer=lambda p: HeavyBall(p, lr=0.05), penalty=AdaptivePenalty())
        trainer.fit(module, make_data(**data), ckpt_path=ckpt_path)
        return trainer

    whole = fit([jobs.save_at(0, 1, path)])
    jobs.require_same(fit(ckpt_path=path), whole)
    evaluated = make_module()
    make_trainer(**flags).validate(evaluated, make_data(**data), path, verbose=False)
    stored = torch.load(path, weights_only=True)["state_dict"]
    assert all(torch.equal(v, stored[f"network.{k}"]) for k, v in evaluated.network.state_dict().items())


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the run lies for the tests that come, once one of them has trained it."""
    return tmp_path_factory.mktemp("kept") / "a.ckpt"


@pytest.fixture
def saved(make_module, make_trainer, tmp_path, kept):
    """A checkpoint of one epoch of SONEX with Adam."""
    if not kept.exists():
        trainer = make_trainer(max_epochs=1)
        trainer.fit(make_module(algorithm=SONEX()), make_data())
        trainer.save_checkpoint(kept)
    return shutil.copy(kept, tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    ("parts", "rows", "error", "message"),
    [
        ({"algorithm": SOX()}, 200, CheckpointError, "written by SONEX, this run uses SOX"),
        (
            {"constraints": [ROCFairness(thresholds=[0])]},
            200,
            CheckpointError,
            r"with the constraints ROCFairness \(tpr.*\), but this run has ROCFairness \(tpr.*\)\. Use the same",
        ),
        (
            {"constraints": [EqualizedOdds(rate=SoftRate(t)) for t in (-1, 0, 1)]},
            200,
            CheckpointError,
            r"the constraints ROCFairness.*, but this run has EqualizedOdds",
        ),
        ({"objective": CrossEntropy()}, 200, CheckpointError, "with the objective AUC, but this run has CrossEntropy"),
        (
            {"penalty": Lagrangian()},
            200,
            CheckpointError,
            r"with the enforcement a fixed penalty, but this run has Lagrangian\(decisions=False\)",
        ),
        ({}, 160, ValueError, "200"),
        (
            {"optimizer": lambda p: HeavyBall(p, lr=0.1)},
            200,
            CheckpointError,
            "state of AdamType, this run uses HeavyBall",
        ),
    ],
    ids=["algorithm", "thresholds", "constraints", "objective", "penalty", "data", "optimizer"],
)
def test_checkpoint_of_another_run(parts, rows, error, message, saved, make_module, make_trainer):
    with pytest.raises(error, match=message):
        make_trainer(max_epochs=2).fit(make_module(**parts), make_data(train=make_frame(rows, 0)), ckpt_path=saved)


@pytest.mark.parametrize(
    ("parts", "described"),
    [
        ({"algorithm": SGD(), "penalty": HingePenalty(0)}, []),
        ({"constraints": [MeanAtMost(LogisticLoss(), 0.3, {"group": g}) for g in (0, 1)]}, ["MeanAtMost"]),
    ],
    ids=["not enforced", "joined"],
)
def test_a_checkpoint_describes_its_constraints_as_they_are_posed(
    parts, described, make_module, make_trainer, tmp_path
):
    trainer, path = make_trainer(max_epochs=1), tmp_path / "a.ckpt"
    trainer.fit(make_module(**parts), make_data())
    trainer.save_checkpoint(path)
    stored = torch.load(path, weights_only=True)["fcco"]["engine"]["problem"]["constraints"]
    assert [kind for kind, _ in stored] == described
    make_trainer(max_epochs=2).fit(make_module(**parts), make_data(), ckpt_path=path)


@pytest.mark.parametrize(("then", "now", "what"), [(True, False, "trained"), (False, True, "frozen")])
def test_layers_that_were_frozen_or_unfrozen_since_are_named(then, now, what, make_module, make_trainer, tmp_path):
    def fit(trained, **options):
        network = TabularMLP([8], in_features=7)
        network.layers[0].requires_grad_(trained)
        module, trainer = make_module(network=network, algorithm=SGD(), constraints=(), penalty=None), make_trainer()
        trainer.fit(module, make_data(), **options)
        return trainer

    fit(then).save_checkpoint(path := tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=rf"layers\.0\.bias.* were {what} when it was written\. Freeze the same"):
        fit(now, ckpt_path=path)


def test_fewer_epochs_than_the_checkpoint_was_trained_for(make_module, make_trainer, tmp_path):
    trainer, path = make_trainer(max_epochs=2), tmp_path / "a.ckpt"
    trainer.fit(make_module(), make_data())
    trainer.save_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"trainer\.max_epochs=1 is less than the 2 epochs"):
        make_trainer(max_epochs=1).fit(make_module(), make_data(), ckpt_path=path)


def test_checkpoint_without_algorithm_state(saved, make_module, make_trainer):
    stored = torch.load(saved, weights_only=True)
    del stored["fcco"]
    torch.save(stored, saved)
    with pytest.raises(CheckpointError, match="was not written by FCCOModule"):
        make_trainer(max_epochs=2).fit(make_module(), make_data(), ckpt_path=saved)


def test_evaluation_needs_only_the_weights(saved, make_module, make_trainer):
    """Another algorithm or other constraints do not matter to `test`."""
    (own,) = make_trainer().test(make_module(), make_data(), ckpt_path=saved, verbose=False)
    assert 0.5 < own["test_auc"] <= 1
    other = make_module(algorithm=SGD(), constraints=[ROCFairness(thresholds=[-1, 0, 1])])
    assert make_trainer().test(other, make_data(), ckpt_path=saved, verbose=False) == [own]
