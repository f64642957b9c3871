"""What the mean of a pair loss over all pairs of a batch costs, with its gradient: all at once, and as AUC does it.

    uv run python examples/benchmarks/pair_cost.py

One CPU thread, process time, medians of interleaved rounds; ratios are to all pairs at once.
"""

import argparse
import time
from collections.abc import Callable

import torch
from timing import Step, interleaved
from torch import Tensor

from fcco_lightning.objectives import LogisticPair, PairLoss, SigmoidPair, SquaredHingePair, SquaredPair
from fcco_lightning.objectives.pair_sums import pair_mean

LOSSES: tuple[PairLoss, ...] = (SquaredPair(), SquaredHingePair(), SigmoidPair(), LogisticPair())
Mean = Callable[[Tensor, Tensor], Tensor]  # of scores, and of which samples are positive


def at_once(loss: PairLoss) -> Mean:
    """The whole matrix of pairs."""
    return lambda scores, positive: loss(scores[positive].unsqueeze(1) - scores[~positive]).mean()


def by_sums(loss: PairLoss) -> Mean:
    """As AUC forms it, which knows no bound on the positives of a batch."""

    def mean(scores: Tensor, positive: Tensor) -> Tensor:
        owners, share = positive.to(scores.dtype), (~positive).to(scores.dtype)
        return pair_mean(loss, scores, owners / owners.sum(), share / share.sum())

    return mean


def step(mean: Mean) -> Step:
    """Value and gradient by the scores of a batch."""

    def run(scores: Tensor) -> None:
        scores = scores.requires_grad_()
        torch.autograd.grad(mean(scores, torch.arange(len(scores)) % 2 == 0), scores)

    return run


def main() -> None:
    """Print a line for every size of the batch and loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024, 4096], help="batch sizes, half positives")
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| batch | loss | all pairs at once, ms | mean over pairs, ms | ratio [quartiles] |\n|---|---|---|---|---|")
    for size in given.sizes:
        data = [torch.randn(size, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
        for loss in LOSSES:
            variants = {"at once": step(at_once(loss)), "mean": step(by_sums(loss))}
            table = interleaved(variants, data, given.rounds, "cpu", clock=time.process_time)
            once, mean = table["at once"], table["mean"]
            print(
                f"| {size} | {type(loss).__name__} | {once['ms']:.2f} | {mean['ms']:.2f} | "
                f"{mean['ratio']:.2f} [{mean['25%']:.2f}, {mean['75%']:.2f}] |"
            )


if __name__ == "__main__":
    main()
