"""How the cost of a contrastive step grows with the number of processes, at a fixed batch for each of them.

P processes on this machine (gloo, one thread each) train two linear towers of width d on batches of B pairs each, so
that every pair has P B negatives.  Printed are the CPU time of a process for one step of SOX, the matrix products with
which it cannot do without (similarities of its own pairs with all, and the gradients by its own embeddings), and what
the inner functions keep for the backward pass::

    uv run python examples/benchmarks/scaling.py --processes 1 2 4

``--rows`` asks what it costs that rows of samples are divided among the processes: the same steps with rows that are
divided, which takes one collective of O(batch) bytes, and with a copy of all rows in every process, which takes none.
They take turns; printed are milliseconds of the clock and the median of their ratio within a round::

    uv run python examples/benchmarks/scaling.py --rows --processes 2 4

``--weights`` asks what a process holds where weights are divided among the processes (FSDP2): MiB of a small CLIP model
after a few steps of SONEX with Adam on this machine, and GiB of ViT-B/16 and ViT-H/14 on up to 64 processes, by their
shapes alone (float32, rows of 12,000,000 pairs)::

    uv run python examples/benchmarks/scaling.py --weights --processes 1 2
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from math import prod
from operator import truediv
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timing import Table, report
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import normalize

from fcco_lightning import SONEX, SOX, AveragePrecision, BatchNetwork, CLIPModel, Engine, GlobalContrastive, TimmModel
from fcco_lightning.data import UniformBatches
from fcco_lightning.data.plans import Drawn
from fcco_lightning.models.outputs import Embeddings
from fcco_lightning.state.divided import part_of
from fcco_lightning.state.processes import Processes
from fcco_lightning.training.sharding import blocks_of, divide

TOWERS = 512
SAMPLES = 100_000  # with rows, of the small CLIP model
IMAGES, PAIRS = "ResNet-18, 64 x 64, average precision", "two towers, contrastive loss"
CASES = {IMAGES: 32, PAIRS: 256}  # samples of a process in a batch


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


def engine_of(case: str, layout: Literal["replicated", "sharded"], batch: int) -> Engine:
    """An image classifier with average precision, or two perceptrons with the contrastive loss."""
    torch.manual_seed(0)
    network = TimmModel("resnet18") if case == IMAGES else Towers(TOWERS)
    objective = AveragePrecision() if case == IMAGES else GlobalContrastive(0.07)
    algorithm, samples = SOX(0.9), 16 * batch
    columns = {"y": torch.arange(samples) % 2, "index": torch.arange(samples)}
    problem = algorithm.pose(
        objective,
        num_samples=samples,
        sampling={"target": Drawn(columns, UniformBatches(samples, batch, 0))},
        processes=Processes(),
        layout=layout,
    )
    return Engine(network, problem, algorithm)


def batch_of(case: str, size: int, first: int) -> dict[str, Tensor]:
    """Half of the images are positive."""
    index = torch.arange(first, first + size)
    if case == IMAGES:
        return {"x": torch.randn(size, 3, 64, 64), "y": index % 2, "index": index}
    return {"x": torch.randn(size, TOWERS), "text": torch.randn(size, TOWERS), "index": index}


def rows_cost(rank: int, size: int, case: str, batch: int, rounds: int, folder: str) -> None:
    """The steps of both layouts in turn; the first process writes its figures."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    engines = {layout: engine_of(case, layout, batch * size) for layout in ("replicated", "sharded")}
    optimizers = {layout: torch.optim.SGD(engine.params, lr=1e-4) for layout, engine in engines.items()}
    given = batch_of(case, batch, rank * batch)
    times: dict[str, list[float]] = {layout: [] for layout in engines}
    for t in range(2 + rounds):
        for layout in sorted(engines, reverse=bool(t % 2)):
            dist.barrier()
            start = time.perf_counter()
            engines[layout].train_batch(given, optimizers[layout])
            dist.barrier()
            if t >= 2:
                times[layout].append(time.perf_counter() - start)
    if rank == 0:
        low, middle, high = statistics.quantiles(map(truediv, times["sharded"], times["replicated"]), n=4)
        torch.save([*(1e3 * statistics.median(of) for of in times.values()), middle, low, high], Path(folder, "row.pt"))
    dist.barrier()
    dist.destroy_process_group()


