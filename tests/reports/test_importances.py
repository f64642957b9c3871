"""Importances of columns by permutation: against a permutation by hand, and tables in which one column decides."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.metrics import accuracy_score, roc_auc_score

from fcco_lightning import AUC, ConstrainedClassifier, FCCOModule, Report, TabularDataModule, TensorDataModule
from fcco_lightning.cli import run
from fcco_lightning.data import encoding
from fcco_lightning.data.batches import UniformSampling
from fcco_lightning.data.encoding import Encoding
from fcco_lightning.data.roles import Columns
from fcco_lightning.data.splits import Splits
from fcco_lightning.data.texts import TextEncoder
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation import BinaryEvaluation, ClassEvaluation, RankingEvaluation
from fcco_lightning.inference import load
from fcco_lightning.models import TabularMLP
from fcco_lightning.reports import report_on
from fcco_lightning.reports.importances import MOST_ROWS, Features, importances_of
from tests.launch import launch, values

QUIET = "--trainer.accelerator cpu --trainer.enable_progress_bar false"


def table(n, seed=0):
    """Labels that follow one column of categories, some of them missing, beside columns that say nothing."""
    rng = np.random.default_rng(seed)
    colour = rng.choice(["red", "green", "blue"], n)
    return pd.DataFrame(
        {
            "y": np.where(colour == "red", "yes", "no"),
            "colour": pd.Series(colour).mask((np.arange(n) % 10 == 0) & (colour == "red")),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "size": rng.normal(size=n),
            "shape": rng.choice(["round", "flat"], n),
        }
    )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        table(400).to_csv("t.csv", index=False)
        options = "--label y --epochs 12 --lr .05 --report.importances true"
        assert run(["fit", "t.csv", *options.split(), *QUIET.split()]) == 0
        yield Path.cwd() / "runs/version_0"


@pytest.mark.slow
def test_one_column_decides_alone(fitted, capsys):
    found = json.loads((fitted / "report.json").read_text())["test"]["importances"]
    assert [found["figure"], found["rows"]] == ["auc", 80]
    assert {one["column"] for one in found["columns"]} == {"colour", "since", "size", "shape"}
    first, *others = found["columns"]
    assert first["column"] == "colour"
    assert first["change"] > 0.3
    assert all(abs(one["change"]) < 0.05 for one in others)
    page = (fitted / "report.html").read_text()
    assert "decrease of AUC if shuffled" in page
    assert "share their importance" in page
    assert (fitted / "importances.png").stat().st_size > 5000


@pytest.mark.slow
def test_features_that_are_made_for_a_batch_have_the_same_importances(fitted, monkeypatch, capsys):
    monkeypatch.setattr(encoding, "_MOST_IN_MEMORY", 0)
    monkeypatch.chdir(fitted.parents[1])
    options = "--label y --epochs 12 --lr .05 --report.importances true --report.pictures false --name made"
    assert run(["fit", "t.csv", *options.split(), *QUIET.split()]) == 0
    (made,) = set(Path.cwd().rglob("report.json")) - {fitted / "report.json"}
    expected = json.loads((fitted / "report.json").read_text())["test"]["importances"]
    assert json.loads(made.read_text())["test"]["importances"] == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*missing cells, which are imputed")
def test_a_later_table_has_importances_on_request(fitted, tmp_path, monkeypatch, capsys):
    (path,) = fitted.rglob("last.ckpt")
    later = table(300, seed=1)
    monkeypatch.chdir(tmp_path)
    later.to_csv("later.csv", index=False)
    assert run(["test", str(path), "later.csv", "--out", "found", "--importances"]) == 0
    found = json.loads(Path("found/report.json").read_text())["test"]["importances"]
    assert Path("found/importances.png").is_file()
    assert "decrease of AUC if shuffled" in capsys.readouterr().out
    # The same shuffles of the table itself, by hand: dates, categories and gaps go along with their cells.
    model, y, changes = load(path), later["y"] == "yes", {}
    whole = roc_auc_score(y, model.predict(later)["score"])
    for column in later.columns.drop("y"):
        again = [later.assign(**{column: later[column].sample(frac=1, random_state=k).to_numpy()}) for k in range(30)]
        changes[column] = np.mean([whole - roc_auc_score(y, model.predict(one)["score"]) for one in again])
    assert found["value"] == pytest.approx(whole, abs=1e-6)
    for one in found["columns"]:
        assert one["change"] == pytest.approx(changes[one["column"]], abs=0.02 + one["std"])
    assert "importances" not in report_on(path, later).figures


def by_hand(x, owners, scores, figure, repeats):
    """All changes of a figure by NumPy, with the shuffles that scikit-learn draws."""
    names = list(dict.fromkeys(owners))
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max + 1)
    changes = {}
    for name in names:
        stream, order, drawn, shuffled = np.random.RandomState(seed), np.arange(len(x)), [], x.copy()
        block = [k for k, owner in enumerate(owners) if owner == name]
        for _ in range(repeats):
            stream.shuffle(order)
            shuffled[:, block] = shuffled[order][:, block]
            drawn.append(figure(scores(x)) - figure(scores(shuffled)))
        changes[name] = np.mean(drawn), np.std(drawn)
    return changes


@pytest.fixture
def sample():
    rng = np.random.default_rng(2)
    x = (16 * rng.normal(size=(60, 4))).round() / 16  # sums are exact, whoever adds up
    weights = np.array([1.0, 0.5, -0.25, 0.0])
    scores = x @ weights
    return x, weights, (scores + rng.normal(size=60) > 0.5).astype(int), rng.choice([1.0, 3.0], 60)


def features(x, weights, owners):
    return Features(torch.from_numpy(x), owners, lambda x, rows: x @ torch.from_numpy(weights))


def check(found, expected):
    for one in found["columns"]:
        assert (one["change"], one["std"]) == pytest.approx(expected[one["column"]], abs=1e-9)
    changes = [one["change"] for one in found["columns"]]
    assert changes == sorted(changes, reverse=True)


OWNERS = ["a", "b", "c", "a"]


def test_weights_of_samples_count(sample):
    x, weights, y, weight = sample
    batch = {"y": torch.from_numpy(y), "weight": torch.from_numpy(weight)}
    found = importances_of(features(x, weights, OWNERS), batch, BinaryEvaluation())
    expected = by_hand(x, OWNERS, lambda x: x @ weights, lambda s: roc_auc_score(y, s, sample_weight=weight), 5)
    check(found, expected)
    unweighted = by_hand(x, OWNERS, lambda x: x @ weights, lambda s: roc_auc_score(y, s), 5)
    assert expected["a"] != pytest.approx(unweighted["a"])


def test_unknown_labels_are_left_out(sample):
    x, weights, y, _ = sample
    known = np.arange(60) % 4 > 0
    batch = {"y": torch.from_numpy(np.where(known, y, -1))[:, None]}
    found = importances_of(features(x, weights, OWNERS), batch, RankingEvaluation(missing=-1), "auc")
    check(found, by_hand(x, OWNERS, lambda x: x @ weights, lambda s: roc_auc_score(y[known], s[known]), 5))


def test_a_loss_rises(sample):
    x, weights, y, _ = sample
    found = importances_of(features(x, weights, OWNERS), {"y": torch.from_numpy(y)}, ClassEvaluation(), "loss")

    def loss(scores):
        return -np.logaddexp(0, -(2 * y - 1) * scores).mean()

    check(found, by_hand(x, OWNERS, lambda x: x @ weights, loss, 5))
    assert found["value"] == pytest.approx(-loss(x @ weights))
    assert found["columns"][0]["change"] > 0


def test_at_most_some_thousand_rows(sample):
    _, weights, _, _ = sample
    x = np.random.default_rng(0).normal(size=(MOST_ROWS + 1000, 4))
    batch = {"y": torch.from_numpy((x @ weights > 0).astype(int))}
    seen = []
    given = Features(
        torch.from_numpy(x), OWNERS, lambda x, rows: (seen.append(len(rows)), x @ torch.from_numpy(weights))[1]
    )
    found = importances_of(given, batch, ClassEvaluation())
    assert found["rows"] == MOST_ROWS
    assert set(seen) == {MOST_ROWS}
    assert [found["value"], found["columns"][0]["column"]] == [1.0, "a"]
    whole = ClassEvaluation()
    whole.separable = False  # figures of whole lists take all
    assert importances_of(given, batch, whole)["rows"] == len(x)


def test_the_classifier_shuffles_its_columns(sample):
    x, _, y, _ = sample
    frame = pd.DataFrame(np.repeat(x, 20, axis=0), columns=list("pqrs"))
    frame += np.random.default_rng(1).normal(scale=0.01, size=frame.shape)
    y = np.repeat(y, 20)
    model = ConstrainedClassifier(hidden=(8,), max_epochs=6, learning_rate=0.05, random_state=0, pieces=3).fit(frame, y)
    found = model.report(frame, y, importances=True).figures["importances"]

    def figure(x):
        return roc_auc_score(y, model.decision_function(pd.DataFrame(x, columns=frame.columns)).astype(np.float32))

    check(found, by_hand(frame.to_numpy(), list("pqrs"), lambda x: x, figure, 5))
    assert "importances" not in model.report(frame, y).figures
    several = np.repeat([0, 1, 2], 400)
    model.fit(frame.assign(p=several), several)
    found = model.report(frame.assign(p=several), several, importances=True).figures["importances"]
    assert [found["figure"], found["columns"][0]["column"]] == ["accuracy", "p"]
    assert found["value"] == accuracy_score(several, model.predict(frame.assign(p=several)))


@pytest.mark.parametrize("evaluation", [None, "texts"])
def test_what_has_no_columns_is_refused_before_training(evaluation, tmp_path):
    data = TensorDataModule(
        {name: {"x": torch.randn(20, 2), "y": torch.arange(20) % 2} for name in ("train", "test")},
        batches=UniformSampling(10),
    )
    if evaluation == "texts":
        data.encoder = TextEncoder("mail", 10, None)
    module = FCCOModule(TabularMLP([4]), AUC())
    report = Report(importances=True, folder=str(tmp_path))
    trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False, callbacks=[report], accelerator="cpu")
    with pytest.raises(ConfigError, match=r"report\.importances needs a table .* Leave it out"):
        trainer.fit(module, data)
    assert trainer.global_step == 0


def importances_of_a_fit(job):  # in every process
    torch.manual_seed(0)
    network = torch.nn.Linear(12, 1)
    columns, splits = Columns(label="y", positive=["yes"]), Splits(test_fraction=0.25, val_fraction=0.25)
    data = TabularDataModule(
        table(203), columns=columns, splits=splits, encoding=Encoding(missing="impute"), batches=UniformSampling(32)
    )
    report = Report(importances=True, pictures=False, table=False, folder=job["folder"])
    settings = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    module = FCCOModule(network, AUC(), optimizer=lambda params: torch.optim.SGD(params, lr=0.0))
    distributed = {"strategy": "ddp", "devices": job["size"]} if job["size"] > 1 else {}
    Trainer(max_epochs=1, callbacks=[report], **settings, **distributed).fit(module, data)
    return report.report["test"]["importances"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_processes_share_the_passes(tmp_path):
    job = {"folder": str(tmp_path)}
    alone = importances_of_a_fit({**job, "size": 1})
    assert any(abs(one["change"]) > 0.01 for one in alone["columns"])
    for found in values(launch(importances_of_a_fit, 2, {**job, "size": 2})):
        assert found["columns"] == [
            {**one, "change": pytest.approx(one["change"], abs=1e-6)} | {"std": pytest.approx(one["std"], abs=1e-6)}
            for one in alone["columns"]
        ]
