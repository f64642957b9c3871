"""The choice of the final weights of a run under constraints."""

import math
import re
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from scipy.stats import binom

from fcco_lightning import (
    AdaptivePenalty,
    AugmentedLagrangian,
    CrossEntropy,
    DemographicParity,
    FCCOModule,
    MeanAtMost,
    Quantity,
    SoftRate,
    TensorDataModule,
)
from fcco_lightning.data.batches import UniformSampling
from fcco_lightning.errors import CheckpointError, ConfigError, DataError
from fcco_lightning.reports import BestFeasible, Report
from fcco_lightning.reports.feasible import _planned_validations
from fcco_lightning.reports.verdict import chosen_line


def columns(seed, rows=32):
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed))
    return {"x": x, "y": (x[:, 0] + 0.3 * x[:, 1] > 0).long()}


def data(*, val=True):
    splits = {"train": columns(0), "test": columns(1)} | ({"val": columns(2)} if val else {})
    return TensorDataModule(splits, batches=UniformSampling(batch_size=8))


class Scripted(FCCOModule):
    """Whose validations say what the test wants; the weights are those of training."""

    script = ()

    def on_validation_epoch_end(self):
        super().on_validation_epoch_end()
        if "val" in self.last_summaries:
            worst, auc, *vacuous = self.script[self.current_epoch]
            said = {"worst_violation": worst, "auc": auc, "vacuous": float(bool(vacuous))}
            self.last_summaries["val"] |= said


