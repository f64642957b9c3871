"""Pictures of a run: pure functions from plain numbers to PNG files.

A *history* is a list of records, one per epoch and split, as logged at the end of the epoch::

    {"epoch": 0, "split": "train", "auc": 0.89, "worst_violation": 0.02, "h/tpr@-3": -0.004, "h/fpr@2": 0.02}

All keys except ``epoch`` and ``split`` are optional.  Absent values and None are skipped; a value that is not finite
is a gap in its line.

Every ``plot_...`` has an argument ``path``, the PNG file to write, whose folder is created.  It returns the file, or
None, without writing, if there is nothing to show.  Figures are made without pyplot, so that no global state or display
is used, and matplotlib is imported only when a picture is drawn.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from torch import Tensor

from fcco_lightning.errors import printable
from fcco_lightning.evaluation.metrics.ranking import (
    auc,
    average_precision,
    group_rates,
    partial_auc,
    precision_recall_curve,
    roc_curve,
)
from fcco_lightning.state.new_file import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History: TypeAlias = Sequence[Mapping[str, Any]]
"""Records of a run, see the module."""

DPI = 130
# palette of Okabe and Ito, distinguishable with common colour blindnesses; markers differ, too, for grey print
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
COLORS, MARKERS = (BLUE, VERMILION, GREEN, PURPLE, "#E69F00", "#56B4E9", "0.15"), "os^Dv<>"
MINUS = "\N{MINUS SIGN}"  # as on the axes
_SPLITS = {"train": (BLUE, "o", "-"), "val": (VERMILION, "s", "--"), "test": (GREEN, "^", ":")}
_MOST_LINES, _MOST_ROWS, _MOST_BARS, _MOST_TASKS = 14, 40, 40, 12
_MOST_IMPORTANCES, _MOST_LETTERS = 30, 28
_MARKS = 8  # number of markers on a line, which distinguish tasks if colours do not suffice
_BESIDE: dict[str, Any] = {
    "loc": "center left",
    "bbox_to_anchor": (1.01, 0.5),
    "frameon": False,
    "fontsize": 9,
}  # arguments of a legend beside the axes


# ------------------------------------------------------------------------------------------------------ shared helpers


def line_of(records: History, key: str) -> "pd.Series[float]":
    """The values of ``key`` by epoch, NaN where they are not finite; empty if none is finite."""
    recorded = [record for record in records if record.get(key) is not None]
    line = pd.Series([record[key] for record in recorded], [record["epoch"] for record in recorded], dtype=float)
    line = line.where(np.isfinite(line)).sort_index(kind="stable")  # an infinity would spoil the axis
    return line if line.notna().any() else line.iloc[:0]


def lines_by_split(history: History, key: str) -> "dict[str, pd.Series[float]]":
    """The lines of ``key`` by split, without lines that have no finite value."""
    splits = dict.fromkeys(record["split"] for record in history)
    lines = {split: line_of([r for r in history if r["split"] == split], key) for split in splits}
    return {split: line for split, line in lines.items() if len(line)}


def split_style(split: str) -> dict[str, Any]:
    """Colour and marker of a split, as arguments of matplotlib."""
    color, marker, _ = _SPLITS.get(split, (PURPLE, "D", "-."))
    return {"color": color, "marker": marker}


def shown(name: object, most: int = _MOST_LETTERS) -> str:
    """A name from the data in a form for pictures: short, without control characters, and not a formula.

    A long name loses its middle, since names of intersections often differ in their last part.  A dollar sign would
    begin a formula, and a legend omits names that are empty or begin with an underscore.
    """
    text = printable(name, most).replace("$", r"\$")
    return f" {text}" if text.startswith("_") or not text else text


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches, with a layout that avoids overlaps."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import)

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def row_of_axes(figure: "Figure", count: int) -> list["Axes"]:
    """Make ``count`` panels side by side."""
    return list(figure.subplots(1, count, squeeze=False)[0])


def quiet_frame(axes: "Axes") -> None:
    """Draw a light grid in the background, and no frame above and to the right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)


