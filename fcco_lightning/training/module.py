"""The LightningModule: one path through manual optimization for every algorithm."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fcco_lightning.algorithms import SONEX, Algorithm
from fcco_lightning.checks import positive
from fcco_lightning.constraints import Constraint, Penalty
from fcco_lightning.errors import CheckpointError, ConfigError, NonFiniteError
from fcco_lightning.objectives import AUC, Objective
from fcco_lightning.problem import Engine, InnerFunctions, Problem
from fcco_lightning.steps import AdamType, ProximalPoint
from fcco_lightning.training.backend import LightningBackend
from fcco_lightning.training.evaluation import BinaryEvaluation, Evaluation, summarise
from fcco_lightning.training.random_streams import random_streams, set_random_streams
from fcco_lightning.training.schedules import StepAtFractions

T = TypeVar("T")
_CHECKPOINT_VERSION = 1
_EVALUATION_COLUMNS = ("y", "group", "index")


class FCCOModule(LightningModule):
    r"""Trains a network on an objective under constraints with any algorithm of the package.

    ``min_w g_0(w) + (1/n) sum_i f_i(g_i(w))  subject to  h_j(w) <= 0``, the constraints through a penalty.

    Args:
        network: maps ``batch["x"]`` to outputs; layers of unknown input width are sized from the data.
        objective: the objective; AUC by default.
        constraints: constraints h_j(w) <= 0, any number.
        penalty: how constraints enter; a hinge with rho = 10 by default.
        algorithm: SONEX by default.
        optimizer: over all trainable parameters; Adam with the papers' beta by default.
        scheduler: learning-rate schedule; None for a constant rate.
        scheduler_interval: "epoch" or "step" (one step is one update of w).
        scheduler_monitor: logged metric for ReduceLROnPlateau.
        evaluation: what is reported of a split; binary metrics by default.
        gradient_clip_val: largest gradient norm (``--trainer.gradient_clip_val`` sets it too); None for no clipping.
        gradient_clip_algorithm: "norm" or "value".
        skip_nonfinite: drop a batch with a NaN or infinite value, and count it, instead of stopping.
        num_samples: size of the training split; None takes it from the datamodule.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective | None = None,
        constraints: Sequence[Constraint] = (),
        penalty: Penalty | None = None,
        algorithm: Algorithm | None = None,
        optimizer: OptimizerCallable = AdamType,
        scheduler: LRSchedulerCallable | None = None,
        scheduler_interval: str = "epoch",
        scheduler_monitor: str | None = None,
        evaluation: Evaluation | None = None,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str = "norm",
        skip_nonfinite: bool = False,
        num_samples: int | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if scheduler_interval not in ("epoch", "step"):
            raise ConfigError(f"scheduler_interval must be 'epoch' or 'step', got {scheduler_interval!r}.")
        if gradient_clip_algorithm not in ("norm", "value"):
            raise ConfigError(f"gradient_clip_algorithm must be 'norm' or 'value', got {gradient_clip_algorithm!r}.")
        if gradient_clip_val is not None:
            positive("gradient_clip_val", gradient_clip_val)
        self.network, self.objective = network, objective or AUC()
        self.constraints, self.penalty = list(constraints), penalty
        self.algorithm = algorithm or SONEX()
        self.optimizer, self.scheduler = optimizer, scheduler
        self.evaluation = evaluation or BinaryEvaluation()
        self.backend = LightningBackend(
            self, gradient_clip_val, gradient_clip_algorithm, scheduler_interval, scheduler_monitor
        )
        self.skip_nonfinite, self.num_samples = skip_nonfinite, num_samples
        self.skipped_batches = 0
        self.problem: Problem | None = None
        self._engine: Engine | None = None
        self._restored: dict[str, Any] | None = None
        self._collected: dict[int, list[tuple[Tensor, dict[str, Tensor]]]] = {}
        self._was_vacuous: dict[str, bool] = {}
        self.last_summaries: dict[str, dict[str, float]] = {}
        self._own_accumulation = False

    # ---------------------------------------------------------------------------------------------- construction

    def configure_callbacks(self) -> list[Any]:
        """Take over Trainer flags that manual optimization would refuse; runs before Lightning's own checks."""
        trainer = self.trainer
        if self._own_accumulation:  # a second fit with the same Trainer
            trainer.accumulate_grad_batches = 1
        if trainer.gradient_clip_val:
            self.backend.clip_val = float(trainer.gradient_clip_val)
            self.backend.clip_algorithm = str(trainer.gradient_clip_algorithm or "norm")
            trainer.gradient_clip_val = None
        if trainer.accumulate_grad_batches != 1:
            raise ConfigError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} is not defined for compositional "
                "objectives: inner values of one batch would be tracked several times per update. Use a larger "
                "--data.batch_size instead (ALEXR2's inner loop is --model.algorithm.K)."
            )
        return []

    def setup(self, stage: str) -> None:
        """Size the network and the dual state from the data."""
        if self.trainer.world_size > 1:
            raise ConfigError(
                f"world_size={self.trainer.world_size}: this version trains in one process. Use --trainer.devices 1."
            )
        datamodule = getattr(self.trainer, "datamodule", None)
        self._size_network(getattr(datamodule, "num_features", None))
        if self.problem is None and stage == "fit":
            n = self.num_samples or getattr(datamodule, "num_train", None)
            if n is None:
                raise ConfigError("num_samples is not known: pass num_samples=len(train_split), or use a datamodule.")
            self._build(int(n))

    def _size_network(self, num_features: int | None) -> None:
        if not any(is_lazy(p) for p in self.network.parameters()):
            return
        if num_features is None:
            raise ConfigError("the network's input width is not known: set in_features, or use a datamodule.")
        training = self.network.training
        with torch.no_grad():
            self.network.eval()(torch.zeros(1, num_features))
        self.network.train(training)

    def _build(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.problem = Problem(self.objective, self.constraints, self.penalty, self.algorithm, num_samples)

    def configure_optimizers(self) -> Any:
        """The user's optimizer over all trainable parameters, with its schedule."""
        self._take_over_accumulation()
        optimizer = self.optimizer([p for p in self.parameters() if p.requires_grad])
        if self.scheduler is None:
            return optimizer
        scheduler = self.scheduler(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau) and (
            self.backend.scheduler_interval == "step" or self.backend.scheduler_monitor is None
        ):
            raise ConfigError(
                "ReduceLROnPlateau needs scheduler_interval='epoch' and scheduler_monitor=a logged "
                "metric, e.g. train_auc."
            )
        if isinstance(scheduler, StepAtFractions):
            if self.trainer.max_epochs is None or self.trainer.max_epochs < 1:
                raise ConfigError("StepAtFractions needs a number of epochs: set --trainer.max_epochs.")
            scheduler.set_total(self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _take_over_accumulation(self) -> None:
        """One update of w per K batches is what Lightning knows as accumulation; its counters then agree."""
        batches = self.algorithm.step.batches_per_update
        if batches > 1:
            self.trainer.accumulate_grad_batches = batches
            self._own_accumulation = True

    def on_fit_start(self) -> None:
        """Make the engine, now that parameters are on their device, and hand it the checkpoint's state."""
        problem = self._require(self.problem)
        functions = InnerFunctions(self.network, self.objective, problem.constraints)
        self._engine = Engine(functions, problem, self.backend)
        if self._restored is not None:
            self.engine.load_state_dict(self._restored["engine"])

    def on_train_start(self) -> None:
        """Continue the random streams of the checkpoint."""
        if self._restored is not None:
            set_random_streams(self._restored["random"])
            self._restored = None

    @property
    def engine(self) -> Engine:
        """The engine of the running fit."""
        return self._require(self._engine)

    @staticmethod
    def _require(part: T | None) -> T:
        if part is None:
            raise ConfigError("the module is not set up: pass it to Trainer.fit first.")
        return part

    # -------------------------------------------------------------------------------------------------- training

    def forward(self, x: Any) -> Any:
        """The network's outputs."""
        return self.network(x)

    def on_train_epoch_start(self) -> None:
        """Let rho follow its schedule."""
        self._require(self.problem).set_epoch(self.current_epoch)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """One batch of the algorithm."""
        trainer = self.trainer
        last = trainer.is_last_batch or batch_idx + 1 >= trainer.num_training_batches
        optimizer = self.optimizers(use_pl_optimizer=False)
        estimates: Mapping[str, Tensor] = {}
        statistics = [b.clone() for b in self.network.buffers()] if self.skip_nonfinite else []
        try:
            estimates = self.engine.train_batch(batch, optimizer, last_batch=last)  # type: ignore[arg-type]
        except NonFiniteError:
            if not self.skip_nonfinite:
                raise
            self.skipped_batches += 1
            for buffer, kept in zip(self.network.buffers(), statistics, strict=True):
                buffer.copy_(kept)  # a forward pass over NaN has moved BatchNorm's statistics
        if last:
            self.backend.step_schedulers("epoch")
        self._count_updates()
        if batch_idx % self._log_interval == 0 or last:
            self._log_step(estimates, len(batch["index"]))

    @property
    def _log_interval(self) -> int:
        return int(self.trainer.log_every_n_steps)  # type: ignore[attr-defined]

    def _count_updates(self) -> None:
        # Lightning's loggers count batches here; the x-axis is to be updates of w
        loop = self.trainer.fit_loop.epoch_loop
        loop._batches_that_stepped = max(0, self.global_step - (not loop._should_accumulate()))

    def _log_step(self, estimates: Mapping[str, Tensor], batch_size: int) -> None:
        for name, value in estimates.items():
            self.log(f"train_{name}", value, prog_bar=True, batch_size=batch_size)
        if self.skip_nonfinite:
            self.log("algo/skipped_batches", float(self.skipped_batches), batch_size=batch_size)

    def on_train_epoch_end(self) -> None:
        """Schedules that watch a validation metric."""
        self.backend.step_schedulers("epoch", plateau=True)

    def on_train_end(self) -> None:
        """The recovery step (004 Cor. 4.11), where the algorithm asks for one."""
        step = self.algorithm.step
        if not isinstance(step, ProximalPoint) or not step.recovery_steps or self.trainer.interrupted:
            return
        optimizer, done = self.optimizers(use_pl_optimizer=False), 0
        while done < step.recovery_steps:
            for batch in self.trainer.train_dataloader or ():
                moved = self.trainer.strategy.batch_to_device(batch)
                self.engine.recovery_iteration(moved, optimizer)  # type: ignore[arg-type]
                done += 1
                if done == step.recovery_steps:
                    break
        step.take_iterate()

    # ------------------------------------------------------------------------------------------------ evaluation

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ARG002
        """Collect outputs; the dual state is not touched."""
        self._collect(batch, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        """Report every split on which validation runs."""
        names = getattr(getattr(self.trainer, "datamodule", None), "val_names", ["val"])
        self._report(names)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ARG002
        """Collect outputs."""
        self._collect(batch, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        """Report the test split."""
        self._report(["test"])

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:  # noqa: ARG002
        """Outputs with the samples' index."""
        return {"index": batch["index"], "output": self.network(batch["x"])}

    def _collect(self, batch: dict[str, Tensor], loader: int) -> None:
        columns = {name: batch[name] for name in _EVALUATION_COLUMNS if name in batch}
        self._collected.setdefault(loader, []).append((self.network(batch["x"]), columns))

    def _report(self, names: Sequence[str]) -> None:
        collected, self._collected = self._collected, {}
        self.last_summaries = {}
        if self.trainer.sanity_checking:
            return
        for loader, parts in sorted(collected.items()):
            split = names[loader] if loader < len(names) else f"{names[-1]}{loader}"
            outputs, columns = concatenate(parts)
            summary = self.summarise(split, outputs, columns)
            self.last_summaries[split] = dict(summary)
            bar = {f"{split}_{k}": summary.pop(k) for k in ("auc", "worst_violation") if k in summary}
            self.log_dict(bar, prog_bar=True, add_dataloader_idx=False, batch_size=1)
            self.log_dict({f"{split}_{k}": v for k, v in summary.items()}, add_dataloader_idx=False, batch_size=1)

    def summarise(self, split: str, outputs: Tensor, columns: dict[str, Tensor]) -> dict[str, float]:
        """All figures of a split; warns when its constraints have become vacuous.

        Raises:
            NonFiniteError: if an output is NaN or infinite.
        """
        if not bool(torch.isfinite(outputs).all()):
            raise NonFiniteError(
                f"the network's outputs on the {split} split are not finite: the weights diverged or the features hold "
                "NaN. Lower the learning rate, or clip with --model.gradient_clip_val."
            )
        summary, reason = summarise(self.evaluation, self.constraints, outputs, columns)
        if reason and not self._was_vacuous.get(split, False):
            rank_zero_warn(
                f"the constraints say nothing any more about the {split} split: {reason}. They can hold while the "
                f"groups' ROC curves differ (hard gap {summary.get('roc_gap', float('nan')):.3f}). Use "
                "`scale: QuantileScores` in ROCFairness; see configs/roc_fairness/adult_ungameable.yaml."
            )
        self._was_vacuous[split] = reason is not None
        return summary

    # ----------------------------------------------------------------------------------------------- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Everything that a bit-for-bit continuation needs beside weights, rows and optimizers."""
        if self._engine is None:
            return
        checkpoint["fcco"] = {
            "version": _CHECKPOINT_VERSION,
            "algorithm": self.algorithm.name,
            "num_samples": self.num_samples,
            "engine": self._engine.state_dict(),
            "random": random_streams(),
            "skipped_batches": self.skipped_batches,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse what does not fit, before anything is overwritten."""
        stored = checkpoint.get("fcco")
        if stored is None:
            raise CheckpointError("the checkpoint was not written by FCCOModule during fit: it has no algorithm state.")
        if stored["version"] != _CHECKPOINT_VERSION:
            raise CheckpointError(
                f"the checkpoint has format {stored['version']}, this version reads {_CHECKPOINT_VERSION}."
            )
        if self.problem is None:
            self._build(stored["num_samples"])
        elif stored["algorithm"] != self.algorithm.name:
            raise CheckpointError(
                f"the checkpoint was written by {stored['algorithm']}, this run uses {self.algorithm.name}: their "
                f"states mean different things. Use --model.algorithm {stored['algorithm']}, or start without "
                "--ckpt_path."
            )
        self.skipped_batches = stored["skipped_batches"]
        self._restored = stored


def concatenate(parts: Sequence[tuple[Tensor, dict[str, Tensor]]]) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs and columns of all batches as one."""
    outputs = torch.cat([o for o, _ in parts])
    return outputs, {name: torch.cat([c[name] for _, c in parts]) for name in parts[0][1]}
