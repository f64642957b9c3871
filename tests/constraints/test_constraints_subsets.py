"""Subsets and groups by names in a table, and data that a constraint would misread."""

import pandas as pd
import pytest
import torch

from fcco_lightning import AUC, SGD, SOX, CrossEntropy, Engine
from fcco_lightning.constraints import (
    DemographicParity,
    FourFifthsRule,
    MeanAtMost,
    MeanDifferenceAtMost,
    ROCFairness,
    SidesOfGroups,
    SidesOfSubsets,
    Subset,
    TopShare,
)
from fcco_lightning.data.batches import UniformSampling
from fcco_lightning.data.conditions import comparisons, described
from fcco_lightning.data.datamodules import TabularDataModule
from fcco_lightning.data.roles import Columns
from fcco_lightning.data.splits import Splits
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.objectives import LogisticLoss, SoftRate

RACES = ["Black", "White", "Asian", "White"]
AGES = [20, 30, 24, 70, 45]


def table(rows=40):
    return pd.DataFrame(
        {
            "income": [">50K" if i % 3 == 0 else "<=50K" for i in range(rows)],
            "race": [RACES[i % 4] for i in range(rows)],
            "age": [AGES[i % 5] for i in range(rows)],
            "size": ["<25" if i % 2 else "large" for i in range(rows)],
            "hours": [float(i % 7) for i in range(rows)],
        }
    )


@pytest.fixture
def data():
    columns = Columns(label="income", positive=">50K", sensitive="race", favoured="White", drop=["size"])
    batches = UniformSampling(batch_size=8)
    module = TabularDataModule(
        table(), columns=columns, test=table(20), splits=Splits(val_fraction=0.2), batches=batches
    )
    module.setup()
    return module


@pytest.mark.parametrize(
    ("where", "rule"),
    [
        ({"race": "Black", "age": "<25"}, lambda f: (f.race == "Black") & (f.age < 25)),
        ({"race": ["Black", "Asian"]}, lambda f: f.race != "White"),
        ({"age": ">=24 and <70"}, lambda f: (f.age >= 24) & (f.age < 70)),
        ({"age": [20, ">=70"]}, lambda f: (f.age == 20) | (f.age == 70)),
        ({"income": ">50K", "hours": 3}, lambda f: (f.income == ">50K") & (f.hours == 3)),
        ({"size": "<25"}, lambda f: f["size"] == "<25"),  # a text that is a value means it, also of a dropped column
        ({"y": ">50K"}, lambda f: f.income == ">50K"),
        ({"y": ["<=50K", ">50K"], "race": "White"}, lambda f: f.race == "White"),
        ({"y": 0, "group": "White"}, lambda f: (f.income != ">50K") & (f.race == "White")),
    ],
)
def test_a_subset_names_any_column_of_the_table(data, where, rule):
    side = SidesOfSubsets([Subset(where)], ["side"])
    side.adapt(data)
    batch = next(iter(data.evaluation_loaders()["test"]))
    assert side.members(batch, side)[0, 0].tolist() == rule(table(20)).tolist()
    side.check(data.sampling()["target"].columns, side, split=True)
    assert str(side.subsets[0]) == described(where)


def test_what_subsets_add_is_not_part_of_the_training_split_that_checkpoints_know(data):
    before = data.state_dict()
    Subset({"race": "Black"}).adapt(data)
    SidesOfGroups("race", "pairs", None, ["rate"]).adapt(data)
    assert data.state_dict() == before


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"rac": "Black"}, "Did you mean 'race'"),
        ({"race": "Purple"}, r"'Purple' is not a value of column 'race'.*\['Asian', 'Black', 'White'\]"),
        ({"age": ">90"}, r"holds for no sample.*lies in \[20, 70\]"),
        ({"race": "<25"}, "compares the column 'race' with numbers"),
        ({"group": "Purple"}, "'Purple' is none of"),
    ],
)
def test_a_subset_that_cannot_be_is_refused_at_set_up(data, where, message):
    with pytest.raises(DataError, match=message):
        Subset(where).adapt(data)


