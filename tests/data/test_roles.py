"""The roles of table columns: label, group, features and further columns."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning.data.columns import condition_on, marked, require_columns
from fcco_lightning.data.roles import Columns, Roles
from fcco_lightning.data.splits import require_all_cells
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models import batch

FRAME = pd.DataFrame(
    {"age": [1, 2, 3, 4], "race": ["White", "Black", "White", "Asian"], "income": [">50K", "<=50K", "<=50K", ">50K"]}
)
ROLES = {"label": "income", "positive": ">50K", "sensitive": "race", "favoured": "White"}


def read(frame=FRAME, **changes):
    labels = Roles(Columns(**{**ROLES, **changes}))
    labels.fit(frame, "the train table")
    return labels, labels.read(frame, "the train table"), labels.features(frame, "the train table")


def test_reads_labels_groups_features_and_names():
    labels, columns, features = read()
    assert columns["y"].tolist() == [1, 0, 0, 1]
    assert columns["group"].tolist() == [1, 0, 1, 0]
    assert list(features) == ["age"]
    assert labels.class_names == ["<=50K", ">50K"]
    assert labels.group_names == ["not White", "White"]
    assert list(read(use_sensitive=True)[2]) == ["age", "race"]
    assert list(read(use_sensitive=True, drop=["age"])[2]) == ["race"]


def test_groups_are_the_values_of_a_column_and_an_empty_cell_is_of_none():
    gaps = FRAME.assign(race=["White", None, "Black", "Asian"])
    labels, columns, _ = read(gaps, favoured=None)
    assert labels.group_names == ["Asian", "Black", "White"]
    assert columns["group"].tolist() == [2, -1, 1, 0]
    assert read(gaps)[1]["group"].tolist() == [1, -1, 0, 0]
    two, columns, _ = read(FRAME.assign(race=["White", None, "Black", "White"]))
    assert (two.group_names, columns["group"].tolist()) == (["Black", "White"], [1, -1, 0, 1])
    assert two.read(gaps, "a later table")["group"].tolist() == [1, -1, 0, -1]  # training had no Asian
    _, columns, features = read(FRAME.assign(sex=list("fmfm")), sensitive=["sex", "race"], favoured=None)
    assert ("group" in columns, list(features)) == (False, ["age"])


def test_without_groups_there_is_no_group():
    labels, columns, features = read(sensitive=None, favoured=None)
    assert set(columns) == {"y"}
    assert labels.group_names == []
    assert list(features) == ["age", "race"]


def test_labels_may_be_numbers_several_classes_or_classes_that_are_positive_together():
    labels, columns, _ = read(label="age", positive=None, target="number")
    assert (columns["y"].tolist(), columns["y"].dtype, labels.class_names) == ([1, 2, 3, 4], torch.float32, [])
    labels, columns, _ = read(label="race", positive=None, sensitive="income", favoured=">50K")
    assert labels.class_names == ["Asian", "Black", "White"]
    assert columns["y"].tolist() == [2, 1, 2, 0]
    labels, columns, _ = read(label="age", positive=[3, 1])
    assert labels.class_names == ["not 3 or 1", "3 or 1"]
    assert columns["y"].tolist() == [1, 0, 1, 0]


def test_further_columns_come_along_and_are_no_features():
    frame = FRAME.assign(query=[7, 7, 9, 9], time=[0.5, 1.5, 2.5, 3.5], event=[True, False, True, True])
    _, columns, features = read(frame, extra={"query": "query", "months": "time", "event": "event"})
    assert columns["query"].tolist() == [7, 7, 9, 9]
    assert columns["months"].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert columns["event"].tolist() == [1, 0, 1, 1]
    assert [columns[name].dtype for name in ("query", "months", "event")] == [torch.int64, torch.float32, torch.int64]
    assert list(features) == ["age"]
    assert list(read(frame, extra=["query"])[2]) == ["age", "time", "event"]


def test_no_further_column_takes_the_name_of_one_that_batches_have():
    free = {"query", "bag", "time", "event"}
    names = {*re.findall(r"^``(\w+)``", Path(batch.__file__).read_text(), re.MULTILINE), batch.POPULATION} - free
    assert len(names) > 15
    for name in names:
        with pytest.raises(ConfigError, match=f"columns.extra takes \\['{name}'\\]"):
            Columns("y", extra={name: "age"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sensitive": ["sex", "race"]}, r"favoured='White' is a value of one column, .* \['sex', 'race'\]"),
        ({"sensitive": None}, r"favoured='White' is a value of one column, and columns.sensitive is None"),
        ({"target": "number"}, r"positive='>50K' is a class, but target='number'"),
        ({"target": "rank"}, "target must be one of 'class', 'number', got 'rank'"),
        ({"extra": ["weight"]}, r"columns.extra takes \['weight'\], names that batches use.*as a mapping"),
    ],
)
def test_arguments_that_contradict_each_other(changes, message):
    with pytest.raises(ConfigError, match=message):
        Columns(**{**ROLES, **changes})


@pytest.mark.parametrize("positive", [1, 1.0, "1", "1.0", " 1 "])
@pytest.mark.parametrize(
    "cells", [[1, 0, 0, 1], [1.0, 0.0, 0.0, 1.0], ["1", "0", "0", "1"], [True, False, False, True]]
)
def test_values_are_compared_by_meaning_not_by_type(cells, positive):
    assert read(FRAME.assign(income=cells), positive=positive)[1]["y"].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("frame", "changes", "message"),
    [
        (FRAME, {"label": "incom"}, r"label='incom' is not a column.*Did you mean 'income'.*'age', 'race', 'income'"),
        (FRAME, {"sensitive": "sex"}, "sensitive='sex' is not a column"),
        (FRAME, {"drop": ["agee"]}, "drop='agee'.*Did you mean 'age'"),
        (FRAME, {"positive": ">50K."}, r"positive='>50K.' is not a value of column 'income'.*'<=50K', '>50K'"),
        (FRAME, {"favoured": "white"}, r"favoured='white'.*'Asian', 'Black', 'White'"),
        (FRAME, {"label": "race", "positive": "White"}, "exactly two classes.* it has 3"),
        (FRAME, {"label": "race", "positive": ["Blue"]}, "positive='Blue' is not a value of column 'race'"),
        (FRAME, {"positive": [">50K", "<=50K"]}, "must be some of the classes .* and not all of them"),
        (FRAME, {"positive": []}, "must be some of the classes"),
        (FRAME.assign(income=">50K"), {}, "exactly two classes.* it has 1"),
        (FRAME, {"extra": ["race"]}, "extra='race' must hold numbers.*pandas.factorize"),
        (FRAME, {"extra": ["tim"]}, "extra='tim' is not a column"),
        (FRAME, {"positive": None, "target": "number"}, "label='income' must hold numbers"),
        (
            FRAME.assign(income=[">50K", np.nan, "<=50K", ">50K"]),
            {},
            r"'income' \(columns.label\).*1 missing.*row 1",
        ),
        (FRAME.assign(race=["White", None, "White", "White"]), {}, r"'race' has one group only .*\['White'\]"),
        (FRAME.assign(race=None), {}, r"'race' has one group only"),
        (FRAME, {"drop": ["age", "race"]}, "No feature column is left"),
    ],
)
def test_rejects(frame, changes, message):
    with pytest.raises(DataError, match=message):
        read(frame, **changes)


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        ([True, False, True], True),
        (["yes", "no", "yes"], True),
        (["No", "Yes", "No"], False),
        (["TRUE", "FALSE", "TRUE"], True),
        (["on", "off", "on"], True),
        ([1, 0, 1], True),
        ([1.0, 0.0, 1.0], "true"),
        ([True, False, True], "true"),
        (["true", "false", "true"], True),
        (["t", "f", "t"], "t"),
        ([0.5, 1.5, 0.5], 0.5),
    ],
)
def test_a_value_is_compared_with_cells_as_a_person_would(cells, value):
    frame = pd.DataFrame({"age": [1, 2, 3], "y": cells})
    changes = {"label": "y", "positive": value, "sensitive": "y", "favoured": value}
    labels, columns, _ = read(frame, **changes)
    assert columns["y"].tolist() == columns["group"].tolist() == [1, 0, 1]
    assert labels.class_names == [str(cells[1]).removesuffix(".0"), str(cells[0]).removesuffix(".0")]
    assert condition_on(frame["y"], value)(frame["y"]).tolist() == [1, 0, 1]


def test_words_that_are_no_truth_values_are_only_equal_to_themselves():
    frame = pd.DataFrame({"age": [1, 2], "y": ["yes", "no"]})
    for value in ("true", 1):
        with pytest.raises(DataError, match="is not a value of column 'y'"):
            read(frame, label="y", positive=value, sensitive=None, favoured=None)


def test_an_underscore_makes_no_number():
    cells = pd.Series(["1_1", "11", "1_1"])
    assert marked(cells, [11]).tolist() == [0, 1, 0]
    assert condition_on(cells, "1_1")(cells).tolist() == [1, 0, 1]


def test_numbers_with_decimal_commas_are_no_classes():
    numbers = np.random.default_rng(0).normal(size=240)
    frame = pd.DataFrame({"age": range(240), "y": [f"{v:.2f}".replace(".", ",") for v in numbers]})
    roles = {"label": "y", "positive": None, "sensitive": None, "favoured": None}
    for changes in ({}, {"target": "number"}, {"label": "age", "positive": [3], "extra": {"amount": "y"}}):
        with pytest.raises(DataError, match=r"numbers have decimal commas, .*decimal=','") as error:
            read(frame, **{**roles, **changes})
        assert len(str(error.value)) < 400
    few = frame.assign(y=["3,5", "4,0", "4,5"] * 80)  # grades are classes
    assert read(few, **roles)[0].class_names == ["3,5", "4,0", "4,5"]


def test_lists_in_messages_are_cut():
    names = [f"c{k}" for k in range(500)]
    with pytest.raises(DataError, match="and 488 more") as error:
        require_columns(pd.DataFrame(columns=names), {"label": ["y"]}, "the table")
    assert len(str(error.value)) < 300
    y = torch.arange(499)
    with pytest.raises(DataError, match=r"class 'c499'.*and 488 more") as error:
        require_all_cells(y, None, names, [], "test split")
    assert len(str(error.value)) < 600
