import numpy as np
import pandas as pd
import pytest

from fcco_lightning.data.roles import Roles
from fcco_lightning.errors import DataError

FRAME = pd.DataFrame(
    {"age": [1, 2, 3, 4], "race": ["White", "Black", "White", "Asian"], "income": [">50K", "<=50K", "<=50K", ">50K"]}
)
ROLES = {"label": "income", "positive": ">50K", "sensitive": "race", "favoured": "White"}


def read(frame=FRAME, **changes):
    return Roles(**{**ROLES, **changes}).read(frame, "the train table")


def test_reads_labels_groups_features_and_names():
    table = read()
    assert table.y.tolist() == [1, 0, 0, 1]
    assert table.group.tolist() == [1, 0, 1, 0]
    assert table.cells.tolist() == [3, 0, 2, 1]
    assert list(table.features) == ["age", "race"]
    assert table.class_names == ("<=50K", ">50K")
    assert table.group_names == ("not White", "White")
    assert list(read(use_sensitive=False).features) == ["age"]
    assert list(read(drop=["age"]).features) == ["race"]


@pytest.mark.parametrize("positive", [1, 1.0, "1", "1.0", " 1 "])
@pytest.mark.parametrize(
    "cells", [[1, 0, 0, 1], [1.0, 0.0, 0.0, 1.0], ["1", "0", "0", "1"], [True, False, False, True]]
)
def test_values_are_compared_by_meaning_not_by_type(cells, positive):
    assert read(FRAME.assign(income=cells), positive=positive).y.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("frame", "changes", "message"),
    [
        (FRAME, {"label": "incom"}, r"label='incom' is not a column.*Did you mean 'income'.*'age', 'race', 'income'"),
        (FRAME, {"sensitive": "sex"}, "sensitive='sex' is not a column"),
        (FRAME, {"drop": ["agee"]}, "drop='agee'.*Did you mean 'age'"),
        (FRAME, {"positive": ">50K."}, r"positive='>50K.' is not a value of column 'income'.*'<=50K', '>50K'"),
        (FRAME, {"favoured": "white"}, r"favoured='white'.*'Asian', 'Black', 'White'"),
        (FRAME, {"label": "race", "positive": "White"}, "exactly two classes.* it has 3"),
        (FRAME.assign(income=">50K"), {}, "exactly two classes.* it has 1"),
        (FRAME.assign(income=[">50K", np.nan, "<=50K", ">50K"]), {}, r"'income' \(label\).*1 missing cells.*row 1"),
        (FRAME.assign(race=["White", "Black", None, None]), {}, r"'race' \(sensitive\).*2 missing cells.*row 2"),
        (FRAME, {"drop": ["age", "race"]}, "No feature column is left"),
    ],
)
def test_rejects(frame, changes, message):
    with pytest.raises(DataError, match=message):
        read(frame, **changes)
