"""Properties of every objective: F, its gradient at exact rows, and its gradient on average over batches."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch.utils import _pytree as pytree

from fcco_lightning import MOAP, MSVR, AveragePrecision, CVaRGroupDRO, Engine, MeanAtMost
from fcco_lightning.constraints import HingePenalty
from fcco_lightning.errors import FCCOError
from fcco_lightning.objectives import LogisticLoss, LogisticPair, SquaredHingePair
from tests.contracts.registry_objectives import CASES
from tests.contracts.sampled import (
    STRATUM,
    WAYS,
    Bench,
    Case,
    Drawn,
    Lookup,
    N,
    Plan,
    Way,
    assert_refused,
    balanced,
    by_row,
    scores,
    united,
)
from tests.reference.probabilities import Uniform

# one of them is asked in ways that its docstring calls biased
pytestmark = pytest.mark.filterwarnings("ignore:MultiInstanceAUC compares:UserWarning")

EXACT = 1e-9  # relative; sums of at most a few hundred float64 numbers of order one
AP = CASES["average precision"]
WITH_ROWS = [name for name, case in CASES.items() if case.make().outer is not None]
GROUP_ROWS = [name for name in WITH_ROWS if CASES[name].missing == "group"]
BAG_ROWS = [name for name in WITH_ROWS if CASES[name].missing == "bag"]
SAMPLE_ROWS = [name for name in WITH_ROWS if Bench(CASES[name]).engine.problem.all_terms[0].per_sample]
IN_TURN = [  # every case is quick in one of the ways
    pytest.param(name, way, marks=[pytest.mark.slow] * (place != number % len(case.unbiased)))
    for number, (name, case) in enumerate(CASES.items())
    for place, way in enumerate(case.unbiased)
]
BIASED = [(name, way) for name, case in CASES.items() for way in ("uniform", "balanced") if way not in case.unbiased]


def error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def value_of(bench):
    """F over the whole data, as the package has it."""
    seen = bench.measured(bench.batch(range(N)))
    value = torch.zeros(()) if seen[0] is None else seen[0]
    for reading in seen[1]:
        rows = by_row(reading, reading.g)
        assert not rows.isnan().any()
        if bench.case.coupled:
            value = value + bench.objective.outer.ambiguity.worst_case(rows[:, 0]) @ rows[:, 0]
        else:
            values = reading.f(reading.g)
            value = value + torch.dot(reading.weight.to(values.dtype), values)
    return value.item()


@pytest.mark.parametrize("name", CASES)
def test_value_over_the_whole_data_is_the_formula(name):
    bench = Bench(CASES[name])
    assert value_of(bench) == pytest.approx(bench.brute()[0].item(), rel=EXACT)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if [*case.make().parameters()]])
@pytest.mark.parametrize("change", [-0.6, 0.6])
def test_parameters_have_their_present_values(name, change):
    """And not those which they had when the problem was posed, the outer function with them."""
    bench = Bench(CASES[name])
    with torch.no_grad():
        for parameter in bench.objective.parameters():
            parameter.add_(change)
    value, gradient = bench.brute()
    assert value_of(bench) == pytest.approx(value.item(), rel=EXACT)
    bench.keep_exact_rows()
    torch.testing.assert_close(bench.gradient(bench.batch(range(N))), gradient, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("name", CASES)
def test_gradient_at_exact_rows_is_that_of_the_formula(name):
    bench = Bench(CASES[name])
    _, expected = bench.brute()
    torch.testing.assert_close(bench.gradient(bench.batch(range(N))), expected, rtol=EXACT, atol=EXACT)
    with torch.no_grad():  # and the formula's gradient is the slope of its value
        table, step = bench.network.table, 1e-6
        values = []
        for sign in (1, -1):
            table.view(-1)[0] += sign * step
            values.append(bench.formula().item())
            table.view(-1)[0] -= sign * step
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(expected[0].item(), abs=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_half_precision_ends_with_the_network(name):
    """What is computed from outputs of 8 bits has the 24 bits of float32, whatever autocast would do with it."""
    bench = Bench(CASES[name], WAYS["balanced"]())
    seen = bench.engine.evaluate(bench.batch([0, 1, 2, 5, 6, 7]))

    def measured(dtype):
        outputs = pytree.tree_map(lambda one: one.detach().bfloat16().to(dtype), seen.now)
        g0, readings = bench.engine.measure(seen._replace(now=outputs))
        values = [] if g0 is None else [g0.view(1)]
        return torch.cat([*values, *(reading.g[reading.present].flatten() for reading in readings)])

    expected = measured(torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        found = measured(torch.bfloat16)
    torch.testing.assert_close(found.double(), expected.double(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("name", "way"), IN_TURN)
def test_gradient_is_right_on_average_over_all_batches(name, way):
    bench = Bench(CASES[name], WAYS[way]())
    mean, (value, gradient) = bench.mean(), bench.brute()
    assert error(bench.gradient_of(mean), gradient) < EXACT
    assert mean.item() == pytest.approx(value.item(), rel=EXACT)


@pytest.mark.parametrize(("name", "way"), BIASED)
def test_what_is_not_exact_on_average_and_by_how_much(name, way):
    """Relative errors of the mean gradient with batches of 4 of the 9 samples.

    Losses of a mini-batch (``positive="batch"`` at exact rows, and InfoNCE) are biased for small batches by definition.
    Risks of groups that cross strata are ratios of two estimates, right as batches grow; tasks need all groups at once,
    which are then not drawn alike.  Nor are bags of different sizes, where instances are drawn and not bags.
    """
    bench = Bench(CASES[name], WAYS[way]())
    mean, (_, expected) = bench.mean_gradient(), bench.brute()
    assert 1e-3 < error(mean, expected) < 0.6


def test_ratio_estimates_become_exact_as_batches_grow():
    """Relative errors of .21, .022 and 0 with 1 + 1, 2 + 4 and all 3 + 6 positives and negatives."""
    errors = []
    for positives, negatives in ((1, 1), (2, 4), (3, 6)):
        bench = Bench(CASES["cvar"], balanced(STRATUM, positives, negatives))
        errors.append(error(bench.mean_gradient(), bench.brute()[1]))
    assert 0.1 < errors[0] < 0.3
    assert 0.001 < errors[1] < errors[0] / 5
    assert errors[2] < EXACT


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_a_batch_does_not_matter(name):
    bench, index = Bench(CASES[name], WAYS["balanced"]()), torch.tensor([0, 1, 2, 6, 7, 8])
    expected = bench.gradient(bench.batch(index))
    for seed in range(3):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        found = bench.gradient(bench.batch(index[order]))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_batch_that_says_nothing_has_the_gradient_zero(name):
    """And not none, with which momentum and weight decay skip a step: batches of one class, query or time."""
    bench = Bench(CASES[name])
    for alike in _of_one_value(bench.case.columns):
        batch = bench.batch(alike)
        bench.network.zero_grad()
        bench.engine.descend(bench.estimate(batch))
        gradient = bench.network.table.grad
        assert gradient is not None
        g0, readings = bench.measured(batch)
        speaks = any(reading.present.any() for reading in readings)
        of_all = g0 is not None and bench.objective.direct_subsets(bench.case.columns) is None  # a mean over samples
        assert speaks or of_all or bench.objective.outer is None or not gradient.any()


def _of_one_value(columns):
    for column in columns.values():
        for value in column.unique(dim=0):
            alike = (column == value).view(N, -1).all(1).nonzero().flatten()
            if len(alike) > 1:
                yield alike


@pytest.mark.parametrize("name", SAMPLE_ROWS)
def test_a_repeated_sample_has_one_row_with_the_mean_of_its_values(name):
    bench = Bench(CASES[name])
    (reading,) = bench.measured(bench.batch([0, 3, 0, 5, 5, 1, 3]))[1]
    outputs, columns = _outputs(bench, [0, 3, 0, 5, 5, 1, 3])
    _, (values, weight, _, index) = bench.objective.measure(outputs, columns)
    of_samples = columns if "index" in columns else columns[bench.name]
    names = of_samples["index"] if index is None else index
    owners = bench.objective.row_domain(N, bench.columns).owners
    for one in names.unique():
        copies = names == one
        assert weight[copies].bool().all() == weight[copies].bool().any()  # a batch says something of all, or of none
        assert reading.present[copies].all() == weight[copies].bool().all()
        if not reading.present[copies].all():
            assert not reading.weight[copies].any()
            continue
        row = one if owners is None else owners.flatten()[:one].sum()
        assert (reading.rows[copies] == row).all()
        expected = values[copies].mean(0).expand(int(copies.sum()), -1)
        torch.testing.assert_close(reading.g[copies], expected, rtol=1e-12, atol=0)
        each = N / reading.term.num_rows / 4 * weight[copies].double().mean()  # 4 different samples
        torch.testing.assert_close(reading.weight[copies].sum().double(), each)


@pytest.mark.parametrize("name", SAMPLE_ROWS)
def test_a_plan_that_repeats_no_sample_need_not_look_for_copies(name):
    bench, index = Bench(CASES[name], WAYS["uniform"]()), [0, 1, 2, 6, 7, 8]
    expected = bench.gradient(bench.batch(index))
    for part in (*bench.engine.problem.all_terms, bench.engine.problem.row_parameters):
        if part is not None:
            part.repeats = False
    torch.testing.assert_close(bench.gradient(bench.batch(index)), expected, rtol=1e-12, atol=1e-12)


def _outputs(bench, index):
    if bench.case.others:
        batch = bench.batch(index)
        return bench.engine.functions.outputs(batch), batch
    columns = bench.batch(index)[bench.name]
    own = bench.objective.sample_parameters
    if own is not None:
        columns[own.name] = torch.full((len(index), own.width), own.start, dtype=torch.float64)
    return bench.network(columns["x"]), columns


@pytest.mark.parametrize("name", [*GROUP_ROWS, "cross entropy", "cross entropy of classes", "auc"])
def test_a_weight_of_two_is_a_sample_drawn_twice(name):
    bench = Bench(CASES[name])
    found = bench.gradient(bench.weighted([0, 1, 2, 6, 8], [2, 1, 1, 3, 1]))
    expected = bench.gradient(bench.batch([0, 0, 1, 2, 6, 6, 6, 8]))
    torch.testing.assert_close(found, expected, rtol=EXACT, atol=EXACT)
    assert error(bench.gradient(bench.batch([0, 1, 2, 6, 8])), expected) > 0.01


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_gradient_of_one(name):
    bench = Bench(CASES[name])
    whole = bench.gradient(bench.batch([0, 1, 2, 6, 7, 8]))
    found = united(bench, bench.batch([0, 1]), bench.batch([2, 6, 7, 8]))
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GROUP_ROWS + BAG_ROWS)
def test_subsets_say_of_what_a_batch_speaks(name):
    bench = Bench(CASES[name])
    subsets = bench.objective.subsets(bench.columns)
    spoken = set()
    for index in combinations(range(N), 4):
        expected = [i for i, row in enumerate(subsets) if all(bool(mask[list(index)].any()) for mask in row)]
        _, rows = bench.objective.measure(*_outputs(bench, list(index)))
        names = torch.arange(len(subsets)) if rows.index is None else rows.index
        assert names[rows.weight != 0].unique().tolist() == expected
        spoken.add(len(expected))
    assert len(spoken) > 1  # some batches miss a row


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_values_are_finite_and_in_their_range(name, size):
    case = CASES[name]
    bench = Bench(case)
    domain = bench.objective.row_domain(N, bench.columns)
    for seed in range(3):
        with torch.no_grad():
            bench.network.table.copy_(size * torch.randn(case.outputs.shape, generator=_seeded(seed)))
        seen = bench.measured(bench.batch([0, 1, 2, 6, 7, 8]))
        parts = [] if seen[0] is None else [seen[0]]
        for reading in seen[1]:
            assert reading.g.isfinite().all()
            values = reading.g.detach()[reading.present]
            torch.testing.assert_close(domain.range.project(values), values, rtol=1e-12, atol=1e-12)
            parts.append(reading.g.clamp(max=1e6).sum())
        gradients = torch.autograd.grad(sum(parts), bench.parameters(), allow_unused=True, materialize_grads=True)
        assert all(g.isfinite().all() for g in gradients)


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.missing is not None])
def test_a_missing_column_is_named(name):
    bench = Bench(CASES[name])
    outputs, columns = _outputs(bench, [0, 1])
    del (columns[bench.name] if bench.case.others else columns)[bench.case.missing]
    with pytest.raises(FCCOError, match=f"needs the column `{bench.case.missing}`"):
        bench.objective.measure(outputs, columns)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.bad_outputs is not None])
def test_outputs_of_another_shape_are_refused(name):
    bench = Bench(CASES[name])
    _, columns = _outputs(bench, list(range(N)))
    with pytest.raises(FCCOError, match=r"\(B|\(9, |embeddings"):
        bench.objective.measure(bench.case.bad_outputs, columns)


@pytest.mark.parametrize("name", GROUP_ROWS)
@pytest.mark.parametrize("wrong", [-1, 3])
@pytest.mark.parametrize("first", [True, False])
def test_group_labels_out_of_range_are_refused(name, wrong, first):
    bench = Bench(CASES[name])
    batch = bench.batch([0, 1])
    batch[bench.name]["group"] = torch.tensor([0, wrong])
    text = rf"group labels must lie in 0\.\.2, got {wrong} at position 1"
    assert_refused(bench, batch, text, first=first)


# ---- three samples in two hundred


@pytest.mark.parametrize("way", ["uniform", pytest.param("balanced", marks=pytest.mark.slow)])
def test_a_group_of_three_among_two_hundred(way):
    """An objective and a constraint on it, 600 batches of 20: within four standard errors in three directions.

    The three are of one class, so that risks and means are not ratios over several strata.
    """
    n, rare = 200, [5, 77, 140]
    y, group = torch.arange(n) % 4 == 0, torch.arange(n) % 4
    group, y = group.clone(), y.long()
    group[rare] = 4
    y[rare] = 1
    group[y == 1] += 5 * (group[y == 1] < 4)  # classes do not share groups
    group = torch.unique(group, return_inverse=True)[1]
    number = int(group[5])
    drawing = Way(Uniform(n, 20), None, None) if way == "uniform" else balanced(y.tolist(), 6, 14)
    columns = {"y": y, "group": group}
    count = int(group.max()) + 1

    def brute(s, c, threshold):
        losses = [torch.log1p(torch.exp(-a if b else a)) for a, b in zip(s, c["y"], strict=True)]
        risk = [_mean_of(losses, c["group"], g) for g in range(count)]
        hinge = sum(2 * torch.relu(r - threshold) for r in risk) / count
        return threshold + hinge + 2 * torch.relu(_mean_of(losses, c["group"], number) - 0.1)

    case = Case(lambda: CVaRGroupDRO(0.5, num_groups=count, threshold=0.3), scores(n), columns, brute)
    bench = Bench(case)
    constraint = MeanAtMost(LogisticLoss(), 0.1, {"group": number})
    columns = bench.columns
    drawn = {"target": Drawn(columns, Plan(drawing))}
    problem = bench.algorithm.pose(
        bench.objective, [constraint], HingePenalty(2.0), num_samples=n, sampling=drawn, dtype=torch.float64
    )
    bench.way, bench.engine = drawing, Engine(bench.network, problem, bench.algorithm)
    readings = bench.measured({"target": columns})[1]
    bench.exact = {r.term: by_row(r, r.g.detach()) for r in readings}
    _, exact = bench.brute()
    size = len(exact)
    of_rare = torch.zeros(size, dtype=torch.float64)
    of_rare[rare] = 1
    directions = torch.stack([of_rare, 1 - of_rare, torch.randn(size, generator=_seeded(1), dtype=torch.float64)])
    found = torch.stack([directions @ g for g in bench.drawn_gradients(600, seed=0)])
    standard_error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - directions @ exact).abs() < 4 * standard_error).all()
    assert (standard_error < 0.1 * (directions @ exact).abs().max()).all()


def _mean_of(losses, groups, g):
    inside = [v for v, group in zip(losses, groups, strict=True) if group == g]
    return sum(inside) / len(inside)


# ---- rows of some samples only


def test_rows_are_kept_for_the_owners_only():
    bench = Bench(AP)
    (term,) = bench.engine.problem.all_terms
    assert term.num_rows == term.state.rows.shape[0] == sum(STRATUM)
    assert bench.objective.row_domain(N, bench.columns).owners.tolist() == [bool(y) for y in STRATUM]


def test_a_batch_without_owners_says_nothing():
    bench = Bench(AP, WAYS["uniform"]())
    assert bench.gradient(bench.batch([1, 3, 4, 6])).tolist() == [0] * N


@pytest.mark.parametrize("way", ["uniform", "balanced"])
@pytest.mark.parametrize("loss", [SquaredHingePair(0.7), LogisticPair()], ids=repr)
def test_a_positive_itself_has_a_weight_of_its_own_also_under_another_prevalence(way, loss):
    """``pi l(0) / n_+``, whatever the others of the batch weigh; with pi the data's prevalence that is ``l(0) / n``."""
    for pi in (3 / N, 0.5, 0.1):
        case = replace(AP, make=lambda pi=pi: AveragePrecision(loss, "data" if pi == 3 / N else pi, sigmoid=False))
        bench, index = Bench(case, WAYS[way]()), [0, 1, 2, 4]
        columns, s = bench.batch(index)["target"], case.outputs[index]
        others = {"uniform": [8 / N / 3] * 2, "balanced": [2 / N, 6 / N / 2]}[
            way
        ]  # each positive and negative beside i
        of = others[0] * pi * N / 3, others[1] * (1 - pi) * N / 6
        _, rows = bench.objective.measure(s, columns)
        for i, j in ((0, 2), (2, 0)):
            first = pi * float(loss(torch.zeros(()))) / 3 + of[0] * loss(s[i] - s[j])
            expected = torch.stack([first, first + of[1] * (loss(s[i] - s[1]) + loss(s[i] - s[3]))])
            torch.testing.assert_close(rows.values[i], expected, rtol=1e-6, atol=0)  # weights may be float32's
        least = bench.objective.row_domain(N, bench.columns).range.least
        assert least == pytest.approx(pi * float(loss(torch.zeros(()))) / 3)


