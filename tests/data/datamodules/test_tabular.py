"""Data modules of tables: sizes of known data sets, splits, encoding, checkpoints and refused tables."""

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning.data import Columns, Splits
from fcco_lightning.data.datamodules.tabular import TabularDataModule
from fcco_lightning.errors import ConfigError, DataError
from tests.components import TABLE, composed
from tests.conftest import DATA_FOLDER as DATA

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no benchmark data in {DATA} (set FCCO_DATA)")
ROLES = {"label": "y", "positive": 1, "sensitive": "sex", "favoured": "M"}
ADULT = {"label": "income", "positive": ">50K", "sensitive": "sex", "favoured": "Male", "use_sensitive": True}


def make_frame(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows),
            "sex": np.tile(["M", "F", "M", "F"], rows // 4),
            "y": np.tile([0, 0, 1, 1], rows // 4),
        }
    )


def make(**changes):
    flat = {"train": make_frame(), "test_fraction": 0.2, "batch_size": 8, **ROLES, **changes}
    module = TabularDataModule(**composed(flat, TABLE))
    module.setup()
    return module


@needs_data
def test_adult_has_the_published_sizes():
    module = TabularDataModule(
        str(DATA / "adult_train.csv"), columns=Columns(**ADULT), test=str(DATA / "adult_test.csv")
    )
    module.setup("fit")
    assert {name: (len(t), int(t.columns["y"].sum())) for name, t in module.tables.items()} == {
        "train": (32_561, 7_841),
        "test": (16_281, 3_846),
    }
    assert (module.class_names, module.group_names) == (["<=50K", ">50K"], ["Female", "Male"])
    raw = pd.read_csv(DATA / "adult_train.csv")
    assert module.num_features == len(pd.get_dummies(raw.drop(columns="income")).columns)
    x = module.tables["train"].columns["x"]
    assert x[:, module.feature_names.index("age")].std(correction=0).item() == pytest.approx(1, abs=1e-4)
    assert module.tables["train"].columns["group"].sum() == (raw["sex"] == "Male").sum()


@needs_data
def test_compas_is_split_by_seed():
    roles = {"label": "two-year-recid", "positive": 1, "sensitive": "race", "favoured": "Caucasian"}
    sizes = {}
    for seed in (0, 1):
        columns = Columns(**roles, drop=["decile-score"])
        module = TabularDataModule(DATA / "compas.csv", columns=columns, splits=Splits(0.2, seed=seed))
        module.setup()
        assert "decile-score" not in module.feature_names
        assert len(module.tables["train"]) + len(module.tables["test"]) == 6_167
        assert sum(int(t.columns["group"].sum()) for t in module.tables.values()) == 2_100
        sizes[seed] = module.state_dict()["train_split"]
    assert sizes[0]["rows"] == sizes[1]["rows"]
    assert sizes[0]["digest"] != sizes[1]["digest"]


def test_the_encoder_sees_the_training_split_only():
    module = make(val_fraction=0.25)
    assert {name: len(table) for name, table in module.tables.items()} == {"train": 120, "val": 40, "test": 40}
    train = module.tables["train"].columns["x"][:, 0]
    assert train.mean().item() == pytest.approx(0, abs=1e-6)
    assert abs(module.tables["test"].columns["x"][:, 0].mean().item()) > 1e-4


@pytest.mark.parametrize("change", [{"split_seed": 3}, {"train": make_frame(400)}, {"use_sensitive": True}])
def test_a_checkpoint_of_other_rows_is_refused(change):
    state = make().state_dict()
    with pytest.raises(DataError, match=r"What differs: .*(rows: 160 there, 320 here|contents or the order of)"):
        make(**change).load_state_dict(state)


@pytest.mark.parametrize("given", [{"test": make_frame(), "test_fraction": 0.2}, {"test_fraction": None}])
def test_exactly_one_source_of_test_rows(given):
    with pytest.raises(DataError, match=r"Exactly one of test .* got (both|neither)"):
        make(**given)


def test_training_rows_are_evaluated_unless_that_is_not_wanted():
    names = [make(val_fraction=0.25, eval_train=wanted).val_names for wanted in (True, False)]
    assert names == [["train", "val"], ["val"]]
    assert make(eval_train=False).val_names == ["train"]  # there is no other