def train(module, data, *callbacks, epochs, ckpt=None, **options):
    """The trainer that has fitted a module, without anything on the screen."""
    trainer = Trainer(
        max_epochs=epochs,
        callbacks=[*callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        **options,
    )
    trainer.fit(module, data, ckpt_path=ckpt)
    return trainer


def fit(path, script, epochs=None, ckpt=None, kappa=0.4, **asked):
    seed_everything(0)
    module = Scripted(torch.nn.Linear(2, 1), constraints=[MeanAtMost(SoftRate(), kappa)])
    module.script, seen = script, []
    choice, report = BestFeasible(**({"enabled": True} | asked)), Report(pictures=False, table=False, folder=str(path))

    class Watch(BestFeasible):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                seen.append(pl_module.network.weight.detach().clone())

    epochs = epochs or len(script)
    trainer = train(module, data(), choice, Watch(), report, epochs=epochs, ckpt=ckpt, default_root_dir=path)
    return module, choice, report, seen, trainer


NAN = float("nan")


@pytest.mark.parametrize(
    ("script", "best"),
    [
        ([(0.1, 0.9), (-0.1, 0.7), (-0.2, 0.8), (0.01, 0.95)], 2),  # feasible, then by the figure
        ([(0.3, 0.9), (0.1, 0.5), (NAN, 0.99)], 1),  # the least violated
        ([(-0.1, NAN), (0.0, 0.6)], 1),
        ([(-0.1, 0.9, "vacuous"), (0.3, 0.5), (-0.2, 0.8, "vacuous")], 1),  # to decide all alike is no way to hold
        ([(-0.1, 0.9, "vacuous"), (-0.05, 0.5), (0.3, 0.8)], 1),
        ([(-0.2, 0.6, "vacuous"), (-0.1, 0.9, "vacuous"), (-0.3, 0.8, "vacuous")], 1),
    ],
)
def test_the_run_ends_with_the_best_feasible_weights(tmp_path, script, best, caplog):
    with caplog.at_level("INFO", "lightning"):
        module, choice, report, seen, _ = fit(tmp_path, script)
    assert choice.chosen["epoch"] == best
    assert torch.equal(module.network.weight, seen[best])
    assert report.report["selected"] == choice.chosen
    empty = len(script[best]) > 2
    assert (choice.chosen["feasible"], choice.chosen["vacuous"]) == (script[best][0] <= 0 and not empty, empty)
    line = "is feasible on" if choice.chosen["feasible"] else "No epoch was feasible"
    line = "In every epoch the constraints were vacuous on the validation split" if empty else line
    assert line in report.report["verdict"]
    for split in ("train", "val", "test"):
        (one,) = report.report[split]["intervals"].values()
        assert one["low"] < one["h"] < one["high"]
        assert one["h"] == pytest.approx(report.report[split]["constraints"]["soft rate"])
    path = next(tmp_path.rglob("feasible.ckpt"))
    assert f"Checkpoint of the reported weights, for predictions: {path} " in caplog.text
    saved = torch.load(path, weights_only=True)
    assert torch.equal(saved["state_dict"]["network.weight"], seen[best])


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_another_run_with_the_same_callbacks_begins_anew(tmp_path):
    choice, report = BestFeasible(enabled=True), Report(pictures=False, table=False, folder=str(tmp_path))
    for script in ([(-0.1, 0.9), (-0.1, 0.8)], [(-0.1, 0.5), (-0.1, 0.6)]):
        module = Scripted(torch.nn.Linear(2, 1), constraints=[MeanAtMost(SoftRate(), 0.4)])
        module.script = script
        train(module, data(), choice, report, epochs=2, default_root_dir=tmp_path)
        assert choice.chosen["auc"] == max(auc for _, auc in script)
        assert [one["auc"] for one in report.history if one["split"] == "val"] == [auc for _, auc in script]


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_resumed_run_remembers_the_best_weights_before(tmp_path):
    script = [(-0.1, 0.9), (-0.1, 0.5), (-0.1, 0.7)]
    *_, seen, trainer = fit(tmp_path, script, epochs=2)
    path = next(tmp_path.rglob("epoch=1*.ckpt"))
    module, choice, *_ = fit(tmp_path, script, ckpt=str(path))
    assert choice.chosen["epoch"] == 0
    assert torch.equal(module.network.weight, seen[0])
    assert trainer.current_epoch == 2


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_checkpoint_that_does_not_say_whether_constraints_were_vacuous_goes_on(tmp_path):
    script = [(-0.1, 0.9), (-0.1, 0.5), (-0.1, 0.95, "vacuous")]
    *_, seen, _ = fit(tmp_path, script, epochs=2)
    path = next(tmp_path.rglob("epoch=1*.ckpt"))
    stored = torch.load(path, weights_only=True)
    kept = next(state for name, state in stored["callbacks"].items() if "BestFeasible" in name and state)
    del kept["chosen"]["vacuous"]
    torch.save(stored, path)
    module, choice, *_ = fit(tmp_path, script, ckpt=str(path))
    assert choice.chosen["epoch"] == 0
    assert torch.equal(module.network.weight, seen[0])


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.parametrize("changed", [{"kappa": 0.3}, {"figure": "worst_violation"}])
def test_weights_that_were_chosen_for_something_else_are_left_out(tmp_path, changed):
    script = [(-0.1, 0.9), (-0.1, 0.5), (0.1, 0.7)]
    fit(tmp_path, script, epochs=2)
    with pytest.warns(UserWarning, match="chosen for other constraints, kappas or figures"):
        _, choice, report, *_ = fit(tmp_path, script, ckpt=str(next(tmp_path.rglob("epoch=1*.ckpt"))), **changed)
    assert choice.chosen["epoch"] == 2
    known = [one["epoch"] for one in report.history if one["split"] == "val" and "worst_violation" in one]
    assert known == ([2] if "kappa" in changed else [0, 1, 2])


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_continued_run_without_the_choice_ends_with_its_own_weights(tmp_path):
    script = [(-0.1, 0.9), (-0.1, 0.5), (-0.1, 0.7)]
    fit(tmp_path, script, epochs=2)
    path = str(next(tmp_path.rglob("epoch=1*.ckpt")))
    module, choice, report, seen, _ = fit(tmp_path, script, ckpt=path, enabled=False)
    assert choice.chosen == {}
    assert torch.equal(module.network.weight, seen[-1])
    assert "selected" not in report.report
    with pytest.raises(CheckpointError, match="can be evaluated, but not resumed"):
        fit(tmp_path, script, epochs=3, ckpt=str(next(tmp_path.rglob("feasible.ckpt"))))


def test_without_a_validation_split_nothing_is_chosen():
    choice = BestFeasible(enabled=True)
    module = FCCOModule(torch.nn.Linear(2, 1), constraints=[MeanAtMost(SoftRate(), 0.4)])
    with pytest.warns(
        UserWarning,
        match=r"feasible\.enabled has no effect: it chooses the weights that are best on a validation split",
    ):
        train(module, data(val=False), choice, epochs=1, enable_checkpointing=False)
    assert choice.chosen == choice.state_dict() == {}


def test_a_margin_without_a_choice_is_said_to_do_nothing():
    module = FCCOModule(torch.nn.Linear(2, 1), constraints=[MeanAtMost(SoftRate(), 0.4)])
    with pytest.warns(UserWarning, match=r"feasible\.margin='auto' has no effect, as feasible\.enabled is false"):
        train(module, data(val=True), BestFeasible(margin="auto"), epochs=1, enable_checkpointing=False)


GAP = 1.2  # between the first and the last group in the first feature


def some_groups(seed, size, groups=2):
    """The first feature tells the label and the group, so that accuracy and equal rates are at odds."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 2, generator=generator)
    group = groups - 1 - (torch.rand(size, generator=generator) * groups).long()
    x[:, 0] += GAP * group / (groups - 1)
    y = (x[:, 0] + 0.7 * x[:, 1] + 0.5 * torch.randn(size, generator=generator) > GAP / 2).long()
    return {"x": x, "y": y, "group": group}


def confident(seed, kappa=0.2, epochs=10, *, groups=2, margin="auto", val=True):
    seed_everything(seed)
    splits = {"train": some_groups(3 * seed, 400, groups), "test": some_groups(0, 40, groups)}
    splits |= {"val": some_groups(3 * seed + 1, 400, groups)} if val else {}
    data = TensorDataModule(splits, batches=UniformSampling(batch_size=50))
    names, against = [str(k) for k in range(groups)], "pairs" if groups == 2 else "rest"
    fair = DemographicParity(kappa, SoftRate(temperature=0.3), against=against, groups=names)
    module = FCCOModule(
        torch.nn.Linear(2, 1),
        CrossEntropy(),
        [fair],
        AugmentedLagrangian(5.0, 0.1),
        optimizer=lambda params: torch.optim.Adam(params, lr=0.05),
    )
    choice = BestFeasible(enabled=True, figure="auc", margin=margin)
    train(module, data, choice, epochs=epochs, enable_checkpointing=False)
    return module, fair, choice


@cache
def population(groups):
    """So many samples that h on them is that of the population."""
    return some_groups(10**6, 200_000, groups)


def true_value(module, fair):
    """The largest h of the population."""
    columns = population(max(2, fair.num_rows))
    with torch.no_grad():
        rows = fair.measure(module.network(columns["x"]).double(), columns)[1]
        return float(fair.violation(rows.values).max())


def test_a_margin_makes_the_constraint_hold_on_unseen_data():
    module, fair, choice = confident(1)
    assert fair.tolerance == 0.2
    assert fair.kappa < 0.19
    assert choice.chosen["worst_violation"] < choice.chosen["bound"] <= 0
    assert true_value(module, fair) <= 0
    assert "95% confidence that the constraint holds on unseen data" in chosen_line(choice.chosen)
    assert choice.state_dict()["margins"] == [pytest.approx(0.2 - fair.kappa)]


def test_a_margin_follows_decisions_where_these_are_enforced():
    """A soft rate of temperature 100 holds for any weights, and the decisions do not."""
    seed_everything(0)
    splits = {name: some_groups(k, 400, 2) for k, name in enumerate(("train", "val", "test"))}
    data = TensorDataModule(splits, batches=UniformSampling(batch_size=50))
    fair = DemographicParity(0.02, SoftRate(temperature=100.0), groups=["0", "1"])
    module = FCCOModule(
        torch.nn.Linear(2, 1),
        CrossEntropy(),
        [fair],
        AdaptivePenalty(1e-6, decisions=True),
        optimizer=lambda params: torch.optim.Adam(params, lr=0.05),
    )
    choice = BestFeasible(enabled=True, figure="auc", margin="auto")
    with pytest.warns(UserWarning, match="can hardly be confirmed"):
        train(module, data, choice, epochs=3, enable_checkpointing=False)
    assert choice.chosen["bound"] > choice.chosen["worst_violation"] > 0.05
    assert not choice.chosen["feasible"]
    assert choice.state_dict()["margins"][0] > 0.05  # the end of the decisions' interval is far from their h


@pytest.mark.slow
def test_with_a_margin_few_of_many_resampled_splits_end_violated():
    """Of five constraints, by the runs on splits of their own; without a margin many more are violated.

    The weights are chosen among those of several epochs, by the split that also says that they are feasible.
    """
    shares = {}
    for margin, runs in (("auto", 200), (None, 30)):
        called, violated = 0, 0
        for seed in range(runs):
            module, fair, choice = confident(seed, epochs=6, groups=5, margin=margin)
            assert fair.num_rows == 5
            called += choice.chosen["feasible"]
            violated += choice.chosen["feasible"] and true_value(module, fair) > 0
        assert called >= runs / 4
        shares[margin] = violated / runs
    assert shares["auto"] <= 0.05
    assert shares[None] > 0.1


class Boundary(Quantity):
    """Its mean over the population is what the constraint allows, and a little more."""

    def __call__(self, outputs, batch):
        return outputs.flatten() + 1e-6


def called_feasible(seed, epochs, alike, monkeypatch):
    """Whether a run that stays at the boundary is called feasible; errors of its validations as alike as that."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(epochs, 60, generator=generator, dtype=torch.float64)
    for e in range(1, epochs):
        noise[e] = alike * noise[e - 1] + math.sqrt(1 - alike**2) * noise[e]
    module = FCCOModule(torch.nn.Linear(1, 1), constraints=[MeanAtMost(Boundary(), 0.0)])
    choice = BestFeasible(enabled=True, figure="auc", margin="auto")
    trainer = SimpleNamespace(
        sanity_checking=False, state=SimpleNamespace(fn="fit"), max_epochs=epochs, check_val_every_n_epoch=1,
        num_training_batches=4, val_check_batch=4, datamodule=SimpleNamespace(evaluation_loaders=lambda: {"val": ()}),
    )  # fmt: skip
    for trainer.current_epoch in range(epochs):
        h = float(noise[trainer.current_epoch].mean())
        module.last_summaries = {"val": {"worst_violation": h, "auc": 0.5, "h/boundary": h}}
        monkeypatch.setattr(module, "evaluate", lambda _: (noise[trainer.current_epoch], {"index": torch.arange(60)}))
        choice.on_validation_end(trainer, module)
    return choice.chosen["feasible"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alike", "runs"), [(0.0, 20), pytest.param(0.0, 200, marks=pytest.mark.slow),
                        pytest.param(0.9, 200, marks=pytest.mark.slow)],
)  # fmt: skip
def test_the_choice_among_validations_is_part_of_the_confidence(alike, runs, monkeypatch):
    """Of runs at the boundary, with 20 validations each; not corrected it would be 64% of those that are not alike."""
    called = sum(called_feasible(seed, 20, alike, monkeypatch) for seed in range(runs))
    assert called <= binom.ppf(0.999, runs, 0.05)


