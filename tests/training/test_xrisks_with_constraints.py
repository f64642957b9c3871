"""Ranking objectives under constraints: the constraint holds, and the model without it violates it."""

import pytest
import torch
from torch import nn

from fcco_lightning import (
    NDCG,
    SOX,
    AveragePrecision,
    BalancedSampling,
    FCCOModule,
    HingePenalty,
    MeanDifferenceAtMost,
    QuerySampling,
    SoftRate,
)
from fcco_lightning.data.datamodules.tensors import TensorDataModule

N, SEEDED = 160, torch.Generator().manual_seed(1)
X, GROUP = torch.randn(N, 4, generator=SEEDED), (torch.rand(N, generator=SEEDED) < 0.5).long()
X[:, 0] += 1.5 * GROUP  # the favoured group has the higher scores
COLUMNS = {
    "x": X,
    "y": (X[:, 0] + 0.5 * torch.randn(N, generator=SEEDED) > 0.8).long(),
    "query": torch.arange(N) // 8,
    "group": GROUP,
}
CAP = 0.1


@pytest.mark.parametrize(
    ("objective", "batches"),
    [(NDCG, QuerySampling(4, 2, 2)), pytest.param(AveragePrecision, BalancedSampling(32), marks=pytest.mark.slow)],
    ids=["ndcg", "average precision"],
)
@pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:.* takes a mean over")
def test_a_group_is_not_placed_far_above_the_other(make_trainer, objective, batches):
    """Mean sigmoid of the scores of both groups, which says how high a group stands, on the training split."""
    gaps = []
    for constraints in ([], [MeanDifferenceAtMost(SoftRate(0.0, 0.5), CAP, {"group": 1}, {"group": 0})]):
        torch.manual_seed(0)
        network = nn.Linear(4, 1)
        module = FCCOModule(
            network,
            objective(),
            constraints=constraints,
            penalty=HingePenalty(rho=8) if constraints else None,
            algorithm=SOX(gamma=0.5),
            optimizer=lambda params: torch.optim.Adam(params, lr=0.05),
        )
        data = TensorDataModule({"train": COLUMNS, "test": COLUMNS}, batches=batches)
        make_trainer(max_epochs=6).fit(module, data)
        rates = torch.sigmoid(network(X).squeeze(1).detach() / 0.5)
        gaps.append(float(rates[GROUP == 1].mean() - rates[GROUP == 0].mean()))
    assert gaps[0] > 2 * CAP
    assert abs(gaps[1]) < CAP + 0.02
