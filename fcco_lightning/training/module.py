"""The LightningModule: one path through manual optimization for every algorithm."""

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, ModelCheckpoint
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from fcco_lightning.algorithms import Algorithm, DoubleLoop, default_algorithm
from fcco_lightning.checks import at_least, positive
from fcco_lightning.constraints import Constraint, require_columns, require_compatible
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.data.indexed import drawn_by
from fcco_lightning.engine import Drawn, Engine, Problem
from fcco_lightning.errors import CheckpointError, ConfigError, NonFiniteError
from fcco_lightning.estimators import AdamType
from fcco_lightning.evaluation import Evaluation, default_evaluation
from fcco_lightning.models import BatchNetwork, head_of, renew
from fcco_lightning.objectives import AUC, Objective
from fcco_lightning.state import DualState, Layout
from fcco_lightning.state.processes import Processes, require_same_everywhere
from fcco_lightning.training.averaging import WeightAverage, exchange
from fcco_lightning.training.backend import LightningBackend
from fcco_lightning.training.common_statistics import share_statistics
from fcco_lightning.training.evaluating import EvaluatingModule
from fcco_lightning.training.finite_weights import require_finite_weights
from fcco_lightning.training.hyperparameters import Hyperparameters, apply_changes, typed_hyperparameters
from fcco_lightning.training.loaders import training_loader
from fcco_lightning.training.old_model import References, Remembers
from fcco_lightning.training.optimizers import build_optimizer
from fcco_lightning.training.precisions import WholeColumns, require_wide
from fcco_lightning.training.pretraining import MAIN, PRETRAINING, Phase, Pretraining
from fcco_lightning.training.progress import LoopProgress, epoch_is_whole
from fcco_lightning.training.progress_line import OneLine
from fcco_lightning.training.random_streams import (
    loader_streams,
    random_streams,
    set_loader_streams,
    set_random_streams,
)
from fcco_lightning.training.refused_callbacks import require_usable
from fcco_lightning.training.row_checkpoints import (
    CHECKPOINT_VERSION,
    WEIGHTS_ALONE,
    another_format,
    install,
    load,
    read_file,
)
from fcco_lightning.training.schedules import StepAtFractions, catch_up, described, require_same_kind
from fcco_lightning.training.trainers import (
    OwnSettings,
    in_parts,
    require_batches,
    require_rows,
    require_some_batch,
    require_whole_weights,
)

T = TypeVar("T")