@pytest.mark.parametrize(
    ("epochs", "every", "check", "expected"),
    [(20, 1, 10, 20), (20, 4, 10, 5), (3, 4, 10, 1), (2, 1, 5, 4), (5, None, 25, 2), (4, 1, math.inf, 4)],
)
def test_planned_validations(epochs, every, check, expected):
    batches = check if check == math.inf else 10  # of unknown length
    trainer = SimpleNamespace(
        max_epochs=epochs, check_val_every_n_epoch=every, num_training_batches=batches, val_check_batch=check
    )
    assert _planned_validations(trainer) == expected


def test_a_margin_needs_a_planned_length():
    with pytest.raises(ConfigError, match=r"trainer\.max_epochs=-1 does not determine"):
        confident(1, epochs=-1)


def test_a_kappa_that_no_validation_split_of_this_size_can_confirm_is_said():
    with pytest.warns(
        UserWarning, match=r"kappa=0.01 of selection rate.* can hardly be confirmed.* a kappa of about 0\.\d"
    ):
        _, fair, choice = confident(1, kappa=0.01, epochs=1)
    assert fair.kappa == 0  # and no less
    assert re.search(r"There is no epoch for which .* A kappa larger by 0\.\d", chosen_line(choice.chosen))


def test_a_margin_needs_a_validation_split():
    with pytest.raises(ConfigError, match=r"feasible\.margin='auto' tests the constraints on a validation split"):
        confident(1, val=False)


