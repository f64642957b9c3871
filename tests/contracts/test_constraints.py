"""Properties of every constraint: its rows, its violation, and the gradient of its penalty on average over batches."""

from itertools import combinations

import pytest
import torch

from fcco_lightning import SoftRate
from fcco_lightning.errors import FCCOError
from fcco_lightning.outer import Absolute, Hinge, Linear, SquaredHinge, slopes
from tests.contracts.registry_constraints import CASES
from tests.contracts.sampled import WAYS, Bench, N, as_lists, assert_refused, united

EXACT = 1e-9  # relative; sums of a few float64 numbers of order one
BIASED = [(name, way) for name, case in CASES.items() for way in ("uniform", "balanced") if way not in case.unbiased]


def error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def is_plain(constraint):
    """Whether the constraint is on a mean, or on the difference of two."""
    outer = constraint.outer(Hinge(1.0, constraint.kappa))
    return isinstance(outer, Hinge) or (isinstance(outer, Linear) and isinstance(outer.phi, Absolute))


def violations(bench):
    table = bench.network.table.detach()
    found = bench.case.brute(as_lists(table), {k: c.tolist() for k, c in bench.case.columns.items()})
    return torch.stack(found)


def measured(bench, index=None):
    columns = bench.batch(list(range(N)) if index is None else list(index))[bench.name]
    direct, rows = bench.part.measure(bench.network(columns["x"]), columns)
    assert direct is rows.index is None  # constraints have all rows, in their order, and no g_0
    return rows


@pytest.mark.parametrize("name", CASES)
def test_violations_are_the_formula(name):
    bench = Bench(CASES[name])
    found, expected = bench.part.violation(measured(bench).values), violations(bench)
    torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)
    assert (found > 0).tolist() == (expected > 0).tolist()
    assert len(bench.part.names) == len(set(bench.part.names)) == bench.part.num_rows == len(expected)


@pytest.mark.parametrize("name", CASES)
def test_a_penalty_is_that_of_the_violation(name):
    constraint = CASES[name].make()
    constraint.adapt(None)
    values = torch.rand(200, constraint.width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    excess = constraint.violation(values).clamp(min=0)
    assert int((excess > 0).sum()) > 0
    for phi, expected in ((Hinge(2.0, constraint.kappa), 2 * excess), (SquaredHinge(2.0, constraint.kappa), excess**2)):
        torch.testing.assert_close(constraint.outer(phi)(values), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if is_plain(CASES[name].make())])
def test_a_penalty_begins_where_the_constraint_is_violated(name):
    constraint = CASES[name].make()
    excess = torch.tensor([-0.3, -1e-6, 0.0, 1e-6, 0.3], dtype=torch.float64)
    values = (constraint.kappa + excess).unsqueeze(1)
    if constraint.width == 2:
        values = torch.stack([torch.full_like(excess, 0.4), 0.4 - values[:, 0].clamp(min=0)], dim=1)
        excess = (constraint.kappa + excess).clamp(min=0) - constraint.kappa
    torch.testing.assert_close(constraint.violation(values), excess)
    hinge = constraint.outer(Hinge(2.0, constraint.kappa))(values)
    torch.testing.assert_close(hinge, 2 * excess.clamp(min=0), rtol=1e-6, atol=1e-12)
    square = constraint.outer(SquaredHinge(2.0, constraint.kappa))(values)
    torch.testing.assert_close(square, excess.clamp(min=0).square(), rtol=1e-6, atol=1e-12)
    slope = slopes(constraint.outer(Hinge(2.0, constraint.kappa)), values)
    assert slope[:2].abs().max() == 0
    assert slope[3:].abs().tolist() == [[2.0] * constraint.width] * 2


@pytest.mark.parametrize("name", CASES)
def test_gradient_at_exact_rows_is_that_of_the_formula(name):
    bench = Bench(CASES[name])
    value, expected = bench.brute()
    assert value > 0
    torch.testing.assert_close(bench.gradient(bench.batch(range(N))), expected, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, case in CASES.items() for way in case.unbiased])
def test_gradient_is_right_on_average_over_all_batches(name, way):
    bench = Bench(CASES[name], WAYS[way]())
    mean, (value, gradient) = bench.mean(), bench.brute()
    assert error(bench.gradient_of(mean), gradient) < EXACT
    assert mean.item() == pytest.approx(value.item(), rel=EXACT)