class FCCOModule(EvaluatingModule):
    r"""Trains a network on an objective under constraints with any algorithm of the package.

    ``min_w g_0(w) + (1/n) sum_i f_i(g_i(w))  subject to  h_j(w) <= 0``, the constraints by multipliers or a penalty.

    Args:
        network: maps ``batch["x"]`` to outputs, or the whole batch if it is a :class:`~fcco_lightning.BatchNetwork`;
            layers of unknown input width are sized from the data.
        objective: the objective; AUC by default.
        constraints: constraints h_j(w) <= 0, any number.
        penalty: how constraints enter: a fixed penalty, or multipliers that are found while training; the latter,
            by :class:`~fcco_lightning.AdaptivePenalty`, by default.
        algorithm: SONEX by default, SGD where nothing is to be remembered, see
            :func:`~fcco_lightning.algorithms.default_algorithm`.
        optimizer: over all trainable parameters; Adam with the papers' beta by default.
        scheduler: learning-rate schedule; None for a constant rate.
        scheduler_interval: "epoch" or "step" (one step is one update of w).
        scheduler_monitor: logged metric for ReduceLROnPlateau.
        evaluation: what is reported of a split; by default the evaluation that fits the type of the objective, see
            :func:`~fcco_lightning.evaluation.default_evaluation`.
        gradient_clip_val: largest gradient norm (``--trainer.gradient_clip_val`` sets it too); None for no clipping.
        gradient_clip_algorithm: "norm" or "value".
        skip_nonfinite: drop a batch with a NaN or infinite value, and count it, instead of stopping.
        num_samples: size of the training split; None takes it from the datamodule, or the training loader's data set.
        state_layout: "replicated", "sharded" or "auto" (sharded from 1,000,000 values on): where the rows of the
            dual state lie when several processes train, see :class:`DualState`.
        objective_lr: step size of the objective's own parameters (a CVaR threshold); None for the network's.  They have
            no weight decay either way.
        pretrain: a first phase of training on another objective, such as cross-entropy before average precision; None
            for none.
        micro_batch: largest number of samples that pass through the network at once; None for whole batches.  With it a
            batch of any size takes the memory of a micro-batch, costs one more forward pass, and has the same
            gradient: the rows, pairs and constraints are those of the whole batch.
        average: an average of the weights over the updates, which is validated and reported in place of the last ones;
            None for none.
        kept_outputs: largest number of samples of a split of which the outputs are kept for its evaluation; None for
            all.  Of a larger split the figures are those of so many random samples, but for what the evaluation can
            count batch by batch (see :meth:`Evaluation.tally`), so that the memory does not grow with the split.
        compiled: whether the network is compiled by torch.compile, and with it, for most algorithms, what
            follows from its outputs (inner functions, estimators, surrogate; on a CPU mostly the gradient, too) as one
            graph.  That takes some seconds or minutes at first.  Dropout draws the same masks as without.  CPUs need a
            C++ compiler for it, GPUs Triton.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective | None = None,
        constraints: Sequence[Constraint] = (),
        penalty: Enforcement | None = None,
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
        state_layout: Layout = "auto",
        objective_lr: float | None = None,
        pretrain: Pretraining | None = None,
        micro_batch: int | None = None,
        average: WeightAverage | None = None,
        kept_outputs: int | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if scheduler_interval not in ("epoch", "step"):
            raise ConfigError(f"scheduler_interval must be 'epoch' or 'step', got {scheduler_interval!r}.")
        if gradient_clip_algorithm not in ("norm", "value"):
            raise ConfigError(f"gradient_clip_algorithm must be 'norm' or 'value', got {gradient_clip_algorithm!r}.")
        if gradient_clip_val is not None:
            positive("gradient_clip_val", gradient_clip_val)
        objective = objective or AUC()
        self.algorithm = algorithm or default_algorithm(objective, constrained=bool(constraints))
        self.network, self.objective = network, self.algorithm.posed(objective, constraints)[0]
        self.constraints, self.penalty = list(constraints), penalty
        self.objective_lr = None if objective_lr is None else positive("objective_lr", objective_lr)
        self.optimizer, self.scheduler, self.pretrain = optimizer, scheduler, pretrain
        self.pretraining, self._phase_start = pretrain is not None, 0
        self._first_phase = None if pretrain is None else pretrain.before(self._main_phase, network)
        if self._first_phase is not None:  # its parameters are moved to the device, and saved, with all others
            self.pretraining_objective = self._first_phase.objective
        self.evaluation = evaluation or default_evaluation(self.objective)
        self.backend = LightningBackend(
            self, gradient_clip_val, gradient_clip_algorithm, scheduler_interval, scheduler_monitor
        )
        self.skip_nonfinite, self.num_samples = skip_nonfinite, num_samples
        self.micro_batch = None if micro_batch is None else at_least("micro_batch", micro_batch, 1)
        self.average, self.compiled = average, compiled
        self.kept_outputs = None if kept_outputs is None else at_least("kept_outputs", kept_outputs, 1)
        if kept_outputs is not None and not self.evaluation.separable:
            raise ConfigError(
                f"kept_outputs={kept_outputs} evaluates a random part of the samples of a larger split, but the "
                f"figures of {type(self.evaluation).__name__} are about all of them together. Leave it out."
            )
        if average is not None and isinstance(self.algorithm, DoubleLoop) and self.algorithm.recovery_steps:
            raise ConfigError(
                f"average and recovery_steps={self.algorithm.recovery_steps} of {self.algorithm.name} both choose the "
                "weights that training ends with. Leave one of them out."
            )
        self.state_layout, self.processes = state_layout, Processes(alone=True)
        self.skipped_batches, self.job = 0, ""
        self.config: dict[str, Any] = {}
        self.problem: Problem | None = None
        self._engine: Engine | None = None
        self._restored: dict[str, Any] | None = None
        self._references: References | None = None
        self._clipping = (gradient_clip_val, gradient_clip_algorithm)
        self._typed: Hyperparameters = []
        self._schedule: dict[str, Any] | None = None

    # ---------------------------------------------------------------------------------------------- construction

    def configure_callbacks(self) -> list[Any]:
        """Take over Trainer flags that manual optimization would refuse; runs before Lightning's own checks."""
        trainer = self.trainer
        require_whole_weights(trainer)
        if self.average is not None:
            require_wide(trainer.precision)
        return [
            _Announce(),
            LoopProgress(),
            OneLine(),
            WholeColumns(),
            *(self._take_over(trainer) if trainer.state.fn == "fit" else []),
        ]

    def _take_over(self, trainer: Trainer) -> list[Callback]:
        """Accumulation and clipping of a fit; nothing is changed if one of the Trainer's settings is refused."""
        require_usable(trainer.callbacks, self)  # type: ignore[attr-defined]
        require_batches(trainer)
        own = OwnSettings(trainer, self)
        self.backend.clip_val, self.backend.clip_algorithm = self._clipping
        if trainer.gradient_clip_val:
            self.backend.clip_val = positive("gradient_clip_val", float(trainer.gradient_clip_val))
            self.backend.clip_algorithm = str(trainer.gradient_clip_algorithm or "norm")
        self.micro_batch = in_parts(trainer, self.micro_batch)
        trainer.accumulate_grad_batches, trainer.gradient_clip_val = 1, None
        return [own]

    def setup(self, stage: str) -> None:
        """Size the network and the dual state from the data.

        Raises:
            ConfigError: if the processes do not have the same data and configuration.
        """
        if self.processes.size != self.trainer.world_size:
            self.processes = Processes.apart()
        share_statistics(self.trainer, self.processes, self.micro_batch)
        install(self.trainer)
        self._phase_start = min(self._phase_start, self.trainer.current_epoch)  # of an earlier fit
        datamodule = getattr(self.trainer, "datamodule", None)
        for names in ("group_names", "label_names"):
            setattr(self.evaluation, names, getattr(datamodule, names, getattr(self.evaluation, names)))
        with self.processes.together():
            if isinstance(self.network, BatchNetwork):
                self.network.adapt(datamodule)
            self._size_network(getattr(datamodule, "num_features", None))
            for constraint in self.constraints if stage != "predict" else ():
                constraint.adapt(datamodule)
            self._check_constraints(datamodule)
            if stage == "fit":
                self._make_problem(datamodule)
        if self.compiled:
            self.network.compile(options={"fallback_random": True})  # torch's own draws: a second pass repeats them
        if stage == "fit":
            require_same_everywhere(self.processes, self._description(datamodule))
        else:
            self._know_old_model()

    def _check_constraints(self, datamodule: Any) -> None:
        """Refuse, before anything is trained, constraints that no weights meet or that a split cannot be judged by."""
        require_compatible(self.constraints)
        tables = getattr(datamodule, "tables", {})
        splits = {name: table.columns for name, table in tables.items() if name in ("val", "test")}
        if "train" in tables:
            require_columns(self.constraints, tables["train"].columns, splits)

    @property
    def _main_phase(self) -> Phase:
        return Phase(MAIN, self.objective, self.constraints, self.algorithm, self.optimizer, self.scheduler)

    @property
    def _phases(self) -> list[Phase]:
        return [self._main_phase] if self._first_phase is None else [self._first_phase, self._main_phase]

    @property
    def _phase(self) -> Phase:
        """The present one."""
        return self._phases[0] if self.pretraining else self._phases[-1]

    def _enter(self, epoch: int, *, pretraining: bool) -> None:
        """Begin a phase of training in ``epoch``, with rows of its own."""
        self.pretraining, self._phase_start, self.problem = pretraining, epoch, None
        self._make_problem(getattr(self.trainer, "datamodule", None))

    def _make_problem(self, datamodule: LightningDataModule | None) -> None:
        loader = None if hasattr(datamodule, "num_train") else training_loader(self.trainer)
        require_some_batch(loader)
        n = getattr(datamodule, "num_train", None) or self.num_samples or _length(loader)
        if n is None:
            raise ConfigError("num_samples is not known: pass num_samples=len(train_split), or use a datamodule.")
        if self.problem is not None and self.num_samples != n:
            raise ConfigError(
                f"the module's dual state belongs to a training split of {self.num_samples} samples, this one has {n}. "
                "Make a new FCCOModule for other data."
            )
        if self.problem is None:
            phase = self._phase
            phase.objective.adapt(datamodule)
            self.num_samples = int(n)
            self.problem = phase.algorithm.pose(
                phase.objective,
                phase.constraints,
                self.penalty,
                num_samples=self.num_samples,
                sampling=self._sampling(datamodule, loader),
                # as the Trainer is going to convert them, after a checkpoint's rows were loaded
                dtype=torch.float64 if self.trainer.precision == "64-true" else torch.float32,
                processes=self.processes,
                layout=self.state_layout,
            )
            # DistributedDataParallel would overwrite the shards of all processes with that of the first
            self._ddp_params_and_buffers_to_ignore = [
                f"problem.{name}.held" for name, part in self.problem.named_modules() if getattr(part, "divided", False)
            ]

    def _sampling(self, datamodule: Any, loader: DataLoader[Any] | None) -> Mapping[str, Drawn] | None:
        if hasattr(datamodule, "sampling"):
            known: Mapping[str, Drawn] = datamodule.sampling()
            return known
        return None if loader is None else drawn_by(loader, self.trainer.world_size)

    def _description(self, datamodule: LightningDataModule | None) -> dict[str, str]:
        """What must be the same on all processes."""
        penalty, parts = self._require(self.problem).penalty, self._phases
        described = {
            "num_samples": str(self.num_samples),
            "algorithm": "; ".join(f"{p.algorithm.name} {p.algorithm.settings()}" for p in parts),
            "pretrain": "none" if self.pretrain is None else str(plain_values(self.pretrain)),
            "penalty": f"{type(penalty).__name__} {plain_values(penalty)}",
            "constraints": str([(type(c).__name__, c.names, c.kappa) for c in self.constraints]),
            "network": str([(name, tuple(p.shape)) for name, p in self.network.named_parameters()]),
        }
        identity = getattr(datamodule, "identity", None)
        return described | ({} if identity is None else {"data": str(identity())})

    def _size_network(self, num_features: int | None) -> None:
        if not any(is_lazy(p) for p in self.network.parameters()):
            return
        if num_features is None:
            raise ConfigError("the network's input width is not known: set in_features, or use a datamodule.")
        training = self.network.training
        with torch.no_grad():
            self.network.eval()(torch.zeros(1, num_features))
        self.network.train(training)

    def configure_optimizers(self) -> Any:
        """The user's optimizer over all trainable parameters, with its schedule."""
        self._take_over_accumulation()
        optimizer = self._make_optimizer()
        self._typed = typed_hyperparameters(optimizer)
        scheduler = self._make_schedule(optimizer)
        self._schedule = None if scheduler is None else described(scheduler, self.backend.scheduler_interval)
        return optimizer if scheduler is None else {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _make_optimizer(self) -> Optimizer:
        return build_optimizer(self._phase.optimizer, self.network, self._phase.objective, self.objective_lr)

    def _make_schedule(self, optimizer: Optimizer) -> Any:
        make = self._phase.scheduler
        if make is None:
            return None
        scheduler = make(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau) and (
            self.backend.scheduler_interval == "step" or self.backend.scheduler_monitor is None
        ):
            raise ConfigError(
                "ReduceLROnPlateau needs scheduler_interval='epoch' and scheduler_monitor=a logged "
                "metric, e.g. train_auc."
            )
        if isinstance(scheduler, StepAtFractions):
            scheduler.set_total(self._length_of_phase())
        return scheduler

    def _length_of_phase(self) -> int:
        """Length of the present phase, in what a learning-rate schedule counts."""
        trainer, by_step = self.trainer, self.backend.scheduler_interval == "step"
        total = trainer.estimated_stepping_batches if by_step else trainer.max_epochs
        if self.pretraining and self.pretrain is not None:
            total = self.pretrain.epochs
        elif total is not None and self._phase_start > 0:
            total = -1 if trainer.max_epochs is None else trainer.max_epochs - self._phase_start
        if total is None or not 0 <= total < float("inf"):
            raise ConfigError("StepAtFractions needs to know the end of training: set --trainer.max_epochs.")
        if by_step and self.pretrain is not None:
            total *= math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        return int(total)

    def _take_over_accumulation(self) -> None:
        """One update of w per K batches is what Lightning knows as accumulation; its counters then agree."""
        algorithm = self._phase.algorithm
        if self._trainer is not None:
            self.trainer.accumulate_grad_batches = algorithm.K if isinstance(algorithm, DoubleLoop) else 1

    def on_fit_start(self) -> None:
        """Make the engine, now that parameters are on their device, and hand it the checkpoint's state."""
        self._know_old_model()
        if self._restored is not None and any(isinstance(c, BaseFinetuning) for c in self.trainer.callbacks):  # type: ignore[attr-defined]
            for name, parameter in self.network.named_parameters():  # it has frozen them as at the beginning
                parameter.requires_grad_(name in self._restored.get("trained", [name]))
        if self.average is not None:
            self.average.begin(self.network, None if self._restored is None else self._restored.get("average"))
        self._start_engine()
        if self._restored is not None:
            stored, own = self._restored["optimizer"]["class"], type(self._raw_optimizer).__name__
            if stored != own:
                raise CheckpointError(
                    f"the checkpoint holds the state of {stored}, this run uses {own}. Use --model.optimizer {stored}, "
                    "or start without --ckpt_path."
                )
            self.engine.load_state_dict(self._restored["engine"])
            then, states = self._restored.get("schedule", self._schedule), self._restored["lr_schedulers"]
            require_same_kind(self._schedule, then)
            if self._schedule != then and states:  # Lightning would restore the old arguments, too
                self._restored["old_schedule"] = states.pop()

    def _start_engine(self) -> None:
        phase = self._phase
        self._engine = Engine(
            self.network,
            self._require(self.problem),
            phase.algorithm,
            self.backend,
            self.micro_batch,
            compiled=self.compiled,
        )
        self._engine.has_schedule = bool(self.trainer.lr_scheduler_configs)
        others = [other.objective for other in self._phases if other.name != phase.name]
        self.backend.idle = [p for objective in others for p in objective.parameters() if p.requires_grad]

    def _end_pretraining(self, pretrain: Pretraining) -> None:
        """Go over to the second phase: new rows, optimizer and schedule, and perhaps a new head."""
        stop_asked, main = self.engine.stop_asked, self._main_phase
        self._enter(self.current_epoch, pretraining=False)
        self._require(self.problem).to(self.device)
        if pretrain.new_head:
            renew(head_of(self.network, pretrain.head), self.processes.everyone(seed_of_head())[0])
        if self.average is not None:
            self.average.forget()
            self.average.begin(self.network)
        self.trainer.strategy.setup_optimizers(self.trainer)
        self._start_engine()
        self.engine.stop_asked = stop_asked
        rank_zero_info(
            f"Pretraining is over after {self.current_epoch} epochs; from now on {type(main.objective).__name__} is "
            f"trained by {main.algorithm.name}."
        )

    def on_train_start(self) -> None:
        """Continue the random streams of the checkpoint, and let what the user changed win over it.

        Raises:
            ConfigError: if the processes have different numbers of batches.
        """
        require_same_everywhere(self.processes, {"number of training batches": str(self.trainer.num_training_batches)})
        if self._restored is None:
            return
        self._begin_epoch()  # in the middle of an epoch its start is not repeated
        apply_changes(self._raw_optimizer, self._typed, self._restored["optimizer"]["typed"])
        if "old_schedule" in self._restored:
            self._continue_schedule(self._restored["old_schedule"])
        set_random_streams(self._restored["random"])
        set_loader_streams(self._training_loaders(), self._restored["random"].get("loaders", ()))
        self._restored = None

    def _training_loaders(self) -> Sequence[Any]:
        combined = self.trainer.fit_loop._combined_loader
        return () if combined is None else combined.flattened

    def _continue_schedule(self, state: Mapping[str, Any]) -> None:
        """Let a schedule whose arguments were changed go on from where a checkpoint left it."""
        scheduler: Any = self.trainer.lr_scheduler_configs[0].scheduler
        if isinstance(scheduler, ReduceLROnPlateau):
            catch_up(scheduler, state)
            return
        other = self._make_optimizer()
        schedule = self._make_schedule(other)
        catch_up(schedule, state)
        scheduler.load_state_dict(schedule.state_dict())
        for group, values in zip(self._raw_optimizer.param_groups, other.param_groups, strict=False):
            group.update({name: value for name, value in values.items() if name != "params"})

    def _know_old_model(self) -> None:
        """Give every split the columns that constraints and evaluation remember of the weights training started from.

        Measured once, before the first step; a checkpoint holds them, and evaluating one finds them there.
        """
        datamodule: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(datamodule, "add_columns"):
            return
        if self._references is None and self.trainer.state.fn == "fit":
            parts: list[Remembers] = [self.evaluation, *self.constraints]
            self._references = References.measured(
                datamodule, partial(self.split_of, whole=True), parts, self._measuring(datamodule)
            )
        if self._references is not None:
            self._references.tell(datamodule, self._measuring(datamodule))

    def _measuring(self, datamodule: Any) -> dict[str, str]:
        """What the old model is measured on, and how."""
        losses = [(type(c.loss).__name__, plain_values(c.loss)) for c in self.constraints if hasattr(c, "loss")]
        scale = getattr(self.network, "class_temperature", None)
        return {**datamodule.references(), "loss": f"{losses}, class_temperature {scale}"}

    @property
    def _raw_optimizer(self) -> Optimizer:
        return self.trainer.optimizers[0]

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
        """The network's outputs, for what it takes: ``batch["x"]``, or the batch."""
        return self.network(x)

    def on_train_epoch_start(self) -> None:
        """Let rho follow its schedule, and the engine any change of what is frozen; end the pretraining."""
        if self.pretraining and self.pretrain is not None and self.current_epoch >= self.pretrain.epochs:
            self._end_pretraining(self.pretrain)
        self._begin_epoch()
        if self.engine.follow_parameters() and self.processes.size > 1:
            raise ConfigError(
                "layers were unfrozen during a fit with several processes: DistributedDataParallel would not average "
                "their gradients. Fit again from a checkpoint with them unfrozen from the start."
            )

    def _begin_epoch(self) -> None:
        self._require(self.problem).begin_epoch(self.current_epoch - self._phase_start)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """One batch of the algorithm."""
        trainer = self.trainer
        last = trainer.is_last_batch or batch_idx + 1 >= trainer.num_training_batches
        optimizer, updates = self._raw_optimizer, self.global_step
        estimates: Mapping[str, Tensor] = {}
        statistics = [b.clone() for b in self.network.buffers()] if self.skip_nonfinite else []
        try:
            estimates = self.engine.train_batch(batch, optimizer, last_batch=last)
        except NonFiniteError:
            if not self.skip_nonfinite:
                raise
            self.skipped_batches += 1
            for buffer, kept in zip(self.network.buffers(), statistics, strict=True):
                buffer.copy_(kept)  # a forward pass over NaN has moved BatchNorm's statistics
            require_finite_weights(self, self.network)  # with weights that diverged all batches would be skipped
            if last:
                self.engine.close_inner_loop(optimizer)
        if last:
            self.backend.step_schedulers("epoch")
        self._count_updates()
        if self.average is not None and self.global_step > updates:
            self.average.update(self.network, self.global_step)
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # 0 for never
        updated = self.global_step > updates
        if every and (last or (updated and self.global_step % every == 0)):
            self._log_step(estimates, updated=updated)

    def _count_updates(self) -> None:
        # Lightning's loggers count batches here; the x-axis is to be updates of w
        loop = self.trainer.fit_loop.epoch_loop
        loop._batches_that_stepped = max(0, self.global_step - (not loop._should_accumulate()))

    def _log_step(self, estimates: Mapping[str, Tensor], *, updated: bool) -> None:
        # callbacks have figures after every epoch; loggers one for an update of w, of which some epochs may have none
        # straight to the loggers: Lightning would write a step's value whenever its own counter, of batches, says so
        found = {f"{self._phase.prefix}_{name}": value.item() for name, value in estimates.items()}
        values = {name: value for name, value in found.items() if not math.isnan(value)}  # of what the batch spoke of
        self.backend.of_steps |= values.keys()
        self.log_dict(values, prog_bar=True, logger=False, batch_size=1)
        if not updated:
            return
        values |= {f"nu/{name}": value for name, value in self.multipliers().items()}
        if self.skip_nonfinite:
            values["algo/skipped_batches"] = float(self.skipped_batches)
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.global_step - 1)

    def on_validation_start(self) -> None:
        """Evaluate the averaged weights, where there are any."""
        self._show_average(True)
        super().on_validation_start()

    def on_validation_end(self) -> None:
        """Train on with the last weights, once all callbacks have seen what was evaluated."""
        self._show_average(False)

    def _show_average(self, averaged: bool) -> None:
        if self.average is not None and self.trainer.state.fn == "fit":
            self.average.show(self.network, averaged=averaged)

    def on_train_epoch_end(self) -> None:
        """Schedules that watch a validation metric, unless the epoch is to be continued."""
        if epoch_is_whole(self.trainer):
            self.backend.step_schedulers("epoch", plateau=True)

    def on_train_end(self) -> None:
        """What the algorithm does at the end, such as the recovery step of ALEXR2 (SONEX paper, Cor. 4.11)."""
        if self.trainer.interrupted:
            return
        with self.trainer.precision_plugin.train_step_context():
            changed = self.engine.finish(self._endless_batches(), self._raw_optimizer)
        if self.average is not None:
            self.average.show(self.network, averaged=True)
            self._share_statistics()
        if not changed:
            return
        saver = self.trainer.checkpoint_callback
        if isinstance(saver, ModelCheckpoint) and saver.dirpath:
            self.trainer.save_checkpoint(Path(saver.dirpath) / "recovered.ckpt")

    def _endless_batches(self) -> Iterator[dict[str, Any]]:
        loader = self.trainer.fit_loop._combined_loader
        while loader is not None:
            for batch, *_ in loader:
                yield self.trainer.strategy.batch_to_device(batch)

    # ----------------------------------------------------------------------------------------------- checkpoints

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> "FCCOModule":
        """Lightning's, which makes the module with the keyword arguments and gives it the weights of a checkpoint.

        Raises:
            CheckpointError: naming the file and what is wrong with it.
        """
        if isinstance(checkpoint_path, str | Path) and "://" not in str(checkpoint_path):
            read_file(checkpoint_path)
        module: FCCOModule = super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
        return module

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Everything that a bit-for-bit continuation needs beside weights, rows and optimizers.

        Raises:
            NonFiniteError: if the weights are not finite; nothing is written then.
        """
        require_finite_weights(self, self.network)
        if self._engine is None:
            require_rows(self._trainer)
            return
        self._share_statistics()
        if self.average is not None:
            self.processes.average_(self.average.statistics)
        streams = random_streams() | {"loaders": loader_streams(self._training_loaders())}
        own = {"typed": self._typed, "schedule": self._schedule, "random": streams}
        if self._restored is not None:  # nothing was trained since it was loaded
            own = {"typed": self._restored["optimizer"]["typed"], "random": self._restored["random"]}
            own["schedule"] = self._restored.get("schedule", self._schedule)
            if "old_schedule" in self._restored and "lr_schedulers" in checkpoint:
                checkpoint["lr_schedulers"] = [self._restored["old_schedule"]]
        checkpoint["fcco"] = {
            "version": CHECKPOINT_VERSION,
            "world_size": self.processes.size,
            "job": self.job,
            "config": self.config,
            "classes": [str(n) for n in getattr(getattr(self.trainer, "datamodule", None), "class_names", None) or ()],
            "phase": {"name": self._phase.name, "epoch": self._phase_start},
            "algorithm": self._phase.algorithm.name,
            "num_samples": self.num_samples,
            "engine": self._engine.state_dict(),
            "trained": [name for name, p in self.network.named_parameters() if p.requires_grad],
            "optimizer": {"class": type(self._raw_optimizer).__name__, "typed": own["typed"]},
            "schedule": own["schedule"],
            "of_steps": sorted(self.backend.of_steps),
            "random": own["random"],
            "skipped_batches": self.skipped_batches,
            "average": None if self.average is None else self.average.state(checkpoint["state_dict"]),
            "references": None if self._references is None else tuple(self._references),
        }

    def multipliers(self) -> dict[str, float]:
        """The multipliers of the constraints by name, see :meth:`Problem.multipliers`; empty without."""
        return {} if self.problem is None else self.problem.multipliers()

    def dual_states(self) -> dict[str, DualState]:
        """All dual states by their name in checkpoints."""
        return {name: part for name, part in self.named_modules() if isinstance(part, DualState)}

    def _own_rows(self) -> dict[str, Any]:
        return {} if self.problem is None else {f"problem.{k}": v for k, v in self.problem.state_dict().items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse what does not fit, before anything is overwritten."""
        stored = checkpoint.get("fcco")
        if stored is None:
            raise CheckpointError("the checkpoint was not written by FCCOModule during fit: it has no algorithm state.")
        if stored.get("version") != CHECKPOINT_VERSION:
            raise CheckpointError(f"the checkpoint: {another_format(stored)}")
        references = None if stored.get("references") is None else References(*stored["references"])
        datamodule: Any = None if self._trainer is None else getattr(self.trainer, "datamodule", None)
        if references is not None and hasattr(datamodule, "references"):
            references.check(self._measuring(datamodule))
        self._references = references
        if self._trainer is not None and self.trainer.precision == "64-true":
            self.double()  # the Trainer does so only when the weights are loaded, and rounded
        if self.problem is None or self._trainer is None or self.trainer.state.fn != "fit":
            # evaluation needs the weights only
            weights = {k: v for k, v in checkpoint["state_dict"].items() if not k.startswith("problem.")}
            checkpoint["state_dict"] = weights | self._own_rows()
            if self._trainer is not None:
                self._know_old_model()  # before the workers of the loaders copy the data
            return
        if not {"optimizer_states", "lr_schedulers"} <= checkpoint.keys():
            raise CheckpointError(f"the checkpoint {WEIGHTS_ALONE}")
        self._continue_phase(stored)
        load(self.dual_states(), checkpoint, self.processes)
        if stored.get("average") is not None:
            exchange(checkpoint["state_dict"], stored["average"])
        self.skipped_batches = stored["skipped_batches"]
        self.backend.of_steps |= set(stored.get("of_steps", ()))  # the epoch may end without another step
        self._restored = {**stored, "lr_schedulers": checkpoint["lr_schedulers"]}

    def _continue_phase(self, stored: Mapping[str, Any]) -> None:
        """Enter the phase in which a checkpoint was written."""
        phase = stored.get("phase", {"name": MAIN, "epoch": 0})
        pretraining = phase["name"] == PRETRAINING
        if pretraining and self._first_phase is None:
            raise CheckpointError(
                "the checkpoint was written while pretraining, and this run does not pretrain. Give it the same "
                "--model.pretrain, or start without --ckpt_path."
            )
        if pretraining != self.pretraining:
            self._enter(phase["epoch"], pretraining=pretraining)
        self._phase_start, algorithm = phase["epoch"], self._phase.algorithm
        if stored["algorithm"] != algorithm.name:
            raise CheckpointError(
                f"the checkpoint was written by {stored['algorithm']}, this run uses {algorithm.name}: their "
                f"states mean different things. Use --model.algorithm {stored['algorithm']}, or start without "
                "--ckpt_path."
            )


def _length(loader: DataLoader[Any] | None) -> int | None:
    return len(loader.dataset) if loader is not None and isinstance(loader.dataset, Sized) else None


def seed_of_head() -> int:
    """A seed that depends only on the one of this run, which a resume continues, whatever was drawn since."""
    return int(np.random.SeedSequence([torch.initial_seed(), 1]).generate_state(1, np.uint64)[0] >> 1)


def plain_values(part: object) -> dict[str, Any]:
    """The attributes of a part that are numbers or words: they look the same on every process."""
    return {k: v for k, v in vars(part).items() if isinstance(v, int | float | str)}


class _Announce(Callback):
    """If this process fails outside a training step, the others are not left waiting."""

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        if isinstance(pl_module, FCCOModule) and isinstance(exception, Exception):
            pl_module.processes.fail(exception, timeout=10.0)
