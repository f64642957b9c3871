"""Data modules of tables with groups: splits, pooled tables, features, labels and checkpoints."""

import logging
import sys
from collections import Counter

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningCLI

from fcco_lightning.data import Columns, Encoding, Groups, Splits
from fcco_lightning.data.datamodules import TabularDataModule
from fcco_lightning.data.grouping import GroupBy
from fcco_lightning.errors import DataError
from tests.components import TABLE, composed
from tests.conftest import DATA_FOLDER

BY = ["sex", {"column": "age", "bins": [30, 45]}, "y"]
COMMON = {"label": "y", "positive": "yes", "group_by": BY, "test_fraction": 0.2, "groups_per_batch": 4}


def make_frame(rows=600, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows),
            "id": np.arange(rows),
            "age": rng.integers(18, 70, rows),
            "sex": rng.choice(["M", "F"], rows),
            "y": rng.choice(["no", "yes"], rows, p=[0.7, 0.3]),
        }
    )


def make(stage=None, **changes):
    arguments = {"train": make_frame(), "samples_per_group": 3, **COMMON, **changes}
    module = TabularDataModule(**composed(arguments, TABLE))
    module.setup(stage)
    return module


def name_of(row):
    age = "<=30" if row.age <= 30 else "(30,45]" if row.age <= 45 else ">45"
    return f"sex={row.sex}, age={age}, y={row.y}"


def test_rows_keep_their_label_and_group_through_splitting_and_encoding():
    frame = make_frame()
    module = make(val_fraction=0.25, quantiles=None, categorical=["id"])  # one feature per id of the training split
    names = frame.apply(name_of, axis=1)
    assert sorted(module.group_names) == sorted(set(names))
    ids = [(i, int(name[3:])) for i, name in enumerate(module.feature_names) if name.startswith("id=")]
    columns = module.tables["train"].columns
    assert columns["x"].dtype == torch.float32
    assert [columns[name].dtype for name in ("y", "group", "index")] == [torch.int64] * 3
    rows = torch.tensor([number for _, number in ids])[columns["x"][:, [i for i, _ in ids]].argmax(dim=1)]
    assert len(set(rows.tolist())) == module.num_train
    assert [module.group_names[g] for g in columns["group"]] == names[rows.numpy()].tolist()
    assert [module.class_names[y] for y in columns["y"]] == frame["y"][rows.numpy()].tolist()
    assert module.class_names == ["no", "yes"]
    assert {name: len(module.tables[name]) for name in module.tables} == {
        name: int(sizes.sum()) for name, sizes in module.group_sizes.items()
    }
    for g, name in enumerate(module.group_names):  # each group is split with the given fractions
        total = (names == name).sum()
        test = round(0.2 * total)
        val = round(0.25 * (total - test))
        assert [int(module.group_sizes[s][g]) for s in ("train", "val", "test")] == [total - test - val, val, test]


def test_pooled_tables_count_before_groups_are_decided():
    frame = make_frame()
    first, second, third = frame[:200], frame[200:500], frame[500:]
    whole, pooled = make(min_size=40), make(train=first, pool=[second, third[third.columns[::-1]]], min_size=40)
    assert pooled.state_dict()["train_split"] == whole.state_dict()["train_split"]
    assert pooled.dropped == whole.dropped
    counts = Counter(frame.apply(name_of, axis=1))
    assert whole.dropped == {"train": sum(count for count in counts.values() if count < 40)}
    assert set(whole.group_names) == {name for name, count in counts.items() if count >= 40}
    assert whole.dropped["train"] > 0


def test_a_test_table_of_its_own(recwarn):
    train, test = make_frame(), make_frame(80, seed=1)
    alone = make(train=train, test=test, test_fraction=None, min_size=40)
    names = test.apply(name_of, axis=1)
    known = names.isin(alone.group_names)
    assert alone.dropped["test"] == (~known).sum() > 0
    assert [alone.group_names[g] for g in alone.tables["test"].columns["group"]] == names[known].tolist()
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"test split has no rows of 6 of the 12 groups: \['sex=F, age=\(30,45\], y=no"
    ):
        lacking = make(train=train, test=test[test["sex"] == "M"], test_fraction=None)
    assert (lacking.group_sizes["test"] == 0).sum() == 6
    assert sum(len(batch["index"]) for batch in lacking.test_dataloader()) == len(lacking.tables["test"])
    assert len(make(train=train, test=test, test_fraction=None, small="merge", min_size=40).tables["test"]) == 80


def test_features():
    assert make().feature_names == ["a", "age", "sex=F", "sex=M"]
    assert make(use_group_columns=False, drop=["id"]).feature_names == ["a"]
    x = make(quantiles=5).tables["test"].columns["x"]
    assert x.unique().tolist() == [0, 1]
    assert x.shape[1] == 2 * 5 + 2


