"""Binary tables with 1% to 20% positives: made ones, scikit-learn's, and those of a folder of data.

One half of them is to choose defaults on (:data:`CHOOSE`), by their validation parts; the other half (:data:`TEST`)
says what the choice is worth.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from torch import Tensor

from fcco_lightning.data.splits import stratified_split

Split = dict[str, dict[str, Tensor]]
Table = tuple[np.ndarray, np.ndarray]  # features (n, d) and labels (n,) of 0 and 1


class Source(NamedTuple):
    """How a table is had.

    Attributes:
        read: gives features and labels, of the folder of data.
        positives: their share, for which some are left out; None for all.
        rows: how many rows are kept at most.
    """

    read: Callable[[Path], Table]
    positives: float | None = None
    rows: int = 10_000


def made(n: int, share: float, seed: int, **shape: float) -> Callable[[Path], Table]:
    """Clusters of scikit-learn's ``make_classification``."""
    wanted = {"n_features": 20, "n_informative": 8, "n_clusters_per_class": 3, "flip_y": 0.01, **shape}
    return lambda folder: datasets.make_classification(n, weights=[1 - share], random_state=seed, **wanted)  # noqa: ARG005


def scored(n: int, share: float, seed: int, score: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], Table]:
    """Ten normal features, with the largest noisy scores as positives: the best ranking is that of the scores."""

    def read(folder: Path) -> Table:  # noqa: ARG001
        random = np.random.default_rng(seed)
        x = random.normal(size=(n, 10))
        noisy = score(x) + random.logistic(0, 0.5, n)
        return x, noisy > np.quantile(noisy, 1 - share)

    return read


def of_scikit_learn(name: str, positive: int) -> Callable[[Path], Table]:
    """One class against the rest."""

    def read(folder: Path) -> Table:  # noqa: ARG001
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        return x, y == positive

    return read


def of_file(
    name: str, label: str, positive: Callable[[pd.Series], pd.Series], drop: tuple[str, ...] = ()
) -> Callable[[Path], Table]:
    """A file of the folder, with texts as columns of 0 and 1."""

    def read(folder: Path) -> Table:
        path = folder / name
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        x = frame[[name for name in frame if name != label and not (drop and str(name).startswith(drop))]]
        few = [name for name in x if pd.api.types.is_numeric_dtype(x[name]) or x[name].nunique() < 30]
        x = pd.get_dummies(x[few])
        return x.to_numpy(float), positive(frame[label]).to_numpy()

    return read


def is_(value: object) -> Callable[[pd.Series], pd.Series]:
    """Positives have this value."""
    return lambda column: column == value


def top(share: float) -> Callable[[pd.Series], pd.Series]:
    """Positives are the largest."""
    return lambda column: column > column.quantile(1 - share)


CHOOSE = {
    "clusters 5%": Source(made(6_000, 0.05, 1)),
    "clusters 2%, noisy labels": Source(made(10_000, 0.02, 2, flip_y=0.02, class_sep=1.5)),
    "clusters 15%, few rows": Source(made(700, 0.15, 3, class_sep=1.5)),
    "linear 5%": Source(scored(4_000, 0.05, 4, lambda x: x[:, 0] + 0.5 * x[:, 1] - 0.5 * x[:, 2])),
    "products 10%": Source(scored(5_000, 0.1, 5, lambda x: 2 * x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]))),
    "breast cancer 10%": Source(of_scikit_learn("breast_cancer", 0), 0.1),
    "digits: eights 3%": Source(of_scikit_learn("digits", 8), 0.03),
    "Adult 5%": Source(of_file("adult_train.csv", "income", is_(">50K")), 0.05, 8_000),
    "COMPAS 10%": Source(of_file("compas.csv", "two-year-recid", is_(1), ("decile-score", "c-charge-desc")), 0.1),
    "CelebA: bald": Source(of_file("celeba_attributes.parquet", "Bald", is_(True))),
    "emotion: class 5": Source(of_file("dro/emotion.parquet", "y", is_(5))),
    "robot arm, top 5%": Source(of_file("dro/kin8nm.parquet", "y", top(0.05)), None, 6_000),
}
TEST = {
    "clusters 1%": Source(made(10_000, 0.01, 11, flip_y=0.002)),
    "clusters 10%": Source(made(3_000, 0.1, 12, n_features=30)),
    "clusters 20%, few rows": Source(made(600, 0.2, 13)),
    "linear 20%, few rows": Source(scored(600, 0.2, 14, lambda x: x[:, 0] - x[:, 1] + 0.5 * x[:, 2])),
    "rings 4%": Source(scored(6_000, 0.04, 15, lambda x: -3 * np.abs(np.hypot(x[:, 0], x[:, 1]) - 1))),
    "steps 8%": Source(scored(5_000, 0.08, 16, lambda x: 1.5 * np.sign(x[:, 0]) * np.sign(x[:, 1]) + x[:, 2])),
    "wine 15%": Source(of_scikit_learn("wine", 1), 0.15),
    "digits: threes 5%": Source(of_scikit_learn("digits", 3), 0.05),
    "German credit 15%": Source(of_file("german.csv", "credit-label", is_(1), ("sex-age",)), 0.15),
    "Crime 10%": Source(of_file("crime.csv", "high_crime", is_(1), ("communityname", "fold", "state_")), 0.1),
    "CelebA: mustache": Source(of_file("celeba_attributes.parquet", "Mustache", is_(True))),
    "emotion: class 2": Source(of_file("dro/emotion.parquet", "y", is_(2)), 0.05),
    "concrete, top 10%": Source(of_file("dro/concrete.csv", "y", top(0.1))),
    "power, top 5%": Source(of_file("dro/power.parquet", "y", top(0.05))),
}


def splits_of(source: Source, folder: Path, seed: int) -> Split:
    """Half of the rows for training, a fifth for validation, the rest for testing; standardised features."""
    x, y = (torch.tensor(part) for part in source.read(folder))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[: source.rows]
    x, y = x[order].float(), y[order].long()
    if source.positives is not None:
        wanted = int((y == 0).sum() * source.positives / (1 - source.positives))
        kept = (y == 0) | (y.cumsum(0) <= wanted)
        x, y = x[kept], y[kept]
    rest, test = stratified_split(y, 0.3, seed, "test")
    train, val = (rest[rows] for rows in stratified_split(y[rest], 2 / 7, seed + 1, "val"))
    mean, std = x[train].mean(0), x[train].std(0)
    x = ((x - mean) / torch.where(std > 0, std, 1.0)).clamp(-5, 5)
    return {n: {"x": x[rows], "y": y[rows]} for n, rows in (("train", train), ("val", val), ("test", test))}


def tables(sources: dict[str, Source], folder: Path) -> Iterator[str]:
    """Names of those that can be had: of files only where the folder has them."""
    for name, source in sources.items():
        try:
            source.read(folder)
        except FileNotFoundError:
            continue
        yield name
