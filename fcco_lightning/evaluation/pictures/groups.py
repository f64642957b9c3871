"""Pictures of the figures by group: the worst groups against epochs, and every group of a split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcco_lightning.evaluation.pictures import style
from fcco_lightning.evaluation.pictures.style import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 40
DASHES = {"train": "-", "val": "--", "test": ":"}
ACCURACIES = (
    ("accuracy", "average", style.BLUE),
    ("tail_accuracy", "worst groups", style.GREEN),
    ("worst_group_accuracy", "worst group", style.VERMILION),
)
LOSSES = (("loss", "average", style.BLUE), ("cvar_loss", "CVaR of the groups", style.GREEN))


def plot_group_curves(history: History, path: str | Path) -> Path | None:
    """Draw accuracies (average, worst groups, worst group) and losses (average, CVaR) against the epoch, side by side.

    A colour says which groups, solid lines are train, dashed ones val.

    Args:
        history: records with ``accuracy``, ``tail_accuracy``, ``worst_group_accuracy`` in [0, 1], ``loss`` and
            ``cvar_loss`` in nats; a panel without any number is left out.
        path: PNG file to write; its folder is created.

    Returns:
        The file written, or None if no record holds any of them.
    """
    panels = [("accuracy (%)", "Accuracy", ACCURACIES, 100.0), ("loss (nats)", "Loss", LOSSES, 1.0)]
    shown = [panel for panel in panels if any(style.lines_by_split(history, key) for key, _, _ in panel[2])]
    if not shown:
        return None
    figure = style.new_figure(5.2 * len(shown), 4.4)
    for axes, (unit, title, lines, scale) in zip(style.row_of_axes(figure, len(shown)), shown, strict=True):
        for key, label, color in lines:
            _draw_line(axes, history, key, label, color, scale)
        style.label_epochs(axes, unit, title)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(lines), frameon=False, fontsize=9)
    return style.save(figure, path)


def _draw_line(axes: "Axes", history: History, key: str, label: str, color: str, scale: float) -> None:
    for split, (epochs, values) in style.lines_by_split(history, key).items():
        marker = style.split_style(split)["marker"] if len(values) <= MOST_BARS else None
        scaled, dashes, name = [scale * value for value in values], DASHES.get(split, "-."), f"{label}, {split}"
        axes.plot(epochs, scaled, dashes, color=color, marker=marker, markersize=3.5, linewidth=1.6, label=name)


def plot_groups(
    groups: Sequence[Mapping[str, Any]], path: str | Path, *, average: float, split: str = "test"
) -> Path | None:
    """Draw the accuracy of every group as a bar, the worst on the left, over its weight in CVaR.

    Args:
        groups: ``{"name", "size", "accuracy", "weight"}`` of each, the worst first; accuracies in [0, 1], weights of
            sum 1 and drawn as multiples of the uniform weight.  Of more than 40 groups the worst 40 are drawn.
        path: PNG file to write; its folder is created.
        average: accuracy over the samples of the split, in [0, 1], drawn as a line.
        split: its name.

    Returns:
        The file written, or None if there is no group.
    """
    if not groups:
        return None
    shown = groups[:MOST_BARS]
    names = [style.shown(group["name"]) for group in shown]
    upright = sum(map(len, names)) > 70
    figure = style.new_figure(max(6.0, 1.6 + 0.24 * len(shown)), 4.6 + 0.075 * max(map(len, names)) * upright)
    accuracy, weight = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])

    _draw_bars(accuracy, [100 * group["accuracy"] for group in shown], style.BLUE)
    line = {"color": style.VERMILION, "linestyle": "--", "linewidth": 1.4}
    accuracy.axhline(100 * average, label=f"average {average:.1%}", **line)
    title = f"Accuracy by group ({split})"
    title += f": the worst {len(shown)} of {len(groups):,}" if len(shown) < len(groups) else ""
    accuracy.set(ylim=(0, 100), ylabel="accuracy (%)")
    accuracy.set_title(title, loc="left")  # the legend stands on the right
    _legend_above(accuracy)

    multiples = [group["weight"] * len(groups) for group in shown]
    _draw_bars(weight, multiples, style.GREEN)
    style.mark_level(weight, 1, "uniform")
    weight.set(ylabel="weight in CVaR,\ntimes uniform", ylim=(0, 1.08 * max(1.0, *multiples)))
    _legend_above(weight)
    weight.set_xticks(range(len(shown)), names, rotation=90 if upright else 0, fontsize=8 if upright else 9)
    weight.set_xlim(-0.7, max(len(shown), 3) - 0.3 - (len(shown) < 3))
    return style.save(figure, path)


def _draw_bars(axes: "Axes", heights: Sequence[float], color: str) -> None:
    axes.bar(range(len(heights)), heights, width=0.8 if len(heights) > 3 else 0.5, color=color, label="_unlisted")
    style.quiet_frame(axes)
    axes.grid(visible=False, axis="x")


def _legend_above(axes: "Axes") -> None:
    """Outside: a bar may be as high as the frame."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), frameon=False, fontsize=9)
