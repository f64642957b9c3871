"""What a large dual state costs beside the least that its mathematics asks for.

All variants take turns in every round; a time is that of the slowest process, and of times and of ratios within a round
the median over rounds is shown.  Each process has one thread.  By default there are rows for 100 million samples, in
two processes::

    uv run python examples/benchmarks/dual_state.py                      # memory, steps and files
    uv run python examples/benchmarks/dual_state.py --trainer            # training steps
    uv run python examples/benchmarks/dual_state.py --device cuda        # rows on a GPU

- Memory of a process over that of n/P float32 values.
- Steps: read, average (``torch.lerp``) and write the rows of a batch, against ``index_select`` and ``index_copy_`` on a
  plain tensor; with samples from anywhere, against the two collectives alone.  Once more with a tenth of the rows.
- Files: save and load against the same bytes without format and checksum, in chunks of the same size.  What is loaded
  was written just before, so it comes from the page cache.
- Trainer: ``Trainer.fit`` of a job like Adult (SONEX, ROC fairness) against one process with the union batch.
- GPU: the same steps in one process, against the memory bandwidth in sectors of 32 bytes.

Parts that are not run keep their earlier results in the JSON file.
"""

import argparse
import json
import logging
import os
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from fcco_lightning import (
    SONEX,
    AdamType,
    FCCOModule,
    HingePenalty,
    ROCFairness,
    SyntheticDataModule,
    TabularMLP,
    UniformSampling,
)
from fcco_lightning.data.synthetic import GaussianGroups
from fcco_lightning.state import DualState, copies, shard_of
from fcco_lightning.state.processes import Processes
from fcco_lightning.state.row_files import CHUNK_BYTES, read_manifest, read_rows, write_manifest, write_part
from fcco_lightning.training import Preemption

GAMMA = 0.1
STEPS = 10  # of each variant in a round
WARM_UP = 3  # rounds
FIRST_STEPS = 20  # of a training, left out
PLAIN, EXCHANGE = "plain, one process", "collectives"
STEP_BASES = dict.fromkeys(["plain, every process", "state, one process"], PLAIN)
STEP_BASES |= dict.fromkeys([EXCHANGE, "state, any rows"], EXCHANGE)
FILE_BASES = {name: f"plain {name}" for name in ("save", "load", "save and load", "load in one process")}

Step = Callable[[Tensor, Tensor], object]
Rounds = dict[str, list[float]]  # what was measured in every round
Table = dict[str, dict[str, float]]  # by row and column


def job(size: int) -> Callable[..., list[Any]]:
    """Start processes; what is returned calls a function in all of them, and returns their results by rank."""
    context, port = get_context("forkserver"), free_port()
    context.set_forkserver_preload(["lightning.pytorch", "fcco_lightning.training"])  # imported once for all
    workers = [ProcessPoolExecutor(1, context, join, (rank, size, port)) for rank in range(size)]

    def call(work: Callable[..., Any], *args: Any) -> list[Any]:
        asked = [worker.submit(work, *args) for worker in workers]
        for answer in wait(asked, return_when=FIRST_EXCEPTION).done:
            answer.result()
        return [answer.result() for answer in asked]

    return call


