"""The encoding of table columns, against scikit-learn and for odd columns."""

import warnings
from datetime import datetime
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fcco_lightning.data import encoding
from fcco_lightning.data.encoding import MISSING, Encoding, TabularEncoder
from fcco_lightning.data.features import PiecewiseFeatures
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError

TOLERANCE = 1e-6  # features are float32


def encoder_of(categorical=(), **arguments):
    return TabularEncoder(Encoding(list(categorical), **arguments))


def make_frame(rows, seed, jobs=("cook", "smith", "poet")):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(17, 90, rows),
            "job": rng.choice(jobs, rows),
            "hours": rng.normal(40, 12, rows),
            "owner": rng.random(rows) < 0.5,
            "code": rng.integers(1, 4, rows),
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_equals_scikit_learn_column_by_column(seed):
    train, test = make_frame(200, seed), make_frame(80, seed + 100, jobs=("cook", "smith", "unseen"))
    numbers, words = StandardScaler(), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    numbers.fit(train[["age", "hours"]])
    words.fit(train[["job", "owner", "code"]])
    encoder = encoder_of(["code"]).fit(train)
    for frame in (train, test):
        scaled = numbers.transform(frame[["age", "hours"]])
        hot = words.transform(frame[["job", "owner", "code"]])
        expected = np.concatenate([scaled[:, :1], hot[:, :3], scaled[:, 1:], hot[:, 3:]], axis=1)
        x = encoder.transform(frame)
        assert x.dtype == torch.float32
        np.testing.assert_allclose(x.numpy(), expected, atol=TOLERANCE)
    assert encoder.unknown_counts == {"job": int((test["job"] == "unseen").sum())}


def test_feature_names_are_in_the_order_of_the_frame():
    assert encoder_of(["code"]).fit(make_frame(50, 0)).feature_names == [
        "age", "job=cook", "job=poet", "job=smith", "hours", "owner=False", "owner=True", "code=1", "code=2", "code=3",
    ]  # fmt: skip


def test_column_order_of_later_tables_does_not_matter():
    frame = make_frame(50, 0)
    encoder = TabularEncoder().fit(frame)
    assert torch.equal(encoder.transform(frame), encoder.transform(frame[frame.columns[::-1]]))


def test_constant_columns_become_zero_even_where_they_vary_later():
    encoder = TabularEncoder().fit(pd.DataFrame({"c": [0.1] * 7, "x": range(7)}))
    assert encoder.transform(pd.DataFrame({"c": [0.1, 5.0], "x": [1, 2]}))[:, 0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("options", [{}, {"pieces": 4}, {"missing": "impute"}])
def test_a_number_in_another_unit_is_remarked_upon(options):
    r = np.random.default_rng(0)
    frame = pd.DataFrame({"income": r.normal(30, 8, 400), "same": 1.0, "day": pd.date_range("2026-01-01", periods=400)})
    encoder = encoder_of(**options).fit(frame.iloc[:200])
    for unit, expected in [(1, {}), (1000, {"income"}), (0.001, {"income"})]:
        later = frame.iloc[200:].assign(income=lambda t, unit=unit: t["income"] * unit, same=5.0)
        encoder.transform(later)  # whose days are later, too
        assert encoder.far.keys() == set(expected)
    assert encoder.remarks(200)[-1].startswith(
        "most cells of the column 'income' in the table lie more than 3 standard"
    )
    encoder.transform(later.iloc[:9])  # too few to tell
    assert encoder.far == {}
    encoder.transform(later.assign(income=np.where(np.arange(200) < 100, later["income"], 30)))  # no more than half
    assert encoder.far == {}
    assert encoder_of(quantiles=3).fit(frame.iloc[:200]).transform(later).isfinite().all()


def test_a_tiny_spread_is_not_constant():
    x = TabularEncoder().fit(frame := pd.DataFrame({"t": [1e9, 1e9 + 0.25]})).transform(frame)
    assert x.flatten().tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(("quantiles", "missing", "pieces"), [(None, "impute", 1), (4, "error", 1), (None, "error", 5)])
def test_state_survives_a_weights_only_checkpoint(tmp_path, quantiles, missing, pieces):
    train, test = make_frame(60, 1), make_frame(20, 2)
    encoder = encoder_of(["code"], quantiles=quantiles, missing=missing, pieces=pieces).fit(train)
    torch.save(encoder.state_dict(), tmp_path / "encoder.pt")
    state = torch.load(tmp_path / "encoder.pt", weights_only=True)
    if quantiles is None:
        del state["quantiles"]  # as files were written before there were bins
    if pieces == 1:
        del state["pieces"]
    restored = encoder_of(quantiles=7)
    restored.load_state_dict(state)
    assert restored.encoding == encoder.encoding
    assert restored.feature_names == encoder.feature_names
    assert torch.equal(restored.transform(test), encoder.transform(test))
    with pytest.raises(DataError, match=r"'age' held numbers.*categorical=\['age'\]"):
        restored.transform(test.assign(age="old"))
    with pytest.raises(DataError, match=r"cells that are no numbers: row 1: 'old'. Correct it"):
        restored.transform(test.assign(age=["31", "old", *["7"] * (len(test) - 2)]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    frame = make_frame(10, 0)
    frame.loc[[3, 7], "hours"] = bad
    with pytest.raises(DataError, match=r"'hours' of the training split has 2 NaN.*row 3.*missing='impute'"):
        TabularEncoder().fit(frame)
    encoder = TabularEncoder().fit(make_frame(10, 0))
    with pytest.raises(DataError, match="'hours' of the test split"):
        encoder.transform(frame, "the test split")


def test_a_column_without_a_value_cannot_be_imputed():
    with pytest.raises(DataError, match=r"has no value. Train without it \(columns.drop=\['hours'\]\)"):
        TabularEncoder().fit(make_frame(10, 0).assign(hours=np.nan))


def test_missing_categories_are_refused():
    frame = make_frame(10, 0).astype({"job": object})
    frame.loc[4, "job"] = None
    with pytest.raises(DataError, match=r"'job'.* 1 missing cells \(first: row 4\).*impute"):
        TabularEncoder().fit(frame)


def test_impute_takes_the_training_median_and_an_own_category():
    train = pd.DataFrame({"n": [1.0, 2.0, 9.0, np.nan], "w": ["a", None, "b", "a"]})
    encoder = encoder_of(missing="impute").fit(train)
    assert encoder.feature_names == ["n", f"w={MISSING}", "w=a", "w=b"]
    known = np.array([1.0, 2.0, 9.0])
    expected = (np.median(known) - known.mean()) / known.std()
    x = encoder.transform(pd.DataFrame({"n": [np.inf, np.nan], "w": [None, "b"]}, dtype=object).astype({"n": float}))
    np.testing.assert_allclose(x[:, 0], [expected] * 2, atol=TOLERANCE)
    assert x[:, 1:].tolist() == [[1, 0, 0], [0, 0, 1]]


def test_rejects():
    frame = make_frame(10, 0)
    with pytest.raises(ConfigError, match="missing must be one of 'error', 'impute', got 'drop'"):
        Encoding(missing="drop")
    with pytest.raises(DataError, match="not fitted"):
        TabularEncoder().transform(frame)
    with pytest.raises(DataError, match=r"categorical='cod' is not a column.*Did you mean 'code'"):
        encoder_of(["cod"]).fit(frame)
    with pytest.raises(DataError, match="'hours' is not a column of the table"):
        TabularEncoder().fit(frame).transform(frame.drop(columns="hours"))
    with pytest.raises(DataError, match="no finite value"):
        encoder_of(missing="impute").fit(pd.DataFrame({"n": [np.nan, np.nan]}))


@pytest.mark.parametrize(("seed", "quantiles"), [(0, 5), (1, 4), (2, 2)])
def test_quantile_bins_make_all_features_binary(seed, quantiles):
    train, test = make_frame(200, seed), make_frame(80, seed + 100)
    encoder = encoder_of(["code"], quantiles=quantiles).fit(train)
    x = encoder.transform(test).numpy()
    assert set(np.unique(x)) == {0.0, 1.0}
    for name in ("age", "hours"):
        columns = [i for i, feature in enumerate(encoder.feature_names) if feature.startswith(f"{name}=")]
        # the smallest value that a share k / quantiles of the training rows does not exceed
        edges = np.sort(train[name])[[int(np.ceil(k * 200 / quantiles)) - 1 for k in range(1, quantiles)]]
        assert len(columns) == len(set(edges)) + 1
        expected = pd.cut(test[name], [-np.inf, *sorted(set(edges)), np.inf], labels=False)
        assert x[:, columns].argmax(axis=1).tolist() == expected.tolist()
        assert (x[:, columns].sum(axis=1) == 1).all()
        if name == "hours":  # no ties: equal shares
            assert encoder.transform(train)[:, columns].sum(dim=0).tolist() == [200 / quantiles] * quantiles


def test_pieces_are_features_beside_the_number():
    train, test = make_frame(200, 0), make_frame(80, 1)
    train.loc[3, "hours"] = test.loc[5, "hours"] = np.nan
    plain = encoder_of(["code"], missing="impute").fit(train)
    encoder = encoder_of(["code"], missing="impute", pieces=3).fit(train)
    x, names = encoder.transform(test), encoder.feature_names
    known = [name for name in names if "[" not in name]
    assert known == plain.feature_names
    assert torch.equal(x[:, [names.index(name) for name in known]], plain.transform(test))
    scaled = PiecewiseFeatures(3).fit(train[["age", "hours"]].dropna().to_numpy())
    hours = test["hours"].fillna(train["hours"].median())
    for column, values in (("hours", hours), ("age", test["age"])):
        found = x[:, [i for i, name in enumerate(names) if name.startswith(f"{column}[")]]
        if column == "hours":  # the row without hours has an age
            ends = scaled.ends_[1]
            expected = np.column_stack([np.interp(values, piece, [0, 1]) for piece in pairwise(ends)])
            np.testing.assert_allclose(found, expected, atol=TOLERANCE)
            assert names[names.index("hours") + 1] == f"hours[{ends[0]:.12g},{ends[1]:.12g}]"
        assert ((found >= 0) & (found <= 1)).all()
        assert found.shape[1] >= 3
    assert encoder_of(["code"], pieces="auto", missing="impute").fit(train).feature_names == plain.feature_names  # few
    with pytest.raises(ConfigError, match=r"quantiles=3 and encoding.pieces='auto' exclude each other"):
        Encoding(quantiles=3, pieces="auto")


def test_quantiles_that_coincide_are_one_and_no_bin_is_empty():
    train = pd.DataFrame({"gain": [0.0] * 90 + [5.0] * 10, "top": [1.0] * 10 + [3.0] * 90, "same": [2.5] * 100})
    encoder = encoder_of(quantiles=5).fit(train)
    assert encoder.feature_names == ["gain=<=0", "gain=>0", "top=any", "same=any"]
    assert encoder.transform(train).sum(dim=0).tolist() == [90, 10, 100, 100]
    two = encoder_of(quantiles=20).fit(train)
    assert two.feature_names[2:4] == ["top=<=1", "top=>1"]


def test_missing_numbers_go_to_the_bin_of_the_median():
    train = pd.DataFrame({"n": [1.0, 2.0, 3.0, np.nan]})
    encoder = encoder_of(missing="impute", quantiles=3).fit(train)
    assert encoder.feature_names == ["n=<=1", "n=(1,2]", "n=>2"]
    assert encoder.transform(train)[3].tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="NaN"):
        encoder_of(quantiles=3).fit(train)


def wide(rows=500):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows),
            "word": rng.choice(["u", "v", None], rows),
            "b": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows)),
            "day": pd.date_range("2020-01-01", periods=rows).astype(str),
        }
    )


