"""Synthetic problems whose batches have two parts: samples, and classes or values of a latent variable."""

import torch

from fcco_lightning.checks import at_least
from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.mixtures import LatentChoice, ManyClasses
from fcco_lightning.data.sampling import Sampling, UniformSampling
from fcco_lightning.data.synthetic import train_and_test


class ManyClassesDataModule(TensorDataModule):
    """Samples of :class:`ManyClasses`, made in memory, and with every batch some of the classes, drawn uniformly.

    Batches have the parts "target" with ``x`` (B, d), ``y`` (B,) and ``index`` (B,), and "classes" with ``x`` and
    ``index`` (M,), numbers of classes.

    Args:
        problem: the distribution; None for the default one.
        num_train: number of training samples.
        num_test: number of test samples.
        data_seed: seed of the samples.
        classes_per_batch: number of classes in a batch of one process, M.
        batches: how training samples are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.
    """

    _made = True

    def __init__(
        self,
        problem: ManyClasses | None = None,
        num_train: int = 20_000,
        num_test: int = 5000,
        *,
        data_seed: int = 0,
        classes_per_batch: int = 64,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 1024,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.problem = problem or ManyClasses()
        self.num_classes = self.problem.num_classes
        super().__init__(
            train_and_test(self.problem, num_train, num_test, data_seed),
            {"classes": {"x": torch.arange(self.num_classes)}},
            batches=batches,
            other_batches={"classes": UniformSampling(at_least("classes_per_batch", classes_per_batch, 1))},
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )


class LatentChoiceDataModule(TensorDataModule):
    """Samples of :class:`LatentChoice`, made in memory, and with every batch some values of the latent variable.

    Batches have the parts "target" with ``x`` (B, d), ``y`` (B,) and ``index`` (B,), and "latent" with ``x`` and
    ``index`` (M,), numbers of values, drawn uniformly.

    Args:
        problem: the distribution; None for the default one.
        num_train: number of training samples.
        num_test: number of test samples.
        data_seed: seed of the samples.
        latent_per_batch: number of values in a batch of one process, M.
        batches: how training samples are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.
    """

    _made = True

    def __init__(
        self,
        problem: LatentChoice | None = None,
        num_train: int = 20_000,
        num_test: int = 5000,
        *,
        data_seed: int = 0,
        latent_per_batch: int = 32,
        batches: Sampling = UniformSampling(),  # noqa: B008 - frozen
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.problem = problem or LatentChoice()
        super().__init__(
            train_and_test(self.problem, num_train, num_test, data_seed),
            {"latent": {"x": torch.arange(self.problem.num_latent)}},
            batches=batches,
            other_batches={"latent": UniformSampling(at_least("latent_per_batch", latent_per_batch, 1))},
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )
