"""DRAGO by way of its compiled kernel: what that covers, how it is compiled, and its arguments and results."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco_lightning.ambiguity import CappedSimplex, ChiSquarePenalty, EuclideanPenalty, Simplex
from fcco_lightning.dro import kernel, kernel_data, kernel_samples
from fcco_lightning.dro.losses import Logistic, Multinomial, Squared
from fcco_lightning.dro.paces import Regularised
from fcco_lightning.dro.problem import Array, Done, LinearProblem, Progress
from fcco_lightning.dro.solvers import edges_of
from fcco_lightning.errors import ConfigError

_LOSSES: dict[type[Any], int] = {
    Squared: kernel_data.SQUARED,
    Logistic: kernel_data.LOGISTIC,
    Multinomial: kernel_data.MULTINOMIAL,
}
_WIDE = 16  # features from which on BLAS is faster than loops
FIRST = 64  # iterations to draw blocks for at first, and 8 more for every block; then twice as many, ...
_MOST = 1_000_000  # at once


class Loop:
    """DRAGO's iterations on one problem, with mu > 0 and nu > 0.

    Args:
        problem: what is solved.
        block_size: b.
        most_growth: times the objective at w = 0 the iterates have diverged at.

    Raises:
        ConfigError: naming what the kernel does not cover, or where numba is not installed.
    """

    def __init__(self, problem: LinearProblem, block_size: int, most_growth: float) -> None:
        refuse(problem)
        self.iterate = compiled()
        self.shape, n = problem.zeros().shape, problem.n
        wide = self.shape[0] > _WIDE or len(self.shape) > 1
        self.data = kernel_data.Data(
            x=_plain(problem.x),
            columns=np.empty((0, n)) if wide else _plain(problem.x.T),
            y=_plain(problem.y.reshape(n, -1).T),
            edges=edges_of(n, block_size),
            loss=_LOSSES[type(problem.loss)],
            cap=float(problem.dual.cap),
            unit=float(problem.dual.unit),
            nu=float(problem.penalty.nu),
            mu=float(problem.mu),
            most_growth=most_growth,
        )
        self.blocks = len(self.data.edges) - 1
        self.drawn = np.empty((0, 2), np.int64)  # and not used by an attempt that diverged

    def run(self, progress: Progress, random: np.random.Generator, paces: Regularised) -> None:
        """Iterate from w = 0, q = 1/n.

        Raises:
            Done: when the solver shall stop.
            NonFiniteError: if the iterates diverge.
        """
        tables, growth = self._tables(progress.w.T.flatten()), paces.growth
        ends = kernel_data.Ends(float(progress.tol), float(progress.max_calls))
        marks = kernel_data.Marks(
            t=0,
            next_look=0,
            first_gap=np.inf,
            last=-1,
            calls=progress.calls,
            looks=0,
            value=float(progress.value),
            lower=float(progress.lower),
            at_step=np.nan,
            at_response=np.nan,
            limit=np.inf,
            status=kernel_data.GO_ON,
        )
        size = FIRST + 8 * self.blocks
        while marks.status == kernel_data.GO_ON:
            since, before = progress.seconds, marks.t
            if len(self.drawn) == 0:
                self.drawn, size = self._draws(random, size), min(2 * size, _MOST)
            records = np.empty((len(self.drawn) // self.blocks + 2, 3))
            marks = self.iterate(self.data, ends, tables, growth, self.drawn, marks._replace(looks=0), records)
            self.drawn = self.drawn[marks.t - before :]
            best = np.ascontiguousarray(tables.best.reshape(len(self.data.y), -1).T).reshape(self.shape)
            progress.take_over(best, marks.value, marks.lower, marks.calls, records[: marks.looks], since)
        progress.check(np.nan if marks.status == kernel_data.DIVERGED else 0.0)
        raise Done

    def _draws(self, random: np.random.Generator, size: int) -> NDArray[np.int64]:
        if self.blocks == 1:
            return np.zeros((size, 2), np.int64)
        return random.integers(self.blocks, size=(size, 2))

    def _tables(self, best: Array) -> kernel_data.Tables:
        (k, n), size = self.data.y.shape, best.size
        return kernel_data.Tables(
            w=np.zeros(size),
            best=best,
            total=np.zeros(size),
            change=np.zeros(size),
            step=np.zeros(size),
            path=np.zeros((self.blocks, size)),
            path_sum=np.zeros(size),
            q=np.full(n, 1 / n),
            losses=np.empty(n),
            weighted=np.zeros(n * k),
            now=np.empty(n),
            slopes=np.empty(n * k),
            part=np.empty(n * k),
            v=np.empty(n),
            room=np.empty(k * kernel_data.TILE),
            sums=np.empty((3, kernel_data.TILE)),
            worst=np.empty(n),
        )


def refuse(problem: LinearProblem) -> None:
    """Refuse what the kernel does not cover.

    Raises:
        ConfigError: naming it.
    """
    penalty, ambiguity, loss = problem.penalty, problem.ambiguity, problem.loss
    if not isinstance(problem.x, np.ndarray):
        need, got = "dense features", f"x={type(problem.x).__name__}"
    elif not isinstance(ambiguity, Simplex | CappedSimplex):
        need, got = "Simplex() or CappedSimplex(...)", f"ambiguity={ambiguity!r}"
    elif not isinstance(penalty, ChiSquarePenalty | EuclideanPenalty):
        need, got = "divergence='chi_square' or 'euclidean'", f"penalty={penalty!r}"
    elif not penalty.nu > 0:
        need, got = "nu > 0", f"nu={penalty.nu!r}"
    elif not problem.mu > 0:
        need, got = "mu > 0", f"mu={problem.mu!r}"
    elif type(loss) not in _LOSSES:
        need, got = "the squared, the logistic or the multinomial loss", f"loss={loss!r}"
    else:
        return
    raise ConfigError(f"compiled=True needs {need}, got {got}. Use compiled=False.")


def _plain(values: Array) -> Array:
    """In one layout, as every other would be compiled anew."""
    if values.dtype == np.float64 and values.flags.carray:  # as require would find, at more cost
        return values
    return np.require(values, np.float64, ["C", "A", "W"])


@cache
def compiled() -> Callable[..., kernel_data.Marks]:
    """:func:`kernel.iterate` compiled by numba; the result is kept on the disk, where numba finds a place for it.

    Raises:
        ConfigError: where numba is not installed.
    """
    try:
        from numba import njit  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ConfigError(
            "compiled=True needs numba, which is not installed. Install it (pip install 'fcco-lightning[compiled]'), "
            "or use compiled=False."
        ) from None
    modules = [kernel_data, kernel_samples, kernel]
    names: dict[str, Any] = {}  # in which functions find each other compiled
    for module in modules:
        names |= vars(module)
    # numba compiles anew what it has on the disk when the file of the function has changed, not those of what it calls
    newest = max((str(module.__file__) for module in modules), key=lambda file: Path(file).stat().st_mtime)
    for part, flags in kernel.PARTS.items():
        name = part.__name__
        options: dict[str, Any] = {"fastmath": flags, "error_model": "numpy", "no_cfunc_wrapper": True}
        options["no_cpython_wrapper"] = part is not kernel.iterate  # the one that Python calls
        function = FunctionType(part.__code__.replace(co_filename=newest), names, name)
        try:
            names[name] = njit(cache=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor that of the user can be written
            names[name] = njit(**options)(function)
    return names["iterate"]  # type: ignore[no-any-return]
