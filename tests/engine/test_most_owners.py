"""Bounds of a plan on the owners in a batch: pairs of these few samples only, and the same steps."""

import itertools

import pytest
import torch

from fcco_lightning import AUC, SGD, SOX, AveragePrecision, Engine, PNormPush, TabularMLP
from fcco_lightning.data.batches import Drawn
from fcco_lightning.objectives import pair_sums
from tests.plans import BalancedBatches

N, B, POSITIVES = 2000, 500, 20


def trained(objective, algorithm, promised):
    torch.manual_seed(0)
    data = {"x": torch.randn(N, 4, dtype=torch.float64), "y": (torch.arange(N) % 10 == 0).long()}
    data["index"] = torch.arange(N)
    plan = BalancedBatches(data["y"], B, positive_fraction=POSITIVES / B)
    network = TabularMLP([8], in_features=4).double()
    problem = algorithm.pose(objective, num_samples=N, sampling={"target": Drawn(data, plan)}, dtype=torch.float64)
    problem.most = problem.most if promised else ()
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.SGD(engine.params, 0.1)
    for rows in itertools.islice(plan.batches(0), 3):
        engine.train_batch({name: column[rows] for name, column in data.items()}, optimizer)
        assert objective.most == ()  # batches of other splits hold any number
    return problem, torch.cat([w.detach().flatten() for w in network.parameters()])


@pytest.mark.parametrize(("objective", "algorithm"), [(AUC, SGD), (AveragePrecision, SOX), (PNormPush, SOX)])
def test_few_samples_of_a_kind_are_compared_alone_and_the_steps_are_the_same(objective, algorithm, monkeypatch):
    used, arguments = [], () if algorithm is SGD else (0.5,)
    few = pair_sums.Few.__init__
    monkeypatch.setattr(pair_sums.Few, "__init__", lambda self, *args: (used.append(args[1]), few(self, *args))[1])
    problem, few_pairs = trained(objective(), algorithm(*arguments), True)
    assert POSITIVES in problem.most
    assert set(used) == {POSITIVES}
    used.clear()
    _, all_pairs = trained(objective(), algorithm(*arguments), False)
    assert not used
    torch.testing.assert_close(few_pairs, all_pairs, rtol=1e-10, atol=1e-12)
