"""The ranking losses of parts ``cost`` and ``scores`` of xrisk.py, and a training step on one of them."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from libauc_losses import GAMMA, MAX_FPR
from timing import Step
from torch import nn

from fcco_lightning import (
    AUC,
    SGD,
    SOX,
    Algorithm,
    AUCMargin,
    AveragePrecision,
    CVaRPartialAUC,
    Engine,
    KLPartialAUC,
    Objective,
    SquaredHingePair,
    TensorDataModule,
)


class RankingLoss(NamedTuple):
    """A loss of scores of one label; ``theirs`` is LibAUC's of the same kind."""

    objective: Callable[..., Objective]
    algorithm: Callable[[], Algorithm]
    theirs: str


def moving_averages() -> Algorithm:
    """SOX with the gamma that LibAUC takes."""
    return SOX(GAMMA)


RANKING = {
    "AP": RankingLoss(AveragePrecision, moving_averages, "APLoss"),
    "pAUC, KL": RankingLoss(KLPartialAUC, moving_averages, "pAUC_KL"),
    "pAUC, CVaR": RankingLoss(functools.partial(CVaRPartialAUC, max_fpr=MAX_FPR), SGD, "pAUC_CVaR"),
    "AUC": RankingLoss(functools.partial(AUC, SquaredHingePair()), SGD, "pairwise AUC"),
    "AUC margin": RankingLoss(AUCMargin, moving_averages, "AUCM"),
}


def through_engine(
    network: nn.Module,
    objective: Objective,
    algorithm: Algorithm,
    module: TensorDataModule,
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer],
    *,
    compiled: bool = False,
) -> Step:
    """One batch through the engine."""
    problem = algorithm.pose(objective, num_samples=module.num_train, sampling=module.sampling())
    engine = Engine(network, problem, algorithm, compiled=compiled)
    steps = optimizer(engine.params)
    return lambda batch: engine.train_batch(batch, steps)
