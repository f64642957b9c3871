"""Datamodules of synthetic problems: as a table that is encoded, and as tensors without encoding."""

from typing import Any

import torch

from fcco_lightning.checks import at_least, made_of
from fcco_lightning.data.batches import Sampling, UniformSampling
from fcco_lightning.data.datamodules.tabular import TabularDataModule
from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.encoding import Encoding
from fcco_lightning.data.splits import Splits
from fcco_lightning.data.synthetic import GaussianGroups, TableDistribution, TensorDistribution
from fcco_lightning.errors import ConfigError


class SyntheticDataModule(TabularDataModule):
    """Samples of a distribution that are generated in memory and then treated like any other table.

    The distributions are :class:`GaussianGroups` (two groups; standardising is monotone, so that its closed-form optima
    still hold), :class:`ProportionalHazards` (survival times) and :class:`GradedLists` (queries with graded items).

    Args:
        num_train: number of training rows (for lists, of queries) before a validation split.
        num_test: number of test rows (for lists, of queries).
        problem: the distribution; None for two groups with a Bayes AUC of 0.903 and a gap of 0.555.
        data_seed: seed of the samples.
        val_fraction: share of the training rows that is held out for validation, in [0, 1).
        batches: how training batches are drawn.
        **loading: see :class:`SplitDataModule`.

    Raises:
        ConfigError: if a number is out of range.
    """

    _synthetic = True

    def __init__(
        self,
        num_train: int = 8000,
        num_test: int = 20_000,
        *,
        problem: TableDistribution | None = None,
        data_seed: int = 0,
        val_fraction: float = 0.0,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        self.problem = problem = made_of("problem", GaussianGroups() if problem is None else problem, TableDistribution)
        samples = problem.train_and_test(num_train, num_test, at_least("data_seed", data_seed, 0))
        super().__init__(
            problem.table(samples["train"]),
            test=problem.table(samples["test"]),
            columns=problem.columns,
            splits=Splits(val_fraction=val_fraction, whole=problem.whole),
            encoding=Encoding(),
            batches=batches,
            **loading,
        )


class SyntheticTensorDataModule(TensorDataModule):
    """Samples of a distribution that are generated in memory and used without encoding.

    The distributions are :class:`BlockDistributions`, :class:`DigitBags`, :class:`Garnet`, :class:`LatentChoice` and
    :class:`ManyClasses`.  Batches hold the columns of their samples and ``index`` (B,).  Where there are many
    classes or values of a latent variable, a batch has two parts: "target", the samples, and "classes" or "latent" with
    ``x`` and ``index`` (M,), numbers of classes or values, drawn uniformly.

    Args:
        problem: the distribution.
        num_train: number of training samples (for groups or states, of each of them; for bags, of bags).
        num_test: number of test samples, counted likewise.
        data_seed: seed of the samples.
        others_per_batch: number of classes or latent values in a batch of one process, M; None for all.
        batches: how training samples are drawn.
        **loading: see :class:`SplitDataModule`.

    Raises:
        ConfigError: if a number is out of range, or ``others_per_batch`` is given although batches have one part.
    """

    _synthetic = True

    def __init__(
        self,
        problem: TensorDistribution,
        num_train: int = 20_000,
        num_test: int = 5000,
        *,
        data_seed: int = 0,
        others_per_batch: int | None = None,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        **loading: Any,
    ) -> None:
        self.problem, data_seed = made_of("problem", problem, TensorDistribution), at_least("data_seed", data_seed, 0)
        if others_per_batch is not None and at_least("others_per_batch", others_per_batch, 1) and not problem.others:
            raise ConfigError(
                f"others_per_batch={others_per_batch} is for problems with classes or latent values, and "
                f"{type(problem).__name__} has none. Leave it out."
            )
        if problem.num_classes is not None:
            self.num_classes = problem.num_classes
        super().__init__(
            problem.train_and_test(num_train, num_test, data_seed),
            {part: {"x": torch.arange(size)} for part, size in problem.others.items()},
            batches=batches,
            other_batches={part: UniformSampling(others_per_batch or size) for part, size in problem.others.items()},
            num_groups=problem.num_groups,
            **loading,
        )