def free_port() -> int:
    """A port of this host that nobody uses."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def join(rank: int, size: int, port: int) -> None:
    """One thread; of several processes each is told its place as a cluster would, so that Lightning starts none."""
    torch.set_num_threads(1)
    if size > 1:
        place = {"LOCAL_RANK": rank, "RANK": rank, "WORLD_SIZE": size, "NODE_RANK": 0, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"})
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", timeout=timedelta(minutes=3))


def timed(action: Callable[[], object], *, alone: bool = False) -> float:
    """Seconds, from a moment when all processes are ready; ``alone`` lets the first one do it while the others wait."""
    dist.barrier()
    if alone and dist.get_rank():
        return 0.0
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compared(of_each: Sequence[tuple[Rounds, Rounds]], extra: str, bases: Mapping[str, str]) -> Table:
    """What all processes measured: each name beside its base, and the median of their ratio within a round."""
    # of every round the slowest process
    times, extras = (
        {n: np.max([of[n] for of in part], axis=0) for n in part[0]} for part in zip(*of_each, strict=True)
    )
    return {
        name: {
            "ms": 1e3 * float(np.median(times[name])),
            "least, ms": 1e3 * float(np.median(times[base])),
            "ratio": float(np.median(times[name] / times[base])),
            extra: float(extras[name].max()),
        }
        for name, base in bases.items()
    }


class Variant(NamedTuple):
    """A way to read, average and write ``batch`` of ``rows``; in the first process ``alone``, or in all."""

    step: Step
    rows: range
    batch: int
    alone: bool = False

    def draw(self, random: np.random.Generator) -> list[tuple[Tensor, Tensor]]:
        """Different rows, with inner values, for the steps of one round."""
        chosen = (random.choice(len(self.rows), self.batch, replace=False) for _ in range(STEPS))
        return [(torch.from_numpy(c) + self.rows.start, torch.randn(self.batch, 1)) for c in chosen]


def filled(num_rows: int, processes: Processes) -> DualState:
    """A sharded state with a value in each of its rows."""
    state = DualState(num_rows, processes=processes, layout="sharded")
    state.rows.normal_()
    return state


def plain(table: Tensor) -> Step:
    """The least that a step needs."""
    return lambda index, values: table.index_copy_(0, index, torch.lerp(table.index_select(0, index), values, GAMMA))


def own_rows(state: DualState) -> Step:
    """Rows of a state that is not divided."""
    return lambda index, values: state.scatter_(index, torch.lerp(state.gather(index), values, GAMMA))


def any_rows(state: DualState) -> Step:
    """Rows wherever they are."""

    def step(index: Tensor, values: Tensor) -> None:
        index, values = state.processes.gather([index, values]).tensors
        again = copies(index)
        values = again.total(values) / again.count.unsqueeze(1)
        state.scatter_(index, torch.lerp(state.gather(index), values, GAMMA))

    return step


def collectives(processes: Processes, share: int, batch: int) -> tuple[Step, int]:
    """What :func:`any_rows` has to exchange and nothing else, and its bytes."""
    before = 0
    for _ in range(2):  # the first one agrees on a size
        before = processes.bytes
        processes.gather([torch.zeros(share, dtype=torch.int64), torch.zeros(share, 1)])
    sent, rows = torch.zeros(processes.bytes - before, dtype=torch.uint8), torch.zeros(batch, 1, dtype=torch.int32)
    received = sent.new_zeros(processes.size * len(sent))

    def step(index: Tensor, values: Tensor) -> None:  # noqa: ARG001
        dist.all_gather_into_tensor(received, sent)
        dist.all_reduce(rows)

    return step, sent.nbytes + rows.nbytes


def steps(num_rows: int, batch: int, rounds: int) -> tuple[Rounds, Rounds]:
    """Seconds per step of every variant, and bytes that this process sends."""
    processes, random, everywhere = Processes(), np.random.default_rng(), range(num_rows)
    first, share = processes.rank == 0, shard_of(batch, processes.rank, processes.size)[1]
    state, one = filled(num_rows, processes), filled(num_rows if first else 1, Processes(alone=True))
    table = one.rows.clone() if first else state.rows.clone()
    exchange, exchanged = collectives(processes, share, batch)
    variants = {
        PLAIN: Variant(plain(table), everywhere, batch, alone=True),
        "plain, every process": Variant(plain(table), range(len(state.rows)), batch),
        "state, one process": Variant(own_rows(one), everywhere, batch, alone=True),
        EXCHANGE: Variant(exchange, everywhere, share),
        "state, any rows": Variant(any_rows(state), everywhere, share),
    }
    times, sent = ({name: list[float]() for name in variants} for _ in range(2))
    for _ in range(WARM_UP + rounds):
        drawn = {name: v.draw(random) if first or not v.alone else [] for name, v in variants.items()}
        for name, (step, _, _, alone) in variants.items():
            before = processes.bytes
            seconds = timed(lambda s=step, d=drawn[name]: [s(*arguments) for arguments in d], alone=alone)
            times[name].append(seconds / STEPS)
            sent[name].append((processes.bytes - before) / STEPS or exchanged * (step is exchange))
    return {name: t[WARM_UP:] for name, t in times.items()}, {name: b[WARM_UP:] for name, b in sent.items()}


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(num_rows: int, batch: int) -> dict[str, float]:
    """Memory of a state over that of n/P values: when made, and after some steps."""
    processes, random = Processes(), np.random.default_rng()

    def use(state: DualState) -> None:
        share = shard_of(batch, processes.rank, processes.size)[1]
        for index, values in Variant(any_rows(state), range(state.num_rows), share).draw(random):
            any_rows(state)(index, values)

    use(filled(batch, processes))  # from here on all code is loaded and all buffers are made
    base, least = resident(), 4 * num_rows / processes.size
    state = DualState(num_rows, processes=processes, layout="sharded")
    made = resident()
    state.rows.zero_()
    use(state)
    return {"when made": (made - base) / least, "after steps": (resident() - base) / least}


def peak(action: Callable[[], float]) -> tuple[float, float]:
    """What ``action`` returns, and MiB of memory that it took for a while; NaN where Linux does not say."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return action(), float("nan")
    before, result = resident(), action()
    highest = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM"))
    return result, max(0, int(highest.split()[1]) / 2**10 - before / 2**20)


