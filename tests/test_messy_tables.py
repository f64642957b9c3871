"""One run on a messy table: identifier, dates, texts, missing cells and four groups are handled and reported."""

import shlex

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning import CellSampling, ConfigError, DataError, EqualizedOdds, TabularDataModule
from fcco_lightning.cli.shorthands import written_out
from fcco_lightning.data import Columns, Splits
from fcco_lightning.data.encoding import Encoding, TabularEncoder

WORDS = ["late", "paid", "never", "often", "asked", "twice", "sent", "back", "new", "old"]
PERIODS = ("365.2425", "7")


def messy(rows, seed=0):
    """A fifth of the rows is positive."""
    rng = np.random.default_rng(seed)
    age = rng.normal(45, 12, rows).round()
    days = pd.to_timedelta(rng.integers(0, 2000, rows), unit="D")
    y = age + rng.normal(0, 9, rows) > 55
    region = rng.choice(list("abcd"), rows, p=[0.4, 0.3, 0.2, 0.1]).astype(object)
    return pd.DataFrame(
        {
            "customer": [f"C{seed}{i:05d}" for i in range(rows)],
            "since": (pd.Timestamp("2019-01-01") + days).strftime("%Y-%m-%d"),
            "age": age,
            "income": np.where(rng.random(rows) < 0.02, np.nan, rng.lognormal(10, 1, rows).round(2)),
            "plan": rng.choice(["basic", "plus"], rows),
            "note": [" ".join(rng.choice(WORDS, 6)) for _ in range(rows)],
            "sex": rng.choice(["f", "m"], rows),
            "region": np.where(rng.random(rows) < 0.05, None, region),
            "y": np.where(y, "yes", "no"),
        }
    )


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messy(400).to_csv("t.csv", index=False)
    return ["fit", "--data.train", "t.csv", "--data.columns.label", "y", "--data.columns.sensitive"]


def options(words):
    return dict(word.partition("=")[::2] for word in words if "=" in word)


def test_gaps_are_imputed_and_four_groups_compared_in_pairs(table, capsys):
    found = options(written_out([*table, "region"]))
    assert found["--data.encoding.missing"] == "impute"
    assert '"EqualizedOdds"' in found["--model.constraints"]
    assert "--data.columns.favoured" not in found
    assert "--data.encoding.missing impute" in capsys.readouterr().err
    found = options(written_out([*table, "sex"]))
    assert found["--data.columns.favoured"] in ("f", "m")


def test_gaps_of_what_is_no_feature_need_nothing(table):
    messy(400).assign(income=1.5).to_csv("t.csv", index=False)
    assert "--data.encoding.missing" not in options(written_out([*table, "region"]))
    more = ["--data.columns.use_sensitive", "true"]
    assert "--data.encoding.missing" in options(written_out([*table, "region", *more]))


@pytest.mark.parametrize("more", [[], ["--model.constraints", "EqualizedOdds"]])
def test_each_of_several_columns_has_its_constraint(table, more):
    words = written_out([*table, "[sex, region]", *more])
    (given,) = [word for word in words if word.startswith("--model.constraints=")]
    assert given.count('"EqualizedOdds"') == 2
    assert '"by": "sex"' in given
    assert '"by": "region"' in given
    named = [*table, "[sex, region]", "--model.constraints", "EqualizedOdds", "--model.constraints.by", "sex"]
    (given,) = [word for word in written_out(named) if word.startswith("--model.constraints=")]
    assert given.count('"EqualizedOdds"') == 1