def mark_level(axes: "Axes", level: float, label: str) -> None:
    """Draw the level that separates good from bad values."""
    axes.axhline(level, color="0.35", linestyle="--", linewidth=1.1, label=label, zorder=1)


def label_epochs(axes: "Axes", unit: str, title: str) -> None:
    """Label the axes, with whole epochs on the x-axis, and set the title."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 (slow to import)

    axes.set(xlabel="epoch", ylabel=unit, title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    quiet_frame(axes)


def save(figure: "Figure", path: str | Path) -> Path:
    """Write the PNG completely or not at all; its folder is created."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (slow to import)

    with new_file(Path(path)) as file:
        # savefig would draw everything twice
        FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]
    return Path(path)


def _some_of(num_drawn: int, total: int, description: str) -> str:
    """The addition to a title if not all items are drawn."""
    return f"{description} {num_drawn} of {total:,}" if num_drawn < total else ""


def _unit_square(axes: "Axes", **labels: Any) -> None:
    """Set both axes to [0, 1], and their labels and title."""
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), **labels)
    quiet_frame(axes)


def _mark_diagonal(axes: "Axes") -> None:
    axes.plot([0, 1], [0, 1], color="0.75", linewidth=1, linestyle=":")


# -------------------------------------------------------------------------------------------------- figures by epoch


def plot_objective_and_violation(history: History, path: str | Path) -> Path | None:
    """Draw AUC and worst constraint violation (largest h_i) against the epoch, one line per split, in two panels.

    Args:
        history: records with ``auc`` and ``worst_violation``; a panel without any number is left out.
        path: see the module.
    """
    panels = [
        (lines_by_split(history, "auc"), "AUC", "AUC of the raw scores"),
        (
            lines_by_split(history, "worst_violation"),
            "largest constraint value, max $h_i$",
            "Worst constraint violation",
        ),
    ]
    nonempty = [panel for panel in panels if panel[0]]
    if not nonempty:
        return None
    figure = new_figure(4.8 * len(nonempty), 3.7)
    for axes, (lines, unit, title) in zip(row_of_axes(figure, len(nonempty)), nonempty, strict=True):
        for split, line in lines.items():
            axes.plot(line, label=split, markersize=3.5, linewidth=1.6, **split_style(split))
        if unit != "AUC":
            mark_level(axes, 0, "feasible: $h \\leq 0$")
        label_epochs(axes, unit, title)
        axes.legend(frameon=False)
    return save(figure, path)


class _Constraint(NamedTuple):
    """The parts of a constraint's name; ``rate`` and ``threshold`` are empty unless it has the form ``tpr@-3``."""

    key: str
    rate: str
    threshold: float | None

    @property
    def label(self) -> str:
        if self.threshold is None:
            return shown(self.key.partition("/")[2])
        return f"{shown(self.rate.upper())}, τ = {self.threshold:g}".replace("-", MINUS)


def plot_constraints(history: History, path: str | Path, split: str | None = None) -> Path | None:
    """Draw every constraint value h_i against the epoch on one pair of axes.

    More than 14 constraints are drawn as a heat map with a row for each constraint and a column for each epoch, orange
    where it is violated and purple where it holds; if there are more than 40, those with the largest last value.

    Constraints called ``tpr@<threshold>`` or ``fpr@<threshold>`` are coloured by their threshold, from dark to light;
    TPR lines are solid, FPR lines dashed.  Other names are solid and coloured by their order.

    Args:
        history: records with keys ``h/<name>``.
        path: see the module.
        split: the split to draw; None for ``train``, or else the first split that has values.
    """
    split_drawn, lines = _lines_of_constraints("h/", history, split)
    meaning = "constraint value $h_i$ (feasible: at most 0)"
    return _plot_lines(lines, path, f"Constraint values ({split_drawn})", meaning, level=0)


