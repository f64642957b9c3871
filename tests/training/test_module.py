"""Features that manual optimization in Lightning switches off and the module provides again."""

import copy
import math
from contextlib import nullcontext
from functools import partial

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import TorchSyncBatchNorm
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from fcco_lightning import (
    ALEXR2,
    AUC,
    MSVR,
    PGSMD,
    SGD,
    SONEX,
    SOX,
    AveragePrecision,
    BalancedSampling,
    CheckpointError,
    Clipping,
    ConfigError,
    CrossEntropy,
    CVaRPartialAUC,
    Execution,
    FCCOModule,
    GroupSampling,
    HeavyBall,
    HingePenalty,
    IndexedDataset,
    NonFiniteError,
    ROCFairness,
    SampleDRO,
    Schedule,
    SOXBoost,
    SquaredHingePenalty,
    TabularMLP,
    UniformSampling,
)
from fcco_lightning.algorithms import EqualStages
from fcco_lightning.data import TensorTable
from fcco_lightning.evaluation import Split
from fcco_lightning.training import Checkpoints, StepAtFractions
from tests.tables import make_data, make_frame

BATCHES = 10  # of 20 rows in an epoch of the small table


@pytest.mark.parametrize(
    ("algorithm", "per_epoch"),
    [(SONEX, BATCHES), (MSVR, BATCHES), (lambda: ALEXR2(K=4), 3)],
    ids=["SONEX", "MSVR", "ALEXR2"],
)
def test_one_global_step_per_update_of_w(algorithm, per_epoch, make_module, make_trainer, small_data):
    estimated = []
    look = LambdaCallback(on_train_start=lambda trainer, _: estimated.append(trainer.estimated_stepping_batches))
    trainer = make_trainer(callbacks=[look])
    trainer.fit(make_module(algorithm=algorithm()), small_data)
    assert [trainer.global_step] == [2 * per_epoch] == estimated


def test_max_steps_counts_updates(make_module, make_trainer, small_data):
    seen = []
    counter = LambdaCallback(on_train_batch_end=lambda *batch: seen.append(batch))
    trainer = make_trainer(max_steps=4, max_epochs=-1, callbacks=[counter])
    trainer.fit(make_module(algorithm=ALEXR2(K=4)), small_data)
    assert trainer.global_step == 4
    assert len(seen) == 4 + 4 + 2 + 4  # the epoch's last batch closes the third inner loop early


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
def test_every_n_train_steps_and_logger_count_updates(make_module, make_trainer, small_data, tmp_path):
    saver = ModelCheckpoint(tmp_path / "saved", filename="{step}", every_n_train_steps=2, save_top_k=-1)
    logger, saver_folder = CSVLogger(tmp_path, name="log"), tmp_path / "saved"
    trainer = make_trainer(
        enable_checkpointing=True, callbacks=[saver], logger=logger, log_every_n_steps=1, max_epochs=2
    )
    trainer.fit(make_module(algorithm=ALEXR2(K=4)), small_data)
    assert sorted(p.name for p in saver_folder.glob("*.ckpt")) == ["step=2.ckpt", "step=4.ckpt", "step=6.ckpt"]
    logged = pd.read_csv(f"{logger.log_dir}/metrics.csv")
    assert logged["step"].max() <= trainer.global_step
    assert logged["step"].is_monotonic_increasing


def test_clipping_flag_of_the_trainer_is_honoured(make_module, make_trainer, small_data):
    seen = []

    class Recorder(HeavyBall):
        def step(self, closure=None):
            grads = [p.grad for g in self.param_groups for p in g["params"]]
            seen.append(torch.stack([g.norm() for g in grads]).norm().item())
            return super().step(closure)

    def fit(**flags):
        seen.clear()
        torch.manual_seed(0)
        module = make_module(algorithm=SOX(), optimizer=lambda p: Recorder(p, lr=0.1))
        make_trainer(max_epochs=1, **flags).fit(module, small_data)
        return list(seen)

    free = fit()
    limit = min(free) / 2
    clipped = fit(gradient_clip_val=limit)
    assert max(clipped) <= limit * (1 + 1e-4) < min(free)


def accumulated(make_module, make_trainer, parts, batches, **changes):
    torch.manual_seed(0)
    trainer, module = make_trainer(max_epochs=2, accumulate_grad_batches=parts), make_module(**changes)
    data = make_data(train=make_frame(90, 0), batches=batches)
    for epochs in (2, 3):  # the second fit with other data of the same kind, and the same Trainer
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(module, data)
        data = make_data(train=make_frame(90, 0), batches=batches)
    return module, trainer.global_step


