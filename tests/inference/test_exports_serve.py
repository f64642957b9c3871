"""Exported networks in programs without this package."""

import csv
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import numpy as np
import open_clip
import pandas as pd
import pytest
import timm
import torch
from torch import nn

from fcco_lightning.cli import run
from fcco_lightning.constraints import DecisionRule, Decisions
from fcco_lightning.constraints.calibration import IsotonicMap, PlattScaling
from fcco_lightning.data.encoding import Column, Encoding, TabularEncoder, with_numbers
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.inference import Predictor, export, exporting, fcco_loader, prediction_table
from fcco_lightning.models import CLIPModel, TextClassifier, TimmModel, TwoViews
from tests.texts import TINY

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # of torch.export.load in torch 2.11
QUIET = "--trainer.max_epochs=1 --trainer.accelerator=cpu --trainer.enable_progress_bar=false --report.enabled=false"
ALONE = """
import csv, json, sys
sys.modules["fcco_lightning"] = sys.modules["pandas"] = None  # neither can be imported
from fcco_loader import Exported
with open("new.csv", newline="") as file:
    table = Exported("network.pt2").predict(csv.DictReader(file))
print(json.dumps({name: list(column) for name, column in table.items()}))
"""


def people(size, seed):
    """A fifth of them has the label "yes"."""
    rng = np.random.default_rng(seed)
    skill, zone = rng.normal(size=size), rng.integers(0, 3, size)
    hired = skill + rng.normal(size=size) > 1.2
    jobs = rng.choice(["cook", "smith", "NA"], size)
    return pd.DataFrame({"job": jobs, "zone": zone, "skill": skill, "hired": np.where(hired, "yes", "no")})


@pytest.mark.slow
@pytest.mark.filterwarnings("always:.*rows")  # with unseen categories and missing cells
def test_an_export_serves_without_this_package():
    people(300, 0).to_csv("train.csv", index=False)
    of_table = ["--data.train=train.csv", "--data.columns.label=hired", "--data.columns.positive=yes"]
    how = ["--data.encoding={missing: impute, categorical: [zone], pieces: 3}", "--decisions=balanced"]
    assert run(["fit", *of_table, *how, "--model.objective=CrossEntropy", *QUIET.split()]) == 0
    (checkpoint,) = map(str, Path().rglob("last.ckpt"))
    new = people(9, 1).drop(columns="hired").astype({"zone": object})
    new.loc[[1, 2], "job"], new.loc[3, "skill"], new.loc[4, "zone"], new.loc[5, "zone"] = "poet", None, None, 7
    new.to_csv("new.csv", index=False)
    assert run(["predict", checkpoint, "new.csv"]) == 0
    assert run(["export", checkpoint, "network.pt2"]) == 0
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    pd.testing.assert_frame_equal(
        pd.DataFrame(json.loads(done.stdout)),
        pd.read_csv("predictions.csv").drop(columns="index"),
        rtol=1e-5,
        check_dtype=False,
    )


COLUMNS = {
    "age": [31, 45.5, None, 22, 31, 60],
    "pay": ["1e3", " 20", "NaN", "35.25", "7", "0"],
    "since": ["2026-01-31", "1999-12-01T12:30:00+02:00", "", "2001-02-03", "2020-02-29 06:00", "2026-02-01"],
    "day": ["2026-01-31", "1999-12-01T12:30:00+02:00", "", "2001-02-03", "2020-02-29 06:00", "2026-02-01"],
    "code": ["007", "7", "A", "", "1.0", "1"],
    "zone": ["1", "2.0", "3", "", "02", "9"],
    "size": ["0.5", "1.0", "1.5", "", "0.50", "12345678901234567890"],
    "fits": ["True", "false", "", "TRUE", "False", "true"],
}
"""Cells as they are written in a .csv."""


@pytest.fixture
def exported(monkeypatch):
    """Exports a Predictor, and loads what was written."""

    def through(predictor, shape=None, name="network.pt2"):
        monkeypatch.setattr(exporting, "load", lambda *_, **__: predictor)
        return fcco_loader.Exported(export("any.ckpt", name, shape=shape))

    return through


@pytest.mark.parametrize("how", [{}, {"pieces": 2}, {"quantiles": 3}])
def test_columns_become_the_same_features(exported, how):
    rows = pd.DataFrame(COLUMNS)
    rows[:4].to_csv("train.csv", index=False)
    rows.to_csv("new.csv", index=False)
    encoding = Encoding(categorical=["zone", "size"], numeric=["since"], missing="impute", **how)
    encoder = TabularEncoder(encoding).fit(with_numbers(pd.read_csv("train.csv"), ["since"], encoding))
    predictor = Predictor(nn.Identity(), encoder)
    with pytest.warns(UserWarning, match="rows"):
        expected = predictor.predict("new.csv").drop(columns="index")
    with Path("new.csv").open(newline="") as file:
        found = exported(predictor).predict(csv.DictReader(file))
    pd.testing.assert_frame_equal(pd.DataFrame(found), expected, check_dtype=False)
    assert expected.nunique().gt(1).sum() > 8


