"""Splits of tensors, and the other data sets that batches draw from."""

import pytest
import torch

from fcco_lightning import TensorDataModule, UniformSampling
from fcco_lightning.errors import ConfigError

SPLIT = {"x": torch.zeros(8, 2), "y": torch.arange(8) % 2}


@pytest.mark.parametrize(("others", "drawn"), [({"old": SPLIT}, {}), ({}, {"old": UniformSampling(2)})])
def test_every_other_data_set_is_drawn_in_its_own_way(others, drawn):
    with pytest.raises(ConfigError, match="other_batches must say how each of"):
        TensorDataModule({"train": SPLIT, "test": SPLIT}, others, other_batches=drawn)
