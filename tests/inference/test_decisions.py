"""What decisions are for, from the command line through a checkpoint to the predictions."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning.cli import run
from fcco_lightning.inference import load

FIT = "fit --data.train train.csv --data.columns.label ill --data.columns.positive yes --trainer.max_epochs 3"
QUIET = "--trainer.accelerator cpu --trainer.enable_progress_bar false --report.enabled false"


def patients(size=1200, seed=0):
    """A tenth of them is ill."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(size, 2)), rng.normal(size=size)
    ill = x[:, 0] + y > np.quantile(x[:, 0] + y, 0.9)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "ill": np.where(ill, "yes", "no")})


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
    checkpoint, predicted, ill = fitted("--model.objective", "AUC", "--decisions.tpr", "0.7")
    asked = torch.load(checkpoint, weights_only=True)["fcco"]["decisions"]
    assert asked["asked"] == {"tpr": 0.7}
    decided = predicted["decision"] == "yes"
    assert (decided == (predicted["score"] > asked["division"])).all()
    assert decided[ill].mean() == pytest.approx(0.7, abs=0.08)  # of the training split, and of the test split nearly


def test_a_budget_is_a_share_of_the_table(fitted):
    checkpoint, predicted, _ = fitted("--decisions.share", "0.05")
    assert (predicted["decision"] == "yes").sum() == 60
    few = load(checkpoint).predict(patients(40, seed=1).drop(columns="ill"))
    assert (few["decision"] == "yes").sum() == 2
    assert few["decision"][few["score"].nlargest(2).index].eq("yes").all()


def test_scores_that_nothing_divides_are_said(fitted):
    with pytest.warns(UserWarning, match=r"at least 0\.7 of the positives, and the run has evaluated no split"):
        fitted("--model.objective", "AUC", "--decisions.tpr", "0.7", "--trainer.limit_val_batches", "0")
