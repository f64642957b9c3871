"""DRAGO with its compiled kernel: the supported problems, the compilation, and conversion of arguments and results."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco_lightning.ambiguity import CappedSimplex, ChiSquarePenalty, EuclideanPenalty, Simplex
from fcco_lightning.dro import kernel
from fcco_lightning.dro.losses import Array, Logistic, Multinomial, Squared
from fcco_lightning.dro.problem import Done, LinearProblem, Progress, edges_of
from fcco_lightning.errors import ConfigError

_LOSSES: dict[type[Any], int] = {Squared: kernel.SQUARED, Logistic: kernel.LOGISTIC, Multinomial: kernel.MULTINOMIAL}
_WIDE = 16  # number of features from which on BLAS is faster than loops
FIRST = 64  # blocks are drawn for 64 + 8 M iterations at first, then for twice as many each time
_MOST = 1_000_000  # largest number of iterations for which blocks are drawn at once


class Loop:
    """DRAGO's iterations on one problem, with mu > 0 and nu > 0.

    Args:
        progress: progress on the problem to be solved.
        block_size: b.
        most_growth: factor on the objective at w = 0 above which the iterates count as diverged.

    Raises:
        ConfigError: if the kernel does not support the problem, or numba is not installed.
    """

    def __init__(self, progress: Progress, block_size: int, most_growth: float) -> None:
        problem = progress.problem
        refuse(problem)
        self.iterate, self.progress = compiled(), progress
        self.shape, n = problem.zeros().shape, problem.n
        wide = self.shape[0] > _WIDE or len(self.shape) > 1
        self.data = kernel.Data(
            x=_contiguous(problem.x),
            columns=np.empty((0, n)) if wide else _contiguous(problem.x.T),
            y=_contiguous(problem.y.reshape(n, -1).T),
            edges=edges_of(n, block_size),
            loss=_LOSSES[type(problem.loss)],
            cap=float(problem.dual.cap),
            unit=float(problem.dual.unit),
            nu=float(problem.penalty.nu),
            mu=float(problem.mu),
            most_growth=most_growth,
            tol=float(progress.tol),
            max_calls=float(progress.max_calls),
        )
        self.drawn = np.empty((0, 2), np.int64)  # drawn blocks that no attempt has used yet

    def run(self, random: np.random.Generator, growth: kernel.Growth) -> None:
        """Iterate from w = 0, q = 1/n.

        Raises:
            Done: when the solver should stop.
            NonFiniteError: if the iterates diverge.
        """
        progress = self.progress
        blocks = growth.blocks
        tables = self._tables(self.progress.w.T.flatten())
        marks = kernel.Marks(calls=progress.calls, value=float(progress.value), lower=float(progress.lower))
        size = FIRST + 8 * blocks
        while marks.status == kernel.GO_ON:
            since, before, marks.looks = progress.seconds, marks.t, 0
            if len(self.drawn) == 0:
                self.drawn, size = _draws(random, blocks, size), min(2 * size, _MOST)
            records = np.empty((len(self.drawn) // blocks + 2, 3))
            place = np.array([tuple(vars(marks).values())], kernel.PLACE)
            self.iterate(self.data, tables, growth, self.drawn, place, records)
            marks = kernel.Marks(*place[0].item())
            self.drawn = self.drawn[marks.t - before :]
            best = np.ascontiguousarray(tables.best.reshape(len(self.data.y), -1).T).reshape(self.shape)
            progress.add_records(best, marks.value, marks.lower, marks.calls, records[: marks.looks], since)
        progress.check(np.nan if marks.status == kernel.DIVERGED else 0.0)
        raise Done

    def _tables(self, best: Array) -> kernel.Tables:
        (k, n), size, blocks = self.data.y.shape, best.size, len(self.data.edges) - 1
        return kernel.Tables(
            w=np.zeros(size),
            best=best,
            total=np.zeros(size),
            change=np.zeros(size),
            step=np.zeros(size),
            path=np.zeros((blocks, size)),
            path_sum=np.zeros(size),
            q=np.full(n, 1 / n),
            losses=np.empty(n),
            weighted=np.zeros(n * k),
            now=np.empty(n),
            slopes=np.empty(n * k),
            part=np.empty(n * k),
            v=np.empty(n),
            room=np.empty(k * kernel.TILE),
            sums=np.empty((3, kernel.TILE)),
            worst=np.empty(n),
        )


def _draws(random: np.random.Generator, blocks: int, size: int) -> NDArray[np.int64]:
    return np.zeros((size, 2), np.int64) if blocks == 1 else random.integers(blocks, size=(size, 2))


def refuse(problem: LinearProblem) -> None:
    """Refuse problems that the kernel does not support.

    Raises:
        ConfigError: naming the unsupported property.
    """
    penalty, ambiguity, loss = problem.penalty, problem.ambiguity, problem.loss
    if not isinstance(problem.x, np.ndarray):
        required, present = "dense features", f"x={type(problem.x).__name__}"
    elif not isinstance(ambiguity, Simplex | CappedSimplex):
        required, present = "Simplex() or CappedSimplex(...)", f"ambiguity={ambiguity!r}"
    elif not isinstance(penalty, ChiSquarePenalty | EuclideanPenalty):
        required, present = "divergence='chi_square' or 'euclidean'", f"penalty={penalty!r}"
    elif not penalty.nu > 0:
        required, present = "nu > 0", f"nu={penalty.nu!r}"
    elif not problem.mu > 0:
        required, present = "mu > 0", f"mu={problem.mu!r}"
    elif type(loss) not in _LOSSES:
        required, present = "the squared, the logistic or the multinomial loss", f"loss={loss!r}"
    else:
        return
    raise ConfigError(f"compiled=True needs {required}, got {present}. Use compiled=False.")


def _contiguous(values: Array) -> Array:
    """Convert to the one memory layout for which the kernel is compiled."""
    if values.dtype == np.float64 and values.flags.carray:  # faster than np.require
        return values
    return np.require(values, np.float64, ["C", "A", "W"])


@cache
def compiled() -> Callable[..., None]:
    """Return :func:`kernel.iterate` compiled by numba; the result is cached on the disk if numba finds a folder for it.

    Raises:
        ConfigError: if numba is not installed.
    """
    try:
        from numba import njit  # noqa: PLC0415 (an extra)
        from numba.extending import register_jitable  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            "compiled=True needs numba, which is not installed. Install it (pip install 'fcco-lightning[compiled]'), "
            "or use compiled=False."
        ) from None
    options: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}
    for part, flags in kernel.PARTS.items():
        register_jitable(fastmath=flags, no_cpython_wrapper=True, **options)(part)
    options["fastmath"] = kernel.PARTS[kernel.iterate]
    try:
        return njit(cache=True, **options)(kernel.iterate)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder for the cache is writable
        return njit(**options)(kernel.iterate)  # type: ignore[no-any-return]