def test_moap_scales_by_the_number_of_owners():
    """``u <- (1 - gamma) u + gamma g / p`` with p = B/n the probability that a positive is in the batch."""
    rows, values = _one_more_step(MOAP(gamma=0.3), [0, 1, 2, 4])
    torch.testing.assert_close(rows[1][:2], 0.7 * rows[0][:2] + 0.3 * N / 4 * values)
    torch.testing.assert_close(rows[1][2], 0.7 * rows[0][2])


def test_the_correction_of_theory_counts_owners():
    """At weights that have moved by a known step: ``gamma' = 1 - gamma + (1/p - 1) / (1 - gamma)``, p = B/n."""
    rows, values, before = _one_more_step(MSVR(gamma=0.4, gamma_prime="theory"), [0, 1, 2, 4], moved=True)
    correction = 0.6 + (N / 4 - 1) / 0.6
    expected = (0.6 * rows[0][:2] + 0.4 * values + correction * (values - before)).clamp(min=0)
    torch.testing.assert_close(rows[1][:2], expected)
    torch.testing.assert_close(rows[1][2], rows[0][2])


def _one_more_step(algorithm, index, *, moved=False):
    """Rows after a step on everything and after one more on a batch, with the batch's values (and those before)."""
    bench = Bench(AP)
    network = Lookup(AP.outputs, AP.wrap)
    drawn = {"target": Drawn(bench.columns, Plan(WAYS["uniform"]()))}
    problem = algorithm.pose(AveragePrecision(), num_samples=N, sampling=drawn, dtype=torch.float64)
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3 if moved else 0.0)
    (state,) = problem.states

    def values():
        columns = bench.batch(index)["target"]
        _, rows = problem.objective.measure(network(columns["x"]), columns)
        return rows.values.detach()[rows.weight != 0]

    before = values()
    engine.train_batch(bench.batch(range(N)), optimizer)
    rows, now = [state.rows.clone()], values()
    engine.train_batch(bench.batch(index), optimizer)
    rows.append(state.rows.clone())
    return (rows, now, before) if moved else (rows, now)
