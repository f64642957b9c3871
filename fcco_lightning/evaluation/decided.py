"""Quality of decisions between two classes, and of their probabilities, on a split."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fcco_lightning.constraints import DecisionRule
from fcco_lightning.models.batch import Columns

FloatArray = npt.NDArray[np.float64]
_BINS = 10


def decision_details(
    rule: DecisionRule,
    outputs: Any,
    columns: Columns,
    classes: Sequence[str] = (),
    group_name: Callable[[int], str] = str,
    groups_by: Mapping[str, Sequence[str]] | None = None,
    *,
    classifies: bool = True,
) -> dict[str, Any]:
    r"""Compute tables of the decisions of a rule between two classes, and of their probabilities if there are any.

    - ``confusion_matrix``: a record for each class, with the numbers of its samples by decision;
    - ``rates_by_group``: a record for all samples and one for every group, those with the lowest true positive rate
      first, with the numbers of positives and negatives, the true positive rate (``tpr``), the false positive rate
      (``fpr``), the share of positive decisions (``chosen``) and the ``precision``; null if the denominator is 0;
      samples of group -1 belong to no group;
    - ``decision_cost``: if costs c_0 of a false positive and c_1 of a false negative are given, the mean cost of
      mistakes, ``(c_0 FP + c_1 FN) / n``; ``constant_decision_cost``: the smaller of the mean costs if all samples have
      the same decision;
    - ``brier_loss``: the mean of :math:`(p - y)^2`, scikit-learn's ``brier_score_loss``;
    - ``calibration``: a record for each of at most 10 bins of about equally many samples with similar probabilities,
      with their number, the mean ``predicted`` probability and the ``observed`` share of positives;
    - ``calibration_error``: the mean of :math:`|\text{predicted} - \text{observed}|` over these bins, weighted by their
      samples (expected calibration error).

    All of these except the numbers of positives, negatives and samples use the samples' ``weight``.

    Args:
        rule: the decision rule.
        outputs: outputs of the network on the whole split, one per sample, or two if the network is a classifier.
        columns: columns of the split; ``y`` are classes 0 and 1.
        classes: the names of the two classes.
        group_name: function from a number in the column ``group`` to a name.
        groups_by: further columns of the split that number groups, with the names of the groups 0, 1, ... of each.
        classifies: whether the objective trains scores that are above 0, or the larger of two, for positives.

    Returns:
        The entries of the report by name; none if there are not two classes, or the rule is not known.
    """
    y = columns.get("y")
    is_binary = isinstance(outputs, Tensor) and (
        outputs.numel() == len(outputs) or (outputs.shape[1:] == (2,) and classifies)
    )
    if not is_binary or y is None or y.dim() != 1 or not len(y) or not bool(((y == 0) | (y == 1)).all()):
        return {}
    scores = outputs.detach().double()
    several = scores.numel() > len(scores)
    if not several and not rule.known:
        return {}
    scores = scores if several else scores.reshape(-1)
    decided = scores.argmax(1) == 1 if several else rule.decided(scores, among_themselves=True)
    probabilities = rule.probabilities(scores) if rule.proper or not several else None
    positive = y.cpu().numpy() == 1
    weight = columns["weight"].cpu().double().numpy() if "weight" in columns else None
    names = [str(name) for name in classes] if len(classes) == 2 else ["0", "1"]
    confusion = _Confusion(positive, decided.cpu().numpy(), weight)
    details: dict[str, Any] = {"confusion_matrix": confusion.records(names), "rates_by_group": [confusion.rates("all")]}
    name_functions = {"group": group_name} | {column: names.__getitem__ for column, names in (groups_by or {}).items()}
    rates: list[dict[str, Any]] = []
    for column, name_of in name_functions.items():
        if column in columns and columns[column].dim() == 1:
            groups = columns[column].cpu().numpy()
            present = np.unique(groups[groups >= 0])
            rates += [confusion.part(groups == g).rates(name_of(int(g))) for g in present]
    costs = rule.decisions.costs
    if costs is not None and costs != "balanced":
        details |= confusion.costs(*costs)
    details["rates_by_group"] += sorted(rates, key=lambda record: np.nan_to_num(record["tpr"], nan=2.0))
    if probabilities is not None:
        p = (probabilities[:, 1] if several else probabilities).cpu().numpy()
        details |= _calibration_details(positive, p, weight)
    return details


class _Confusion:
    """The confusion matrix of decisions, with optional weights of samples."""

    def __init__(self, positive: npt.NDArray[np.bool_], decided: npt.NDArray[np.bool_], weight: FloatArray | None):
        self.positive, self.decided, self.weight = positive, decided, weight
        cell = 2 * positive.astype(np.int64) + decided
        self.matrix = np.bincount(cell, weights=weight, minlength=4).reshape(2, 2)  # works if all weights are 0, too

    def part(self, mask: npt.NDArray[np.bool_]) -> "_Confusion":
        return _Confusion(self.positive[mask], self.decided[mask], None if self.weight is None else self.weight[mask])

    def records(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"true": name} | {f"decided {other}": n for other, n in zip(names, row, strict=True)}
            for name, row in zip(names, self.matrix.tolist(), strict=True)
        ]

    def rates(self, group: str) -> dict[str, Any]:
        (tn, fp), (fn, tp) = self.matrix.astype(float)
        return {
            "group": group,
            "positives": int(self.positive.sum()),
            "negatives": int((~self.positive).sum()),
            "tpr": _share(tp, fn),
            "fpr": _share(fp, tn),
            "chosen": _share(tp + fp, fn + tn),
            "precision": _share(tp, fp),
        }

    def costs(self, false_positive: float, false_negative: float) -> dict[str, float]:
        (tn, fp), (fn, tp) = self.matrix.astype(float)
        total = tn + fp + fn + tp
        if not total > 0:
            return {}
        constant = min(false_positive * (tn + fp), false_negative * (fn + tp))
        return {
            "decision_cost": (false_positive * fp + false_negative * fn) / total,
            "constant_decision_cost": constant / total,
        }


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest > 0 else float("nan")


def _calibration_details(positive: npt.NDArray[np.bool_], p: FloatArray, weight: FloatArray | None) -> dict[str, Any]:
    from sklearn.metrics import brier_score_loss  # noqa: PLC0415 - slow to import

    w = np.ones_like(p) if weight is None else weight
    order = np.argsort(p, kind="stable")
    reached = np.cumsum(w[order])
    if not reached[-1] > 0:
        return {}
    # scikit-learn's calibration_curve has no weights, and does not return the sizes of the bins
    tenths = reached[-1] * np.arange(1, _BINS) / _BINS * (1 - 1e-12)  # edges are robust against rounding
    ends = p[order][np.searchsorted(reached, tenths)]
    bins = np.searchsorted(ends, p)
    count, mass, predicted, observed = (
        np.bincount(bins, weights=weights, minlength=_BINS) for weights in (np.ones_like(p), w, w * p, w * positive)
    )
    nonempty = mass > 0
    records = [
        {"samples": int(n), "predicted": float(mean), "observed": float(share)}
        for n, mean, share in zip(
            count[nonempty], predicted[nonempty] / mass[nonempty], observed[nonempty] / mass[nonempty], strict=True
        )
    ]
    return {
        "brier_loss": float(brier_score_loss(positive, p, sample_weight=weight)),
        "calibration_error": float(np.abs(predicted - observed).sum() / mass.sum()),
        "calibration": records,
    }
