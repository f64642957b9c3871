"""Cox's likelihood, losses of ranked lists and neighbourhood components: known special cases, and refused input."""

import itertools
import math

import pytest
import torch
from sklearn.metrics import ndcg_score

from fcco_lightning import (
    BSGD,
    NDCG,
    CoxPartialLikelihood,
    Engine,
    Exposure,
    ListMLE,
    ListNet,
    NeighbourhoodComponents,
    RetrievalEvaluation,
    SurvivalEvaluation,
)
from fcco_lightning.data.batches import UniformBatches
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.numerics import exp_with_tangent
from fcco_lightning.objectives import SigmoidPair
from fcco_lightning.objectives.others.cox import tie_shares
from tests.contracts.registry_objectives_lists import CASES
from tests.contracts.sampled import Bench, Drawn
from tests.plans import GroupBatches


def full_value(objective, outputs, **columns):
    """F and the rows of the whole data, of which some may own none."""
    n = len(outputs)
    objective.num_samples = n
    columns["index"] = torch.arange(n)
    domain = objective.row_domain(n, columns)
    _, rows = objective.measure(outputs, columns)
    present = rows.weight != 0
    values = rows.weight[present] * objective.outer(rows.values[present])
    return values.mean().item(), rows.values[present][:, 0], domain


def scores(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- times


def test_without_ties_both_methods_are_one():
    time, event = torch.arange(1.0, 9.0).flip(0), torch.tensor([1, 1, 0, 1, 0, 1, 1, 0])
    values = [full_value(CoxPartialLikelihood(t), scores(8), time=time, event=event)[0] for t in ("efron", "breslow")]
    assert values[0] == pytest.approx(values[1], rel=1e-14)


def test_efron_does_not_depend_on_the_order_of_tied_events():
    time, event, h = torch.tensor([1.0, 1.0, 2.0, 1.0]), torch.tensor([1, 1, 1, 1]), scores(4)
    found = [
        full_value(CoxPartialLikelihood(), h[list(o)], time=time[list(o)], event=event[list(o)])[0]
        for o in itertools.permutations(range(4))
    ]
    assert max(found) - min(found) < 1e-14


def test_the_least_inner_value_is_that_of_the_last_of_the_ties():
    time, event = torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0]), torch.tensor([1, 1, 1, 0, 1])
    assert tie_shares(time, event == 1).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0, 0])
    _, values, domain = full_value(CoxPartialLikelihood(), -1e3 * time.double(), time=time, event=event)
    assert domain.range.least == pytest.approx(1 / 3)
    assert values.min() >= domain.range.least


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"event": [0, 0, 0]}, "`event` is 0 for all 3 training samples"),
        ({"event": [1, -1, 1]}, r"`event` must be 1 \(observed\) or 0 \(censored\), got -1 at position 1"),
        ({"time": [1.0, math.nan, 2.0]}, r"`time` must be finite and >= 0, got nan at position 1"),
        ({"time": [-1.0, -3.0, -2.0]}, r"`time` must be finite and >= 0, got -1.0 at position 0"),
        ({"time": [[1.0, 2.0]] * 3}, r"one number `time` per sample, a tensor of shape \(B,\), got shape \(3, 2\)"),
    ],
)
def test_survival_tables_that_say_nothing(columns, message):
    table = {"time": [1.0, 2.0, 3.0], "event": [1, 0, 1]} | columns
    with pytest.raises(DataError, match=message):
        full_value(CoxPartialLikelihood(), scores(3), **{k: torch.tensor(v) for k, v in table.items()})


@pytest.mark.parametrize("make", [CoxPartialLikelihood, ListNet, ListMLE, NDCG])
def test_the_training_split_must_be_known(make):
    with pytest.raises(ConfigError, match=r"whole training split, .* Use a datamodule"):
        BSGD().pose(make(), num_samples=5)


def test_arguments():
    with pytest.raises(ConfigError, match="ties must be one of 'efron', 'breslow', got 'exact'"):
        CoxPartialLikelihood("exact")
    with pytest.raises(ConfigError, match="target must be one of"):
        ListNet("hard")


