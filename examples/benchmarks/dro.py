"""Robust linear regression: gap against oracle calls and seconds, beside a transcription of the published algorithm.

``min_w max_{q in CVaR} sum_i q_i (x_i w - y_i)^2 / 2 - nu n |q - 1/n|^2 + (mu/2)|w|^2`` on a table of yours, whose
columns are standardised; every solver stops at the same certified gap::

    uv run python examples/benchmarks/dro.py --data yacht.csv concrete.csv --target y
    uv run python examples/benchmarks/dro.py --synthetic 100000 20            # no table: n rows, d features
    uv run python examples/benchmarks/dro.py --data text.parquet --target y --classes --nu 0.01

All variants take turns in one process with one thread, each solving the whole problem once a round; a row is the median
over rounds, and its ratio the median of the ratios within a round.  "transcription" is DRAGO's published pseudo-code
(DRAGO paper, Alg. 2, with the errata) in plain NumPy: a table of gradients (n, d), and pool-adjacent-violators in a
loop; once more with a compiled isotonic regression instead of the loop.  It has the same step size and looks at the gap
as often.
"""

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from sklearn.exceptions import ConvergenceWarning
from timing import Table, interleaved, report

from fcco_lightning import CappedSimplex, DROClassifier, DRORegressor
from fcco_lightning.ambiguity import ChiSquarePenalty
from fcco_lightning.dro import DRAGO, LSVRG, MinibatchSGD
from fcco_lightning.dro.drago import default_alpha
from fcco_lightning.dro.losses import Squared
from fcco_lightning.dro.problem import LinearProblem
from fcco_lightning.dro.solvers import blocks_of
from fcco_lightning.pictures.style import BLUE, GREEN, PURPLE, VERMILION, new_figure, quiet_frame, row_of_axes, save

Array = NDArray[np.float64]
COLOURS = [BLUE, VERMILION, GREEN, PURPLE, "#E69F00", "#56B4E9", "#000000"]


def pool(y: Array) -> Array:
    """Isotonic regression by pooling adjacent violators, as printed."""
    blocks: list[list[float]] = []
    for value in y:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            mean, size = blocks.pop()
            last = blocks[-1]
            blocks[-1] = [(last[0] * last[1] + mean * size) / (last[1] + size), last[1] + size]
    return np.concatenate([np.full(int(size), mean) for mean, size in blocks])


def compiled(y: Array) -> Array:
    """The same in compiled code."""
    return np.asarray(isotonic_regression(y).x)


def spectral_weights(v: Array, sigma: Array, fit: Callable[[Array], Array]) -> Array:
    """``argmax <q, v> - |q|^2 / 2`` over the permutations' hull of sigma."""
    order = np.argsort(v)
    q = np.empty(len(v))
    q[order] = v[order] - fit(v[order] - sigma)
    return np.maximum(q, 0)


