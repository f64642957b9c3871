"""Parameters of single samples move by the gradient of their own term, however often batches hold a sample."""

import pytest
import torch

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    MSVR,
    PDSCA,
    SGD,
    SONX,
    SOX,
    BalancedSampling,
    CVaRPartialAUC,
    Engine,
    GroupSampling,
    MeanAtMost,
    SoftRate,
    UniformSampling,
)
from fcco_lightning.algorithms import ICPPAC
from fcco_lightning.data.plans import Drawn

RATE, SAMPLES = 1e-3, 40
DRAWN = {  # number of positives, how batches are drawn, and how far the mean move may be from the right one
    "uniform": (10, UniformSampling(8), 0.1),
    "balanced": (10, BalancedSampling(8), 1e-6),
    "positives repeat": (3, BalancedSampling(16, allow_repeats=True), 1e-6),
    "with replacement": (10, GroupSampling(2, samples_per_group=8, replacement=True, prevalence="data"), 0.1),
}
ONE_WAY = {"SGD": (SGD, []), "ICPPAC": (lambda: ICPPAC(eta=1e-12, K=9), [MeanAtMost(SoftRate(), 0.9)])}
TWO_WAY = {
    "SONX": SONX,
    "SOX": SOX,
    "MSVR": MSVR,
    "ALEXR": lambda: ALEXR(theta=0.1, tau=0.1, jacobian="old"),
    "ALEXR, two draws": lambda: ALEXR(theta=0.1, tau=0.1, jacobian="part"),
    "ALEXR2, two draws": lambda: ALEXR2(K=2, jacobian="part"),
    "PDSCA": PDSCA,
}


def mean_move(algorithm, constraints, drawn, min_tpr):
    """Of a threshold in a batch that holds its sample, in units of the step size.

    Thresholds are above all losses, so that ``dL_i / ds_i = 1``, and the weights stay where they are.
    """
    positives, sampling, _ = DRAWN[drawn]
    columns = {"y": (torch.arange(SAMPLES) < positives).long(), "index": torch.arange(SAMPLES)}
    columns |= {
        "x": torch.linspace(-1, 1, SAMPLES, dtype=torch.float64).unsqueeze(1),
        "group": torch.arange(SAMPLES) % 2,
    }
    plan = sampling.plan(columns, seed=0)
    columns |= plan.columns()
    objective = CVaRPartialAUC(0.5, min_tpr, thresholds=50.0, thresholds_lr=RATE, threshold=-100.0)
    given = {"num_samples": SAMPLES, "sampling": {"target": Drawn(columns, plan)}, "dtype": torch.float64}
    problem = algorithm.pose(objective, constraints, **given)
    network = torch.nn.Linear(1, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD([*network.parameters(), *objective.parameters()], lr=1e-12)
    engine, held, moves = Engine(network, problem, algorithm), problem.row_parameters.state, []
    for epoch in range(12):
        for batch, dual in zip(plan.batches(epoch), plan.second_draw().batches(epoch), strict=True):
            parts = {"target": {name: column[batch] for name, column in columns.items()}}
            if getattr(algorithm, "jacobian", None) == "part":
                parts["dual"] = {name: column[dual] for name, column in columns.items()}
            before = held.gather(None).nan_to_num(50.0).clone()
            engine.train_batch(parts, optimizer)
            seen = parts["target"]["index"][parts["target"]["y"] == 1].unique()
            moves.append((before - held.gather(None).nan_to_num(50.0))[seen].flatten() / RATE)
    return torch.cat(moves)


@pytest.mark.filterwarnings("ignore:few batches speak of")
@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("name", ONE_WAY)
def test_a_visit_moves_a_threshold_by_its_gradient(name, drawn):
    make, constraints = ONE_WAY[name]
    moves = mean_move(make(), constraints, drawn, min_tpr=0.0)
    moves = moves[moves != 0]  # the first batch of a stage of ICPPAC moves nothing
    assert len(moves) > 20
    assert moves.mean().item() == pytest.approx(1, abs=DRAWN[drawn][2])


@pytest.mark.filterwarnings("ignore:few batches speak of")
@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("name", TWO_WAY)
def test_a_visit_moves_a_threshold_by_the_outer_gradient(name, drawn):
    moves = mean_move(TWO_WAY[name](), [], drawn, min_tpr=0.5)[-40:]  # rows that remember y have come to rest
    assert moves.mean().item() == pytest.approx(2, rel=max(DRAWN[drawn][2], 1e-3))  # 1 / (1 - min_tpr)
