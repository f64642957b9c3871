"""Sampling options of data modules and configurations."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from fcco_lightning import (
    ALEXR2,
    BalancedSampling,
    CellSampling,
    Columns,
    ConfigError,
    CrossEntropy,
    DataError,
    Engine,
    Groups,
    GroupSampling,
    HingePenalty,
    LabelSampling,
    MeanAtMost,
    SoftRate,
    Splits,
    TabularDataModule,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.algorithms.two_draws import dual_part
from fcco_lightning.data.batches import Drawn
from fcco_lightning.data.datamodules.base import INPUTS
from fcco_lightning.data.table import TensorTable
from fcco_lightning.engine import Outputs
from tests.contracts.test_datamodules import placed


def make_frame(rows=200):
    """A table ordered by class: the first three quarters are negative."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows),
            "sex": np.tile(["M", "F"], rows // 2),
            "query": np.arange(rows) // 10,
            "time": rng.random(rows),
            "y": np.repeat(["no", "yes"], [3 * rows // 4, rows // 4]),
        }
    )


def make(batches=None, columns=None, **changes):
    columns = columns or Columns("y", positive="yes", sensitive="sex", favoured="M", extra=["query", "time"])
    given = {} if batches is None else {"batches": batches}
    module = TabularDataModule(make_frame(), columns=columns, splits=Splits(0.2), **given, **changes)
    module.setup()
    return module


def batches_of(module):
    return [batch for batch, _, _ in iter(module.train_dataloader())]


SAMPLINGS = [
    UniformSampling(8, drop_last=False),
    UniformSampling(8, num_batches=3),
    BalancedSampling(8, positive_fraction=0.25),
    GroupSampling(2, 4),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_a_datamodule_says_what_its_batches_are_drawn_from(sampling):
    module = make(sampling, seed=4)
    placed(module, 0, 2)
    drawn = module.sampling()
    assert list(drawn) == ["target"]
    assert isinstance(drawn["target"], Drawn)
    columns, plan = drawn["target"].columns, drawn["target"].plan
    assert not drawn["target"].shorter
    assert (plan.batch_size, plan.seed, plan.num_rows) == (16, 4, module.num_train)
    assert set(columns) == {"y", "group", "query", "time", "index"}
    table = module.tables["train"].columns
    assert all(torch.equal(column, table[name]) for name, column in columns.items())
    assert all(map(torch.equal, plan.batches(1), sampling.plan(columns, 4, world_size=2).batches(1)))
    for batch, union in zip(module.train_dataloader(), plan.batches(0), strict=True):
        assert torch.equal(batch["index"], union[: len(union) // 2])


@pytest.mark.parametrize(
    ("sampling", "weighted"),
    [
        (UniformSampling(8), False),
        (BalancedSampling(8), True),
        (BalancedSampling(8, prevalence="batch"), False),
        (BalancedSampling(8, positive_fraction=0.25), False),  # as many as in the data
        (GroupSampling(2, 4, prevalence="data"), False),  # groups of one size
        (GroupSampling(2, 4), False),
    ],
    ids=repr,
)
def test_training_batches_carry_weights_where_there_are_any(sampling, weighted):
    module = make(sampling)
    weights = module.sampling()["target"].plan.weights()
    assert (weights is not None) == weighted
    for batch in module.train_dataloader():
        assert ("weight" in batch) == weighted
        if weighted:
            assert batch["weight"].dtype == torch.float32
            assert torch.equal(batch["weight"], weights[batch["index"]])
            assert batch["weight"].mean() == pytest.approx(1)
            # a quarter of the data is positive, half of the batch
            assert torch.equal(batch["weight"], torch.where(batch["y"] == 1, 0.5, 1.5))
    for loader in module.evaluation_loaders().values():
        assert all("weight" not in batch for batch in loader)


def test_groups_of_different_sizes_are_weighted_on_demand():
    module = TabularDataModule(
        make_frame(),
        columns=Columns("y", positive="yes"),
        groups=Groups(["y"]),
        splits=Splits(0.2),
        batches=GroupSampling(1, 4, prevalence="data"),
    )
    module.setup()
    batch = next(iter(module.train_dataloader()))
    assert torch.equal(batch["weight"], torch.where(batch["y"] == 1, 0.5, 1.5))  # N_g G / n


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_two_draws_are_two_parts(sampling):
    module = make(replace(sampling, two_draws=True), seed=2)
    assert list(module.sampling()) == ["target", "dual"]
    assert isinstance(module.train_dataloader(), CombinedLoader)
    found = batches_of(module)
    alone = list(make(sampling, seed=2).train_dataloader())
    assert len(found) == len(alone)
    plans = [drawn.plan for drawn in module.sampling().values()]
    for batch, single, *unions in zip(found, alone, *(plan.batches(0) for plan in plans), strict=True):
        assert list(batch) == ["target", "dual"]
        assert torch.equal(batch["target"]["index"], single["index"])
        assert [torch.equal(b["index"], union) for b, union in zip(batch.values(), unions, strict=True)] == [True, True]
    assert any(not torch.equal(b["target"]["index"], b["dual"]["index"]) for b in found)
    if isinstance(sampling, GroupSampling):
        assert all(torch.equal(b["target"]["group"], b["dual"]["group"]) for b in found)
    if isinstance(sampling, BalancedSampling):
        assert all(torch.equal(b["target"]["y"], b["dual"]["y"]) for b in found)


def test_second_draws_of_several_parts_are_those_that_algorithms_look_for():
    columns = {"x": torch.randn(40, 3), "y": torch.arange(40) % 2}
    module = TensorDataModule(
        {"train": columns, "test": columns},
        {"protected": columns},
        batches=UniformSampling(8, two_draws=True),
        other_batches={"protected": GroupSampling(2, 2, column="y", two_draws=True)},
    )
    module.setup()
    assert list(module.sampling()) == ["target", "dual", "protected", "dual_protected"]
    batch, network, algorithm = batches_of(module)[0], torch.nn.Linear(3, 1), ALEXR2(K=1, jacobian="part")
    limit = MeanAtMost(SoftRate(), 0.1, part="protected")
    problem = algorithm.pose(CrossEntropy(), [limit], HingePenalty(), num_samples=40, sampling=module.sampling())
    Engine(network, problem, algorithm).train_batch(batch, torch.optim.SGD(network.parameters(), lr=0.1))
    second = dual_part(Outputs(batch, batch, None, None, {})).columns["protected"]
    assert torch.equal(second["index"], batch["dual_protected"]["index"])


def test_a_table_without_groups():
    module = make(columns=Columns("y", positive="yes"))
    assert module.group_names == []
    batch = next(iter(module.train_dataloader()))
    assert set(batch) == {"x", "y", "index"}
    for loader in module.evaluation_loaders().values():
        assert all(set(batch) == {"x", "y", "index"} for batch in loader)
    with pytest.raises(ConfigError, match=r"drawn by groups, but the training table has no .* column 'group'.*Uniform"):
        make(GroupSampling(2, 2), columns=Columns("y", positive="yes")).train_dataloader()


def test_a_number_as_label_with_further_columns():
    module = make(columns=Columns("a", target="number", drop=["y"], extra={"query": "query", "months": "time"}))
    batch = next(iter(module.train_dataloader()))
    assert {name: column.dtype for name, column in batch.items()} == {
        "x": torch.float32,
        "y": torch.float32,
        "query": torch.int64,
        "months": torch.float32,
        "index": torch.int64,
    }
    frame = make_frame()
    train = module.tables["train"].columns
    labels = dict(zip(frame["time"].astype(np.float32).tolist(), frame["a"].astype(np.float32).tolist(), strict=True))
    assert [labels[time] for time in train["months"].tolist()] == train["y"].tolist()
    assert module.feature_names == ["sex=F", "sex=M"]
    assert not INPUTS & set(module.sampling()["target"].columns)
    assert module.state_dict()["train_split"] == make(columns=module.columns).state_dict()["train_split"]
    with pytest.raises(ConfigError, match="drawn by classes, but the training table has no whole numbers in"):
        make(BalancedSampling(8), columns=module.columns).train_dataloader()


def test_arguments_out_of_range():
    for make_one, name in [
        (lambda: UniformSampling(copies=0), "copies must be a whole number >= 1"),
        (lambda: UniformSampling(num_batches="auto"), "num_batches must be a whole number >= 1"),
        (lambda: GroupSampling("all"), "groups_per_batch must be a whole number >= 1"),
        (lambda: BalancedSampling(prevalence="mine"), "prevalence"),
        (lambda: make(eval_batch_size=0), "eval_batch_size"),
        (lambda: UniformSampling(num_batches=4).with_num_batches(3), "num_batches=4 is not the 3"),
    ]:
        with pytest.raises(ConfigError, match=name):
            make_one()
    assert UniformSampling(4, two_draws=True).with_num_batches(3) == UniformSampling(4, two_draws=True, num_batches=3)
    assert BalancedSampling(4).with_num_batches(3) == BalancedSampling(4, num_batches=3)
    assert len(list(BalancedSampling(4, num_batches=9).plan({"y": torch.arange(12) % 2}).batches(0))) == 9


@pytest.mark.parametrize(
    ("batches", "larger", "part"),
    [
        (UniformSampling(8), UniformSampling(24), 8),
        (BalancedSampling(8, 0.25), BalancedSampling(24, 0.25), 8),
        (UniformSampling(8, copies=2, num_batches=4), UniformSampling(24, copies=2, num_batches=2), 16),
        (BalancedSampling(8, two_draws=True), BalancedSampling(24, two_draws=True), 8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_batches_of_several_parts_are_as_many_times_as_large(batches, larger, part):
    assert batches.in_parts(3) == (larger, part)


def test_single_labels_come_several_times_too():
    table = TensorTable({"x": torch.eye(8), "y": torch.tensor([[0, 1], [1, 0]] * 4)})
    sampling = LabelSampling(1, 1, 1, copies=2)
    drawn_from = sampling.table(table)
    batch = next(sampling.plan(drawn_from.columns).batches(0)).tolist()
    assert (len(drawn_from), len(batch)) == (16, 4)
    assert batch[:2] == batch[2:]


def test_batches_of_several_parts_are_those_that_were_set_last():
    module = make(UniformSampling(8))
    module.batches = UniformSampling(4)
    for parts in (3, 2):
        assert module.accumulate(parts) == 4
        assert module.batches == UniformSampling(4 * parts)
    module.as_asked_for()
    assert module.batches == UniformSampling(4)


def test_cells_are_drawn_alike_and_weighted():
    module = make(CellSampling(16))
    batches = list(module.train_dataloader())
    for batch in batches:
        cells = 2 * batch["y"] + batch["group"]
        assert torch.bincount(cells).tolist() == [4, 4, 4, 4]
        assert batch["stratum"].unique().numel() == 4
    table = module.tables["train"].columns
    expected = torch.bincount(2 * table["y"] + table["group"]) / len(table["y"])
    for cell in range(4):
        found = torch.cat([batch["weight"] * (2 * batch["y"] + batch["group"] == cell) for batch in batches]).mean()
        assert found.item() == pytest.approx(expected[cell].item(), rel=1e-5)
    assert make(CellSampling(16), Columns("y")).sampling()["target"].plan.num_strata == 2  # a table without groups
    with pytest.raises(ConfigError, match="drawn by cells"):
        make(CellSampling(16, columns=("age",))).sampling()
    with pytest.raises(ConfigError, match="must name at least one column, got none"):
        CellSampling(16, columns=())


def test_samples_with_several_labels_are_of_no_cell():
    table = {"y": torch.zeros(8, 2, dtype=torch.int64), "index": torch.arange(8)}
    with pytest.raises(DataError, match=r"column 'y' for every row, but its shape is \(8, 2\)\. .*LabelSampling"):
        CellSampling(4).plan(table)
