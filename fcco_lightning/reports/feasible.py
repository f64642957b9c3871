"""Choice of the final weights of a run: the best ones that are feasible on the validation split."""

import math
from pathlib import Path
from typing import Any, Literal

from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from fcco_lightning.analysis import Interval, intervals
from fcco_lightning.checks import inside, one_of
from fcco_lightning.constraints import Constraint, DecisionRule, unique_names
from fcco_lightning.constraints.multipliers import follows_decisions
from fcco_lightning.errors import CheckpointError, ConfigError, DataError
from fcco_lightning.evaluation import Standing, direction, is_feasible, standing
from fcco_lightning.models.batch import Columns
from fcco_lightning.reports.verdict import chosen_line
from fcco_lightning.state.checkpoint_files import in_words, versioned
from fcco_lightning.training import FCCOModule

FEASIBLE = "feasible.ckpt"
"""Name of the checkpoint of the weights that were chosen."""


class BestFeasible(Callback):
    """Ends a run with the weights of its best validation, preferably one at which all constraints hold.

    A validation is feasible if all h_i <= 0 on the split, and no constraint is vacuous there
    (:meth:`Constraint.vacuous`), as it is if nearly all samples have the same decision.  Feasible weights rank above
    others.  Two feasible ones are compared by their figure, two infeasible ones by their worst violation; weights with
    vacuous constraints rank last.

    An example, with the AUC as the figure: epoch 0 ends with AUC .90 and max h = +.020, epoch 1 with .86 and -.010,
    epoch 2 with .88 and -.004.  Epoch 0 is not feasible, and of the others epoch 2 has the better AUC, so that its
    weights are chosen.

    At the end of ``fit`` the network gets the chosen weights, which are also saved as ``feasible.ckpt`` (for
    evaluation; a run is resumed from ``last.ckpt``), and named in the last line of :class:`Report`.  The best weights
    so far are part of every checkpoint, so that a resumed run chooses among all validations; but only among its own if
    the constraints, their kappas or the arguments of this callback have changed.  All processes have the same figures
    and make the same choice.

    Without a validation split "val", or without constraints, nothing is chosen: constraints that hold on the training
    split may be overfitted.  Figures on the split that chose the weights are slightly optimistic; those on the test
    split are not.

    **Constraints on unseen data.**  With ``margin: auto`` all m constraints shall hold together on the population, with
    the given confidence.  A validation is then feasible if all upper confidence bounds of h_i (on decisions, if these
    are enforced) are <= 0, each of which is exceeded with probability ``(1 - confidence) / (m E)``, where E is the
    planned number of validations of the run (:func:`fcco_lightning.analysis.intervals`; Bonferroni correction for
    the constraints and the validations among which the choice is made).  To reach this, training enforces every
    constraint with a smaller kappa: smaller by the difference of this bound and h on the training split (or, if that is
    not evaluated, on the validation split), for the row with the largest bound.  Reports refer to the original kappa.

    An example: one cap of kappa = .1 on a rate, E = 20 validations and a confidence of .95.  On 200 samples the rate is
    .08, so h = -.02.  The upper bound with probability ``.05 / 20`` is .149 for the rate, hence +.049 for h: the epoch
    is not feasible.  If h is -.02 on the training split, too, the cap is enforced from now on with a margin of
    ``.049 - (-.02) = .069``, that is, at a rate of .031.

    Without the factor E, a run whose weights are always at the boundary is declared feasible too often: for E = 20 in
    64% of runs if the errors of the validations are independent, and in 27% and 11% if those of consecutive ones have a
    correlation of .9 and .99; with the factor in 5%, 2% and 1%.  Choosing on one half of the split and testing on the
    other would be exact, too, but has less power: weights four standard errors inside are confirmed in 72% of runs,
    instead of 99% to 100%.  Two effects are not corrected: margins depend on the same split, and a resumed run that is
    made longer has more validations than were planned before.

    Args:
        enabled: whether to choose weights.
        figure: figure of the validation split by which feasible weights are compared; None for the evaluation's figure
            of merit, for which the objective is a surrogate (AUC, average precision, accuracy of the worst group).
        mode: "max" if larger figures are better, else "min"; None for "min" for losses, errors and gaps.
        margin: "auto" to require upper confidence bounds <= 0; None to require only h <= 0.
        confidence: probability in (0, 1) with which all constraints together shall hold.
        clusters: column of the data that identifies dependent samples, such as those of one patient or camera; any
            column of a table, including one that is no feature.  The intervals, including those of :class:`Report`,
            then treat clusters as independent instead of samples; None for independent samples.

    Attributes:
        chosen: ``epoch``, ``feasible``, ``vacuous``, ``worst_violation`` and the figure of the best weights so far;
            empty before the first validation.  With a margin also ``bound``, the largest upper bound, ``confidence``
            and ``constraints``, their number.

    Raises:
        ConfigError: if an argument is out of range, the validation has no such figure, or there is a margin but no
            validation split or no planned number of epochs.
    """

    def __init__(
        self,
        enabled: bool = False,
        figure: str | None = None,
        mode: Literal["max", "min"] | None = None,
        margin: Literal["auto"] | None = None,
        confidence: float = 0.95,
        clusters: str | None = None,
    ) -> None:
        self.enabled = enabled
        self.figure = figure
        self.mode = one_of("mode", mode, ("max", "min", None))
        self.margin, self.confidence = one_of("margin", margin, ("auto", None)), inside("confidence", confidence)
        self.clusters, self._cluster_column = clusters, clusters
        self.chosen: dict[str, Any] = {}
        self._weights: dict[str, Any] = {}
        self._rule: dict[str, Any] = {}  # state of the decision rule of the best weights
        self._margins: list[float] = []
        self._settings: dict[str, Any] = {}
        self._warned = False
        self._restored = False  # state from a checkpoint, before the run starts

    def state_dict(self) -> dict[str, Any]:
        """The best weights so far, and the margins; empty before the first validation."""
        if not self.chosen:
            return {}
        return {
            "chosen": self.chosen,
            "weights": self._weights,
            "rule": self._rule,
            "margins": self._margins,
            "asked": self._settings,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best weights of a checkpoint, so that the choice includes earlier validations."""
        self.chosen, self._weights = state_dict["chosen"], state_dict["weights"]
        self._rule = state_dict.get("rule", {})
        self._margins, self._settings = state_dict["margins"], state_dict["asked"]
        self._restored = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check early that splits and columns are there, and apply the margins of a checkpoint."""
        find = getattr(getattr(trainer, "datamodule", None), "add_clusters", None)
        if self.clusters is not None and find is not None:
            self._cluster_column = find(self.clusters)
        another = trainer.current_epoch == 0 and not self._restored  # a new run with the same callback
        if another or not self.enabled:  # a checkpoint may have a choice although it is disabled now
            self.chosen, self._weights, self._margins = {}, {}, []
            self._warned = False
        self._restored = False
        if not (isinstance(pl_module, FCCOModule) and pl_module.constraints):
            return
        self._warn_of_no_effect(trainer)
        if not self.enabled:
            return
        self._drop_choice_by_another_rule(pl_module)
        if self.margin is None:
            return
        if "val" not in getattr(getattr(trainer, "datamodule", None), "val_names", ()):
            raise ConfigError(
                "feasible.margin='auto' tests the constraints on a validation split 'val', and the data has none. Hold "
                "out a part (data.splits.val_fraction for tables, data.val_fraction for data made in memory), or leave "
                "out feasible.margin."
            )
        if trainer.max_epochs is None or trainer.max_epochs < 0:
            raise ConfigError(
                f"feasible.margin='auto' divides its error probability by the planned number of validations, which "
                f"trainer.max_epochs={trainer.max_epochs} does not determine. Set trainer.max_epochs to a number >= 1, "
                "or leave out feasible.margin."
            )
        for constraint, margin in zip(pl_module.constraints, self._margins, strict=False):
            constraint.tighten(margin)

    def _warn_of_no_effect(self, trainer: Trainer) -> None:
        """Warn of settings that will have no effect."""
        judged = "val" in getattr(getattr(trainer, "datamodule", None), "val_names", ("val",))
        if self.margin is not None and not self.enabled:
            rank_zero_warn(
                f"feasible.margin={self.margin!r} has no effect, as feasible.enabled is false. Set it to true."
            )
        elif self.margin is None and self.enabled and not judged:
            rank_zero_warn(
                "feasible.enabled has no effect: it chooses the weights that are best on a validation split 'val', "
                "and the data has none, so the last ones are kept. Hold out a part (tables: data.splits.val_fraction)."
            )

    def _drop_choice_by_another_rule(self, module: FCCOModule) -> None:
        """Drop the choice of a checkpoint if it was made by other criteria, so that it is not comparable."""
        settings: dict[str, Any] = {
            "kappas": kappas_of(module),
            "figure": module.evaluation.figure_of_merit(self.figure),
            "mode": self.mode,
            "confidence": self.confidence if self.margin else None,
        }
        with in_words("the best weights in the checkpoint"):
            changed = bool(self.chosen) and settings != self._settings
            if self.chosen and not changed:
                self._rank(self.chosen, settings["figure"])
        if changed:
            rank_zero_warn(
                "the best weights in the checkpoint were chosen for other constraints, kappas or figures than those of "
                "this run: they are discarded, and the choice starts anew."
            )
            self.chosen, self._weights, self._margins = {}, {}, []
        stored_shapes, present = (
            {k: v.shape for k, v in weights.items()} for weights in (self._weights, module.network.state_dict())
        )
        if self.chosen and stored_shapes != present:
            raise CheckpointError(
                "the best weights in the checkpoint are incomplete, or belong to another network. "
                "Use another checkpoint, or set --feasible.enabled to false."
            )
        self._settings = settings

    def clusters_in(self, columns: Columns) -> Tensor | None:
        """The clusters of a split's samples, shape (n,); None if they are independent.

        Raises:
            DataError: if the split has no such column.
        """
        if self._cluster_column is None:
            return None
        if self._cluster_column not in columns:
            raise DataError(
                f"feasible.clusters={self.clusters!r} is not a column of the evaluation batches, which have "
                f"{sorted(columns)}. Name one of them, or let the datamodule add it."
            )
        return columns[self._cluster_column]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the weights if they are the best so far."""
        if not self.enabled or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if not isinstance(pl_module, FCCOModule):
            return
        figures = pl_module.last_summaries.get("val", {})
        if "worst_violation" not in figures:
            return
        name = pl_module.evaluation.figure_of_merit(self.figure)
        if name not in figures:
            raise ConfigError(
                f"feasible.figure={name!r} is not a figure of the validation split, which has {sorted(figures)}. "
                "Choose one of these."
            )
        worst = figures["worst_violation"]
        bound = self._bound(trainer, pl_module) if self.margin else {}
        candidate = {
            "epoch": trainer.current_epoch,
            "feasible": is_feasible(bound.get("bound", worst), figures.get("vacuous")),
            "vacuous": bool(figures.get("vacuous")),
            "worst_violation": worst,
            name: figures[name],
        } | bound
        if not self.chosen or self._rank(candidate, name) > self._rank(self.chosen, name):
            self.chosen = candidate
            self._weights = {k: v.detach().cpu().clone() for k, v in pl_module.network.state_dict().items()}
            self._rule = pl_module.rule.state()

    def _bound(self, trainer: Trainer, module: FCCOModule) -> dict[str, Any]:
        """Return the largest upper bound on the validation split, and set new margins of the constraints."""
        loader = trainer.datamodule.evaluation_loaders()["val"]  # type: ignore[attr-defined]
        number = sum(c.num_rows for c in module.constraints)
        level = 1 - 2 * (1 - self.confidence) / (number * _planned_validations(trainer))
        summary = module.last_summaries.get("train", module.last_summaries["val"])
        outputs, columns = module.evaluate(loader)
        decisions = follows_decisions(module.penalty)
        ends = intervals(module.constraints, outputs, columns, level, self.clusters_in(columns), decisions=decisions)
        bounds = list(ends.items())
        if len(bounds) < number:
            names = unique_names(module.constraints)
            missing = next(name for name in names if name not in dict(bounds))
            needed = "one, or two unless it is a rate" if self.clusters is None else "those of two clusters"
            raise DataError(
                f"feasible.margin='auto': the validation split has enough samples ({needed}) for {len(bounds)} of the "
                f"{number} rows of the constraints, but not for {missing!r}. Use a larger validation split, or merge "
                "small groups."
            )
        rows, self._margins = iter(bounds), []
        for constraint in module.constraints:
            name, interval = max((next(rows) for _ in constraint.names), key=lambda row: row[1].high)
            enforced = summary.get(f"decided/{name}") if decisions else None
            self._margins.append(max(0.0, interval.high - (summary[f"h/{name}"] if enforced is None else enforced)))
            constraint.tighten(self._margins[-1])
            self._warn_of_noise(constraint, name, interval)
        bound = max(interval.high for _, interval in bounds)
        return {"bound": bound, "confidence": self.confidence, "constraints": number}

    def _warn_of_noise(self, constraint: Constraint, name: str, interval: Interval) -> None:
        """Warn once that the validation split is too small to confirm a constraint."""
        width = interval.high - interval.h
        if not self._warned and constraint.tolerance - width < constraint.least_kappa:
            self._warned = True
            rank_zero_warn(
                f"kappa={constraint.tolerance:g} of {name} can hardly be confirmed on the validation split: the "
                f"confidence interval extends {width:.3g} above h, so even the best weights would need a kappa of "
                f"about {constraint.least_kappa + width:.3g}. Raise kappa, hold out more samples, or lower "
                "--feasible.confidence."
            )

    def _rank(self, candidate: dict[str, Any], name: str) -> Standing:
        value = candidate[name] * (1 if (self.mode or direction(name)) == "max" else -1)
        violation = candidate.get("bound", candidate["worst_violation"])
        return standing(value, violation, candidate.get("vacuous"))  # absent in older checkpoints

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the best weights before other callbacks report on them."""
        if not self.chosen or trainer.interrupted or not isinstance(pl_module, FCCOModule):
            return
        pl_module.network.load_state_dict(versioned(pl_module.network, self._weights))
        if self._rule:
            pl_module.rule.take(DecisionRule.of(self._rule))
        saver = trainer.checkpoint_callback
        if isinstance(saver, ModelCheckpoint) and saver.dirpath:
            trainer.save_checkpoint(Path(saver.dirpath) / FEASIBLE, weights_only=True)  # not for resuming
        rank_zero_info(chosen_line(self.chosen))


def kappas_of(module: FCCOModule) -> dict[str, float]:
    """The requested kappa of every row of the constraints, by name."""
    kappas = [c.tolerance for c in module.constraints for _ in c.names]
    return dict(zip(unique_names(module.constraints), kappas, strict=True))


def _planned_validations(trainer: Trainer) -> int:
    """The number of validations in a run of the planned length."""
    epochs, interval = trainer.max_epochs or 1, trainer.check_val_every_n_epoch
    per_epoch = trainer.num_training_batches / (trainer.val_check_batch or math.inf)  # validations in an epoch
    per_epoch = per_epoch if math.isfinite(per_epoch) else 1.0  # unknown length: one at the end of an epoch
    return max(1, int(epochs * per_epoch) if interval is None else epochs // interval * max(1, int(per_epoch)))
