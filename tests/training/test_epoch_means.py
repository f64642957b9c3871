"""Figures of training steps belong to the step's weights and parameters; those of an epoch are their means."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from fcco_lightning import (
    ALEXR2,
    AUC,
    SGD,
    SOAP,
    SONEX,
    SOX,
    AveragePrecision,
    CVaRGroupDRO,
    Engine,
    HingePenalty,
    LogisticLoss,
    MeanAtMost,
    TabularMLP,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.engine.estimates import Averages, Estimates, Summand
from tests import jobs

N, BATCH = 45, 8  # the last batch of an epoch holds 5 samples
ALPHA = 0.5


def rare_data():
    """A positive, or a sample of the group 2, is in about a third of the batches."""
    g = torch.Generator().manual_seed(0)
    columns = {
        "x": torch.randn(N, 3, generator=g),
        "y": (torch.arange(N) % 22 == 0).long(),
        "group": torch.tensor([0, 1] * 21 + [0, 2, 2]),
    }
    return TensorDataModule({"train": columns, "test": columns}, batches=UniformSampling(BATCH, drop_last=False))


class Diary(Callback):
    """Notes batches with the scores and thresholds from before each step, and what is shown and known afterwards."""

    def __init__(self):
        self.steps, self.shown, self.epochs = [], [], []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        with torch.no_grad():
            scores = module.network(batch["x"]).flatten().double().numpy().copy()
        thresholds = [p.item() for p in module.objective.parameters()]
        self.steps.append((scores, batch["y"].numpy(), batch["group"].numpy(), *thresholds))

    def on_train_batch_end(self, trainer, module, *_):
        self.shown.append(trainer.progress_bar_metrics.get("train_objective"))

    def on_train_epoch_end(self, trainer, module):
        self.epochs.append(float(trainer.callback_metrics["train_objective"]))


@pytest.fixture
def fit(make_module, make_trainer):
    def fit(objective, algorithm, *callbacks, ckpt_path=None, epochs=2, lr=0.5, max_steps=-1, **parts):
        torch.manual_seed(0)
        parts = {"constraints": [], "penalty": None, "network": TabularMLP([4], in_features=3)} | parts
        module = make_module(
            objective=objective, algorithm=algorithm, optimizer=lambda p: torch.optim.SGD(p, lr=lr), **parts
        )
        diary = Diary()
        callbacks = [diary, *callbacks]
        trainer = make_trainer(max_epochs=epochs, max_steps=max_steps, callbacks=callbacks, log_every_n_steps=1)
        trainer.fit(module, rare_data(), ckpt_path=ckpt_path)
        return diary, trainer

    return fit


def losses(scores, y):
    return np.log1p(np.exp(np.where(y == 1, -scores, scores)))


class FromTheFirstUpdate(CVaRGroupDRO):
    """As it is recommended, but for the start."""

    recommended_start = None


def test_an_objective_with_a_threshold_is_that_of_the_weights_before_the_step(fit):
    """``C + mean over the groups of the batch of [R_i - C]_+ / alpha``, of risks in this batch alone."""
    diary, _ = fit(FromTheFirstUpdate(ALPHA, num_groups=3), SOAP(1.0), epochs=2)
    shown, parts = [], []
    for scores, y, group, threshold in diary.steps:
        risks = [losses(scores, y)[group == g].mean() for g in range(3) if (group == g).any()]
        tails = np.clip(np.array(risks) - threshold, 0, None) / ALPHA
        shown.append(threshold + tails.mean())
        parts.append((len(y), threshold, len(tails), tails.sum()))
    assert len({count for *_, count, _ in parts}) > 1
    np.testing.assert_allclose(diary.shown, shown, rtol=1e-5)
    expected = []
    for epoch in np.split(np.array(parts), 2):
        size, threshold, groups, tails = epoch.T
        expected.append(size @ threshold / size.sum() + tails.sum() / groups.sum())
    np.testing.assert_allclose(diary.epochs, expected, rtol=1e-5)


@pytest.mark.parametrize("algorithm", [lambda: SOX(0.4), SONEX, lambda: ALEXR2(K=2)], ids=["SOX", "SONEX", "ALEXR2"])
def test_a_figure_is_the_same_whenever_it_is_looked_at(algorithm):
    """Thresholds and multipliers move in between."""
    now, later = [], []
    for looks in (now, later):
        torch.manual_seed(0)
        network, used, objective = TabularMLP([4], in_features=3), algorithm(), CVaRGroupDRO(ALPHA, num_groups=3)
        data = rare_data()
        data.setup()
        limit = MeanAtMost(LogisticLoss(), 0.1, {"group": 1})
        problem = used.pose(objective, [limit], num_samples=N, sampling=data.sampling())
        engine = Engine(network, problem, used)
        optimizer = torch.optim.SGD([*network.parameters(), *objective.parameters()], lr=0.5)
        seen = []
        for batch in [*data.train_dataloader(), *data.train_dataloader()]:
            seen.append(engine.train_batch(batch, optimizer))
            if looks is now:
                seen[-1] = dict(seen[-1])
        looks += [dict(estimates) for estimates in seen]
    torch.testing.assert_close(later, now, rtol=0, atol=0, equal_nan=True)


def test_batches_without_pairs_do_not_count(fit):
    diary, _ = fit(AUC(), SGD(), epochs=3, pretrain=None)
    expected = []
    for epoch in range(3):
        sizes, means = [], []
        for scores, y, _ in diary.steps[epoch * 6 : (epoch + 1) * 6]:
            if 0 < y.sum() < len(y):
                apart = scores[y == 1][:, None] - scores[y == 0]
                sizes.append(len(y))
                means.append((1 / (1 + np.exp(apart))).mean())
        assert 0 < len(sizes) < 6
        expected.append(np.dot(sizes, means) / sum(sizes))
    np.testing.assert_allclose(diary.epochs, expected, rtol=1e-5)


def test_all_batches_count_where_cross_entropy_stands_beside_the_pairs(fit):
    """It is measured in all of them, and the pairs of some weigh as much more as the others have none."""
    diary, trainer = fit(AUC(cross_entropy=1), SGD(), epochs=1)
    rare, values = trainer.model.problem.direct_weight, []
    for scores, y, _ in diary.steps:
        apart = scores[y == 1][:, None] - scores[y == 0]
        pairs = rare * (1 / (1 + np.exp(apart))).mean() if 0 < y.sum() < len(y) else 0.0
        values.append(pairs + losses(scores, y).mean())
    assert rare > 1.05
    np.testing.assert_allclose(diary.shown, values, rtol=1e-5)
    sizes = [len(y) for _, y, _ in diary.steps]
    np.testing.assert_allclose(diary.epochs, np.average(values, weights=sizes), rtol=1e-5)


def test_rows_count_by_how_many_a_batch_contains(fit):
    """Each epoch has a value, whatever its last batch contains, and what stops by it sees it."""
    patience = EarlyStopping("train_objective", patience=9, check_on_train_epoch_end=True)
    diary, trainer = fit(AveragePrecision(), SOAP(0.5), patience, epochs=4, lr=0.1, pretrain=None)
    seen = np.array(diary.shown, dtype=float)
    for epoch in range(4):
        steps = slice(epoch * 6, (epoch + 1) * 6)
        positives = np.array([y.sum() for _, y, _ in diary.steps[steps]])
        assert 0 in positives
        mean = np.dot(positives[positives > 0], seen[steps][positives > 0]) / positives.sum()
        assert diary.epochs[epoch] == pytest.approx(mean, rel=1e-5)
    assert float(patience.best_score) == pytest.approx(min(diary.epochs))
    assert trainer.callback_metrics["train_objective"] == pytest.approx(diary.epochs[-1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("batch", [1, 3, 5], ids=["first", "middle", "last"])
def test_a_mean_goes_on_bit_for_bit(batch, fit, tmp_path):
    def run(*callbacks, **more):
        limit = [MeanAtMost(LogisticLoss(), 0.3, {"group": 2})]
        sums = []

        class Keep(Callback):
            def on_train_epoch_end(self, trainer, module):
                sums.append({name: float(v) for name, v in trainer.callback_metrics.items() if "train" in name})

        objective = CVaRGroupDRO(ALPHA, num_groups=3)
        fit(objective, SONEX(), Keep(), *callbacks, constraints=limit, penalty=HingePenalty(2.0), epochs=3, **more)
        return sums

    whole = run(jobs.save_at(1, batch, tmp_path / "a.ckpt"))
    again = run(ckpt_path=tmp_path / "a.ckpt")
    assert len(whole) == 3
    assert {"train_objective", "train_penalty"} <= whole[1].keys()
    for a, b in zip(again[-2:], whole[-2:], strict=True):
        assert a == b


def test_an_epoch_that_is_cut_short_has_the_mean_so_far(fit):
    """By ``max_steps``, for what monitors it at the end of an epoch."""
    patience = EarlyStopping("train_objective", patience=9, check_on_train_epoch_end=True)
    diary, trainer = fit(AUC(), SGD(), patience, epochs=-1, max_steps=3, pretrain=None)
    sized = [(len(y), value) for (_, y, _), value in zip(diary.steps, diary.shown, strict=True) if y.any()]
    assert 1 < len(sized) < 4
    found = trainer.callback_metrics["train_objective"] * trainer.model.problem.direct_weight
    assert found == pytest.approx(np.average([v for _, v in sized], weights=[b for b, _ in sized]), rel=1e-5)


def test_a_mean_goes_on_though_a_step_is_computed_in_another_way():
    """As where a checkpoint of compiled steps, which give sums, is continued by steps that give rows; and back."""
    g = torch.Generator().manual_seed(0)
    values, weights, rows = torch.randn(4, 2, generator=g), torch.rand(4, 2, generator=g), torch.ones(2)

    def of_batch(k, summed):
        one = Estimates()
        whole = Summand("objective", values[k], weights=weights[k], rows=rows)
        total, count = whole.summed()
        one.summands = [Summand("objective", total, rows=count) if summed else whole]
        return one

    expected = (weights * values).sum() / 8
    for first in (False, True):
        before, after = Averages(), Averages()
        for k in (0, 1):
            before.add(of_batch(k, summed=first), 2)
        after.load_state_dict(before.state_dict(), torch.device("cpu"))
        for k in (2, 3):
            after.add(of_batch(k, summed=not first), 2)
        torch.testing.assert_close(after.values()["objective"], expected)


def test_means_of_earlier_checkpoints_go_on():
    """They held the sums so far beside the batches that waited to be summed."""
    means, (total, weight) = Averages(), torch.tensor([6.0, 4.0])
    waiting = {"objective/0": [(torch.tensor(2.0), None, None, 3)]}
    means.load_state_dict({"sums": {}, "waiting": waiting, "so_far": {"objective/0": (total, weight)}}, "cpu")
    means.add(Estimates([Summand("objective", torch.tensor(3.0))]), 2)
    assert means.values()["objective"].item() == pytest.approx((6 + 2 * 3) / (4 + 2))


@pytest.mark.parametrize("entry", ["batches", "sums"])
def test_means_that_cannot_be_added_change_nothing(entry):
    means, cube = Averages(), torch.zeros(2, 2, 2)
    means.add(Estimates([Summand("objective", torch.tensor(3.0))]), 2)
    waiting = [([("objective", cube, 1.0, torch.ones(2), torch.ones(2))], 2)]
    forged = {"batches": waiting} if entry == "batches" else {"sums": {"objective/0": (cube, torch.tensor(1.0))}}
    with pytest.raises(RuntimeError):
        means.load_state_dict(forged, torch.device("cpu"))
    assert means.values()["objective"].item() == 3
