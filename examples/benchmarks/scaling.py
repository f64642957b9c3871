"""How the cost of a contrastive step grows with the number of processes, at a fixed batch for each of them.

P processes on this machine (gloo, one thread each) train two linear towers of width d on batches of B pairs each, so
that every pair has P B negatives.  Printed are the CPU time of a process for one step of SOX, the matrix products with
which it cannot do without (similarities of its own pairs with all, and the gradients by its own embeddings), and what
the inner functions keep for the backward pass::

    uv run python examples/benchmarks/scaling.py --processes 1 2 4
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timing import Table, report
from torch import Tensor, nn
from torch.nn.functional import normalize

from fcco_lightning import SOX, BatchNetwork, Engine, GlobalContrastive
from fcco_lightning.distributed import Processes
from fcco_lightning.records import Embeddings


class Towers(BatchNetwork):
    """A linear map of images and one of texts."""

    inputs = ("x", "text")

    def __init__(self, width: int) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, batch: Any) -> Any:
        """Unit rows, by part."""
        return {
            name: Embeddings(normalize(self.image(part["x"])), normalize(self.text(part["text"])))
            for name, part in batch.items()
        }


def steps(rank: int, size: int, batch: int, width: int, rounds: int, folder: str) -> None:
    """Train, and let the first process write its figures."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    torch.manual_seed(0)
    algorithm, n = SOX(0.9), 8 * batch * size
    problem = algorithm.pose(GlobalContrastive(0.07), num_samples=n, processes=Processes())
    engine = Engine(Towers(width), problem, algorithm)
    optimizer = torch.optim.SGD(engine.params, lr=1e-4)
    generator = torch.Generator().manual_seed(1 + rank)
    x, text = (torch.randn(batch, width, generator=generator) for _ in range(2))
    index = torch.arange(batch) + rank * batch
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.nbytes)
        return tensor

    seconds, products = [], []
    for t in range(2 + rounds):
        start = time.process_time()
        engine.train_batch({"x": x, "text": text, "index": index}, optimizer)
        middle = time.process_time()
        own, every = x, x.repeat(size, 1)
        for _ in range(min(size, 2)):  # a process alone needs the similarities of images with texts only
            similarity = own @ every.T
        for _ in range(2):
            _ = similarity @ every
        if t >= 2:
            seconds.append(middle - start)
            products.append(time.process_time() - middle)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        engine.train_batch({"x": x, "text": text, "index": index}, optimizer)
    if rank == 0:
        row = [1e3 * statistics.median(seconds), 1e3 * statistics.median(products), sum(kept) / 2**20]
        torch.save(row, Path(folder, "row.pt"))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="P")
    parser.add_argument("--batch", type=int, default=512, help="pairs of each process, B")
    parser.add_argument("--width", type=int, default=512, help="of embeddings, d")
    parser.add_argument("--rounds", type=int, default=20, help="steps that count")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/scaling.json"), help="the numbers")
    args = parser.parse_args()
    table: Table = {}
    for size in args.processes:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(steps, (size, args.batch, args.width, args.rounds, folder), nprocs=size)
            row = torch.load(Path(folder, "row.pt"), weights_only=True)
        table[f"P = {size}"] = dict(zip(("ms", "ms of products", "MiB kept"), row, strict=True))
    report({f"contrastive, B = {args.batch}, d = {args.width}": table}, args.out)


if __name__ == "__main__":
    sys.exit(main())
