"""Dual values: their number and size, those of a max form, and those that an algorithm's rows represent."""

import pytest
import torch

from fcco_lightning import ALEXR, BSGD, OOA, SONEX, ConfigError, CrossEntropy, CVaRGroupDRO, KLGroupDRO
from fcco_lightning.analysis import diagnose, duals, jacobian, outer_gradients, remembered_duals
from tests.analysis.problems import GROUPS, make, whole


def test_duals_by_hand():
    y = torch.tensor([[2.5], [0.0], [1e-9], [2.5]], dtype=torch.float64)
    assert duals(y) == (4, 2, pytest.approx(6.25))
    assert duals(torch.zeros(3, 1)) == (3, 0, 0)
    assert duals(torch.zeros(0, 1)) == (0, 0, 0)


def test_a_max_form_has_the_weights_of_the_worst_case():
    objective = make("max form").objective
    y = outer_gradients(objective, torch.tensor([[0.1], [0.5], [0.3], [0.2], [0.4]]))
    torch.testing.assert_close(y.flatten(), torch.tensor([0, 2.5, 0, 0, 2.5]))
    found = diagnose(objective, jacobian(make("max form"), [whole()]), lam=0.1)
    assert found["duals"]["predicted"] == found["duals"]["exact"]["omega"] == pytest.approx(5 / 0.8)
    assert len(found["stationarity"]["grid"]) == 1
    assert "at" not in found["stationarity"]
    assert "value" not in found


def test_a_max_form_with_a_penalty_has_the_weights_of_the_best_response():
    risks = torch.tensor([[0.1], [0.5], [0.3]], dtype=torch.float64)
    y = outer_gradients(KLGroupDRO(0.2, num_groups=3).max_form(), risks)
    torch.testing.assert_close(y, 3 * (risks / 0.2).softmax(0))


@pytest.mark.parametrize(
    ("algorithm", "rows", "expected"),
    [
        (SONEX(lam=0.5), [-1, 0.25, 3], [0, 0.5, 2.5]),  # grad f_lam(u)
        (ALEXR(), [0, 1, 2.5], [0, 1, 2.5]),  # y
        (OOA(), [0.2, 0.3, 0.1], [1, 1.5, 0.5]),  # n q
    ],
)
def test_remembered_duals(algorithm, rows, expected):
    objective = CVaRGroupDRO(0.4, num_groups=GROUPS)
    terms = algorithm.pose(objective, num_samples=10).all_terms
    terms[0].state.write(torch.tensor([0, 2, 3]), torch.tensor(rows).float().unsqueeze(1))
    expected = torch.tensor(expected, dtype=torch.float64).unsqueeze(1)
    got = remembered_duals(algorithm, terms)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_an_algorithm_without_rows():
    algorithm = BSGD()
    problem = algorithm.pose(CVaRGroupDRO(0.4, num_groups=GROUPS), num_samples=10)
    assert remembered_duals(algorithm, problem.all_terms) is None


def test_an_objective_without_inner_functions_has_no_duals():
    with pytest.raises(ConfigError, match="CrossEntropy has no inner functions"):
        outer_gradients(CrossEntropy(), torch.zeros(2, 1))