def plot_multipliers(history: History, path: str | Path) -> Path | None:
    """Draw every multiplier nu_i against the epoch, in the colours of :func:`plot_constraints`.

    More than 14 multipliers are drawn as a heat map, in which larger values are darker.

    Args:
        history: records with keys ``nu/<name>``.
        path: see the module.
    """
    _, lines = _lines_of_constraints("nu/", history)
    signed = any((line < 0).any() for line in lines.values())  # multipliers of equalities may be negative
    return _plot_lines(lines, path, "Multipliers of the constraints", "multiplier $\\nu_i$", signed=signed)


def _lines_of_constraints(
    prefix: str, history: History, split: str | None = None
) -> "tuple[str | None, dict[str, pd.Series[float]]]":
    """The split that is drawn, and the lines of the constraints by key."""
    able = [record for record in history if any(key.startswith(prefix) for key in record)]
    splits = [record["split"] for record in able]
    split_drawn = split or ("train" if "train" in splits else next(iter(splits), None))
    records = [record for record in able if record["split"] == split_drawn]
    keys = dict.fromkeys(key for record in records for key in record if key.startswith(prefix))
    return split_drawn, {key: line for key in keys if len(line := line_of(records, key))}


def _plot_lines(
    lines: "Mapping[str, pd.Series[float]]",
    path: str | Path,
    title: str,
    meaning: str,
    *,
    level: float | None = None,
    signed: bool = True,
) -> Path | None:
    """Draw lines of constraints, or a heat map if there are many."""
    from matplotlib import colormaps  # noqa: PLC0415 (slow to import, and only needed here)

    if not lines:
        return None
    if len(lines) > _MOST_LINES:
        return save(_heat_map(lines, title, meaning, signed=signed), path)
    figure = new_figure(8.4, 4.4)
    axes = figure.add_subplot()
    constraints = _ordered(lines)
    thresholds = sorted({c.threshold for c in constraints if c.threshold is not None})
    names = [c.key for c in constraints if c.threshold is None]
    ranks = [names.index(c.key) if c.threshold is None else thresholds.index(c.threshold) for c in constraints]
    for constraint, rank in zip(constraints, ranks, strict=True):
        dashes, marker = ("--", "x") if constraint.rate == "fpr" else ("-", "o")
        line, color = lines[constraint.key], colormaps["viridis"](0.9 * rank / max(1, *ranks))  # not the pale end
        single_marker = marker if len(line) == 1 else None  # else one epoch is invisible
        axes.plot(line, dashes, color=color, marker=single_marker, label=constraint.label, linewidth=1.5)
    label_epochs(axes, meaning, title)
    # one column per rate; beside the axes, because 14 lines leave no free corner
    axes.legend(**_BESIDE, ncols=1 + (len(lines) > 10))
    if level is not None:
        mark_level(axes, level, "_unlisted")  # an odd entry would misalign the legend's columns
    return save(figure, path)


def _ordered(keys: Iterable[str]) -> list[_Constraint]:
    """Sort constraints: true positive rates first, and each kind by its thresholds."""
    matches = {key: re.fullmatch(r"(\w+)@([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)", key.partition("/")[2]) for key in keys}
    parts = [
        _Constraint(key, m[1].lower(), float(m[2])) if m else _Constraint(key, "", None) for key, m in matches.items()
    ]
    return sorted(parts, key=lambda c: (c.rate != "tpr", c.rate, c.threshold or 0.0))


