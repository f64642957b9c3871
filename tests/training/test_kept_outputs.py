"""Runs that keep the outputs on a random part of a large split only."""

import math

import pytest
import torch

from fcco_lightning import (
    AUC,
    ConfigError,
    Execution,
    FCCOModule,
    MeanAtMost,
    NonFiniteError,
    RetrievalEvaluation,
    SoftRate,
    TabularMLP,
)
from fcco_lightning.errors import PeerError
from fcco_lightning.evaluation import Collector, constraint_values
from tests.state import pool as pools
from tests.tables import make_data, make_frame

pool = pools.pool


def test_a_run_counts_what_it_can_and_estimates_the_rest(make_trainer, caplog):
    def run(kept):
        torch.manual_seed(0)
        module = FCCOModule(
            TabularMLP([8]),
            AUC(),
            constraints=[MeanAtMost(SoftRate(), 0.4)],
            execution=Execution(kept_outputs=kept),
            evaluation=None,
        )
        trainer = make_trainer(max_epochs=1)
        data = make_data(test=make_frame(400, 1))
        trainer.fit(module, data)
        return module, data, trainer.test(module, data, verbose=False)[0]

    whole, _, everything = run(None)
    with caplog.at_level("INFO"):
        module, data, found = run(100)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), module.parameters(), strict=True))
    assert found["test_auc"] == pytest.approx(everything["test_auc"], abs=found["test_auc_error"] + 1e-6)
    assert found["test_auc_error"] < 1e-3
    loader = data.evaluation_loaders()["test"]
    outputs, columns = module.evaluate(loader)
    assert (len(outputs), len(module.split_of(loader, whole=True).outputs)) == (100, 400)
    (h,) = [v for n, v in constraint_values(module.constraints, outputs, columns).items() if n.startswith("h/")]
    assert found["test_worst_violation"] == pytest.approx(h, abs=1e-6)
    assert h != everything["test_worst_violation"]
    (line,) = [record.message for record in caplog.records if record.message.startswith("kept_outputs=100")]
    assert "but auc, roc_gap, score_min, score_max, which are counted over all" in line


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="the figures of RetrievalEvaluation are about all of them together"):
        FCCOModule(torch.nn.Linear(2, 1), evaluation=RetrievalEvaluation(), execution=Execution(kept_outputs=10))


def test_an_output_that_is_not_finite_is_named_also_where_it_is_not_kept(make_trainer):
    module, data = FCCOModule(TabularMLP([4]), execution=Execution(kept_outputs=60)), make_data(test=make_frame(400, 1))
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, data)
    with torch.no_grad():
        next(module.parameters()).fill_(math.nan)
    with pytest.raises(NonFiniteError, match="outputs are not finite for the samples with index"):
        trainer.test(module, data, verbose=False)


def with_nan_on_the_first(processes):
    module = FCCOModule(torch.nn.Linear(2, 1), execution=Execution(kept_outputs=5))
    module.processes, collector = processes, Collector(module.evaluation, 5)
    outputs = torch.full((8,), math.nan if processes.rank == 0 else 1.0)
    try:
        module._add(collector, outputs, {"index": torch.arange(8), "y": torch.arange(8) % 2})
        collector.split(processes)
    except (NonFiniteError, PeerError) as error:
        return type(error).__name__, str(error)
    return None


def test_an_output_that_is_not_finite_on_one_process_ends_all(pool):
    (own, _), (other, message) = pool.values(with_nan_on_the_first, 2)
    assert (own, other) == ("NonFiniteError", "PeerError")
    assert "process 0 failed with NonFiniteError" in message