def test_a_second_fit_of_other_samples_is_refused(make_module, make_trainer):
    """Also where these are as many, and have the same labels and groups: rows would go to other samples."""
    frame, module = make_frame(60, 0), make_module(algorithm=SOX())
    make_trainer(max_epochs=1).fit(module, make_data(train=frame))
    make_trainer(max_epochs=1).fit(module, make_data(train=frame.copy(), batches=UniformSampling(10)))
    rows = copy.deepcopy(module.problem.state_dict())
    moved = frame.assign(a=frame["a"] + 1)
    with pytest.raises(ConfigError, match=r"rows belong to another training split.*new FCCOModule") as refused:
        make_trainer(max_epochs=1).fit(module, make_data(train=moved))
    assert "the contents or the order of ['a']" in str(refused.value.__cause__)
    torch.testing.assert_close(module.problem.state_dict(), rows, rtol=0, atol=0, equal_nan=True)
    with pytest.warns(UserWarning, match="another training split"):
        make_trainer(max_epochs=1).fit(module, make_data(train=moved, allow_changed=True))


@pytest.mark.parametrize(
    ("small", "large", "algorithm"),
    [
        (UniformSampling(10), UniformSampling(30), SONEX),
        (UniformSampling(8, drop_last=False), UniformSampling(24, drop_last=False), partial(ALEXR2, K=2)),
        (BalancedSampling(8), BalancedSampling(24), SONEX),
    ],
    ids=["uniform", "uneven, an inner loop", "balanced"],
)
def test_accumulated_batches_are_one_batch(small, large, algorithm, make_module, make_trainer):
    found, steps = accumulated(make_module, make_trainer, 3, small, algorithm=algorithm())
    expected, wanted = accumulated(make_module, make_trainer, 1, large, algorithm=algorithm())
    assert (steps, found.engine.functions.micro_batch) == (wanted, small.batch_size)
    torch.testing.assert_close(found.network.state_dict(), expected.network.state_dict(), rtol=1e-4, atol=1e-6)


def test_batches_that_cannot_be_accumulated_are_refused(make_module, make_trainer):
    frame = make_frame(60, 0)
    data = make_data(train=frame, batches=GroupSampling(None, 4))
    with pytest.raises(ConfigError, match="GroupSampling has no batch_size that could be made 2 times as large"):
        make_trainer(accumulate_grad_batches=2).fit(make_module(), data)
    data.setup()
    with pytest.raises(ConfigError, match=r"accumulate_grad_batches=2 is not defined .* batches 2 times as large"):
        make_trainer(accumulate_grad_batches=2).fit(
            make_module(execution=Execution(num_samples=60)), data.train_dataloader()
        )


@pytest.mark.parametrize("end", [None, ValueError("spoilt"), KeyboardInterrupt()], ids=["whole", "error", "interrupt"])
def test_a_trainer_has_its_own_settings_back_after_a_fit(end, make_module, make_trainer, small_data):
    """The next module, without inner loop, is not taken as accumulating, and the next Trainer does not clip."""

    def stop(*_):
        if end is not None:
            raise end

    trainer = make_trainer(max_epochs=1, gradient_clip_val=0.5, callbacks=[LambdaCallback(on_train_batch_end=stop)])
    module = make_module(algorithm=ALEXR2(K=4))
    with nullcontext() if end is None else pytest.raises((ValueError, SystemExit)):
        trainer.fit(module, small_data)
    assert (trainer.accumulate_grad_batches, trainer.gradient_clip_val, module.backend.clipping.value) == (1, 0.5, 0.5)
    assert "_should_check_val_fx" not in vars(trainer.fit_loop.epoch_loop)
    if end is None:
        trainer.fit_loop.max_epochs, last = 2, make_module(algorithm=SOX())
        trainer.fit(last, small_data)
        assert (last.execution.micro_batch, last.backend.clipping.value) == (None, 0.5)
        make_trainer(max_epochs=1).fit(last, small_data)
        assert last.backend.clipping.value is None