def held(tensors: Iterable[Tensor]) -> float:
    """MiB of the parts of tensors that this process holds."""
    return sum(part_of(tensor).nbytes for tensor in tensors) / 2**20


def weights_held(rank: int, size: int, batch: int, rounds: int, folder: str) -> None:
    """What is held after some steps of SONEX on a small CLIP model; the first process writes its figures."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    torch.manual_seed(0)
    network, processes = CLIPModel("tiny"), Processes()
    if size > 1:
        divide(network, init_device_mesh("cpu", (size,)), processes)
    problem = SONEX().pose(GlobalContrastive(0.07), num_samples=SAMPLES, processes=processes, layout="sharded")
    algorithm = SONEX()
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.Adam(engine.params)
    side, length = network.config.image_size, network.config.context_length
    x, text = torch.randn(batch, 3, side, side), torch.ones(batch, length, dtype=torch.int64)
    for _ in range(max(2, rounds // 10)):
        engine.train_batch({"x": x, "text": text, "index": torch.arange(batch) + rank * batch}, optimizer)
    if rank == 0:
        of_adam = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
        previous = algorithm.state_dict()["previous"]["copy"]
        gradients = [p.grad for p in engine.params if p.grad is not None]
        rows = [term.state.rows for term in problem.all_terms if term.state is not None]
        torch.save([held(of) for of in (engine.params, gradients, of_adam, previous, rows)], Path(folder, "row.pt"))
    dist.barrier()
    dist.destroy_process_group()


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


def started(work: Callable[..., None], size: int, *arguments: Any) -> list[float]:
    """What the first of ``size`` processes wrote."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (size, *arguments, folder), nprocs=size)
        row: list[float] = torch.load(Path(folder, "row.pt"), weights_only=True)
    return row


def contrastive(sizes: Sequence[int], batch: int, width: int, rounds: int) -> Table:
    """The growth of a contrastive step."""
    columns = ("ms", "ms of products", "MiB kept")
    return {f"P = {p}": dict(zip(columns, started(steps, p, batch, width, rounds), strict=True)) for p in sizes}


def divided(sizes: Sequence[int], rounds: int) -> Table:
    """The cost of divided rows."""
    columns = ("copies, ms", "divided, ms", "ratio", "25%", "75%")
    return {
        f"{case}, P = {p}": dict(zip(columns, started(rows_cost, p, case, size, rounds), strict=True))
        for case, size in CASES.items()
        for p in sizes
    }


def memory(sizes: Sequence[int], batch: int, rounds: int) -> dict[str, Table]:
    """What a process holds, measured in small and by shapes."""
    columns = ("weights", "gradients", "Adam", "previous", "rows")
    small = {f"P = {p}": started(weights_held, p, batch, rounds) for p in sizes}
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
    parser.add_argument("--rows", action="store_true", help="what rows cost that are divided among the processes")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/scaling.json"), help="the numbers")
    parser.add_argument("--weights", action="store_true", help="what a process holds of weights that are divided")
    args = parser.parse_args()
    if args.weights:
        report(memory(args.processes, min(args.batch, 16), args.rounds), args.out)
        return
    if args.rows:
        report({"rows divided among processes": divided(args.processes, args.rounds)}, args.out)
        return
    title = f"contrastive, B = {args.batch}, d = {args.width}"
    report({title: contrastive(args.processes, args.batch, args.width, args.rounds)}, args.out)


if __name__ == "__main__":
    sys.exit(main())
