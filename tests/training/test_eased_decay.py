"""Weight decay in proportion to the spread of scores: by hand, resumed, in two phases, refused, and its benefit."""

import functools

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import BaseFinetuning, LambdaCallback, OnExceptionCheckpoint
from torch import nn

from fcco_lightning import (
    AUC,
    SGD,
    SONEX,
    ClassEvaluation,
    ConfigError,
    ConstrainedClassifier,
    CrossEntropy,
    EqualizedOdds,
    Pretraining,
    ROCFairness,
    Schedule,
    TabularMLP,
)
from fcco_lightning.training.eased_decay import EasedDecay
from fcco_lightning.training.execution import Execution
from tests.jobs import save_at
from tests.tables import make_data, make_frame

DECAY, UNIT = 0.5, 4.0


def data():
    return make_data(train=make_frame(24, 0), test=make_frame(20, 1), batch_size=12)


def weak_table(seed, n=3000):
    """Features that hardly tell the label, one of which tells the group: an AUC of about .6 is all there is."""
    random = np.random.default_rng(100 + seed)
    group, age = random.random(n) < 0.5, random.normal(size=n)
    income = random.normal(0.6 * group, 1)
    return np.stack([age, income], 1), (random.random(n) < 0.08 + 0.1 * (income > 0.7)).astype(int), group


class Watched(torch.optim.AdamW):
    """Notes the decay of its first and last group in every step."""

    seen, behind = [], []

    def step(self, closure=None):
        self.seen.append(self.param_groups[0]["weight_decay"])
        self.behind.append(self.param_groups[-1]["weight_decay"])
        return super().step(closure)


def watched_adam(params):
    return Watched(params, lr=0.1, weight_decay=DECAY)


def module_of(make_module, **changes):
    parts = {
        "network": TabularMLP([4]), "objective": CrossEntropy(), "constraints": (), "algorithm": SGD(),
        "optimizer": watched_adam,
        "schedule": Schedule(decay_spread=UNIT),
    }  # fmt: skip
    return make_module(**(parts | changes))


def watched(make_trainer, module, **flags):
    """The decay of every epoch, and what a forward hook of the test's own saw in each."""
    scores = []

    def begin(*_):
        scores.append([])

    def note(network, _, outputs):
        if network.training and scores and torch.is_grad_enabled():
            scores[-1].append(outputs.detach().clone().double().reshape(len(outputs), -1))

    module.network.register_forward_hook(note)
    callbacks = [LambdaCallback(on_train_batch_start=lambda *a: a[3] or begin())]
    seen, _ = decays_of(make_trainer, module, callbacks=callbacks, **flags)
    assert seen[::2] == seen[1::2]  # two batches an epoch
    return seen[::2], [torch.cat(each) for each in scores]


@pytest.mark.parametrize("several", [False, True])
def test_the_decay_of_an_epoch_follows_the_spread_of_the_one_before(several, make_module, make_trainer):
    parts = {"network": TabularMLP([4], out_features=2), "evaluation": ClassEvaluation()} if several else {}
    decays, scores = watched(make_trainer, module_of(make_module, **parts), max_epochs=5)
    expected = [s.var(0, unbiased=False).mean().sqrt() / UNIT for s in scores]
    assert decays[0] == 0
    assert decays[1:] == pytest.approx([DECAY * min(1.0, float(e)) for e in expected[:-1]], rel=1e-12)
    assert 0 < decays[1] < DECAY


def test_scores_that_spread_far_have_the_whole_decay(make_module, make_trainer):
    decays, _ = watched(make_trainer, module_of(make_module, schedule=Schedule(decay_spread=1e-6)), max_epochs=3)
    assert decays == [0, DECAY, DECAY]


