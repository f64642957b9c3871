"""Sources of tables: files, frames, `datasets` and the hub give the same frame."""

import bz2
import csv
import gzip
import re
import time
from decimal import Decimal

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fcco_lightning.data import sources
from fcco_lightning.data.sources import is_hub_id, read_table, with_features
from fcco_lightning.data.text_files import separator
from fcco_lightning.errors import DataError

TABLE = {"age": [39, 50, 38], "job": ["cook", " smith ", "cook"]}
CLEAN = pd.DataFrame({"age": [39, 50, 38], "job": ["cook", "smith", "cook"]})


def every_source(tmp_path):
    frame = pd.DataFrame(TABLE)
    for name, sign in (("t.csv", ","), ("t.tsv", "\t"), ("t.csv.gz", ","), ("T.TSV.gz", "\t")):
        frame.to_csv(tmp_path / name, index=False, sep=sign)
    frame.to_parquet(tmp_path / "t.parquet")
    datasets.Dataset.from_dict(TABLE).save_to_disk(tmp_path / "saved")
    return {
        "csv": tmp_path / "t.csv",
        "csv as text": str(tmp_path / "t.csv"),
        "tabs": tmp_path / "t.tsv",
        "packed": tmp_path / "t.csv.gz",
        "packed tabs": tmp_path / "T.TSV.gz",
        "parquet": tmp_path / "t.parquet",
        "folder": tmp_path / "saved",
        "frame": frame.set_index(pd.Index([7, 8, 9])),
        "dict": TABLE,
        "dataset": datasets.Dataset.from_dict(TABLE),
        "public loader": datasets.load_dataset(
            "csv", data_files=str(tmp_path / "t.csv"), split="train", cache_dir=str(tmp_path / "cache")
        ),
    }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # datasets 3.6 leaves its file open
def test_every_source_gives_the_same_frame(tmp_path):
    for name, source in every_source(tmp_path).items():
        frame = read_table(source)
        assert frame.astype({"job": object}).equals(CLEAN.astype({"job": object})), name


def test_decimals_of_a_data_base_are_numbers(tmp_path):
    frame = pd.DataFrame({"paid": [Decimal("1.50"), None, Decimal("3")]})
    frame.to_parquet(tmp_path / "t.parquet")
    for source in (frame, tmp_path / "t.parquet"):
        np.testing.assert_array_equal(read_table(source)["paid"], np.array([1.5, np.nan, 3.0]))


def test_the_callers_frame_is_not_changed():
    frame = pd.DataFrame(TABLE)
    read_table(frame)
    assert frame["job"][1] == " smith "


def test_a_changed_file_is_read_anew_and_quickly(tmp_path):
    path = tmp_path / "t.csv"
    pd.DataFrame({"a": range(32_000), "b": "some text"}).to_csv(path, index=False)
    started = time.perf_counter()
    assert len(read_table(path)) == 32_000
    assert time.perf_counter() - started < 2
    path.write_text("a,b\n1,2\n")
    assert len(read_table(path)) == 1


@pytest.mark.parametrize("name", ["t.csv", "t.tsv.gz"])
def test_cells_stay_as_they_are_written(tmp_path, name):
    path, sign = tmp_path / name, separator(tmp_path / name)
    pd.DataFrame({"id": ["007", "NA"], "a,b": [1, 2]}).to_csv(path, sep=sign, index=False)
    assert read_table(path, texts=["id"]).to_dict("list") == {"id": ["007", "NA"], "a,b": [1, 2]}


@pytest.mark.parametrize(("name", "sign"), [("t.csv", "\t"), ("t.tsv.gz", ",")])
def test_a_table_of_another_sign_than_its_name_says_is_to_be_renamed(tmp_path, name, sign):
    pd.DataFrame({"a": [7, 8], "b": [1, 2]}).to_csv(tmp_path / name, sep=sign, index=False)
    with pytest.raises(DataError, match=rf"separated by {re.escape(repr(sign))}, not by .*Call it \.[ct]sv\."):
        read_table(tmp_path / name)


def test_hub_ids():
    assert is_hub_id("scikit-learn/adult-census-income")
    assert is_hub_id("owner/name:validation[:10%]")
    assert not any(
        is_hub_id(source) for source in ["data/adult.csv", "data/adult.tsv.gz", "adult", "a/b/c", 3, "/etc/x", "../up"]
    )


