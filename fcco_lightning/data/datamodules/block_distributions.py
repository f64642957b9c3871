"""Samples of several distributions as a datamodule."""

from fcco_lightning.data.block_distributions import BlockDistributions
from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.sampling import GroupSampling, Sampling
from fcco_lightning.data.synthetic import train_and_test


class BlockDistributionsDataModule(TensorDataModule):
    """Samples of :class:`BlockDistributions`, made in memory; the distributions are the groups.

    Batches hold ``x`` (B, d), ``y`` (B,), ``group`` (B,) and ``index`` (B,).

    Args:
        problem: the distributions; None for the default ones.
        num_train: number of training samples of every distribution.
        num_test: number of test samples of every distribution.
        data_seed: seed of the samples.
        batches: how training batches are drawn; by default 20 samples, 4 of each of five distributions.
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.
    """

    _made = True

    def __init__(
        self,
        problem: BlockDistributions | None = None,
        num_train: int = 20_000,
        num_test: int = 5000,
        *,
        data_seed: int = 0,
        batches: Sampling = GroupSampling(5, 4),  # noqa: B008 - frozen
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.problem = problem or BlockDistributions()
        super().__init__(
            train_and_test(self.problem, num_train, num_test, data_seed),
            batches=batches,
            num_groups=self.problem.num_distributions,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )
