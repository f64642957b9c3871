"""Tables with several label columns, and batches of single labels drawn from them."""

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer

from fcco_lightning import (
    SOX,
    Columns,
    ConfigError,
    DataError,
    FCCOModule,
    LabelSampling,
    MeanAveragePrecision,
    Splits,
    TabularDataModule,
    TabularMLP,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.data import BalancedSampling, Groups
from tests.conftest import QUIET
from tests.contracts.test_datamodules import quiet

NAMES = ["rare", "common", "half"]


def frame(rows=300):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4))
    values = {
        name: x[:, k] + rng.normal(size=rows) > cut for k, (name, cut) in enumerate(zip(NAMES, (2, -1, 0), strict=True))
    }
    return pd.DataFrame(x, columns=list("abcd")).assign(**{k: np.where(v, "yes", "no") for k, v in values.items()})


def data(batches, **columns):
    module = TabularDataModule(
        frame(),
        columns=Columns(**{"label": NAMES, "positive": "yes", **columns}),
        splits=Splits(test_fraction=0.2),
        batches=batches,
    )
    module.setup("fit")
    return module


def test_labels_are_columns_of_y():
    module = data(UniformSampling(16))
    batch = next(iter(module.train_dataloader()))
    assert batch["y"].shape == (16, 3)
    assert batch["y"].dtype == torch.int64
    assert batch["x"].shape == (16, 4)  # labels are no features
    assert module.label_names == NAMES
    assert module.num_train == 240
    whole = module.tables["train"].columns["y"].double().mean(0)
    expected = (frame()[NAMES] == "yes").mean()
    assert whole.tolist() == pytest.approx(expected.tolist(), abs=0.05)


def test_tensors_know_the_number_of_pairs_that_batches_of_labels_are_drawn_from():
    split = {"x": torch.randn(24, 2), "y": (torch.arange(72).reshape(24, 3) % 4 == 0).long()}
    data = TensorDataModule({"train": split, "test": split}, batches=LabelSampling(3, 2, 2))
    assert data.num_train == 72
    Trainer(max_epochs=1, **QUIET).fit(FCCOModule(TabularMLP([], out_features=3), MeanAveragePrecision()), data)


def test_batches_of_labels_hold_the_samples_of_the_table():
    module = data(LabelSampling(2, 3, 5))
    table, count = module.tables["train"].columns, 0
    assert module.num_train == 3 * 240
    for batch in module.train_dataloader():
        count += 1
        assert set(batch["task"].bincount(minlength=3).tolist()) == {0, 8}
        for t in batch["task"].unique():
            assert batch["y"][batch["task"] == t].sum() == 3
        sample = batch["index"] // 3
        assert torch.equal(batch["x"], table["x"][sample])
        assert torch.equal(batch["y"], table["y"][sample, batch["task"]])
    assert count == int(table["y"].sum()) // 6
    (drawn,) = module.sampling().values()
    assert drawn.columns["y"].shape == drawn.columns["task"].shape == (720,)
    assert next(iter(module.val_dataloader()["train"]))["y"].shape == (240, 3)


def test_labels_that_are_not_known_are_not_drawn():
    module = data(LabelSampling(None, 2, 2, missing=-1))
    y = module.tables["train"].columns["y"]
    y[::2, 1] = -1
    module._drawn_from = None
    assert module.num_train == 720 - 120
    for batch in module.train_dataloader():
        assert set(batch["y"].tolist()) == {0, 1}


@pytest.mark.parametrize("batches", [UniformSampling(32), LabelSampling(2, 4, 8)])
def test_mean_average_precision_is_trained(batches, tmp_path):
    torch.manual_seed(0)
    module = FCCOModule(
        TabularMLP(hidden=[], out_features=3),
        MeanAveragePrecision(),
        algorithm=SOX(gamma=0.5),
        optimizer=lambda params: torch.optim.Adam(params, lr=0.02),
    )
    trainer, table = quiet(tmp_path, max_epochs=10), data(batches)
    trainer.fit(module, table)
    figures = trainer.test(module, table, verbose=False)[0]
    assert figures["test_average_precision"] > 0.6
    assert {f"test_auc/{name}" for name in NAMES} <= figures.keys()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"positive": None}, "columns.positive the value that becomes 1 in all of them"),
        ({"label": []}, "must name at least one column"),
        ({"label": ["rare", "rare"]}, "names a column twice"),
    ],
)
def test_several_labels_need_a_positive_value(columns, message):
    with pytest.raises(ConfigError, match=message):
        Columns(**{"label": NAMES, "positive": "yes", **columns})


def test_what_does_not_fit_several_labels_is_refused():
    with pytest.raises(DataError, match="positive='maybe' is not a value of column 'rare'"):
        data(UniformSampling(16), positive="maybe")
    with pytest.raises(DataError, match=r"need y of shape \(n, T\), but the training table has y of shape \(240,\)"):
        data(LabelSampling(), label="half").train_dataloader()
    with pytest.raises(ConfigError, match="several labels, but batches of groups are made for one"):
        TabularDataModule(
            frame(), columns=Columns(NAMES, "yes"), groups=Groups(by=["half"]), splits=Splits(test_fraction=0.2)
        )
    with pytest.raises(DataError, match="one number of the column 'y' for every row"):
        data(BalancedSampling(16)).train_dataloader()


def with_holes(mark):
    """A table of three labels, some of which are not known, and the cells that are not."""
    table, holes = frame(), np.random.default_rng(1).random((300, 3)) < 0.2
    table[NAMES] = table[NAMES].astype(object).mask(pd.DataFrame(holes, columns=NAMES), mark)
    return table, holes


@pytest.mark.parametrize(("mark", "missing"), [(-1, -1), (-1, [-1, ""]), (np.nan, ""), ("?", ["", "?"])])
@pytest.mark.parametrize("positive", ["yes", ["yes"]])
def test_labels_that_a_table_does_not_know(mark, missing, positive):
    table, holes = with_holes(mark)
    columns = Columns(label=NAMES, positive=positive, missing=missing)
    module = TabularDataModule(table, columns=columns, test=table, splits=Splits(), batches=UniformSampling(16))
    module.setup("fit")
    expected = np.where(holes, -1, (frame()[NAMES] == "yes").to_numpy())
    assert np.array_equal(module.tables["train"].columns["y"].numpy(), expected)


def test_labels_that_nobody_says_are_not_known_are_refused_with_the_way_out():
    for mark, said in ((-1, "has 3: .*columns.missing"), (np.nan, "missing cells .*columns.missing")):
        module = TabularDataModule(with_holes(mark)[0], columns=Columns(NAMES, "yes"), splits=Splits(test_fraction=0.2))
        with pytest.raises(DataError, match=said):
            module.setup("fit")
    module = TabularDataModule(frame(), columns=Columns(NAMES, "yes"), test=with_holes("?")[0], splits=Splits())
    with pytest.raises(DataError, match=r"columns.label='rare' has classes \['\?'\] in the test table"):
        module.setup("fit")
    with pytest.raises(ConfigError, match=r"columns\.missing=-1 is for several labels"):
        Columns("rare", "yes", missing=-1)


def test_an_objective_must_be_told_of_labels_that_are_not_known(tmp_path):
    columns = Columns(NAMES, "yes", missing="")
    table = with_holes(np.nan)[0]
    module = TabularDataModule(table, columns=columns, test=table, splits=Splits(), batches=UniformSampling(50))
    with pytest.raises(DataError, match=r"got -1 .*set `missing`"):
        quiet(tmp_path, max_epochs=1).fit(FCCOModule(TabularMLP(out_features=3), MeanAveragePrecision()), module)
    told = FCCOModule(TabularMLP(out_features=3), MeanAveragePrecision(missing=-1))
    trainer = quiet(tmp_path, max_epochs=2)
    trainer.fit(told, module)
    assert 0 < trainer.test(told, module)[0]["test_average_precision/rare"] < 1
