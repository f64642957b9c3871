"""Averaged weights: their formula, what is evaluated, and what a checkpoint holds."""

import copy
import threading

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from torch import nn

from fcco_lightning import (
    ALEXR2,
    ConfigError,
    FCCOModule,
    HeavyBall,
    MeanAtMost,
    Pretraining,
    SoftRate,
    TabularMLP,
    WeightAverage,
)
from fcco_lightning.reports import Baseline, BestFeasible
from tests.jobs import everything, require_same, save_at
from tests.reports.test_feasible import data
from tests.tables import make_data, make_frame

DATA = {"train": make_frame(60, 0), "test": make_frame(20, 1), "batch_size": 12}


class Diary(Callback):
    """The weights after every update, and while they are evaluated."""

    def __init__(self):
        self.trained, self.evaluated = [], []

    def on_train_batch_end(self, trainer, module, *args):
        self.trained.append({k: v.clone() for k, v in module.network.state_dict().items()})

    def on_validation_end(self, trainer, module):
        self.evaluated.append({k: v.clone() for k, v in module.network.state_dict().items()})


def fit(make_module, make_trainer, average, callbacks=(), ckpt_path=None, **flags):
    torch.manual_seed(3 if ckpt_path is None else 99)
    module = make_module(
        network=TabularMLP(hidden=[8], dropout=0.2, batch_norm=True),
        optimizer=lambda p: HeavyBall(p, lr=0.05),
        average=average,
        **flags,
    )
    trainer = make_trainer(
        max_epochs=3,
        callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
    )
    trainer.fit(module, make_data(**DATA), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.parametrize("decay", [0.8, None], ids=["moving", "mean"])
def test_the_formula(decay, make_module, make_trainer):
    diary, start, plain = Diary(), 4, Diary()
    trainer = fit(make_module, make_trainer, WeightAverage(decay, start), [diary])
    fit(make_module, make_trainer, None, [plain])
    assert all(torch.equal(a[k], b[k]) for a, b in zip(diary.trained, plain.trained, strict=True) for k in a)
    taken = diary.trained[start:]
    for name, value in trainer.lightning_module.network.state_dict().items():
        if not value.is_floating_point():
            continue
        expected = taken[0][name].double()
        for k, weights in enumerate(taken[1:], start=1):
            keep = k / (k + 1) if decay is None else decay
            expected = keep * expected + (1 - keep) * weights[name].double()
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(diary.evaluated[-1][name], value)


class Odd(nn.Module):
    """Tied weights, and buffers that are no statistics."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(2, 2, bias=False) for _ in range(3))
        self.b.weight = self.a.weight
        self.register_buffer("mask", torch.triu(torch.full((3, 3), -torch.inf), 1))
        self.register_buffer("seen", torch.tensor([True, False]))
        self.register_buffer("numbers", torch.arange(200))
        self.register_buffer("mean", torch.zeros(2))


@pytest.mark.parametrize("decay", [0.9, None], ids=["moving", "mean"])
def test_tied_weights_are_averaged_once_and_buffers_keep_what_they_hold(decay):
    network, average = Odd(), WeightAverage(decay)
    kept = {name: b.clone() for name, b in network.named_buffers()}
    average.begin(network)
    for k in range(1, 4):
        for tensor in (*network.parameters(), network.mean):
            tensor.data.fill_(k)
        average.update(k)
    average.show(averaged=True)
    expected = 2.0 if decay is None else 0.9 * (0.9 + 0.1 * 2) + 0.1 * 3
    for tensor in (network.a.weight, network.b.weight, network.c.weight, network.mean):
        torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, expected))
    assert network.b.weight is network.a.weight
    assert all(torch.equal(getattr(network, name), kept[name]) for name in ("mask", "seen", "numbers"))
    average.show(averaged=False)
    assert bool((network.a.weight == 3).all())


@pytest.mark.filterwarnings("ignore:The dirpath has changed", "ignore:Be aware that when using `ckpt_path`")
def test_resumed_bit_for_bit_and_tested_as_validated(make_module, make_trainer, tmp_path):
    """Mid-epoch and at an epoch's end."""

    def run(folder, more=(), ckpt_path=None):
        saver = ModelCheckpoint(tmp_path / folder, "{epoch}", monitor="train_auc", mode="max", save_top_k=-1)
        return fit(make_module, make_trainer, WeightAverage(0.8, 2), [saver, *more], ckpt_path), saver

    paths = {batch: tmp_path / f"{batch}.ckpt" for batch in (1, 4)}
    whole, saver = run("whole", [save_at(1, batch, path) for batch, path in paths.items()])
    paths[5] = sorted((tmp_path / "whole").glob("epoch=2*"))[0]  # of the end: nothing is left to train
    for path in paths.values():
        require_same(run(path.stem, ckpt_path=path)[0], whole)
    without = fit(make_module, make_trainer, None, ckpt_path=paths[1])  # it ends with the last weights
    expected, found = everything(whole), everything(without)
    different = [name for name in expected if not torch.equal(expected[name], found[name])]
    assert different
    assert all(name.startswith("network.") for name in different)
    last = paths[5]
    module = make_module(network=TabularMLP(hidden=[8], batch_norm=True, dropout=0.2))
    (tested,) = make_trainer().validate(module, make_data(**DATA), ckpt_path=last, verbose=False)
    assert tested["train_auc"] == pytest.approx(float(saver.best_k_models[str(last)]))


@pytest.mark.slow
def test_one_object_averages_the_networks_of_two_modules_apart(make_module, make_trainer):
    average = WeightAverage(0.8)
    first, second = (fit(make_module, make_trainer, average) for _ in range(2))
    require_same(second, first)


def test_the_best_weights_are_chosen_among_averages(make_trainer):
    best, diary = BestFeasible(enabled=True), Diary()
    module = FCCOModule(
        nn.Linear(2, 1),
        constraints=[MeanAtMost(SoftRate(), 0.4)],
        average=WeightAverage(0.5),
        optimizer=lambda p: HeavyBall(p, 0.5),
    )
    make_trainer(max_epochs=2, callbacks=[best, diary]).fit(module, data())
    weight = module.network.weight
    assert any(torch.equal(weight, evaluated["weight"]) for evaluated in diary.evaluated)
    assert not any(torch.equal(weight, trained["weight"]) for trained in diary.trained)


def test_a_second_fit_goes_on_from_the_last_weights(make_module, make_trainer):
    diary, module = Diary(), make_module(average=WeightAverage(0.5), network=TabularMLP(hidden=[8]))
    trainer = make_trainer(max_epochs=1, callbacks=[diary])
    trainer.fit(module, make_data(**DATA))
    last, begun = diary.trained[-1], []
    look = LambdaCallback(on_train_batch_start=lambda *_: begun.append(copy.deepcopy(module.network.state_dict())))
    make_trainer(max_epochs=1, callbacks=[look]).fit(module, make_data(**DATA))
    assert all(torch.equal(begun[0][k], last[k]) for k in last)


def test_weights_loaded_between_fits_are_trained_on(make_module, make_trainer):
    module = make_module(average=WeightAverage(0.5), network=TabularMLP(hidden=[8]))
    make_trainer(max_epochs=1).fit(module, make_data(**DATA))
    given, begun = {k: 2 * v for k, v in module.network.state_dict().items()}, []
    make_trainer(max_epochs=1).fit(module, make_data(**DATA))
    module.network.load_state_dict(given)
    look = LambdaCallback(on_train_batch_start=lambda *_: begun.append(copy.deepcopy(module.network.state_dict())))
    make_trainer(max_epochs=1, callbacks=[look]).fit(module, make_data(**DATA))
    assert all(torch.equal(begun[0][k], given[k]) for k in given)


def test_an_average_follows_the_precision(make_module, make_trainer):
    diary, module = Diary(), make_module(average=WeightAverage(0.5), network=TabularMLP(hidden=[8]))
    make_trainer(max_epochs=1, callbacks=[diary]).fit(module, make_data(**DATA))
    begun = []
    look = LambdaCallback(on_train_batch_start=lambda *_: begun.append(copy.deepcopy(module.network.state_dict())))
    make_trainer(max_epochs=1, precision="64-true", callbacks=[look]).fit(module, make_data(**DATA))
    assert all(torch.equal(begun[0][k], v.to(begun[0][k].dtype)) for k, v in diary.trained[-1].items())


def test_with_a_new_head_the_average_starts_afresh(make_module, make_trainer):
    diary = Diary()
    trainer = fit(make_module, make_trainer, WeightAverage(None), [diary], pretrain=Pretraining(1))
    mean = torch.stack([w["layers.4.weight"] for w in diary.trained[5:]]).mean(0)
    torch.testing.assert_close(trainer.lightning_module.network.layers[4].weight.detach(), mean)


class Onlooker:
    """What a hook may belong to: something that cannot be copied, such as a profiler, or a callback."""

    def __init__(self):
        self.lock, self.calls = threading.Lock(), 0

    def note(self, *_):
        self.calls += 1


def test_what_looks_at_the_network_by_hooks_is_not_copied(make_module, make_trainer):
    seen = []
    for average, baseline in ((None, False), (WeightAverage(0.8), True)):
        torch.manual_seed(0)
        module, onlooker = make_module(average=average), Onlooker()
        module.network.layers[0].register_forward_hook(onlooker.note)
        callbacks = [Baseline(enabled=baseline)]
        make_trainer(callbacks=callbacks, limit_val_batches=0).fit(module, make_data(**DATA))
        last = module.network if average is None else average._other.module  # beside the shown average
        seen.append((onlooker.calls, {name: value.clone() for name, value in last.state_dict().items()}))
    (calls, weights), (more_calls, again) = seen
    assert more_calls > calls > 0  # the baseline's copy is looked at, too
    torch.testing.assert_close(again, weights, rtol=0, atol=0)


def test_what_does_not_go_together(make_module, make_trainer):
    with pytest.raises(ConfigError, match="recovery_steps=2"):
        make_module(algorithm=ALEXR2(recovery_steps=2), average=WeightAverage())
    with pytest.raises(ConfigError, match="precision='bf16-true'"):
        make_trainer(precision="bf16-true").fit(make_module(average=WeightAverage()), make_data(**DATA))
