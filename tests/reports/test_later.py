"""Reports on labelled rows of later data, for a checkpoint and for the classifier.

The report on a later table is that of the run on the same table, and agrees with predictions counted in NumPy.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fcco_lightning import ConstrainedClassifier, DemographicParity, EqualizedOdds
from fcco_lightning.cli import run
from fcco_lightning.constraints import Decisions
from fcco_lightning.errors import CheckpointError, ConfigError, DataError
from fcco_lightning.inference import load
from fcco_lightning.reports import report_on
from tests.test_messy_tables import messy

QUIET = "--trainer.accelerator cpu --trainer.enable_progress_bar false --report.pictures false"
FIT = f"fit --data.train train.csv --data.columns.label y --trainer.max_epochs 2 --decisions.share 0.3 {QUIET}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of a run on a messy table, with a column of four groups and one of two."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.chdir(tmp_path_factory.mktemp("run"))
        messy(400).to_csv("train.csv", index=False)
        assert run([*FIT.split(), "--data.columns.sensitive", "[sex, region]"]) == 0
        (path,) = Path.cwd().rglob("last.ckpt")
    return path


@pytest.fixture
def later():
    return messy(300, seed=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*missing cells, which are imputed")
def test_groups_of_one_of_several_columns_are_judged_by_the_decisions(checkpoint, later):
    report = report_on(checkpoint, later)
    y, said_yes = later["y"] == "yes", load(checkpoint).predict(later)["decision"] == "yes"
    rates = {group: said_yes[y & (later["region"] == group)].mean() for group in "abcd"}
    assert report.figures["decided"]["tpr: b - a"] == pytest.approx(abs(rates["b"] - rates["a"]) - 0.02, abs=1e-6)
    assert {"tpr: m - f", "tpr: d - c"} < set(report.figures["constraints"])
    by_group = {one["group"]: one for one in report.figures["rates_by_group"]}
    assert by_group.keys() == {"all", "sex=f", "sex=m", *(f"region={group}" for group in "abcd")}
    for group, rate in rates.items():
        assert by_group[f"region={group}"]["tpr"] == pytest.approx(rate, abs=1e-6)
    gaps = int(later["region"].isna().sum())
    assert {"what": "rows without 'region', of no group", "lost": gaps, "of": 300} in report._report["lost"]


@pytest.mark.filterwarnings("ignore:.*missing cells, which are imputed")
def test_groups_that_training_has_not_are_counted(checkpoint, later):
    found = report_on(checkpoint, later.assign(region=later["region"].replace("d", "z")))
    told = {one["what"]: one["lost"] for one in found._report["lost"]}
    assert told["rows of no group of training: 'region' in ['z']"] == int((later["region"] == "d").sum())
    assert "tpr: b - a" in found.figures["constraints"]
    assert "tpr: d - a" not in found.figures["constraints"]
    assert "; 6 more cannot be evaluated, as it has no samples of their subsets" in found._report["verdict"]
    assert any("tpr: d - a" in str(table.columns[0]._cells) for table in found.tables)


@pytest.mark.filterwarnings("ignore:.*missing cells, which are imputed")
def test_without_the_column_of_groups_the_other_figures_are_there(checkpoint, later):
    with pytest.warns(
        UserWarning, match=r"constraint 2, EqualizedOdds is left out of the report: .*'region' is not a column"
    ):
        found = report_on(checkpoint, later.drop(columns="region"))
    assert found.figures["auc"] == pytest.approx(report_on(checkpoint, later).figures["auc"])
    assert "tpr: m - f" in found.figures["constraints"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop(columns="y"), "columns.label='y' is not a column of the table"),
        (lambda table: table.assign(y=table["y"].replace("yes", "perhaps")), r"classes \['perhaps'\].*do not have"),
        (lambda table: table.assign(y=table["y"].mask(table.index < 3)), "3 missing cells"),
        (lambda table: table[:0], "has no rows"),
        (lambda table: table.drop(columns="age"), "'age' is not a column"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(checkpoint, later, change, said):
    with pytest.raises(DataError, match=said):
        report_on(checkpoint, change(later))


def test_parts_that_a_stranger_names_are_not_made(checkpoint, later, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content["fcco"]["config"]["model"]["objective"] = {"class_path": "pathlib.Path", "init_args": {}}
    torch.save(content, tmp_path / "strange.ckpt")
    with pytest.raises((ConfigError, CheckpointError), match=r"pathlib\.Path"):
        report_on(tmp_path / "strange.ckpt", later)


@pytest.mark.slow
def test_the_classifier_reports_on_later_samples(tmp_path):
    train, later = messy(400), messy(300, seed=1)
    constraints = [EqualizedOdds(), DemographicParity()]
    model = ConstrainedClassifier(constraints=constraints, decisions=Decisions(share=0.4), hidden=(8,))
    model.set_params(max_epochs=8, learning_rate=0.03, random_state=0)
    known, later_known = (table[["age", "income"]].fillna(0.0) for table in (train, later))
    filled = train["region"].notna()
    model.fit(known[filled], train["y"][filled], sensitive_features=train["region"][filled])
    groups = later["region"].replace("d", "z")
    found = model.report(later_known, later["y"], sensitive_features=groups)
    positive, scores = later["y"] == "yes", model.decision_function(later_known)
    assert found.figures["auc"] == pytest.approx(roc_auc_score(positive, scores))
    said_yes = scores > np.sort(scores)[-121]  # a share is one of the samples that are decided on
    gap = abs(np.diff([said_yes[groups == group].mean() for group in "ab"])[0])
    assert found.figures["decided"]["selection rate: b - a"] == pytest.approx(gap - constraints[1].kappa, abs=1e-6)
    assert {one["lost"] for one in found._report["lost"]} == {int(groups.isna().sum()), int((groups == "z").sum())}
    assert (found.write(tmp_path / "report") / "report.html").exists()
    weight = np.random.default_rng(0).uniform(0.5, 3, len(later))
    weighted = model.report(later_known, later["y"], groups, weight).figures["auc"]
    assert weighted == pytest.approx(roc_auc_score(positive, scores, sample_weight=weight), abs=1e-6)
    with pytest.raises(DataError, match=r"y has the classes \['perhaps'\]"):
        model.report(later_known, later["y"].replace("yes", "perhaps"), sensitive_features=groups)


@pytest.mark.filterwarnings("ignore:auc and average_precision")
def test_classes_and_groups_of_the_training_keep_their_names():
    """Where a later sample has the second of the two alone."""
    train = messy(300)
    constraints = [DemographicParity(kappa=0.5)]
    model = ConstrainedClassifier(constraints=constraints, hidden=(4,), max_epochs=2, random_state=0)
    model.fit(train[["age"]], train["y"], sensitive_features=train["sex"])
    later = messy(200, seed=1)
    chosen = later[(later["y"] == "yes") & (later["sex"] == "m")]
    found = model.report(chosen[["age"]], chosen["y"], sensitive_features=chosen["sex"])
    assert "constraints" not in found.figures
    (record,) = [one for one in found.figures["confusion_matrix"] if sum(v for v in one.values() if isinstance(v, int))]
    assert record["true"] == "yes"
    assert {"decided no", "decided yes"} < record.keys()


# ----------------------------------------------------------- as the run itself reports, and as numpy counts predictions

CONFIG = """
model:
  network: {class_path: TabularMLP, init_args: {hidden: [4]}}
  objective: CrossEntropy
  constraints:
    - {class_path: EqualizedOdds, init_args: {kappa: 0.1}}
    - {class_path: DemographicParity, init_args: {kappa: 0.1, by: job, against: rest}}
    - {class_path: MeanAtMost, init_args: {quantity: SoftRate, kappa: 0.5, where: {sex: f, skill: "<0"}, name: cap}}
    - {class_path: MeanAtMost, init_args: {quantity: SoftRate, kappa: 0.6, where: {sex: m}, name: second cap}}
  penalty: {class_path: AdaptivePenalty, init_args: {decisions: true}}
  optimizer: {class_path: AdamType, init_args: {lr: 0.03}}
  decisions: balanced