def test_an_empty_combination_names_its_columns(data):
    empty = MeanDifferenceAtMost(SoftRate(), 0.1, {"y": 1}, {"race": "Black", "hours": "<0.5", "size": "<25"})
    empty.adapt(data)
    message = r"where_b=.*holds for no sample.* have race=Black, \d+ have hours<0.5, \d+ have size<25"
    with pytest.raises(DataError, match=message):
        empty.subsets(data.sampling()["target"].columns)


def test_every_condition_of_an_empty_combination_has_its_own_count(data):
    empty = SidesOfSubsets([Subset({"age": "<25", "y": [0, 1], "race": "Black", "group": 7})], ["side"])
    empty.adapt(data)
    assert list(empty.subsets[0].conditions) == ["age<25", "y", "race=Black", "group"]
    columns = data.tables["train"].columns
    young, black = int(columns["age<25"].sum()), int(columns["race=Black"].sum())
    message = rf"{young} have age<25, {len(columns['y'])} have y=.*, {black} have race=Black"
    with pytest.raises(DataError, match=message):
        empty.check(columns, empty, split=True)


def test_a_refused_subset_adds_no_column(data):
    before = set(data.tables["train"].columns)
    with pytest.raises(DataError, match="not a value of column 'race'"):
        data.add_subset({"age": "<25", "race": "Purple"})
    assert set(data.tables["train"].columns) == before


@pytest.mark.parametrize("condition", [[], None, {"a": 1}])
def test_a_condition_is_a_value_or_values(condition):
    with pytest.raises(ConfigError, match="give a value, a list of values"):
        Subset({"age": condition})


def test_names_need_a_datamodule():
    with pytest.raises(DataError, match="'Black' is none"):
        SidesOfSubsets([Subset({"race": "Black"})], ["side"]).members({"race": torch.tensor([0, 1])}, None)
    assert comparisons("<x") == comparisons(3) == []


def test_groups_are_the_values_of_any_column(data):
    fair = ROCFairness([0.0], by="race")
    fair.adapt(data)
    assert fair.names == [
        f"{rate}@0: {pair}" for rate in ("tpr", "fpr") for pair in ("Black - Asian", "White - Asian", "White - Black")
    ]
    batch = next(iter(data.evaluation_loaders()["test"]))
    scores = torch.linspace(-1, 1, 20)
    values = fair.measure(scores, batch)[1].values
    frame = table(20)
    rates = [
        torch.sigmoid(scores[torch.tensor(((frame.race == race) & (frame.income == ">50K")).tolist())]).mean()
        for race in ("Black", "Asian")
    ]
    torch.testing.assert_close(values[0], torch.stack(rates))
    with pytest.raises(DataError, match="there must be 2 to 50"):
        ROCFairness([0.0], by="constant").adapt(constant_column())
    rule = FourFifthsRule(by="race", against="rest")
    rule.adapt(data)
    assert rule.names[:2] == ["four fifths: Asian / others", "four fifths: others / Asian"]
    rule = FourFifthsRule(by="race", against="whole")
    rule.adapt(data)
    assert rule.names[:2] == ["four fifths: Asian / everyone", "four fifths: everyone / Asian"]


def constant_column():
    frame = table().assign(constant=1)
    module = TabularDataModule(frame, columns=Columns(label="income"), splits=Splits(test_fraction=0.25))
    module.setup()
    return module


def test_two_groups_are_one_comparison_unless_it_is_with_everyone():
    assert SidesOfGroups("group", "pairs", None, ["rate"]).pairs == [(1, 0)]
    assert SidesOfGroups("group", "rest", None, ["rate"]).pairs == [(1, 0)]
    whole = SidesOfGroups("group", "whole", ["f", "m"], ["rate"])
    assert whole.names == ["rate: f - everyone", "rate: m - everyone"]
    groups = torch.tensor([0, 1, -1, 0])
    assert whole.members({"group": groups}, None).int().tolist() == [[[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 1]]]