def test_hub_data_comes_from_load_dataset(monkeypatch):
    asked = []

    def load(name, split):
        asked.append((name, split))
        return datasets.Dataset.from_dict(TABLE)

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert len(read_table("owner/name")) == len(read_table("owner/name:test")) == 3
    assert asked == [("owner/name", "train"), ("owner/name", "test")]


def test_unreachable_hub_names_all_readings_of_the_text(monkeypatch):
    def load(name, split):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError, match=r"train='owner/name:test' is neither a file.*'owner/name'.*'test'.*no route"):
        read_table("owner/name:test", "train")


def test_missing_file_names_argument_path_folder_and_what_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        read_table("data/adult.csv", "train")
    for part in ("train='data/adult.csv'", str(tmp_path), ".parquet", "owner/name", "DataFrame"):
        assert part in str(caught.value)


def test_unreadable_sources(tmp_path):
    (tmp_path / "bad.parquet").write_text("not parquet")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("a,b\n")
    for name in ("t.xlsx", "t.csv.zip", "t.csv.gz"):
        (tmp_path / name).write_text("x")
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(b"a\tb\n1\t2\n")[:-9])
    (tmp_path / "plain").mkdir()
    cases = {
        "bad.parquet": "not a readable parquet",
        "empty.csv": "is empty. It must hold a line with the names of the columns",
        "header.csv": r"train='.*header.csv' has no rows",
        "t.xlsx": r"unknown suffix '\.xlsx'\. Write it anew: pandas\.read_excel\(FILE\)\.to_csv\(NEW, index=False\)",
        "t.csv.zip": r"pandas\.read_csv\(FILE\)\.to_csv",
        "t.csv.gz": "is damaged, or not packed by gzip",
        "cut.tsv.gz": "is damaged, or not packed by gzip",
        "plain": "load_from_disk cannot read",
    }
    for name, message in cases.items():
        with pytest.raises(DataError, match=message):
            read_table(tmp_path / name, "train")
    with pytest.raises(DataError, match="train is a int"):
        read_table(3, "train")
    with pytest.raises(DataError, match="do not form a table"):
        read_table({"a": [1], "b": [1, 2]})
    both = datasets.DatasetDict({"train": datasets.Dataset.from_dict(TABLE), "test": datasets.Dataset.from_dict(TABLE)})
    with pytest.raises(DataError, match=r"several splits \['test', 'train'\]"):
        read_table(both)


def test_packed_tables_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    rows = {
        "t.csv.gz": (gzip.compress, b"a,y\n" + b"0,1\n" * 100_000),
        "t.svm.bz2": (bz2.compress, b"1 1:2\n" * 100_000),
    }
    for name, (pack, content) in rows.items():
        (tmp_path / name).write_bytes(pack(content))
        assert len(read_table(tmp_path / name, "train")) == 100_000  # small enough for any machine
    monkeypatch.setattr("fcco_lightning.data.text_files._MOST_UNPACKED", 1000)
    for name, (pack, content) in rows.items():
        with pytest.raises(DataError, match=rf"train='.*{name}' unpacks to more than 100 times its size.*unpack it"):
            read_table(tmp_path / name, "train")
        (tmp_path / name).write_bytes(pack(content[: content.find(b"\n", 500) + 1]))
        assert len(read_table(tmp_path / name, "train")) > 80
    (tmp_path / "cut.svm.bz2").write_bytes(bz2.compress(b"1 1:2\n" * 9)[:-9])
    with pytest.raises(DataError, match="is not a readable file of LIBSVM's format"):
        read_table(tmp_path / "cut.svm.bz2", "train")


LETOR = """2 qid:7 1:0.5 4:1 # first document
0 qid:7 4:2.5
1 qid:9 2:0 3:-1
"""


def test_files_of_letors_format(tmp_path):
    (tmp_path / "train.txt").write_text(LETOR)
    (tmp_path / "test.txt").write_text("1 qid:3 1:8 9:4\n")
    train = read_table(tmp_path / "train.txt")
    assert train.columns.tolist() == ["label", "qid", "f1", "f3", "f4"]  # f2 is 0 throughout
    assert train.to_numpy().tolist() == [[2, 7, 0.5, 0, 1], [0, 7, 0, 0, 2.5], [1, 9, 0, -1, 0]]
    test = with_features(read_table(tmp_path / "test.txt"), train.columns)
    assert test[train.columns].to_numpy().tolist() == [[1, 3, 8, 0, 0]]
    assert with_features(test, ["f7", "age"]).columns.tolist() == [*test.columns, "f7"]
    assert with_features(train.iloc[:, :3].copy(), ["f1"]).columns.tolist() == ["label", "qid", "f1"]


