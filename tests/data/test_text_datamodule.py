"""Data modules of grouped texts: tokens, groups, splits, batches, and refused tables."""

import logging
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning import (
    Columns,
    ConfigError,
    DataError,
    GroupedTextDataModule,
    Groups,
    GroupSampling,
    ImageSplits,
    LabelledTexts,
    TextTokens,
    load,
)
from fcco_lightning.cli import run
from fcco_lightning.data.texts import PADDING, learnt_word_pieces
from tests.data.test_layouts import civilcomments
from tests.launch import launch
from tests.texts import TINY, make_texts

SPLITS = ImageSplits("fractions", [0.5, 0.25, 0.25])


def make(frame=None, *, ready=True, texts=None, **changes):
    arguments = {
        "columns": Columns("spam", positive="spam"),
        "groups": Groups(["spam", "list"]),
        "tokens": TextTokens(vocabulary=120),
        "splits": SPLITS,
        "batches": GroupSampling(2, 3),
        "eval_batch_size": 32,
        "eval_train": True,
    }
    source = make_texts(160) if frame is None else frame
    module = GroupedTextDataModule(LabelledTexts(source, **(texts or {})), **(arguments | changes))
    if ready:
        module.setup()
    return module


def rows_of(module, name):
    """The batches of a split, in order."""
    return list(module.evaluation_loaders()[name])


def tokens_of(module, name):
    """The tokens of every sample of a split, in order, without what stands behind their ends."""
    return [row[row != PADDING].tolist() for batch in rows_of(module, name) for row in batch["x"]]


@pytest.fixture
def folder(tmp_path):
    """A tokenizer in a folder, as a network brings it along."""
    module = make()
    module.tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.mark.parametrize("longest", [None, 12])
def test_tokens_are_those_of_the_tokenizer(folder, longest):
    import transformers

    frame = make_texts(160).assign(split=["train", "train", "test", "test"] * 40)
    module = make(frame, tokens=TextTokens(folder, max_length=longest), splits=ImageSplits())
    called = transformers.AutoTokenizer.from_pretrained(folder)
    for name in ("train", "test"):
        texts = frame[frame["split"] == name]["text"].tolist()
        expected = called(texts, truncation=True, max_length=longest or 512)["input_ids"]
        assert tokens_of(module, name) == expected
        assert module.cut[name] == sum(len(called(text)["input_ids"]) > (longest or 512) for text in texts)
    assert longest is None or module.cut["train"] > 20


def test_a_batch_is_padded_to_its_longest_text():
    module = make()
    alone = tokens_of(module, "train")
    for batch in module.train_dataloader():
        expected = [alone[i] for i in batch["index"]]
        assert batch["x"].shape == (6, max(map(len, expected)))
        assert [row.tolist()[: len(own)] for row, own in zip(batch["x"], expected, strict=True)] == expected
        assert all((row[len(own) :] == PADDING).all() for row, own in zip(batch["x"], expected, strict=True))
    table = module.tables["train"]
    assert table[3]["x"].tolist() == alone[3]
    assert {name: column.item() for name, column in table[-1].items() if name != "x"} == {
        name: column[-1].item() for name, column in table.columns.items()
    }


def test_groups_and_labels_are_those_of_the_text():
    frame = make_texts(160)
    module = make(frame.assign(row=range(160)), columns=Columns("spam", positive="spam", extra=["row"]))
    seen = []
    for name in ("train", "val", "test"):
        for batch in rows_of(module, name):
            rows = frame.iloc[batch["row"].numpy()]
            seen += batch["row"].tolist()
            assert batch["y"].tolist() == (rows["spam"] == "spam").astype(int).tolist()
            names = [module.group_names[g] for g in batch["group"]]
            assert names == [f"spam={s}, list={o}" for s, o in zip(rows["spam"], rows["list"], strict=True)]
            decoded = module.tokenizer.batch_decode(
                [row[row != PADDING] for row in batch["x"]], skip_special_tokens=True
            )
            assert [text.replace(" ", "") for text in decoded] == [t.replace(" ", "") for t in rows["text"]]
    assert sorted(seen) == list(range(160))


def test_pieces_are_learnt_from_the_training_texts_alone():
    frame = make_texts(160).assign(split=["train", "train", "test", "test"] * 40)
    frame.loc[frame["split"] == "test", "text"] += " zebra"
    module = make(frame, splits=ImageSplits())
    assert module.vocab_size <= 120
    assert not any("z" in piece for piece in module.tokenizer.get_vocab())
    assert "offer" in module.tokenizer.get_vocab()


