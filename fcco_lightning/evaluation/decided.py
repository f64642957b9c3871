"""What decisions between two classes and their probabilities are worth on a split."""

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
    r"""Describe the decisions of a rule between two classes, and their probabilities if the scores have some.

    - ``confusion_matrix``: a record for either class, with how many of its samples are decided to be of which class;
    - ``rates_by_group``: a record for all samples and one for every group, those with the lowest true positive rate
      first, with the numbers of positives and negatives, and the rates of decisions among these: of true positives
      (``tpr``), of false positives (``fpr``), of positive decisions (``chosen``), and of positives among those
      (``precision``); null where there is nothing to divide by; samples of group -1 are of none;
    - ``decision_cost``: where decisions are for given costs, the mean over the samples of what the mistakes cost,
      ``(c_0 FP + c_1 FN) / n``; ``constant_decision_cost``: the least of that if all are decided alike;
    - ``brier_loss``: the mean of :math:`(p - y)^2`, scikit-learn's ``brier_score_loss``;
    - ``calibration``: a record for each of at most 10 bins of about equally many samples with similar probabilities,
      with their number, the mean of what is ``predicted`` and the share of positives that is ``observed``;
    - ``calibration_error``: the mean over these bins of :math:`|\text{predicted} - \text{observed}|`, each by its
      samples (expected calibration error).

    Samples with a ``weight`` count by it in everything but the numbers of positives, negatives and samples.

    Args:
        rule: the decisions.
        outputs: of the network on the whole split, one per sample, or two of a classifier.
        columns: of the split; ``y`` are classes 0 and 1.
        classes: the names of the two.
        group_name: the name of a number in the column ``group``.
        groups_by: further columns of the split that number groups, with the names of the groups 0, 1, ... of each.
        classifies: whether the objective gives positives a score above 0, or the larger of two.

    Returns:
        The entries of the report by name; none where there are not two classes, or the decisions are not known.
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
    """Decisions beside the truth; each sample may have a weight."""

    def __init__(self, positive: npt.NDArray[np.bool_], decided: npt.NDArray[np.bool_], weight: FloatArray | None):
        self.positive, self.decided, self.weight = positive, decided, weight
        cell = 2 * positive.astype(np.int64) + decided
        self.matrix = np.bincount(cell, weights=weight, minlength=4).reshape(2, 2)  # also where all weights are 0

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
    # scikit-learn's calibration_curve knows no weights, and does not say how many samples are in a bin
    tenths = reached[-1] * np.arange(1, _BINS) / _BINS * (1 - 1e-12)  # so that rounding decides on no edge
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