@pytest.mark.parametrize("options", [{"pieces": 5}, {"quantiles": 4}, {}])
def test_features_that_are_made_for_a_batch_are_those_of_the_table(options, monkeypatch):
    encoder, frame = TabularEncoder(Encoding(missing="impute", **options)), wide()
    cells, y = encoder.fit(frame).cells(frame), {"y": torch.arange(len(frame))}
    in_memory = encoder.table(cells, y)
    assert torch.equal(in_memory.columns["x"], encoder.transform(frame))
    monkeypatch.setattr(encoding, "_MOST_IN_MEMORY", 0)
    monkeypatch.setattr(encoding, "_ROWS_AT_ONCE", 7)
    assert torch.equal(encoder.features(cells), in_memory.columns["x"])
    made = TensorTable(y, size=len(cells), inputs=partial(encoder.inputs, cells))
    rows = [3, 499, 3, 0, *range(100, 130)]
    for name, column in made.__getitems__(rows).items():
        assert torch.equal(column, in_memory.__getitems__(rows)[name])
    assert torch.equal(made[7]["x"], in_memory[7]["x"])


def test_features_much_larger_than_their_cells_are_made_when_a_batch_asks_for_them(monkeypatch):
    encoder, frame = TabularEncoder(Encoding(missing="impute", pieces=20)), wide()
    cells = encoder.fit(frame).cells(frame)
    assert "x" in encoder.table(cells, {}).columns
    monkeypatch.setattr(encoding, "_MOST_IN_MEMORY", 1000)
    assert "x" not in encoder.table(cells, {}).columns
    few = TabularEncoder(Encoding(missing="impute")).fit(frame)
    assert "x" in few.table(few.cells(frame), {}).columns


