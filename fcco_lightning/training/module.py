"""The LightningModule: one training step, by manual optimization, for all algorithms."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fcco_lightning.algorithms import PDSCA, Algorithm, DoubleLoop, default_algorithm
from fcco_lightning.checks import non_negative
from fcco_lightning.constraints import Constraint, DecisionRule, Decisions, as_decisions
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.data.columns import listed_in_order
from fcco_lightning.engine import Engine, Outputs, Problem, read, require_single
from fcco_lightning.engine.stored import require_same_problem, what_is_solved
from fcco_lightning.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from fcco_lightning.estimators import AdamType
from fcco_lightning.evaluation import Evaluation, default_evaluation
from fcco_lightning.models import head_of, renew
from fcco_lightning.objectives import AUC, Objective
from fcco_lightning.state import DualState
from fcco_lightning.state.checkpoint_files import (
    CHECKPOINT_VERSION,
    WEIGHTS_ALONE,
    another_format,
    in_memory,
    in_words,
    read_file,
    versioned,
    whole_or_not,
)
from fcco_lightning.state.parts import without_values
from fcco_lightning.state.processes import Processes, require_same_everywhere
from fcco_lightning.training.averaging import WeightAverage, exchange
from fcco_lightning.training.backend import Clipping, LightningBackend
from fcco_lightning.training.common_statistics import share_statistics
from fcco_lightning.training.eased_decay import EasedDecay
from fcco_lightning.training.evaluating import EvaluatingModule
from fcco_lightning.training.execution import Execution, require_parts, require_settings
from fcco_lightning.training.finite_weights import require_finite_weights, statistics_kept
from fcco_lightning.training.old_model import OldModel
from fcco_lightning.training.optimizers import Stepping
from fcco_lightning.training.posing import (
    class_changes,
    contents_of_some,
    cost_classes,
    datamodule_of,
    description,
    ends_with_one,
    fit_to_data,
    of_changed_classes,
    of_rare_positives,
    own_loader,
    tighten,
    training_split,
)
from fcco_lightning.training.precisions import WholeColumns, require_wide
from fcco_lightning.training.pretraining import Phase, Phases, Pretraining, batches_per_update, recommended_by
from fcco_lightning.training.progress_line import OneLine
from fcco_lightning.training.resuming.continuing import Continuation
from fcco_lightning.training.resuming.progress import RESULTS, LoopProgress, epoch_is_whole
from fcco_lightning.training.resuming.row_checkpoints import install, load
from fcco_lightning.training.schedules import Schedule
from fcco_lightning.training.sharding import ShardedWeights, require_shardable, shard, take_strategy
from fcco_lightning.training.together import Announce, begin_together, joined_by_failure
from fcco_lightning.training.trainers import NothingBeforeTraining, OwnSettings, require_rows

RECOVERED = "recovered.ckpt"
"""The checkpoint of what the recovery step of ALEXR2 has made of the last weights."""

T = TypeVar("T")
_CONSTANT = Schedule()
_UNCLIPPED = Clipping()
_PLAIN = Execution()


class FCCOModule(EvaluatingModule):
    r"""Trains a network on an objective under constraints with any algorithm of the package.

    ``min_w g_0(w) + (1/n) sum_i f_i(g_i(w))  subject to  h_j(w) <= 0``, where the constraints are enforced by
    multipliers or a penalty.

    Args:
        network: maps ``batch["x"]`` to outputs, or the whole batch if it is a :class:`~fcco_lightning.BatchNetwork`;
            layers of unknown input width are sized from the data.
        objective: the objective; AUC by default.
        constraints: constraints h_j(w) <= 0, any number.
        penalty: how constraints are enforced: by a fixed penalty, or by multipliers that are updated during training;
            the default is the latter, by :class:`~fcco_lightning.AdaptivePenalty`.
        algorithm: the default is SONEX, or SGD if no running estimates are needed, see
            :func:`~fcco_lightning.algorithms.default_algorithm`.
        optimizer: makes the optimizer of all trainable parameters; by default Adam with the papers' beta.
        schedule: learning rates over the run; constant by default.
        clipping: the largest gradient that is allowed; unlimited by default.
        evaluation: the figures that are reported for a split; by default the evaluation that fits the type of the
            objective, see :func:`~fcco_lightning.evaluation.default_evaluation`.
        pretrain: a first phase of training on another objective, such as cross-entropy before average precision; None
            for none.  By default, "auto", the recommendations of the objective are followed
            (:attr:`~fcco_lightning.Objective.recommended`): a seamless first phase if it recommends one, cross-entropy
            as an additional term of AUC, partial AUC, average precision and its mean, and recall at k, and, for
            objectives on the worst groups, a threshold that is optimal for the present rows.
        average: an average of the weights over the updates, which is validated and reported in place of the last
            weights; None for none.
        execution: micro-batches, compilation, and where the rows are stored; none of it changes what is optimized.
        decisions: what decisions are for: "balanced", or :class:`~fcco_lightning.Decisions`; by default a sample is
            decided positive if its probability is above 1/2.
        margin: by how much constraints are enforced more strictly than asked for, in units of h, since rates on new
            samples differ from those on the training split; "auto" takes the standard error of h where h compares two
            means (:meth:`~fcco_lightning.Constraint.standard_error`), at most half of kappa.

    Attributes:
        rule: turns the network's scores into decisions.
        skipped_batches: number of batches that were dropped because of values that are not finite.
        num_samples: size of the training split; None before it is known.
        problem: objective and constraints with their rows and multipliers; None before a fit.
        phases: the phases of the run, such as pretraining.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective | None = None,
        constraints: Sequence[Constraint] = (),
        penalty: Enforcement | None = None,
        algorithm: Algorithm | None = None,
        optimizer: OptimizerCallable = AdamType,
        schedule: Schedule = _CONSTANT,
        clipping: Clipping = _UNCLIPPED,
        evaluation: Evaluation | None = None,
        pretrain: Pretraining | Literal["auto"] | None = "auto",
        average: WeightAverage | None = None,
        execution: Execution = _PLAIN,
        decisions: Literal["balanced"] | Decisions | None = None,
        margin: float | Literal["auto"] = 0.0,
    ) -> None:
        super().__init__()
        require_settings(schedule=schedule, clipping=clipping, execution=execution)
        require_parts(objective, constraints, penalty, algorithm, optimizer)
        self.automatic_optimization = False
        objective = objective or AUC()
        self.algorithm = algorithm or default_algorithm(objective, constrained=bool(constraints))
        self.network, self.objective = network, self.algorithm.posed(objective, constraints)[0]
        self.constraints, self.penalty = list(constraints), penalty
        self.optimizer, self.schedule, self.clipping = optimizer, schedule, clipping
        self.evaluation = evaluation or default_evaluation(self.objective)
        self.average, self.execution = average, execution
        self.rule = DecisionRule(as_decisions(decisions), proper=self.objective.proper)
        if decisions is not None and not self.objective.scores_classes:
            rank_zero_warn(
                f"`decisions` is set, but the outputs that {type(self.objective).__name__} trains are not class "
                "scores: it only affects rates in constraints, and samples are not classified. Leave `decisions` "
                "(--decisions) out, or choose a classification objective."
            )
        self.margin: float | Literal["auto"] = margin if margin == "auto" else non_negative("margin", margin)
        self._as_recommended = pretrain == "auto" and not isinstance(self.algorithm, PDSCA)
        if pretrain == "auto":
            pretrain = recommended_by(self.objective, constraints) if self._as_recommended else None
        self.phases = Phases(pretrain, self._main_phase, network)
        if self.phases.first is not None:  # its parameters are moved to the device, and saved, with all others
            self.pretraining_objective = self.phases.first.objective
        require_possible(self.algorithm, average)
        self.backend = LightningBackend(self, clipping, schedule)
        self.processes, self.num_samples = Processes(alone=True), execution.num_samples
        self.skipped_batches, self.job, self._finished = 0, "", False
        self.config: dict[str, Any] = {}
        self.problem: Problem | None = None
        self._data: dict[str, Any] = {}  # identifies the training split of the rows
        self._engine: Engine | None = None
        self._stepping: Stepping | None = None
        self._eased_decay: EasedDecay | None = None  # callback of the present fit
        self._groups = 1  # parameter groups of the optimizer when it was made
        self._continuation = Continuation()
        self._old_model = OldModel(self)

    # ---------------------------------------------------------------------------------------------- construction

    def configure_callbacks(self) -> list[Any]:
        """Apply Trainer flags that Lightning refuses under manual optimization; it is called before those checks."""
        take_strategy(self.trainer)
        begin_together(self.trainer, self)
        with joined_by_failure(self.trainer, self):
            return self._own_callbacks(self.trainer)

    def _own_callbacks(self, trainer: Trainer) -> list[Callback]:
        nothing_before = NothingBeforeTraining(trainer)
        require_shardable(trainer, self)
        if trainer.state.fn == "fit" and self._compiler_ctx is not None:
            raise ConfigError(
                "a module from torch.compile(module) would compile the whole training step, whose hand-made gradients "
                "it gets wrong. Give the module itself to Trainer.fit, with execution=Execution(compiled=True) "
                "(--model.execution.compiled true)."
            )
        if self.average is not None:
            require_wide(trainer.precision)
        extra: list[Callback] = [OwnSettings(trainer, self)] if trainer.state.fn == "fit" else []
        if self.schedule.decay_spread is not None and extra:
            self._eased_decay = EasedDecay(self.schedule.decay_spread)
            self.backend.around_step = self._eased_decay.eased
            extra.append(self._eased_decay)
        callbacks: list[Callback] = [LoopProgress(), OneLine(), WholeColumns(), nothing_before, *extra]
        kinds = {
            Announce,
            Continuation,
            EasedDecay,
            *map(type, callbacks),
        }  # removed if left by an earlier call: Lightning would print a message for each that it replaces
        others = [c for c in trainer.callbacks if type(c) not in kinds]  # type: ignore[attr-defined]
        trainer.callbacks = [Announce(), self._continuation, *others]  # type: ignore[attr-defined]
        return callbacks

    def setup(self, stage: str) -> None:
        """Size the network and the dual state from the data.

        Raises:
            ConfigError: if the processes do not have the same data and configuration.
        """
        share_statistics(self.trainer, self.processes, self.execution.micro_batch)
        install(self.trainer)
        self.phases.start = min(self.phases.start, self.trainer.current_epoch)  # start may be from an earlier fit
        self.objective.recommended = self._as_recommended
        self.rule.proper = self.objective.proper
        datamodule = datamodule_of(self.trainer)
        for constraint in self.constraints:
            constraint.decide_by(self.rule.decisions)
        with self.processes.together():
            fit_to_data(self.network, self.constraints, datamodule, predict=stage == "predict")
            self.evaluation.take_names(datamodule)  # of the columns, too, by which constraints group
            if stage == "fit":
                tighten(self.constraints, self.margin, datamodule)
                self._pose()
        if self.execution.compiled:
            # eager random numbers and one graph for all sizes of micro-batches, so that a second pass repeats the first
            several = None if self.execution.micro_batch is None else True
            self.network.compile(options={"fallback_random": True}, dynamic=several)
        if self.problem is not None and stage == "fit":
            posed = description(self.problem, self.num_samples, self.network, self.constraints, datamodule)
            require_same_everywhere(self.processes, posed | self.phases.description())
        else:
            self._old_model.know()

    def configure_model(self) -> None:
        """Shard the network's weights over the processes, where the strategy is ``ModelParallelStrategy``.

        See :func:`~fcco_lightning.training.sharding.shard`; a subclass may do so in its own way.
        """
        strategy = None if self._trainer is None else self.trainer.strategy
        if isinstance(strategy, ShardedWeights):
            if strategy._layer_sync is not None:
                self.network = strategy._layer_sync.apply(self.network)
            shard(self.network, strategy.device_mesh["data_parallel"], self.processes)

    def _main_phase(self) -> Phase:
        return Phase(self.objective, self.constraints, self.algorithm, self.optimizer, self.schedule.scheduler)

    def _pose(self) -> None:
        """Make the rows of the present phase, with the values of an earlier fit, if any.

        The batches may be drawn in another way than in that fit.
        """
        loader, datamodule = own_loader(self.trainer), datamodule_of(self.trainer)
        n, sampling = training_split(self.trainer, loader, self.execution.num_samples)
        if self.problem is not None and self.num_samples != n:
            raise ConfigError(
                f"the module's dual state belongs to a training split of {self.num_samples} samples, this one has {n}. "
                "Make a new FCCOModule for other data."
            )
        phase = self.phases.present
        for objective in {phase.objective, self.objective}:  # what does not fit the data is refused before any phase
            objective.adapt(datamodule)
        train_sampling = None if sampling is None else next(iter(sampling.values()))
        split, decisions = None if train_sampling is None else train_sampling.columns, self.rule.decisions
        self.rule.costs = cost_classes(
            phase.objective, decisions, split, class_changes(phase.objective, train_sampling)
        )
        if self._engine is None:
            changes = class_changes(self.objective, train_sampling)
            advice = of_changed_classes(decisions, changes) or of_rare_positives(self.objective, decisions, split)
            if advice:
                rank_zero_info(advice)
        self.rule.known |= self.objective.classifies and self.rule.decisions.mistakes  # at a score of 0
        with self.phases.named_in_refusals():
            problem = phase.algorithm.pose(
                phase.objective,
                phase.constraints,
                self.penalty,
                num_samples=n,
                sampling=sampling,
                # the Trainer converts the rows to this type, but only after a checkpoint's rows are loaded
                dtype=torch.float64 if self.trainer.precision == "64-true" else torch.float32,
                processes=self.processes,
                layout=self.execution.state_layout,
            )
        if loader is not None:
            problem.data["contents"] |= contents_of_some(loader, n)
        if self.problem is not None:
            try:  # strict=False: inclusion probabilities are stored only where they are estimated from batches
                problem.load_state_dict(self.problem.state_dict(), strict=False)
                problem.loaded = False  # an algorithm begins every fit anew
                if loader is not None:
                    problem.require_same_data(self.problem.data, allow_changed=self.execution.allow_changed)
                elif self._data and hasattr(datamodule, "identity"):  # such a datamodule compares the data itself
                    datamodule.load_state_dict(self._data)
            except (CheckpointError, DataError) as error:
                raise ConfigError(
                    "the module's rows belong to another training split, whose samples are others or own other rows. "
                    "Make a new FCCOModule for other data."
                ) from error
        self.num_samples, self.problem = n, problem
        self._data = datamodule.state_dict() if hasattr(datamodule, "identity") else {}
        # DistributedDataParallel would overwrite the shards of all processes by the shard of the first process
        self._ddp_params_and_buffers_to_ignore = [
            f"problem.{name}.held" for name, part in self.problem.named_modules() if getattr(part, "partial", False)
        ]

    def configure_optimizers(self) -> Any:
        """The user's optimizer over all trainable parameters, with its schedule.

        An algorithm that updates w once in K batches is announced to Lightning as accumulation over K batches, so that
        Lightning's counters agree.
        """
        if self._trainer is not None:
            self.trainer.accumulate_grad_batches = batches_per_update(self.phases.present.algorithm)
        stepping = self._stepping = self.phases.stepping(self.network, self.schedule, self._trainer)
        self._groups = len(stepping.optimizer.param_groups)
        return (
            stepping.optimizer
            if stepping.scheduler is None
            else {"optimizer": stepping.optimizer, "lr_scheduler": stepping.scheduler}
        )

    def on_fit_start(self) -> None:
        """Make the engine, since parameters are now on their device, and restore its state from the checkpoint."""
        self.phases.require_time_for_all(self.trainer.max_epochs)
        self._old_model.know()
        self.backend.validated_in = -1
        self._continuation.freeze_as_then(self.trainer, self.network)
        self._continuation.stop_as_then(self.trainer)
        if self.average is not None:
            self.average.begin(self.network, self._continuation.get("average"))
        if self._stepping is None:
            raise ConfigError(
                f"{type(self).__name__}.configure_optimizers is overridden, but the algorithm must know the optimizer. "
                "Give it, and a schedule, to FCCOModule: optimizer=lambda params: ..., schedule=Schedule(...)."
            )
        self._start_engine()
        self._continuation.restore(self.engine, self._stepping)
        if self._eased_decay is not None and (stored := self._continuation.get("eased_decay")) is not None:
            self._eased_decay.load(stored)

    def _start_engine(self) -> None:
        self._engine = Engine(
            self.network,
            _set_up(self.problem),
            self.phases.present.algorithm,
            self.backend,
            self.execution.micro_batch,
            compiled=self.execution.compiled,
        )
        self._engine.onlookers = [self._look_at_outputs]
        if self.processes.size == 1 and ends_with_one(self.trainer):
            self._engine.onlookers.append(require_single)
        self._engine.functions.by_all = self.processes.largest if self.backend.sharded else None
        self._engine.has_schedule = bool(self.trainer.lr_scheduler_configs)
        self.backend.idle = self.phases.idle
        self._begin_means()

    def _begin_means(self) -> None:
        if self.trainer.log_every_n_steps:  # type: ignore[attr-defined]
            self.engine.average_estimates()

    def _look_at_outputs(self, engine: Engine, outputs: Outputs) -> None:
        with torch.no_grad():
            engine.measure(outputs.at_present())  # first, because their error messages are the more specific ones
        if self.trainer.enable_validation:  # else the evaluation need not fit the outputs
            self.evaluation.check(*read(outputs.now, outputs.columns, self.objective))

    def on_train_start(self) -> None:
        """Restore the random streams of the checkpoint, and apply settings that the user has changed since.

        Raises:
            ConfigError: if the processes have different numbers of batches.
        """
        trainer = self.trainer
        stepping = _set_up(self._stepping)
        self.phases.announce(trainer)
        settings = {
            "number of training batches": trainer.num_training_batches,
            "validation": [bool(number) for number in trainer.num_val_batches],
            "optimizer": (type(stepping.optimizer).__name__, stepping.typed),
            "schedule": stepping.kind,
        }
        require_same_everywhere(self.processes, {name: str(value) for name, value in settings.items()})
        if self._continuation.stored is not None:
            # Lightning does not call on_train_epoch_start when it resumes within an epoch
            _set_up(self.problem).begin_epoch()
            rebuild = partial(self.phases.stepping, self.network, self.schedule, trainer)
            self._continuation.go_on(trainer, _set_up(self._stepping), rebuild)
            self.backend.continued = True

    @property
    def engine(self) -> Engine:
        """The engine of the running fit."""
        return _set_up(self._engine)

    # -------------------------------------------------------------------------------------------------- training

    def forward(self, x: Any) -> Any:
        """The network's outputs for its input: ``batch["x"]``, or the batch for a BatchNetwork."""
        return self.network(x)

    def on_train_epoch_start(self) -> None:
        """Follow margins of constraints, and layers that were frozen or unfrozen, and end the pretraining if due."""
        before = {id(p) for p in self.engine.params}
        if self.phases.is_over(self.current_epoch, self.trainer):
            self._end_pretraining()
            if not self.phases.seamless:  # the new phase has an optimizer of its own
                before = {id(p) for p in self.engine.params}
        _set_up(self.problem).begin_epoch()
        self._begin_means()
        self.engine.follow_parameters()
        self._require_trainable(before)

    def _require_trainable(self, before: Collection[int]) -> None:
        """Refuse unfrozen layers that no optimizer updates; ``before`` has the ids of the parameters trained so far."""
        if all(id(p) in before for p in self.network.parameters() if p.requires_grad):
            return
        if self.processes.size > 1:
            raise ConfigError(
                "layers were unfrozen during a fit with several processes: DistributedDataParallel would not average "
                "their gradients. Fit again from a checkpoint with them unfrozen from the start."
            )
        optimized = {
            id(p) for optimizer in self.trainer.optimizers for group in optimizer.param_groups for p in group["params"]
        }
        moved = optimized.union(before)
        idle = [name for name, p in self.network.named_parameters() if p.requires_grad and id(p) not in moved]
        if idle:
            raise ConfigError(
                f"layers were unfrozen that the optimizer does not hold, {listed_in_order(idle)}: it was made for "
                "those that were trained at the start. Add them, too (BaseFinetuning.unfreeze_and_add_param_group, or "
                "trainer.optimizers[0].add_param_group)."
            )

    def _end_pretraining(self) -> None:
        """Begin the second phase: new rows and, unless it is seamless, a new optimizer and perhaps a new head."""
        phases = self.phases
        stop_asked = self.engine.stop_asked
        before = _set_up(self.problem)
        if not phases.seamless:
            self._require_own_groups()
        phases.pretraining, phases.start, self.problem = False, self.current_epoch, None
        self._pose()
        _set_up(self.problem).to(self.device)
        if phases.seamless:
            _set_up(self.problem).take_constraints(before)
            self.trainer.accumulate_grad_batches = batches_per_update(self.algorithm)
        else:
            self._begin_anew()
        self._start_engine()
        self.engine.stop_asked = stop_asked
        if self.current_epoch > 0:
            rank_zero_info(
                f"Pretraining is over after {self.current_epoch} epochs; from now on {type(self.objective).__name__} "
                f"is trained by {self.algorithm.name}."
            )

    def _require_own_groups(self) -> None:
        if len(self.trainer.optimizers[0].param_groups) != self._groups:
            raise ConfigError(
                "a callback has added groups of parameters to the optimizer, and the pretraining's end makes another "
                f"one. Unfreeze layers when epoch {self.current_epoch + 1} starts or later, or leave `pretrain` out."
            )

    def _begin_anew(self) -> None:
        """Make a new head, if asked for, a new optimizer and a new average of the weights for the second phase."""
        pretrain = self.phases.pretrain
        if pretrain is not None and pretrain.renews_head:
            renew(head_of(self.network, pretrain.head), self.processes.everyone(seed_of_head())[0])
        if self.average is not None:
            self.average.forget()
            self.average.begin(self.network)
        self.trainer.strategy.setup_optimizers(self.trainer)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Run the algorithm on one batch, step the schedules and log."""
        trainer, optimizer, updates = self.trainer, self.trainer.optimizers[0], self.global_step
        last = trainer.is_last_batch or batch_idx + 1 >= trainer.num_training_batches
        estimates: Mapping[str, Tensor] = {}
        self._finished = False
        try:
            with statistics_kept(self.network, enabled=self.execution.skip_nonfinite):
                estimates = self.engine.train_batch(batch, optimizer, last_batch=last)
        except NonFiniteError:
            if not self.execution.skip_nonfinite:
                raise
            self.skipped_batches += 1
            require_finite_weights(self, self.network)  # else diverged weights would skip all later batches
            if last:
                self.engine.close_inner_loop(optimizer)
        if self._eased_decay is not None:
            self._eased_decay.take()
        if last:
            self.backend.step_schedulers("epoch")
        self.backend.count_updates()
        updated = self.global_step > updates
        if self.average is not None and updated:
            self.average.update(self.global_step)
        if self.backend.is_logged(last=last, updated=updated):
            skipped = {"algo/skipped_batches": float(self.skipped_batches)} if self.execution.skip_nonfinite else {}
            others = {f"nu/{name}": value for name, value in self.multipliers().items()} | skipped
            epoch_figures = self._figures_of_epoch() if last else {}
            self.backend.log(self.phases.present.prefix, estimates, others, epoch_figures, updated=updated)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """After an epoch's last batch replace that batch's figures by their means over the epoch.

        Callbacks that stop or save on a training figure, such as ``EarlyStopping("train_objective")``, use the means.
        """
        if self.engine.last_batch:
            self.log_dict(self._figures_of_epoch(), logger=False, batch_size=1)

    def _figures_of_epoch(self) -> dict[str, Tensor]:
        return self.backend.figures_of_epoch(self.phases.present.prefix, self.engine.averages)

    def on_validation_start(self) -> None:
        """Evaluate the averaged weights, where there are any."""
        if self.average is not None and self.trainer.state.fn == "fit":
            self.average.show(averaged=True)
        super().on_validation_start()

    def on_validation_end(self) -> None:
        """Return to the last weights for training; all callbacks have run with the averaged ones."""
        if self.trainer.state.fn != "fit":
            return
        self.backend.validated_in = -1 if self.trainer.sanity_checking else self.current_epoch
        if self.average is not None:
            self.average.show(averaged=False)

    def on_train_epoch_end(self) -> None:
        """Step schedules that watch a metric; if the epoch was cut short, log its means so far instead."""
        if epoch_is_whole(self.trainer):
            self.backend.step_schedulers("epoch", plateau=True)
        else:
            self.log_dict(self._figures_of_epoch(), logger=False, batch_size=1)

    def on_train_end(self) -> None:
        """Finish the algorithm, for example by the recovery step of ALEXR2 (SONEX paper, Cor. 4.11)."""
        if self.trainer.interrupted:
            return
        changed = False
        if not self._finished:  # a run resumed from the checkpoint that is saved below is finished already
            with self.trainer.precision_plugin.train_step_context():
                changed = self.engine.finish(self.backend.batches(), self.trainer.optimizers[0])
            self._finished = True
        if self.average is not None:
            self.average.show(averaged=True)
        self._share_statistics()  # the report needs them even if nothing was validated or saved
        saver = self.trainer.checkpoint_callback
        if changed and isinstance(saver, ModelCheckpoint) and saver.dirpath:
            self.trainer.save_checkpoint(Path(saver.dirpath) / RECOVERED)

    # ----------------------------------------------------------------------------------------------- checkpoints

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> "FCCOModule":
        """Make a module with the given arguments and load a checkpoint's weights, as Lightning's method does.

        Raises:
            CheckpointError: naming the file and its fault.
        """
        if isinstance(checkpoint_path, str | Path) and "://" not in str(checkpoint_path):
            content = read_file(checkpoint_path)
            if without_values(content):
                checkpoint_path = in_memory(checkpoint_path)
        module: FCCOModule = super().load_from_checkpoint(checkpoint_path, *args, **kwargs)
        return module

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what a bit-for-bit continuation needs in addition to weights, rows and optimizers.

        Raises:
            NonFiniteError: if the weights are not finite; nothing is written then.
        """
        with self.processes.together():
            require_finite_weights(self, self.network)
        if self._engine is None:
            require_rows(self._trainer)
            return
        self._share_statistics()
        if self.average is not None:
            self.processes.average_(self.average.statistics)
        if self._engine.last_batch and RESULTS in checkpoint:  # a callback may save before the means are logged
            checkpoint[RESULTS] |= {name: value.cpu() for name, value in self._figures_of_epoch().items()}
        checkpoint["fcco"] = {
            "version": CHECKPOINT_VERSION,
            "world_size": self.processes.size,
            "job": self.job,
            "config": self.config,
            "classes": [str(n) for n in getattr(datamodule_of(self.trainer), "class_names", None) or ()],
            "phase": self.phases.header(),
            "num_samples": self.num_samples,
            "engine": self._engine.state_dict(),
            "trained": [name for name, p in self.network.named_parameters() if p.requires_grad],
            **self._continuation.save(checkpoint, self.trainer, _set_up(self._stepping)),
            "of_steps": sorted(self.backend.of_steps),
            "skipped_batches": self.skipped_batches,
            "finished": self._finished,
            "average": None if self.average is None else self.average.state(checkpoint["state_dict"]),
            "eased_decay": None if self._eased_decay is None else self._eased_decay.state(),
            "references": self._old_model.header(),
            "decisions": self.rule.state(),
        }

    def multipliers(self) -> dict[str, float]:
        """The multipliers of the constraints by name, see :meth:`Problem.multipliers`; empty if there are none."""
        return {} if self.problem is None else self.problem.multipliers()

    def dual_states(self) -> dict[str, DualState]:
        """All dual states (tables of rows) by their name in checkpoints."""
        return {name: part for name, part in self.named_modules() if isinstance(part, DualState)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint that does not fit the module, before anything is overwritten."""
        stored = checkpoint.get("fcco")
        if stored is None:
            raise CheckpointError("the checkpoint was not written by FCCOModule during fit: it has no algorithm state.")
        if stored.get("version") != CHECKPOINT_VERSION:
            raise CheckpointError(f"the checkpoint: {another_format(stored)}")
        self._old_model.restore(stored.get("references"))
        if stored.get("decisions"):
            with in_words("the checkpoint's decisions"):
                self.rule.take(DecisionRule.of(stored["decisions"]))
        if self._trainer is not None and self.trainer.precision == "64-true":
            self.double()  # the Trainer does so only after the weights are loaded, and rounded to 32 bits
        if self.problem is not None and self._trainer is not None and self.trainer.state.fn == "fit":
            self._continue(stored, checkpoint)
            return
        # evaluation needs the weights only, not the rows
        weights = {k: v for k, v in checkpoint["state_dict"].items() if not k.startswith("problem.")}
        problem_state = {} if self.problem is None else self.problem.state_dict()
        checkpoint["state_dict"] = weights | {f"problem.{name}": value for name, value in problem_state.items()}
        if self._trainer is not None:
            self._old_model.know()  # must come before the loaders' workers copy the data

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state as torch does, or leave the module unchanged if the state does not fit it.

        Raises:
            CheckpointError: naming a tensor that does not fit.
        """
        rows = [name for name in self.state_dict() if name.startswith("problem.")]
        if strict and rows and not any(name.startswith("problem.") for name in state_dict):
            raise CheckpointError(
                f"the state has no rows ({rows[0]}), as before the first fit. Make a new module for another fold or "
                "seed, or load the weights alone: module.network.load_state_dict."
            )
        way_out = " Give the network and the columns of the run that wrote it: config.yaml in its folder has them."
        with whole_or_not(self, state_dict, "the checkpoint", way_out):
            return super().load_state_dict(versioned(self, state_dict), strict=strict, assign=assign)

    def require_trained_as_then(self) -> None:
        """Require that the same parameters are frozen as in the checkpoint that is resumed.

        Raises:
            CheckpointError: naming the parameters that differ.
        """
        self._continuation.require_trained_as_then(self.network)

    def _continue(self, stored: Mapping[str, Any], checkpoint: dict[str, Any]) -> None:
        """Check and take over the state of a checkpoint with which a fit is resumed."""
        if not {"optimizer_states", "lr_schedulers"} <= checkpoint.keys():
            raise CheckpointError(f"the checkpoint {WEIGHTS_ALONE}")
        if self.phases.continues(stored):
            self.problem = None
            self._pose()
        self.phases.require_same_algorithm(stored["engine"])
        require_same_problem(stored["engine"]["problem"], what_is_solved(_set_up(self.problem)))
        if not hasattr(datamodule_of(self.trainer), "identity"):  # those compare the data themselves
            data, allow_changed = stored["engine"].get("data"), self.execution.allow_changed
            _set_up(self.problem).require_same_data(data, allow_changed=allow_changed)
        load(self.dual_states(), checkpoint, self.processes)
        if stored.get("average") is not None:
            exchange(checkpoint["state_dict"], stored["average"])
        self.skipped_batches, self._finished = stored["skipped_batches"], stored.get("finished", False)
        self.backend.of_steps |= set(stored.get("of_steps", ()))  # for an epoch with no step left
        self._continuation.take(checkpoint)


def _set_up(part: T | None) -> T:
    if part is None:
        raise ConfigError("the module is not set up: pass it to Trainer.fit first.")
    return part


def require_possible(algorithm: Algorithm, average: WeightAverage | None) -> None:
    """Refuse an average of the weights together with a recovery step.

    Raises:
        ConfigError: naming both.
    """
    if average is not None and isinstance(algorithm, DoubleLoop) and algorithm.recovery_steps:
        raise ConfigError(
            f"average and recovery_steps={algorithm.recovery_steps} of {algorithm.name} both choose the "
            "weights that training ends with. Leave one of them out."
        )


def seed_of_head() -> int:
    """A seed that depends only on the run's seed, so that a resumed run computes the same."""
    return int(np.random.SeedSequence([torch.initial_seed(), 1]).generate_state(1, np.uint64)[0] >> 1)