def test_rejects_bad_tables():
    frame = make_frame()
    with pytest.raises(DataError, match="'a' of the train split has 1 NaN"):
        make(train=frame.assign(a=[np.nan, *frame["a"][1:]]), test=frame, test_fraction=None)
    with pytest.raises(DataError, match=r"test split has no rows in cell 'F x 1'"):
        make(test=frame[(frame["sex"] == "M") | (frame["y"] == 0)], test_fraction=None)
    with pytest.raises(DataError, match=r"classes \['no'\] in the test table.*They have \['0', '1'\]"):
        make(test=frame.assign(y=frame["y"].map({0: "no", 1: "1"})), test_fraction=None)
    with pytest.raises(DataError, match="batch_size=161 exceeds the 160 rows"):
        make(batch_size=161).train_dataloader()


def test_queries_are_kept_whole():
    frame = make_frame().assign(q=np.arange(200) // 10)
    module = TabularDataModule(
        train=frame,
        columns=Columns("y", target="number", extra={"query": "q"}, drop=["sex"]),
        splits=Splits(test_fraction=0.3, val_fraction=0.2, whole="query"),
    )
    module.setup()
    queries = {name: set(table.columns["query"].tolist()) for name, table in module.tables.items()}
    assert [len(queries[name]) for name in ("train", "val", "test")] == [11, 3, 6]
    assert set.union(*queries.values()) == set(range(20))


def test_what_is_kept_whole_must_come_with_the_batch():
    module = TabularDataModule(
        train=make_frame(), columns=Columns("y"), splits=Splits(test_fraction=0.3, whole="query")
    )
    with pytest.raises(ConfigError, match=r"splits.whole='query' must be one of .* extra: \{query: COLUMN\}"):
        module.setup()


def test_positives_are_removed_before_anything_is_split_off():
    frame = pd.DataFrame({"x": 2.0 * np.arange(1200), "label": np.where(np.arange(1200) < 1000, 2, 1)})

    def divided(**splits):
        splits = Splits(test_fraction=0.25, **splits)
        module = TabularDataModule(train=frame, columns=Columns("label", positive=2), splits=splits)
        module.setup()
        kept = {name: set(rows["x"]) for name, rows in module._rows.items()}
        return {name: torch.bincount(t.columns["y"]).tolist() for name, t in module.tables.items()}, kept

    assert divided()[0] == {"train": [150, 750], "test": [50, 250]}
    counts, kept = divided(remove_positives=0.98)
    assert counts == {"train": [150, 15], "test": [50, 5]}
    assert not kept["train"] & kept["test"]
    assert divided(remove_positives=0.98)[1] == kept != divided(remove_positives=0.98, seed=1)[1]
    assert max(kept["train"] | kept["test"]) == 2398  # by chance, not the first ones


def test_a_test_table_keeps_its_positives_and_wrong_shares_are_refused():
    frame = make_frame()
    columns = Columns("y", positive=1)
    module = TabularDataModule(frame, columns=columns, test=frame, splits=Splits(remove_positives=0.5))
    module.setup()
    train, test = (int(module.tables[name].columns["y"].sum()) for name in ("train", "test"))
    assert train == round(test / 2)
    for share in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=r"splits.remove_positives must lie in"):
            Splits(remove_positives=share)
    for wrong, message in [
        ({"columns": columns, "splits": Splits(0.2, remove_positives=0.9999)}, "leaves none of"),
        ({"columns": Columns("y", target="number"), "splits": Splits(0.2, remove_positives=0.5)}, "two classes"),
    ]:
        with pytest.raises(DataError, match=message):
            TabularDataModule(frame, **wrong).setup()


def test_pooled_files_of_libsvms_format_may_lack_features(tmp_path):
    rows = "".join(f"{1 if i % 2 else -1} 1:{i + 1} 3:{i % 3 + 1}\n" for i in range(20))
    (tmp_path / "a.svm").write_text(rows)
    (tmp_path / "b.svm").write_text("1 1:50\n-1 1:51\n")
    module = TabularDataModule(
        str(tmp_path / "a.svm"), pool=[str(tmp_path / "b.svm")], test=str(tmp_path / "b.svm"), columns=Columns("label")
    )
    module.setup()
    assert module.feature_names == ["f1", "f3"]
    assert len(module.tables["train"]) == 22
    assert torch.equal(module.tables["train"].columns["x"][-2:], module.tables["test"].columns["x"])