def test_labels():
    assert make(positive="no").class_names == ["yes", "no"]
    frame = make_frame().assign(y=np.tile([10, 2, 3], 200))
    module = make(train=frame, positive=None, group_by=["sex"], groups_per_batch=2)
    assert (module.class_names, module.num_classes) == (["2", "3", "10"], 3)
    counts = sum(torch.bincount(table.columns["y"]) for table in module.tables.values())
    assert counts.tolist() == [200, 200, 200]
    named = make(train=frame.assign(y=frame["y"].map({10: "b", 2: "c", 3: "a"})), positive=None, group_by=["sex"])
    assert named.class_names == ["a", "b", "c"]


@pytest.mark.parametrize("change", [{"split_seed": 3}, {"min_size": 40}, {"quantiles": 3}, {"group_by": ["sex", "y"]}])
def test_a_checkpoint_of_other_rows_or_groups_is_refused(change, tmp_path):
    torch.save(make().state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    make().load_state_dict(state)
    with pytest.raises(DataError, match=r"another training split.*(groups: 12 there|contents or the order of|here)"):
        make(**change).load_state_dict(state)
    late = TabularDataModule(**composed({"train": make_frame(), **COMMON, **change}, TABLE))
    late.load_state_dict(state)
    if "quantiles" in change:  # an encoder loaded before the fit brings its settings along
        late.setup()
        assert late.identity()["train_split"] == state["train_split"]
    else:
        with pytest.raises(DataError, match="another training split"):
            late.setup()


def test_identity_tells_settings_apart():
    settings = [
        {},
        {"seed": 1},
        {"samples_per_group": 2},
        {"replacement": True},
        {"batch_size": 12},
        {"num_batches": 3},
    ]
    identities = [repr(make(**change).identity()) for change in settings]
    assert len(set(identities)) == len(settings)
    assert identities[0] == repr(make().identity())


def test_report(caplog):
    with caplog.at_level(logging.INFO):
        module = make("fit", min_size=40)
        module.setup("fit")
    (message,) = [record.getMessage() for record in caplog.records if "groups" in record.getMessage()]
    sizes = module.group_sizes["train"]
    assert f"{module.num_groups} groups with {module.num_train} training rows" in message
    assert f"smallest {sizes.min()} ({module.group_names[int(sizes.argmin())]})" in message
    assert f"{module.dropped['train']} rows of no group dropped" in message
    head, *lines = module.group_report().splitlines()
    assert head.split() == ["group", "train", "test", "y=yes"]
    assert len({len(line) for line in [head, *lines]}) == 1
    for g, line in enumerate(lines):
        assert line.startswith(module.group_names[g])
        share = "100.0%" if module.group_names[g].endswith("y=yes") else "0.0%"
        assert line.split()[-3:] == [str(int(sizes[g])), str(int(module.group_sizes["test"][g])), share]


def test_hub_data_are_downloaded_before_every_process_reads_them(monkeypatch):
    frame, asked = make_frame(), []
    table = datasets.Dataset.from_pandas(frame)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: asked.append((name, split)) or table)
    source = "owner/name:half"
    module = TabularDataModule(**composed({"train": source, "pool": [source], "samples_per_group": 3, **COMMON}, TABLE))
    module.prepare_data()
    assert asked == [("owner/name", "half")] * 2
    module.setup()
    assert module.identity() == make(pool=[frame]).identity()


def test_rejects_tables():
    frame = make_frame()
    with pytest.raises(DataError, match=r"label='y' must have at least two classes, .* it has 1: \['no'\]"):
        make(train=frame.assign(y="no"), positive=None)
    with pytest.raises(DataError, match=r"No feature column is left in the train table"):
        make(use_group_columns=False, drop=["a", "id"])
    with pytest.raises(DataError, match="No row of the test table belongs to"):
        make(test=frame.assign(sex="X"), test_fraction=None)
    with pytest.raises(DataError, match=r"is not a column of pool\[0\] table"):
        make(pool=[frame.drop(columns="a")])
    with pytest.raises(DataError, match=r"Column 'a' is float64 in train but .* in pool\[1\]"):
        make(pool=[frame, frame.assign(a="text")])
    lonely = pd.concat([frame, frame[:1].assign(sex="X")])
    with pytest.raises(DataError, match=r"test_fraction=0\.2 .* group 'sex=X.* has 1\. Raise min_size"):
        make(train=lonely)
    assert make(train=lonely, min_size=2).dropped == {"train": 1}
    rare = frame.assign(y=["yes", *["no"] * 599])
    with pytest.raises(DataError, match=r"train split has no rows of class 'yes'"):
        make(train=rare, group_by=["sex", "y"], min_size=2)


