"""Steps that take turns: what the benchmarks of a step's cost share."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils._python_dispatch import TorchDispatchMode

from fcco_lightning import Engine

Step = Callable[[Any], object]  # one training step on a batch
Table = dict[str, dict[str, Any]]  # by row and column


def momentum(params: Any) -> torch.optim.Optimizer:
    """The optimizer of everybody whose steps are compared."""
    return torch.optim.SGD(params, lr=1e-4, momentum=0.9)


def descent(loss: Callable[[Any], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """Down the gradient of a batch's loss, in a loop that anyone would write."""

    def step(batch: Any) -> None:
        value = loss(batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def plain(network: nn.Module) -> Step:
    """Cross-entropy."""

    def loss(batch: dict[str, Tensor]) -> Tensor:
        y = batch["y"].float()
        return binary_cross_entropy_with_logits(network(batch["x"]).view_as(y), y)

    return descent(loss, momentum(network.parameters()))


def engine_step(engine: Engine, optimizer: torch.optim.Optimizer) -> Step:
    """One batch through the engine."""
    return lambda batch: engine.train_batch(batch, optimizer)


def interleaved(
    variants: Mapping[str, Step],
    data: list[Any],
    rounds: int,
    device: str,
    bases: Mapping[str, str] | None = None,
    warm_up: int = 10,
    clock: Callable[[], float] = time.perf_counter,
    in_a_row: int = 1,
) -> Table:
    """Every round each variant makes its steps on the same batches, in an order drawn anew.

    Args:
        variants: steps by name.
        data: batches, in turn.
        rounds: that count.
        device: "cpu" or "cuda", which is waited for.
        bases: of which variant a variant's ratio is; of the first one where nothing is said.
        warm_up: rounds before, for caches and allocators.
        clock: seconds; ``time.process_time`` leaves out what other programs on a busy machine take.
        in_a_row: steps of a variant in a round.  After the first one its code is in the caches, as in training; with
            one step all code is that of another variant.

    Returns: per variant the median milliseconds, and median and quartiles of its ratio within a round.
    """
    names = list(variants)
    times: dict[str, list[float]] = {name: [] for name in names}
    generator = torch.Generator().manual_seed(0)
    for k in range(warm_up + rounds):
        batches = [data[(k * in_a_row + i) % len(data)] for i in range(in_a_row)]
        for position in torch.randperm(len(names), generator=generator).tolist():
            name = names[position]
            start = _now(device, clock)
            for batch in batches:
                variants[name](batch)
            seconds = (_now(device, clock) - start) / in_a_row
            if k >= warm_up:
                times[name].append(seconds)
    table: Table = {}
    for name, own in times.items():
        base = (bases or {}).get(name, names[0])
        table[name] = compared(own, times[base]) | ({"of": base} if bases else {})
    return table


def compared(own: list[float], base: list[float]) -> dict[str, Any]:
    """Median milliseconds of seconds by round, and median and quartiles of their ratios to those of the base."""
    ratios = [a / b for a, b in zip(own, base, strict=True)]
    low, high = (float(q) for q in np.quantile(ratios, [0.25, 0.75]))
    return {"ms": 1e3 * statistics.median(own), "ratio": statistics.median(ratios), "25%": low, "75%": high}


def _now(device: str, clock: Callable[[], float]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return clock()


def largest_resident_set() -> float:
    """MiB of this process, from /proc, so on Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_of(forward: Callable[[], object]) -> int:
    """How many operators a function dispatches."""
    with _Counter() as counter:
        forward()
    return counter.count


def report(results: Mapping[str, Table], path: Path) -> None:
    """Print the tables and keep them."""
    for title, rows in results.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        print(f"\n{title}\n| step | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
        for name, row in rows.items():
            cells = (row.get(column, "") for column in columns)
            print(f"| {name} | {' | '.join(f'{c:.3f}' if isinstance(c, float) else str(c) for c in cells)} |")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1))
