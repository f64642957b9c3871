"""Trained networks on new tables, against the same arithmetic in NumPy; and exports."""

import errno
import importlib.util
import io
import os
import threading
import warnings
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fcco_lightning.__main__ import main
from fcco_lightning.cli import run
from fcco_lightning.data.encoding import Encoding, TabularEncoder
from fcco_lightning.data.texts import TextEncoder, TextTokens
from fcco_lightning.errors import CheckpointError, ConfigError, DataError
from fcco_lightning.inference import Predictor, export, load, prediction_table, write_table
from fcco_lightning.models import BatchNetwork, TabularMLP

CONFIG = """
model: {network: {class_path: TabularMLP, init_args: {hidden: [3]}}, objective: CrossEntropy, algorithm: SGD}
data:
  class_path: TabularDataModule
  init_args:
    train: train.csv
    columns: {label: hired, positive: 'yes', sensitive: sex, favoured: m, use_sensitive: true}
    splits: {test_fraction: 0.3}
    batches: {class_path: UniformSampling, init_args: {batch_size: 50}}
trainer: {max_epochs: 2, accelerator: cpu, enable_progress_bar: false}
report: {enabled: false}
"""


def table(size, seed):
    rng = np.random.default_rng(seed)
    columns = {name: rng.choice(values, size) for name, values in {"sex": ["f", "m"], "job": ["a", "b", "c"]}.items()}
    skill = rng.normal(size=size)
    hired = np.where(skill + rng.normal(size=size) > 0, "yes", "no")
    return pd.DataFrame({"name": [f"n{i}" for i in range(size)], **columns, "skill": skill, "hired": hired})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint of ``fcco fit``, with the table that it was trained on."""
    root = tmp_path_factory.mktemp("trained")
    data = table(300, 0).drop(columns="name")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.chdir(root)
        data.to_csv("train.csv", index=False)
        Path("own.yaml").write_text(CONFIG)
        assert run(["fit", "--config", "own.yaml"]) == 0
        (checkpoint,) = root.rglob("last.ckpt")
    return checkpoint


def test_codes_are_predicted_as_they_are_written(tmp_path):
    """The rows of one code alone look like numbers."""
    encoder = TabularEncoder().fit(pd.DataFrame({"code": ["1", "01", "A1"]}))
    predictor = Predictor(nn.Linear(3, 1), encoder)
    pd.DataFrame({"code": ["01", "1"]}).to_csv("two.csv", index=False)
    expected = predictor.predict(pd.DataFrame({"code": ["01", "1"]}))
    pd.testing.assert_frame_equal(predictor.predict("two.csv"), expected)
    assert expected["score"].nunique() == 2


def test_unlabelled_rows_are_predicted(trained, tmp_path):
    new = table(20, 1).drop(columns="hired")
    new.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "deep/out.parquet"
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(trained), str(tmp_path / "new.csv"), "--out", str(out), "--id=name", "--threshold=0.6"])
    assert ended.value.code == 0
    found = pd.read_parquet(out)
    assert list(found) == ["name", "sex", "score", "probability", "decision"]
    assert found["name"].tolist() == new["name"].tolist()
    assert found["sex"].tolist() == new["sex"].tolist()
    scores = by_hand(trained, new)
    np.testing.assert_allclose(found["score"], scores, atol=1e-5)
    np.testing.assert_allclose(found["probability"], 1 / (1 + np.exp(-scores)), atol=1e-5)
    assert found["decision"].tolist() == ["yes" if p >= 0.6 else "no" for p in found["probability"]]


@pytest.mark.parametrize("label", ["hired", ["hired"]])
@pytest.mark.parametrize("objective", ["mean_losses.SquaredError", "others.cox.CoxPartialLikelihood"])
def test_numbers_that_are_fitted_and_log_risks_are_no_logits(objective, label, trained, tmp_path):
    content = torch.load(trained, weights_only=True)
    config = content["fcco"]["config"]
    config["model"]["objective"] = {"class_path": f"fcco_lightning.objectives.{objective}"}
    config["data"]["init_args"]["columns"]["label"] = label
    torch.save(content, tmp_path / "numbers.ckpt")
    assert list(load(tmp_path / "numbers.ckpt").predict(table(20, 1))) == ["index", "sex", "score"]


SOFT = {"class_path": "SoftRate", "init_args": {"threshold": 1.0}}
TOP = {"class_path": "fcco_lightning.TopShare", "init_args": {"share": 0.1}}


@pytest.mark.parametrize(
    ("argument", "rate", "message"),
    [
        ("quantity", SOFT, r"Limit was enforced on decisions for scores above 1, .*--threshold 0.7311"),
        ("rate", TOP, r"Limit was enforced on decisions for the highest 0.1 of the scores"),
    ],
)
def test_decisions_other_than_those_that_were_constrained_are_said(argument, rate, message, trained, tmp_path):
    content = torch.load(trained, weights_only=True)
    limit = {"class_path": "some.Limit", "init_args": {argument: rate}}
    content["fcco"]["config"]["model"]["constraints"] = [limit, {"class_path": "Other"}]
    torch.save(content, tmp_path / "limited.ckpt")
    model = load(tmp_path / "limited.ckpt")
    with pytest.warns(UserWarning, match=message):
        model.predict(table(3, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(table(3, 0), threshold=0.7311)


def test_outputs_of_another_number_than_the_classes_are_an_embedding():
    encoder = TabularEncoder().fit(table(9, 0)[["skill"]], "the table")
    embedded = Predictor(torch.nn.Linear(1, 3), encoder, "classes", ["no", "yes"]).predict(table(4, 1))
    assert list(embedded) == ["index", "score_0", "score_1", "score_2"]
    of_three = Predictor(torch.nn.Linear(1, 3), encoder, "classes", ["a", "b", "c"])
    assert {"score_a", "decision"} <= set(of_three.predict(table(4, 1)))
    with pytest.raises(ConfigError, match=r"threshold=0.3 .* the most probable of several classes: leave it out"):
        of_three.predict(table(4, 1), threshold=0.3)


def test_numbers_have_no_threshold(trained, tmp_path):
    content = torch.load(trained, weights_only=True)
    content["fcco"]["classes"] = []
    torch.save(content, tmp_path / "numbers.ckpt")
    with pytest.raises(ConfigError, match=r"threshold=0.7 is of probabilities, and this network predicts numbers"):
        load(tmp_path / "numbers.ckpt").predict(table(3, 0), threshold=0.7)


def test_warnings_and_files_that_cannot_be_written_are_a_line_each(trained, tmp_path, capsys):
    new = table(4, seed=9)
    new["job"] = "astronaut"
    new.to_csv(tmp_path / "new.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for out, status in ((tmp_path / "out.csv", 0), (tmp_path / "new.csv" / "out.csv", 1)):
            assert run(["predict", str(trained), str(tmp_path / "new.csv"), "--out", str(out)]) == status
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("fcco: ") for line in said)
    assert sum("UserWarning: 4 of 4 rows (100%) have a value of the column 'job'" in line for line in said) == 2
    assert "Error" in said[-1]


def test_a_score_of_zero_is_no_positive_decision():
    """As constraints count decisions; the nearest float32 scores have the probability 0.5 in float32, too."""
    scores = torch.tensor([0.0, -2e-8, 2e-8])
    assert torch.sigmoid(scores).tolist() == [0.5] * 3
    assert prediction_table(scores, {}, kind="classes")["decision"].tolist() == [0, 0, 1]
    assert prediction_table(scores, {}, kind="labels")["decision"].tolist() == [0, 0, 1]
    assert prediction_table(torch.tensor([50.0]), {}, kind="labels", threshold=1)["decision"].tolist() == [0]


def test_a_table_of_other_categories_is_refused(trained):
    with pytest.raises(DataError, match=r"100% of the column 'job' in the table are values that the training split"):
        load(trained).predict(table(20, seed=9).assign(job="astronaut"))


def test_categories_that_training_lacks_are_said(trained):
    """They count as none of the known ones, so that the scores are those of all zeros."""
    new = table(4, seed=9)
    new.loc[[0, 2], "job"] = "astronaut"
    with pytest.warns(
        UserWarning, match=r"2 of 4 rows \(50%\) have a value of the column 'job' that the training split does not"
    ):
        found = load(trained).predict(new)
    np.testing.assert_allclose(found["score"], by_hand(trained, new), atol=1e-5)


def test_ids_are_written_as_they_stand_in_a_csv(trained, tmp_path):
    new = table(4, 1)
    for ids, found in {
        ("007", "NA", "x", "1.50"): ["007", "NA", "x", "1.50"],
        ("3", "4", "10", "11"): [3, 4, 10, 11],
    }.items():
        new.assign(name=list(ids)).to_csv(tmp_path / "new.csv", index=False)
        predicted = load(trained).predict(str(tmp_path / "new.csv"), id_column="name")
        assert predicted["name"].tolist() == found
    assert load(trained).predict(new.assign(name=[7, 8, 9, 10]), id_column="name")["name"].tolist() == [7, 8, 9, 10]
    new["skill"] = [0.5, 1.0, 1.25, 2.0]  # a feature stays a number
    new.to_csv(tmp_path / "new.csv", index=False)
    by_skill = load(trained).predict(tmp_path / "new.csv", id_column="skill")
    np.testing.assert_allclose(by_skill["score"], by_hand(trained, new), atol=1e-5)


class Lengths(nn.Module):
    """Numbers of tokens as scores."""

    def forward(self, x):
        return (x >= 0).sum(1).float()


def test_texts_of_a_csv_are_read_as_they_stand(tmp_path):
    texts = ["one text", "NA"]
    encoder = TextEncoder("text", 8, TextTokens(vocabulary=100).made(texts))
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "new.csv", index=False)
    model = Predictor(Lengths(), encoder)
    assert model.predict(tmp_path / "new.csv")["score"].tolist() == model.predict({"text": texts})["score"].tolist()


def test_features_that_a_libsvm_file_lacks_are_0(tmp_path):
    encoder = TabularEncoder().fit(pd.DataFrame({"f1": [0.0, 2.0], "f3": [1.0, 3.0]}))
    (tmp_path / "new.svm").write_text("1 1:4\n-1 1:2 9:1\n")
    model = Predictor(nn.Linear(2, 1), encoder)
    expected = model.predict({"f1": [4.0, 2.0], "f3": [0.0, 0.0]})
    assert model.predict(tmp_path / "new.svm").equals(expected)


def by_hand(checkpoint, new):
    content = torch.load(checkpoint, weights_only=True)
    sex, job, skill = content["TabularDataModule"]["encoder"]["columns"]
    features = [(new[c["name"]] == word).astype(float) for c in (sex, job) for word in c["categories"]]
    x = np.stack([*features, (new["skill"] - skill["mean"]) / skill["std"]], axis=1)
    w1, b1, w2, b2 = (v.numpy() for k, v in content["state_dict"].items() if k.startswith("network."))
    return (np.maximum(x @ w1.T + b1, 0) @ w2.T + b2)[:, 0]


class OfColumns(BatchNetwork):
    """Reads the columns of a batch by part."""

    def __init__(self):
        super().__init__()
        self.layers = TabularMLP([3]).layers

    def forward(self, batch):
        return {name: self.layers(columns["x"]) for name, columns in batch.items()}


def test_a_network_that_reads_columns_is_given_tensors_too(trained):
    x = torch.randn(5, 6)
    assert torch.equal(load(trained, OfColumns())(x).squeeze(1), load(trained)(x))


def test_a_loaded_network_is_called_with_tensors(trained):
    model, x = load(trained), torch.randn(5, 6)
    assert not model.training
    again = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1))
    again.load_state_dict({k.removeprefix("layers."): v for k, v in model.network.state_dict().items()})
    assert torch.equal(model(x), again(x).squeeze(1))
    for other, difference in ((nn.Linear(4, 1), "5 more differ"), (nn.Sequential(), "is missing in this network")):
        kept = [p.clone() for p in other.parameters()]
        with pytest.raises(CheckpointError, match=f"weights of another network: .*{difference}"):
            load(trained, other)
        assert all(torch.equal(*pair) for pair in zip(kept, other.parameters(), strict=True))
    old = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1))
    old.register_load_state_dict_pre_hook(  # of an architecture whose names are others now
        lambda _, stored, *rest: [stored.update({k.removeprefix("layers."): stored.pop(k)}) for k in list(stored)]
    )
    assert torch.equal(load(trained, old)(x).squeeze(1), model(x))
    with pytest.raises(DataError, match="is not a column of"):
        model.predict(table(3, 0).drop(columns="job"))
    with pytest.raises(ConfigError, match="not written with a datamodule of tables"):
        Predictor(again).predict(table(3, 0))


@pytest.mark.parametrize(
    "inner", [{"class_path": "os.system"}, '{"class_path": "os.system"}', "{class_path: os.system}"]
)
def test_a_checkpoint_does_not_choose_whose_code_runs(inner, trained, tmp_path):
    content = torch.load(trained, weights_only=True)
    described = content["fcco"]["config"]["model"]["network"]
    content["fcco"]["config"]["model"]["network"] = {**described, "init_args": {"inner": inner}}
    torch.save(content, tmp_path / "hostile.ckpt")
    named = "names the class 'os.system'" if isinstance(inner, dict) else "which refers to something outside the file"
    with pytest.raises(ConfigError, match=named):
        load(tmp_path / "hostile.ckpt")
    del content["fcco"]["config"]
    torch.save(content, tmp_path / "python.ckpt")
    with pytest.raises(ConfigError, match=r"Pass network=..."):
        load(tmp_path / "python.ckpt")


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # of torch.export.load in torch 2.11
def test_exports(trained, tmp_path):
    model, x = load(trained), torch.randn(7, 6)
    for name in ("a.pt", "a.pt2"):
        with pytest.raises(SystemExit) as ended:
            main(["export", str(trained), str(tmp_path / name)])
        assert ended.value.code == 0
    plain = torch.load(tmp_path / "a.pt", weights_only=True)
    assert all(torch.equal(plain[name], value) for name, value in model.network.state_dict().items())
    assert torch.allclose(torch.export.load(tmp_path / "a.pt2").module()(x), model(x))
    with pytest.raises(ConfigError, match=r"cannot export to '.tflite'"):
        export(trained, tmp_path / "a.tflite")


@pytest.mark.parametrize(("name", "writer"), [("a.pt", (torch, "save")), ("a.pt2", (torch.export, "save"))])
def test_an_export_that_fails_leaves_what_was_there(trained, tmp_path, monkeypatch, name, writer):
    def full(_, file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / name).write_bytes(b"before")
    monkeypatch.setattr(*writer, full)
    said = f"cannot write `.*{name}`: No space left on device. An earlier file of this name is unchanged"
    with pytest.raises(CheckpointError, match=said):
        export(trained, tmp_path / name)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_tables_go_through_links_and_pipes(tmp_path):
    table = pd.DataFrame({"a": [1]})
    (tmp_path / "link.csv").symlink_to(tmp_path / "there.csv")
    write_table(table, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "there.csv").read_text() == "a\n1\n"
    os.mkfifo(tmp_path / "pipe.csv")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe.csv").read_text()))
    reader.start()
    write_table(table, tmp_path / "pipe.csv")
    reader.join(10)
    assert read == ["a\n1\n"]


@pytest.mark.skipif(importlib.util.find_spec("onnx") is not None, reason="onnx is installed")
def test_onnx_is_asked_for_by_name(trained, tmp_path):
    with pytest.raises(SystemExit) as ended, redirect_stderr(io.StringIO()) as printed:
        main(["export", str(trained), str(tmp_path / "a.onnx")])
    assert ended.value.code == 2
    assert "pip install 'fcco-lightning[onnx]'" in printed.getvalue()


def test_tables_of_predictions(tmp_path):
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    classes = prediction_table(logits, {"id": [7, 8]}, kind="classes", names="abc")
    assert classes["decision"].tolist() == ["b", "a"]
    np.testing.assert_allclose(classes[["probability_a", "probability_b", "probability_c"]].sum(axis=1), 1, atol=1e-6)
    labels = prediction_table(logits - 0.9, {}, kind="labels", names=["x", "y", "z"])
    assert labels[["decision_x", "decision_y", "decision_z"]].to_numpy().tolist() == [[0, 1, 1], [1, 0, 0]]
    assert list(prediction_table(logits, {})) == ["score_0", "score_1", "score_2"]
    write_table(labels, tmp_path / "a.csv")
    assert pd.read_csv(tmp_path / "a.csv").shape == labels.shape
    with pytest.raises(ConfigError, match=r"Name a .csv or a .parquet file"):
        write_table(labels, tmp_path / "a.xlsx")
    with pytest.raises(ConfigError, match=r"columns \['score'\] name or group the samples"):
        prediction_table(logits[:, 0], {"score": [7, 8]})
    with pytest.raises(ConfigError, match="names must name the 3 labels"):
        prediction_table(logits, {}, kind="labels", names=["x"])


def test_a_column_that_says_nothing_is_named():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(size=50), "pay": rng.normal(size=50), "job": rng.choice(["a", "b"], 50)})
    frame.loc[:4, "pay"] = np.nan
    encoder = TabularEncoder(Encoding(missing="impute")).fit(frame)
    predictor = Predictor(nn.Linear(4, 1), encoder, "classes", ["no", "yes"])
    with pytest.warns(UserWarning, match="rows") as said:
        predictor.predict(frame.assign(age=np.nan))
    (told,) = (str(one.message) for one in said)
    assert told.startswith("50 of 50 rows (100%) have no value of the column 'age'")
    assert "imputed in all of them, and has no effect" in told
    few = frame[10:18]
    with pytest.warns(
        UserWarning, match=r"^8 of 8 rows \(100%\) have a value of .*'job' .*features are 0 in every row"
    ):
        predictor.predict(few.assign(job="c"))
    with pytest.warns(UserWarning, match=r"^4 of 8 rows \(50%\) have a value of the column 'job'"):
        predictor.predict(few.assign(job=["a", "c"] * 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor.predict(few)
