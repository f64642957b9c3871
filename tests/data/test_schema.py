"""Kinds of table columns: typos, repeated headers, separators, and messages about them."""

import logging
import re
import warnings

import numpy as np
import pandas as pd
import pytest

from fcco_lightning.data import Columns, Encoding, Groups, Splits
from fcco_lightning.data.columns import listed, listed_in_order, marked
from fcco_lightning.data.datamodules import TabularDataModule
from fcco_lightning.data.encoding import TabularEncoder
from fcco_lightning.data.schema import doubts, settle_types
from fcco_lightning.data.sources import read_table
from fcco_lightning.errors import ConfigError, DataError

ROWS = 200


def make_frame(seed=0, jobs=("cook", "smith", "poet")):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.permutation(np.arange(ROWS) % 160 + 20),
            "job": rng.choice(jobs, ROWS),
            "y": np.arange(ROWS) % 2,
        }
    )


def with_typos(count, column="age", text="3O"):
    frame = make_frame().astype({column: object})
    frame.loc[frame.index[17 : 17 + count], column] = text
    return frame


def module(train, test=None, **encoding):
    splits = Splits(test_fraction=0.3) if test is None else Splits()
    return TabularDataModule(train, test=test, columns=Columns("y"), splits=splits, encoding=Encoding(**encoding))


def written(frame, tmp_path, name="t.csv", **arguments):
    frame.to_csv(tmp_path / name, index=False, **arguments)
    return str(tmp_path / name)


def test_a_header_that_stands_there_again_is_called_so():
    again = with_typos(1, text="age")
    with pytest.raises(DataError, match=r"row 17: 'age'\. Remove the repeated header line; or say"):
        module(again).setup()


@pytest.mark.parametrize("count", [1, 20])
def test_a_few_typos_do_not_make_categories_of_numbers(count, tmp_path):
    path = written(with_typos(count), tmp_path)
    with pytest.raises(DataError, match=rf"'age' of the train table is text, because {count} of its 200.*row 17: '3O'"):
        module(path).setup()
    categories = module(path, categorical=["age"])
    categories.setup()
    assert "age=3O" in categories.feature_names or count == 1  # the one may lie in the test split
    with pytest.raises(DataError, match=r"encoding: .*'age'.*numbers.*row 17: '3O'.*missing='impute'"):
        module(path, numeric=["age"]).setup()
    numbers = module(path, numeric=["age"], missing="impute")
    numbers.setup()
    gaps = module(with_typos(count, text=np.nan).astype({"age": float}), missing="impute")
    gaps.setup()
    assert all(t.columns["x"].equal(gaps.tables[name].columns["x"]) for name, t in numbers.tables.items())


def test_typos_in_any_table_are_named(tmp_path):
    typo = written(with_typos(1), tmp_path)
    with pytest.raises(DataError, match="'age' of the test table is text"):
        module(make_frame(), test=typo).setup()
    grouped = TabularDataModule(
        make_frame(), pool=[typo], columns=Columns("y"), groups=Groups(by=["job"]), splits=Splits(test_fraction=0.3)
    )
    with pytest.raises(DataError, match=r"'age' of the pool\[0\] table is text"):
        grouped.setup()


def test_words_stay_categories_and_columns_that_are_no_features_are_not_asked(caplog):
    ages = [str(i % 40) if i % 9 else f"{i // 9} years" for i in range(ROWS)]  # 89% are numbers
    codes, ids = [f"{i % 30:02d}" for i in range(ROWS)], [*map(str, range(199)), "x"]
    frame = make_frame().assign(age=ages, code=codes, id=ids)
    data = TabularDataModule(frame, columns=Columns("y", drop=["id"]), splits=Splits(test_fraction=0.3))
    with caplog.at_level(logging.INFO):
        data.setup("fit")
        data.setup("fit")
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert "3 columns become" in said[0]
    assert "code (30 values, all numbers: encoding.numeric?), job (3)" in said[0]
    assert "of age (test)" in said[0]  # shares of values that training lacks