class Plain(LightningModule):
    """Any module of a user's own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 1)

    def training_step(self, batch):
        return self.layer(batch["x"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader`")
def test_another_module_is_fitted_and_saved_by_the_same_trainer(make_module, make_trainer, small_data, tmp_path):
    trainer, module = make_trainer(max_epochs=1, limit_val_batches=0), Plain()
    trainer.fit(make_module(algorithm=ALEXR2(K=4)), small_data)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, small_data)
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    saved = torch.load(tmp_path / "plain.ckpt", weights_only=True)["state_dict"]
    torch.testing.assert_close(saved, module.state_dict())


@pytest.mark.filterwarnings("ignore:You are trying to `self.log")
def test_a_barebones_trainer_logs_no_step(make_module, small_data, tmp_path):
    trainer = Trainer(barebones=True, max_epochs=1, accelerator="cpu", default_root_dir=tmp_path)
    trainer.fit(make_module(algorithm=SOX()), small_data)
    assert (trainer.log_every_n_steps, trainer.global_step) == (0, BATCHES)


def test_batches_have_their_own_size_again_after_an_accumulating_fit(make_module, make_trainer):
    data = make_data(train=make_frame(90, 0), batches=UniformSampling(10))
    trainer, module = make_trainer(max_epochs=1, accumulate_grad_batches=3), make_module()
    trainer.fit(module, data)
    assert (trainer.accumulate_grad_batches, trainer.global_step) == (3, 3)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, data)
    assert (trainer.global_step, module.execution.micro_batch, module.engine.functions.micro_batch) == (9, None, None)


@pytest.mark.slow
def test_schedules_per_epoch_and_per_step(make_module, make_trainer, small_data):
    def final_lr(epochs, **parts):
        trainer = make_trainer(max_epochs=epochs)
        trainer.fit(make_module(optimizer=lambda p: HeavyBall(p, lr=1.0), **parts), small_data)
        return trainer.optimizers[0].param_groups[0]["lr"]

    assert final_lr(4, schedule=Schedule(StepAtFractions)) == pytest.approx(0.01)  # after epochs 2 and 3
    assert final_lr(2, schedule=Schedule(StepAtFractions)) == pytest.approx(0.01)
    halve = lambda o: LambdaLR(o, lambda k: 0.5**k)  # noqa: E731
    assert final_lr(3, schedule=Schedule(halve)) == pytest.approx(0.5**3)
    assert final_lr(1, schedule=Schedule(halve, "step")) == pytest.approx(0.5**BATCHES)
    alexr2 = {"algorithm": ALEXR2(K=5), "schedule": Schedule(halve, "step")}
    assert final_lr(1, **alexr2) == pytest.approx(0.25)


def test_plateau_schedule_watches_a_logged_metric(make_module, make_trainer, small_data):
    plateau = lambda o: ReduceLROnPlateau(o, mode="min", patience=0)  # noqa: E731
    trainer = make_trainer(max_epochs=4)  # the AUC rises, so "min" sees no improvement
    trainer.fit(make_module(schedule=Schedule(plateau, monitor="train_auc")), small_data)
    assert trainer.optimizers[0].param_groups[0]["lr"] < 0.01
    with pytest.raises(ConfigError, match=r"schedule\.monitor"):
        make_trainer().fit(make_module(schedule=Schedule(plateau)), small_data)
    with pytest.raises(ConfigError, match="which was not logged"):
        make_trainer().fit(make_module(schedule=Schedule(plateau, monitor="val_auk")), small_data)


@pytest.mark.parametrize(
    "algorithm", [SONEX, lambda: MSVR(gamma_prime=0.1), lambda: ALEXR2(K=3)], ids=["SONEX", "MSVR", "ALEXR2"]
)
def test_mixed_precision_follows_full_precision(algorithm, make_module, make_trainer, small_data):
    def weights(**flags):
        torch.manual_seed(0)
        made = algorithm()
        module = make_module(
            network=TabularMLP(hidden=[8]),
            algorithm=made,
            # MSVR is for smooth outer functions: where a hinge has its kink, rounding turns the gradient around
            penalty=SquaredHingePenalty(4.0) if isinstance(made, MSVR) else HingePenalty(4.0),
            optimizer=lambda p: HeavyBall(p, lr=0.05, beta=1.0),
        )
        make_trainer(**{"max_epochs": 1, **flags}).fit(module, small_data)
        return torch.cat([p.detach().flatten() for p in module.network.parameters()])

    full = weights()
    moved = (full - weights(max_epochs=0)).norm()
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for precision in (MixedPrecision("bf16-mixed", "cpu"), MixedPrecision("16-mixed", "cpu", scaler)):
        # half precision keeps 8 (bf16) or 11 (fp16) bits: far below a missing or doubled loss scale
        assert (weights(plugins=[precision]) - full).norm() < 0.1 * moved


def test_parameters_of_samples_move_by_true_gradients_where_the_loss_is_scaled(make_module, make_trainer, small_data):
    moved = []
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=512.0))]):
        torch.manual_seed(0)
        module = make_module(
            network=TabularMLP(hidden=[8]),
            objective=CVaRPartialAUC(0.5, thresholds=0.7),
            constraints=[],
            penalty=None,
            algorithm=SGD(),
            optimizer=lambda p: HeavyBall(p, lr=0.05, beta=1.0),
        )
        make_trainer(max_epochs=1, plugins=plugins).fit(module, small_data)
        rows = module.problem.row_parameters.state.rows
        moved.append(rows[~rows.isnan()] - 0.7)
    assert moved[0].abs().max() > 0.05
    torch.testing.assert_close(moved[1], moved[0], rtol=0, atol=0.02)


@pytest.mark.parametrize("algorithm", [SONEX, MSVR, lambda: ALEXR2(K=3)], ids=["SONEX", "MSVR", "ALEXR2"])
def test_an_overflow_in_half_precision_is_skipped(algorithm, make_module, make_trainer, small_data):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    module = make_module(algorithm=algorithm())
    make_trainer(max_epochs=2, plugins=[MixedPrecision("16-mixed", "cpu", scaler)]).fit(module, small_data)
    assert scaler.get_scale() < 2.0**22
    assert all(torch.isfinite(p).all() for p in module.parameters())


def test_validation_leaves_rows_and_shows_the_centre(make_module, make_trainer, small_data):
    """In the middle of an inner loop validation sees w, not z, and writes nothing."""
    shots = {}

    class Watch(Callback):
        def on_validation_start(self, trainer, module):
            shots["before"] = copy.deepcopy(module.state_dict())
            shots["z"] = [z.clone() for z in module.algorithm.state_dict()["iterate"]]

        def on_validation_end(self, trainer, module):
            for name, now in module.state_dict().items():
                if isinstance(now, torch.Tensor):
                    assert torch.equal(now, shots["before"][name]), name
            shots["count"] = module.algorithm.state_dict()["inner_count"]

    module = make_module(algorithm=ALEXR2(K=4))
    make_trainer(max_epochs=1, limit_train_batches=7, val_check_interval=6, callbacks=[Watch()]).fit(module, small_data)
    assert shots["count"] == 2
    w = next(iter(shots["before"].values()))
    assert not torch.equal(shots["z"][0], w)


def test_logged_figures(make_module, make_trainer, small_data):
    trainer = make_trainer()
    trainer.fit(make_module(), small_data)
    scores = {"auc", "average_precision", "score_min", "score_max"}
    names = scores | {"worst_violation", "roc_gap", "vacuous", "h/tpr@0", "h/fpr@-1"}
    assert {f"train_{n}" for n in names} <= set(trainer.callback_metrics)
    (tested,) = trainer.test(trainer.lightning_module, small_data, verbose=False)
    assert {f"test_{n}" for n in names} <= set(tested)
    assert max(v for k, v in tested.items() if "h/" in k) == pytest.approx(tested["test_worst_violation"])


def test_vacuous_constraints_warn_once(make_module, make_trainer, small_data):
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = TabularMLP(hidden=[4])

        def forward(self, x):
            return self.inside(x) - 50

    with pytest.warns(UserWarning, match="do not constrain the network on the train split") as caught:
        make_trainer(max_epochs=3).fit(make_module(network=Shifted()), small_data)
    assert sum("do not constrain" in str(w.message) for w in caught) == 1


def test_constraints_that_are_vacuous_no_more_are_said_to_be_so(make_module, small_data, caplog):
    module = make_module()
    small_data.setup()
    columns = small_data.tables["train"].columns
    y = columns["y"].float()
    apart, alike = (Split((2 * y - 1) * scale, columns) for scale in (3.0, 0.0))
    caplog.set_level("INFO")
    module.summarise("val", apart)
    with pytest.warns(UserWarning, match="do not constrain the network on the val split"):
        module.summarise("val", alike)
    for _ in range(2):
        module.summarise("val", apart)
    assert caplog.text.count("The constraints constrain the network on the val split now.") == 1


def test_a_nonfinite_batch_stops_or_is_skipped(make_module, make_trainer, small_data):
    small_data.setup()
    table = small_data.tables["train"]
    assert isinstance(table, TensorTable)
    table.columns["x"][7, 0] = math.nan  # as a broken transform would; the table itself refuses NaN
    module = make_module()
    with pytest.raises(NonFiniteError, match="skip_nonfinite"):
        make_trainer(max_epochs=1).fit(module, small_data)
    assert all(torch.isfinite(p).all() for p in module.parameters())
    network = TabularMLP(hidden=[8], batch_norm=True)
    tolerant = make_module(network=network, execution=Execution(skip_nonfinite=True))
    make_trainer(max_epochs=1, limit_val_batches=0).fit(tolerant, small_data)
    assert tolerant.skipped_batches == 1
    assert all(torch.isfinite(value).all() for value in network.state_dict().values())


@pytest.mark.parametrize("algorithm", [SONEX, lambda: ALEXR2(K=3)], ids=["SONEX", "ALEXR2"])
def test_a_nonfinite_batch_is_skipped_where_losses_are_scaled(algorithm, make_module, make_trainer, small_data):
    small_data.setup()
    small_data.tables["train"].columns["x"][7, 0] = math.nan
    module = make_module(algorithm=algorithm(), execution=Execution(skip_nonfinite=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    trainer = make_trainer(max_epochs=2, limit_val_batches=0, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    trainer.fit(module, small_data)
    assert module.skipped_batches == 2
    assert scaler.get_scale() == 512.0 / 4  # halved for each, as by torch's own step


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
@pytest.mark.parametrize("skip", [False, True])
def test_weights_that_diverged_are_never_saved(skip, make_module, make_trainer, small_data, tmp_path):
    class Overflow(HeavyBall):
        """A step from finite gradients to weights that are not."""

        steps = 0

        def step(self, closure=None):
            self.steps += 1
            if self.steps == BATCHES + 2 + 8 * (not skip):  # inside of the second epoch, or its last step
                next(iter(self.param_groups[0]["params"])).data.fill_(math.inf)
            return super().step(closure)

    saver = Checkpoints(tmp_path, save_last=True, save_on_train_epoch_end=True)
    module = make_module(optimizer=Overflow, algorithm=SOX(), execution=Execution(skip_nonfinite=skip))
    trainer = make_trainer(max_epochs=2, enable_checkpointing=True, callbacks=[saver], limit_val_batches=0)
    with pytest.raises(NonFiniteError, match="have diverged in a step whose gradient was finite"):
        trainer.fit(module, small_data)
    assert module.skipped_batches == skip
    for path in tmp_path.glob("*.ckpt"):
        stored = torch.load(path, weights_only=True)
        assert stored["epoch"] == 0
        weights = [v for k, v in stored["state_dict"].items() if k.startswith("network.")]
        assert len(weights) == 4
        assert all(torch.isfinite(v).all() for v in weights)


def test_the_recovery_step_moves_w_to_the_inner_solution_and_is_saved(make_module, make_trainer, small_data, tmp_path):
    def fit(steps):
        torch.manual_seed(0)
        module = make_module(network=TabularMLP(hidden=[8]), algorithm=ALEXR2(K=4, recovery_steps=steps))
        saver = ModelCheckpoint(tmp_path / str(steps))
        trainer = make_trainer(max_epochs=1, enable_checkpointing=True, callbacks=[saver])
        trainer.fit(module, small_data)
        assert trainer.global_step == 3
        return module.network

    plain, recovered = (torch.cat([p.detach().flatten() for p in fit(steps).parameters()]) for steps in (0, 25))
    assert 0 < (recovered - plain).norm() < 1.0
    assert not (tmp_path / "0/recovered.ckpt").exists()
    stored = torch.load(tmp_path / "25/recovered.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(torch.cat([v.flatten() for k, v in stored.items() if k.startswith("network.")]), recovered)


def test_sgd_measures_constraints_without_penalising_them(make_module, make_trainer, small_data):
    def weights(**parts):
        torch.manual_seed(0)
        module = make_module(network=TabularMLP(hidden=[8]), algorithm=SGD(), **parts)
        trainer = make_trainer(max_epochs=1)
        trainer.fit(module, small_data)
        return trainer.callback_metrics, [p.detach() for p in module.network.parameters()]

    measured, with_constraints = weights()
    _, without = weights(constraints=[])
    assert "train_worst_violation" in measured
    assert all(torch.equal(a, b) for a, b in zip(with_constraints, without, strict=True))


def test_predict_gives_outputs_with_indices(make_module, make_trainer, small_data):
    module, trainer = make_module(objective=AUC(cross_entropy=0)), make_trainer(max_epochs=1)
    trainer.fit(module, small_data)
    parts = trainer.predict(module, small_data)
    assert torch.equal(torch.cat([p["index"] for p in parts]), torch.arange(80))
    assert torch.cat([p["output"] for p in parts]).shape == (80,)
    assert all(p["scores"] is p["output"] and "probabilities" not in p for p in parts)  # the pairs rank
    assert all(torch.equal(p["decisions"], (p["scores"] > module.rule.division).long()) for p in parts)


def test_predict_takes_batches_without_index(make_trainer):
    module = FCCOModule(TabularMLP([4], in_features=3), CrossEntropy())
    (part,) = make_trainer().predict(module, DataLoader([{"x": torch.eye(3)}], batch_size=None))
    assert torch.equal(part["scores"], module.network(torch.eye(3)))
    assert "index" not in part


@pytest.mark.parametrize("objective", [CrossEntropy, AUC, AveragePrecision, lambda: AUC(cross_entropy=10)])
def test_predict_gives_decisions_where_there_are_some(objective, make_trainer, small_data):
    """And probabilities of scores that are log-odds, as AUC's are by the cross-entropy beside it."""
    module, trainer = FCCOModule(TabularMLP([4]), objective()), make_trainer(max_epochs=1)
    trainer.fit(module, small_data)
    (part,) = trainer.predict(module, small_data)
    assert torch.equal(part["decisions"], (part["scores"] > 0).long())
    torch.testing.assert_close(part["probabilities"], 1 / (1 + (-part["scores"]).exp()))


