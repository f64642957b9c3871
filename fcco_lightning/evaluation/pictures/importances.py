"""A picture of how much the columns of a table matter."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fcco_lightning.evaluation.pictures import style

MOST_BARS = 30


def plot_importances(records: Sequence[Mapping[str, Any]], path: str | Path, *, label: str, title: str) -> Path | None:
    """Draw a bar with an error bar of one standard deviation for every column, the first at the top.

    Args:
        records: ``{"column", "change", "std"}`` of each, the most important first; the first 30 are drawn.
        path: PNG file to write; its folder is created.
        label: what the change is of.
        title: of the picture.

    Returns:
        The file written, or None if there is no column.
    """
    if not records:
        return None
    shown = records[:MOST_BARS]
    figure = style.new_figure(6.4, 1.4 + 0.26 * len(shown))
    axes = figure.subplots()
    places = range(len(shown))
    changes, errors = ([record[key] for record in shown] for key in ("change", "std"))
    axes.barh(places, changes, xerr=errors, color=style.BLUE, ecolor="0.35", height=0.7, capsize=2)
    axes.axvline(0, color="0.35", linewidth=1.1)
    axes.set_yticks(places, [style.shown(record["column"]) for record in shown], fontsize=9)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    part = f": the first {len(shown)} of {len(records):,}" if len(shown) < len(records) else ""
    axes.set(xlabel=label, title=f"{title}{part}")
    style.quiet_frame(axes)
    axes.grid(visible=False, axis="y")
    return style.save(figure, path)