def plain_bytes(path: Path, rows: Tensor, *, write: bool = False) -> None:
    """Write the memory of ``rows`` to the disk, or read it back."""
    data = memoryview(rows.numpy()).cast("B")
    with path.open("wb" if write else "rb") as file:
        for start in range(0, len(data), CHUNK_BYTES):
            (file.write if write else file.readinto)(data[start : start + CHUNK_BYTES])
        if write:
            file.flush()
            os.fsync(file.fileno())


def files(num_rows: int, rounds: int, folder: Path) -> tuple[Rounds, Rounds]:
    """Seconds of saving and loading, and MiB of memory that they took for a while."""
    processes = Processes()
    state, rank = filled(num_rows, processes), processes.rank
    ours, theirs = folder / "ours", [folder / f"plain.{r}" for r in range(processes.size)]
    into, whole = torch.ones_like(state.rows), torch.ones(num_rows if rank == 0 else 0, 1)
    shards = whole.split(max(1, len(state.rows)))

    def save() -> None:
        parts = processes.everyone(write_part(ours, "rows", "benchmark", state.first, state.rows, num_rows))
        if rank == 0:
            write_manifest(ours, "benchmark", {"rows": num_rows}, parts)

    actions: dict[str, Callable[[], object]] = {
        "plain save": lambda: plain_bytes(theirs[rank], state.rows, write=True),
        "save": save,
        "plain load": lambda: plain_bytes(theirs[rank], into),
        "load": lambda: read_rows(ours, read_manifest(ours), "rows", state.first, into),
        "plain load in one process": lambda: list(map(plain_bytes, theirs, shards)),
        "load in one process": lambda: read_rows(ours, read_manifest(ours), "rows", 0, whole),
    }
    times, peaks = ({name: list[float]() for name in actions} for _ in range(2))
    for _ in range(rounds):
        for name, action in actions.items():
            seconds, extra = peak(lambda a=action, n=name: timed(a, alone="in one process" in n))
            times[name].append(seconds)
            peaks[name].append(extra)
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
            folder.mkdir()
    for values in (times, peaks):
        for kind in ("", "plain "):
            both = zip(values[f"{kind}save"], values[f"{kind}load"], strict=True)
            values[f"{kind}save and load"] = [a + b for a, b in both]
    return times, peaks


