"""How the cost of a contrastive step grows with the number of processes, at a fixed batch for each of them.

P processes on this machine (gloo, one thread each) train two linear towers of width d on batches of B pairs each, so
that every pair has P B negatives.  Printed are the CPU time of a process for one step of SOX, the matrix products with
which it cannot do without (similarities of its own pairs with all, and the gradients by its own embeddings), and what
the inner functions keep for the backward pass::

    uv run python examples/benchmarks/scaling.py --processes 1 2 4

``--weights`` asks what a process holds where weights are sharded over the processes (FSDP2): MiB of a small CLIP model
after a few steps of SONEX with Adam on this machine, and GiB of ViT-B/16 and ViT-H/14 on up to 64 processes, by their
shapes alone (float32, rows of 12,000,000 pairs)::

    uv run python examples/benchmarks/scaling.py --weights --processes 1 2
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from dual_state import job
from timing import Table, report
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import normalize

from fcco_lightning import SONEX, SOX, BatchNetwork, CLIPModel, Engine, GlobalContrastive
from fcco_lightning.models.outputs import Embeddings
from fcco_lightning.state.processes import Processes
from fcco_lightning.state.sharded import part_of
from fcco_lightning.training.sharding import blocks_of, shard

SAMPLES = 100_000  # with rows, of the small CLIP model


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


def steps(batch: int, width: int, rounds: int) -> list[float]:
    """Train; milliseconds of a step and of the products alone, and MiB kept."""
    torch.manual_seed(0)
    processes = Processes()
    rank, size = processes.rank, processes.size
    algorithm, n = SOX(0.9), 8 * batch * size
    problem = algorithm.pose(GlobalContrastive(0.07), num_samples=n, processes=processes)
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
    return [1e3 * statistics.median(seconds), 1e3 * statistics.median(products), sum(kept) / 2**20]


def held(tensors: Iterable[Tensor]) -> float:
    """MiB of the parts of tensors that this process holds."""
    return sum(part_of(tensor).nbytes for tensor in tensors) / 2**20


def weights_held(batch: int, rounds: int) -> list[float]:
    """MiB held after some steps of SONEX on a small CLIP model."""
    torch.manual_seed(0)
    network, processes = CLIPModel("tiny"), Processes()
    if processes.size > 1:
        shard(network, init_device_mesh("cpu", (processes.size,)), processes)
    algorithm = SONEX()
    problem = algorithm.pose(GlobalContrastive(0.07), num_samples=SAMPLES, processes=processes, layout="sharded")
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.Adam(engine.params)
    side, length = network.config.image_size, network.config.context_length
    x, text = torch.randn(batch, 3, side, side), torch.ones(batch, length, dtype=torch.int64)
    for _ in range(max(2, rounds // 10)):
        engine.train_batch({"x": x, "text": text, "index": torch.arange(batch) + processes.rank * batch}, optimizer)
    of_adam = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    previous = algorithm.state_dict()["previous"]["copy"]
    gradients = [p.grad for p in engine.params if p.grad is not None]
    rows = [term.state.rows for term in problem.all_terms if term.state is not None]
    return [held(of) for of in (engine.params, gradients, of_adam, previous, rows)]


def simulated(name: str, size: int) -> list[float]:
    """GiB that the first of P processes holds of an architecture: FSDP2 gives it the largest part."""
    with torch.device("meta"):
        network = CLIPModel(name)
    units = [sum(p.numel() for p in block.parameters()) for block in blocks_of(network)]
    every = [p.shape for p in network.parameters()]
    part = sum(-(-shape[0] // size) * prod(shape[1:]) if shape else 1 for shape in every)
    rest = sum(map(prod, every)) - sum(units)
    rows = 2 * -(-12_000_000 // size)
    gathered = 0 if size == 1 else 2 * rest + 2 * max(units)  # weights and gradients of the root and of one block
    return [4 * count / 2**30 for count in (part, part, 2 * part, part, rows, gathered)]


def contrastive(sizes: Sequence[int], batch: int, width: int, rounds: int) -> Table:
    """The growth of a contrastive step."""
    columns = ("ms", "ms of products", "MiB kept")
    return {f"P = {p}": dict(zip(columns, job(p)(steps, batch, width, rounds)[0], strict=True)) for p in sizes}


def memory(sizes: Sequence[int], batch: int, rounds: int) -> dict[str, Table]:
    """What a process holds, measured in small and by shapes."""
    columns = ("weights", "gradients", "Adam", "previous", "rows")
    small = {f"P = {p}": job(p)(weights_held, batch, rounds)[0] for p in sizes}
    tables = {"CLIP of 280,000 weights, MiB": {p: _summed(columns, row) for p, row in small.items()}}
    for name in ("ViT-B-16", "ViT-H-14"):
        of_sizes = {p: simulated(name, p) for p in (1, 2, 4, 8, 16, 32, 64)}
        tables[f"{name}, GiB"] = {f"P = {p}": _summed((*columns, "gathered"), row) for p, row in of_sizes.items()}
    return tables


def _summed(columns: Sequence[str], row: Sequence[float]) -> dict[str, float]:
    return dict(zip((*columns, "sum"), [*row, sum(row)], strict=True))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="P")
    parser.add_argument("--batch", type=int, default=512, help="pairs of each process, B")
    parser.add_argument("--width", type=int, default=512, help="of embeddings, d")
    parser.add_argument("--rounds", type=int, default=20, help="steps that count")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/scaling.json"), help="the numbers")
    parser.add_argument("--weights", action="store_true", help="what a process holds of weights that are sharded")
    args = parser.parse_args()
    if args.weights:
        report(memory(args.processes, min(args.batch, 16), args.rounds), args.out)
        return
    title = f"contrastive, B = {args.batch}, d = {args.width}"
    report({title: contrastive(args.processes, args.batch, args.width, args.rounds)}, args.out)


if __name__ == "__main__":
    main()
