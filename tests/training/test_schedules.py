"""Every schedule of torch resumes exactly, and arguments changed on resuming take effect."""

import inspect

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch.optim import lr_scheduler as schedules

from fcco_lightning import (
    AUC,
    SGD,
    CheckpointError,
    ConfigError,
    HeavyBall,
    LinearWarmUp,
    Schedule,
    StepAtFractions,
    TabularMLP,
)
from fcco_lightning.models import BatchNetwork, ParameterGroup
from fcco_lightning.training.optimizers import build_optimizer
from fcco_lightning.training.resuming.continuing import apply_changes
from tests.jobs import save_at
from tests.tables import make_data, make_frame
from tests.training.conftest import quick

DATA = {"train": make_frame(24, 0), "test": make_frame(20, 1), "batch_size": 12}
EPOCHS, STOP = 6, 3
SHIPPED = {
    name
    for name in schedules.__all__
    if inspect.isclass(getattr(schedules, name)) and issubclass(getattr(schedules, name), schedules.LRScheduler)
} - {"LRScheduler"}


def sequential(optimizer, milestone, gamma=0.5):
    parts = [schedules.ConstantLR(optimizer, 0.1, 2), schedules.ExponentialLR(optimizer, gamma)]
    return schedules.SequentialLR(optimizer, parts, [milestone])


def chained(optimizer, gamma):
    return schedules.ChainedScheduler(
        [schedules.ExponentialLR(optimizer, gamma), schedules.ConstantLR(optimizer, 0.1, 4)]
    )


# what makes it, arguments of the run that is stopped, and of the one that continues it
CASES = {
    "ChainedScheduler": (chained, {"gamma": 0.5}, {"gamma": 0.9}),
    "ConstantLR": (schedules.ConstantLR, {"factor": 0.5, "total_iters": 4}, {"factor": 0.25, "total_iters": 5}),
    "CosineAnnealingLR": (schedules.CosineAnnealingLR, {"T_max": 4}, {"T_max": 9, "eta_min": 0.01}),
    "CosineAnnealingWarmRestarts": (schedules.CosineAnnealingWarmRestarts, {"T_0": 2}, {"T_0": 3, "T_mult": 2}),
    "CyclicLR": (
        schedules.CyclicLR, {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "cycle_momentum": False},
        {"base_lr": 0.2, "max_lr": 2.0, "step_size_up": 3, "cycle_momentum": False},
    ),
    "ExponentialLR": (schedules.ExponentialLR, {"gamma": 0.5}, {"gamma": 0.9}),
    "LambdaLR": (schedules.LambdaLR, {"lr_lambda": lambda k: 1 / (1 + k)}, {"lr_lambda": lambda k: 1 / (1 + k) ** 2}),
    "LinearLR": (schedules.LinearLR, {"total_iters": 4}, {"total_iters": 8, "start_factor": 0.1}),
    "MultiStepLR": (schedules.MultiStepLR, {"milestones": [1, 4]}, {"milestones": [2, 5], "gamma": 0.5}),
    "MultiplicativeLR": (schedules.MultiplicativeLR, {"lr_lambda": lambda k: 0.5}, {"lr_lambda": lambda k: 0.5}),
    "OneCycleLR": (
        schedules.OneCycleLR, {"max_lr": 2.0, "total_steps": 4, "cycle_momentum": False},
        {"max_lr": 3.0, "total_steps": 9, "cycle_momentum": False},
    ),
    "PolynomialLR": (schedules.PolynomialLR, {"total_iters": 4}, {"total_iters": 9, "power": 2.0}),
    "SequentialLR": (sequential, {"milestone": 2}, {"milestone": 4, "gamma": 0.8}),
    "StepLR": (schedules.StepLR, {"step_size": 1}, {"step_size": 2, "gamma": 0.5}),
}  # fmt: skip


COMPOSED = ("ChainedScheduler", "CosineAnnealingWarmRestarts", "OneCycleLR", "SequentialLR")  # more than one formula


def test_every_schedule_is_looked_at():
    assert {*CASES, "ReduceLROnPlateau"} == SHIPPED


def rates(make_module, make_trainer, scheduler, epochs, ckpt_path=None, lr=1.0, **settings):
    """Learning rate of every epoch, and the trainer; the weight decay is a hundredth of the first."""
    seen = {}

    def look(trainer, _):
        (group,) = trainer.optimizers[0].param_groups
        assert group["weight_decay"] == lr / 100
        seen[trainer.current_epoch] = group["lr"]

    module = make_module(
        network=TabularMLP([]), constraints=(), algorithm=SGD(), schedule=Schedule(scheduler, **settings),
        optimizer=lambda p: HeavyBall(p, lr=lr, weight_decay=lr / 100),
    )  # fmt: skip
    trainer = make_trainer(max_epochs=epochs, callbacks=[LambdaCallback(on_train_epoch_start=look)])
    trainer.fit(module, make_data(**DATA), ckpt_path=ckpt_path)
    return seen, trainer


