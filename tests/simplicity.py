"""Counts the code of the package that one training step runs through; `uv run python -m tests.simplicity` prints it.

The step is on one batch, after the first batches of a run, which are checked more thoroughly: with SONEX and 14
constraints on two ROC curves, and in two cases without constraints.
"""

import ast
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import fcco_lightning
from fcco_lightning import (
    ALEXR2,
    AUC,
    SONEX,
    SOX,
    Algorithm,
    AveragePrecision,
    CVaRGroupDRO,
    Engine,
    HingePenalty,
    Objective,
    ROCFairness,
    TabularMLP,
)
from fcco_lightning.constraints import Constraint
from fcco_lightning.data import UniformBatches
from fcco_lightning.data.batches import Drawn
from fcco_lightning.engine.arrivals import WATCHED

ROOT = Path(fcco_lightning.__file__).parent
FOLDERS = {
    "engine": ("engine",),
    "algorithms + estimators": ("algorithms", "estimators"),
    "objectives": ("objectives",),
    "constraints + outer": ("constraints", "outer"),
    "state": ("state",),
}


CASES: dict[str, tuple[Callable[[], Objective], Callable[[], Algorithm], list[Constraint]]] = {
    "ROC, SONEX": (AUC, SONEX, [ROCFairness()]),
    "average precision, SOX": (AveragePrecision, SOX, []),
    "CVaR, ALEXR2": (lambda: CVaRGroupDRO(0.5, num_groups=2), ALEXR2, []),
}


def prepared(name: str) -> tuple[Engine, torch.optim.Optimizer, list[dict[str, torch.Tensor]]]:
    """An engine with its optimizer, and some batches of 128 samples."""
    (objective, make, constraints), g, n = CASES[name], torch.Generator().manual_seed(0), 1000
    columns = {"y": torch.arange(n) % 2, "group": torch.arange(n) // 2 % 2, "index": torch.arange(n)}
    x, network, algorithm = torch.randn(n, 8, generator=g), TabularMLP([16], in_features=8), make()
    problem = algorithm.pose(
        objective(),
        constraints,
        HingePenalty(10.0) if constraints else None,
        num_samples=n,
        sampling={"target": Drawn(columns, UniformBatches(n, 128, 0))},
    )
    chosen = [torch.randperm(n, generator=g)[:128] for _ in range(4)]
    batches = [{"x": x[i], **{name: column[i] for name, column in columns.items()}} for i in chosen]
    engine = Engine(network, problem, algorithm)
    return engine, torch.optim.SGD(engine.params, lr=0.1), batches


def traced(engine: Engine, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> list[tuple[str, str]]:
    """File and function of every call into the package while a batch is trained on, in order."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            calls.append((str(path.relative_to(ROOT)), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        engine.train_batch(batch, optimizer)
    finally:
        sys.setprofile(None)
    return calls


def figures(name: str) -> dict[str, int]:
    """Numbers of functions and files that a step of a case runs through, and of changes between files."""
    engine, optimizer, batches = prepared(name)
    for batch in itertools.islice(itertools.cycle(batches), WATCHED):
        engine.train_batch(batch, optimizer)
    calls = traced(engine, optimizer, batches[0])
    changes = sum(a[0] != b[0] for a, b in itertools.pairwise(calls))
    return {"functions": len(set(calls)), "files": len({file for file, _ in calls}), "changes of file": changes}


def lines() -> dict[str, int]:
    """Numbers of source lines of the core, by folder."""

    def of(name: str) -> int:
        paths = [ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py")
        return sum(len(path.read_text().splitlines()) for path in paths)

    return {name: sum(map(of, parts)) for name, parts in FOLDERS.items()}


def bodies() -> list[int]:
    """Numbers of lines of all function bodies of the core, without docstrings, in increasing order."""
    found = []
    for parts in FOLDERS.values():
        for name in parts:
            for path in [ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py"):
                nodes = ast.walk(ast.parse(path.read_text()))
                found += [_body(n) for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted(found)


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first, *rest = function.body
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and bool(rest)
    start = rest[0].lineno if documented else first.lineno
    return (function.body[-1].end_lineno or start) - start + 1


def main() -> None:
    """Print all figures."""
    for case in CASES:
        print(f"{case:35s} {'; '.join(f'{count} {name}' for name, count in figures(case).items())}")
    for name, count in lines().items():
        print(f"{name:35s} {count:6,d}")
    sizes = bodies()
    print(f"{'body of a function, p90':35s} {sizes[int(0.9 * len(sizes))]:6,d}")
    verbs = [name for name in vars(Engine) if not name.startswith("_") and callable(getattr(Engine, name))]
    print(f"{'public methods of Engine':35s} {len(verbs):6,d}  {', '.join(verbs)}")


if __name__ == "__main__":
    main()
