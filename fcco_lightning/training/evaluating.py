"""Evaluation of a split in a LightningModule: outputs are collected, and figures are computed from all of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.constraints import Constraint, DecisionRule
from fcco_lightning.constraints.multipliers import Enforcement, follows_decisions
from fcco_lightning.engine import columns_of, named_samples, narrow_weights, other_columns, outputs_of_columns
from fcco_lightning.errors import NonFiniteError
from fcco_lightning.evaluation import Evaluation, Split, concatenate, decision_details, summarise
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import CrossEntropy, Objective
from fcco_lightning.state.processes import Processes
from fcco_lightning.state.sharded import is_gathered


class EvaluatingModule(LightningModule):
    """A module that reports figures of its evaluation, and the values of its constraints, on whole splits.

    Each process computes the outputs of its part of a split, and the figures are computed from all outputs together.

    Attributes:
        last_summaries: all figures of the last validation or test, by split.
        vacuous_because: the reason why the constraints are vacuous, by split; None where they are not.
    """

    network: nn.Module
    objective: Objective
    constraints: list[Constraint]
    penalty: Enforcement | None
    evaluation: Evaluation
    rule: DecisionRule
    processes: Processes

    def __init__(self) -> None:
        super().__init__()
        self.last_summaries: dict[str, dict[str, float]] = {}
        self._collected: dict[int, list[Split]] = {}
        self.vacuous_because: dict[str, str | None] = {}

    @contextmanager
    def where_trained(self) -> Iterator[None]:
        """Within this context the module is on its training device; Lightning moves it to the CPU when a fit ends."""
        before = self.device
        self.to(self.trainer.strategy.root_device)
        try:
            yield
        finally:
            self.to(before)

    def received(self, columns: Columns) -> dict[str, Tensor]:
        """Columns on the module's device and in the run's precision, as Lightning passes them to a step."""
        moved = self.transfer_batch_to_device(columns, self.device, 0)
        return self.trainer.precision_plugin.convert_input(moved)  # type: ignore[no-any-return]

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Collect the outputs for a batch; the rows do not change."""
        self._collect(batch, dataloader_idx)
        self._keep_pace(batch, batch_idx, self.trainer.num_val_batches, dataloader_idx)

    def on_validation_start(self) -> None:
        """Make all processes evaluate the same network."""
        self._share_statistics()

    def _share_statistics(self) -> None:
        """Average the running statistics of BatchNorm, which each process has updated by itself."""
        self.processes.average_([b for b in self.network.buffers() if b.is_floating_point()])

    def on_validation_epoch_end(self) -> None:
        """Compute and log the figures of every split on which validation runs."""
        names = getattr(getattr(self.trainer, "datamodule", None), "val_names", ["val"])
        self._report(names)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        self._collect(batch, dataloader_idx)
        self._keep_pace(batch, batch_idx, self.trainer.num_test_batches, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        self._report(["test"])

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Predict a batch.

        Returns: the network's outputs (B, ...) as ``output`` and, if they are a tensor, as ``scores``; the samples'
            ``index``, if the batch has it.  If scores are those of classes, also ``probabilities`` and ``decisions``
            (0 or 1, or the class of the largest score), where the decision rule defines them.
        """
        columns = columns_of(batch)
        outputs = outputs_of_columns(self.network, columns)
        self._keep_pace(batch, batch_idx, self.trainer.num_predict_batches)
        index = {"index": columns["index"]} if "index" in columns else {}
        prediction = {**index, "output": outputs}
        return prediction | ({"scores": outputs} | self._decided(outputs) if isinstance(outputs, Tensor) else {})

    def _decided(self, scores: Tensor) -> dict[str, Tensor]:
        """Probabilities and decisions, where the decision rule defines them."""
        several = scores.dim() == 2 and scores.shape[1] > 1
        if not self.objective.scores_classes or (several and not isinstance(self.objective, CrossEntropy)):
            return {}  # the scores are not those of classes
        probabilities = self.rule.probabilities(scores)
        decided = {} if probabilities is None else {"probabilities": probabilities}
        if several:
            decided["decisions"] = scores.argmax(1)
        elif self.rule.known:
            decided["decisions"] = self.rule.decided(scores).long()
        return decided

    def _keep_pace(self, batch: Any, batch_idx: int, batches: Sequence[float], loader: int = 0) -> None:
        """After its last batch, a process repeats it until all processes have evaluated equally many batches.

        Needed only if the weights are sharded over the processes, since all must take part to gather them.
        """
        if batch_idx + 1 == batches[loader] and is_gathered(self.network):
            self._evaluate_again(self.network, columns_of(batch), batch_idx + 1)

    @torch.no_grad()
    def _evaluate_again(self, network: nn.Module, columns: Columns, num_batches: int) -> None:
        for _ in range(self.processes.largest(num_batches) - num_batches):
            outputs_of_columns(network, columns)

    def _collect(self, batch: dict[str, Tensor], loader: int) -> None:
        columns = columns_of(batch)
        part = Split(outputs_of_columns(self.network, columns), other_columns(self.network, columns))
        self._collected.setdefault(loader, []).append(part)

    @torch.no_grad()
    def evaluate(self, loader: Iterable[dict[str, Tensor]], network: nn.Module | None = None) -> Split:
        """Outputs (nested tensors) and columns of a whole split, on the CPU; each process evaluates its part.

        Args:
            loader: batches of this process's part of the split.
            network: a network to evaluate instead of the module's; it is left in evaluation mode.
        """
        was_training, network = self.training, self.network if network is None else network.eval()
        self.eval()
        parts, moved = list[Split](), dict[str, Tensor]()
        with self.trainer.precision_plugin.val_step_context():
            for batch in loader:
                columns = columns_of(batch)
                moved = self.received(columns)
                outputs = pytree.tree_map(Tensor.cpu, outputs_of_columns(network, moved))
                parts.append(Split(outputs, other_columns(network, columns)))
            if is_gathered(network):
                self._evaluate_again(network, moved, len(parts))
        self.train(was_training)
        return concatenate(parts, self.processes)

    def _report(self, names: Sequence[str]) -> None:
        collected, self._collected = self._collected, {}
        self.last_summaries = {}
        if self.trainer.sanity_checking:
            return
        splits = {
            names[loader] if loader < len(names) else f"{names[-1]}{loader}": concatenate(parts, self.processes)
            for loader, parts in sorted(collected.items())
        }
        self.fit_rule(splits)
        for split, split_outputs in splits.items():
            summary = self.summarise(split, split_outputs)
            self.last_summaries[split] = dict(summary)
            bar = {f"{split}_{k}": summary.pop(k) for k in (*self.evaluation.bar, "worst_violation") if k in summary}
            rest = {f"{split}_{k}": v for k, v in summary.items()}
            sync = self.processes.size > 1  # figures agree already, but Lightning warns without it
            self.log_dict(bar, prog_bar=True, add_dataloader_idx=False, batch_size=1, sync_dist=sync)
            self.log_dict(rest, add_dataloader_idx=False, batch_size=1, sync_dist=sync)

    def fit_rule(self, splits: Mapping[str, Split]) -> None:
        """Fit the threshold or class weights of the requested decisions to the validation split, else the training one.

        Probabilities are calibrated on the validation split only, since it was not trained on.  Nothing is done if
        ``splits`` has neither, or if the scores are not those of two classes.
        """
        split = splits.get("val", splits.get("train"))
        if split is None or not self.objective.scores_classes:
            return
        if not isinstance(split.outputs, Tensor) or split.outputs.numel() != len(split.outputs):
            return
        y = split.columns.get("y")
        if y is not None and y.dim() == 1 and bool(((y == 0) | (y == 1)).all()):
            scores, weight = split.outputs.detach().reshape(-1), split.columns.get("weight")
            classifies = self.objective.classifies
            self.rule.fit(scores, y, weight, classifies=classifies, held_out="val" in splits)

    def details(self, split: Split) -> dict[str, Any]:
        """Tables of the evaluation and of the decisions on a split, in addition to its figures, as plain numbers."""
        samples, evaluation = (split.outputs, split.columns), self.evaluation
        if not self.objective.scores_classes:
            return evaluation.details(*samples)
        classes, classifies = evaluation.class_names, self.objective.classifies
        groups = evaluation.group_name, evaluation.groups_by
        decided = decision_details(self.rule, *samples, classes, *groups, classifies=classifies)
        return {**evaluation.details(*samples), **decided}

    def figures(self, split: Split) -> tuple[dict[str, float], str | None]:
        """All figures of a split with outputs of any network, and why its constraints are vacuous, or None."""
        decisions = follows_decisions(self.penalty)
        return summarise(self.evaluation, self.constraints, split.outputs, split.columns, decisions=decisions)

    def summarise(self, name: str, split: Split) -> dict[str, float]:
        """All figures of a split; warns when its constraints become vacuous, and reports when they no longer are.

        Args:
            name: name of the split.
            split: its outputs and columns, as :meth:`evaluate` returns them.

        Raises:
            NonFiniteError: if an output is NaN or infinite.
        """
        self._require_finite(split.outputs, split.columns, f" on the {name} split")
        summary, reason = self.figures(split)
        if reason and not self.vacuous_because.get(name):
            gap = f" (hard ROC gap {summary['roc_gap']:.3f})" if "roc_gap" in summary else ""
            rank_zero_warn(
                f"the constraints do not constrain the network on the {name} split: {reason}. Until then they can hold "
                f"while hard decisions differ{gap}."
            )
        elif self.vacuous_because.get(name) and not reason:
            rank_zero_info(f"The constraints constrain the network on the {name} split now.")
        self.vacuous_because[name] = reason
        return summary

    def _require_finite(self, outputs: Any, columns: Columns, place: str = "") -> None:
        for leaf in pytree.tree_leaves(outputs):
            nonfinite = ~torch.isfinite(leaf).reshape(len(leaf), -1).all(1)
            if bool(nonfinite.any()):
                raise NonFiniteError(
                    f"the network's outputs{place} are not finite for {named_samples(nonfinite, columns)}: the weights "
                    "diverged or the features hold NaN. Lower the learning rate, or clip with "
                    f"--model.clipping.value.{narrow_weights(self.network)}"
                )
