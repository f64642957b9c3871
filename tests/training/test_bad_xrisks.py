"""Data from which an X-risk cannot be learnt, and splits without its figures: the errors name the cause."""

import math

import pytest
import torch
from torch import nn

from fcco_lightning import (
    AUC,
    SGD,
    SOX,
    AveragePrecision,
    BagSampling,
    CoxPartialLikelihood,
    FCCOModule,
    NeighbourhoodComponents,
    UniformSampling,
)
from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.errors import DataError

N = 24
I = torch.arange(N)  # noqa: E741 - the index of a sample
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y, TIME = (I % 4 == 0).long(), I % 7 + 1.0
pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches")


def trained(make_trainer, objective, outputs, columns, batches=None, test=None):
    """Train one epoch and return the figures of the test split."""
    splits = {"train": {"x": X, **columns}, "test": {"x": X, **(test or columns)}}
    data = TensorDataModule(splits, batches=batches or UniformSampling(8))
    algorithm = SGD() if objective.outer is None else SOX(0.5)
    module = FCCOModule(nn.Linear(3, outputs), objective, algorithm=algorithm)
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module, data)
    return trainer.test(module, data, verbose=False)[0]


def test_one_class_is_refused(make_trainer):
    with pytest.raises(DataError, match="all 24 training samples have y = 3"):
        trained(make_trainer, NeighbourhoodComponents(), 2, {"y": 0 * I + 3})


def test_bags_do_not_tell_how_single_samples_are_drawn(make_trainer):
    with pytest.raises(DataError, match=r"strata .bags, or queries. of 8 of 24 samples"):
        trained(make_trainer, AveragePrecision(), 1, {"y": (I // 4 % 2), "bag": I // 4}, BagSampling(1, 1, 2))


@pytest.mark.parametrize(
    ("objective", "columns", "test", "figure", "message"),
    [
        (
            AUC(),
            {"y": Y},
            {"y": 0 * Y},
            "auc",
            r"auc and average_precision are not defined \(NaN\): all 24 samples of a split are of one class",
        ),
        (
            CoxPartialLikelihood(),
            {"time": TIME, "event": 1 - Y},
            {"time": 0 * TIME + 2, "event": 1 - Y},
            "integrated_brier",
            "the first event, at 2, is not before 2",
        ),
    ],
)
def test_figures_that_a_split_leaves_undefined_are_warned_of(make_trainer, objective, columns, test, figure, message):
    """The parts' own tests have the other messages."""
    with pytest.warns(UserWarning, match=message):
        figures = trained(make_trainer, objective, 1, columns, test=test)
    assert math.isnan(figures[f"test_{figure}"])


def test_classes_may_have_any_numbers(make_trainer):
    """Neighbours of -1 and of 10^12 are counted as those of 0 and 1."""
    figures = [
        trained(make_trainer, NeighbourhoodComponents(), 2, {"y": torch.where(I % 2 == 0, *names)})["test_knn_accuracy"]
        for names in ((torch.tensor(0), torch.tensor(1)), (torch.tensor(-1), torch.tensor(10**12)))
        if torch.manual_seed(0)
    ]
    assert figures[0] == figures[1]
