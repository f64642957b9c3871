"""Problems made in memory as datamodules."""

import pandas as pd
from torch import Tensor

from fcco_lightning.data.datamodules.tabular import TabularDataModule
from fcco_lightning.data.roles import Columns
from fcco_lightning.data.sampling import EventSampling, QuerySampling, Sampling, UniformSampling
from fcco_lightning.data.splits import Splits
from fcco_lightning.data.synthetic import GaussianGroups, GradedLists, ProportionalHazards, train_and_test


class SyntheticDataModule(TabularDataModule):
    """Samples of :class:`GaussianGroups`, made in memory and then treated as any other table.

    The group is a feature (standardising is monotone, so the closed-form optima of :attr:`problem` still hold).

    Args:
        num_train: number of training rows before a validation split.
        num_test: number of test rows.
        problem: the distribution; None for the default one (Bayes AUC 0.903, gap 0.555).
        data_seed: seed of the samples.
        val_fraction: share of the training rows that is held out for validation, in [0, 1).
        batches: how training batches are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.
    """

    _made = True

    def __init__(
        self,
        num_train: int = 8000,
        num_test: int = 20_000,
        *,
        problem: GaussianGroups | None = None,
        data_seed: int = 0,
        val_fraction: float = 0.0,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.problem = problem or GaussianGroups()
        samples = train_and_test(self.problem, num_train, num_test, data_seed)
        super().__init__(
            train=_with_group(samples["train"]),
            test=_with_group(samples["test"]),
            columns=Columns("y", positive=1, sensitive="group", favoured=1),
            splits=Splits(val_fraction=val_fraction),
            batches=batches,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )


class SyntheticSurvivalDataModule(TabularDataModule):
    """Samples of :class:`ProportionalHazards`, made in memory and then treated as any other table.

    Args:
        num_train: number of training rows before a validation split.
        num_test: number of test rows.
        problem: the distribution; None for the default one.
        data_seed: seed of the samples.
        val_fraction: share of the training rows that is held out for validation, in [0, 1).
        batches: how training batches are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.
    """

    _made = True

    def __init__(
        self,
        num_train: int = 4000,
        num_test: int = 4000,
        *,
        problem: ProportionalHazards | None = None,
        data_seed: int = 0,
        val_fraction: float = 0.0,
        batches: Sampling = EventSampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.problem = problem or ProportionalHazards()
        samples = train_and_test(self.problem, num_train, num_test, data_seed)
        super().__init__(
            train=_table(samples["train"]),
            test=_table(samples["test"]),
            columns=Columns("event", positive=1, extra=["time", "event"]),
            splits=Splits(val_fraction=val_fraction),
            batches=batches,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )


class SyntheticQueriesDataModule(TabularDataModule):
    """Lists of :class:`GradedLists`, made in memory and then treated as any other table.

    Args:
        num_train: number of training queries before a validation split.
        num_test: number of test queries.
        problem: the distribution; None for the default one.
        data_seed: seed of the samples.
        val_fraction: share of the training queries that is held out for validation, in [0, 1).
        batches: how training batches are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.
    """

    _made = True

    def __init__(
        self,
        num_train: int = 400,
        num_test: int = 200,
        *,
        problem: GradedLists | None = None,
        data_seed: int = 0,
        val_fraction: float = 0.0,
        batches: Sampling = QuerySampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.problem = problem or GradedLists()
        samples = train_and_test(self.problem, num_train, num_test, data_seed)
        super().__init__(
            train=_table(samples["train"]),
            test=_table(samples["test"]),
            columns=Columns("y", target="number", extra=["query"]),
            splits=Splits(val_fraction=val_fraction, whole="query"),
            batches=batches,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )


def _with_group(sample: dict[str, Tensor]) -> pd.DataFrame:
    """Return the group as a column of its own instead of the last feature."""
    return _table({"x": sample["x"][:, :-1], "group": sample["group"], "y": sample["y"]})


def _table(sample: dict[str, Tensor]) -> pd.DataFrame:
    """Return one column for each feature x (n, d), and the other columns after them."""
    features = {f"x{i:02d}": column.numpy() for i, column in enumerate(sample["x"].T)}
    return pd.DataFrame(features | {name: column.numpy() for name, column in sample.items() if name != "x"})
