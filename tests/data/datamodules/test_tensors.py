"""Splits given as tensors, and other data sets from which batches are drawn."""

import pytest
import torch
from lightning.pytorch import Trainer

from fcco_lightning import CrossEntropy, FCCOModule, TabularMLP, TensorDataModule, UniformSampling
from fcco_lightning.errors import ConfigError, DataError
from tests.conftest import QUIET

SPLIT = {"x": torch.zeros(8, 2), "y": torch.arange(8) % 2}


@pytest.mark.parametrize(("others", "drawn"), [({"old": SPLIT}, {}), ({}, {"old": UniformSampling(2)})])
def test_every_other_data_set_is_drawn_in_its_own_way(others, drawn):
    with pytest.raises(ConfigError, match="other_batches must say how each of"):
        TensorDataModule({"train": SPLIT, "test": SPLIT}, others, other_batches=drawn)


def test_weights_with_which_nothing_is_trained_are_refused():
    """A run ended where it began, without a word."""
    columns = SPLIT | {"weight": torch.zeros(8)}
    data = TensorDataModule({"train": columns, "test": columns}, batches=UniformSampling(4))
    module = FCCOModule(TabularMLP([], in_features=2), CrossEntropy())
    with pytest.raises(DataError, match=r"none of the weights of the 8 samples of the train split is > 0\. Give some"):
        Trainer(max_epochs=1, accelerator="cpu", **QUIET).fit(module, data)