# ---- lists


def test_list_mle_is_the_likelihood_of_the_order_in_the_model_of_plackett_and_luce():
    h, y = scores(5), torch.tensor([3, 0, 4, 1, 2])
    left, likelihood = list(y.argsort(descending=True)), 1.0
    while left:
        likelihood *= h[left[0]].exp() / sum(h[i].exp() for i in left)
        left.pop(0)
    value, *_ = full_value(ListMLE(), h, query=torch.zeros(5, dtype=torch.int64), y=y)
    assert value == pytest.approx(-math.log(likelihood))


@pytest.mark.parametrize("top_k", [None, 3])
def test_with_sharp_surrogates_ndcg_is_the_true_one(top_k):
    h, y = scores(20, seed=3), torch.randint(4, (20,), generator=torch.Generator().manual_seed(1))
    query = torch.arange(20) % 2
    value, *_ = full_value(NDCG(SigmoidPair(1e-4), top_k=top_k, sharpness=400.0), h, query=query, y=y)
    truth = [ndcg_score([2.0 ** y[query == q].numpy() - 1], [h[query == q].numpy()], k=top_k) for q in (0, 1)]
    assert -value == pytest.approx(sum(truth) / 2, abs=1e-6)


def test_lists_of_one_grade_do_not_count():
    h, y, query = scores(6), torch.tensor([1, 0, 2, 0, 0, 0]), torch.tensor([1, 1, 1, 2, 2, 2])
    for objective in (ListMLE(), NDCG(), ListNet("proportional")):
        both, *_ = full_value(objective, h, query=query, y=y)
        first, *_ = full_value(objective, h[:3], query=query[:3], y=y[:3])
        assert both == pytest.approx(first)
        with pytest.raises(DataError, match="finds no item to learn from in 1 lists"):
            full_value(objective, h[3:], query=query[3:], y=y[3:])


@pytest.mark.parametrize("make", [ListNet, ListMLE, NDCG, lambda: ListNet("proportional")])
@pytest.mark.parametrize("table", [{"y": [2, 2, 2]}, {"y": [0, 0, 0]}, {"query": [0, 1, 2]}], ids=str)
def test_tables_without_an_order_are_refused(make, table):
    columns = {name: torch.tensor(v) for name, v in ({"query": [0, 0, 0], "y": [1, 2, 0]} | table).items()}
    with pytest.raises(DataError, match=r"finds no item to learn from in [13] lists: no list has items of different"):
        full_value(make(), scores(3), **columns)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"query": [0.5, 0.5, 1.0]}, "`query` must hold one whole number per sample"),
        ({"y": [1, -1, 0]}, r"grades in `y` must be finite and >= 0 .*, got -1 at position 1"),
        ({"y": [1.0, math.inf, 0.0]}, "got inf at position 1"),
        ({"y": [1, 90, 0]}, r"the gain 2\^y - 1 is meant for grades of 0 to 50, got 90"),
    ],
)
def test_query_tables_that_are_wrong(columns, message):
    table = {"query": [0, 0, 0], "y": [1, 2, 0]} | columns
    with pytest.raises(DataError, match=message):
        full_value(NDCG(), scores(3), **{k: torch.tensor(v) for k, v in table.items()})


def test_the_logged_value_counts_the_importance_of_items():
    bench = Bench(CASES["list net"])
    algorithm = BSGD()
    problem = algorithm.pose(
        bench.objective,
        num_samples=9,
        sampling={"target": Drawn(bench.columns, UniformBatches(9, 9))},
        dtype=torch.float64,
    )
    engine = Engine(bench.network, problem, algorithm)
    optimizer = torch.optim.SGD(bench.network.parameters(), lr=0.0)
    logged = engine.train_batch(bench.batch(range(9)), optimizer)["objective"]
    assert logged.item() == pytest.approx(bench.brute()[0].item())


# ---- neighbours


