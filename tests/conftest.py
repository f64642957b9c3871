"""Shared by all tests: one thread, no global random state left behind, a small table, real data if it is there."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning.data import Columns, UniformSampling
from fcco_lightning.data.datamodules import TabularDataModule

DATA_FOLDER = Path(os.environ.get("FCCO_DATA", Path(__file__).parents[2] / "shared/data"))


@pytest.fixture(autouse=True)
def _same_random_state() -> Iterator[None]:
    """Every test starts from the same global random state and one thread, whatever ran before it."""
    torch.set_num_threads(1)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def make_frame(rows: int, seed: int) -> pd.DataFrame:
    """A table with two classes, two groups and a categorical column."""
    rng = np.random.default_rng(seed)
    y, group = rng.random(rows) < 0.4, rng.random(rows) < 0.6
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows) + 1.5 * y,
            "b": rng.normal(size=rows) - 0.7 * y * group,
            "c": rng.choice(["u", "v", "w"], rows),
            "sex": np.where(group, "m", "f"),
            "label": np.where(y, "yes", "no"),
        }
    )


@pytest.fixture
def small_data() -> TabularDataModule:
    """200 training and 80 test rows in batches of 20."""
    return make_data()


def make_data(batch_size: int = 20, **changes: object) -> TabularDataModule:
    """As the fixture, with arguments changed."""
    arguments: dict[str, object] = {
        "train": make_frame(200, 0),
        "test": make_frame(80, 1),
        "columns": Columns("label", positive="yes", sensitive="sex", favoured="m"),
        "batches": UniformSampling(batch_size),
    }
    return TabularDataModule(**(arguments | changes))  # type: ignore[arg-type]