@pytest.mark.parametrize("names", [["a"], ["a", "a"], []])
def test_groups_need_different_names(names):
    with pytest.raises(ConfigError, match="at least two different names"):
        SidesOfGroups("group", "pairs", names, ["rate"])


def test_a_budget_selects_its_share_whatever_the_scores():
    scores = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    share = TopShare(0.1, temperature=0.01)
    for moved in (scores, 1000 * scores - 7, scores.exp()):
        assert share(moved, {}).mean().item() == pytest.approx(0.1, abs=0.01)
    with pytest.raises(ConfigError, match="share must lie"):
        TopShare(1.0)


def train(objective, y, constraints=(), group=(0, 1, 0, 1)):
    network, algorithm = torch.nn.Linear(3, 1), SOX() if constraints else SGD()
    engine = Engine(network, algorithm.pose(objective, constraints, num_samples=4), algorithm)
    batch = {"x": torch.eye(3)[[0, 1, 2, 0]], "y": torch.tensor(y), "group": torch.tensor(group)}
    before = network.weight.clone()
    try:
        engine.train_batch(batch | {"index": torch.arange(4)}, torch.optim.SGD(network.parameters(), lr=0.1))
    finally:
        moved = not torch.equal(before, network.weight)
    return moved


WRONG = [([-1, 1, -1, 1], "-1"), ([0, 1, 2, 1], "2"), ([0.0, 1.0, 0.3, 1.0], "0.3")]


@pytest.mark.parametrize(("y", "value"), WRONG)
@pytest.mark.parametrize("constraint", [None, ROCFairness([0.0])])
def test_labels_that_are_not_0_and_1_are_refused_by_their_value(y, value, constraint):
    objective = AUC() if constraint is None else CrossEntropy()
    with pytest.raises(DataError, match=rf"y.* (of 0 and 1|in \[0, 1\]), got {value}"):
        train(objective, y, [] if constraint is None else [constraint])
    assert train(objective, [0, 1, 0, 1], [] if constraint is None else [constraint])


@pytest.mark.parametrize("objective", [AUC(), CrossEntropy()], ids=["AUC", "CrossEntropy"])
def test_labels_of_several_columns_or_no_numbers_are_refused(objective):
    with pytest.raises(DataError, match=r"needs one number `y` per sample, .* got shape \(4, 2\). Give one column"):
        train(objective, [[0, 0], [1, 1], [0, 0], [1, 1]])
    assert train(objective, [[0], [1], [0], [1]])
    columns = {"y": ["no", "yes"], "x": torch.zeros(2, 1)}
    with pytest.raises(DataError, match="got a list"):
        objective.check(torch.zeros(2), columns)


def test_a_class_is_not_asked_of_labels_that_are_none():
    cap = MeanAtMost(SoftRate(), 0.1, {"y": 0})
    with pytest.raises(DataError, match="asks for a class, but the labels y contain -1"):
        train(Silent(), [-1, 1, -1, 1], [cap])
    with pytest.raises(DataError, match=r"contain 0\.5"):
        train(Silent(), [0.5, 1, 0, 1], [cap])
    with pytest.raises(DataError, match=r"LogisticLoss needs labels y in \[0, 1\], got 2"):
        train(Silent(), [0, 1, 2, 1], [MeanAtMost(LogisticLoss(), 0.1)])
    assert train(CrossEntropy(), [0.25, 1.0, 0.0, 0.5])  # probabilities are labels of a logistic loss


def test_groups_out_of_range_are_refused():
    with pytest.raises(DataError, match=r"needs groups numbered 0 to 1 .*got 2"):
        train(CrossEntropy(), [0, 1, 0, 1], [DemographicParity()], group=(0, 1, 2, 1))


class Silent(CrossEntropy):
    """That does not look at labels."""

    def check(self, outputs, batch):
        pass

    def measure(self, outputs, batch):
        return outputs.mean(), None
