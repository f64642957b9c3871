"""A small table with two classes and two groups, and its data module."""

import numpy as np
import pandas as pd

from fcco_lightning.data import Columns, UniformSampling
from fcco_lightning.data.datamodules import TabularDataModule


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


def make_data(batch_size: int = 20, **changes: object) -> TabularDataModule:
    """200 training and 80 test rows in batches of 20, or with arguments changed."""
    arguments: dict[str, object] = {
        "train": make_frame(200, 0),
        "test": make_frame(80, 1),
        "columns": Columns("label", positive="yes", sensitive="sex", favoured="m", use_sensitive=True),
        "batches": UniformSampling(batch_size),
    }
    return TabularDataModule(**(arguments | changes))  # type: ignore[arg-type]