data:
  class_path: TabularDataModule
  init_args:
    train: train.csv
    test: later.csv
    columns: {label: hired, positive: 'yes', sensitive: sex, favoured: m}
    encoding: {missing: impute}
    batches: {class_path: UniformSampling, init_args: {batch_size: 50}}
trainer: {max_epochs: 2, accelerator: cpu, enable_progress_bar: false}
"""


def table(size, seed):
    """The column job has gaps."""
    r = np.random.default_rng(seed)
    sex, job, skill = r.choice(["f", "m"], size), r.choice(["a", "b", "c"], size), r.normal(size=size)
    hired = np.where(skill + 0.5 * (sex == "m") + r.normal(size=size) > 0.8, "yes", "no")
    job = pd.Series(job).mask(r.random(size) < 0.1)
    return pd.DataFrame({"sex": sex, "job": job, "skill": skill, "hired": hired})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of ``fcco fit`` whose test table is later.csv."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.chdir(root)
        table(300, 0).to_csv("train.csv", index=False)
        table(200, 1).to_csv("later.csv", index=False)
        Path("own.yaml").write_text(CONFIG)
        assert run(["fit", "--config", "own.yaml", "--report.pictures", "false"]) == 0
    return root / "runs/version_0"


@pytest.mark.filterwarnings("ignore")
def test_a_table_is_reported_on_as_the_run_reported_on_it(finished, capsys):
    """The same figures, intervals and tables, out of the checkpoint alone."""
    later = str(finished.parents[1] / "later.csv")
    assert run(["test", str(finished / "checkpoints/last.ckpt"), later, "--out", "new/folder"]) == 0
    expected = json.loads((finished / "report.json").read_text())
    found = json.loads(Path("new/folder/report.json").read_text())
    del expected["test"]["multipliers"]  # of the training
    flat = lambda part: pd.json_normalize(part, sep="|").iloc[0].to_dict()  # noqa: E731
    ours, theirs = flat(found["test"]), flat(expected["test"])
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value), name
    assert found["kappas"] == expected["kappas"]
    assert len(found["test"]["intervals"]) == 2 + 3 + 2
    printed = capsys.readouterr().out
    assert "on the test split" in printed
    assert "new/folder (report.html shows all)" in printed
    page = Path("new/folder/report.html").read_text()
    assert "later.csv judged by last.ckpt" in page
    assert "rows without" in page
    assert {path.name for path in Path("new/folder").iterdir()} >= {"report.html", "report.json", "roc_by_group.png"}


@pytest.mark.filterwarnings("ignore")
def test_figures_are_those_of_the_predictions(finished):
    later, checkpoint = table(400, 2), finished / "checkpoints/last.ckpt"
    figures, predicted = report_on(checkpoint, later).figures, load(checkpoint).predict(later)
    y, yes = later["hired"] == "yes", predicted["decision"] == "yes"
    assert figures["auc"] == pytest.approx(roc_auc_score(y, predicted["score"]))
    rates = [[yes[(y == label) & (later["sex"] == sex)].mean() for sex in "mf"] for label in (True, False)]
    gaps = [abs(m - f) - 0.1 for m, f in rates]
    decided = figures["decided"]
    assert [decided["tpr: m - f"], decided["fpr: m - f"]] == pytest.approx(gaps)
    known = later["job"].notna()
    own, rest = yes[later["job"] == "a"], yes[known & (later["job"] != "a")]
    assert decided["selection rate: a - rest"] == pytest.approx(abs(own.mean() - rest.mean()) - 0.1)
    assert decided["cap"] == pytest.approx(yes[(later["sex"] == "f") & (later["skill"] < 0)].mean() - 0.5)


@pytest.mark.parametrize(("fitted", "later"), [(int, float), (int, str), (float, int), (float, str), (str, int)])
def test_groups_of_another_type_are_the_same_groups(fitted, later):
    """1, 1.0 and "1" are one group, as in a table; otherwise figures of groups would silently be of nobody."""
    r = np.random.default_rng(0)
    X, group = r.normal(size=(80, 2)), np.tile([0, 1], 40)
    y = (X[:, 0] + r.normal(size=80) > 0).astype(int)
    model = ConstrainedClassifier(constraints=[DemographicParity(0.1)], hidden=(4,), max_epochs=1, random_state=0)
    model.fit(X, y, sensitive_features=group.astype(fitted))
    found = model.report(X, y, sensitive_features=group.astype(int).astype(later))
    gap = abs(np.diff([model.predict(X)[group == g].mean() for g in (0, 1)])[0])
    assert list(found.figures["decided"].values()) == [pytest.approx(gap - 0.1)]
    assert "lost" not in found._report
