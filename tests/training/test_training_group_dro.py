"""Group DRO under a Trainer: resume, several processes, the threshold's own step size, mistakes."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from fcco_lightning import (
    OOA,
    SGD,
    SMD,
    SONEX,
    AdamType,
    ChiSquareGroupDRO,
    ConfigError,
    CrossEntropy,
    CVaRGroupDRO,
    FCCOModule,
    GroupSampling,
    KLGroupDRO,
    ProximalSGD,
    Schedule,
    TabularDataModule,
    TensorDataModule,
    WorstGroupDRO,
)
from fcco_lightning.objectives import GroupMaxForm
from tests import jobs
from tests.components import TABLE, composed
from tests.tables import make_frame
from tests.training.conftest import quick
from tests.training.test_ddp import CLOSE, assert_same, run

TABLES = [(algorithm, False) for algorithm in jobs.GROUP_ALGORITHMS]
CHOSEN = [("OOA", False), ("PGSMD", False)]  # the contract of algorithms holds for all of them without a Trainer


RUNS = [*TABLES, ("SONEX", True), ("ALEXR2", True), ("OOA", True)]
STOPS = [(*each, epoch) for epoch in (0, 1) for each in RUNS]  # at the start, and behind it


@pytest.mark.parametrize(
    ("algorithm", "texts", "epoch"), quick(STOPS, ("OOA", False, 0), ("PGSMD", False, 1), ("SONEX", True, 1))
)
def test_resume_is_bit_for_bit(algorithm, texts, epoch, tmp_path):
    """In the middle of an epoch, for ALEXR2 of an inner loop; with dropout; of texts the tokenizer is learnt anew."""
    path, job = str(tmp_path / "at.ckpt"), {"algorithm": algorithm, "dropout": 0.2, "texts": texts}
    whole = jobs.fit_groups({**job, "save": (epoch, 4, path)})
    resumed = jobs.fit_groups({**job, "resume": path, "seed": 9})
    assert_same([resumed], [whole])


@pytest.mark.parametrize(("algorithm", "texts"), quick([*TABLES, ("SONEX", True)], *CHOSEN))
def test_two_processes_are_one(algorithm, texts):
    job, tolerance = {"algorithm": algorithm, "texts": texts}, {"rtol": 1e-4, "atol": 1e-5} if texts else CLOSE
    assert_same(run(job, 2, jobs.fit_groups), run(job, 1, jobs.fit_groups), **tolerance)


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


@pytest.mark.parametrize("objective", [lambda: CVaRGroupDRO(0.5), WorstGroupDRO], ids=["CVaR", "worst group"])
def test_the_start_of_worst_groups_is_the_mean_of_their_risks(objective, make_trainer):
    """Behind half of the epochs the weights are those of plain training on as many samples of every group."""
    x = torch.linspace(-1, 1, 200).reshape(40, 5).sin()
    columns = {"x": x, "y": (x.sum(1) > 0).long(), "group": torch.arange(40) % 4}
    at_epochs = {}

    class Look(Callback):
        def on_train_batch_start(self, trainer, pl_module, *_):
            at_epochs.setdefault(trainer.current_epoch, pl_module.network.weight.detach().clone())

    def fitted(objective, algorithm, epochs, callbacks=()):
        torch.manual_seed(0)
        module = FCCOModule(nn.Linear(5, 1), objective, algorithm=algorithm)
        data = TensorDataModule({"train": columns, "test": columns}, batches=GroupSampling(4, 5), num_groups=4)
        make_trainer(max_epochs=epochs, callbacks=list(callbacks)).fit(module, data)
        return module.network.weight

    expected = fitted(CrossEntropy(), SGD(), 2)
    whole = fitted(objective(), SONEX(), 4, [Look()])
    torch.testing.assert_close(at_epochs[2], expected.detach())
    assert not torch.equal(whole, at_epochs[2])


def test_who_has_such_a_start():
    """Where weights of groups jump with the risks, and no number says that the papers' threshold is trained."""

    def start(objective, algorithm=None, **given):
        return make(objective, algorithm or SONEX(), **given).phases.pretrain

    for objective in (CVaRGroupDRO(0.5), WorstGroupDRO()):
        assert start(objective).epochs == 0.5
        assert start(objective, pretrain=None) is start(objective, OOA()) is None
    for objective in (
        CVaRGroupDRO(0.5, threshold=0.0),
        WorstGroupDRO(threshold=1.0),
        KLGroupDRO(),
        ChiSquareGroupDRO(),
    ):
        assert start(objective) is None


def test_primal_dual_methods_take_the_max_form_and_train_no_threshold():
    for algorithm in (OOA(), SMD()):
        module = make(CVaRGroupDRO(0.5), algorithm)
        assert isinstance(module.objective, GroupMaxForm)
        assert len(module.configure_optimizers().param_groups) == 1


def test_a_share_of_less_than_a_group_of_the_data_is_named(make_trainer):
    """Before anything runs; the parts' own tests have the other messages."""
    options = {"label": "label", "positive": "yes", "group_by": ["label", "sex"], "test_fraction": 0.2}
    options |= {"groups_per_batch": 2, "samples_per_group": 5}
    data = TabularDataModule(make_frame(200, 0), **composed(options, TABLE))
    module = FCCOModule(nn.LazyLinear(1), CVaRGroupDRO(0.2), algorithm=SONEX())
    with pytest.raises(ConfigError, match=r"alpha=0\.2 of 4 groups or samples is 0\.8 of one"):
        make_trainer(max_epochs=1).fit(module, data)