def clustered(seed, copies):
    """Splits whose samples are so many copies of others each, and their number."""

    def split(seed):
        few = some_groups(seed, 80)
        eye = torch.arange(80) % 40 + 40 * few["group"]
        return {name: column.repeat_interleave(copies, 0) for name, column in {**few, "eye": eye}.items()}

    return {"train": split(seed), "val": split(seed + 1), "test": split(seed + 2)}


def run_clustered(clusters, path, margin="auto"):
    seed_everything(0)
    data = TensorDataModule(clustered(5, copies=5), batches=UniformSampling(batch_size=50))
    fair = DemographicParity(0.2, SoftRate(temperature=0.3), groups=["0", "1"])
    module = FCCOModule(torch.nn.Linear(2, 1), CrossEntropy(), [fair], AugmentedLagrangian(5.0, 0.1))
    choice = BestFeasible(enabled=margin is not None, figure="auc", margin=margin, clusters=clusters)
    report = Report(pictures=False, table=False, folder=str(path))
    train(module, data, choice, report, epochs=2, enable_checkpointing=False)
    return report.report, choice.chosen


def test_margins_and_the_report_know_of_clusters(tmp_path):
    """Five copies of every sample look like five samples without."""
    plain, chosen = run_clustered(None, tmp_path)
    aware, of_clusters = run_clustered("eye", tmp_path)
    assert of_clusters["bound"] > chosen["bound"] + 0.02
    (before,), (after,) = (r["test"]["intervals"].values() for r in (plain, aware))
    assert after["high"] - after["low"] > 1.5 * (before["high"] - before["low"])
    assert after["noise"] > 1.5 * before["noise"]
    assert aware["clusters"] == "eye"
    assert "clusters" not in plain
    reported, _ = run_clustered("eye", tmp_path, margin=None)  # no weights are chosen: of the report alone
    (alone,) = reported["test"]["intervals"].values()
    assert alone["noise"] > 1.5 * before["noise"]


def test_clusters_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match=r"feasible\.clusters='patient' is not a column of the data, .*'eye', 'group'"):
        run_clustered("patient", tmp_path)
    with pytest.raises(DataError, match=r"feasible\.clusters='patient' is not a column of the evaluation batches"):
        BestFeasible(clusters="patient").clusters_in({"y": torch.zeros(3)})


def test_mode_is_one_of_two():
    with pytest.raises(ConfigError, match="mode must be one of 'max', 'min'"):
        BestFeasible(mode="best")