@pytest.mark.parametrize(("epoch", "batch"), [(1, 1), (2, 0)])  # at the end of an epoch, and within one
def test_a_resumed_run_ends_bit_for_bit_alike(epoch, batch, make_module, make_trainer, tmp_path):
    def fit(path=None, callbacks=()):
        torch.manual_seed(0)
        module = module_of(make_module)
        make_trainer(max_epochs=5, callbacks=list(callbacks)).fit(module, data(), ckpt_path=path)
        return {name: tensor.clone() for name, tensor in module.network.state_dict().items()}

    whole = fit()
    fit(callbacks=[save_at(epoch, batch, tmp_path / "stop.ckpt")])
    resumed = fit(tmp_path / "stop.ckpt")
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


class Fails(Callback):
    """Raises in a hook of the fourth batch, the second of its epoch."""

    def __init__(self, hook):
        def fail(trainer, *_):
            if trainer.fit_loop.epoch_loop.batch_progress.total.ready == 4:
                raise RuntimeError("failing")

        setattr(self, hook, fail)


class Kept(OnExceptionCheckpoint):
    def teardown(self, *args, **kwargs):  # which would remove the checkpoint
        pass


@pytest.mark.filterwarnings("ignore:.*was called without a model", "ignore:.*there is no last checkpoint")
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_before_backward"])  # its scores count, or come again
def test_scores_of_the_batch_in_which_a_callback_fails_count_once(hook, make_module, make_trainer, tmp_path):
    def fit(path=None, callbacks=()):
        torch.manual_seed(0)
        module = module_of(make_module)
        options = {"callbacks": list(callbacks), "enable_checkpointing": bool(callbacks)}
        make_trainer(max_epochs=4, **options).fit(module, data(), ckpt_path=path)
        return {name: tensor.clone() for name, tensor in module.network.state_dict().items()}

    whole = fit()
    with pytest.raises(RuntimeError, match="failing"):
        fit(callbacks=[Fails(hook), Kept(tmp_path)])
    resumed = fit(tmp_path / "on_exception.ckpt")
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def decays_of(make_trainer, module, ckpt_path=None, **flags):
    """The decay of the first and of the last group in every step."""
    Watched.seen, Watched.behind = [], []
    make_trainer(**flags).fit(module, data(), ckpt_path=ckpt_path)
    return Watched.seen, Watched.behind


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of a graph that begins behind the hook
@pytest.mark.parametrize("generated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_steps_are_looked_at_too(generated, make_module, make_trainer, monkeypatch):
    if not generated:
        traced = functools.partial(torch.compile, backend="aot_eager")
        monkeypatch.setattr(torch, "compile", lambda function, **_: traced(function))
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = module_of(make_module, execution=Execution(compiled=compiled))
        found.append(decays_of(make_trainer, module, max_epochs=3)[0][-1])
    assert 0 < found[0] < DECAY
    assert found[1] == pytest.approx(found[0], rel=1e-2)  # compiled code rounds elsewhere, and tries the first batch


def test_the_optimizer_has_what_it_was_given_outside_of_steps(make_module, make_trainer, tmp_path):
    module = module_of(make_module)
    make_trainer(max_epochs=2, callbacks=[save_at(1, 0, tmp_path / "at.ckpt")]).fit(module, data())
    assert module.trainer.optimizers[0].param_groups[0]["weight_decay"] == DECAY
    plain = module_of(make_module, schedule=Schedule())
    assert decays_of(make_trainer, plain, tmp_path / "at.ckpt", max_epochs=4)[0] == [DECAY] * 5


def test_previous_weights_and_skipped_batches_do_not_count(make_module, make_trainer):
    parts = {"algorithm": SONEX(), "objective": AUC(), "constraints": [ROCFairness([0.0])]}
    module = module_of(make_module, **parts)
    decays, scores = watched(make_trainer, module, max_epochs=3)
    assert decays[1] == pytest.approx(DECAY * float(scores[0].std(unbiased=False)) / UNIT, rel=1e-12)
    eased = EasedDecay(1.0)
    module.network.train()
    for x in ([0.0, 2.0], [float("nan"), 1.0], [4.0, 6.0]):
        eased._note(module.network, None, torch.tensor(x))
    with torch.no_grad():
        eased._note(module.network, None, torch.tensor([100.0]))
    eased.take()
    assert eased.state()["sums"].flatten().tolist() == [4.0, 12.0, 56.0]


def test_pretraining_ends_with_the_eased_decay(make_module, make_trainer):
    pretrain = Pretraining(epochs=2, optimizer=watched_adam)
    module = module_of(make_module, pretrain=pretrain)
    seen, _ = decays_of(make_trainer, module, max_epochs=4)
    assert seen[:2] == [0, 0]
    assert all(0 < decay < DECAY for decay in seen[2:])
    assert len(seen) == 8


def test_a_run_that_ended_within_an_epoch_goes_on_as_if_it_had_not(make_module, make_trainer, tmp_path):
    def fit(path=None, **flags):
        torch.manual_seed(0)
        module = module_of(make_module)
        trainer = make_trainer(**flags)
        trainer.fit(module, data(), ckpt_path=path)
        return trainer, {name: tensor.clone() for name, tensor in module.network.state_dict().items()}

    _, whole = fit(max_epochs=4)
    trainer, _ = fit(max_epochs=4, max_steps=3)
    trainer.save_checkpoint(tmp_path / "stop.ckpt")
    _, resumed = fit(tmp_path / "stop.ckpt", max_epochs=4)
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


class Unfreeze(BaseFinetuning):
    """Adds the last layer to the optimizer in the second epoch."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.network.head())

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.network.head(), optimizer)


def test_groups_that_are_added_are_eased_too(make_module, make_trainer):
    _, behind = decays_of(make_trainer, module_of(make_module), max_epochs=4, callbacks=[Unfreeze()])
    assert all(0 < decay < DECAY for decay in behind[2:])
    assert len(behind) == 8


class Halves(Callback):
    """Halves the weight decay with the second epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.optimizers[0].param_groups[0]["weight_decay"] /= 2


def test_a_decay_that_a_callback_has_changed_is_the_one_that_is_eased(make_module, make_trainer):
    plain, _ = decays_of(make_trainer, module_of(make_module, schedule=Schedule(decay_spread=1e-6)), max_epochs=4)
    module = module_of(make_module, schedule=Schedule(decay_spread=1e-6))
    halved, _ = decays_of(make_trainer, module, max_epochs=4, callbacks=[Halves()])
    assert plain[2:] == [DECAY] * 6
    assert halved[2:] == [DECAY / 2] * 6


def test_a_later_fit_does_not_look_twice(make_module, make_trainer):
    module = module_of(make_module)
    make_trainer(max_epochs=2).fit(module, data())
    assert not module.network._forward_hooks
    make_trainer(max_epochs=2).fit(module, data())
    assert not module.network._forward_hooks


class Pair(nn.Module):
    """Gives two tensors."""

    def __init__(self):
        super().__init__()
        self.inner = TabularMLP([4], in_features=2)

    def forward(self, x):
        return self.inner(x), x


def test_what_it_cannot_do_is_refused(make_module, make_trainer):
    with pytest.raises(ConfigError, match=r"schedule\.decay_spread must be .* -1"):
        Schedule(decay_spread=-1)
    module = module_of(make_module, optimizer=lambda params: torch.optim.Rprop(params, lr=0.1))
    with pytest.raises(ConfigError, match=r"schedule\.decay_spread=4 reduces the weight_decay .* Rprop has none"):
        make_trainer().fit(module, data())
    assert not module.network._forward_hooks


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 5])
def test_a_weak_signal_is_not_shrunk_to_decisions_that_are_all_alike(seed):
    """With the whole decay every one of these samples is decided alike: the scores span hundredths."""
    x, y, group = weak_table(seed)
    model = ConstrainedClassifier(constraints=[EqualizedOdds(0.02)], decisions="balanced", random_state=seed)
    model.fit(x, y, sensitive_features=group)
    chosen = model.predict(x).astype(bool)
    assert 0.2 < chosen[y == 1].mean() < 0.95
    assert 0.1 < chosen[y == 0].mean() < 0.9
    assert model.decision_function(x).std() > 0.03  # .0003 and less with the whole decay
