"""Decisions from the command line through a checkpoint to the predictions."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.calibration import calibration_curve

from fcco_lightning import ConfigError
from fcco_lightning.cli import run
from fcco_lightning.errors import FCCOError
from fcco_lightning.inference import load

FIT = "fit --data.train train.csv --data.columns.label ill --data.columns.positive yes --trainer.max_epochs 3"
PAIRS = ["--model.objective", "AUC", "--model.objective.cross_entropy", "0"]
RANKED = [*PAIRS, "--data.splits.val_fraction", "0"]
QUIET = "--trainer.accelerator cpu --trainer.enable_progress_bar false --report.enabled false"


def patients(size=1200, seed=0):
    """A tenth of them is ill."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(size, 2)), rng.normal(size=size)
    ill = x[:, 0] + y > np.quantile(x[:, 0] + y, 0.9)
    sex = np.where(rng.random(size) < 0.5, "f", "m")
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "sex": sex, "ill": np.where(ill, "yes", "no")})


@pytest.fixture
def fitted(tmp_path, monkeypatch):
    """Fits on the table with some options, and predicts it."""
    monkeypatch.chdir(tmp_path)
    data = patients()
    data.to_csv("train.csv", index=False)

    def fit(*options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert run([*FIT.split(), *QUIET.split(), *options]) == 0
        (checkpoint,) = Path().rglob("last.ckpt")
        predicted = load(checkpoint).predict(data.drop(columns="ill"))
        return checkpoint, predicted, data["ill"] == "yes"

    return fit


def test_balanced_decisions_find_the_rare_class(fitted):
    _, predicted, ill = fitted("--decisions", "balanced")
    decided = predicted["decision"] == "yes"
    assert decided[ill].mean() > 0.6  # a model for the more probable class finds a few
    assert predicted["probability"].mean() == pytest.approx(0.1, abs=0.04)  # costs are no part of it
    assert (decided == (predicted["score"] > 0)).all()


def test_a_least_rate_with_an_objective_of_ranking(fitted):
    with pytest.warns(UserWarning, match="no probability is written"):
        checkpoint, predicted, ill = fitted(*RANKED, "--decisions.tpr", "0.7")
    asked = torch.load(checkpoint, weights_only=True)["fcco"]["decisions"]
    assert asked["asked"] == {"tpr": 0.7}
    decided = predicted["decision"] == "yes"
    assert (decided == (predicted["score"] > asked["division"])).all()
    assert decided[ill].mean() == pytest.approx(0.7, abs=0.08)  # of the training split, and of the test split nearly


@pytest.mark.slow
def test_a_budget_is_a_share_of_the_table(fitted):
    checkpoint, predicted, _ = fitted("--decisions.share", "0.05")
    assert (predicted["decision"] == "yes").sum() == 60
    few = load(checkpoint).predict(patients(40, seed=1).drop(columns="ill"))
    assert (few["decision"] == "yes").sum() == 2
    assert few["decision"][few["score"].nlargest(2).index].eq("yes").all()


@pytest.mark.slow
def test_scores_that_nothing_divides_are_said(fitted):
    with (
        pytest.warns(UserWarning, match=r"no probability is written"),
        pytest.warns(UserWarning, match=r"at least 0\.7 of the positives, and the run has evaluated no split"),
    ):
        fitted(*RANKED, "--decisions.tpr", "0.7", "--trainer.limit_val_batches", "0")


def test_a_ranking_has_probabilities_where_rows_are_held_out(fitted, capsys):
    """Of rows that it has never seen, against scikit-learn's measure of calibration."""
    checkpoint, _, _ = fitted(*PAIRS, "--model.network.offset", "0")  # far from the log-odds
    assert "--data.splits.val_fraction 0.1" in capsys.readouterr().err
    map_of_few = torch.load(checkpoint, weights_only=True)["fcco"]["decisions"]["calibration"]
    assert set(map_of_few) == {"slope", "intercept"}  # of 10 positives
    later = patients(4000, seed=2)
    predicted, ill = load(checkpoint).predict(later.drop(columns="ill")), later["ill"] == "yes"
    assert predicted["probability"].mean() == pytest.approx(ill.mean(), abs=0.03)
    true, said = calibration_curve(ill, predicted["probability"], n_bins=10, strategy="quantile")
    assert np.abs(true - said).mean() < 0.05
    raw = 1 / (1 + np.exp(-predicted["score"]))
    assert np.abs(np.subtract(*calibration_curve(ill, raw, n_bins=10, strategy="quantile"))).mean() > 0.2
    asked = load(checkpoint).predict(later, threshold=0.3)
    assert (asked["decision"].eq("yes") == (asked["probability"] > 0.3)).all()


def test_auc_beside_cross_entropy_has_probabilities_of_all_rows(fitted, capsys):
    """Its scores are log-odds, so that none of the rows is held out, and more probable than not is above 0."""
    checkpoint, predicted, _ = fitted()
    assert "--model.objective AUC" in (said := capsys.readouterr().err)
    assert "val_fraction" not in said
    decisions = torch.load(checkpoint, weights_only=True)["fcco"]["decisions"]
    assert (decisions["division"], decisions["calibration"]) == (0, None)
    assert predicted["probability"].mean() == pytest.approx(0.1, abs=0.02)
    assert (predicted["decision"].eq("yes") == (predicted["probability"] > 0.5)).all()


@pytest.mark.slow
def test_a_ranking_without_rows_held_out_has_scores(fitted):
    with pytest.warns(UserWarning, match=r"no probability is written: .* Hold some out"):
        checkpoint, predicted, _ = fitted(*RANKED)
    assert list(predicted) == ["index", "score", "decision"]
    with pytest.raises(ConfigError, match=r"threshold=0\.3 is of probabilities, and these scores have none"):
        load(checkpoint).predict(patients(20), threshold=0.3)


def test_a_damaged_calibration_is_told(fitted, tmp_path):
    checkpoint, _, _ = fitted(*PAIRS)
    for damaged, said in (
        ({"slope": "1", "intercept": 0.0}, "calibration"),
        ({"scores": [0.0, 1.0], "probabilities": [0.5]}, "as many probabilities as scores"),
        ({"scores": [1.0, 0.0], "probabilities": [0.1, 0.5]}, "both increasing"),
        ({"slope": -1.0, "intercept": 0.0}, "slope"),
    ):
        content = torch.load(checkpoint, weights_only=True)
        content["fcco"]["decisions"]["calibration"] = damaged
        torch.save(content, tmp_path / "damaged.ckpt")
        with pytest.raises(FCCOError, match=said):
            load(tmp_path / "damaged.ckpt")


@pytest.mark.slow
def test_the_best_weights_keep_their_probabilities(fitted):
    """A calibration belongs to the weights on whose scores it was found."""
    options = ["--model.constraints", "DemographicParity", "--model.constraints.by", "sex", "--model.objective", "AUC"]
    checkpoint, _, _ = fitted(*options, "--feasible.enabled", "true", "--data.splits.val_fraction", "0.3")
    best = load(checkpoint.with_name("feasible.ckpt"))
    other = patients(4000, seed=2)
    assert best.predict(other)["probability"].mean() == pytest.approx(0.1, abs=0.04)
