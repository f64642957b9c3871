"""Predicted against observed survival in groups of equal size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcco_lightning.evaluation.pictures.style import OTHER_SPLIT, SPLIT_STYLES, new_figure, quiet_frame, save


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
    axes.plot([0, 1], [0, 1], color="0.75", linewidth=1, linestyle=":")
    for split, records in shown.items():
        color, marker = SPLIT_STYLES.get(split, OTHER_SPLIT)
        points = [record["predicted"] for record in records], [record["observed"] for record in records]
        axes.plot(*points, marker=marker, color=color, linewidth=1.2, label=split)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", title=f"survival to {horizon:.4g}")
    axes.set(xlabel="predicted", ylabel="observed (Kaplan-Meier)")
    quiet_frame(axes)
    axes.legend(loc="lower right", frameon=False)
    return save(figure, path)
