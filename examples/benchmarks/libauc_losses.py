"""The ranking losses of this project and of LibAUC as training steps; LibAUC is no dependency.

``uv pip install --no-deps libauc==2.0.1 tqdm`` installs what is needed of it.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from timing import Step, descent, engine_step
from torch import Tensor, nn

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

INSTALL = "uv pip install --no-deps libauc==2.0.1 tqdm"
GAMMA, MAX_FPR = 0.9, 0.3  # 0.9 is LibAUC's default


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
    return engine_step(engine, optimizer(engine.params))


def available() -> bool:
    """Whether LibAUC is installed; says so if it is not."""
    found = importlib.util.find_spec("libauc") is not None
    if not found:
        print(f"LibAUC is not installed, so its rows are left out: {INSTALL}")
    return found


def made(name: str, samples: int, positives: int, labels: int = 1) -> nn.Module:
    """A loss, for a training split with so many samples, positives and labels; squared hinges with margin 1.

    Args:
        name: "APLoss", "pAUC_KL", "pAUC_CVaR", "AUCM", "pairwise AUC" or "mAPLoss".
        samples: of the training split.
        positives: among them.
        labels: of every sample, for "mAPLoss".
    """
    from libauc import losses

    cpu = {"device": torch.device("cpu")}
    makers = {
        "APLoss": lambda: losses.APLoss(samples, gamma=GAMMA, **cpu),
        "pAUC_KL": lambda: losses.pAUCLoss("SOPAs", data_len=samples, gamma=GAMMA, **cpu),
        "pAUC_CVaR": lambda: losses.pAUCLoss("SOPA", data_len=samples, pos_len=positives, beta=MAX_FPR, **cpu),
        "AUCM": lambda: losses.AUCMLoss(version="v2", **cpu),
        "pairwise AUC": lambda: losses.PairwiseAUCLoss("squared_hinge"),
        "mAPLoss": lambda: losses.mAPLoss(samples, labels, gamma=GAMMA, **cpu),
    }
    return makers[name]()


def groups(loss: nn.Module, params: Iterable[Tensor]) -> list[dict[str, Any]]:
    """What an optimizer is given: AUCM's dual variable alpha ascends while everything else descends."""
    own = dict(loss.named_parameters())
    rest = {"params": [*params, *(p for name, p in own.items() if name != "alpha")]}
    return [rest, {"params": [own["alpha"]], "maximize": True}] if "alpha" in own else [rest]


def value(loss: nn.Module, scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """One of :func:`made` at scores in (0, 1)."""
    found: Tensor = loss(scores, batch["y"].float(), index=batch["index"])
    return found


def libauc_step(
    network: nn.Module, loss: nn.Module, optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer]
) -> Step:
    """One training step on a sigmoid of the outputs, as LibAUC's tutorials write it, with any optimizer of torch."""
    descend = descent(
        lambda batch: value(loss, torch.sigmoid(network(batch["x"])), batch),
        optimizer(groups(loss, network.parameters())),
    )
    alpha = getattr(loss, "alpha", None)

    def step(batch: dict[str, Tensor]) -> None:
        descend(batch)
        if alpha is not None:
            alpha.data.clamp_(min=0)

    return step
