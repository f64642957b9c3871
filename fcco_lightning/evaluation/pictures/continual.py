"""Picture of continual learning: what the target gained, and what happened to every protected task."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcco_lightning.evaluation.pictures import style
from fcco_lightning.evaluation.pictures.style import History, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHANGE_PREFIX = "change/"
MOST_TASKS = 12
MARKS = 8  # on a line, however long: they tell the tasks apart where colours are not enough
# Orange and sky blue are Okabe & Ito's too.
COLORS = (style.BLUE, style.VERMILION, style.GREEN, style.PURPLE, "#E69F00", "#56B4E9", "0.15")
MARKERS = "os^Dv<>"


def plot_continual(history: History, path: str | Path) -> Path | None:
    """Draw the change of accuracy since the old model against the epoch: of the target, and of every protected task.

    The target has one line a split; the protected tasks have one panel a split, with a common scale.  Zero is the old
    model: a protected task below it was forgotten in part.  Of more than 12 tasks the 12 that end worst are drawn.

    Args:
        history: records with ``delta_target`` and ``change/<name>``, differences of accuracies in [-1, 1]; a panel
            without any number is left out.
        path: PNG file to write; its folder is created.

    Returns:
        The file written, or None if no record holds any of them.
    """
    target, tasks = style.lines_by_split(history, "delta_target"), _lines_of_tasks(history)
    splits = list(dict.fromkeys(split for lines in tasks.values() for split in lines))
    count = bool(target) + len(splits)
    if not count:
        return None
    shown = _worst(tasks)
    for_names = 0.7 + 0.07 * max(map(len, map(style.shown, shown))) if shown else 0.0
    figure = style.new_figure(4.4 * count + for_names, 3.9)
    panels = style.row_of_axes(figure, count)
    if target:
        axes = panels.pop(0)
        for split, line in target.items():
            _draw_line(axes, line, label=split, **style.split_style(split))
        _finish(axes, "Target")
        axes.legend(frameon=False)
    some = f", the worst {len(shown)} of {len(tasks):,}" if len(shown) < len(tasks) else ""
    for axes, split in zip(panels, splits, strict=True):
        if axes is not panels[0]:
            axes.sharey(panels[0])
        for k, task in enumerate(shown):
            # One that the split lacks is drawn too, as nothing, so that the last panel's legend has them all.
            _draw_line(axes, tasks[task].get(split, Line([], [])), k, label=style.shown(task), **_task_style(k))
        _finish(axes, f"Protected tasks ({split}){some}")
    if panels:
        panels[-1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return style.save(figure, path)


def _lines_of_tasks(history: History) -> dict[str, dict[str, Line]]:
    """By task and split, in the order of the records."""
    keys = dict.fromkeys(key for record in history for key in record if key.startswith(CHANGE_PREFIX))
    lines = {key.removeprefix(CHANGE_PREFIX): style.lines_by_split(history, key) for key in keys}
    return {task: by_split for task, by_split in lines.items() if by_split}


def _worst(tasks: Mapping[str, Mapping[str, Line]]) -> list[str]:
    """Those that end lowest in any split, in their own order."""
    ends = {task: min(line.values[-1] for line in lines.values()) for task, lines in tasks.items()}
    kept = sorted(tasks, key=ends.__getitem__)[:MOST_TASKS]
    return [task for task in tasks if task in kept]


def _task_style(k: int) -> dict[str, Any]:
    """Dashed and hollow in the second round: told apart also where a single epoch draws no line."""
    turn = k % len(COLORS)
    look = {"color": COLORS[turn], "marker": MARKERS[turn]}
    return look if k == turn else look | {"linestyle": "--", "markerfacecolor": "white"}


def _draw_line(axes: "Axes", line: Line, first_mark: int = 0, **look: Any) -> None:
    every = max(1, len(line.values) // MARKS)
    axes.plot(
        line.epochs,
        [100 * value for value in line.values],
        markevery=(first_mark % every, every),  # marks of lines that lie on each other stand side by side
        markersize=4.5,
        linewidth=1.5,
        **look,
    )


def _finish(axes: "Axes", title: str) -> None:
    style.mark_level(axes, 0, "old model")
    style.label_epochs(axes, "change in accuracy (points)", title)