def test_several_constraints_share_the_penalty(make_module, make_trainer, small_data):
    pair = [ROCFairness(thresholds=[0]), ROCFairness(thresholds=[0, 1])]
    module = make_module(constraints=pair)
    make_trainer(max_epochs=1).fit(module, small_data)
    assert [t.share for t in module.problem.terms] == pytest.approx([2 / 6, 4 / 6])
    assert {"h/tpr@0", "h/tpr@0'"} <= set(module.last_summaries["train"])


@pytest.mark.parametrize(
    ("settings", "bad"),
    [
        (Schedule, {"interval": "epochs"}),
        (Schedule, {"objective_lr": 0.0}),
        (Clipping, {"algorithm": "l1"}),
        (Clipping, {"value": -1.0}),
        (Execution, {"micro_batch": 0}),
        (Execution, {"num_samples": 1.5}),
    ],
)
def test_bad_arguments(settings, bad):
    (name,) = bad
    with pytest.raises(ConfigError, match=rf"{settings.__name__.lower()}\.{name} must .*, got"):
        settings(**bad)


def test_a_schedule_or_the_like_is_given_as_a_record(make_module):
    with pytest.raises(ConfigError, match=r"schedule must be Schedule\(\.\.\.\), got .*StepAtFractions"):
        make_module(schedule=StepAtFractions)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"constraints": ROCFairness()}, "constraints must be a list, got one ROCFairness"),
        ({"algorithm": SONEX}, r"algorithm must be an object, got the class: make one, SONEX\(\)"),
        ({"algorithm": "SONEX"}, r"algorithm must be an object such as SONEX\(\), got 'SONEX'"),
        ({"objective": "AUC"}, r"objective must be an object such as AUC\(\), got 'AUC'"),
        ({"penalty": 3}, r"penalty must be an object such as AdaptivePenalty\(\), got 3"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))])}, "that is given the parameters, got SGD"),
    ],
)
def test_parts_in_another_form_are_refused(make_module, part, message):
    with pytest.raises(ConfigError, match=message):
        make_module(**part)