def pieces_of_texts():
    return learnt_word_pieces(make_texts(300)["text"].tolist(), 100)


def test_the_same_texts_give_the_same_pieces_in_another_process():
    """Which goes through sets in another order, as every start of Python does."""
    assert launch(pieces_of_texts, 1) == [pieces_of_texts()]


def test_a_checkpoint_brings_the_pieces_along(tmp_path):
    state = make().state_dict()
    torch.save(state, tmp_path / "state.pt")
    later = make(ready=False)
    later.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    later.setup()
    assert later.state_dict() == state


@pytest.mark.parametrize("change", ["text", "length", "order"])
def test_a_checkpoint_belongs_to_its_tokens(change):
    state, frame = make().state_dict(), make_texts(160)
    if change == "text":
        frame.loc[:, "text"] = frame["text"].str.replace("offer", "gift")
    if change == "order":
        frame = frame.iloc[::-1]
    other = make(frame, tokens=TextTokens(vocabulary=120, max_length=12 if change == "length" else None))
    with pytest.raises(DataError, match=r"another training split.*the contents or the order of"):
        other.load_state_dict(state)


def test_groups_of_other_splits_are_numbered_behind_those_of_training():
    users = [f"u{i // 40}" for i in range(160)]
    frame = make_texts(160).assign(split=["train", "train", "test", "test"] * 40, user=users)
    frame.loc[frame["split"] == "test", "user"] += "x"
    module = make(frame, groups=Groups(["user"]), splits=ImageSplits(), batches=GroupSampling(2, 2))
    assert module.num_groups == 4
    assert module.group_names[4:] == [f"user=u{i}x" for i in range(4)]
    assert module.tables["test"].columns["group"].unique().tolist() == [4, 5, 6, 7]


def test_what_is_cut_off_is_said_once(caplog):
    module = make(tokens=TextTokens(vocabulary=120, max_length=10), ready=False)
    with caplog.at_level(logging.INFO):
        module.setup("fit")
        module.setup("fit")
    (said,) = [record.message for record in caplog.records if "max_length" in record.message]
    lengths = [len(module.tokenizer(text)["input_ids"]) for text in make_texts(160)["text"]]
    assert sum(module.cut.values()) == sum(length > 10 for length in lengths) > 40
    assert f"Longer than max_length=10 tokens, and cut off there: {module.cut['train']} of 80 texts in train" in said
    assert "4 groups with 80 training rows" in said


def test_empty_texts_are_kept_on_demand():
    frame = make_texts(160)
    frame.loc[[0, 5], "text"] = ["", None]
    module = make(frame, texts={"empty": "keep"})
    lengths = [len(row) for name in ("train", "val", "test") for row in tokens_of(module, name)]
    assert lengths.count(2) == 2  # [CLS] [SEP]


def test_texts_of_a_csv_are_what_stands_there(tmp_path):
    frame = make_texts(160)
    frame.loc[[0, 5, 9], "text"] = ["NA", "none of it", "None"]
    frame.to_csv(tmp_path / "t.csv", index=False)
    kept, read = make(frame), make(str(tmp_path / "t.csv"))
    assert all(tokens_of(kept, name) == tokens_of(read, name) for name in ("train", "val", "test"))


def test_rows_of_one_comment_stay_together(tmp_path):
    civilcomments(tmp_path, rows=300)
    origin = LabelledTexts(layout="civilcomments", root=str(tmp_path))
    parts = {"columns": Columns("toxic"), "tokens": TextTokens(vocabulary=120), "groups": Groups(["toxic"])}
    module = GroupedTextDataModule(origin, splits=SPLITS, batches=GroupSampling(2, 3), **parts)
    module.setup()
    comments = {name: set(rows["comment"]) for name, rows in module._rows.items()}
    assert sum(map(len, comments.values())) == len(set.union(*comments.values())) == 300
    assert max(len(rows) for rows in comments.values()) < max(len(rows) for rows in module._rows.values())
    shares = [len(comments[name]) / 300 for name in ("train", "val", "test")]
    assert shares == pytest.approx([0.5, 0.25, 0.25], abs=0.02)


