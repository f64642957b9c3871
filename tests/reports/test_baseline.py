"""The unconstrained model: trained as without the callback, on the same batches, without any effect on the run."""

import copy
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LambdaCallback

from fcco_lightning import (
    AUC,
    SGD,
    AveragePrecision,
    Clipping,
    ConfigError,
    CVaRGroupDRO,
    FCCOModule,
    HeavyBall,
    HingePenalty,
    Pretraining,
    ROCFairness,
    Schedule,
    TabularMLP,
)
from fcco_lightning.ambiguity import CappedSimplex
from fcco_lightning.cli import run
from fcco_lightning.evaluation import summarise
from fcco_lightning.outer import WorstCase
from fcco_lightning.reports import Baseline, Report
from fcco_lightning.reports.baseline import objective_on_batch
from tests import jobs
from tests.conftest import QUIET
from tests.contracts.registry_objectives import CASES
from tests.contracts.sampled import Bench, N
from tests.launch import launch, values
from tests.tables import make_data
from tests.training.conftest import quick

CONFIG = Path(__file__).parents[2] / "configs/roc_fairness/synthetic_alexr2.yaml"


class Watch(Callback):
    """Keeps the first network, all batches, after which of them the run was updated, and the weight of g_0."""

    def __init__(self):
        self.start, self.batches, self.updated, self.direct_weight = None, [], [], None

    def on_train_start(self, trainer, pl_module):
        self.start, self.direct_weight = copy.deepcopy(pl_module.network), pl_module.problem.direct_weight

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches.append(batch)
        self.updated.append(trainer.global_step)


def fit(job, *callbacks):
    job = {"rows": 203, "epochs": 3, **job}
    return jobs.fit({**job, "callbacks": [*callbacks, *job.get("callbacks", ())]})


def draws(module, data):
    """A network that draws random numbers in every forward pass."""
    module.network.register_forward_pre_hook(
        lambda network, x: (x[0] + 0.1 * torch.randn_like(x[0]),) if network.training else None
    )


def on_one_batch(case):
    """Whether the baseline takes it."""
    return not case.coupled and case.make().sample_parameters is None


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if on_one_batch(case)])
def test_a_batch_of_the_whole_data_gives_the_gradient_of_the_formula(name):
    bench = Bench(CASES[name])
    bench.engine.measure(bench.engine.evaluate(bench.batch(range(N))))
    value = objective_on_batch(bench.objective, bench.network, bench.batch(range(N)))
    (gradient,) = torch.autograd.grad(value, [bench.network.table])
    torch.testing.assert_close(gradient.flatten(), bench.brute()[1][: gradient.numel()], rtol=1e-9, atol=1e-9)


def test_rows_count_once_however_many_groups_there_are():
    """Groups far more than the samples of a batch are measured sample by sample, so that a row comes several times."""
    batch = {"x": torch.eye(6), "y": torch.tensor([0, 1, 1, 0, 1, 0]), "group": torch.tensor([2, 0, 2, 1, 2, 0])}
    gradients = []
    for number in (3, 100):
        network, objective = torch.nn.Linear(6, 1), CVaRGroupDRO(0.5, num_groups=number, threshold=0.7)
        torch.nn.init.ones_(network.weight)
        torch.nn.init.zeros_(network.bias)
        weights = [network.weight, objective.threshold]
        gradients.append(torch.autograd.grad(objective_on_batch(objective, network, batch), weights))
    torch.testing.assert_close(*gradients)
    assert 0 < abs(float(gradients[0][1])) < 1  # some groups lie above the threshold, not all


# ------------------------------------------------------------------------------------------- the run does not notice it


@pytest.mark.parametrize("algorithm", quick(["SONEX", "ALEXR2", "SOXBoost"], "SONEX"))
def test_the_run_is_bitwise_the_same(algorithm):
    job = {"algorithm": algorithm, "objective": "rank", "batch_norm": True, "before": draws}
    job = {**job, "objective": "auc"} if algorithm == "ALEXR2" else job
    without = fit(job)
    random = torch.get_rng_state(), np.random.get_state()[1].tolist()
    baseline = Baseline(enabled=True)
    beside = fit(job, baseline)
    jobs.assert_same_run(without, beside)
    assert torch.equal(random[0], torch.get_rng_state())
    assert random[1] == np.random.get_state()[1].tolist()
    assert any(not torch.equal(w, beside["weights"][k]) for k, w in baseline.network.state_dict().items())


