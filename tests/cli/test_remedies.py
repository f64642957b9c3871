"""The advice in messages about vacuous constraints works, on a table with 5% positives and two sensitive columns."""

import contextlib
import io
import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from sklearn.metrics import roc_auc_score

from fcco_lightning import (
    AUC,
    ConstrainedClassifier,
    Decisions,
    EqualizedOdds,
    GroupAUCAtLeast,
    MeanNear,
    QuantileScores,
    ROCFairness,
    SoftRate,
    TopShare,
)
from fcco_lightning.cli import run
from fcco_lightning.cli.front import points
from fcco_lightning.objectives import SigmoidPair

SENSITIVE = ["sex", "region"]


@pytest.fixture(scope="module")
def rare():
    """1,600 rows, 80 of them positive, and 4,000 others; one of three regions has a tenth of the rows."""
    rng, n = np.random.default_rng(0), 5600
    sex, region = rng.choice(["f", "m"], n), rng.choice(["a", "b", "c"], n, p=[0.5, 0.4, 0.1])
    known = rng.normal(size=(n, 3))
    score = known @ [1.2, 0.8, 0.5] + 0.7 * (region == "a") + 0.4 * (sex == "m") + rng.logistic(scale=0.6, size=n)
    table = pd.DataFrame(known, columns=["u", "v", "w"]).assign(sex=sex, region=region)
    table["answer"] = np.where(score > np.quantile(score, 0.95), "yes", "no")
    return table[:1600], table[1600:]


def odds(rate=None):
    return [EqualizedOdds(0.05, rate, by=name) for name in SENSITIVE]


def fitted(rare, constraints, objective=None, **more):
    """What a training says of itself, the AUC on others, and whom of these it chooses."""
    ours, others = rare
    options = {"learning_rate": 1e-2, "max_epochs": 12, "random_state": 0} | more
    model = ConstrainedClassifier(objective, constraints, hidden=[8], pieces=1, **options)
    x = pd.get_dummies(pd.concat([ours, others]).drop(columns="answer")).astype(float)
    model.fit(x[:1600], ours["answer"], sensitive_features=ours[SENSITIVE])
    scores = model.decision_function(x[1600:])
    auc = roc_auc_score(others["answer"] == "yes", scores)
    return model.report_.figures, model.report_.headline, auc, model.predict(x[1600:]) == "yes"


def works(figures, headline, auc, chosen):
    """Whether weights say something and rank, and constraints hold or are said not to."""
    told = ("not hold" not in headline) == (figures["worst_violation"] <= 0)
    return not figures["vacuous"] and figures["auc"] > 0.7 and auc > 0.7 and 0.005 < chosen.mean() < 0.5 and told


@pytest.mark.slow
def test_saying_what_decisions_are_for(rare):
    figures, headline, *_ = fitted(rare, odds())
    assert figures["vacuous"]
    advice = (
        "--decisions balanced, --decisions.costs [1,10] with a larger cost of the class that is missed, or with an "
        "objective that ranks, as AUC, --decisions.share 0.1"
    )
    assert f"vacuous there: {figures['vacuous_because']}" in headline
    assert figures["vacuous_because"].endswith(advice)
    assert works(*fitted(rare, odds(), decisions="balanced"))
    assert works(*fitted(rare, odds(), AUC(), decisions=Decisions(share=0.1)))


@pytest.mark.slow
def test_a_budget_keeps_the_ranking_and_a_share_is_that_of_decisions(rare):
    figures, _, auc, _ = fitted(rare, odds(TopShare(0.1)))
    assert not figures["vacuous"]
    assert min(figures["auc"], auc) > 0.7
    *near, chosen = fitted(rare, [MeanNear(SoftRate(), 0.2)], max_epochs=20)
    assert works(*near, chosen)
    assert chosen.mean() == pytest.approx(0.2, abs=0.05)


@pytest.mark.slow
def test_quantiles_rank_and_hold(rare):
    figures, headline, auc, chosen = fitted(
        rare,
        [ROCFairness((0.7, 0.9), 0.1, 0.05, QuantileScores(), by="region"), *odds(), GroupAUCAtLeast(0.6, by="sex")],
        decisions="balanced",
    )
    assert works(figures, headline, auc, chosen)


def test_quantiles_lower_temperatures_and_smaller_units(rare):
    """Each is what the reason names."""
    y = torch.tensor([answer == "yes" for answer in rare[0]["answer"]]).long()
    batch = {"y": y, "group": torch.arange(len(y)) % 2}
    scores = (4 * y + torch.linspace(-2, 2, len(y))).double()
    for gamed, mended, advice in (
        (
            ROCFairness((50.0, 60.0)),
            ROCFairness((0.7, 0.96), scale=QuantileScores(), temperature=0.05),
            "QuantileScores",
        ),
        (EqualizedOdds(rate=SoftRate(temperature=30.0)), EqualizedOdds(), "Lower the temperature of the rate"),
        (GroupAUCAtLeast(0.6, SigmoidPair(30.0)), GroupAUCAtLeast(0.6), "Lower its scale"),
    ):
        assert advice in gamed.vacuous(scores, batch)
        assert mended.vacuous(scores, batch) is None


@pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:.*exists and is not empty")
def test_the_last_line_says_that_the_ranking_is_ruined_and_by_what_more_is_known(rare):
    """Equal rates for positives and negatives are met by ruining the ranking alone."""
    rare[0].to_csv("rare.csv", index=False)
    ruin = {"quantity": {"class_path": "SoftRate"}, "kappa": 0.02, "where_a": {"answer": "yes"}}
    ruin |= {"where_b": {"answer": "no"}}
    constraints = json.dumps([{"class_path": "MeanDifferenceAtMost", "init_args": ruin}])
    assert run([
        "fit", "--data.train", "rare.csv", "--data.columns.label", "answer", f"--model.constraints={constraints}",
        "--decisions", "balanced", "--baseline.enabled", "true", "--trainer.max_epochs", "15",
        "--model.network.hidden=[8]", "--data.encoding.pieces=1", "--model.optimizer.lr", "0.02",
        "--trainer.check_val_every_n_epoch", "5", "--report.pictures", "false",
        "--report.folder", "out",
    ]) == 0  # fmt: skip
    last = json.loads(Path("out/report.json").read_text())["verdict"]
    assert "The constraints ruin the ranking: train AUC 0." in last
    named = shlex.split(last.partition("points in between: ")[2])
    assert named[:3] == ["fcco", "front", "--config"]
    assert named[-2:] == ["--factors", "4,2,1"]

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        run(["fit", *named[2:4], "--print_config"])  # as the command does first
    planned = points(yaml.safe_load(said.getvalue()), None, [4, 2, 1])
    kappas = [point["model"]["constraints"][0]["init_args"]["kappa"] for point in planned.values()]
    assert kappas == pytest.approx([0.08, 0.04, 0.02])