def with_cell(value):
    frame = make_texts(160).astype(object)
    frame.loc[7, "text"] = value
    return frame


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"frame": with_cell("")}, r"texts.column='text'.* 1 of 160 texts that are empty or missing \(first: row 7\)"),
        ({"frame": with_cell(" \n")}, "texts.empty='keep'"),
        ({"frame": with_cell(None)}, "empty or missing.*row 7"),
        ({"frame": with_cell(3.5)}, r"must hold texts, but 1 of 160 cells do not \(first: row 7, 3.5\)"),
        ({"frame": make_texts(160).assign(text=np.arange(160))}, "must hold texts, but 160 of 160 cells do not"),
        ({"texts": {"column": "body"}}, "texts.column='body' is not a column"),
        ({"splits": ImageSplits()}, "needs a column 'split'"),
    ],
)
def test_bad_texts_are_refused_in_a_line(arguments, message):
    with pytest.raises(DataError, match=message) as error:
        make(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Exactly one of tokens.tokenizer and tokens.vocabulary"),
        ({"tokenizer": "a", "vocabulary": 200}, "got tokenizer='a' and vocabulary=200"),
        ({"vocabulary": 20}, "tokens.vocabulary must be a whole number >= 100, got 20"),
        ({"vocabulary": 200, "max_length": 0}, "tokens.max_length must be a whole number >= 4, got 0"),
        ({"vocabulary": 200, "max_length": 600}, "tokens.max_length=600 must be at most 512"),
        ({"tokenizer": "no/such-folder"}, r"tokens.tokenizer='no/such-folder' could not be loaded.*pass that folder"),
    ],
)
def test_tokens_that_cannot_be_had_are_refused_in_a_line(arguments, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=message) as error:
        make(tokens=TextTokens(**arguments))
    assert "\n" not in str(error.value)


def test_an_empty_folder_holds_no_tokenizer(tmp_path):
    with pytest.raises(ConfigError, match="its folder holds none"):
        make(tokens=TextTokens(str(tmp_path)))


@pytest.mark.parametrize("layout", [{"source": None}, {"layout": "amazon"}, {"layout": "letters"}, {"empty": "drop"}])
def test_texts_without_a_place_are_refused(layout):
    with pytest.raises(ConfigError, match=r"texts\.(layout|empty)"):
        LabelledTexts(**({"source": "t.csv"} | layout))


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"needs the package tokenizers.*fcco-lightning\[text\]"):
        make()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"tokens.tokenizer='here' needs the package transformers.*\[text\]"):
        make(tokens=TextTokens("here"))


ARGUMENTS = [
    "--model.network=TextClassifier", f"--model.network.config={TINY}", "--model.objective=CVaRGroupDRO",
    "--model.objective.alpha=0.5", "--data=GroupedTextDataModule", "--data.columns.label=spam",
    "--data.columns.positive=spam", "--data.groups.by=[spam, list]", "--data.splits.by=fractions",
    "--data.batches=GroupSampling", "--data.batches.groups_per_batch=2", "--data.batches.samples_per_group=3",
    "--trainer.max_epochs=1", "--trainer.enable_progress_bar=false", "--report.pictures=false",
    "--trainer.accelerator=cpu",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_the_command_line_trains_predicts_and_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_texts(160).to_csv("t.csv", index=False)
    given = ["fit", *ARGUMENTS, "--data.texts.source=t.csv"]
    (tmp_path / "empty").mkdir()
    assert run([*given, "--data.tokens.tokenizer=empty"]) != 0
    told = capsys.readouterr().err
    assert "tokens.tokenizer='empty' could not be loaded: its folder holds none" in told
    assert "Traceback" not in told
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["t.csv"]
    assert run([*given, "--data.tokens.vocabulary=120"]) == 0
    assert list(tmp_path.rglob("report.json"))
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    new = make_texts(9).drop(columns="spam")
    new.loc[4, "text"] = None
    new.to_csv("new.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert run(["predict", str(checkpoint), "new.csv", "--threshold", "0.4"]) == 0
    assert "1 of 9 texts are empty or missing" in capsys.readouterr().err
    assert list(pd.read_csv("predictions.csv").columns) == ["index", "list", "score", "probability", "decision"]
    read_one_by_one(load(checkpoint), new["text"].fillna(""), pd.read_csv("predictions.csv")["score"])
    with pytest.raises(DataError, match="the column of texts='text' is not a column of the table"):
        load(checkpoint).predict(new.drop(columns="text"))
    with pytest.warns(UserWarning, match="1 of 1 texts have more than 512 tokens, and are cut off there"):
        load(checkpoint).predict(pd.DataFrame({"text": ["word " * 600]}))


def read_one_by_one(model, texts, scores):
    """Every text alone, as the learnt tokenizer reads it, gets the score that it got in company."""
    for text, score in zip(texts, scores, strict=True):
        x = torch.tensor([model.encoder.tokenizer(text)["input_ids"]])
        torch.testing.assert_close(float(model(x).detach()), score, rtol=1e-4, atol=1e-5)