CONFIG = """
train: {table}
columns: {{label: y}}
splits: {{test_fraction: 0.2}}
groups:
  by:
    - sex
    - {{column: age, bins: [30, 45]}}
    - column: code
      values: {{1: one, "2": two}}
      other: more
"""
BY_CONFIG = [
    "sex",
    GroupBy("age", bins=[30.0, 45.0]),
    GroupBy("code", values={1: "one", "2": "two"}, other="more"),
]


@pytest.fixture
def config(tmp_path):
    frame = make_frame().assign(code=np.tile([1, 2, 3, 4], 150))
    frame.to_csv(tmp_path / "t.csv", index=False)
    return yaml.safe_load(CONFIG.format(table=tmp_path / "t.csv"))


def codes_of(module):
    return {name.split("code=")[1] for name in module.group_names}


@pytest.mark.parametrize("subclass", [False, True])
def test_the_command_line_builds_it(config, subclass, tmp_path, monkeypatch):
    path = tmp_path / "c.yaml"
    data = {"class_path": "fcco_lightning.TabularDataModule", "init_args": config} if subclass else config
    path.write_text(yaml.safe_dump({"seed_everything": False, "data": data}))
    monkeypatch.setattr(sys, "argv", ["fit.py", f"--config={path}", "--trainer.logger=false"])
    arguments = {"run": False, "save_config_callback": None}
    kind = None if subclass else TabularDataModule
    cli = LightningCLI(LightningModule, kind, subclass_mode_data=subclass, **arguments)
    assert cli.datamodule.grouping.by == [GroupBy.of(part) for part in BY_CONFIG]
    cli.datamodule.setup()
    assert codes_of(cli.datamodule) == {"one", "two", "more"}
    again = yaml.safe_load(cli.parser.dump(cli.config))["data"]  # what is saved beside a run builds the same
    path.write_text(yaml.safe_dump({"seed_everything": False, "data": again}))
    second = LightningCLI(LightningModule, kind, subclass_mode_data=subclass, **arguments)
    assert second.datamodule.grouping.by == cli.datamodule.grouping.by


def test_group_by_on_the_command_line_and_in_plain_mappings(config, capsys):
    parser = ArgumentParser()
    parser.add_class_arguments(TabularDataModule, "data")
    required = [f"--data.train={config['train']}", "--data.columns.label=y", "--data.splits.test_fraction=0.2"]
    parsed = parser.parse_args([*required, "--data.groups.by=[sex, {column: age, bins: [33]}]"])
    module = parser.instantiate(parsed).data
    assert module.grouping.by == [GroupBy("sex"), GroupBy("age", bins=[33.0])]
    assert Groups(config["groups"]["by"]).parts == [GroupBy.of(part) for part in BY_CONFIG]
    for wrong in ([{"column": "age", "bin": [33]}], [{"bins": [33]}]):
        with pytest.raises(SystemExit):
            parser.parse_object({"data": {**config, "groups": {"by": wrong}}})
        assert "data.groups" in capsys.readouterr().err


@pytest.mark.skipif(not DATA_FOLDER.is_dir(), reason=f"no benchmark data in {DATA_FOLDER} (set FCCO_DATA)")
def test_adult_has_83_groups():
    module = TabularDataModule(
        train=str(DATA_FOLDER / "adult_train.csv"),
        pool=[str(DATA_FOLDER / "adult_test.csv")],
        columns=Columns("income", positive=">50K"),
        groups=Groups(
            [
                "income",
                GroupBy("race", values={"White": "white", "Black": "black"}, other="other"),
                "sex",
                GroupBy("age", bins=[30, 45]),
                GroupBy("marital-status", values={"Never-married": "single"}, other="not single"),
                GroupBy("education-num", bins=[9]),
            ],
            min_size=50,
        ),
        splits=Splits(test_fraction=0.2, val_fraction=0.2),
        encoding=Encoding(quantiles=5),
    )
    module.setup("fit")
    raw = pd.concat([pd.read_csv(DATA_FOLDER / f"adult_{part}.csv") for part in ("train", "test")])
    assert len(raw) == 48_842
    counts = Counter(
        zip(
            raw["income"],
            np.where(raw["race"].isin(["White", "Black"]), raw["race"], "other"),
            raw["sex"],
            (raw["age"] > 30).astype(int) + (raw["age"] > 45),
            raw["marital-status"] == "Never-married",
            raw["education-num"] > 9,
            strict=True,
        )
    )
    kept = sorted(count for count in counts.values() if count >= 50)
    assert len(kept) == module.num_groups == 83
    assert sorted(sum(module.group_sizes.values()).tolist()) == kept
    assert module.dropped == {"train": 48_842 - sum(kept)} == {"train": 832}
    x = module.tables["train"].columns["x"]
    assert x.unique().tolist() == [0, 1]
    assert module.num_features == 116
