"""Figures of a split that does not fit into memory: ``ScoreCounts`` against all samples at once.

Normal scores come in chunks of 100,000; every row is a process of its own, whose memory is the peak above its start::

    uv run python examples/benchmarks/streaming.py --samples 1000000 10000000
"""

import argparse
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from timing import Table, report
from torch import Tensor

from fcco_lightning.evaluation.metrics import ScoreCounts, auc, average_precision, roc_gap

CHUNK = 100_000


def chunks(samples: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Scores, labels and groups."""
    for first in range(0, samples, CHUNK):
        size, generator = min(CHUNK, samples - first), torch.Generator().manual_seed(first)
        labels, groups = (torch.randint(0, 2, (size,), generator=generator) for _ in range(2))
        yield torch.randn(size, generator=generator) + labels + 0.3 * groups, labels, groups


def counted(samples: int) -> dict[str, float]:
    """Figures from counts, with the bounds of their errors."""
    counts = ScoreCounts()
    for chunk in chunks(samples):
        counts.update(*chunk)
    figures = {"AUC": counts.auc(), "AP": counts.average_precision(), "gap": counts.roc_gap()}
    values = {name: figure.value for name, figure in figures.items()}
    return values | {f"{name} ±": figure.error for name, figure in figures.items()}


def at_once(samples: int) -> dict[str, float]:
    """Exact figures."""
    scores, labels, groups = (torch.cat(column) for column in zip(*chunks(samples), strict=True))
    figures = {"AUC": auc(scores, labels), "AP": average_precision(scores, labels)}
    return {n: float(f) for n, f in (figures | {"gap": roc_gap(scores, labels, groups)}).items()}


WAYS = {"counts": counted, "at once": at_once}


def measured(way: str, samples: int) -> dict[str, float]:
    """Figures, with MiB and seconds of the processor."""
    torch.set_num_threads(1)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    figures = WAYS[way](samples)
    seconds = time.process_time() - start
    return {"MiB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "s": seconds} | figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    given = parser.parse_args()
    table: Table = {}
    for samples in given.samples:
        for way in WAYS:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                table[f"{way}, {samples:,} samples"] = pool.submit(measured, way, samples).result()
    report({"Figures of a split": table}, given.out / "streaming.json")


if __name__ == "__main__":
    main()