@pytest.mark.parametrize(("name", "way"), BIASED)
def test_what_is_not_exact_on_average_and_by_how_much(name, way):
    """Relative errors of the mean gradient with batches of 4 of the 9 samples.

    Means over subsets that cross strata are ratios of two estimates (a mean over everyone is none: its weights add up
    to B in every batch), and standard scores are in units of the batch.
    """
    bench = Bench(CASES[name], WAYS[way]())
    mean, (_, expected) = bench.mean_gradient(), bench.brute()
    if name == "mean of everyone":
        assert error(mean, expected) < EXACT
    else:
        assert 1e-3 < error(mean, expected) < (2.0 if "standard" in name else 0.6)


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_a_batch_does_not_matter(name):
    bench, index = Bench(CASES[name], WAYS["balanced"]()), torch.tensor([0, 1, 2, 4, 6, 7, 8])
    expected = bench.gradient(bench.batch(index))
    for seed in range(3):
        order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(bench.gradient(bench.batch(index[order])), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if name != "roc, standard scores"])
def test_a_weight_of_two_is_a_sample_drawn_twice(name):
    """Standard scores are in units of the batch as it is."""
    bench = Bench(CASES[name])
    found = bench.gradient(bench.weighted([0, 1, 2, 3, 4, 5, 8], [2, 1, 1, 3, 1, 1, 2]))
    expected = bench.gradient(bench.batch([0, 0, 1, 2, 3, 3, 3, 4, 5, 8, 8]))
    torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_gradient_of_one(name):
    bench = Bench(CASES[name])
    whole = bench.gradient(bench.batch([0, 1, 2, 4, 6, 7, 8]))
    found = united(bench, bench.batch([0, 1]), bench.batch([2, 4, 6, 7, 8]))
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_subsets_say_of_what_a_batch_speaks(name):
    bench = Bench(CASES[name])
    subsets = bench.part.subsets(bench.columns)
    assert len(subsets) == bench.part.num_rows
    spoken = set()
    for size in (1, 4):
        for index in combinations(range(N), size):
            expected = [i for i, row in enumerate(subsets) if all(bool(mask[list(index)].any()) for mask in row)]
            rows = measured(bench, index)
            assert rows.weight.dtype == torch.bool
            assert rows.weight.nonzero().flatten().tolist() == expected
            assert rows.values.shape == (bench.part.num_rows, bench.part.width)
            spoken.add(len(expected))
    assert len(spoken) > 1 or name == "mean of everyone"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_values_are_finite_and_in_their_range(name, size):
    bench = Bench(CASES[name])
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            bench.network.table.copy_(size * torch.randn(bench.case.outputs.shape, generator=generator))
        values = measured(bench).values
        assert values.isfinite().all()
        torch.testing.assert_close(bench.part.range.project(values), values, rtol=0, atol=1e-12)
        (gradient,) = torch.autograd.grad(values.sum(), bench.network.table)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_vacuous_is_what_holds_whatever_the_order_of_the_scores(name):
    bench = Bench(CASES[name])
    outputs, quantity = bench.case.outputs, getattr(bench.part, "quantity", None)
    quantity = getattr(quantity, "rate", quantity)
    assert bench.part.vacuous(4 * outputs, bench.columns) is None
    shifted, shrunk = (bench.part.vacuous(o, bench.columns) for o in (2 * outputs + 100, 0.01 * outputs + 0.2))
    if name.startswith("roc"):
        assert "standard" in name or "0 of 2 thresholds" in shifted
    elif isinstance(quantity, SoftRate):
        assert "every sample is decided positive" in shifted
        assert "too soft" in shrunk
    elif "auc" in name:
        assert shifted is None
        assert "less than one unit of the pair loss (1)" in shrunk
    else:
        assert shifted is shrunk is None


@pytest.mark.parametrize("name", CASES)
def test_a_missing_column_is_named(name):
    bench = Bench(CASES[name])
    columns = {k: c for k, c in bench.columns.items() if k != bench.case.missing}
    with pytest.raises(FCCOError, match=bench.case.missing):
        bench.part.measure(bench.case.outputs, columns)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.bad_outputs is not None])
def test_outputs_of_another_shape_are_refused(name):
    bench = Bench(CASES[name])
    with pytest.raises(FCCOError, match=r"shape \(B,\) or \(B, 1\), got \(9, 2\)"):
        bench.part.measure(bench.case.bad_outputs, bench.columns)


@pytest.mark.parametrize("first", [True, False])
def test_tasks_out_of_range_are_refused(first):
    bench = Bench(CASES["non-forgetting"])
    batch = bench.batch(range(N))
    batch[bench.name]["task"] = torch.full((N,), 2)
    assert_refused(bench, batch, "task must be < 2", first=first)
