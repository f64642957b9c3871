"""Robust linear models: gap against oracle calls and seconds, beside a transcription of the published algorithm.

``min_w max_{q in CVaR} sum_i q_i l_i(w) - nu n |q - 1/n|^2 + (mu/2)|w|^2`` with squared or multinomial losses on a
table of yours, whose columns are standardised; every solver stops at the same certified gap::

    uv run python examples/benchmarks/dro.py --data yacht.csv concrete.csv --target y --tail 0.75 --share 0.8
    uv run python examples/benchmarks/dro.py --data text.parquet --target y --classes --tail 0.75
    OMP_NUM_THREADS=1 uv run python examples/benchmarks/dro.py --data yacht.csv     # one thread, as all figures are
    uv run python examples/benchmarks/dro.py --large 100000 1000000 --features 50   # L-BFGS or DRAGO?  One picture

All variants take turns in one process with one thread (OMP_NUM_THREADS=1: NumPy and what numba compiles have each a
library of linear algebra of their own), each solving the whole problem five times in a row (``--in-a-row``).  Times are
those of the processor for one solution and hold the proofs, not the compilation, whose seconds are printed; a row is
the median over rounds, and its ratio the median of the ratios within a round.  The transcription is in
``dro_transcription.py``; it has the same step size and looks at the gap as often.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dro_transcription
import numpy as np
import torch
from numpy.typing import NDArray
from timing import Table, interleaved, report

from fcco_lightning import CappedSimplex
from fcco_lightning.ambiguity import ChiSquarePenalty
from fcco_lightning.data.sources import read_table
from fcco_lightning.dro import DRAGO, LBFGS, LSVRG, MinibatchSGD, MultilevelSGD
from fcco_lightning.dro.losses import Multinomial, Squared
from fcco_lightning.dro.problem import Done, LinearProblem, Progress, Solver
from fcco_lightning.evaluation.pictures import (
    BLUE,
    GREEN,
    PURPLE,
    VERMILION,
    new_figure,
    quiet_frame,
    row_of_axes,
    save,
)

Array = NDArray[np.float64]
BASELINES: dict[str, Solver] = {"SGD, b = 64 (biased)": MinibatchSGD(64), "multilevel SGD, b = 64": MultilevelSGD(64)}
COLOURS = [BLUE, VERMILION, GREEN, PURPLE, "#E69F00", "#56B4E9", "#000000"]


def load(path: str, args: argparse.Namespace) -> LinearProblem:
    """A share of the rows of a table, with standardised numeric features."""
    table = read_table(path)
    rows = np.random.default_rng(0).permutation(len(table))[: int(args.share * len(table))]
    table = table.iloc[rows] if args.share < 1 else table
    x = table.drop(columns=args.target).select_dtypes("number").to_numpy(np.float64)
    spread = x.std(axis=0)
    x = (x - x.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    return posed(x, table[args.target].to_numpy(), args, args.nu)


def posed(x: Array, y: Array, args: argparse.Namespace, nu: float) -> LinearProblem:
    """The problem of the module's first lines."""
    if args.classes:
        classes, codes = np.unique(y, return_inverse=True)
        y = np.eye(len(classes))[codes]
    else:
        y = (y - y.mean()) / y.std()
    loss = Multinomial() if args.classes else Squared()
    x = np.ascontiguousarray(x, dtype=np.float64)
    return LinearProblem(x, y, loss, CappedSimplex(args.tail), ChiSquarePenalty(nu), args.mu)


