"""Group DRO under a Trainer: resume, several processes, the threshold's own step size, mistakes."""

import pytest
import torch
from torch import nn

from fcco_lightning import (
    OOA,
    SMD,
    SONEX,
    AdamType,
    ChiSquareGroupDRO,
    ConfigError,
    CVaRGroupDRO,
    DataError,
    FCCOModule,
    ProximalSGD,
    Schedule,
    TabularDataModule,
    WorstGroupDRO,
)
from fcco_lightning.objectives import GroupMaxForm
from tests import jobs
from tests.components import TABLE, composed
from tests.conftest import make_frame
from tests.launch import launch, values

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
quiet = pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")


def run(job, size):
    return values(launch(jobs.fit_groups, size, job))


def assert_same(found, expected, **tolerance):
    for one in found:
        torch.testing.assert_close(one["weights"], expected["weights"], **tolerance)
        rows, of_expected = (o["rows"]["problem.terms.0.state"][2] for o in (one, expected))
        torch.testing.assert_close(rows, of_expected, equal_nan=True, **tolerance)
        assert one["logged"] == pytest.approx(expected["logged"], rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("algorithm", list(jobs.GROUP_ALGORITHMS))
def test_resume_is_bit_for_bit(algorithm, tmp_path):
    """In the middle of an epoch, with dropout; for ALEXR2 in the middle of an inner loop."""
    path, job = str(tmp_path / "at.ckpt"), {"algorithm": algorithm, "dropout": 0.2}
    with torch.random.fork_rng():
        whole = jobs.fit_groups({**job, "save": (0, 4, path)})
        resumed = jobs.fit_groups({**job, "resume": path, "seed": 9})
    assert_same([resumed], whole, rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", list(jobs.GROUP_ALGORITHMS))
def test_two_processes_are_one(algorithm):
    (one,) = run({"algorithm": algorithm}, 1)
    assert_same(run({"algorithm": algorithm}, 2), one, **CLOSE)


@pytest.mark.parametrize("algorithm", ["SONEX", "ALEXR2", "OOA"])
def test_a_transformer_resumes_bit_for_bit(algorithm, tmp_path):
    """On texts, whose tokenizer is learnt anew; in the middle of an epoch, with dropout."""
    path, job = str(tmp_path / "at.ckpt"), {"algorithm": algorithm, "dropout": 0.2, "texts": True}
    with torch.random.fork_rng():
        whole = jobs.fit_groups({**job, "save": (0, 4, path)})
        resumed = jobs.fit_groups({**job, "resume": path, "seed": 9})
    assert_same([resumed], whole, rtol=0, atol=0)


def test_two_processes_with_a_transformer_are_one():
    (one,) = run({"texts": True}, 1)
    assert_same(run({"texts": True}, 2), one, rtol=1e-4, atol=1e-5)


def make(objective, algorithm, **changes):
    optimizer = changes.pop("optimizer", lambda p: AdamType(p, lr=0.1, weight_decay=0.5))
    return FCCOModule(nn.Linear(5, 1), objective, algorithm=algorithm, optimizer=optimizer, **changes)


@pytest.mark.parametrize(
    ("optimizer", "decay"),
    [(lambda p: AdamType(p, lr=0.1, weight_decay=0.5), "weight_decay"), (lambda p: ProximalSGD(p, 0.1, 0.5), "mu")],
)
@pytest.mark.parametrize("own", [None, 0.003])
def test_the_threshold_has_its_step_size_and_no_decay(optimizer, decay, own):
    module = make(CVaRGroupDRO(0.5), SONEX(), optimizer=optimizer, schedule=Schedule(objective_lr=own))
    network, objective = module.configure_optimizers().param_groups
    assert [p.shape for p in network["params"]] == [(1, 5), (1,)]
    assert objective["params"] == [module.objective.threshold]
    assert (network["lr"], network[decay]) == (0.1, 0.5)
    assert (objective["lr"], objective[decay]) == (own or 0.1, 0.0)


def test_primal_dual_methods_take_the_max_form_and_train_no_threshold():
    for algorithm in (OOA(), SMD()):
        module = make(CVaRGroupDRO(0.5), algorithm)
        assert isinstance(module.objective, GroupMaxForm)
        assert len(module.configure_optimizers().param_groups) == 1
    with pytest.raises(ConfigError, match="ChiSquareGroupDRO is not a maximum over weights"):
        make(ChiSquareGroupDRO(), OOA())


def data(**changes):
    options = {"label": "label", "positive": "yes", "group_by": ["label", "sex"], "test_fraction": 0.2}
    options |= {"groups_per_batch": 2, "samples_per_group": 5}
    return TabularDataModule(make_frame(200, 0), **composed(options | changes, TABLE))


@pytest.mark.parametrize(
    ("objective", "algorithm", "changes", "error", "message"),
    [
        (CVaRGroupDRO(0.2), SONEX(), {}, ConfigError, r"alpha=0\.2 of 4 groups is 0\.8 of a group"),
        (CVaRGroupDRO(0.2), OOA(), {}, ConfigError, r"alpha=0\.2 of 4 groups"),
        (WorstGroupDRO(num_groups=3), SONEX(), {}, ConfigError, "num_groups=3 of WorstGroupDRO, but the data has 4"),
        (CVaRGroupDRO(0.5), SONEX(), {"groups_per_batch": 5}, (ConfigError, DataError), "groups_per_batch"),
        (CVaRGroupDRO(0.5), SONEX(), {"samples_per_group": 80}, DataError, "samples_per_group"),
        (CVaRGroupDRO(0.5), SMD(), {}, DataError, "SMD needs all 4 groups"),
    ],
)
def test_mistakes_are_named(objective, algorithm, changes, error, message, make_trainer):
    module = FCCOModule(nn.Linear(7, 1), objective, algorithm=algorithm)
    given = data(**changes)
    module.network = nn.LazyLinear(1)
    with pytest.raises(error, match=message):
        make_trainer(max_epochs=1).fit(module, given)