def test_the_loader_knows_every_kind_of_column():
    """What is added to the state of a column must be read there, and be in the test above."""
    known = "name mean std median ends periods edges categories"
    assert {field.name for kind in get_args(Column) for field in fields(kind)} == set(known.split())


@pytest.mark.parametrize(
    "cell", ["2026-1-1", "2026-01-31 9:5", "2026-01-31T09:05:06.5", "2026/1/31", "2026-02-03T1:30:00+02:00", "today"]
)
def test_dates_are_read_as_in_training(cell):
    days = pd.date_range("2025-12-01", periods=40).astype(str).tolist()
    encoder = TabularEncoder(Encoding(missing="impute")).fit(pd.DataFrame({"day": days}))
    new = pd.DataFrame({"day": [*days, cell]})
    expected = encoder.transform(new)
    found = fcco_loader.features(encoder.state_dict() | {"texts": encoder.texts}, new.to_dict("records"))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert encoder.imputed == ([40] if cell == "today" else [])


def test_a_text_beside_truth_values_leaves_these_what_they_are():
    encoder = TabularEncoder(Encoding(missing="impute")).fit(pd.DataFrame({"own": [True, False]}))
    words = ["true", "FALSE", "yes"]
    expected = [[0, 1], [1, 0], [0, 0]]
    assert encoder.transform(pd.DataFrame({"own": words})).tolist() == expected
    told = encoder.state_dict() | {"texts": encoder.texts}
    assert fcco_loader.features(told, [{"own": word} for word in words]).tolist() == expected


def test_an_underscore_makes_no_number(exported):
    encoder = TabularEncoder(Encoding(categorical=["zone"])).fit(pd.DataFrame({"age": [1.0, 2.0], "zone": [7, 11]}))
    network = exported(Predictor(nn.Identity(), encoder))
    new = pd.DataFrame({"age": [1.0, 1.0], "zone": ["1_1", "11"]})
    with pytest.warns(UserWarning, match="have a value of the column 'zone'"):
        expected = Predictor(nn.Identity(), encoder).predict(new)["score_1"]
    assert network.predict(new.to_dict("records"))["score_1"].tolist() == expected.tolist() == [0, 1]
    with pytest.raises(ValueError, match="'1_0' in the column 'age' is no number"):
        network.predict([{"age": "1_0", "zone": 7}])


def test_cells_without_a_value_are_refused_where_training_had_none(exported):
    encoder = TabularEncoder().fit(pd.DataFrame({"age": [1.0, 2.0], "job": ["cook", "smith"]}))
    network = exported(Predictor(nn.Identity(), encoder))
    for row in ({"age": None, "job": "cook"}, {"age": 1, "job": ""}):
        with pytest.raises(ValueError, match="has a cell without a value, of which there were none in training"):
            network.predict([row])
    with pytest.raises(ValueError, match="'old' in the column 'age' is no number"):
        network.predict([{"age": "old", "job": "cook"}])


@pytest.mark.parametrize("cell", ["inf", "1e60"])
def test_a_number_that_gives_no_score_is_refused_and_not_decided_on(exported, cell):
    predictor = Predictor(nn.Linear(1, 1), TabularEncoder().fit(pd.DataFrame({"age": [1.0, 2.0]})), "classes")
    with pytest.raises(ValueError, match=r"Rows \[1\] have no finite score|has a cell without a value"):
        exported(predictor).predict([{"age": "1"}, {"age": cell}])
    with pytest.raises(DataError, match=r"for 1 of 2 rows of the table are not finite \(first: row 1\)|infinite cells"):
        predictor.predict(pd.DataFrame({"age": [1.0, float(cell)]}))


def test_rows_that_cannot_be_predicted_are_refused_in_words(exported):
    encoder = TabularEncoder().fit(pd.DataFrame({"age": [1.0, 2.0], "job": ["cook", "smith"]}))
    network = exported(Predictor(nn.Identity(), encoder))
    with pytest.raises(ValueError, match=r"Row 1 lacks the columns \['job'\]. Give all of \['age', 'job'\]"):
        network.predict([{"age": 1, "job": "cook"}, {"age": 1, "name": "x"}])
    with pytest.raises(ValueError, match="no rows to predict"):
        network.predict([])


RULES = {
    "plain": (1, "classes", DecisionRule()),
    "costs": (1, "classes", DecisionRule(Decisions(costs=[1, 4]), [0.5, 2.0])),
    "division": (1, "classes", DecisionRule(Decisions(tpr=0.7), division=-0.3, known=True)),
    "share": (1, "classes", DecisionRule(Decisions(share=0.25), division=5.0, known=True)),
    "several": (3, "classes", DecisionRule(Decisions(costs=[1, 2, 9]), [0.4, 0.8, 3.6])),
    "labels": (3, "labels", DecisionRule()),
    "ranked": (1, "classes", DecisionRule(known=True, proper=False)),
    "ranked labels": (3, "labels", DecisionRule(proper=False)),
    "few held out": (1, "classes", DecisionRule(calibration=PlattScaling(0.4, -2.0), known=True, proper=False)),
    "many held out": (1, "classes", DecisionRule(calibration=IsotonicMap([-1.0, 0.5, 2.0], [0.01, 0.3, 0.6]))),
    "values": (2, "values", DecisionRule()),
}


