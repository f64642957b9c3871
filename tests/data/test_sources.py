import time

import datasets
import pandas as pd
import pytest

from fcco_lightning.data.sources import is_hub_id, read_table
from fcco_lightning.errors import DataError

TABLE = {"age": [39, 50, 38], "job": ["cook", " smith ", "cook"]}
CLEAN = pd.DataFrame({"age": [39, 50, 38], "job": ["cook", "smith", "cook"]})


def every_source(tmp_path):
    frame = pd.DataFrame(TABLE)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    datasets.Dataset.from_dict(TABLE).save_to_disk(tmp_path / "saved")
    return {
        "csv": tmp_path / "t.csv",
        "csv as text": str(tmp_path / "t.csv"),
        "parquet": tmp_path / "t.parquet",
        "folder": tmp_path / "saved",
        "frame": frame.set_index(pd.Index([7, 8, 9])),
        "dict": TABLE,
        "dataset": datasets.Dataset.from_dict(TABLE),
        "public loader": datasets.load_dataset(
            "csv", data_files=str(tmp_path / "t.csv"), split="train", cache_dir=str(tmp_path / "cache")
        ),
    }


def test_every_source_gives_the_same_frame(tmp_path):
    for name, source in every_source(tmp_path).items():
        frame = read_table(source)
        assert frame.astype({"job": object}).equals(CLEAN.astype({"job": object})), name


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


def test_hub_ids():
    assert is_hub_id("scikit-learn/adult-census-income")
    assert is_hub_id("owner/name:validation[:10%]")
    assert not any(is_hub_id(source) for source in ["data/adult.csv", "adult", "a/b/c", 3, "/etc/x", "../up"])


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
    (tmp_path / "t.xlsx").write_text("x")
    (tmp_path / "plain").mkdir()
    cases = {
        "bad.parquet": "not a readable parquet",
        "empty.csv": "not a readable csv",
        "header.csv": "no rows",
        "t.xlsx": r"unknown suffix '\.xlsx'",
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
