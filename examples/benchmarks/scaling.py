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
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from operator import truediv
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timing import Table, report
from torch import Tensor, nn
from torch.nn.functional import normalize

from fcco_lightning import SOX, AveragePrecision, BatchNetwork, Engine, GlobalContrastive, TimmModel
from fcco_lightning.data import UniformBatches
from fcco_lightning.data.plans import Drawn
from fcco_lightning.models.outputs import Embeddings
from fcco_lightning.state.processes import Processes

TOWERS = 512
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


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4], help="P")
    parser.add_argument("--batch", type=int, default=512, help="pairs of each process, B")
    parser.add_argument("--width", type=int, default=512, help="of embeddings, d")
    parser.add_argument("--rounds", type=int, default=20, help="steps that count")
    parser.add_argument("--rows", action="store_true", help="what rows cost that are divided among the processes")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/scaling.json"), help="the numbers")
    args = parser.parse_args()
    if args.rows:
        report({"rows divided among processes": divided(args.processes, args.rounds)}, args.out)
        return
    title = f"contrastive, B = {args.batch}, d = {args.width}"
    report({title: contrastive(args.processes, args.batch, args.width, args.rounds)}, args.out)


if __name__ == "__main__":
    sys.exit(main())
