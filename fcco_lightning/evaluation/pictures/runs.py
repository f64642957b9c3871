"""Several runs in one picture: a figure of each against its violation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcco_lightning.evaluation.pictures.style import BLUE, VERMILION, new_figure, quiet_frame, save, shown, split_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
            holds = row.get("holds", "yes" if row[violation] <= 0 else "no") == "yes"
            axes.plot(row[violation], row[figure], "o" if holds else "X", color=BLUE if holds else VERMILION)
            _name(axes, row["run"], (row[violation], row[figure]))
        axes.axvline(0, color="0.5", linewidth=1)
        axes.set(xlabel=f"{shown(violation)} in training (constraints hold left of 0)", ylabel=shown(figure))
    else:
        axes.plot([row[figure] for row in found], range(len(found)), "o", color=BLUE)
        axes.set_yticks(range(len(found)), [shown(row["run"]) for row in found])
        axes.invert_yaxis()
        axes.set(xlabel=shown(figure))
    return save(canvas, path)


def plot_front(points: Sequence[Mapping[str, Any]], figure: str, path: Path) -> Path | None:
    """Draw a figure of every point against the violation, a line for every split, each point with its label.

    Args:
        points: from the loosest to the tightest, with ``point``, the label, and ``SPLIT violation`` and
            ``SPLIT FIGURE`` for every split.
        figure: name of the figure.
        path: PNG file to write.

    Returns: ``path``, or None if no split has both.
    """
    lines = {
        split: [(point.get(f"{split} violation"), point.get(f"{split} {figure}")) for point in points]
        for split in ("train", "val", "test")
    }
    known = {split: line for split, line in lines.items() if all(None not in place for place in line)}
    if not known:
        return None
    canvas = new_figure(7, 4.2)
    axes = canvas.subplots()
    quiet_frame(axes)
    for split, line in known.items():
        axes.plot(*zip(*line, strict=True), label=split, **split_style(split))
        for point, place in zip(points, line, strict=True):
            _name(axes, point["point"], place)
    axes.axvline(0, color="0.5", linewidth=1)
    axes.set(xlabel="violation at the tightest kappa (all constraints hold left of 0)", ylabel=shown(figure))
    axes.legend(frameon=False)
    return save(canvas, path)


def _name(axes: "Axes", name: str, place: tuple[Any, Any]) -> None:
    axes.annotate(shown(name), place, (4, 4), textcoords="offset points", fontsize=8)
