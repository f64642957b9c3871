"""What micro-batches cost and save: memory and time of a step on one large batch.

A step on AUC over all pairs of a batch of 4,096, perceptron 256 - 8 x 512 - 1.  With micro-batches the gradient is the
same.  Memory is the largest resident set of a process that makes three steps, less what it had after a
step on eight samples (from /proc, so on Linux).  Times are medians over rounds in which all variants take turns; a
ratio is the median within rounds::

    uv run python examples/benchmarks/micro_batches.py
"""

import argparse
import copy
import multiprocessing
import time
from pathlib import Path

import torch
from timing import Step, engine_step, interleaved, largest_resident_set, report

from fcco_lightning import AUC, SGD, Engine, SquaredHingePair, TabularMLP
from fcco_lightning.models.batch import Columns

WIDTH, LAYERS, FEATURES = 512, 8, 256


def batch_of(size: int) -> Columns:
    """Half of the samples are positive."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(size) % 2
    return {"x": torch.randn(size, FEATURES, generator=generator), "y": y, "index": torch.arange(size)}


def step_of(network: torch.nn.Module, size: int, micro_batch: int | None) -> Step:
    """One step on the batch."""
    algorithm = SGD()
    problem = algorithm.pose(AUC(SquaredHingePair()), num_samples=size)
    engine = Engine(network, problem, algorithm, micro_batch=micro_batch)
    return engine_step(engine, torch.optim.SGD(engine.params, lr=1e-4))


def network_of() -> TabularMLP:
    """The perceptron."""
    torch.manual_seed(0)
    return TabularMLP([WIDTH] * LAYERS, 1, FEATURES)


def peak(size: int, micro_batch: int | None) -> float:
    """MiB that three steps take beyond batch and network; run in a process of its own."""
    torch.set_num_threads(1)
    network, batch = network_of(), batch_of(size)
    step_of(network, 8, None)(batch_of(8))  # loads what every step needs
    before = largest_resident_set()
    step = step_of(network, size, micro_batch)
    for _ in range(3):
        step(batch)
    return largest_resident_set() - before


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4096, help="samples of a batch")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the timing")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/micro_batches.json"), help="the numbers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [None, args.batch // 4, args.batch // 16, args.batch // 64]
    network, batch = network_of(), batch_of(args.batch)
    names = {size: "whole batch" if size is None else f"micro-batches of {size}" for size in sizes}
    steps = {names[size]: step_of(copy.deepcopy(network), args.batch, size) for size in sizes}
    table = interleaved(steps, [batch], args.rounds, "cpu", warm_up=2, clock=time.process_time)
    context = multiprocessing.get_context("spawn")
    for size in sizes:  # a process each: what one has touched counts for ever
        with context.Pool(1) as pool:
            table[names[size]]["MiB"] = pool.apply(peak, (args.batch, size))
    report({f"batch {args.batch}, {LAYERS} layers of {WIDTH}": table}, args.out)


if __name__ == "__main__":
    main()