# --------------------------------------------------------------------------------------------------- what it is trained


@pytest.mark.parametrize("algorithm", ["SONEX", "ALEXR2"])
def test_trained_as_by_hand(algorithm):
    """With ALEXR2 one update is made for K = 4 batches, and for the 2 * 4 of an epoch that it has.

    Pairs weigh a little more than their mean, since some batches could lack a class.
    """
    watch, baseline = Watch(), Baseline(enabled=True)
    fit({"algorithm": algorithm, "module": {"pretrain": None}}, baseline, watch)
    network, loss = watch.start.train(), AUC()
    optimizer = HeavyBall(network.parameters(), lr=0.05, beta=0.5)
    count, last = 0, 0
    for batch, updates in zip(watch.batches, watch.updated, strict=True):
        (watch.direct_weight * loss.measure(network(batch["x"]), batch)[0]).backward()
        count += 1
        if updates > last:
            for param in network.parameters():
                param.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            count, last = 0, updates
    assert last == {"SONEX": 24, "ALEXR2": 6}[algorithm]
    torch.testing.assert_close(dict(baseline.network.state_dict()), dict(network.state_dict()), rtol=1e-5, atol=1e-7)


EASED = {"schedule": Schedule(decay_spread=1e6), "optimizer": partial(torch.optim.AdamW, lr=0.01, weight_decay=9.0)}


@pytest.mark.parametrize("module", [{}, {"clipping": Clipping(0.02)}, EASED], ids=["", "clipped", "eased"])
def test_the_same_as_a_run_that_penalises_nothing(module):
    """Compositional, with a schedule and BatchNorm: as SGD, the package's own baseline, on the same batches."""
    schedule = Schedule(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7), "step")
    job = {"objective": "rank", "batch_norm": True, "module": {"schedule": schedule, **module}}
    baseline = Baseline(enabled=True)
    fit(job, baseline)
    alone = fit({**job, "algorithm": "SGD"})
    torch.testing.assert_close(dict(baseline.network.state_dict()), dict(alone["weights"]), rtol=1e-4, atol=1e-6)


def test_a_resumed_run_continues_it(tmp_path):
    """Within an inner loop, and at an epoch's end."""
    job, whole = {"algorithm": "ALEXR2"}, Baseline(enabled=True)
    fit(job, whole, *(jobs.save_at(1, batch, tmp_path / f"{batch}.ckpt") for batch in (2, 7)))
    for batch in (2, 7):
        resumed = Baseline(enabled=True)
        fit({**job, "resume": tmp_path / f"{batch}.ckpt", "seed": 3}, resumed)
        torch.testing.assert_close(whole.network.state_dict(), resumed.network.state_dict(), rtol=0, atol=0)


def test_a_checkpoint_without_it_is_said(tmp_path):
    fit({"epochs": 1, "save": (0, 2, tmp_path / "without.ckpt")})
    late = Baseline(enabled=True)
    with pytest.warns(UserWarning, match="written without the unconstrained model"):
        fit({"epochs": 1, "resume": tmp_path / "without.ckpt"}, late)
    assert late.network is None


def weights_of_two(job):  # in every process
    baseline = Baseline(enabled=True)
    fit(job, baseline)
    return baseline.network.state_dict()


def test_two_processes():
    first, second = values(launch(weights_of_two, 2, {"epochs": 1}))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------------ where it is not


def test_no_constraint_that_is_penalised():
    baseline = Baseline(enabled=True)

    def unconstrained(module, data):
        module.constraints.clear()
        module.algorithm = SGD()

    jobs.fit({"before": unconstrained, "epochs": 1, "callbacks": [baseline]})
    assert baseline.network is None
    with pytest.raises(ConfigError, match="there is no unconstrained model"):
        baseline.split(None, [])


