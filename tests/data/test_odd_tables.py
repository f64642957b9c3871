"""Misleading tables: an index column, row numbers, a line of totals, a file without header."""

import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fcco_lightning import Columns, Encoding, Splits, TabularDataModule, UniformSampling
from fcco_lightning.data.sources import read_table
from fcco_lightning.errors import DataError

ROWS = 60


def sorted_table():
    """Sorted by its label, so that the number of a row gives it away."""
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=ROWS), "job": rng.choice(["u", "v"], ROWS), "y": np.arange(ROWS) // 30})


def module(source, label="y", **arguments):
    return TabularDataModule(source, columns=Columns(label), splits=Splits(test_fraction=0.25), **arguments)


def features_of(source, **arguments):
    made = module(source, **arguments)
    made.setup()
    return made.feature_names


OWN = ["a", "job=u", "job=v"]
NUMBERINGS = {
    "unnamed index": lambda t: t.rename_axis("").reset_index(),
    "index saved twice": lambda t: t.assign(**{"Unnamed: 0": t.index, "Unnamed: 0.1": t.index}),
    "names of rows": lambda t: t.set_index("row " + t.index.astype(str)).rename_axis("").reset_index(),
    "of Arrow": lambda t: t.assign(__index_level_0__=t.index),
    "from one": lambda t: t.assign(no=t.index + 1),
    "permuted": lambda t: t.assign(entry=np.random.default_rng(1).permutation(ROWS) + 1000.0),
    "id with gaps": lambda t: t.assign(id=7 * t.index),
    "row number with gaps": lambda t: t.assign(Row_ID=3 * t.index + 1),
    "second label": lambda t: t.assign(**{"y.1": t["y"]}),
}


@pytest.mark.parametrize("name", NUMBERINGS)
def test_what_only_numbers_the_rows_is_no_feature_and_said(name, tmp_path, caplog):
    path = tmp_path / "t.csv"
    NUMBERINGS[name](sorted_table()).to_csv(path, index=False)
    made = module(str(path))
    with caplog.at_level(logging.INFO):
        made.setup("fit")
    assert made.feature_names == OWN
    added = [column for column in read_table(path).columns if column not in sorted_table()]
    assert f"{len(added)} left out: {added[0]} (" in caplog.text
    assert features_of(NUMBERINGS[name](sorted_table())) == OWN, "of a table in memory, too"


def test_who_asks_for_it_by_name_gets_it(tmp_path):
    path = tmp_path / "t.csv"
    sorted_table().to_csv(path)
    encoding = Encoding(numeric=["Unnamed: 0"])
    assert features_of(str(path), encoding=encoding) == ["Unnamed: 0", *OWN]
    columns = Columns("y", extra={"row": "Unnamed: 0"})
    made = TabularDataModule(str(path), columns=columns, splits=Splits(test_fraction=0.25))
    made.setup()
    assert "row" in made.tables["train"].columns


def test_the_tables_beside_need_no_number_of_rows(tmp_path):
    sorted_table().to_csv(tmp_path / "t.csv")
    other = sorted_table().sample(frac=1, random_state=0)
    made = TabularDataModule(str(tmp_path / "t.csv"), pool=[other], test=other, columns=Columns("y"))
    made.setup()
    assert made.feature_names == OWN
    assert len(made.tables["train"]) == 2 * ROWS


@pytest.mark.parametrize("column", [np.arange(ROWS) % 59, np.arange(ROWS) / 2, np.arange(ROWS) ** 2, [5] * ROWS])
def test_other_columns_of_numbers_are_features(column):
    assert features_of(sorted_table().assign(b=column)) == [*OWN, "b"]


def test_a_trailing_comma_is_no_column(tmp_path):
    lines = sorted_table().to_csv(index=False).splitlines()
    for header in (lines[0], lines[0] + ","):
        (tmp_path / "t.csv").write_text("\n".join([header, *(line + "," for line in lines[1:])]))
        assert features_of(str(tmp_path / "t.csv")) == OWN