@pytest.mark.parametrize(("rare", "said"), [(20, True), (60, False)])
def test_a_positive_class_of_most_rows_is_said(rare, said, caplog):
    frame = make_frame().assign(y=["in default" if i < rare else "paid" for i in range(ROWS)])
    with caplog.at_level(logging.INFO):
        TabularDataModule(frame, columns=Columns("y", positive="paid"), splits=Splits(test_fraction=0.5)).setup("fit")
    line = "  paid of y counts as positive, and 90% of the training rows are; to find in default: "
    assert (f"{line}--data.columns.positive 'in default'" in caplog.records[0].message.splitlines()) == said


def test_a_hundred_columns_are_said_in_a_few_lines(caplog):
    numbers = pd.DataFrame({f"a long name {i}": np.arange(ROWS) % 99 for i in range(90)})
    words = pd.DataFrame({f"w{i}": [f"{j % (2 + i)}-" for j in range(ROWS)] for i in range(10)})
    with caplog.at_level(logging.INFO):
        module(pd.concat([numbers, words, make_frame()[["y"]]], axis=1)).setup("fit")
    lines = caplog.records[0].message.splitlines()
    assert lines[0] == f"100 columns become {90 + sum(range(2, 12))} features"
    assert lines[1].startswith("  90 of numbers: a long name 0, ")
    assert lines[1].endswith(" and 82 more")
    assert lines[2].startswith("  10 of categories: w9 (11), w8 (10), ")
    assert lines[3:] == [
        "  'w0' determines 'y' in all training rows: if it is known only afterwards, columns.drop=['w0']"
    ]
    assert max(map(len, lines)) < 160


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([f"{1000 + i:,}" for i in range(ROWS)], r"thousands separators, such as '1,.*thousands=','"),
        ([f"{i},{i % 10}" for i in range(ROWS)], r"decimal commas, such as '.*decimal=','"),
        ([f"{i * 10:,}" for i in range(ROWS)], r"thousands separators, such as '1,"),  # some have none
    ],
)
def test_commas_in_numbers_are_named_with_the_remedy(numbers, said, tmp_path):
    path = written(make_frame().assign(income=numbers), tmp_path)
    with pytest.raises(DataError, match=said):
        module(path).setup()
    option = "thousands" if "thousands" in said else "decimal"
    pd.read_csv(path, **{option: ","}).to_csv(tmp_path / "new.csv", index=False)
    module(str(tmp_path / "new.csv")).setup()


def test_files_with_other_separators_are_named_with_the_remedy(tmp_path):
    path = written(make_frame(), tmp_path, sep=";", decimal=",")
    with pytest.raises(DataError, match=r"separated by ';'.*sep=';'.*decimal=','"):
        read_table(path, "train")
    read_table(make_frame()[["age"]], "train")


def test_a_table_of_other_values_is_refused():
    train, test = make_frame(), make_frame(1, jobs=("Cook", "Smith", "poet"))
    share = (test["job"] != "poet").mean()
    with pytest.raises(DataError, match=rf"{share:.0%} of the column 'job' in the test split.*such as '(Cook|Smith)'"):
        module(train, test).setup()
    module(train, make_frame(1, jobs=("cook", "poet", "poet", "king"))).setup()


def test_rejects_columns_of_two_types():
    with pytest.raises(ConfigError, match=r"categorical and encoding.numeric both name \['age'\]"):
        Encoding(categorical=["age"], numeric=["age"])
    with pytest.raises(DataError, match=r"numeric='agee' is not a column.*Did you mean 'age'"):
        module(make_frame(), numeric=["agee"]).setup()


def test_dates_durations_and_categories_are_numbers_where_that_is_said():
    days = pd.to_datetime(["1970-01-03 00:00", None, "1970-01-01 12:00"])
    frame = pd.DataFrame({"day": days, "zone": days.tz_localize("UTC"), "wait": days - pd.Timestamp(0)})
    frame = frame.assign(code=pd.Categorical(["2", None, "0.5"]))
    found = settle_types(frame, Encoding(numeric=list(frame)))
    for name in frame:
        np.testing.assert_array_equal(found[name], [2.0, np.nan, 0.5])


