"""A later table is reported on as the run itself reports on the same table, and as numpy counts its predictions."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from fcco_lightning import load, report_on
from fcco_lightning.cli import run

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


@pytest.fixture
def checkpoint(finished):
    return finished / "checkpoints/last.ckpt"


def quietly(*given, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return report_on(*given, **named)


def test_a_table_is_reported_on_as_the_run_reported_on_it(finished, checkpoint, capsys):
    """The same figures, intervals and tables, out of the checkpoint alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(["test", str(checkpoint), str(finished.parents[1] / "later.csv"), "--out", "new/folder"]) == 0
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


def test_figures_are_those_of_the_predictions(checkpoint):
    later = table(400, 2)
    figures = quietly(checkpoint, later).figures
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted = load(checkpoint).predict(later)
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