def _heat_map(lines: "Mapping[str, pd.Series[float]]", title: str, meaning: str, *, signed: bool) -> "Figure":
    from matplotlib.colors import SymLogNorm  # noqa: PLC0415 (slow to import, and only needed here)

    at_end = {key: np.nan_to_num(line.iloc[-1], nan=np.inf) for key, line in lines.items()}
    largest = set(sorted(lines, key=lambda key: -at_end[key])[:_MOST_ROWS])
    rows = _ordered(key for key in lines if key in largest)
    columns = (lines[c.key] for c in rows)  # the last of several validations in an epoch
    last = (line[~line.index.duplicated(keep="last")] for line in columns)
    values = pd.DataFrame(dict(enumerate(last))).sort_index()
    bound = float(np.nanmax(np.abs(values.to_numpy()))) or 1.0
    epochs = values.index.to_numpy(dtype=float)
    middles = (epochs[1:] + epochs[:-1]) / 2  # borders of columns around unevenly spaced epochs
    left, right = (middles[0], middles[-1]) if len(middles) else (epochs[0] + 0.5, epochs[0] - 0.5)
    edges = [2 * epochs[0] - left, *middles, 2 * epochs[-1] - right]
    figure = new_figure(8.4, 1.4 + 0.22 * len(rows))
    axes = figure.add_subplot()
    axes.set_facecolor("0.85")  # colour of absent values
    # logarithmic beyond a twentieth of the largest value, so that the sign of small values is visible, too
    norm = SymLogNorm(0.05 * bound, vmin=-bound if signed else 0.0, vmax=bound)
    mesh = axes.pcolormesh(
        edges, range(len(rows) + 1), values.T.to_numpy(), cmap="PuOr_r" if signed else "Purples", norm=norm
    )
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [c.label for c in rows], fontsize=8)
    axes.invert_yaxis()
    label_epochs(axes, "", title + (f": the {len(rows)} largest of {len(lines)}" if len(rows) < len(lines) else ""))
    axes.grid(visible=False)
    figure.colorbar(mesh, ax=axes, label=meaning)
    return figure


def plot_group_curves(history: History, path: str | Path) -> Path | None:
    """Draw accuracies (average, worst groups, worst group) and losses (average, CVaR) against the epoch, in two panels.

    Colours distinguish the groups; solid lines are train, dashed ones val.

    Args:
        history: records with ``accuracy``, ``tail_accuracy``, ``worst_group_accuracy`` in [0, 1], ``loss`` and
            ``cvar_loss`` in nats; a panel without any number is left out.
        path: see the module.
    """
    accuracies = {"accuracy": "average", "tail_accuracy": "worst groups", "worst_group_accuracy": "worst group"}
    losses = {"loss": "average", "cvar_loss": "CVaR of the groups"}
    panels = [("accuracy (%)", "Accuracy", accuracies, 100.0), ("loss (nats)", "Loss", losses, 1.0)]
    nonempty = [panel for panel in panels if any(lines_by_split(history, key) for key in panel[2])]
    if not nonempty:
        return None
    figure = new_figure(5.2 * len(nonempty), 4.4)
    for axes, (unit, title, names, scale) in zip(row_of_axes(figure, len(nonempty)), nonempty, strict=True):
        for (key, name), color in zip(names.items(), (BLUE, GREEN, VERMILION), strict=False):
            for split, line in lines_by_split(history, key).items():
                look: dict[str, Any] = {
                    "color": color,
                    "linestyle": _SPLITS.get(split, ("", "", "-."))[2],
                    "linewidth": 1.6,
                }
                marker = split_style(split)["marker"] if len(line) <= _MOST_BARS else None
                axes.plot(scale * line, marker=marker, markersize=3.5, label=f"{name}, {split}", **look)
        label_epochs(axes, unit, title)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(names), frameon=False, fontsize=9)
    return save(figure, path)


