"""The compiled loop has the iterates of the NumPy implementation, and names what it does not support."""

import inspect
import sys
from contextlib import suppress

import numpy as np
import pytest
from scipy import sparse

from fcco_lightning.ambiguity import (
    CappedSimplex,
    ChiSquareBall,
    ChiSquarePenalty,
    EuclideanPenalty,
    KLPenalty,
    Simplex,
)
from fcco_lightning.dro import DRAGO, DROClassifier, DRORegressor, compiled, kernel
from fcco_lightning.dro.dual import DualSteps
from fcco_lightning.dro.losses import Hinge, Logistic, Multinomial, Squared
from fcco_lightning.dro.problem import Done, LinearProblem, Progress
from fcco_lightning.errors import ConfigError, NonFiniteError
from tests.combinations import every_nth

N = 90
RANDOM = np.random.default_rng(0)
NOISE = RANDOM.normal(size=N)
CODES = RANDOM.integers(3, size=N)


@pytest.fixture
def numba():
    """In a fresh checkout it compiles for 40 s: the tests that need it are slow."""
    return pytest.importorskip("numba", reason="numba, the extra [compiled], is not installed")


def problem(loss=Squared, ambiguity=None, penalty=None, mu=0.5, d=3, scale=1.0, n=N):
    x = scale * np.random.default_rng(1).normal(size=(n, d))
    signs = np.where(x[:, 0] / scale + NOISE[:n] > 0, 1.0, -1.0)
    y = {Squared: x[:, 0] / scale + NOISE[:n], Logistic: signs, Multinomial: np.eye(3)[CODES[:n]], Hinge: signs}[loss]
    return LinearProblem(x, y, loss(), ambiguity or CappedSimplex(0.4), penalty or ChiSquarePenalty(0.5), mu)


def solve(solver, posed, tol=1e-9, passes=100):
    progress = Progress(posed, tol, passes)
    with suppress(Done):
        solver.solve(posed, progress, np.random.default_rng(3))
    return progress


def agree(posed, tol=1e-9, passes=100, **arguments):
    """Both paths; returns the compiled one's progress."""
    slow, fast = (solve(DRAGO(compiled=c, **arguments), posed, tol, passes) for c in (False, True))
    columns = [[[r[name] for r in p.history] for name in ("oracle_calls", "objective", "gap")] for p in (slow, fast)]
    assert columns[0][0] == columns[1][0]
    assert fast.calls == slow.calls
    assert all(type(r["oracle_calls"]) is int for r in fast.history)
    np.testing.assert_allclose(columns[1][1], columns[0][1], rtol=1e-9)
    np.testing.assert_allclose(columns[1][2], columns[0][2], rtol=1e-6, atol=1e-11 * max(columns[0][1]))
    np.testing.assert_allclose(fast.w, slow.w, rtol=1e-7, atol=1e-9)
    assert fast.value == pytest.approx(slow.value, rel=1e-10)
    assert fast.lower == pytest.approx(slow.lower, rel=1e-9)
    seconds = [r["seconds"] for r in fast.history]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] <= seconds[-1] <= fast.seconds
    return fast


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "size"),
    every_nth(
        4, [(loss, size) for size in (None, 1, 16, N) for loss in (Squared, Logistic, Multinomial)], (Multinomial, 16)
    ),
)
def test_the_compiled_loop_goes_through_the_same_points(numba, loss, size):
    """16 does not divide 90."""
    found = agree(problem(loss), block_size=size)
    assert len(found.history) > 5


def interpreted(data, tables, growth, draws, place, records):
    kernel.iterate(data, tables, growth, draws, place.view(np.recarray), records)


@pytest.mark.parametrize("loss", [Squared, Logistic, Multinomial])
def test_the_kernel_is_ordinary_python(monkeypatch, loss):
    monkeypatch.setattr(compiled, "compiled", lambda: interpreted)
    agree(problem(loss, n=20), block_size=6, passes=10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ambiguity", "penalty"), [(Simplex(), EuclideanPenalty(3.0)), (CappedSimplex(1.0), ChiSquarePenalty(1e-3))]
)
def test_other_sets_and_penalties(numba, ambiguity, penalty):
    agree(problem(Squared, ambiguity, penalty), block_size=16)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "d"), [(Squared, 20), (Logistic, 20), (Multinomial, 20)])
def test_many_features(numba, loss, d):
    agree(problem(loss, d=d), block_size=N)
    agree(problem(loss, d=d), block_size=16)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["theory", "steady"])
def test_other_starts_and_a_step_size_that_is_given(numba, start):
    for size in (16, N):
        agree(problem(), block_size=size, start=start)
    agree(problem(), block_size=16, start=start, alpha=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 1, 16, 30, N])
@pytest.mark.parametrize("start", ["practice", "theory", "steady"])
@pytest.mark.parametrize("penalty", [ChiSquarePenalty(0.5), EuclideanPenalty(60.0)])
@pytest.mark.parametrize("ambiguity", [Simplex(), CappedSimplex(0.4)])
@pytest.mark.parametrize("loss", [Squared, Logistic, Multinomial])
def test_the_compiled_loop_goes_through_the_same_points_everywhere(numba, loss, ambiguity, penalty, start, size):
    """Features of norm 1: where the objective first rises ten thousandfold, NumPy's path is not its own to rounding."""
    for d in (1, 3, 20):
        agree(problem(loss, ambiguity, penalty, d=d, scale=d**-0.5), tol=1e-8, block_size=size, start=start)


