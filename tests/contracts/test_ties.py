"""Results on a set of samples do not depend on their order, even if many of them are equal."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcco_lightning import GroupEvaluation, NeighbourEvaluation, RetrievalEvaluation, ROCFairness, SurvivalEvaluation
from fcco_lightning.analysis.dual_values import outer_gradients
from fcco_lightning.constraints.score_scales import QuantileScores
from fcco_lightning.data.encoding import Encoding, TabularEncoder
from fcco_lightning.evaluation.groups import worst_weights
from fcco_lightning.evaluation.metrics import ranking, survival
from fcco_lightning.numerics import mean_of_equals
from fcco_lightning.objectives import GroupMaxForm
from fcco_lightning.objectives.vacuity import constant_decision, quantiles, spread, too_close

from .registry_ambiguity import MEMBERS as AMBIGUITY


def table(seed, n=24):
    """Columns with few distinct values, both classes in both groups."""
    draw = np.random.default_rng(seed)
    index = np.arange(n)
    columns = {
        "score": draw.integers(0, 4, n) / 2.0,
        "y": index % 2,
        "group": index // 2 % 2,
        "query": index // 8,
        "grade": draw.integers(0, 3, n),
        "time": draw.integers(1, 6, n).astype(float),
        "event": index % 3 != 0,
        "weight": draw.integers(1, 9, n) / 4.0,
        "class": draw.integers(0, 3, n),
        "first": draw.integers(1, 3, n) * 1.0,
        "second": draw.integers(-1, 2, n) * 1.0,
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


LEVELS = torch.linspace(0, 1, 7, dtype=torch.float64)


def lists(t):
    return list(RetrievalEvaluation([3, 4])(t["score"], {"query": t["query"], "y": t["grade"]}).values())


def worst_groups(t):
    batch = {"y": t["y"], "group": t["query"]}
    return [value for pooled in (True, False) for value in GroupEvaluation(0.6, 0, pooled)(t["score"], batch).values()]


def roc(t, constraint):
    columns = {name: t[name] for name in ("y", "group", "weight")}
    return constraint.measure(t["score"], columns)[1].values


def calibrated(t):
    evaluation = SurvivalEvaluation(groups=3)
    columns = [t[name].numpy() for name in ("time", "event", "score")]
    rows = evaluation._calibration(*columns, survival.breslow_log_hazard(*columns), 3.0)
    return [list(row.values()) for row in rows]


def encoded(t, **options):
    frame = pd.DataFrame({name: t[name].numpy() for name in ("score", "time")})
    fitted = TabularEncoder(Encoding(**options)).fit(frame)
    return fitted.transform(pd.DataFrame({"score": [0.0, 0.6, 1.1, 1.5], "time": [1.0, 2.5, 3.0, 5.0]}))


FIGURES = {
    "weighted quantiles": lambda t: quantiles(t["score"], LEVELS, t["weight"]),
    "quantiles": lambda t: quantiles(t["score"], LEVELS),
    "spread": lambda t: spread(t["score"]),
    "constant decisions": lambda t: [len(constant_decision(torch.sigmoid(t["score"])) or "")],
    "too close": lambda t: [len(too_close(t["score"], 5.0) or "")],
    "rates at quantiles": lambda t: roc(t, ROCFairness([0.3, 0.7], 0.05, 0.1, QuantileScores(5))),
    "rates": lambda t: roc(t, ROCFairness([0.3, 0.7])),
    "average precision": lambda t: ranking.average_precision(t["score"], t["y"]),
    "precision and recall": lambda t: ranking.precision_recall_at(t["score"], t["y"], 7),
    "precision and recall curve": lambda t: ranking.precision_recall_curve(t["score"], t["y"]),
    "rates of groups": lambda t: ranking.group_rates(t["score"], t["y"], t["group"], 9)[1],
    "lists": lists,
    "survival": lambda t: list(SurvivalEvaluation()(t["score"], t).values()),
    "calibration": calibrated,
    "neighbours": lambda t: list(neighbours(t, "cosine").values()),
    "near neighbours": lambda t: list(neighbours(t, "euclidean").values()),
    "bins": lambda t: encoded(t, quantiles=3),
    "pieces": lambda t: encoded(t, pieces=3),
    "standard numbers": encoded,
    "worst groups": worst_groups,
}
BY_SAMPLE = {
    "weights of the worst": lambda t: worst_weights(pd.Series(t["score"]), 7.2),
    "scores at quantiles": lambda t: QuantileScores(5)(t["score"], t["weight"]),
    "mean of equals": lambda t: mean_of_equals(t["weight"], t["score"]),
    "weights of a max form": lambda t: outer_gradients(GroupMaxForm(num_groups=len(t["score"])), t["score"][:, None]),
    **{
        f"worst case, {name}": lambda t, m=member: m.make().worst_case(t["score"]) for name, member in AMBIGUITY.items()
    },
}


def neighbours(t, distance, k=5):
    points = torch.stack([t["first"], t["second"]], 1)
    return NeighbourEvaluation(k, distance)(points, {"y": t["class"]})


def numbers(found):
    return np.asarray(found, dtype=float)


@pytest.mark.parametrize("name", FIGURES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(24)))
def test_figures_do_not_depend_on_the_order(name, seed, order):
    given_table = table(seed)
    expected = numbers(FIGURES[name](given_table))
    found = numbers(FIGURES[name]({key: column[list(order)] for key, column in given_table.items()}))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", BY_SAMPLE)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1000), order=st.permutations(range(24)))
def test_what_belongs_to_samples_moves_with_them(name, seed, order):
    given_table = table(seed)
    expected = numbers(BY_SAMPLE[name](given_table))[list(order)]
    found = numbers(BY_SAMPLE[name]({key: column[list(order)] for key, column in given_table.items()}))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
def test_equal_scores_have_the_whole_gradient_of_a_quantile(weighted):
    """Which of them has how much is open, as the derivative of an order statistic is where two are equal."""
    given_table = table(3)
    score = given_table["score"].requires_grad_()
    found = quantiles(score, LEVELS, given_table["weight"] if weighted else None)
    (gradient,) = torch.autograd.grad(found @ torch.arange(1.0, 8.0, dtype=torch.float64), score)
    assert gradient.min().item() >= 0
    assert gradient.sum().item() == pytest.approx(28)


def test_weighted_quantiles_of_equal_scores_by_hand():
    """Scores 0, 1, 1, 1 and 3 with the weights 2, 1, 2, 6 and 1: the equal ones have 3 each, so that their neighbours
    are 2.5 and 2 away and they reach over 6."""
    scores, weight = torch.tensor([1.0, 0.0, 1.0, 3.0, 1.0]).double(), torch.tensor([1.0, 2.0, 2.0, 1.0, 6.0]).double()
    levels = torch.tensor([0.0, 1.25, 2.5, 5.0, 8.5, 9.5, 10.5]).double() / 10.5
    assert quantiles(scores, levels, weight).tolist() == pytest.approx([0, 0.5, 1, 1, 1, 2, 3])


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_equally_near_samples_have_parts_of_a_vote(distance):
    """By a second program, in fractions."""
    t = table(5)
    points = torch.stack([t["first"], t["second"]], 1)
    squared = ((points[:, None] - points) ** 2).sum(2)
    if distance == "cosine":  # of whole numbers: compared by the square of the cosine, with its sign
        dots = points @ points.T
        norms = points.square().sum(1)
        squared = -dots.sign() * dots.square() / (norms[:, None] * norms)
    correct = 0
    for i in range(24):
        others = sorted((round(squared[i, j].item(), 9), t["class"][j].item()) for j in range(24) if j != i)
        last, votes = others[4][0], [Fraction(0)] * 3
        places = 5 - sum(d < last for d, _ in others)
        for d, c in others:
            votes[c] += 1 if d < last else Fraction(places, sum(e == last for e, _ in others)) if d == last else 0
        correct += votes.index(max(votes)) == t["class"][i].item()
    assert neighbours(t, distance)["knn_accuracy"] == pytest.approx(correct / 24)


def test_groups_of_equal_risk_are_not_parted():
    rows = calibrated(table(1) | {"score": torch.tensor([0.5] * 10 + [1.0] * 14, dtype=torch.float64)})
    assert [size for size, *_ in rows] == [10, 14]