def plot_continual(history: History, path: str | Path) -> Path | None:
    """Draw the change of accuracy since the old model against the epoch, for the target and every protected task.

    The target has one line per split; the protected tasks have one panel per split, with a common scale.  A negative
    change of a protected task is forgetting.  If there are more than 12 tasks, the 12 with the worst end are drawn.

    Args:
        history: records with ``delta_target`` and ``change/<name>``, differences of accuracies in [-1, 1]; a panel
            without any number is left out.
        path: see the module.
    """
    keys = dict.fromkeys(key for record in history for key in record if key.startswith("change/"))
    all_tasks = {key.removeprefix("change/"): lines_by_split(history, key) for key in keys}
    tasks = {task: lines for task, lines in all_tasks.items() if lines}
    target = lines_by_split(history, "delta_target")
    splits = list(dict.fromkeys(split for lines in tasks.values() for split in lines))
    count = bool(target) + len(splits)
    if not count:
        return None
    ends = {task: min(line.iloc[-1] for line in lines.values()) for task, lines in tasks.items()}
    worst = sorted(tasks, key=ends.__getitem__)[:_MOST_TASKS]
    tasks_drawn = [task for task in tasks if task in worst]
    for_names = 0.7 + 0.07 * max(map(len, map(shown, tasks_drawn))) if tasks_drawn else 0.0
    figure = new_figure(4.4 * count + for_names, 3.9)
    panels = row_of_axes(figure, count)
    if target:
        axes = panels.pop(0)
        for split, line in target.items():
            _draw_change(axes, line, label=split, **split_style(split))
        _finish_changes(axes, "Target")
        axes.legend(frameon=False)
    for axes, split in zip(panels, splits, strict=True):
        if axes is not panels[0]:
            axes.sharey(panels[0])
        for k, task in enumerate(tasks_drawn):
            turn = k % len(COLORS)
            look: dict[str, Any] = {"color": COLORS[turn], "marker": MARKERS[turn]}
            if k != turn:  # colours repeat: dashed lines and hollow markers, which are visible for one epoch, too
                look |= {"linestyle": "--", "markerfacecolor": "white"}
            # a task that the split lacks gets an empty line, so that the last panel's legend has all tasks
            _draw_change(axes, tasks[task].get(split, pd.Series(dtype=float)), k, label=shown(task), **look)
        _finish_changes(axes, f"Protected tasks ({split}){_some_of(len(tasks_drawn), len(tasks), ', the worst')}")
    if panels:
        panels[-1].legend(**_BESIDE)
    return save(figure, path)