def test_an_objective_of_all_rows_together_is_refused():
    coupled = WorstCase(CappedSimplex(0.5))
    couple = LambdaCallback(on_train_start=lambda _, module: setattr(module.objective, "outer", coupled))
    with pytest.raises(ConfigError, match=r"cannot be computed on one batch.*--baseline\.enabled"):
        fit({"objective": "rank"}, couple, Baseline(enabled=True))


# ------------------------------------------------------------------------------------------------------------ reported


SMALL = [
    "--data.num_train=400", "--data.num_test=400", "--data.batches.batch_size=50", "--trainer.max_epochs=2",
    "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--report.pictures=false",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_the_embedded_default_reports_it(capsys, monkeypatch):
    found = []
    monkeypatch.setattr(Report, "on_fit_end", _kept(Report.on_fit_end, found))
    assert run(["fit", "--config", str(CONFIG), *SMALL, "--report.folder=a"]) == 0
    text = capsys.readouterr().out
    report = json.loads(Path("a/report.json").read_text())
    (expected,) = found
    for split, summary in expected.items():
        assert report["unconstrained"][split]["auc"] == pytest.approx(summary["auc"], rel=1e-6)
        assert report["unconstrained"][split]["worst_violation"] == pytest.approx(summary["worst_violation"], rel=1e-6)
        assert report["unconstrained"][split]["auc"] != report[split]["auc"]
    test, other = report["test"], report["unconstrained"]["test"]
    figures = f"test AUC {test['auc']:.3f} against {other['auc']:.3f} unconstrained, hard ROC gap {test['roc_gap']:.3f}"
    assert report["verdict"] in text
    assert figures in report["verdict"]
    (line,) = [line for line in text.splitlines() if line.startswith("│ AUC")]
    shown = [float(cell) for cell in line.strip("│").split("│")[1:]]
    columns = [report["train"], report["unconstrained"]["train"], test, other]
    assert shown == pytest.approx([c["auc"] for c in columns], abs=6e-5)
    assert run(["fit", "--config", str(CONFIG), *SMALL, "--report.folder=b", "--baseline.enabled=false"]) == 0
    without = json.loads(Path("b/report.json").read_text())
    assert "unconstrained" not in without
    assert {split: without[split] for split in expected} == {split: report[split] for split in expected}


def _kept(on_fit_end, found):
    """The copy's figures, computed apart from the report."""

    def both(self, trainer, pl_module):
        (baseline,) = [c for c in trainer.callbacks if isinstance(c, Baseline)]
        if baseline.network is not None:
            figures, network = {}, baseline.network.eval()
            for split, table in trainer.datamodule.tables.items():
                columns = {name: table.columns[name] for name in ("y", "group")}
                with torch.no_grad():
                    outputs = network(table.columns["x"])
                figures[split], _ = summarise(pl_module.evaluation, pl_module.constraints, outputs, columns)
            found.append(figures)
        on_fit_end(self, trainer, pl_module)

    return both


@pytest.mark.slow
def test_the_copy_is_pretrained_along_where_that_is_seamless(tmp_path):
    """Where constraints hold by far it is the run itself while both are trained on cross-entropy, and then goes on."""
    torch.manual_seed(0)
    module = FCCOModule(
        TabularMLP([8]),
        AveragePrecision(),
        [ROCFairness(kappa=0.99)],
        HingePenalty(4.0),
        optimizer=lambda p: HeavyBall(p, lr=0.05),
        pretrain=Pretraining(0.5, seamless=True),
    )
    baseline, apart = Baseline(enabled=True), []

    def look(trainer, module):
        pairs = zip(module.network.parameters(), baseline.network.parameters(), strict=True)
        apart.append(max(float((own - copied).detach().abs().max()) for own, copied in pairs))

    callbacks = [baseline, LambdaCallback(on_train_epoch_end=look)]
    Trainer(max_epochs=4, default_root_dir=tmp_path, callbacks=callbacks, accelerator="cpu", **QUIET).fit(
        module, make_data()
    )
    assert max(apart[:2]) < 1e-5
    assert 0 < apart[3] < 0.1
