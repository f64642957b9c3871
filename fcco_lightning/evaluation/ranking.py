"""Figures of a ranking by one score, or by one score for each of several labels."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, below_one, fraction, list_of, no_label
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation, Final, Pictures, require_columns, shown_split, weight_of
from fcco_lightning.evaluation.metrics.ranking import auc, average_precision, partial_auc, precision_recall_at, roc_gap
from fcco_lightning.evaluation.pictures import History, plot_objective_and_violation, plot_ranking, plot_roc_by_group
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import Pooling, binary_scores
from fcco_lightning.objectives.auc.pooling import bags_of
from fcco_lightning.objectives.base import one_label_each, one_tensor, require

_List = tuple[Tensor, Tensor, Tensor]  # scores, classes and weights
_WHOLE_LISTS = ("average_precision", "auc", "partial_auc", "partial_auc_tpr", "two_way_partial_auc")


class BinaryEvaluation(Evaluation):
    """Area under the ROC curve, average precision, range of the scores and, for two groups, the hard ROC gap.

    The outputs are one score per sample, shape (n,) or (n, 1); the column ``y`` (n,) contains the classes 0 and 1.

    - ``auc``: the area under the ROC curve, NaN if the split lacks a class;
    - ``average_precision``: NaN likewise; for random scores it is the share of the positives;
    - ``score_min``, ``score_max``: the range of the scores;
    - ``roc_gap``: the hard ROC gap between the groups of the column ``group`` (n,), if it contains exactly two values;
      NaN if a group lacks a class, or if the values are not 0 and 1.

    Args:
        num_thresholds: The number of quantiles of the pooled scores at which the gap is computed, >= 1.

    Raises:
        ConfigError: if ``num_thresholds`` is not a whole number >= 1.
    """

    bar = ("auc",)

    def __init__(self, num_thresholds: int = 200) -> None:
        self.num_thresholds = at_least("num_thresholds", num_thresholds, 1)

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        scores = _scores(outputs)
        require_columns(batch, "y", figures="binary figures")
        y, weight = one_label_each(batch, self), weight_of(batch, scores, self)
        defined = _has_both_classes(y[weight > 0])
        if not defined:
            self.warn_of_undefined(
                "auc and average_precision",
                f": all {len(y)} samples of a split are of one class. Divide the data by class (splits)",
            )
        figures = {
            "auc": auc(scores, y, weight) if defined else math.nan,
            "average_precision": average_precision(scores, y, weight) if defined else math.nan,
            "score_min": scores.min().item(),
            "score_max": scores.max().item(),
        }
        scores, y, group, weight = _grouped_columns(scores, y, batch, self)
        if _has_both_classes(group):
            samples = (scores, y, group, self.num_thresholds, weight)
            figures["roc_gap"] = roc_gap(*samples) if _two_groups(group, y) else math.nan
        return figures

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        if isinstance(outputs, Tensor):
            _scores(outputs)

    def pictures(self, history: History, final: Final) -> Pictures:
        """Return ``auc_and_violation.png``, ``constraints.png`` and, for two groups, ``roc_by_group.png``."""
        return {
            "auc_and_violation.png": partial(plot_objective_and_violation, history),
            **super().pictures(history, final),
            "roc_by_group.png": partial(self._draw_groups, final),
        }

    def _draw_groups(self, final: Final, path: Path) -> Path | None:
        all_names = self.group_names
        names = (str(all_names[0]), str(all_names[1])) if len(all_names) > 1 else ("group 0", "group 1")
        grouped = {
            split: _grouped_columns(_scores(outputs), one_label_each(batch, self), batch, self)
            for split, (outputs, batch) in final.items()
        }
        splits = {split: columns for split, columns in grouped.items() if _two_groups(columns[2], columns[1])}
        return plot_roc_by_group(splits, path, names=names, num_thresholds=self.num_thresholds)


class RankingEvaluation(Evaluation):
    """Average precision, areas under the ROC curve and its parts, and precision and recall at the head of the list.

    The outputs are one score per sample, shape (n,) or (n, 1), with the column ``y`` (n,) of the classes 0 and 1; or
    one score for each of T labels, shape (n, T), with ``y`` (n, T).

    - ``average_precision``, ``auc``;
    - ``partial_auc``: the part of the ROC curve with a false positive rate of at most ``max_fpr``;
    - ``partial_auc_tpr``: the part with a true positive rate of at least ``min_tpr``;
    - ``two_way_partial_auc``: the part with both; all three are standardised, see
      :func:`~fcco_lightning.evaluation.metrics.partial_auc`;
    - ``precision_at_k``, ``recall_at_k`` for every k in ``top``.

    With several labels each of these is the mean over the labels that have both classes in the split, and
    ``average_precision/NAME`` and ``auc/NAME`` are those of a single label.  ``report.json`` then contains a table
    ``labels``, the lowest average precision first.  A figure that is undefined for all labels is NaN.

    Args:
        max_fpr: Largest false positive rate of the partial areas, in (0, 1].
        min_tpr: Smallest true positive rate of the partial areas, in [0, 1).
        top: Lengths k of the head of the list, whole numbers >= 1.  If a list is shorter than k, precision is its
            number of positives over k, and recall is 1.
        missing: Value of ``y`` for unknown labels, which are left out; None if all are known.
        most_labels: The figures of single labels are logged only if there are at most so many, >= 0.

    Raises:
        ConfigError: if an argument is out of range.
    """

    bar = ("average_precision", "auc")
    merit = "average_precision"

    def __init__(
        self,
        max_fpr: float = 0.3,
        min_tpr: float = 0.5,
        top: Sequence[int] = (10, 100),
        missing: float | None = None,
        most_labels: int = 64,
    ) -> None:
        self.max_fpr = fraction("max_fpr", max_fpr)
        below_one("min_tpr", min_tpr)
        self.min_tpr, self.missing = min_tpr, no_label("missing", missing)
        self.top = [at_least("top", k, 1) for k in list_of("top", top)]
        self.most_labels = at_least("most_labels", most_labels, 0)

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        lists = self._lists(outputs, batch)
        self._warn_of_absent(lists)
        figures = [self._figures(*columns) for columns in lists]
        summary = {str(name): float(mean) for name, mean in pd.DataFrame(figures).mean().items()}
        if outputs.dim() == 2 and outputs.shape[1] > 1 and len(lists) <= self.most_labels:
            for t, values in enumerate(figures):
                summary |= {f"{name}/{self.label_name(t)}": values[name] for name in self.bar}
        return summary

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """Return ``labels`` if there are several: name, numbers of samples and positives, and figures of each."""
        lists = self._lists(outputs, batch)
        if len(lists) == 1:
            return {}
        table = pd.DataFrame([self._figures(*part) for part in lists])[["average_precision", "auc", "partial_auc"]]
        table.insert(0, "label", [self.label_name(t) for t in range(len(lists))])
        table.insert(1, "samples", [len(y) for _, y, _ in lists])
        table.insert(2, "positives", [int(y.sum()) for _, y, _ in lists])
        return {"labels": table.dropna().sort_values("average_precision", kind="stable").to_dict("records")}

    def pictures(self, history: History, final: Final) -> Pictures:
        """Return ``constraints.png`` and ``ranking.png``, of the test split or else the last one."""
        return {**super().pictures(history, final), "ranking.png": partial(self._draw_ranking, final)}

    def _draw_ranking(self, final: Final, path: Path) -> Path | None:
        split = shown_split(final)
        lists = self._lists(*final[split]) if split else []
        names = [self.label_name(t) if len(lists) > 1 else "" for t in range(len(lists))]
        curves = {name: part for name, part in zip(names, lists, strict=True) if _has_both_classes(part[1])}
        return plot_ranking(curves, path, region=(self.max_fpr, self.min_tpr), split=split)

    def _warn_of_absent(self, lists: Sequence[_List]) -> None:
        """Warn once of labels without figures in a split."""
        absent = [t for t, (_, y, _) in enumerate(lists) if not _has_both_classes(y)]
        if not absent:
            return
        y = lists[absent[0]][1]
        kind = "negative" if bool((y == 1).any()) else "positive"
        clause = f" for {len(absent)} of {len(lists)} labels, first {self.label_name(absent[0])!r}" * (len(lists) > 1)
        self.warn_of_undefined(
            "average_precision, auc and the other ranking figures",
            f"{clause}: of {len(y)} samples of a split none is {kind}. Divide the data by class (splits), or give a "
            "split that holds both",
        )

    def _figures(self, scores: Tensor, y: Tensor, weight: Tensor) -> dict[str, float]:
        """The figures of one list; NaN if a class is absent."""
        if not _has_both_classes(y):
            heads = [f"{metric}_at_{k}" for k in self.top for metric in ("precision", "recall")]
            return dict.fromkeys([*_WHOLE_LISTS, *heads], math.nan)
        values = [
            average_precision(scores, y, weight),
            auc(scores, y, weight),
            partial_auc(scores, y, self.max_fpr, weight=weight),
            partial_auc(scores, y, min_tpr=self.min_tpr, weight=weight),
            partial_auc(scores, y, self.max_fpr, self.min_tpr, weight),
        ]
        figures = dict(zip(_WHOLE_LISTS, values, strict=True))
        for k in self.top:
            figures[f"precision_at_{k}"], figures[f"recall_at_{k}"] = precision_recall_at(scores, y, k, weight)
        return figures

    def _lists(self, outputs: Tensor, batch: Columns) -> list[_List]:
        """Scores, classes and weights of the samples for every label, without samples whose label is unknown."""
        require_columns(batch, "y", figures="ranking figures")
        y, scores = batch["y"], one_tensor(outputs)
        if scores.dim() == 1 and y.dim() == 2 and y.shape[1] == 1:
            y = y.squeeze(1)
        if scores.dim() == 2 and scores.shape[1] == 1 and y.dim() == 1:
            scores = scores.squeeze(1)
        if scores.dim() not in (1, 2) or scores.shape != y.shape or not len(scores):
            raise DataError(
                f"ranking figures need outputs and y of one shape (n,) or (n, T) with n >= 1, got "
                f"{tuple(outputs.shape)} and {tuple(y.shape)}. Use another evaluation (--model.evaluation)."
            )
        pairs = [(scores, y)] if y.dim() == 1 else zip(scores.unbind(1), y.unbind(1), strict=True)
        weight, lists = weight_of(batch, scores, self), []
        for label_scores, values in pairs:
            counted = weight > 0 if self.missing is None else (weight > 0) & (values != self.missing)
            lists.append((label_scores[counted], values[counted], weight[counted]))
        for t, (_, values, _) in enumerate(lists):
            rule, remedy = f"label {t} must be 0 or 1", "Map them, or name the value of unknown labels by `missing`."
            require((values == 0) | (values == 1), values, rule, remedy)
        return lists


class BagEvaluation(Evaluation):
    """The figures and the picture of :class:`RankingEvaluation` for bags, whose scores are pooled over their instances.

    The outputs are the pooling's inputs, with first dimension n, the number of instances.  The column ``bag`` (n,)
    contains the bag of an instance, the column ``y`` (n,) the label of that bag, 0 or 1.  A bag is pooled over all of
    its instances in the split.

    Args:
        pooling: The pooling, that of the objective.
        figures: The evaluation of the bags; :class:`RankingEvaluation` with its defaults if it is None.
    """

    separable = False

    def __init__(self, pooling: Pooling, figures: RankingEvaluation | None = None) -> None:
        self.pooling, self.figures = pooling, figures or RankingEvaluation()
        self.bar, self.merit = self.figures.bar, self.figures.merit

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        return self.figures(*self._bags(outputs, batch))

    def pictures(self, history: History, final: Final) -> Pictures:
        """Return ``constraints.png`` and ``ranking.png``."""
        return self.figures.pictures(history, {name: self._bags(*split) for name, split in final.items()})

    def _bags(self, outputs: Tensor, batch: Columns) -> tuple[Tensor, Columns]:
        """The pooled scores and the labels of the bags."""
        require_columns(batch, "bag", "y", figures="figures of bags")
        bags = bags_of(batch, self)
        scores = self.pooling.score(bags.means(self.pooling.terms(outputs)))
        return scores, {"y": bags.labels(batch, self)}


def _scores(outputs: Tensor) -> Tensor:
    """Return the scores, shape (n,), float32 or float64."""
    outputs = one_tensor(outputs)
    if outputs.dim() == 1 or (outputs.dim() == 2 and outputs.shape[1] == 1):
        scores = binary_scores(outputs)
        return scores if scores.dtype == torch.float64 else scores.float()
    raise DataError(
        f"BinaryEvaluation needs one score per sample, shape (n,) or (n, 1), got outputs of shape "
        f"{tuple(outputs.shape)}. Name the evaluation that fits them: evaluation=ClassEvaluation() (--model.evaluation "
        "ClassEvaluation) for one score per class, also of two, GroupEvaluation for classes and groups. Or give the "
        "network a single output."
    )


def _grouped_columns(
    scores: Tensor, y: Tensor, batch: Columns, needed_by: Evaluation
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scores, labels, groups and weights of the samples with a group and a positive weight; else none."""
    group = one_label_each(batch, needed_by, "group") if "group" in batch else torch.full_like(y, -1)
    weight = weight_of(batch, scores, needed_by)
    in_group = (group >= 0) & (weight > 0)
    return scores[in_group], y[in_group], group[in_group], weight[in_group]


def _two_groups(group: Tensor, y: Tensor) -> bool:
    """Return whether the groups are exactly 0 and 1, each with both classes."""
    return _has_both_classes(group) and all(_has_both_classes(y[group == g]) for g in (0, 1))


def _has_both_classes(values: Tensor) -> bool:
    """Return whether there are exactly two distinct values: both classes, if these are labels 0 and 1."""
    return len(torch.unique(values)) == 2
