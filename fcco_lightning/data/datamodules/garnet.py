"""Transitions of a Garnet process as a datamodule."""

import torch

from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.garnet import Garnet
from fcco_lightning.data.sampling import GroupSampling, Sampling


class GarnetDataModule(TensorDataModule):
    """Transitions of :class:`Garnet`, made in memory, with the true values beside them.

    Batches hold ``x`` (B, 2, d + 1), ``group`` (B,), the number of the first state, ``next`` (B,), that of the second,
    ``reward`` (B,), ``value`` (B,) and ``index`` (B,).

    Args:
        problem: the process; None for the default one.
        per_state: number of transitions of every state for training.
        per_state_test: number of further ones for the test split.
        data_seed: seed of the transitions.
        batches: how training batches are drawn; the states are the groups.
        eval_batch_size: number of rows in an evaluation batch of one process.
        seed: seed of the training batches.
        num_workers: number of worker processes of the training loader.
    """

    _made = True

    def __init__(
        self,
        problem: Garnet | None = None,
        per_state: int = 100,
        per_state_test: int = 50,
        *,
        data_seed: int = 0,
        batches: Sampling = GroupSampling(32, 4),  # noqa: B008 - frozen
        eval_batch_size: int = 4096,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.problem = problem or Garnet()
        generator = torch.Generator().manual_seed(data_seed)
        sizes = {"train": per_state, "test": per_state_test}
        super().__init__(
            {name: self.problem.sample(size, generator) for name, size in sizes.items()},
            batches=batches,
            num_groups=self.problem.num_states,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
        )
