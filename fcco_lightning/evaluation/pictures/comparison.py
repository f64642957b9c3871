"""Several runs in one picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcco_lightning.evaluation.pictures.style import BLUE, VERMILION, new_figure, quiet_frame, save


def plot_comparison(rows: Sequence[Mapping[str, Any]], figure: str, violation: str, path: Path) -> Path | None:
    """Draw a figure of every run against its largest constraint value; without constraints, a line for every run.

    Runs that meet their constraints are blue dots, the others vermilion crosses.

    Args:
        rows: of runs, with the key ``run``.
        figure: key of the figure.
        violation: key of the largest constraint value.
        path: PNG file to write.

    Returns: ``path``, or None if no run has the figure.
    """
    found = [row for row in rows if row.get(figure) is not None]
    if not found:
        return None
    constrained = [row for row in found if row.get(violation) is not None]
    canvas = new_figure(7, 4.2 if constrained else 1.4 + 0.3 * len(found))
    axes = canvas.subplots()
    quiet_frame(axes)
    if constrained:
        for row in constrained:
            holds = row[violation] <= 0
            axes.plot(row[violation], row[figure], "o" if holds else "X", color=BLUE if holds else VERMILION)
            axes.annotate(row["run"], (row[violation], row[figure]), (4, 4), textcoords="offset points", fontsize=8)
        axes.axvline(0, color="0.5", linewidth=1)
        axes.set(xlabel=f"{violation} (constraints hold left of 0)", ylabel=figure)
    else:
        axes.plot([row[figure] for row in found], range(len(found)), "o", color=BLUE)
        axes.set_yticks(range(len(found)), [row["run"] for row in found])
        axes.invert_yaxis()
        axes.set(xlabel=figure)
    return save(canvas, path)