def test_a_feature_that_is_no_float32_is_refused_in_its_batch():
    frame = wide()[["a"]]
    encoder = TabularEncoder().fit(frame)
    cells = encoder.cells(pd.DataFrame({"a": [0.0, 1e300]}))
    table = TensorTable({}, size=2, inputs=partial(encoder.inputs, cells))
    assert torch.isfinite(table.__getitems__([0])["x"]).all()
    with np.errstate(over="ignore"), pytest.raises(DataError, match="'x' must be finite"):
        table.__getitems__([0, 1])


@pytest.mark.parametrize("large", [1e300, -1.7976931348623157e308])
def test_numbers_whose_variance_overflows_are_refused(large):
    frame = pd.DataFrame({"x": [large, *map(float, range(30)), large]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=r"Column 'x' has numbers as large as .*missing number.*columns.drop"):
            TabularEncoder().fit(frame)


def dated():
    return TabularEncoder().fit(pd.DataFrame({"day": ["2026-01-31", "2026-02-01", "2026-02-02"]}))


def test_numbers_in_a_column_of_dates_are_no_days_since_1970():
    with pytest.raises(
        DataError, match=r"'day' held dates in .* but is int64 in the table, with cells such as 20260131"
    ):
        dated().transform(pd.DataFrame({"day": [20260131, 20260201]}))
    written = [dated().transform(pd.DataFrame({"day": [day]})) for day in ("2026-01-31", "20260131")]
    assert torch.equal(*written)  # ISO 8601 has both


@pytest.mark.parametrize("day", ["9999-12-31", "1500-01-01"])
def test_dates_far_away_are_dates(day):
    frame = pd.DataFrame({"day": [day, "2026-01-31"]})
    expected = [(datetime.fromisoformat(text) - datetime(1970, 1, 1)).days for text in frame["day"]]
    (column,) = TabularEncoder().fit(frame).columns
    assert column.mean == np.mean(expected)
    assert dated().transform(frame).isfinite().all()
