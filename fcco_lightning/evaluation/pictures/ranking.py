"""Precision-recall curves, and ROC curves with the part that counts shaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fcco_lightning.evaluation.pictures.style import BLUE, GREEN, VERMILION, new_figure, quiet_frame, row_of_axes, save

_STYLES = ((BLUE, "-"), (VERMILION, "--"), (GREEN, "-."))
_NAMED = 3  # curves with a colour and a legend of their own


class Curves(NamedTuple):
    """The curves of one label.

    Attributes:
        name: of the label; empty if there is one only.
        precision: from the highest score on.
        recall: likewise.
        fpr: false positive rates, rising.
        tpr: true positive rates, rising.
        average_precision: area under precision over recall.
        partial_auc: standardised area of the shaded part.
        prevalence: share of the positives, the precision of a random ranking.
    """

    name: str
    precision: list[float]
    recall: list[float]
    fpr: list[float]
    tpr: list[float]
    average_precision: float
    partial_auc: float
    prevalence: float


def plot_ranking(
    curves: Sequence[Curves], path: str | Path, *, region: tuple[float, float] = (1.0, 0.0), split: str = ""
) -> Path | None:
    """Draw precision over recall and, beside it, the ROC curve, of every label.

    Of more than three labels those with the lowest, the middle and the highest average precision have colours, the
    others are grey.

    Args:
        curves: of every label.
        path: PNG file to write; its folder is created.
        region: largest false positive rate and smallest true positive rate of the part of the ROC curve to shade.
        split: what is shown, for the titles.

    Returns:
        The file written, or None if there is no curve.
    """
    if not curves:
        return None
    ordered = sorted(curves, key=lambda one: one.average_precision)
    last = len(ordered) - 1
    named = dict(zip(sorted({0, last // 2, last}) if last >= _NAMED else range(last + 1), _STYLES, strict=False))
    max_fpr, min_tpr = region
    figure = new_figure(9.4, 4.6)
    left, right = row_of_axes(figure, 2)
    right.plot([0, 1], [0, 1], color="0.75", linewidth=1, linestyle=":")
    right.fill_between([0, max_fpr], [min_tpr, min_tpr], 1, color="0.93", zorder=0)
    for i, one in enumerate(ordered):
        color, dashes = named.get(i, ("0.82", "-"))
        shown: dict[str, Any] = {"color": color, "linestyle": dashes, "linewidth": 1.6 if i in named else 0.8}
        prefix = f"{one.name}: " if one.name else ""
        labels: list[str | None] = [None, None]
        if i in named:
            labels = [f"{prefix}AP {one.average_precision:.3f}", f"{prefix}shaded part {one.partial_auc:.3f}"]
            left.axhline(one.prevalence, color=color, linewidth=0.8, linestyle=":")
        left.step(one.recall, one.precision, where="pre", label=labels[0], **shown)
        right.plot(one.fpr, one.tpr, label=labels[1], **shown)
    suffix = f" ({split})" if split else ""
    left.set(xlabel="recall", ylabel="precision", title=f"Precision and recall{suffix}")
    right.set(xlabel="false positive rate", ylabel="true positive rate", title=f"ROC{suffix}")
    for axes in (left, right):
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        quiet_frame(axes)
        axes.legend(loc="best", frameon=False)
    return save(figure, path)