@pytest.mark.parametrize("share", [0, 0.0])
def test_a_fit_without_batches_is_refused(share, make_module, make_trainer, small_data):
    with pytest.raises(ConfigError, match="limit_train_batches=0"):
        make_trainer(limit_train_batches=share).fit(make_module(), small_data)


def test_validation_in_every_0_epochs_is_refused(make_module, make_trainer, small_data):
    """Lightning divides by the number."""
    with pytest.raises(ConfigError, match=r"check_val_every_n_epoch=0 .*limit_val_batches 0"):
        make_trainer(check_val_every_n_epoch=0).fit(make_module(), small_data)


def test_common_statistics_of_parts_of_a_batch_are_refused(make_module, make_trainer, small_data):
    trainer = make_trainer()
    trainer.strategy._layer_sync = TorchSyncBatchNorm()  # as of Trainer(strategy="ddp", sync_batchnorm=True)
    with pytest.raises(ConfigError, match="sync_batchnorm=True and micro_batch=4 exclude each other"):
        trainer.fit(make_module(execution=Execution(micro_batch=4)), small_data)


def test_a_strategy_that_divides_the_weights_is_refused(make_module, make_trainer, small_data):
    trainer = make_trainer()
    trainer.strategy.__class__ = type("FSDPStrategy", (Strategy,), {})
    with pytest.raises(ConfigError, match="strategy FSDPStrategy"):
        trainer.fit(make_module(), small_data)