def train(batch: int, count: int) -> float:
    """Median seconds of ``count`` steps of ``Trainer.fit``, with ``batch`` samples in this process."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    module = FCCOModule(
        TabularMLP(hidden=[64, 64]),
        constraints=[ROCFairness(thresholds=[-3, -2, -1, 0, 1, 2, 3], kappa=0.005)],
        penalty=HingePenalty(rho=4),
        algorithm=SONEX(gamma=0.8, gamma_prime=0.1, lam=0.002),
        optimizer=lambda p: AdamType(p, lr=0.01, beta=0.1),
    )
    data = SyntheticDataModule(30_000, 1000, problem=GaussianGroups(dim=100), batches=UniformSampling(batch))
    ends: list[float] = []
    clock = LambdaCallback(on_train_batch_end=lambda *_: ends.append(time.perf_counter()))
    size = dist.get_world_size() if dist.is_initialized() else 1
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    flags = {"max_steps": FIRST_STEPS + count, "max_epochs": -1, "limit_val_batches": 0, "logger": False} | quiet
    place = {"accelerator": "cpu", "devices": size, "strategy": "ddp" if size > 1 else "auto"}
    Trainer(callbacks=[clock, Preemption()], **place, **flags).fit(module, data)  # as fcco fit does
    return float(np.median(np.diff(ends)[FIRST_STEPS - 1 :]))


def trainer_table(size: int, count: int, batches: Sequence[int] = (64, 128, 512, 2048), repeats: int = 3) -> Table:
    """Several processes and one, in turn."""
    several, single = job(size), job(1)
    times, samples = Rounds(), Rounds()
    for batch in batches:
        name = f"{size} x {batch}"
        pairs = [(max(several(train, batch, count)), single(train, size * batch, count)[0]) for _ in range(repeats)]
        times[name], times[f"one process, {name}"] = map(list, zip(*pairs, strict=True))
        samples[name] = [1e6 * float(np.median(times[name])) / (size * batch)]
    return compared([(times, samples)], "us per sample", {name: f"one process, {name}" for name in samples})


def gpu_microseconds(action: Callable[[], object]) -> float:
    """By CUDA events; the GPU is kept busy at first, so that it does not wait for work that can be queued."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(20_000_000)
    start.record()
    action()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end)


def gpu_table(num_rows: int, batch: int, rounds: int) -> Table:
    """Steps with all rows on one GPU, in batches of several sizes."""
    if not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here. Leave it out to measure on the CPU.")
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    state, random = filled(num_rows, Processes()).cuda(), np.random.default_rng()
    table, copy = state.rows.clone(), state.rows.clone()
    limit = 8e-3 * num_rows / np.median([gpu_microseconds(lambda: copy.copy_(table)) for _ in range(rounds)])
    result = {f"copy of {num_rows:,} rows": {"GB/s": float(limit)}}
    for size in sorted(s for s in {batch, 2**16, 2**20} if s <= num_rows):
        for name, step in {"plain": plain(table), "state": own_rows(state)}.items():
            times = []
            for _ in range(WARM_UP + rounds):
                drawn = [(i.cuda(), v.cuda()) for i, v in Variant(step, range(num_rows), size).draw(random)]
                times.append(gpu_microseconds(lambda s=step, d=drawn: [s(*arguments) for arguments in d]) / STEPS)
            us = float(np.median(times[WARM_UP:]))
            speed = 2e-3 * 32 * size / us  # a sector read and a sector written per row
            result[f"{name}, {size} rows"] = {"us": us, "GB/s": speed, "of the copy": float(speed / limit)}
    dist.destroy_process_group()
    return result


def measured(given: argparse.Namespace) -> dict[str, Table]:
    """The tables that were asked for, by title."""
    size, rows, batch, rounds = given.processes, given.rows, given.batch, given.rounds
    if given.device == "cuda":
        return {f"GPU, {rows:,} rows": gpu_table(rows, batch, rounds)}
    if given.trainer:
        return {f"Trainer.fit, {size} processes": trainer_table(size, 4 * rounds)}
    call, where = job(size), f"{size} processes"
    tables = {f"Memory over n/P values, {rows:,} rows, {where}": dict(enumerate(call(memory, rows, batch)))}
    for n in (rows, rows // 10):
        of_each = call(steps, n, batch, rounds)
        tables[f"Steps, {batch} of {n:,} rows, {where}"] = compared(of_each, "bytes sent by a process", STEP_BASES)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.out.parent) as folder:
        of_each = call(files, rows, max(3, rounds // 10), Path(folder))
    tables[f"Files, {rows:,} rows, {where}"] = compared(of_each, "extra memory, MiB", FILE_BASES)
    return tables


def show(title: str, table: Table) -> None:
    """Print Markdown."""
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    print(f"\n{title}\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, row in table.items():
        print(f"| {name} | {' | '.join(f'{row[c]:,.4g}' if c in row else '' for c in columns)} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="two or more")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--batch", type=int, default=4096, help="of all processes; of each one, where it owns the rows")
    parser.add_argument("--rounds", type=int, default=50, help="a tenth for files, 4 times as many training steps")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--trainer", action="store_true", help="measure training steps instead")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/dual_state.json"))
    given = parser.parse_args()
    tables = measured(given)
    for title, table in tables.items():
        show(title, table)
    earlier = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(earlier | tables, indent=1))


if __name__ == "__main__":
    main()
