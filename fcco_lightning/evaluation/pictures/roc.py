"""ROC curves of two groups."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fcco_lightning.evaluation.metrics.group import GroupROC, SplitROC
from fcco_lightning.evaluation.pictures.style import BLUE, VERMILION, new_figure, quiet_frame, row_of_axes, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUP_STYLES = ((BLUE, "-", "o"), (VERMILION, "--", "s"))


def plot_roc_by_group(curves: Mapping[str, SplitROC], path: str | Path) -> Path | None:
    """Draw the ROC curves of the groups, one panel a split, with each AUC and the hard gap.

    The grey segment joins the groups' points at the common threshold where their rates differ most: curves that lie
    on each other can still be far apart there.

    Args:
        curves: for each split its curves, see :func:`~fcco_lightning.evaluation.metrics.group.split_roc`.
        path: PNG file to write; its folder is created.

    Returns:
        The file written, or None if no split has a curve.
    """
    shown = {split: roc for split, roc in curves.items() if roc.groups}
    if not shown:
        return None
    figure = new_figure(4.6 * len(shown), 4.7)
    for axes, (split, roc) in zip(row_of_axes(figure, len(shown)), shown.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="0.75", linewidth=1, linestyle=":")
        for k, group in enumerate(roc.groups):
            _draw_group(axes, group, k)
        if roc.gap is not None and math.isfinite(roc.gap):
            _draw_gap(axes, roc.gap, roc.widest)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", title=f"ROC by group ({split})")
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        quiet_frame(axes)
        axes.legend(loc="lower right", frameon=False)
    return save(figure, path)


def _draw_group(axes: "Axes", group: GroupROC, k: int) -> None:
    color, dashes, _ = GROUP_STYLES[k % len(GROUP_STYLES)]
    axes.plot(group.fpr, group.tpr, dashes, color=color, linewidth=1.6, label=f"{group.name}: AUC {group.auc:.3f}")


def _draw_gap(axes: "Axes", gap: float, widest: Sequence[tuple[float, float]] | None) -> None:
    if not widest:
        axes.plot([], [], linestyle="none", label=f"hard gap {gap:.3f}")
        return
    label = f"hard gap {gap:.3f}, at one threshold"
    axes.plot(*zip(*widest, strict=True), color="0.25", linewidth=1.2, label=label, zorder=3)
    for point, (color, _, marker) in zip(widest, GROUP_STYLES, strict=False):
        axes.plot(*point, marker, color=color, markeredgecolor="0.25", markersize=7, zorder=4)