def alone(make, arguments, lr=1.0):
    """Learning rates of torch's schedule by itself."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule, found = make(optimizer, **arguments), {}
    for epoch in range(EPOCHS):
        found[epoch] = optimizer.param_groups[0]["lr"]
        optimizer.step()
        if epoch + 1 < EPOCHS:
            schedule.step()
    return found


@pytest.mark.filterwarnings("ignore:To get the last learning rate")
@pytest.mark.parametrize("name", quick(CASES, *COMPOSED, "LambdaLR", "StepLR"))
def test_what_is_typed_on_a_resume_holds(name, make_module, make_trainer, tmp_path):
    make, first, second = CASES[name]
    before, trainer = rates(make_module, make_trainer, lambda o: make(o, **first), STOP)
    trainer.save_checkpoint(path := tmp_path / "a.ckpt")
    expected = alone(make, second, 3.0)
    changed, _ = rates(make_module, make_trainer, lambda o: make(o, **second), EPOCHS, path, lr=3.0)
    assert changed == {epoch: expected[epoch] for epoch in range(STOP, EPOCHS)}
    if first.get("total_steps", EPOCHS) < EPOCHS:  # OneCycleLR cannot go further
        return
    expected = alone(make, first)
    same, _ = rates(make_module, make_trainer, lambda o: make(o, **first), EPOCHS, path)
    assert before | same == expected


@pytest.mark.slow
def test_a_schedule_of_the_whole_run_follows_its_length(make_module, make_trainer, tmp_path):
    """Number of epochs, fractions and learning rate are those typed last."""

    def run(epochs, ckpt_path=None, lr=1.0, **arguments):
        return rates(make_module, make_trainer, lambda o: StepAtFractions(o, **arguments), epochs, ckpt_path, lr)

    _, trainer = run(2)
    trainer.save_checkpoint(path := tmp_path / "a.ckpt")
    assert run(8, path)[0] == pytest.approx({2: 1.0, 3: 1.0, 4: 0.1, 5: 0.1, 6: 0.01, 7: 0.01})
    assert set(run(8, path, fractions=[0.9])[0].values()) == {1.0}
    assert run(4, path, lr=3.0)[0] == pytest.approx({2: 0.3, 3: 0.03})


def test_a_rate_of_zero_gives_way_to_that_of_the_run():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    apply_changes(optimizer, [{"lr": 0.1}], [{"lr": 0.0}])
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_plateau_keeps_what_it_has_seen(make_module, make_trainer, tmp_path):
    """The AUC stays as it is, so that no epoch after the first improves it."""

    def run(epochs, ckpt_path=None, **arguments):
        plateau = lambda o: schedules.ReduceLROnPlateau(o, **arguments)  # noqa: E731
        seen, trainer = rates(make_module, make_trainer, plateau, epochs, ckpt_path, monitor="train_auc", lr=1e-6)
        return seen, trainer.lr_scheduler_configs[0].scheduler, trainer

    _, before, trainer = run(STOP, patience=9)
    trainer.save_checkpoint(path := tmp_path / "a.ckpt")
    assert before.num_bad_epochs == STOP - 1
    seen, after, _ = run(EPOCHS, path, patience=STOP - 1, factor=0.5)
    assert (after.best, after.factor) == (before.best, 0.5)
    assert seen == {3: 1e-6, 4: 5e-7, 5: 5e-7}
    _, other, _ = run(STOP + 1, path, mode="max")
    assert other.num_bad_epochs == 0  # under another mode the first epoch is the best


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ({"scheduler": None}, CheckpointError, "has the schedule OneCycleLR by epoch, this run's has none"),
        ({"interval": "step"}, CheckpointError, "this run's has OneCycleLR by step"),
        ({"scheduler": StepAtFractions}, CheckpointError, "this run's has StepAtFractions by epoch"),
        (
            {"scheduler": lambda o: schedules.OneCycleLR(o, 2.0, 2, cycle_momentum=False)},
            ConfigError,
            "is at step 3 in the checkpoint",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(parts, error, message, make_module, make_trainer, tmp_path):
    once = {"scheduler": lambda o: schedules.OneCycleLR(o, 2.0, 9, cycle_momentum=False)}
    _, trainer = rates(make_module, make_trainer, epochs=STOP, **once)
    trainer.save_checkpoint(path := tmp_path / "a.ckpt")
    with pytest.raises(error, match=message):
        rates(make_module, make_trainer, epochs=EPOCHS, ckpt_path=path, **(once | parts))


@pytest.mark.parametrize(
    ("monitor", "epoch", "flags"),
    [("train_auc", 1, {}), ("train_objective", 0, {"check_val_every_n_epoch": 2, "log_every_n_steps": 1})],
    ids=["validated", "not validated"],
)
def test_after_the_last_batch_of_an_epoch_its_end_is_still_to_come(
    monitor, epoch, flags, make_module, make_trainer, tmp_path
):
    """Else the plateau would see one figure less than in the uninterrupted run."""

    def run(*callbacks, ckpt_path=None):
        torch.manual_seed(0)
        module = make_module(
            schedule=Schedule(
                lambda o: schedules.ReduceLROnPlateau(o, "max", patience=0, threshold=0.03), monitor=monitor
            )
        )
        trainer = make_trainer(max_epochs=3, callbacks=list(callbacks), **flags)
        trainer.fit(module, make_data(**DATA), ckpt_path=ckpt_path)
        return trainer.lr_scheduler_configs[0].scheduler.state_dict()

    whole = run(save_at(epoch, 1, tmp_path / "at.ckpt"))
    assert run(ckpt_path=tmp_path / "at.ckpt") == whole
    assert whole["last_epoch"] == 3


@pytest.mark.parametrize(
    ("monitor", "flags", "steps"),
    [
        ("train_auc", {"check_val_every_n_epoch": 3}, 2),
        ("train_objective", {"check_val_every_n_epoch": 3}, 6),
        ("train_auc", {"check_val_every_n_epoch": None, "val_check_interval": 5}, 2),  # in the epochs 2 and 4
        ("train_auc", {"val_check_interval": "00:01:00:00"}, 0),  # none within the hour
        ("train_auc", {"val_check_interval": "00:00:00:00"}, 6),
    ],
    ids=["of validation", "of steps", "of validation by batches", "of no validation by time", "of validation by time"],
)
def test_a_plateau_is_looked_at_when_there_is_a_new_value(monitor, flags, steps, make_module, make_trainer):
    made = []

    class Counted(schedules.ReduceLROnPlateau):
        def step(self, metrics, epoch=None):
            made.append(float(metrics))
            super().step(metrics)

    module = make_module(algorithm=SGD(), constraints=(), schedule=Schedule(Counted, monitor=monitor))
    make_trainer(max_epochs=6, **flags).fit(module, make_data(**DATA))
    assert len(made) == steps


@pytest.mark.parametrize(("warm_up", "total"), [(0.25, 8), (0.1, 10), (0.0, 5), (0.5, 3)])
def test_linear_warm_up_is_that_of_transformers(warm_up, total):
    from transformers import get_linear_schedule_with_warmup

    ours, theirs = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3) for _ in range(2))
    schedule = LinearWarmUp(ours, warm_up)
    schedule.set_total(total)
    expected = get_linear_schedule_with_warmup(theirs, round(warm_up * total), total)
    for _ in range(total + 2):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], abs=1e-12)
        for optimizer, made in ((ours, schedule), (theirs, expected)):
            optimizer.step()
            made.step()


@pytest.mark.parametrize("warm_up", [-0.1, 1.0])
def test_a_warm_up_is_a_share(warm_up):
    with pytest.raises(ConfigError, match=rf"warm_up must lie in \[0, 1\), got {warm_up}"):
        LinearWarmUp(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), warm_up)


def test_a_learning_rate_that_is_a_tensor_has_the_factor_of_every_group():
    class Two(BatchNetwork):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

        def forward(self, batch):
            return {name: self.last(self.first(columns["x"])) for name, columns in batch.items()}

        def parameter_groups(self):
            return [ParameterGroup([*self.first.parameters()], lr_scale=0.1), ParameterGroup([*self.last.parameters()])]

    rate = torch.tensor(1.0)
    optimizer = build_optimizer(lambda params: torch.optim.Adam(params, lr=rate), Two(), AUC(), None)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.1, 1.0])
    assert rate == 1


def test_a_learning_rate_that_is_a_tensor_and_was_changed_holds(make_module, make_trainer, tmp_path):
    def fit(rate, epochs, **continued):
        module = make_module(optimizer=lambda params: torch.optim.Adam(params, lr=torch.tensor(rate)))
        trainer = make_trainer(max_epochs=epochs)
        trainer.fit(module, make_data(**DATA), **continued)
        return trainer

    fit(0.25, 1).save_checkpoint(tmp_path / "a.ckpt")
    assert fit(0.5, 2, ckpt_path=tmp_path / "a.ckpt").optimizers[0].param_groups[0]["lr"] == 0.5