def synthetic(n: int, d: int, condition: float = 1.0) -> tuple[Array, Array]:
    """A linear model with noise of three spreads; the features' own spreads fall from 1 to 1/condition."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, d)) * np.geomspace(1, 1 / condition, d)
    return x, x @ random.normal(size=d) / np.sqrt(d) + random.choice([0.2, 0.5, 2.0], n) * random.normal(size=n)


def variants(problem: LinearProblem) -> dict[str, Solver]:
    """Solvers by name."""
    n, d = problem.x.shape
    made: dict[str, Solver] = {"L-BFGS": LBFGS()}
    made |= {f"DRAGO, {name}": DRAGO(b) for name, b in blocks(n, d).items()}
    if find_spec("numba"):
        made |= {f"DRAGO, compiled, {name}": DRAGO(b, compiled=True) for name, b in blocks(n, d).items()}
    return made | {"LSVRG, b = 16": LSVRG(16)} | BASELINES


def blocks(n: int, d: int) -> dict[str, int]:
    """Sizes of blocks by name."""
    return {"b = n": n, "b = n/d": max(1, n // d), "b = 16": min(16, n)}


def run(solver: Callable[[Progress], None], problem: LinearProblem, tol: float, passes: float) -> Progress:
    """Solve to the gap tol."""
    progress = Progress(problem, tol, passes, time.process_time)
    with suppress(Done):
        solver(progress)
    return progress


def solving(problem: LinearProblem, solver: Solver) -> Callable[[Progress], None]:
    """A solver of the package on a problem, with seed 0."""
    return lambda progress: solver.solve(problem, progress, np.random.default_rng(0))


def measure(problem: LinearProblem, args: argparse.Namespace) -> tuple[Table, dict[str, Any]]:
    """Times to the gap by solver, and histories."""
    n, d = problem.x.shape
    histories: dict[str, Any] = {}
    solvers = {name: solving(problem, solver) for name, solver in variants(problem).items()}
    bases = dict.fromkeys(solvers, "L-BFGS")
    codes = {"transcription": dro_transcription.PLAIN, "numba": dro_transcription.compiled()}
    for (kind, code), (size, b) in ((c, s) for c in codes.items() for s in blocks(n, d).items()):
        if code is not None and n * d * n // b <= args.work:
            solvers[f"{kind}, {size}"] = lambda progress, b=b, code=code: dro_transcription.solve(
                problem, progress, args.tail, b, code
            )
            bases[f"{kind}, {size}"] = f"DRAGO, {size}"
    for name, seconds in compile_all(solvers, problem, args.tol).items():
        print(f"{name}: {seconds:.1f} s of compilation")

    def step(name: str) -> Callable[[Any], None]:
        passes = 20 if name in BASELINES else args.passes

        def solve(_: Any) -> None:
            histories[name] = run(solvers[name], problem, args.tol, passes).history

        return solve

    steps = {name: step(name) for name in solvers}
    table = interleaved(
        steps, [None], args.rounds, "cpu", bases, warm_up=1, clock=time.process_time, in_a_row=args.in_a_row
    )
    for name, history in histories.items():
        table[name] |= {"gap": f"{history[-1]['gap']:.1e}", "passes": history[-1]["oracle_calls"] / n}
    return table, histories


def compile_all(solvers: dict[str, Callable[[Progress], None]], problem: LinearProblem, tol: float) -> dict[str, float]:
    """Solve once with whatever is compiled; seconds of the processor that the first of each kind took, by name.

    What numba finds on the disk takes no time; without ``fcco_lightning/dro/__pycache__`` it compiles anew.
    """
    kinds = {name: kind for name in solvers for kind in ("DRAGO, compiled", "numba") if name.startswith(kind)}
    seconds: dict[str, float] = {}
    for name, kind in kinds.items():
        start = time.process_time()
        run(solvers[name], problem, tol, 2)
        seconds.setdefault(kind, time.process_time() - start)
    return seconds


def best(table: Table, kind: str) -> float:
    """Milliseconds of the best block; infinite where none was measured."""
    return min((row["ms"] for name, row in table.items() if name.startswith(kind)), default=np.inf)


def curves(histories: dict[str, Any], n: int, axes: Any, title: str) -> None:
    """Gap against passes over the data and against seconds."""
    kinds = itertools.cycle(itertools.product(("-", "--", ":"), COLOURS))
    for (name, history), (line, colour) in zip(histories.items(), kinds, strict=False):
        gaps, drawn = [max(record["gap"], 1e-16) for record in history], {"color": colour, "linestyle": line}
        axes[0].plot([record["oracle_calls"] / n for record in history], gaps, label=name, **drawn)
        axes[1].plot([record["seconds"] for record in history], gaps, **drawn)
    for one, label in zip(axes, ("passes over the data", "seconds of the processor"), strict=True):
        one.set(xscale="log", yscale="log", xlabel=label, ylabel="duality gap")
        quiet_frame(one)
    axes[0].set_title(title)
    axes[0].legend(fontsize=7)


def large(args: argparse.Namespace) -> None:
    """L-BFGS and DRAGO on many synthetic samples, by nu: gap against oracle calls and seconds of the processor.

    Where numba is installed DRAGO is run compiled, too, and only so in the picture.
    """
    kinds = {"DRAGO": False} | ({"DRAGO, compiled": True} if find_spec("numba") else {})
    figure = new_figure(4.2 * len(args.nus), 3.4 * 2 * len(args.large))
    axes = figure.subplots(2 * len(args.large), len(args.nus), squeeze=False)
    results: dict[str, Table] = {}
    for row, n in enumerate(args.large):
        x, y = synthetic(n, args.features, args.condition)
        for column, nu in enumerate(args.nus):
            problem = posed(x, y, args, nu)
            made: dict[str, Solver] = {"L-BFGS": LBFGS()}
            for kind, compiled in kinds.items():
                for parts in args.parts:
                    size = "n" if parts == 1 else f"n/{parts}"
                    made[f"{kind}, b = {size}"] = DRAGO(max(1, n // parts), start=args.start, compiled=compiled)
            solvers = {name: solving(problem, solver) for name, solver in made.items()}
            compile_all(solvers, problem, args.tol)
            histories = {name: run(s, problem, args.tol, args.passes).history for name, s in solvers.items()}
            title = f"n = {n:,}, d = {args.features}, nu = {nu:g}"
            results[title] = {name: last(history, n) for name, history in histories.items()}
            fastest = {
                name: history for name, history in histories.items() if name.startswith(("L-BFGS", [*kinds][-1]))
            }
            curves(fastest, n, [axes[2 * row][column], axes[2 * row + 1][column]], title)
    report(results, args.out / "large.json")
    save(figure, args.out / "large.png")


def last(history: list[dict[str, float]], n: int) -> dict[str, Any]:
    """What the last record says."""
    end = history[-1]
    return {"seconds": end["seconds"], "passes": end["oracle_calls"] / n, "gap": f"{end['gap']:.1e}"}


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--large", nargs="*", type=int, default=[], help="numbers of synthetic samples")
    parser.add_argument("--features", type=int, default=50, help="d of the synthetic samples")
    parser.add_argument("--condition", type=float, default=1.0, help="largest by smallest spread of a feature")
    parser.add_argument(
        "--start", choices=["practice", "theory", "steady"], default="practice", help="DRAGO's, with --large"
    )
    parser.add_argument("--nus", nargs="*", type=float, default=[0.1, 0.01, 0.001], help="with --large")
    parser.add_argument("--parts", nargs="*", type=int, default=[1, 16, 50], help="n/b of DRAGO, with --large")
    parser.add_argument("--target", default="y")
    parser.add_argument("--share", type=float, default=1.0, help="of the rows of a table, drawn with seed 0")
    parser.add_argument("--classes", action="store_true", help="the target is a class: multinomial loss")
    parser.add_argument("--tail", type=float, default=0.25)
    parser.add_argument("--nu", type=float, default=1.0)
    parser.add_argument("--mu", type=float, default=1.0)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-a-row", type=int, default=5, help="solutions by each solver in its turn")
    parser.add_argument("--passes", type=int, default=2000)
    parser.add_argument("--work", type=float, default=1e9, help="up to this n d n/b also the transcription")
    parser.add_argument("--out", type=Path, default=Path("runs/dro"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if not args.data and not args.large:
        parser.error("give tables with --data, or numbers of samples with --large")
    results, histories = {}, {}
    for path in args.data:
        problem, name = load(path, args), Path(path).stem
        n, d = problem.x.shape
        title = f"{name}, {n} x {d}"
        results[title], histories[title] = measure(problem, args)
        base, theirs = (best(results[title], kind) for kind in ("L-BFGS", "transcription"))
        for kind in ("DRAGO, b", "DRAGO, compiled"):
            ours = best(results[title], kind)
            over = f"over L-BFGS {ours / base:.2f}, transcription over it {theirs / ours:.1f}"
            print(f"{title}, best blocks, {kind}: {over}")
        figure = new_figure(9, 3.6)
        curves(histories[title], n, row_of_axes(figure, 2), title)
        save(figure, args.out / f"{name}.png")
    if args.data:
        report(results, args.out / "dro.json")
        (args.out / "histories.json").write_text(json.dumps(histories))
    if args.large:
        large(args)


if __name__ == "__main__":
    main()