def test_a_nan_gradient_of_a_finite_loss_changes_nothing(make_module, make_trainer, small_data):
    class RootOfZero(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = TabularMLP(hidden=[4])

        def forward(self, x):
            return self.inside(x) + (self.inside(x) * 0).sqrt()

    module = make_module(network=RootOfZero(), algorithm=SOX())
    make_trainer(max_epochs=0).fit(module, small_data)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(NonFiniteError, match="gradient is not finite although the loss is"):
        make_trainer(max_epochs=1).fit(module, small_data)
    after = module.state_dict()
    for name, value in before.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(after[name], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("algorithm", [SOX, lambda: ALEXR2(K=4)], ids=["SOX", "ALEXR2"])
def test_logged_rows_are_of_the_update_they_name(algorithm, make_module, make_trainer, small_data, tmp_path):
    truth = {}

    def look(trainer, *_):
        truth[trainer.global_step - 1] = trainer.progress_bar_metrics.get("train_objective")

    logger, watch = CSVLogger(tmp_path, name="log"), LambdaCallback(on_train_batch_end=look)
    trainer = make_trainer(logger=logger, log_every_n_steps=2, callbacks=[watch], max_epochs=2)
    trainer.fit(make_module(algorithm=algorithm()), small_data)
    rows = pd.read_csv(f"{logger.log_dir}/metrics.csv").dropna(subset=["train_objective"])
    expected = [s for s in range(trainer.global_step) if (s + 1) % 2 == 0 or (s + 1) % (trainer.global_step // 2) == 0]
    assert rows["step"].tolist() == expected
    for step, value in zip(rows["step"], rows["train_objective"], strict=True):
        assert value == pytest.approx(truth[step], abs=1e-3)


def test_an_epoch_without_an_update_has_figures_for_callbacks(make_module, make_trainer, small_data, tmp_path):
    """PG-SMD moves w at the ends of its stages; loggers count updates, and have no row where there was none."""
    logger = CSVLogger(tmp_path, name="log")
    patience = EarlyStopping("train_objective", patience=1, check_on_train_epoch_end=True)
    trainer = make_trainer(logger=logger, log_every_n_steps=1, callbacks=[patience], max_epochs=3)
    stages = EqualStages(2 * BATCHES, 0.2, 0.3)
    trainer.fit(make_module(objective=SampleDRO(), algorithm=PGSMD(0.4, stages)), small_data)
    assert torch.isfinite(patience.best_score)
    rows = pd.read_csv(f"{logger.log_dir}/metrics.csv").dropna(subset=["train_objective"])
    assert rows["step"].tolist() == [*range(trainer.global_step)]


def test_layers_unfrozen_in_training_are_trained_by_the_rule(make_module, make_trainer, small_data):
    """Gradients do not pile up, and the previous weights hold the new parameters too."""
    norms = []

    class Unfreeze(Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 1:
                layer = module.network.layers[0]
                layer.requires_grad_(True)
                trainer.optimizers[0].add_param_group({"params": list(layer.parameters()), "lr": 1e-9})

        def on_before_optimizer_step(self, trainer, module, optimizer):
            grad = module.network.layers[0].weight.grad
            if grad is not None:
                norms.append(grad.norm().item())

    network = TabularMLP(hidden=[8], in_features=7)
    network.layers[0].requires_grad_(False)
    module = make_module(network=network, optimizer=lambda p: HeavyBall(p, lr=1e-9))
    make_trainer(max_epochs=2, callbacks=[Unfreeze()]).fit(module, small_data)
    assert len(norms) == BATCHES
    assert max(norms) < 5 * min(norms)
    assert len(module.algorithm.state_dict()["previous"]["copy"]) == 4


@pytest.mark.parametrize("epoch", [0, 3], ids=["from the start", "where the start by cross-entropy ends"])
def test_layers_unfrozen_that_the_optimizer_does_not_hold_are_refused(epoch, make_module, make_trainer, small_data):
    class Unfreeze(Callback):
        def on_train_epoch_start(self, trainer, module):
            module.network.layers[0].requires_grad_(trainer.current_epoch >= epoch)

    network = TabularMLP(hidden=[8], in_features=7)
    network.layers[0].requires_grad_(False)
    module = make_module(network=network, objective=AveragePrecision(), constraints=[], algorithm=SOX(0.5))
    with pytest.raises(ConfigError, match=r"does not hold, \['layers\.0\.weight', .*add_param_group"):
        make_trainer(max_epochs=4, callbacks=[Unfreeze()]).fit(module, small_data)


def test_a_dropped_last_batch_still_closes_the_inner_loop(make_module, make_trainer, small_data):
    small_data.setup()
    seen = []

    class Spoil(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == BATCHES - 1:
                batch["x"][0, 0] = math.nan

        def on_train_epoch_end(self, trainer, module):
            seen.append((trainer.global_step, module.algorithm.state_dict()["inner_count"]))

    module = make_module(algorithm=ALEXR2(K=2), execution=Execution(skip_nonfinite=True))
    make_trainer(max_epochs=2, callbacks=[Spoil()], limit_val_batches=0).fit(module, small_data)
    assert seen == [(5, 0), (10, 0)]


def test_a_state_from_before_the_first_fit_is_answered_with_what_it_lacks(make_module, make_trainer, small_data):
    module = make_module()
    initial = copy.deepcopy(module.state_dict())
    make_trainer(max_epochs=1).fit(module, small_data)
    with pytest.raises(CheckpointError, match=r"has no rows \(problem.* as before the first fit. Make a new module"):
        module.load_state_dict(initial)


def test_a_second_fit_on_other_data_is_refused(make_module, make_trainer, small_data):
    module = make_module()
    make_trainer(max_epochs=1).fit(module, small_data)
    with pytest.raises(ConfigError, match="200 samples, this one has 160"):
        make_trainer(max_epochs=1).fit(module, make_data(train=make_frame(160, 0)))


@pytest.mark.parametrize("algorithm", [SONEX, lambda: ALEXR2(K=2), lambda: MSVR(0.5, 0.3)], ids=["one", "two", "MSVR"])
def test_a_layer_that_is_frozen_during_a_fit_stays_as_it_is(algorithm, make_module, make_trainer, small_data):
    class Freeze(Callback):
        def on_train_epoch_start(self, trainer, module):
            if trainer.current_epoch == 1:
                first = module.network.layers[0]
                first.requires_grad_(False)
                self.then = first.weight.detach().clone()

    callback, module = Freeze(), make_module(network=TabularMLP(hidden=[8]), algorithm=algorithm())
    make_trainer(max_epochs=3, callbacks=[callback]).fit(module, small_data)
    assert torch.equal(module.network.layers[0].weight, callback.then)
    module.network.layers[2].bias.requires_grad_(False)
    batch = {"x": torch.zeros(4, 7), "y": torch.arange(4) % 2, "group": torch.arange(4) // 2, "index": torch.arange(4)}
    if isinstance(module.algorithm, MSVR):  # within an epoch
        with pytest.raises(
            ConfigError, match=r"frozen after the last call of Engine.follow_parameters.*start of an epoch"
        ):
            module.engine.train_batch(batch, torch.optim.SGD(module.network.parameters(), lr=0.1))


def test_a_second_fit_of_sox_boost_begins_with_the_first_stage(make_module, make_trainer, small_data):
    algorithm = SOXBoost(gamma=0.5, first_stage=2)
    module = make_module(algorithm=algorithm, optimizer=lambda p: HeavyBall(p, lr=0.05))
    for _ in range(2):
        trainer = make_trainer(max_epochs=1)
        trainer.fit(module, small_data)
        assert algorithm.stage > 0
        assert trainer.optimizers[0].param_groups[0]["lr"] == 0.05 / 2**algorithm.stage


def test_what_would_train_in_another_way_is_refused(make_module, make_trainer, small_data):
    class Own(FCCOModule):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(ConfigError, match=r"Own.configure_optimizers is overridden.*optimizer=lambda params"):
        make_trainer().fit(Own(TabularMLP(hidden=[8])), small_data)
    compiled = torch.compile(make_module(network=TabularMLP(hidden=[8], in_features=7)), backend="eager")
    with pytest.raises(
        ConfigError, match=r"torch.compile\(module\) would compile the whole training step.*compiled true"
    ):
        make_trainer().fit(compiled, small_data)


def test_algorithms_that_set_step_sizes_take_no_schedule(make_module, make_trainer, small_data):
    module = make_module(algorithm=SOXBoost(), optimizer=HeavyBall, schedule=Schedule(StepAtFractions))
    with pytest.raises(ConfigError, match="SOXBoost sets its own step sizes"):
        make_trainer().fit(module, small_data)


@pytest.mark.filterwarnings("ignore:.*no `val_dataloader`")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_refused_fit_leaves_the_rows_of_the_one_before(make_trainer):
    """Of as many samples with other labels, of which others own rows."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 3), (torch.arange(60) % 3 == 0).long()
    module = FCCOModule(torch.nn.Linear(3, 1), AveragePrecision())

    def fit(labels):
        loader = DataLoader(IndexedDataset(TensorDataset(x, labels)), 20, shuffle=True)
        make_trainer(max_epochs=1).fit(module, loader)

    fit(y)
    rows = module.problem.states[0].rows.clone()
    with pytest.raises(ConfigError, match=r"whose samples are others or own other rows\. Make a new FCCOModule"):
        fit(1 - y)
    assert torch.equal(module.problem.states[0].rows, rows)
    fit(y)
