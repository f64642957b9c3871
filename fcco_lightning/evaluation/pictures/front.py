"""The front of a figure against violation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcco_lightning.evaluation.pictures.style import OTHER_SPLIT, SPLIT_STYLES, new_figure, quiet_frame, save


def plot_front(points: Sequence[Mapping[str, Any]], figure: str, path: Path) -> Path | None:
    """Draw a figure of every point against the violation, a line for every split, each point with its label.

    Args:
        points: from the loosest to the tightest, with ``point``, the label, and ``SPLIT violation`` and
            ``SPLIT FIGURE`` for every split.
        figure: name of the figure.
        path: PNG file to write.

    Returns: ``path``, or None if no split has both.
    """
    splits = [
        split
        for split in ("train", "val", "test")
        if all(point.get(f"{split} {name}") is not None for point in points for name in ("violation", figure))
    ]
    if not splits:
        return None
    canvas = new_figure(7, 4.2)
    axes = canvas.subplots()
    quiet_frame(axes)
    for split in splits:
        x, y = ([point[f"{split} {name}"] for point in points] for name in ("violation", figure))
        colour, marker = SPLIT_STYLES.get(split, OTHER_SPLIT)
        axes.plot(x, y, marker=marker, color=colour, label=split)
        for point, at in zip(points, zip(x, y, strict=True), strict=True):
            axes.annotate(point["point"], at, (4, 4), textcoords="offset points", fontsize=8)
    axes.axvline(0, color="0.5", linewidth=1)
    axes.set(xlabel="violation at the tightest kappa (all constraints hold left of 0)", ylabel=figure)
    axes.legend(frameon=False)
    return save(canvas, path)