@pytest.mark.parametrize("rule", RULES)
def test_decisions_are_those_of_the_rule(exported, rule):
    width, kind, made = RULES[rule]
    names = {"classes": ["no", "yes", "maybe"][: max(2, width)], "labels": ["a", "b", "c"], "values": []}[kind]
    x = torch.randn(22, 4, generator=torch.Generator().manual_seed(0)).mul(2).round()  # with ties
    predictor = Predictor(nn.Linear(4, width), kind=kind, names=names, rule=made)
    expected = prediction_table(predictor(x), {}, kind=kind, names=names, rule=made)
    found = pd.DataFrame(exported(predictor, [4]).predict(x))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-5)


def test_onnx_is_served_alike(exported):
    pytest.importorskip("onnxruntime")
    encoder = TabularEncoder(Encoding(missing="impute")).fit(people(50, 0)[["job", "skill"]])
    predictor = Predictor(nn.Linear(4, 1), encoder, "classes", ["no", "yes"])
    rows = people(9, 1)[["job", "skill"]]
    found = exported(predictor, name="network.onnx").predict(rows.to_dict("records"))
    pd.testing.assert_frame_equal(pd.DataFrame(found), predictor.predict(rows).drop(columns="index"), check_dtype=False)


def test_what_is_said_of_decisions_is_said_by_the_export(exported):
    with pytest.warns(UserWarning, match="enforced elsewhere"):
        exported(Predictor(nn.Linear(2, 1), kind="classes", decided_elsewhere=["enforced elsewhere"]), [2])


CLIP = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 16, "layers": 1, "head_width": 8},
    "text_cfg": {"context_length": 32, "vocab_size": 258, "width": 16, "heads": 2, "layers": 1},
}


@pytest.mark.slow
def test_open_clip_loads_what_is_exported():
    Path("small.json").write_text(json.dumps({**CLIP, "tokenizer": "bytes"}))
    names = ["--model.network=CLIPModel", "--model.network.name=small.json", "--data.model.name=small.json"]
    digits = ["--data=DigitsCLIPDataModule", "--data.stage=pretrain", "--data.digits={num_train: 200, num_test: 20}"]
    learn = ["--model.objective=InfoNCE", "--model.algorithm=SGD", "--data.batches.batch_size=50"]
    assert run(["fit", *digits, *names, *learn, *QUIET.split()]) == 0
    (checkpoint,) = map(str, Path().rglob("last.ckpt"))
    assert run(["export", checkpoint, "clip.pt"]) == 0
    Path("plain").mkdir()
    Path("plain/small.json").write_text(json.dumps(CLIP))  # the tokenizer is no word of open_clip
    open_clip.add_model_config(Path("plain"))
    theirs = open_clip.create_model("small", pretrained="clip.pt").eval()
    ours = CLIPModel("small.json", pretrained=checkpoint).eval()
    images, texts = torch.rand(3, 3, 16, 16), torch.randint(1, 257, (3, 32))
    found = theirs.encode_image(images, normalize=True), theirs.encode_text(texts, normalize=True)
    assert all(map(torch.equal, found, ours({"x": images, "text": texts})))
    again = CLIPModel("small.json", pretrained="clip.pt")
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in ours.state_dict().items())


def test_networks_of_other_libraries_are_theirs_again(monkeypatch):
    for ours, theirs in (
        (TimmModel("test_vit", 2), lambda: timm.create_model("test_vit", num_classes=2, checkpoint_path="out.pth")),
        (TextClassifier(config=TINY), lambda: _loaded(TextClassifier(config=TINY).model)),
    ):
        monkeypatch.setattr(exporting, "load", lambda *_, network=ours, **__: Predictor(network))
        export("any.ckpt", "out.pth")
        assert all(map(torch.equal, theirs().state_dict().values(), ours.model.state_dict().values()))


def _loaded(network):
    network.load_state_dict(torch.load("out.pth", weights_only=True))
    return network


def test_a_shape_that_a_network_cannot_take_is_refused_by_name(exported):
    layer = nn.Linear(3, 1)
    for network, shape, message in (
        (layer, [1, 8, 8], r"shape=\[1, 8, 8\]: Linear cannot be called with such an input \("),
        (layer, [0], "shape must be a whole number >= 1, got 0"),
        (layer, 8, r"shape must be a list, got 8\. Put it in brackets: \[8\]"),
        (layer, None, "the shape of an input is not known: pass --shape"),
        (TwoViews(layer), None, "TwoViews reads several columns of a batch and has no single input"),
    ):
        with pytest.raises(ConfigError, match=message):
            exported(Predictor(network), shape)
