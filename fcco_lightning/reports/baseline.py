"""A baseline: the same network trained without constraints on the same batches."""

import copy
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.analysis import value_of
from fcco_lightning.engine import as_batch, outputs_of, read, usable
from fcco_lightning.engine.functions import in_full
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation import Split
from fcco_lightning.models import copy_of
from fcco_lightning.objectives import Objective
from fcco_lightning.state.checkpoint_files import in_words
from fcco_lightning.training import FCCOModule
from fcco_lightning.training.optimizers import build_optimizer

_OF_CHECKPOINT = "the model without constraints in the checkpoint"


class Baseline(Callback):
    r"""Trains a copy of the initial network on the objective alone, in the same run and without any effect on it.

    The copy is trained on the run's batches in the same order.  Whenever the run updates its weights, the copy is
    updated by an optimizer of the same class and arguments, with the same learning rate, clipping and (reduced) weight
    decay, by the mean of the mini-batch gradients of the K batches since the last update:

    ``(1/K) sum over these batches of grad [ g_0(w) + (1/b) sum over rows i of the batch of r_i f_i(g_i(w)) ]``,

    where b is the number of rows in the batch and r_i the relevance of a row; there are no running estimates.  With
    several processes each uses its own part of a batch, and the gradients are averaged.  The random streams are
    restored after each batch, so that the run is bit for bit the same with and without the baseline.  :class:`Report`
    shows its figures beside the model's.  It costs one more forward and backward pass per batch, and the memory of one
    more network and optimizer; its state is part of every checkpoint.  During a seamless pretraining the copy is
    trained on the objective of the pretraining, too.

    Args:
        enabled: whether to train the copy; there is none if the run has no enforced constraints.

    Attributes:
        network: the copy; None before training, or if there is none.
        seconds: time that this process has spent in this fit on training the copy.

    Raises:
        ConfigError: when training starts, if the objective has parameters of single samples, or an outer function of
            all rows together, so that it cannot be evaluated on one batch.
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self.network: nn.Module | None = None
        self.seconds = 0.0
        self._objective: Objective | None = None
        self._optimizer: Optimizer | None = None
        self._batches = self._updates = 0  # batches since the last update; updates of the run
        self._restored: dict[str, Any] | None = None
        self._continued = False  # resumed, and no update was made since

    def state_dict(self) -> dict[str, Any]:
        """Copy, optimizer and the gradients since the last update; empty if there is no copy."""
        if self.network is None or self._objective is None or self._optimizer is None:
            return {}
        return {
            "network": self.network.state_dict(),
            "objective": self._objective.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "gradients": [param.grad for param in _params(self._optimizer)],
            "batches": self._batches,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until the copy is made."""
        self._restored = state_dict or None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy the network before its first update."""
        self.network, self._batches, self._updates, self.seconds = None, 0, trainer.global_step, 0.0
        if not self.enabled or not isinstance(pl_module, FCCOModule):
            return
        if not pl_module.algorithm.posed(pl_module.objective, pl_module.constraints)[1]:
            rank_zero_info(
                "--baseline.enabled has no effect: no constraint is enforced, so the model would be the same."
            )
            return
        if trainer.global_step > 0 and self._restored is None:
            rank_zero_warn(
                "--baseline.enabled has no effect: the checkpoint was written without the unconstrained model, whose "
                "initial weights are no longer known. Enable it from the start of a run."
            )
            return
        self._copy(pl_module)

    def _copy(self, module: FCCOModule) -> None:
        objective = module.objective
        if module.phases.pretrain is not None and not module.phases.seamless:
            raise ConfigError(
                "--baseline.enabled true compares models with the same initial weights, and pretraining replaces the "
                "head and the optimizer. Set --model.pretrain.seamless to true, leave out pretrain, or set "
                "--baseline.enabled to false."
            )
        if objective.sample_parameters is not None or (objective.outer is not None and objective.outer.coupled):
            raise ConfigError(
                f"--baseline.enabled true trains on the objective of single batches, and {type(objective).__name__} "
                f"with {module.algorithm.name} cannot be computed on one batch. Set --baseline.enabled to false."
            )
        if module.backend.sharded:
            raise ConfigError(
                "--baseline.enabled true copies the whole network, and ModelParallelStrategy shards its weights over "
                "the processes. Set --baseline.enabled to false, or use --trainer.strategy ddp."
            )
        self.network, self._objective = copy_of(module.network), copy.deepcopy(objective)
        self._optimizer = build_optimizer(module.optimizer, self.network, self._objective, module.schedule.objective_lr)
        if self._restored is not None:
            state, self._restored, self._continued = self._restored, None, True
            with in_words(_OF_CHECKPOINT):
                self.network.load_state_dict(state["network"])
                self._objective.load_state_dict(state["objective"])
                self._optimizer.load_state_dict(state["optimizer"])
                for param, gradient in zip(_params(self._optimizer), state["gradients"] or (), strict=False):
                    param.grad = None if gradient is None else gradient.to(param.device)
                self._batches = state["batches"]

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Set the copy's learning rate to that of the run."""
        if self._optimizer is not None and self.network is not None:
            for group, other in zip(self._optimizer.param_groups, trainer.optimizers[0].param_groups, strict=True):
                group["lr"] = other["lr"]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, _outputs: Any, batch: Mapping[str, Any], *_: Any
    ) -> None:
        """Add the gradient of the batch, and update the copy if the run has updated its weights."""
        if self.network is None or self._objective is None or not isinstance(pl_module, FCCOModule):
            return
        began = time.perf_counter()
        with isolate_rng(), torch.enable_grad(), pl_module.processes.guard():
            loss = objective_on_batch(self._present_objective(pl_module), self.network.train(), batch)
            if loss is not None and loss.requires_grad and bool(torch.isfinite(loss)):
                loss.backward()  # type: ignore[no-untyped-call]  # adds to the gradients of the batches before
                self._batches += 1
        if trainer.global_step > self._updates:
            self._updates = trainer.global_step
            self._update(pl_module)
        self.seconds += time.perf_counter() - began

    def _present_objective(self, module: FCCOModule) -> Objective:
        """The copy's objective of the present phase, with the state that depends on the data."""
        copied, posed = self._objective, module.phases.present.objective
        assert copied is not None  # noqa: S101 - there is a copy
        if module.phases.pretraining:
            return posed
        if copied.num_samples is None:
            members = vars(nn.Module())
            vars(copied).update({name: value for name, value in vars(posed).items() if name not in members})
        return copied

    def _update(self, module: FCCOModule) -> None:
        optimizer = self._optimizer
        assert optimizer is not None  # noqa: S101 - there is a copy
        params = _params(optimizer)
        for param in params:
            param.grad = torch.zeros_like(param) if param.grad is None else param.grad / self._batches
        self._batches = 0
        module.processes.average_([p.grad for p in params if p.grad is not None])
        module.backend.clip_gradients(optimizer)
        words = in_words(_OF_CHECKPOINT) if self._continued else nullcontext()
        with words, module.backend.around_step(optimizer):
            optimizer.step()
        self._continued = False
        optimizer.zero_grad(set_to_none=True)

    def split(self, module: FCCOModule, loader: Iterable[dict[str, Tensor]]) -> Split:
        """The outputs of the copy on a split; a collective call of all processes.

        Args:
            module: the module of the run.
            loader: batches of this process's part of the split.

        Raises:
            ConfigError: if there is no copy.
        """
        if self.network is None:
            raise ConfigError("there is no unconstrained model: fit with Baseline(enabled=True) first.")
        module.processes.average_([b for b in self.network.buffers() if b.is_floating_point()])
        return module.evaluate(loader, self.network)


def objective_on_batch(objective: Objective, network: nn.Module, batch: Mapping[str, Any]) -> Tensor | None:
    """The mini-batch estimate of the objective, a scalar with gradient ``grad g_0 + mean_i r_i f_i'(g_i) grad g_i``.

    r_i is the relevance of row i, 1 by default; the mean is over the rows of the batch; None if it has none.
    The outer function must act on single rows.  If a batch has several parts, the first one is used.
    """
    usable_batch = usable(as_batch(batch), network)
    outputs, columns = read(outputs_of(network, usable_batch), usable_batch, objective)
    with in_full(next(network.parameters()).device.type):
        return value_of(objective, outputs, columns)


def _params(optimizer: Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]
