"""Figures when many values are equal, or nearly so."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_squared_error, r2_score
from sklearn.neighbors import KNeighborsClassifier

from fcco_lightning import (
    BinaryEvaluation,
    ClassEvaluation,
    GroupEvaluation,
    NeighbourEvaluation,
    NumberEvaluation,
    RankingEvaluation,
    SpectralRisk,
    SurvivalEvaluation,
    ValueEvaluation,
)


def test_of_equal_scores_any_may_be_among_the_first_five():
    y = torch.arange(40) % 10
    found = ClassEvaluation()(torch.zeros(40, 10), {"y": y.float()})
    assert found["top5_accuracy"] == pytest.approx(0.5)
    first = torch.zeros(40, 10)
    first[:, :4] = 1.0  # four above, and one of six equal ones
    assert ClassEvaluation()(first, {"y": y})["top5_accuracy"] == pytest.approx(0.4 + 0.6 / 6)
    assert ClassEvaluation()(torch.full((40, 10), torch.nan), {"y": y})["top5_accuracy"] == 0


def test_equal_labels_have_no_variance_to_predict():
    y = torch.full((7,), 0.7, dtype=torch.float64)
    assert "r2" not in NumberEvaluation()(torch.zeros(7), {"y": y})
    weight = torch.ones(7)
    y[3], weight[3] = 2.0, 0.0
    assert "r2" not in NumberEvaluation()(torch.zeros(7), {"y": y, "weight": weight})
    assert set(NumberEvaluation()(torch.zeros(7), {"y": y, "weight": 0 * weight})) == {"rmse", "mae"}


def test_a_common_offset_changes_no_neighbour():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(300, 4, generator=generator) + 3000
    y = (points[:, 0] + points[:, 1] > 6000).long()
    found = NeighbourEvaluation(k=5, distance="euclidean")(points, {"y": y})["knn_accuracy"]
    right = 0
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        exact = points.double().numpy()
        one = KNeighborsClassifier(5).fit(exact[rest], y.numpy()[rest])
        right += int(one.predict(exact[i : i + 1])[0] == int(y[i]))
    assert found == pytest.approx(right / len(y), abs=1 / len(y))


def test_events_behind_nearly_all_censoring_leave_averages_over_time_undefined():
    time, event = torch.arange(1.0, 101.0), torch.zeros(100, dtype=torch.int64)
    event[-1] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = SurvivalEvaluation()(torch.linspace(-1, 1, 100), {"time": time, "event": event})
    assert "loss" in found
    assert np.isnan(found["integrated_brier"])


@pytest.mark.parametrize("r", [1e-12, 1e-6, 1e-2, 5.0, 800.0])
def test_exponential_weights_add_up_to_one(r):
    sigma = SpectralRisk("esrm", r).sigma(50)
    assert sigma.sum() == pytest.approx(1, abs=1e-13)
    if r < 1e-5:
        np.testing.assert_allclose(sigma, 1 / 50, rtol=1e-5)


def test_the_variance_of_several_labels_is_that_of_each():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(50, 3, generator=generator).double() + torch.tensor([0.0, 10.0, -5.0])  # apart from each other
    outputs = y + torch.randn(50, 3, generator=generator)
    found = NumberEvaluation()(outputs, {"y": y})
    assert found["r2"] == pytest.approx(r2_score(y.numpy(), outputs.numpy()))
    assert found["rmse"] == pytest.approx(mean_squared_error(y.numpy(), outputs.numpy()) ** 0.5)
    y[:, 1] = 4.0  # says nothing
    found = NumberEvaluation()(outputs, {"y": y})
    assert found["r2"] == pytest.approx(r2_score(y[:, ::2].numpy(), outputs[:, ::2].numpy()))


@pytest.mark.parametrize(
    "evaluation",
    [
        BinaryEvaluation(), ClassEvaluation(), GroupEvaluation(), NumberEvaluation(), RankingEvaluation(),
        ValueEvaluation(),
    ],
    ids=lambda evaluation: type(evaluation).__name__,
)  # fmt: skip
def test_columns_of_width_one_are_not_spread_out(evaluation):
    numbers = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    columns = {
        "y": torch.arange(12) % 2,
        "reward": numbers[:, 1],
        "value": numbers[:, 0] + 1,
        "weight": numbers[:, 1] ** 2,
    }
    wide = {name: column.unsqueeze(1) for name, column in columns.items() if name in ("y", "value", "weight")}
    group = {"group": torch.arange(12) % 3}
    outputs = numbers if isinstance(evaluation, ValueEvaluation) else numbers[:, 0]
    assert evaluation(outputs, columns | group | wide) == evaluation(outputs, columns | group)


@pytest.mark.parametrize("evaluation", [GroupEvaluation(), BinaryEvaluation()])
def test_groups_may_be_a_column_of_width_one(evaluation):
    scores = torch.randn(24, generator=torch.Generator().manual_seed(0))
    columns = {"y": torch.arange(24) % 2, "group": torch.arange(24) // 2 % 2}
    wide = columns | {"group": columns["group"].unsqueeze(1)}
    assert evaluation(scores, wide) == evaluation(scores, columns)
    assert evaluation.details(scores, wide) == evaluation.details(scores, columns)