@pytest.mark.slow
def test_more_samples_than_a_tile_and_more_iterations_than_are_drawn_at_once(numba, monkeypatch):
    monkeypatch.setattr(compiled, "FIRST", 3)
    x, n = np.random.default_rng(2).normal(size=(700, 4)), 700
    for y, loss in ((x[:, 0] + x[:, 1] ** 2, Squared()), (np.eye(3)[np.arange(n) % 3], Multinomial())):
        posed = LinearProblem(x, y, loss, CappedSimplex(0.5), ChiSquarePenalty(1.0), 1.0)
        for size in (n, 300):
            assert agree(posed, block_size=size, passes=200).gap <= 1e-9


def retrying():
    """The first step size raises the objective a millionfold."""
    x = np.random.default_rng(1).normal(size=(N, 3)) * [1.0, 1.0, 30.0]
    return LinearProblem(x, x[:, 0] + NOISE, Squared(), CappedSimplex(0.1), ChiSquarePenalty(1e-3), 1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:DRAGO will need about")
def test_where_the_iterates_diverge_the_steady_start_is_tried(numba):
    """It goes on with the blocks that were drawn and not used."""
    for size in (16, N):
        found = agree(retrying(), passes=60, block_size=size)
        objectives = [r["objective"] for r in found.history]
        assert objectives.count(objectives[0]) > 1  # that at w = 0, once for each attempt
    with pytest.raises(NonFiniteError, match="the solver's step is too large"):
        solve(DRAGO(N, alpha=1e6, compiled=True), problem(Squared, Simplex(), mu=1e-3, scale=100))


@pytest.mark.slow
def test_estimators_and_a_read_only_array(numba):
    posed = problem(d=4)
    x = posed.x.copy()
    x.setflags(write=False)
    for array in (x, np.asfortranarray(posed.x)):
        fits = [DRORegressor(solver=DRAGO(compiled=c), random_state=0).fit(array, posed.y) for c in (False, True)]
        np.testing.assert_allclose(fits[1].coef_, fits[0].coef_, rtol=1e-7)
        assert fits[1].n_oracle_calls_ == fits[0].n_oracle_calls_
        np.testing.assert_allclose(fits[1].q_, fits[0].q_, atol=1e-9)
    fits = [DROClassifier(solver=DRAGO(compiled=c), random_state=0).fit(posed.x, CODES) for c in (False, True)]
    np.testing.assert_allclose(fits[1].coef_, fits[0].coef_, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e12])
@pytest.mark.parametrize("cap", [1 / N, 2.5 / N, 1.0])
def test_thresholds_by_the_kernels_own_code_in_python(cap, scale):
    """Also from far away, and where t has too few digits for Newton's method to end."""
    v, q = scale * (NOISE**2 - (NOISE**2).max()), np.empty(N)
    ambiguity = CappedSimplex(1 / (cap * N))
    expected = DualSteps(ambiguity, EuclideanPenalty(1.0), N).respond(v)[1]
    for start in (np.nan, -1e3, 0.5):
        kernel.clip(v, cap, start, q)
        assert q.sum() == pytest.approx(1, abs=1e-12)
        assert q.min() >= 0
        assert q.max() <= cap * (1 + 1e-12)
        np.testing.assert_allclose(q, expected, atol=max(1e-11, 1e-15 * scale))


def test_exp_by_the_kernels_own_code_in_python():
    z = -np.concatenate([[0.0, 1e-300, 800.0], 10.0 ** np.linspace(-18, np.log10(700), 500)])
    expected = np.exp(np.maximum(z, -708))
    kernel.exponential(z, np.empty(len(z)))
    np.testing.assert_allclose(z, expected, rtol=5e-16)


@pytest.mark.parametrize("part", kernel.PARTS)
def test_the_source_that_numba_reads_is_that_of_the_function(part):
    assert inspect.getsource(part).startswith(f"def {part.__name__}(")
    assert inspect.getsourcefile(part) == kernel.__file__


UNCOVERED = {
    "x=csr_array": {"x": True},
    "ambiguity=ChiSquareBall": {"ambiguity": ChiSquareBall(0.5)},
    "penalty=KLPenalty": {"penalty": KLPenalty(0.5)},
    "nu=0.0": {"penalty": ChiSquarePenalty(0.0)},
    "mu=0.0": {"mu": 0.0},
    "loss=Hinge": {"loss": Hinge},
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_is_not_covered_is_named(name):
    changes = dict(UNCOVERED[name])
    is_sparse = changes.pop("x", False)
    posed = problem(**changes)
    posed.x = sparse.csr_array(posed.x) if is_sparse else posed.x
    with pytest.raises(ConfigError, match=rf"compiled=True needs .*, got {name}.*Use compiled=False"):
        solve(DRAGO(compiled=True), posed)


def test_without_numba_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled.compiled.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'fcco-lightning\[compiled\]'.*compiled=False"):
        solve(DRAGO(compiled=True), problem())


@pytest.mark.slow
def test_where_nothing_can_be_written_it_is_compiled_without_the_disk(numba, monkeypatch):
    from numba.core import caching

    def refused(self):
        raise OSError("read-only")

    locators = [c for name, c in vars(caching).items() if name.endswith("CacheLocator")]
    for locator in locators:
        if hasattr(locator, "ensure_cache_path"):
            monkeypatch.setattr(locator, "ensure_cache_path", refused)
    compiled.compiled.cache_clear()
    iterate = compiled.compiled()
    compiled.compiled.cache_clear()
    assert callable(iterate)
    assert iterate.stats.cache_path is None