def test_files_of_libsvms_format(tmp_path):
    (tmp_path / "a.svm").write_text("-1 1:0.5\n+1 2:1\n")
    frame = read_table(tmp_path / "a.svm")
    assert frame.columns.tolist() == ["label", "f1", "f2"]
    assert frame["label"].tolist() == [-1, 1]
    (tmp_path / "a.bz2").write_bytes(bz2.compress(b"-1 1:0.5\n+1 2:1\n"))
    assert read_table(tmp_path / "a.bz2").equals(frame)
    (tmp_path / "bad.svm").write_text("some words\n")
    with pytest.raises(DataError, match="not a readable file of LIBSVM's format"):
        read_table(tmp_path / "bad.svm")


def test_features_that_do_not_fit_into_memory_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a.svm").write_text("1 1:0.5 7:2\n-1 2:1\n")
    monkeypatch.setattr(sources, "_memory", lambda: 100)
    with pytest.raises(DataError, match=r"2 rows and 3 features, 3 of them not 0.* TruncatedSVD"):
        read_table(tmp_path / "a.svm", "train")


def test_tables_that_come_with_scikit_learn():
    frame = read_table("sklearn:wine")
    assert frame.shape == (178, 14)
    assert set(frame["target"]) == {0, 1, 2}
    with pytest.raises(
        DataError, match=r"train='sklearn:boston': the tables that come with scikit-learn are \['breast"
    ):
        read_table("sklearn:boston", "train")


def test_columns_that_are_no_features_are_named(tmp_path):
    frame = pd.DataFrame({"a": [1, 2], 3: [3, 4]})
    assert list(read_table(frame, "train").columns) == ["a", "3"]
    with pytest.raises(DataError, match="several columns have the name 'a'"):
        read_table(frame.set_axis(["a", "a"], axis=1), "train")
    (tmp_path / "t.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match="several columns have the name 'a'"):
        read_table(tmp_path / "t.csv", "train")
    for cell in ([1, 2], np.zeros(2), {"k": 1}):
        with pytest.raises(DataError, match=f"the column 'b' holds a {type(cell).__name__} in a cell"):
            read_table(frame.assign(b=["x", cell]), "train")
    in_arrow = pd.Series([[1], [2]], dtype=pd.ArrowDtype(pa.list_(pa.int64())))
    with pytest.raises(DataError, match="the column 'b' holds a list in a cell"):
        read_table(frame.assign(b=in_arrow), "train")
    with pytest.raises(DataError, match=r"train=<DataFrame> has names of columns in 2 levels, such as \('a', 'mean'\)"):
        read_table(frame.set_axis(pd.MultiIndex.from_tuples([("a", "mean"), ("a", "max")]), axis=1), "train")
    with pytest.raises(DataError, match="the column 'b' holds complex numbers"):
        read_table(frame.assign(b=[1j, 2.0]), "train")


def test_a_text_may_be_of_any_length(tmp_path):
    path, limit = tmp_path / "t.csv", csv.field_size_limit()
    path.write_text(f"text,y\n{'word ' * 40_000},1\nshort,0\n")
    assert read_table(path)["text"].str.len().tolist() == [199_999, 5]
    path.write_text(f"text,y\nshort,0\n{'word ' * 40_000},1\none,two,3\n")
    with pytest.raises(DataError, match="line 4: it has 3 fields, and the header has 2"):
        read_table(path)
    assert csv.field_size_limit() == limit


def test_texts_lose_the_blanks_around_them_and_columns_their_types_never(tmp_path):
    columns = {
        "text": pd.Series([" a", "b\u3000", "\x1fc", None, "d"], dtype="str"),
        "plain": pd.Series(["a", "b", None, "c", "a"], dtype="str"),
        "nothing": pd.Series([None] * 5, dtype="str"),
        "object": pd.Series([1, " 1 ", None, True, 2.5], dtype=object),
        "kinds": pd.Series([" a", "b", "a", None, "b"], dtype="category"),
        "nullable": pd.Series([" a", "b", None, "a", "b"], dtype="string"),
    }
    read = read_table(pd.DataFrame(columns))
    for name, column in columns.items():
        expected = column.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
        pd.testing.assert_series_equal(read[name], expected, check_names=False)