def transcription(
    x: Array, y: Array, tail: float, nu: float, mu: float, b: int, tol: float, fit: Callable[[Array], Array]
) -> Array:
    """DRAGO paper, Alg. 2, for the squared loss, CVaR and the chi-square penalty.

    Args:
        x: features (n, d).
        y: targets (n,).
        tail: share of the samples of CVaR.
        nu: weight of the penalty.
        mu: weight of the ridge term.
        b: block size.
        tol: gap at which to stop.
        fit: the isotonic regression.
    """
    n, d = x.shape
    sigma = np.diff(np.clip(np.arange(n + 1) - (1 - tail) * n, 0, None)) / (tail * n)
    blocks = blocks_of(n, b)
    m = len(blocks)
    alpha = default_alpha(LinearProblem(x, y, Squared(), CappedSimplex(tail), ChiSquarePenalty(nu), mu), b)
    random = np.random.default_rng(0)

    def dual_prox(v: Array, c: float) -> Array:
        return spectral_weights(v / c, sigma, fit)

    def gap(w: Array) -> float:
        residual = x @ w - y
        gradient = x.T @ (dual_prox(residual**2 / 2, 2 * n * nu) * residual) + mu * w
        return float(gradient @ gradient) / (2 * mu)

    w, q = np.zeros(d), np.full(n, 1 / n)
    residual = x @ w - y
    losses, gradients, weights = residual**2 / 2, residual[:, None] * x, q.copy()
    total, path = gradients.T @ weights, [w] * m
    old_gradients, old_weights = gradients.copy(), weights.copy()
    pull = 1 / (16 * alpha * (1 + alpha) * (m - 1) ** 2) if m > 1 else 0.0
    t, next_look = 0, 1
    while True:
        t += 1
        i, j, k = random.integers(m), random.integers(m), t % m
        beta = (1 - (1 + alpha) ** (1 - t)) / alpha
        r = 1 / (1 + alpha) if t > 1 else 0.0
        block = blocks[i]
        now = (x[block] @ w - y[block])[:, None] * x[block]
        delta = m * (now.T @ q[block] - old_gradients[block].T @ old_weights[block])
        c = min(pull, beta / (m - 1)) if m > 1 else 0.0
        w = ((beta - c * (m - 1)) * w + c * (sum(path[1:]) if m > 1 else 0) - (total + r * delta) / mu) / (1 + beta)
        path = [*path[1:], w]
        block = blocks[k]
        residual = x[block] @ w - y[block]
        before = losses.copy()
        losses[block] = residual**2 / 2
        ahead = losses.copy()
        drawn = blocks[j]
        ahead[drawn] += r * m * ((x[drawn] @ w - y[drawn]) ** 2 / 2 - before[drawn])
        c = 2 * n * nu
        q = dual_prox(ahead + beta * c * q, c * (1 + beta))
        old_gradients, old_weights = gradients.copy(), weights.copy()
        total = total - gradients[block].T @ weights[block]
        gradients[block], weights[block] = residual[:, None] * x[block], q[block]
        total = total + gradients[block].T @ weights[block]
        if t >= next_look:
            if gap(w) <= tol:
                return w
            next_look = t + max(m, t // 8)


def load(path: str, target: str) -> tuple[Array, Any]:
    """Standardised numeric features, and the target."""
    table = pd.read_parquet(path) if path.endswith(".parquet") else pd.read_csv(path)
    x = table.drop(columns=target).select_dtypes("number").to_numpy(np.float64)
    spread = x.std(axis=0)
    return (x - x.mean(axis=0))[:, spread > 0] / spread[spread > 0], table[target].to_numpy()


def synthetic(n: int, d: int) -> tuple[Array, Array]:
    """A linear model with noise of three spreads."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, d))
    return x, x @ random.normal(size=d) / np.sqrt(d) + random.choice([0.2, 0.5, 2.0], n) * random.normal(size=n)


def variants(n: int, slow: bool) -> dict[str, Any]:
    """Solvers by name."""
    made: dict[str, Any] = {"L-BFGS": "lbfgs", "DRAGO, b = n": DRAGO(n), "DRAGO, b = n/d": DRAGO(), "LSVRG": LSVRG(16)}
    if slow:
        made |= {
            "DRAGO, b = 16": DRAGO(min(16, n)),
        }
        made["SGD, b = 64 (biased)"] = MinibatchSGD(min(64, n))
    return made


def measure(x: Array, y: Any, args: argparse.Namespace) -> tuple[Table, dict[str, Any]]:
    """Times to the gap by solver, and histories."""
    settings = {"ambiguity": CappedSimplex(args.tail), "nu": args.nu, "mu": args.mu, "tol": args.tol}
    settings |= {"fit_intercept": False, "random_state": 0, "max_passes": args.passes}
    make = DROClassifier if args.classes else DRORegressor
    if not args.classes:
        y = (y - y.mean()) / y.std()
    histories: dict[str, Any] = {}

    def run(name: str, solver: Any) -> Callable[[Any], None]:
        limit = {"max_passes": 20} if isinstance(solver, MinibatchSGD) else {}

        def step(_: Any) -> None:
            model = make(solver=solver, **(settings | limit)).fit(x, y)
            histories[name] = model.history_

        return step

    n, d = x.shape
    steps = {name: run(name, solver) for name, solver in variants(n, n <= args.slow).items()}
    bases = dict.fromkeys(steps, "L-BFGS")
    if not args.classes and n <= args.slow:
        b = max(1, n // d)
        zero = LinearProblem(x, y, Squared(), CappedSimplex(args.tail), ChiSquarePenalty(args.nu), args.mu)
        tol = args.tol * max(1.0, zero.point(np.zeros(d)).value)
        for name, fit in (("transcription, b = n/d", pool), ("the same, compiled pooling", compiled)):
            steps[name] = lambda _, fit=fit: transcription(x, y, args.tail, args.nu, args.mu, b, tol, fit)
            bases[name] = "DRAGO, b = n/d"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        table = interleaved(steps, [None], args.rounds, "cpu", bases, warm_up=1)
    for name, history in histories.items():
        table[name] |= {"gap": f"{history[-1]['gap']:.1e}", "passes": history[-1]["oracle_calls"] / n}
    return table, histories


def draw(histories: dict[str, Any], n: int, title: str, path: Path) -> Path:
    """Gap against passes over the data and against seconds."""
    figure = new_figure(9, 3.6)
    axes = row_of_axes(figure, 2)
    for colour, (name, history) in zip(COLOURS, histories.items(), strict=False):
        gaps = [max(record["gap"], 1e-16) for record in history]
        axes[0].plot([record["oracle_calls"] / n for record in history], gaps, color=colour, label=name)
        axes[1].plot([record["seconds"] for record in history], gaps, color=colour)
    for one, label in zip(axes, ("passes over the data", "seconds"), strict=True):
        one.set(xscale="log", yscale="log", xlabel=label, ylabel="duality gap")
        quiet_frame(one)
    axes[0].set_title(title)
    axes[0].legend(fontsize=7)
    return save(figure, path)


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--synthetic", nargs=2, type=int, metavar=("N", "D"))
    parser.add_argument("--target", default="y")
    parser.add_argument("--classes", action="store_true", help="the target is a class: multinomial loss")
    parser.add_argument("--tail", type=float, default=0.25)
    parser.add_argument("--nu", type=float, default=1.0)
    parser.add_argument("--mu", type=float, default=1.0)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=2000)
    parser.add_argument("--slow", type=int, default=20_000, help="up to this n also small blocks and the transcription")
    parser.add_argument("--out", type=Path, default=Path("runs/dro"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    problems = {Path(path).stem: load(path, args.target) for path in args.data}
    if args.synthetic:
        problems["synthetic"] = synthetic(*args.synthetic)
    if not problems:
        parser.error("give tables with --data, or --synthetic N D")
    results, curves = {}, {}
    for name, (x, y) in problems.items():
        title = f"{name}, {x.shape[0]} x {x.shape[1]}"
        results[title], curves[title] = measure(x, y, args)
        draw(curves[title], len(y), title, args.out / f"{name}.png")
    report(results, args.out / "dro.json")
    (args.out / "histories.json").write_text(json.dumps(curves))


if __name__ == "__main__":
    main()