def test_neighbours_need_classes():
    z = scores(8).view(4, 2)
    with pytest.raises(DataError, match="needs a class with two samples, but the 4 training samples are of 4"):
        full_value(NeighbourhoodComponents(), z, y=torch.arange(4))
    with pytest.raises(DataError, match=r"whole number per sample, got 0.5 at position 1. Set target='class'"):
        full_value(NeighbourhoodComponents(), z, y=torch.tensor([1.0, 0.5, 1.0, 0.5]))


def test_separate_classes_reach_the_least_value():
    z, y = torch.tensor([[0.0], [0.1], [50.0], [50.1]], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    value, *_ = full_value(NeighbourhoodComponents(), z, y=y)
    assert value == pytest.approx(-1)


def test_exp_with_tangent_goes_on_as_its_tangent():
    x = torch.tensor([-1e4, -1.0, 0.0, 59.0, 60.0, 61.0, 1e6], dtype=torch.float64, requires_grad=True)
    y = exp_with_tangent(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    top = math.exp(60)
    assert y.tolist() == pytest.approx([0, math.exp(-1), 1, math.exp(59), top, 2 * top, top * (1e6 - 59)])
    assert slope.tolist() == pytest.approx([0, math.exp(-1), 1, math.exp(59), top, top, top])


@pytest.mark.parametrize("replacement", [False, True])
def test_one_sample_of_a_class_says_nothing_of_the_others(replacement):
    y = torch.tensor([0, 0, 0, 1, 1])
    columns = {"y": y, "index": torch.arange(5)}
    plan = GroupBatches(y, 2, 1, replacement=replacement, prevalence="data")
    chosen = {name: column[[0, 3]] for name, column in (columns | plan.columns()).items()}
    objective = NeighbourhoodComponents()
    objective.num_samples = 5
    with pytest.raises(DataError, match=r"one sample of stratum 0 .* which has 3, .* they draw two or more of each"):
        objective.check(torch.zeros(2, 2), chosen)
    assert objective.measure(torch.zeros(2, 2), chosen)[1].values.isnan().any()  # so that the engine asks


def test_embeddings_without_any_neighbour_are_refused():
    z, columns = torch.eye(4), {"y": torch.tensor([0, 0, 1, 1]), "index": torch.arange(4)}
    NeighbourhoodComponents(1e-2).check(z, columns)
    with pytest.raises(DataError, match=r"exp\(-\|z_i - z_j\|\^2 / 0\.001\) is 0 for all pairs .* from 2 on"):
        NeighbourhoodComponents(1e-3).check(z, columns)


@pytest.mark.parametrize("name", ["cox, efron", "cox, breslow", "list net", "ndcg"])
def test_columns_may_be_of_width_one(name):
    case = CASES[name]
    narrow = {key: column for key, column in case.columns.items() if column.dim() == 1}
    wide = {key: column.unsqueeze(1) for key, column in narrow.items()}
    value, rows, _ = full_value(case.make(), case.outputs, **narrow)
    of_wide, rows_of_wide, _ = full_value(case.make(), case.outputs, **wide)
    assert of_wide == value
    assert torch.equal(rows_of_wide, rows)


def test_the_exposure_of_lists_in_a_column_of_width_one():
    columns = {"query": torch.tensor([0, 0, 1, 1]), "y": torch.zeros(4), "index": torch.arange(4)}
    columns |= {"stratum": columns["query"], "stratum_size": torch.full((4,), 2)}
    wide = columns | {"query": columns["query"].unsqueeze(1)}
    assert torch.equal(Exposure()(scores(4), wide), Exposure()(scores(4), columns))


@pytest.mark.parametrize("evaluation", [RetrievalEvaluation(), SurvivalEvaluation()])
def test_evaluations_say_their_names(evaluation):
    columns = {"query": torch.zeros(4, 2), "y": torch.zeros(4), "time": torch.zeros(4, 2), "event": torch.ones(4)}
    with pytest.raises(DataError, match=f"{type(evaluation).__name__} needs one number `(query|time)` per sample"):
        evaluation(scores(4), columns)
