"""Pictures of rates against rates: ROC, precision and recall, predicted against observed survival."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fcco_lightning.evaluation.metrics.ranking import SplitROC
from fcco_lightning.evaluation.pictures.style import (
    BLUE,
    GREEN,
    VERMILION,
    mark_diagonal,
    new_figure,
    row_of_axes,
    save,
    split_style,
    unit_square,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = ((BLUE, "-"), (VERMILION, "--"), (GREEN, "-."))
_POINTS = "os"
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
    mark_diagonal(right)
    right.fill_between([0, max_fpr], [min_tpr, min_tpr], 1, color="0.93", zorder=0)
    for i, one in enumerate(ordered):
        _draw_label(left, right, one, named.get(i))
    suffix = f" ({split})" if split else ""
    unit_square(left, xlabel="recall", ylabel="precision", title=f"Precision and recall{suffix}")
    unit_square(right, xlabel="false positive rate", ylabel="true positive rate", title=f"ROC{suffix}")
    for axes in (left, right):
        axes.legend(loc="best", frameon=False)
    return save(figure, path)


def _draw_label(left: "Axes", right: "Axes", one: Curves, style: tuple[str, str] | None) -> None:
    """The curves of a label, grey and without a name where it has no style."""
    color, dashes = style or ("0.82", "-")
    shown: dict[str, Any] = {"color": color, "linestyle": dashes, "linewidth": 1.6 if style else 0.8}
    labels: list[str | None] = [None, None]
    if style:
        prefix = f"{one.name}: " if one.name else ""
        labels = [f"{prefix}AP {one.average_precision:.3f}", f"{prefix}shaded part {one.partial_auc:.3f}"]
        left.axhline(one.prevalence, color=color, linewidth=0.8, linestyle=":")
    left.step(one.recall, one.precision, where="pre", label=labels[0], **shown)
    right.plot(one.fpr, one.tpr, label=labels[1], **shown)


def plot_roc_by_group(curves: Mapping[str, SplitROC], path: str | Path) -> Path | None:
    """Draw the ROC curves of the groups, one panel a split, with each AUC and the hard gap.

    The grey segment joins the groups' points at the common threshold where their rates differ most: curves that lie
    on each other can still be far apart there.

    Args:
        curves: for each split its curves, see :func:`~fcco_lightning.evaluation.metrics.split_roc`.
        path: PNG file to write; its folder is created.

    Returns:
        The file written, or None if no split has a curve.
    """
    shown = {split: roc for split, roc in curves.items() if roc.groups}
    if not shown:
        return None
    figure = new_figure(4.6 * len(shown), 4.7)
    for axes, (split, roc) in zip(row_of_axes(figure, len(shown)), shown.items(), strict=True):
        mark_diagonal(axes)
        for group, (color, dashes) in zip(roc.groups, _STYLES, strict=False):
            label = f"{group.name}: AUC {group.auc:.3f}"
            axes.plot(group.fpr, group.tpr, dashes, color=color, linewidth=1.6, label=label)
        if roc.gap is not None and math.isfinite(roc.gap):
            _draw_gap(axes, roc.gap, roc.widest)
        labels = {"xlabel": "false positive rate", "ylabel": "true positive rate"}
        unit_square(axes, aspect="equal", title=f"ROC by group ({split})", **labels)
        axes.legend(loc="lower right", frameon=False)
    return save(figure, path)


def _draw_gap(axes: "Axes", gap: float, widest: Sequence[tuple[float, float]] | None) -> None:
    if not widest:
        axes.plot([], [], linestyle="none", label=f"hard gap {gap:.3f}")
        return
    label = f"hard gap {gap:.3f}, at one threshold"
    axes.plot(*zip(*widest, strict=True), color="0.25", linewidth=1.2, label=label, zorder=3)
    for point, (color, _), marker in zip(widest, _STYLES, _POINTS, strict=False):
        axes.plot(*point, marker, color=color, markeredgecolor="0.25", markersize=7, zorder=4)


def plot_calibration(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, *, horizon: float
) -> Path | None:
    """Draw the predicted survival of groups of samples against the observed one; on the diagonal they agree.

    Args:
        groups: for each split a list of records with ``predicted`` and ``observed``, probabilities.
        path: PNG file to write; its folder is created.
        horizon: the time by which survival is meant, for the labels.

    Returns:
        The file written, or None if no split has a group.
    """
    shown = {split: records for split, records in groups.items() if records}
    if not shown:
        return None
    figure = new_figure(4.6, 4.7)
    axes = figure.subplots()
    mark_diagonal(axes)
    for split, records in shown.items():
        points = ([record[name] for record in records] for name in ("predicted", "observed"))
        axes.plot(*points, linewidth=1.2, label=split, **split_style(split))
    labels = {"xlabel": "predicted", "ylabel": "observed (Kaplan-Meier)"}
    unit_square(axes, aspect="equal", title=f"survival to {horizon:.4g}", **labels)
    axes.legend(loc="lower right", frameon=False)
    return save(figure, path)