def write_codes(path, codes):
    """A table of codes, 20 rows of each, both sexes and labels among them."""
    rows = [{"code": code, "sex": "FM"[i % 2], "y": i // 2 % 2} for code in codes for i in range(20)]
    pd.DataFrame(rows).to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (["1", "01", "A1"], ["01"]),
        (["007", "A1"], ["007", ""]),
        (["1.0", "1", "x"], ["1.0", "1"]),
        (["true", "false", "unknown"], ["true", "false"]),
        (["1", "2", "3"], ["01", "A1"]),  # once numbers, called categories
    ],
)
def test_codes_are_the_same_in_a_table_where_all_look_like_numbers(train, test, tmp_path):
    sources = {"train": write_codes(tmp_path / "a.csv", train), "test": write_codes(tmp_path / "b.csv", test)}
    module = make(**sources, test_fraction=None, categorical=["code"], missing="impute")
    found = dict(zip(test, module.tables["test"].columns["x"].view(len(test), 20, -1)[:, 0], strict=True))
    for code, x in found.items():
        hot = [
            name for name in module.feature_names if name.startswith("code=") and x[module.feature_names.index(name)]
        ]
        known = {"01": "1"}.get(code, code) if "3" in train else code
        assert hot == ([f"code={known}"] if known in train else []), code


def test_pooled_codes_are_those_of_the_training_table(tmp_path):
    module = make(train=write_codes(tmp_path / "a.csv", ["01", "A1"]), pool=[write_codes(tmp_path / "b.csv", ["01"])])
    assert [name for name in module.feature_names if name.startswith("code=")] == ["code=01", "code=A1"]


@pytest.mark.parametrize("column", ["a", "job"])
def test_a_missing_cell_is_named_by_its_row_in_the_table(column):
    """The split is drawn from the table, and has other places."""
    frame = make_frame().assign(job=lambda table: table["a"].round().astype(str))
    frame.loc[77, column] = None
    with pytest.raises(DataError, match=rf"'{column}' of the train split has 1 .* cells \(first: row 77\)"):
        make(train=frame)


def in_regions(regions):
    size = len(regions)
    others = {"x": np.random.default_rng(0).normal(size=size), "sex": list("fm") * (size // 2)}
    return pd.DataFrame({**others, "region": regions, "y": [0, 0, 1, 1] * (size // 4)})


@pytest.mark.parametrize(("others", "count"), [(["1.0", "2.0", "3.0"], 24), ([1, 2, 4], 8), ([1, 2, None], 0)])
@pytest.mark.parametrize("sensitive", ["region", ["region", "sex"]])
def test_values_of_groups_that_training_does_not_have_are_said(others, count, sensitive, recwarn):
    """Figures of groups would leave all rows out, and constraints hold of nobody, where 1.0 is written for 1."""
    train, test = (in_regions(np.repeat(np.array(values, object), 8)) for values in ([1, 2, 3], others))
    data = TabularDataModule(train, columns=Columns("y", sensitive=sensitive), test=test)
    data.setup("fit")
    data.add_groups("group" if sensitive == "region" else "region")
    said = [str(one.message) for one in recwarn if "no group of training" in str(one.message)]
    assert len(said) == (count > 0)
    assert all(text.startswith(f"{count} of 24 rows of the test split have a value of 'region'") for text in said)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"label": "y"}}, r"columns must be a Columns, got .* Pass columns=Columns\(label='y'\)"),
        ({"columns": "y"}, r"columns must be a Columns, got 'y'"),
        ({"splits": {"test_fraction": 0.2}}, r"Pass splits=Splits\(test_fraction=0.2\)"),
        ({"splits": 0.2}, r"splits must be a Splits or ImageSplits, got 0.2"),
        ({"groups": {"by": ["sex"]}}, r"Pass groups=Groups\(by=\['sex'\]\)"),
        ({"encoding": {"missing": "impute"}}, r"Pass encoding=Encoding\(missing='impute'\)"),
    ],
)
def test_records_that_are_no_records_are_named(changes, message):
    """In a configuration a mapping is enough, so that in Python somebody will write one."""
    with pytest.raises(ConfigError, match=message):
        TabularDataModule(make_frame(), **{"columns": Columns("y"), "splits": Splits(0.2), **changes})