GOOD = "a,b,y\n" + "".join(f"{i * i % 13}.5,{i % 3},{i % 2}\n" for i in range(40))
TOTALS = f"{sum(i * i % 13 + 0.5 for i in range(40))},39,20\n"
REFUSED = {
    "a field more in every row": (GOOD.replace("\n", ",0\n").replace("y,0", "y"), r"line 2: it has 4 fields.*has 3"),
    "a field more in a row": (GOOD + "1,2,3,4\n", r"line 42: it has 4 fields, and the header has 3"),
    "a field more in front": (GOOD.replace("\n", "\n7,").removesuffix("7,"), r"line 2: it has 4 fields"),
    "no header": (GOOD.partition("\n")[2], r"line 1: the names of the columns are numbers \(0\.5, 0, 0\)"),
    "no header, words": ("39,State,7,yes\n50,Self,8,no\n" * 20, r"line 1: the names of the columns are numbers"),
    "semicolons": (GOOD.replace(",", ";"), "separated by ';', not by ','"),
    "semicolons, a comma in a name": (GOOD.replace(",", ";").replace("b", "b (c,d)"), "separated by ';'"),
    "tabs": (GOOD.replace(",", "\t"), r"separated by '\\t'"),
    "a name twice": (GOOD.replace("b", "a"), "several columns have the name 'a'"),
    "totals": (
        GOOD + TOTALS,
        "last row of the train table is the sum of the others",
    ),
    "prices": (GOOD.replace(".5,", ".5$,"), r"'a' of the train table is text, because its numbers have signs.*1\.5\$"),
    "blanks in numbers": (GOOD.replace(".5,", " 100,"), r"blanks within them, such as '1 100'"),
    "percentages": (GOOD.replace(".5,", ".5 %,"), r"such as '1\.5 %'"),
    "Latin 1": (GOOD.encode() + "é,1,0\n".encode("latin-1"), "line 42: byte 1 of the line is 0xe9.*CP1252"),
    "UTF-16": (GOOD.encode("utf-16"), "line 1: byte 1 of the line is 0xff.*UTF-16"),
    "a NUL": (GOOD.replace("4.5", "4\0"), r"line 4: byte 2 of the line is 0x00.*holds a NUL"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_would_be_read_as_something_else_are_refused_by_line(name, tmp_path):
    content, message = REFUSED[name]
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        module(str(path)).setup()


def test_files_that_look_odd_but_are_not_are_read(tmp_path):
    path = tmp_path / "t.csv"
    pixels = pd.DataFrame(np.random.default_rng(0).integers(0, 9, (40, 6)))  # named 0, 1, ...
    pixels.assign(y=np.arange(40) % 2).to_csv(path, index=False)
    assert features_of(str(path)) == ["0", "1", "2", "3", "4", "5"]
    pixels.to_csv(path, index=False)
    assert list(read_table(path)) == ["0", "1", "2", "3", "4", "5"]
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert features_of(str(path)) == ["a", "b"]
    years = pixels.set_axis([str(1990 + 5 * i) for i in range(6)], axis=1).assign(y=np.arange(40) % 2)
    years.to_csv(path, index=False)
    assert features_of(str(path)) == list(years.columns[:-1])
    path.write_text('"a\nname",y\n' + "".join(f"{i % 7},{i % 2}\n" for i in range(40)))
    assert features_of(str(path)) == ["a\nname"]


def test_columns_of_bytes_are_refused(tmp_path):
    path = tmp_path / "t.parquet"
    sorted_table().assign(blob=[b"\x00\xff"] * ROWS).to_parquet(path)
    with pytest.raises(DataError, match=r"'blob' holds bytes.*str\.decode"):
        module(str(path)).setup()
    with pytest.raises(DataError, match=r"'blob' holds bytes.*str\.decode"):  # as Parquet's dictionaries are read
        module(sorted_table().assign(blob=pd.Categorical([b"a", b"b"] * (ROWS // 2)))).setup()


def test_a_column_of_weights_is_no_feature_and_counts_everywhere():
    table = pd.DataFrame({"a": [0.5, 2.0, 1.0] * 4, "y": [0, 1] * 6, "w": [1, 3] * 5 + [2, 4]})
    data = TabularDataModule(
        table,
        columns=Columns("y", weight="w"),
        splits=Splits(test_fraction=0.5, val_fraction=0.5),
        batches=UniformSampling(2),
    )
    data.setup("fit")
    assert not [name for name in data.feature_names if name.startswith("w")]
    for name, loader in data.evaluation_loaders().items():
        (batch,) = loader
        assert batch["weight"].mean() == pytest.approx(1.0)
        assert torch.equal(batch["weight"], data.tables[name].columns["sample_weight"])
    assert data.sampling()["target"].plan.population().sum() == pytest.approx(data.num_train)


@pytest.mark.parametrize("weights", [[1, -1], [1, np.inf], [1, "much"], [0, 0], [1, None]])
def test_weights_must_be_numbers_that_count(weights):
    table = pd.DataFrame({"a": range(8), "y": [0, 1] * 4, "w": weights * 4})
    with pytest.raises(DataError, match="weight"):
        TabularDataModule(table, columns=Columns("y", weight="w"), splits=Splits(test_fraction=0.5)).setup("fit")


def test_a_report_of_groups_leaves_out_rows_of_none():
    frame = sorted_table().assign(sex=["f", "m", None, "m"] * (ROWS // 4))
    data = TabularDataModule(frame, columns=Columns("y", sensitive="sex"), splits=Splits(test_fraction=0.25))
    data.setup()
    head, *lines = data.group_report().splitlines()
    assert head.split() == ["group", "train", "test", "y=1"]
    assert [line.split()[0] for line in lines] == ["f", "m"]


def test_a_column_may_be_called_self():
    frame = sorted_table().rename(columns={"a": "self"}).astype({"self": str})
    assert features_of(frame, encoding=Encoding(numeric=["self"]))[0] == "self"


def test_durations_and_numbers_of_arrow_are_read():
    days = pd.Series(pd.to_timedelta(np.arange(ROWS) % 3, unit="D"))
    amounts = pd.Series(np.arange(ROWS) % 4, dtype=pd.ArrowDtype(pa.int64()))
    frame = sorted_table()[["a", "y"]].assign(
        days=days,
        arrow=days.astype(pd.ArrowDtype(pa.duration("us"))),
        amount=amounts,
        large=amounts.astype("uint64"),
    )
    found = features_of(frame)
    assert [sum(name.startswith(f"{column}=") for name in found) for column in ("days", "arrow")] == [3, 3]
    assert {"a", "amount", "large"} < set(found)
    assert "days" in features_of(frame, encoding=Encoding(numeric=["days"]))