def _draw_change(axes: "Axes", line: "pd.Series[float]", first_mark: int = 0, **look: Any) -> None:
    interval = max(1, len(line) // _MARKS)
    marks = first_mark % interval, interval  # markers of coinciding lines do not overlap
    axes.plot(line.index, 100 * line.to_numpy(), markevery=marks, markersize=4.5, linewidth=1.5, **look)


def _finish_changes(axes: "Axes", title: str) -> None:
    mark_level(axes, 0, "old model")
    label_epochs(axes, "change in accuracy (points)", title)


# --------------------------------------------------------------------------------------------- figures of final weights


def plot_ranking(
    lists: Mapping[str, Sequence[Tensor]],
    path: str | Path,
    *,
    region: tuple[float, float] = (1.0, 0.0),
    split: str = "",
) -> Path | None:
    """Draw the precision-recall curve and the ROC curve of every label, in two panels.

    If there are more than three labels, those with the lowest, the median and the highest average precision are
    coloured, the others grey.  A dotted line is the share of the positives, the precision of a random ranking.

    Args:
        lists: name of a label -> scores, classes and, optionally, weights of the samples, as in
            :mod:`fcco_lightning.evaluation.metrics.ranking`; the name of a single label may be empty.
        path: see the module.
        region: largest false positive rate and smallest true positive rate of the shaded part of the ROC curve.
        split: name of the split in the titles.
    """
    if not lists:
        return None
    ordered = sorted(lists, key=lambda name: average_precision(*lists[name]))
    last = len(ordered) - 1
    labelled = sorted({0, last // 2, last}) if last > 2 else range(last + 1)
    looks = dict(zip(labelled, ((BLUE, "-"), (VERMILION, "--"), (GREEN, "-.")), strict=False))
    figure = new_figure(9.4, 4.6)
    left, right = row_of_axes(figure, 2)
    _mark_diagonal(right)
    right.fill_between([0, region[0]], [region[1]] * 2, 1, color="0.93", zorder=0)
    for i, name in enumerate(ordered):
        scores, y, *weight = lists[name]
        precision, recall = precision_recall_curve(scores, y, *weight)
        fpr, tpr = roc_curve(scores, y, *weight)
        color, dashes = looks.get(i, ("0.82", "-"))
        look: dict[str, Any] = {"color": color, "linestyle": dashes, "linewidth": 1.6 if i in looks else 0.8}
        labels: list[str | None] = [None, None]
        if i in looks:
            prefix = f"{shown(name)}: " if name else ""
            area, ap = partial_auc(scores, y, *region, *weight), average_precision(scores, y, *weight)
            labels = [f"{prefix}AP {ap:.3f}", f"{prefix}shaded part {area:.3f}"]
            left.axhline(precision[-1], color=color, linewidth=0.8, linestyle=":")  # share of positives
        left.step(recall, precision, where="pre", label=labels[0], **look)
        right.plot(fpr, tpr, label=labels[1], **look)
    suffix = f" ({split})" if split else ""
    _unit_square(left, xlabel="recall", ylabel="precision", title=f"Precision and recall{suffix}")
    _unit_square(right, xlabel="false positive rate", ylabel="true positive rate", title=f"ROC{suffix}")
    for axes in (left, right):
        axes.legend(loc="best", frameon=False)
    return save(figure, path)


def plot_roc_by_group(
    splits: Mapping[str, Sequence[Tensor]],
    path: str | Path,
    *,
    names: tuple[str, str] = ("group 0", "group 1"),
    num_thresholds: int = 200,
) -> Path | None:
    """Draw the ROC curves of the groups, one panel per split, with each AUC and the hard gap.

    A grey segment joins the groups' points at the common threshold where their rates differ most; these points may be
    far apart even if the curves coincide.

    Args:
        splits: name of a split -> scores, classes, groups and, optionally, weights of the samples, as in
            :func:`~fcco_lightning.evaluation.metrics.group_rates`.
        path: see the module.
        names: names of the groups 0 and 1.
        num_thresholds: number of quantiles of the scores at which the gap is computed, >= 1.
    """
    if not splits:
        return None
    figure = new_figure(4.6 * len(splits), 4.7)
    labels = {"xlabel": "false positive rate", "ylabel": "true positive rate"}
    for axes, (split, (scores, y, group, *weight)) in zip(
        row_of_axes(figure, len(splits)), splits.items(), strict=True
    ):
        _mark_diagonal(axes)
        _, rates = group_rates(scores, y, group, num_thresholds, *weight)
        gaps = np.abs(rates[:, 0] - rates[:, 1]).max(0)
        fpr, tpr = rates[:, :, gaps.argmax()]
        for k, (color, dashes) in enumerate(((BLUE, "-"), (VERMILION, "--"))):
            columns = [column[group == k] for column in (scores, y, *weight)]
            label = f"{shown(names[k])}: AUC {auc(*columns):.3f}"
            axes.plot(*roc_curve(*columns), dashes, color=color, linewidth=1.6, label=label)
            axes.plot(fpr[k], tpr[k], MARKERS[k], color=color, markeredgecolor="0.25", markersize=7, zorder=4)
        gap = f"hard gap {gaps.max():.3f}, at one threshold"
        axes.plot(fpr, tpr, color="0.25", linewidth=1.2, label=gap, zorder=3)
        _unit_square(axes, aspect="equal", title=f"ROC by group ({split})", **labels)
        axes.legend(loc="lower right", frameon=False)
    return save(figure, path)


def plot_calibration(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, *, horizon: float | None = None
) -> Path | None:
    """Draw the observed share against the predicted probability of groups of samples; on the diagonal they agree.

    Args:
        groups: for each split a list of records with ``predicted`` and ``observed``, probabilities.
        path: see the module.
        horizon: time until which survival is predicted; None for probabilities of the positive class.
    """
    tables = {split: pd.DataFrame(records)[["predicted", "observed"]] for split, records in groups.items() if records}
    if not tables:
        return None
    figure = new_figure(4.6, 4.7)
    axes = figure.subplots()
    _mark_diagonal(axes)
    for split, table in tables.items():
        axes.plot(table["predicted"], table["observed"], linewidth=1.2, label=split, **split_style(split))
    if horizon is None:
        labels = {"title": "Probabilities of positives", "ylabel": "observed, by tenths of the samples"}
    else:
        labels = {"title": f"survival to {horizon:.4g}", "ylabel": "observed (Kaplan-Meier)"}
    _unit_square(axes, aspect="equal", xlabel="predicted", **labels)
    if horizon is None:  # if positives are rare, all are small
        largest = float(pd.concat(tables).to_numpy().max())
        axes.set(xlim=(-0.02 * largest, 1.05 * largest), ylim=(-0.02 * largest, 1.05 * largest))
    axes.legend(loc="lower right", frameon=False)
    return save(figure, path)


def plot_groups(
    groups: Sequence[Mapping[str, Any]], path: str | Path, *, average: float, split: str = "test"
) -> Path | None:
    """Draw bars of the accuracy of every group, the worst on the left, and below them its weight in CVaR.

    Args:
        groups: ``{"name", "size", "accuracy", "weight"}`` of each group, the worst first; accuracies in [0, 1]; weights
            have sum 1 and are drawn as multiples of the uniform weight.  At most the worst 40 groups are drawn.
        path: see the module.
        average: accuracy over the samples of the split, in [0, 1], drawn as a line.
        split: name of the split.
    """
    if not groups:
        return None
    bars = groups[:_MOST_BARS]
    names = [shown(group["name"]) for group in bars]
    accuracies, weights = (np.array([group[key] for group in bars], dtype=float) for key in ("accuracy", "weight"))
    number, upright = len(names), sum(map(len, names)) > 70
    figure = new_figure(max(6.0, 1.6 + 0.24 * number), 4.6 + 0.075 * max(map(len, names)) * upright)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    multiples = weights * len(groups)
    for axes, heights, color in ((top, 100 * accuracies, BLUE), (bottom, multiples, GREEN)):
        axes.bar(range(number), heights, width=0.8 if number > 3 else 0.5, color=color, label="_unlisted")
        quiet_frame(axes)
        axes.grid(visible=False, axis="x")
    line: dict[str, Any] = {"color": VERMILION, "linestyle": "--", "linewidth": 1.4}
    top.axhline(100 * average, label=f"average {average:.1%}", **line)
    top.set(ylim=(0, 100), ylabel="accuracy (%)")
    title = f"Accuracy by group ({split}){_some_of(number, len(groups), ': the worst')}"
    top.set_title(title, loc="left")  # the legend is on the right
    mark_level(bottom, 1, "uniform")
    bottom.set(ylabel="weight in CVaR,\ntimes uniform", ylim=(0, 1.08 * max(1.0, *multiples)))
    for axes in (top, bottom):  # outside: a bar may be as high as the frame
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), frameon=False, fontsize=9)
    bottom.set_xticks(range(number), names, rotation=90 if upright else 0, fontsize=8 if upright else 9)
    bottom.set_xlim(-0.7, max(number, 3) - 0.3 - (number < 3))
    return save(figure, path)


def plot_importances(records: Sequence[Mapping[str, Any]], path: str | Path, *, label: str, title: str) -> Path | None:
    """Draw a bar with an error bar of one standard deviation for every column, the first at the top.

    Args:
        records: ``{"column", "change", "std"}`` of each, the most important first; the first 30 are drawn.
        path: see the module.
        label: label of the axis of changes.
        title: title of the picture.
    """
    if not records:
        return None
    top = records[:_MOST_IMPORTANCES]
    number = len(top)
    figure = new_figure(6.4, 1.4 + 0.26 * number)
    axes = figure.subplots()
    bars: dict[str, Any] = {"color": BLUE, "ecolor": "0.35", "height": 0.7, "capsize": 2}
    axes.barh(range(number), [r["change"] for r in top], xerr=[r["std"] for r in top], **bars)
    axes.axvline(0, color="0.35", linewidth=1.1)
    axes.set_yticks(range(number), [shown(record["column"]) for record in top], fontsize=9)
    axes.set_ylim(number - 0.4, -0.6)
    axes.set(xlabel=label, title=f"{title}{_some_of(number, len(records), ': the first')}")
    quiet_frame(axes)
    axes.grid(visible=False, axis="y")
    return save(figure, path)


# ---------------------------------------------------------------------------------------------- figures of several runs


def plot_comparison(rows: Sequence[Mapping[str, Any]], figure: str, violation: str, path: Path) -> Path | None:
    """Draw a figure of every run against its largest constraint value; without constraints, a line for every run.

    Runs that meet their constraints are blue dots, the others vermilion crosses.

    Args:
        rows: records of the runs, with the key ``run``.
        figure: key of the figure.
        violation: key of the largest constraint value.
        path: see the module.
    """
    complete = [row for row in rows if row.get(figure) is not None]
    if not complete:
        return None
    constrained = [row for row in complete if row.get(violation) is not None]
    canvas = new_figure(7, 4.2 if constrained else 1.4 + 0.3 * len(complete))
    axes = canvas.subplots()
    quiet_frame(axes)
    for row in constrained:
        holds = row.get("holds", "yes" if row[violation] <= 0 else "no") == "yes"
        axes.plot(row[violation], row[figure], "o" if holds else "X", color=BLUE if holds else VERMILION)
        _annotate(axes, row["run"], (row[violation], row[figure]))
    if constrained:
        axes.axvline(0, color="0.5", linewidth=1)
        axes.set(xlabel=f"{shown(violation)} in training (constraints hold left of 0)", ylabel=shown(figure))
    else:
        axes.plot([row[figure] for row in complete], range(len(complete)), "o", color=BLUE)
        axes.set_yticks(range(len(complete)), [shown(row["run"]) for row in complete])
        axes.invert_yaxis()
        axes.set(xlabel=shown(figure))
    return save(canvas, path)


def plot_front(points: Sequence[Mapping[str, Any]], figure: str, path: Path) -> Path | None:
    """Draw a figure of every point of a front against the violation, with a line for every split and labelled points.

    Args:
        points: records from the loosest to the tightest constraints, with ``point``, the label, and
            ``SPLIT violation`` and ``SPLIT FIGURE`` for every split.
        figure: name of the figure.
        path: see the module.
    """
    lines = {split: [(point.get(f"{split} violation"), point.get(f"{split} {figure}")) for point in points]
             for split in _SPLITS}  # fmt: skip
    complete = {split: line for split, line in lines.items() if all(None not in place for place in line)}
    if not complete:
        return None
    canvas = new_figure(7, 4.2)
    axes = canvas.subplots()
    quiet_frame(axes)
    for split, line in complete.items():
        axes.plot(*zip(*line, strict=True), label=split, **split_style(split))
        for point, place in zip(points, line, strict=True):
            _annotate(axes, point["point"], place)
    axes.axvline(0, color="0.5", linewidth=1)
    axes.set(xlabel="violation at the tightest kappa (all constraints hold left of 0)", ylabel=shown(figure))
    axes.legend(frameon=False)
    return save(canvas, path)


def _annotate(axes: "Axes", name: str, place: tuple[Any, Any]) -> None:
    axes.annotate(shown(name), place, (4, 4), textcoords="offset points", fontsize=8)
