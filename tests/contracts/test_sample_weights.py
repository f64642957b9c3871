"""A sample of weight 2 counts as two samples in every mean, objective, constraint and figure."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from fcco_lightning import (
    SOX,
    CrossEntropy,
    GroupObjective,
    HingePenalty,
    MeanAtMost,
    SoftRate,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.constraints import DecisionRule
from fcco_lightning.constraints.calibration import calibrated
from fcco_lightning.data.batches import BatchPlan, Drawn, UniformBatches
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation import (
    BinaryEvaluation,
    ClassEvaluation,
    GroupEvaluation,
    NumberEvaluation,
    RankingEvaluation,
    ValueEvaluation,
)
from fcco_lightning.evaluation.decided import decision_details
from fcco_lightning.evaluation.metrics import ranking
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES
from tests.contracts.sampled import RHO, STRATUM, WAYS, Bench, N, Way, as_drawn, as_lists, by_row, counting
from tests.contracts.test_row_weights import gradient_where_samples_repeat
from tests.reference.probabilities import Uniform

TIMES = [1, 3, 2, 1, 2, 1, 4, 1, 3]
PLAIN = [name for name, case in CASES.items() if case.make().weighs_samples]
REFUSED = [name for name, case in CASES.items() if not case.make().weighs_samples]


def every_sample():
    return counting(Way(Uniform(N, N), None, None), TIMES)


def with_weighted_rows(case, way, times=TIMES):
    """A bench whose rows are those of the population, from a batch of all samples."""
    bench, own = Bench(case, way), counting(Way(Uniform(N, N), None, None), times).columns()
    if way.strata is not None:
        own |= {name: column for name, column in way.columns().items() if name.startswith("stratum")}
    columns = {**bench.batch(range(N), weighted=False)[bench.name], **own, "sample_weight": way.sample_weight}
    readings = bench.measured({bench.name: columns})[1]
    bench.exact = {reading.term: by_row(reading, reading.g.detach().double()) for reading in readings}
    return bench


def repeated(columns, times=TIMES):
    index = torch.arange(N).repeat_interleave(torch.tensor(times))
    return {name: column[index].tolist() for name, column in columns.items()}, index


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PLAIN)
def test_the_gradient_of_all_samples_is_that_where_they_repeat(name):
    bench = with_weighted_rows(CASES[name], every_sample())
    found = bench.gradient(bench.batch(range(N)))
    torch.testing.assert_close(found, gradient_where_samples_repeat(CASES[name], TIMES), rtol=1e-6, atol=1e-9)


EXACT_IN = {  # of which means over a batch are no ratios
    "uniform": ("robust logistic", "average precision", "average precision of sigmoids"),
    "balanced": ("robust logistic", "average precision"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in EXACT_IN.items() for name in names])
def test_the_mean_gradient_over_batches_is_that_where_samples_repeat(way, name):
    found = with_weighted_rows(CASES[name], counting(WAYS[way](), TIMES)).mean_gradient()
    torch.testing.assert_close(found, gradient_where_samples_repeat(CASES[name], TIMES), rtol=1e-6, atol=1e-9)


ONE_OF_EACH = {"group": [3, 0, 0, 0, 0, 0, 2, 0, 4], "y": [2, 3, 0, 0, 0, 0, 0, 0, 0]}  # so that no mean is a ratio


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("way", ["uniform", "balanced"])
@pytest.mark.parametrize("name", PLAIN)
def test_a_batch_measures_nothing_of_a_group_or_class_of_which_it_has_samples_of_weight_zero_only(way, name):
    """Rows and means weigh by how often batches measure them; such batches do not."""
    times = ONE_OF_EACH["group" if isinstance(CASES[name].make(), GroupObjective) else "y"]
    found = with_weighted_rows(CASES[name], counting(WAYS[way](), times), times).mean_gradient()
    torch.testing.assert_close(found, gradient_where_samples_repeat(CASES[name], times), rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("way", ["uniform", "balanced"])
@pytest.mark.parametrize("name", ["non-forgetting", "distillation", "rate of a subset by any column"])
def test_nor_does_it_of_a_constraint(name, way):
    times = ONE_OF_EACH["group"]
    found = with_weighted_rows(CONSTRAINTS[name], counting(WAYS[way](), times), times).mean_gradient()
    torch.testing.assert_close(found, weighted_gradient(CONSTRAINTS[name], times), rtol=1e-6, atol=1e-9)


def test_of_a_group_of_which_nothing_counts_one_is_told():
    plan = UniformBatches(N, 4).of_weighted_samples(torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 1, 1]))
    drawn = Drawn({"group": torch.tensor([0, 0, 1, 1, 1, 1, 2, 2, 2])}, plan)
    limit = MeanAtMost(SoftRate(), 0.5, {"group": 0}, name="nobody")
    with pytest.warns(UserWarning, match="no batch contains samples of all subsets of 'nobody'"):
        SOX().pose(CrossEntropy(), [limit], HingePenalty(), num_samples=N, sampling={"target": drawn})


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_others_refuse_them(name):
    with pytest.raises(ConfigError, match="does not support sample weights"):
        Bench(CASES[name], counting(Way(Uniform(CASES[name].n, 2), None, None), [1, 2] + [1] * (CASES[name].n - 2)))


@pytest.mark.parametrize("name", [name for name, case in CONSTRAINTS.items() if case.make().weighs_samples])
def test_violations_are_those_where_samples_repeat(name):
    bench = Bench(CONSTRAINTS[name])
    weight = torch.tensor(TIMES, dtype=torch.float64) / np.mean(TIMES)
    columns = bench.batch(range(N))[bench.name] | {"weight": weight}
    outputs = bench.network(columns["x"])
    _, rows = bench.part.measure(outputs, columns)
    columns, index = repeated(bench.case.columns)
    expected = torch.stack(bench.case.brute(as_lists(bench.network.table[index]), columns))
    torch.testing.assert_close(bench.part.violation(rows.values), expected, rtol=1e-9, atol=1e-9)


def weighted_gradient(case, times):
    """Of the penalties, by the formula on a data set in which samples are repeated."""
    columns, index = repeated(case.columns, times)
    table = case.outputs.clone().requires_grad_()
    violated = case.brute(as_lists(case.wrap(table[index])), columns)
    (found,) = torch.autograd.grad(sum(RHO * torch.relu(h) for h in violated) / len(violated), table)
    return found.flatten()


PLAIN_CONSTRAINTS = [
    *(name for name, case in CONSTRAINTS.items() if case.unbiased == ("uniform", "balanced")),
    "mean of everyone",  # of both classes, so that their shares matter
]
POSITIVES_TWICE = [t * (1 + label) for t, label in zip(TIMES, STRATUM, strict=True)]  # as 2 of 3 and 2 of 6 are drawn
WEIGHTED = {
    "uniform": (WAYS["uniform"], TIMES),
    "balanced": (WAYS["balanced"], TIMES),
    "balanced, as drawn": (lambda: as_drawn(WAYS["balanced"]()), POSITIVES_TWICE),
}


@pytest.mark.parametrize("way", WEIGHTED)
@pytest.mark.parametrize("name", PLAIN_CONSTRAINTS)
def test_the_mean_gradient_of_a_penalty_is_that_where_samples_repeat(name, way):
    make, times = WEIGHTED[way]
    bench = with_weighted_rows(CONSTRAINTS[name], counting(make(), TIMES), times)
    expected = weighted_gradient(CONSTRAINTS[name], times)
    torch.testing.assert_close(bench.mean_gradient(), expected, rtol=1e-6, atol=1e-9)


def strata_plan():
    """Batches of two of four and of three of five samples."""
    positive = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0, 1]).bool()
    return BatchPlan(torch.zeros(9, dtype=torch.int64), (2, 3), positive=positive, num_batches=2000)


@pytest.mark.parametrize("plan", [UniformBatches(N, 4).with_num_batches(2000), strata_plan()])
def test_means_over_batches_are_weighted_means_over_the_data(plan):
    values, own = torch.arange(1.0, 1 + N) ** 2, torch.tensor(TIMES, dtype=torch.float64)
    weighted = plan.of_weighted_samples(own)
    columns = weighted.columns()
    assert {"weight", "stratum", "stratum_size"} <= columns.keys()
    mean = torch.stack([(columns["weight"] * values)[batch].mean() for batch in weighted.batches(0)]).mean().item()
    assert mean == pytest.approx(((own * values).sum() / own.sum()).item(), rel=0.02)
    torch.testing.assert_close(weighted.population(), own / own.mean(), rtol=1e-9, atol=0)
    assert weighted.repeated(2).weights().equal(weighted.weights())


def test_batches_that_stand_for_another_population_weigh_its_samples():
    plan = strata_plan()
    plan._weights = "never"
    drawn, own = plan.population(), torch.tensor(TIMES, dtype=torch.float64)
    expected = drawn * own / (drawn * own).mean()
    torch.testing.assert_close(plan.of_weighted_samples(own).population(), expected, rtol=1e-9, atol=0)


def scored(seed, ties):
    r = np.random.default_rng(seed)
    scores, y = r.normal(size=60), (r.random(60) < 0.3).astype(int)
    scores = np.round(scores + y, 0 if ties else 6)
    return torch.from_numpy(scores), torch.from_numpy(y), torch.from_numpy(r.integers(0, 4, 60))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_ranking_figures_are_those_of_scikit_learn(seed, ties):
    scores, y, times = scored(seed, ties)
    given = {"y_true": y.numpy(), "y_score": scores.numpy(), "sample_weight": times.numpy()}
    assert ranking.auc(scores, y, times) == pytest.approx(sk.roc_auc_score(**given), abs=1e-12)
    expected = sk.average_precision_score(**given)
    assert ranking.average_precision(scores, y, times) == pytest.approx(expected, abs=1e-12)
    partial = ranking.partial_auc(scores, y, 0.3, weight=times)
    assert partial == pytest.approx(sk.roc_auc_score(**given, max_fpr=0.3), abs=1e-9)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_where_samples_repeat(seed, ties):
    scores, y, times = scored(seed, ties)
    group, index = torch.arange(60) % 2, torch.arange(60).repeat_interleave(times)
    for evaluation in (RankingEvaluation(top=[5, 20]), GroupEvaluation(), ClassEvaluation(), NumberEvaluation()):
        found = evaluation(scores, {"y": y, "group": group, "weight": times})
        expected = evaluation(scores[index], {"y": y[index], "group": group[index]})
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), type(evaluation).__name__
    gap = ranking.roc_gap(scores[index], y[index], group[index], 20)
    assert ranking.roc_gap(scores, y, group, 20, times) == pytest.approx(gap, abs=1e-12)


def test_figures_of_a_value_function_are_those_where_transitions_repeat():
    r = np.random.default_rng(0)
    times = torch.from_numpy(np.where(np.arange(40) % 8 == 7, 0, r.integers(0, 4, 40)))  # a state without weight
    columns = {name: torch.from_numpy(r.normal(size=40)) for name in ("reward", "value")}
    columns["group"] = torch.arange(40) % 8
    values, index = torch.from_numpy(r.normal(size=(40, 2))), torch.arange(40).repeat_interleave(times)
    found = ValueEvaluation()(values, {**columns, "weight": times / times.double().mean()})
    expected = ValueEvaluation()(values[index], {name: column[index] for name, column in columns.items()})
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.filterwarnings("ignore:.*not defined:UserWarning")
def test_a_class_without_weight_is_absent():
    scores, y, _ = scored(0, ties=False)
    batch = {"y": y, "weight": (1 - y).double()}
    assert np.isnan(BinaryEvaluation()(scores, batch)["auc"])
    assert np.isnan(RankingEvaluation()(scores, batch)["average_precision"])


@pytest.mark.parametrize("scale", [1 / 3, 0.1, 0.7])
def test_only_ratios_of_weights_count(scale):
    """Also where quantiles of equal weights lie between two scores, and rounding might decide."""
    scores, y = torch.linspace(-2, 2, 10, dtype=torch.float64), torch.tensor([0, 1, 0, 0, 1, 0, 1, 1, 0, 1])
    group, even = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0, 0, 1]), torch.full((10,), scale, dtype=torch.float64)
    rule = DecisionRule(known=True)
    plain = decision_details(rule, scores, {"y": y, "group": group})
    found = decision_details(rule, scores, {"y": y, "group": group, "weight": even})
    assert found["calibration"] == [pytest.approx(one, rel=1e-9) for one in plain["calibration"]]
    assert found["calibration_error"] == pytest.approx(plain["calibration_error"], rel=1e-9)
    for levels in (5, 10, 200):
        gap = ranking.roc_gap(scores, y, group, levels)
        assert ranking.roc_gap(scores, y, group, levels, even) == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize("size", [40, 500])
def test_samples_without_weight_are_as_if_they_were_not_there(size):
    scores, y = torch.randn(size, generator=torch.Generator().manual_seed(0)).double(), torch.arange(size) % 2
    weight = torch.rand(size, generator=torch.Generator().manual_seed(1)).double() + 0.1
    more = torch.cat([scores, -scores]), torch.cat([y, y]), torch.cat([weight, torch.zeros(size).double()])
    at = torch.linspace(-2, 2, 9).double()
    torch.testing.assert_close(calibrated(*more)(at), calibrated(scores, y, weight)(at), rtol=1e-6, atol=1e-9)


def test_weights_of_tensors_have_mean_one():
    columns = {"x": torch.zeros(4, 1), "y": torch.tensor([0, 1, 0, 1]), "sample_weight": torch.tensor([2.0, 4, 2, 8])}
    data = TensorDataModule({"train": columns, "test": columns}, batches=UniformSampling(2))
    data.setup("fit")
    assert data.tables["train"].columns["sample_weight"].tolist() == [0.5, 1.0, 0.5, 2.0]
