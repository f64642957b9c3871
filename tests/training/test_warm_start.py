"""A fit that starts from the weights and multipliers of another."""

import pytest
import torch
from lightning.pytorch import Trainer

from fcco_lightning import AdaptivePenalty, FCCOModule, MeanAtMost, NuPI, SoftRate, TensorDataModule
from fcco_lightning.data.batches import UniformSampling
from fcco_lightning.errors import CheckpointError
from fcco_lightning.training import WarmStart
from tests.conftest import QUIET

X = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))


def fit(epochs, *, penalty=None, kappa=0.2, width=2, ckpt=None, ckpt_path=None):
    module = FCCOModule(
        torch.nn.Linear(width, 1), constraints=[MeanAtMost(SoftRate(), kappa)], penalty=penalty or AdaptivePenalty()
    )
    trainer = Trainer(max_epochs=epochs, callbacks=[WarmStart(ckpt)], accelerator="cpu", **QUIET)
    columns = {"x": X[:, :width], "y": (X[:, 0] > 0).long()}
    data = TensorDataModule({"train": columns, "test": columns}, batches=UniformSampling(8))
    trainer.fit(module, data, ckpt_path=ckpt_path)
    return module, trainer


def multipliers(module):
    of_constraint = module.problem.all_terms[-1].multipliers
    return of_constraint.state.rows, of_constraint.unit


@pytest.fixture
def first(tmp_path):
    module, trainer = fit(2)
    trainer.save_checkpoint("first.ckpt")
    return module


def test_weights_and_multipliers_are_those_of_the_checkpoint(first):
    module, _ = fit(0, kappa=0.1, ckpt="first.ckpt")
    assert torch.equal(module.network.weight, first.network.weight)
    assert multipliers(module) == multipliers(first)
    assert multipliers(module)[0] != multipliers(fit(0)[0])[0]
    assert not module.problem.all_terms[-1].state.seen.any()  # what was remembered of h is not taken along


def test_another_rule_begins_with_multipliers_of_its_own(first):
    module, _ = fit(0, penalty=NuPI(), ckpt="first.ckpt")
    assert module.multipliers() == {"soft rate": 0.0}


def test_a_run_that_is_continued_keeps_its_weights(first):
    other, trainer = fit(1)
    trainer.save_checkpoint("other.ckpt")
    module, _ = fit(1, ckpt="first.ckpt", ckpt_path="other.ckpt")
    assert torch.equal(module.network.weight, other.network.weight)


def test_another_network_is_refused(first):
    with pytest.raises(CheckpointError, match=r"warm_start.ckpt='first.ckpt' has the weights of another network"):
        fit(0, width=1, ckpt="first.ckpt")
