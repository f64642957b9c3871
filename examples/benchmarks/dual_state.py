"""What a large dual state costs beside the least that its mathematics asks for.

All variants take turns in every round; a time is that of the slowest process, and of times and of ratios within a round
the median over rounds is shown.  Each process has one thread.  By default there are rows for 100 million samples, in
two processes::

    uv run python examples/benchmarks/dual_state.py                      # memory, steps and files
    uv run python examples/benchmarks/dual_state.py --trainer            # training steps

- Memory of a process over that of n/P float32 values.
- Steps: read, average (``torch.lerp``) and write the rows of a batch, wherever they are, against the two collectives
  alone.  Once more with a tenth of the rows.
- Files: save and load against the same bytes without format and checksum.  What is loaded was written just before, so
  it comes from the page cache.
- Trainer: ``Trainer.fit`` of a job like Adult (SONEX, ROC fairness) against one process with the union batch.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from runs import step_times
from timing import Table, largest_resident_set, report
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
from fcco_lightning.state.parts import FOLDER, read_parts, write_part
from fcco_lightning.state.processes import Processes
from fcco_lightning.training import Preemption

GAMMA = 0.1
CHUNK_BYTES = 4 << 20  # of plain files
STEPS = 10  # of each variant in a round
WARM_UP = 3  # rounds
FIRST_STEPS = 20  # of a training, left out
EXCHANGE = "collectives"
STEP_BASES = {"state, any rows": EXCHANGE}
FILE_BASES = {name: f"plain {name}" for name in ("save", "load", "save and load")}

Step = Callable[[Tensor, Tensor], object]
Rounds = dict[str, list[float]]  # what was measured in every round


def job(size: int) -> Callable[..., list[Any]]:
    """Start processes; what is returned calls a function in all of them, and returns their results by rank."""
    context, port = get_context("forkserver"), find_free_network_port()
    context.set_forkserver_preload(["lightning.pytorch", "fcco_lightning.training"])  # imported once for all
    workers = [ProcessPoolExecutor(1, context, join, (rank, size, port)) for rank in range(size)]

    def call(work: Callable[..., Any], *args: Any) -> list[Any]:
        asked = [worker.submit(work, *args) for worker in workers]
        for answer in wait(asked, return_when=FIRST_EXCEPTION).done:
            answer.result()
        return [answer.result() for answer in asked]

    return call


def join(rank: int, size: int, port: int) -> None:
    """One thread; of several processes each is told its place as a cluster would, so that Lightning starts none."""
    torch.set_num_threads(1)
    if size > 1:
        place = {"LOCAL_RANK": rank, "RANK": rank, "WORLD_SIZE": size, "NODE_RANK": 0, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"})
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", timeout=timedelta(minutes=3))


def timed(action: Callable[[], object]) -> float:
    """Seconds, from a moment when all processes are ready."""
    dist.barrier()
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


def drawn(num_rows: int, batch: int, random: np.random.Generator) -> list[tuple[Tensor, Tensor]]:
    """Different rows, with inner values, for the steps of one round."""
    chosen = (random.choice(num_rows, batch, replace=False) for _ in range(STEPS))
    return [(torch.from_numpy(c), torch.randn(batch, 1)) for c in chosen]


def filled(num_rows: int, processes: Processes) -> DualState:
    """A sharded state with a value in each of its rows."""
    state = DualState(num_rows, processes=processes, layout="sharded")
    state.rows.normal_()
    return state


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
    processes, random = Processes(), np.random.default_rng()
    share = shard_of(batch, processes.rank, processes.size)[1]
    exchange, exchanged = collectives(processes, share, batch)
    variants = {EXCHANGE: exchange, "state, any rows": any_rows(filled(num_rows, processes))}
    times, sent = ({name: list[float]() for name in variants} for _ in range(2))
    for _ in range(WARM_UP + rounds):
        rows = {name: drawn(num_rows, share, random) for name in variants}
        for name, step in variants.items():
            before = processes.bytes
            seconds = timed(lambda s=step, given=rows[name]: [s(*arguments) for arguments in given])
            times[name].append(seconds / STEPS)
            sent[name].append((processes.bytes - before) / STEPS or exchanged)
    return {name: t[WARM_UP:] for name, t in times.items()}, {name: b[WARM_UP:] for name, b in sent.items()}


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(num_rows: int, batch: int) -> dict[str, float]:
    """Memory of a state over that of n/P values: when made, and after some steps."""
    processes, random = Processes(), np.random.default_rng()

    def use(state: DualState) -> None:
        share = shard_of(batch, processes.rank, processes.size)[1]
        for index, values in drawn(state.num_rows, share, random):
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
    return result, max(0, largest_resident_set() - before / 2**20)


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
    ours, theirs = folder / "ours", folder / f"plain.{rank}"
    into, place = torch.ones_like(state.rows), "state_dict.rows"
    header = {FOLDER: str(folder), "save_id": ours.name, "world_size": processes.size}
    checkpoint = {"state_dict": {"rows": torch.empty(num_rows, 1, device="meta")}, "fcco": header}

    def save() -> None:
        write_part(ours, rank, {place: state.rows})
        processes.agree()

    actions: dict[str, Callable[[], object]] = {
        "plain save": lambda: plain_bytes(theirs, state.rows, write=True),
        "save": save,
        "plain load": lambda: plain_bytes(theirs, into),
        "load": lambda: into.copy_(read_parts(checkpoint, {place: (state.first, len(into))})[place]),
    }
    times, peaks = ({name: list[float]() for name in actions} for _ in range(2))
    for _ in range(rounds):
        for name, action in actions.items():
            seconds, extra = peak(lambda a=action: timed(a))
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
    module = FCCOModule(
        TabularMLP(hidden=[64, 64]),
        constraints=[ROCFairness(thresholds=[-3, -2, -1, 0, 1, 2, 3], kappa=0.005)],
        penalty=HingePenalty(rho=4),
        algorithm=SONEX(gamma=0.8, gamma_prime=0.1, lam=0.002),
        optimizer=lambda p: AdamType(p, lr=0.01, beta=0.1),
    )
    data = SyntheticDataModule(30_000, 1000, problem=GaussianGroups(dim=100), batches=UniformSampling(batch))
    size = dist.get_world_size() if dist.is_initialized() else 1
    place = {"devices": size, "strategy": "ddp" if size > 1 else "auto"}
    as_fcco_fit = [Preemption()]
    seconds = step_times(module, data, FIRST_STEPS + count, time.perf_counter, as_fcco_fit, **place)
    return float(np.median(seconds[FIRST_STEPS - 1 :]))


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


def measured(given: argparse.Namespace) -> dict[str, Table]:
    """The tables that were asked for, by title."""
    size, rows, batch, rounds = given.processes, given.rows, given.batch, given.rounds
    if given.trainer:
        return {f"Trainer.fit, {size} processes": trainer_table(size, 4 * rounds)}
    call, where = job(size), f"{size} processes"
    of_each = {f"process {rank}": row for rank, row in enumerate(call(memory, rows, batch))}
    tables = {f"Memory over n/P values, {rows:,} rows, {where}": of_each}
    for n in (rows, rows // 10):
        found = call(steps, n, batch, rounds)
        tables[f"Steps, {batch} of {n:,} rows, {where}"] = compared(found, "bytes sent by a process", STEP_BASES)
    with tempfile.TemporaryDirectory(dir=given.out) as folder:
        found = call(files, rows, max(3, rounds // 10), Path(folder))
    tables[f"Files, {rows:,} rows, {where}"] = compared(found, "extra memory, MiB", FILE_BASES)
    return tables


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="two or more")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--batch", type=int, default=4096, help="of all processes; of each one, where it owns the rows")
    parser.add_argument("--rounds", type=int, default=50, help="a tenth for files, 4 times as many training steps")
    parser.add_argument("--trainer", action="store_true", help="measure training steps instead")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    report(measured(given), given.out / f"dual_state{'_trainer' if given.trainer else ''}.json")


if __name__ == "__main__":
    main()