def test_batches_are_drawn_by_class_and_all_groups(table):
    """As many of every combination of the label and two columns, one with gaps; by class where too few would fit."""
    messy(800).to_csv("t.csv", index=False)
    found = options(written_out([*table, "[sex, region]"]))
    assert (found["--data.batches"], found["--data.batches.columns"]) == ("CellSampling", '["y", "sex", "region"]')
    size = int(found["--data.batches.batch_size"])
    data = data_of(sensitive=["sex", "region"])
    data.batches = CellSampling(size, ("y", "sex", "region"))
    data.setup("fit")
    rows = data._rows["train"][["y", "sex", "region"]].fillna("?")
    cells = rows["y"] + rows["sex"] + rows["region"]
    plan = data.sampling()["target"].plan
    for drawn in plan.batches(epoch=0):
        assert set(cells.iloc[list(drawn)].value_counts()) == {size // cells.nunique()}
    # with their weights the samples stand for the data
    batches = list(data.train_dataloader())
    weight = torch.cat([batch["weight"] for batch in batches])
    women = torch.tensor((rows["sex"] == "f").tolist())[torch.cat([batch["index"] for batch in batches])]
    assert float(weight[women].sum() / weight.sum()) == pytest.approx((rows["sex"] == "f").mean(), abs=1e-6)
    messy(100).to_csv("t.csv", index=False)
    assert "--data.batches.columns" not in options(written_out([*table, "[sex, region]"]))


def test_what_is_assumed_can_be_copied(table, capsys):
    """By a shell, with the constraints of two columns and all else, and has the same meaning when it is typed."""
    found = written_out([*table, "[sex, region]"])
    said = shlex.split(capsys.readouterr().err.partition(": ")[2])
    again = written_out([*table, "[sex, region]", *said])
    assert said[:2] == ["--data", "TabularDataModule"]
    typed = again[again.index("--model.constraints") + 1]
    assert f"--model.constraints={typed}" in found
    assert capsys.readouterr().err == ""


def data_of(**columns):
    columns = Columns("y", "yes", **columns)
    return TabularDataModule("t.csv", columns=columns, splits=Splits(0.2), encoding=Encoding(missing="impute"))


def test_the_first_lines_say_what_became_of_every_column(table, caplog):
    data = data_of(sensitive=["sex", "region"])
    with caplog.at_level("INFO"):
        data.setup("fit")
        data.train_dataloader()
        EqualizedOdds(by="region").adapt(data)
    names = {name.partition("=")[0] for name in data.feature_names}
    assert names == {"age", "income", "plan", "since", *(f"{w}(since/{p})" for w in ("sin", "cos") for p in PERIODS)}
    assert "1 of dates, as days with sine and cosine of year and week: since" in caplog.text
    assert "2 that define groups, not features: sex, region; columns.use_sensitive makes them features" in caplog.text
    assert "2 left out: customer (another value in every row), note (different texts: GroupedText" in caplog.text
    gaps = int((data.tables["train"].columns["group by region"] == -1).sum())
    assert gaps > 0
    left = f"{gaps} of 320 training rows ({gaps / 320:.1%}) have no value of 'region': constraints that compare"
    assert left in caplog.text


def test_groups_of_one_column_may_be_many_and_have_gaps(table, caplog):
    data = data_of(sensitive="region")
    with caplog.at_level("INFO"):
        data.setup("fit")
        data.train_dataloader()
    assert data.group_names == list("abcd")
    gaps = int((data.tables["train"].columns["group"] == -1).sum())
    assert gaps > 0
    assert f"{gaps} of 320 training rows" in caplog.text
    assert not any(name.startswith("region") for name in data.feature_names)
    with_it = data_of(sensitive="region", use_sensitive=True)
    with_it.setup()
    assert {f"region={group}" for group in "abcd"} < set(with_it.feature_names)


def test_one_group_is_refused(table):
    messy(400).assign(region="a").to_csv("t.csv", index=False)
    with pytest.raises(DataError, match=r"sensitive='region' has one group only .*'a'.*Name another column"):
        TabularDataModule("t.csv", columns=Columns("y", "yes", sensitive="region"), splits=Splits(0.2)).setup()


def test_all_columns_of_mistyped_numbers_are_named_at_once(table):
    data = messy(400)
    wrong = data["age"].astype(object)
    wrong[3] = "old"
    data.assign(age=wrong, fee=[f"${i}.50" for i in range(400)]).to_csv("t.csv", index=False)

    with pytest.raises(DataError, match=r"column 'age'.*row 3: 'old'.*column 'fee'.*signs"):
        TabularDataModule("t.csv", columns=Columns("y", "yes"), splits=Splits(0.2)).setup()


def test_dates_become_days_and_sine_and_cosine():
    times = ["2024-02-29", "2024-03-01 06:00", None, "2025-12-31T18:00"]
    encoder = TabularEncoder(Encoding(missing="impute")).fit(pd.DataFrame({"t": times}))
    assert encoder.dates == ["t"]
    days = (pd.to_datetime(pd.Series(times), format="ISO8601") - pd.Timestamp(0)) / pd.Timedelta(days=1)
    days = days.fillna(days.median()).to_numpy()
    found = encoder.transform(pd.DataFrame({"t": times})).double().numpy()
    turns = [2 * np.pi * days / period for period in (365.2425, 7, 1)]
    waves = np.stack([wave(turn) for turn in turns for wave in (np.sin, np.cos)], axis=1)
    np.testing.assert_allclose(found[:, 1:], waves, atol=1e-6)
    known = days[[0, 1, 3]]
    np.testing.assert_allclose(found[:, 0], (days - known.mean()) / known.std(), atol=1e-6)
    other = TabularEncoder()
    other.load_state_dict(encoder.state_dict())
    np.testing.assert_array_equal(other.transform(pd.DataFrame({"t": times})).double().numpy(), found)


@pytest.mark.parametrize(
    "cells", [["20240101", "20240102"] * 5, ["2024-13-99", "2024-00-01"] * 5, ["a", "2024-01-02"] * 5]
)
def test_what_is_no_date_stays_a_category(cells):
    assert TabularEncoder().fit(pd.DataFrame({"t": cells})).dates == []


def test_dates_are_categories_or_numbers_where_that_is_said():
    frame = pd.DataFrame({"t": ["2024-01-01", "2024-02-01"] * 5})
    assert TabularEncoder(Encoding(categorical=["t"])).fit(frame).feature_names == ["t=2024-01-01", "t=2024-02-01"]
    binned = TabularEncoder(Encoding(quantiles=2)).fit(frame)
    assert binned.transform(frame).tolist() == [[1.0, 0.0], [0.0, 1.0]] * 5


def test_favoured_is_a_value_of_one_column():

    with pytest.raises(ConfigError, match="is a value of one column"):
        Columns("y", sensitive=["sex", "region"], favoured="m")