def test_dates_in_text_are_days():
    found = settle_types(pd.DataFrame({"day": ["1970-01-03", "1970-01-01 12:00"]}), Encoding(numeric=["day"]))
    np.testing.assert_array_equal(found["day"], [2.0, 0.5])
    mistyped = pd.DataFrame({"day": ["1970-01-03", "soon", None]})
    with pytest.raises(DataError, match="must hold numbers, but has other cells: row 1: 'soon'"):
        settle_types(mistyped, Encoding(numeric=["day"]))
    found = settle_types(mistyped, Encoding(numeric=["day"], missing="impute"))
    np.testing.assert_array_equal(found["day"], [2.0, np.nan, np.nan])


def test_a_saved_encoder_knows_which_columns_are_numbers():
    """New tables are read as the training table was: dates, and numbers among which other words are missing ones."""
    frame = pd.DataFrame({"day": ["1970-01-03", "1970-01-05", "1970-01-04"], "age": ["20", "?", "40"]})
    encoding = Encoding(numeric=["day", "age"], missing="impute")
    saved = TabularEncoder(encoding).fit(settle_types(frame, encoding)).state_dict()
    encoder = TabularEncoder()
    encoder.load_state_dict(saved)
    (found,) = encoder.batches(frame, size=3)
    spread = np.sqrt(1.5)
    np.testing.assert_allclose(found, [[-spread, -1], [spread, 0], [0, 1]], rtol=1e-6)


@pytest.mark.parametrize("value", [2**53, "9007199254740992", 2**53 + 1])
def test_whole_numbers_beyond_the_exact_floats_are_told_apart(value):
    column = pd.Series([2**53, 2**53 + 1])
    assert marked(column, [value]).tolist() == [int(int(value) == one) for one in column]


@pytest.mark.parametrize(("count", "more"), [(11, ""), (12, ""), (13, " and 1 more"), (40, " and 28 more")])
def test_a_dozen_values_are_listed(count, more):
    names = [f"{i:02}" for i in range(count)]
    assert listed(reversed(names)) == f"{names[:12]}{more}"
    assert listed_in_order(range(count)) == f"{list(range(count))[:12]}{more}"


def said_of(frame, caplog):
    with caplog.at_level(logging.INFO):
        module(frame).setup("fit")
    return caplog.text


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%y", "%Y/%m/%d", "%d.%m.%Y 12:30"])
@pytest.mark.parametrize("every", [1, 40])
def test_dates_of_another_form_are_called_so(form, every, caplog):
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(ROWS) // every, unit="D")
    said = said_of(make_frame().assign(since=days.strftime(form)), caplog)
    assert re.search(r"since \((5 )?dates, but not written as 2026-01-31\)", said)


def test_columns_of_numbers_and_one_other_text_say_what_to_do(caplog):
    cells = np.where(np.arange(ROWS) % 5 == 0, "-", np.linspace(0, 1, ROWS).round(4).astype(str))
    said = said_of(make_frame().assign(level=cells), caplog)
    assert f"level (80% numbers, and '-' in {ROWS // 5} cells: leave these empty)" in said


def test_a_feature_that_tells_the_label_is_named(caplog):
    frame = make_frame()
    said = said_of(frame.assign(grade=frame["y"].map(str).map("grade {}".format)), caplog)
    assert "'grade' determines 'y' in all training rows: if it is known only afterwards, columns.drop=['grade']" in said
    assert "'job' determines" not in said
    in_order = pd.DataFrame({"y": np.repeat([0, 1], 200), "grade": np.repeat([3, 7], 200)})
    assert len(doubts(in_order, ["grade"], ["y"])) == 1
    assert doubts(in_order.assign(y=0), ["grade"], ["y"]) == []


def test_labels_and_groups_that_differ_in_case_only_are_named(caplog):
    frame = make_frame()
    frame["y"] = np.where(np.arange(ROWS) % 7 == 0, "Yes", np.where(frame["y"] == frame["y"].max(), "yes", "no"))
    assert "'y' has 'Yes' and 'yes', which count as different: use one spelling if they are the same" in said_of(
        frame, caplog
    )


def test_infinite_cells_are_refused_without_another_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=r"'x' of the train split has .* NaN or infinite cells"):
            module(make_frame().assign(x=[np.inf, *np.arange(1.0, ROWS)])).setup()
