"""Probabilities of scores against scikit-learn's calibration."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from fcco_lightning.constraints import DecisionRule
from fcco_lightning.constraints.calibration import IsotonicMap, PlattScaling, calibrated


class Scorer(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose scores are its only feature."""

    def __init__(self):
        self.classes_ = np.array([0, 1])

    def fit(self, X, y):
        return self

    def decision_function(self, X):
        return X[:, 0]

    def predict(self, X):
        return (X[:, 0] > 0).astype(int)


def sample(positives, seed=0, share=0.05):
    """Scores that rank, with many equal ones, and are no log-odds; with the given number of positives exactly."""
    rng = np.random.default_rng(seed)
    n = round(positives / share)
    z = rng.normal(size=n)
    y = np.zeros(n, dtype=int)
    y[np.argsort(-(z + rng.logistic(size=n)))[:positives]] = 1
    return torch.from_numpy((40 * z + 300).round()), torch.from_numpy(y)


def theirs(method, scores, y, weight):
    model = CalibratedClassifierCV(FrozenEstimator(Scorer()), method=method)
    weight = None if weight is None else weight.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a frozen estimator is not fitted with weights
        model.fit(scores.numpy()[:, None], y.numpy(), sample_weight=weight)
    (one,) = model.calibrated_classifiers_
    return lambda s: one.predict_proba(s.numpy()[:, None])[:, 1]


OTHERS = torch.linspace(100, 500, 50, dtype=torch.float64)


def weights(size):
    found = torch.rand(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    return found / found.mean()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("positives", [5, 99])
def test_few_positives_are_scaled_as_platt_does(positives, weighted):
    scores, y = sample(positives)
    weight = weights(len(y)) if weighted else None
    own = calibrated(scores, y, None if weight is None else 3 * weight)  # of which only the ratios count
    assert isinstance(own, PlattScaling)
    np.testing.assert_allclose(own(OTHERS), theirs("sigmoid", scores, y, weight)(OTHERS), atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_many_positives_have_an_isotonic_map(weighted):
    scores, y = sample(100)
    weight = weights(len(y)) if weighted else None
    own = calibrated(scores, y, weight)
    assert isinstance(own, IsotonicMap)
    least = 1 / (len(y) + 2)
    reference = theirs("isotonic", scores, y, weight)(OTHERS).clip(least, 1 - least)
    np.testing.assert_allclose(own(OTHERS), reference, atol=1e-12)


def test_few_negatives_are_few_too():
    scores, y = sample(60)
    assert isinstance(calibrated(-scores, 1 - y), PlattScaling)


def test_scores_that_rank_worse_than_chance_say_the_share():
    scores, y = sample(30)
    own = calibrated(-scores, y)(torch.tensor([-600.0, -300.0, 0.0]))
    assert own.tolist() == pytest.approx([0.05] * 3, abs=0.005)


def test_equal_scores_and_those_that_divide_the_classes():
    y = torch.tensor([0] * 9 + [1])
    assert calibrated(torch.zeros(10), y)(torch.zeros(1)).item() == pytest.approx(0.1, abs=0.1)
    low, high = calibrated(y.double(), y)(torch.tensor([0.0, 1.0])).tolist()
    assert 0 < low < 0.2
    assert 0.6 < high < 1


@pytest.mark.parametrize("positives", [30, 300])
def test_a_rule_keeps_its_map(positives):
    scores, y = sample(positives)
    rule = DecisionRule(proper=False)
    assert rule.probabilities(scores) is None
    rule.fit(scores, y, classifies=False)
    assert rule.probabilities(scores) is None  # these were trained on
    rule.fit(scores, y, classifies=False, held_out=True)
    again = DecisionRule.of(rule.state())
    assert torch.equal(again.probabilities(OTHERS), rule.probabilities(OTHERS))
    taken = DecisionRule(proper=False)
    taken.take(rule)
    assert taken.calibration == rule.calibration
    column = rule.probabilities(scores.float().unsqueeze(1))
    assert column.shape == (len(y), 1)
    assert column.dtype == torch.float32
