"""On average a row has the weight of its owner in the population, however batches are drawn.

With ``prevalence: data`` the population is the data; with ``prevalence: batch`` it is the one that batches represent,
in which a sample counts as often as batches contain it.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from fcco_lightning import SGD, SOX, AveragePrecision, BalancedSampling, CVaRPartialAUC, Engine, PNormPush
from fcco_lightning.data.batches import Drawn
from fcco_lightning.objectives import ListObjective
from tests.contracts.registry_objectives import CASES
from tests.contracts.sampled import WAYS, Bench, N, Plan, as_drawn, as_lists, few_of_a_class

DATA = {name: WAYS[name] for name in ("uniform", "balanced", "groups redrawn", "copies of classes", "bags")}
BATCH = {f"{name}, as drawn": lambda way=way: as_drawn(way()) for name, way in DATA.items() if name != "uniform"}
EVERY = DATA | BATCH | {"few of a class, as drawn": few_of_a_class}
EXACT = 1e-9


def different_objectives():
    """One case of every class of objectives with rows, and those of other owners or with thresholds of their own."""
    more, found = ("p-norm push over positives", "partial auc, two-way"), {}
    for name, case in CASES.items():
        objective = case.make()
        if objective.outer is not None and (name in more or type(objective) not in found.values()):
            found[name] = type(objective)
    return list(found)


OBJECTIVES = different_objectives()


def population_of(way):
    """What every sample counts, shape (N,), of sum N."""
    found = Plan(way).population()
    return torch.ones(N, dtype=torch.float64) if found is None else found


def means_over_batches(bench):
    """What every row weighs on average over all batches, and how often it comes times 1/p_i, shape (2, n)."""
    (term,) = bench.engine.problem.all_terms
    total = torch.zeros(2, term.num_rows + 2, dtype=torch.float64)
    with torch.no_grad():
        chances = Counter()  # of batches whatever their order, on which nothing depends
        for index, chance in bench.way.sampler.batches():
            chances[tuple(sorted(index))] += chance
        for index, chance in chances.items():
            (reading,) = bench.measured(bench.batch(list(index)))[1]
            rows = torch.arange(term.num_rows) if reading.rows is None else reading.rows
            inverse = reading.share * torch.as_tensor(reading.inverse_inclusion).view(-1)
            total.index_add_(
                1, rows, chance * reading.present * torch.stack([reading.weight.double(), inverse.double()])
            )
    assert not total[0, term.num_rows :].any()
    return total[:, : term.num_rows]


def expected_weights(case, way):
    """By the definition of F, of owners that count as often as in the population."""
    bench = Bench(case)
    (term,) = bench.engine.problem.all_terms
    if not term.per_sample:  # groups, bags or tasks, each of which is one
        return torch.full((term.num_rows,), 1 / term.num_rows, dtype=torch.float64)
    owners = bench.objective.row_domain(case.n, bench.columns).owners
    owners = torch.ones(case.n, dtype=torch.bool) if owners is None else owners
    counted = torch.where(owners, population_of(way).view(-1, *[1] * (owners.dim() - 1)), 0.0)
    if owners.dim() == 2:  # a mean over labels of means over positives
        return (counted / counted.sum(0) / owners.shape[1])[owners]
    shares = (counted / counted.sum())[owners]
    if isinstance(bench.objective, ListObjective):  # importances of items, which need not add up to 1
        return shares * bench.objective._relevance.values[owners]
    return shares


def speaks(name, way):
    """A row of a task needs samples of all groups, which two groups do not have: its weight is 0, with a warning."""
    return not (name.startswith("tasks") and way.startswith("groups"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "way"),
    [  # every objective in every third way, and the other way round; the rest is slow
        pytest.param(name, way, marks=[pytest.mark.slow] if (i + j) % 3 else [])
        for i, name in enumerate(OBJECTIVES)
        for j, way in enumerate(EVERY)
        if speaks(name, way)
    ],
)
def test_a_row_weighs_what_its_owner_is_in_the_population(name, way):
    case, drawn = CASES[name], EVERY[way]()
    expected, (found, often) = expected_weights(case, drawn), means_over_batches(Bench(case, drawn))
    torch.testing.assert_close(often, torch.ones_like(often), rtol=1e-6, atol=0)  # as estimators take it from there
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    if not isinstance(case.make(), ListObjective):
        assert found.sum().item() == pytest.approx(1.0, rel=1e-6)


def gradient_where_samples_repeat(case, times):
    """Of F on data in which sample i comes ``times[i]`` times, by the table of outputs and the parameters, flat."""
    table = case.outputs.clone().requires_grad_()
    index = torch.arange(N).repeat_interleave(torch.tensor(times))
    columns = {name: column[index].tolist() for name, column in case.columns.items()}
    objective = case.make().double()
    value = case.brute(as_lists(table[index]), columns, **dict(objective.named_parameters()))
    found = torch.autograd.grad(value, [table, *objective.parameters()])
    return torch.cat([one.flatten() for one in found])


ALONE_OR_BETWEEN_CLASSES = ("robust logistic", "p-norm", "partial", "soft partial")  # estimates without an own share


@pytest.mark.parametrize("way", ["balanced, as drawn", "copies of classes, as drawn", "few of a class, as drawn"])
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(ALONE_OR_BETWEEN_CLASSES)])
def test_the_mean_gradient_is_that_of_the_population(name, way):
    """By brute force on a data set in which samples are repeated: 2 : 1, or 5/3 : 1/3, for positives and negatives."""
    case, drawn = CASES[name], EVERY[way]()
    counted = population_of(drawn)
    times = (counted / counted.min()).round().long().tolist()
    assert torch.tensor(times).double().div(sum(times) / N).allclose(counted)
    found = Bench(case, drawn).mean_gradient()
    torch.testing.assert_close(found, gradient_where_samples_repeat(case, times), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("way", ["uniform", "balanced"])
def test_as_many_rows_as_samples_are_not_one_of_each(way):
    """Nine labels of nine samples hold, of no, one, two and three labels of a sample."""
    y = torch.tensor(
        [[1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0]]
    )
    y[8, 0] = 1
    assert int(y.sum()) == N
    bench = Bench(replace(CASES["mean average precision"], columns={"y": y}), WAYS[way]())
    mean, (_, expected) = bench.mean_gradient(), bench.brute()
    assert (mean - expected).norm() < EXACT * expected.norm()


def posed(objective, y, scores, prevalence):
    """An engine of given scores, and all samples as the plan of half-positive batches of 40 draws them."""
    table = {"y": y, "index": torch.arange(len(y))}
    plan = BalancedSampling(40, prevalence=prevalence).plan(table)
    network, algorithm = nn.Embedding(len(y), 1), SGD() if objective.outer is None else SOX(gamma=1.0)
    network.weight.data = scores.clone().unsqueeze(1)
    drawn = {"target": Drawn(table, plan)}
    engine = Engine(network, algorithm.pose(objective, num_samples=len(y), sampling=drawn), algorithm)
    return engine, plan, {**table, **plan.columns(), "x": table["index"]}


@pytest.mark.parametrize("positives", [20, 900])
def test_classes_of_one_prevalence_each_have_the_gradient_of_any(positives):
    """A mean over positives of means over negatives does not depend on how many there are."""
    y, scores = (torch.arange(1000) < positives).long(), torch.linspace(-1, 1, 1000).sin()
    found = []
    for prevalence in ("data", "batch"):
        engine, plan, columns = posed(PNormPush(2.0, "positives"), y, scores, prevalence)
        index = next(plan.batches(0))
        engine.train_batch({k: c[index] for k, c in columns.items()}, torch.optim.SGD(engine.params, lr=0.0))
        found.append(engine.params[0].grad.clone())
    assert found[0].norm() > 0
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("prevalence", ["data", "batch"])
@pytest.mark.parametrize("positives", [20, 900])
def test_the_threshold_of_a_partial_auc_ends_at_its_minimiser(positives, prevalence):
    """A quantile of the losses of the positives: the term of the threshold itself is on the scale of the others."""
    y = (torch.arange(1000) < positives).long()
    scores = torch.where(y == 1, torch.linspace(-1, 1000 / positives * 2 - 1, 1000), 0.0)  # from -1 to 1, against 0
    objective = CVaRPartialAUC(min_tpr=0.3, sigmoid=False)
    engine, plan, columns = posed(objective, y, scores, prevalence)
    losses, ends = (1 - scores[:positives]).clamp(min=0).square(), []
    optimizer = torch.optim.SGD(
        [{"params": [engine.params[0]], "lr": 0.0}, {"params": [objective.threshold], "lr": 0.03}]
    )
    for epoch in range(20):
        for index in plan.batches(epoch):
            engine.train_batch({k: c[index] for k, c in columns.items()}, optimizer)
        ends.append(objective.threshold.item())
    end, best = (c + (losses - c).clamp(min=0).mean() / 0.7 for c in (sum(ends[10:]) / 10, losses.quantile(0.3)))
    assert end == pytest.approx(best.item(), abs=0.01)


@pytest.mark.parametrize("min_tpr", [0.0, 0.3])
def test_thresholds_of_samples_move_as_far_in_any_population(min_tpr):
    """By ``dL_i / ds_i`` times the outer gradient, whatever the positives are of the data and of a batch."""
    y, scores, moved = (torch.arange(200) < 30).long(), torch.linspace(-1, 1, 200).sin(), []
    for prevalence in ("data", "batch"):
        objective = CVaRPartialAUC(0.4, min_tpr, thresholds=0.5, thresholds_lr=0.1, sigmoid=False)
        engine, plan, columns = posed(objective, y, scores, prevalence)
        index = next(plan.batches(0))
        engine.train_batch({k: c[index] for k, c in columns.items()}, torch.optim.SGD(engine.params, lr=0.0))
        moved.append(engine.problem.row_parameters.state.rows.clone())
    assert (moved[0] - 0.5).nan_to_num().abs().max() > 0.04
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-5, atol=1e-6, equal_nan=True)


def test_ranks_of_a_wanted_prevalence_are_not_weighed_twice():
    """Half-positive batches already stand for a population with as many positives as negatives."""
    y = (torch.arange(200) < 30).long()
    engine, *_ = posed(AveragePrecision(prevalence=0.5), y, torch.zeros(200), "batch")
    assert engine.problem.objective._class_changes == pytest.approx((1.0, 1.0))
