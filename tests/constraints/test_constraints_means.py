"""Means over subsets, where they differ from the shared contract of constraints."""

import pytest
import torch

from fcco_lightning.constraints import MeanAtMost, MeanDifferenceAtMost, MeanNear
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.objectives import LogisticLoss, MultiLabelLoss, SoftRate


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, generator=generator, dtype=torch.float64, requires_grad=True)
    y, group = torch.randint(2, (2, 50), generator=generator)
    return scores, {"y": y, "group": group, "index": torch.arange(50)}


def test_an_unknown_column_is_refused_by_name(data):
    with pytest.raises(DataError, match=r"\['sex'\], the batch has \['group', 'index', 'y'\]"):
        MeanAtMost(SoftRate(), 0.1, {"y": 1, "sex": 1}).measure(*data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeanDifferenceAtMost(SoftRate(), 0.1, {"y": 1}, {"y": 1}), "same subset"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    MeanDifferenceAtMost(SoftRate(temperature=0.1), 0.0, {"y": 1}, {"y": 0})
    with pytest.raises(ConfigError, match=message):
        make()


def test_constraints_are_named_by_what_they_are_of():
    assert MeanAtMost(LogisticLoss(), 0.1, {"race": "Black", "age": "<25"}).names == [
        "logistic loss, race=Black, age<25"
    ]
    assert MeanNear(SoftRate(), 0.5).names == ["soft rate"]
    difference = MeanDifferenceAtMost(SoftRate(), 0.1, {"group": 1}, {"group": 0})
    assert difference.names == ["soft rate, group=1 against group=0"]
    assert MeanAtMost(SoftRate(), 0.1, name="ours").names == ["ours"]


def test_a_mean_of_several_numbers_is_refused_by_the_name_of_what_gave_them():
    batch = {"y": torch.zeros(4, 2), "group": torch.arange(4) % 2}
    for constraint in (
        MeanAtMost(MultiLabelLoss(), 0.1),
        MeanDifferenceAtMost(MultiLabelLoss(), 0.1, {}, {"group": 1}),
    ):
        with pytest.raises(DataError, match=r"needs one number per sample, MultiLabelLoss gave \(4, 2\)"):
            constraint.measure(torch.zeros(4, 2), batch)
