"""Pictures of a run: pure functions from plain numbers to PNG files.

A *history* is a list of records, one an epoch and split, as logged at the end of the epoch::

    {"epoch": 0, "split": "train", "auc": 0.89, "worst_violation": 0.02, "h/tpr@-3": -0.004, "h/fpr@2": 0.02}

All keys but ``epoch`` and ``split`` are optional.  A picture whose numbers are absent is skipped (the function returns
None).  An absent or None value is passed over, one that is not finite leaves a hole in its line.

Figures are made without pyplot, so no global state or display is touched, and matplotlib is imported only when a
picture is drawn.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fcco_lightning.metrics.group import GroupROC, SplitROC

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History: TypeAlias = Sequence[Mapping[str, Any]]
"""Records of a run, see the module."""

DPI = 130
CONSTRAINT_PREFIX = "h/"
# Okabe & Ito's palette, told apart under the common colour blindnesses; markers differ too, for print in grey.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SPLIT_STYLES = {"train": (BLUE, "o"), "val": (VERMILION, "s"), "test": (GREEN, "^")}
OTHER_SPLIT = (PURPLE, "D")
MINUS = "\N{MINUS SIGN}"  # as on the axes; a hyphen is too short to be seen
GROUP_STYLES = ((BLUE, "-", "o"), (VERMILION, "--", "s"))


class _Line(NamedTuple):
    epochs: list[int]
    values: list[float]


class _Constraint(NamedTuple):
    """A constraint's name in parts; ``rate`` and ``threshold`` are empty for a name not like ``tpr@-3``."""

    key: str
    rate: str
    threshold: float | None

    @property
    def label(self) -> str:
        name = self.key.removeprefix(CONSTRAINT_PREFIX)
        return name if self.threshold is None else f"{self.rate.upper()}, τ = {self.threshold:g}".replace("-", MINUS)


def plot_objective_and_violation(history: History, path: str | Path) -> Path | None:
    """Draw AUC and worst constraint violation (largest h_i) against the epoch, one line a split, side by side.

    Args:
        history: records with ``auc`` and ``worst_violation``; a panel without any number is left out.
        path: PNG file to write; its folder is created.

    Returns:
        The file written, or None if no record holds either number.
    """
    panels = [
        ("auc", "AUC", "Objective: AUC of the raw scores"),
        ("worst_violation", "largest constraint value, max $h_i$", "Worst constraint violation"),
    ]
    shown = [(key, unit, title) for key, unit, title in panels if _lines_by_split(history, key)]
    if not shown:
        return None
    figure = _figure(4.8 * len(shown), 3.7)
    for axes, (key, unit, title) in zip(_row_of_axes(figure, len(shown)), shown, strict=True):
        for split, line in _lines_by_split(history, key).items():
            color, marker = SPLIT_STYLES.get(split, OTHER_SPLIT)
            axes.plot(*line, label=split, color=color, marker=marker, markersize=3.5, linewidth=1.6)
        if key == "worst_violation":
            _mark_feasible(axes)
        _label_epochs(axes, unit, title)
        axes.legend(frameon=False)
    return _save(figure, path)


def plot_constraints(history: History, path: str | Path, split: str | None = None) -> Path | None:
    """Draw every constraint value h_i against the epoch on one pair of axes.

    Constraints called ``tpr@<threshold>`` or ``fpr@<threshold>`` are coloured by their threshold, from dark to light;
    TPR lines are solid, FPR lines dashed.  Other names are solid and coloured by their order.

    Args:
        history: records with keys ``h/<name>``.
        path: PNG file to write; its folder is created.
        split: whose values to draw; None takes ``train``, or else the first split that has any.

    Returns:
        The file written, or None if that split has no constraint values.
    """
    own = _records_with_constraints(history, split)
    keys = dict.fromkeys(key for record in own for key in record if key.startswith(CONSTRAINT_PREFIX))
    lines = {key: line for key in keys if (line := _line(own, key)).values}
    if not lines:
        return None
    figure = _figure(8.4, 4.4)
    axes = figure.add_subplot()
    constraints = sorted(map(_parse, lines), key=lambda c: (c.rate != "tpr", c.rate, c.threshold or 0.0))
    for constraint, color in zip(constraints, _sequential_colors(constraints), strict=True):
        dashes, marker = ("--", "x") if constraint.rate == "fpr" else ("-", "o")
        line = lines[constraint.key]
        alone = marker if len(line.values) == 1 else None  # one epoch draws no line
        axes.plot(*line, dashes, color=color, marker=alone, label=constraint.label, linewidth=1.5)
    _mark_feasible(axes, label="_unlisted")  # an odd entry would push the legend's two columns out of step
    _label_epochs(axes, "constraint value $h_i$ (feasible: at most 0)", f"Constraint values ({own[0]['split']})")
    # One column a rate, thresholds side by side; outside, because 14 lines leave no free corner.
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, ncols=1 + (len(lines) > 10), fontsize=9)
    return _save(figure, path)


def plot_roc_by_group(curves: Mapping[str, SplitROC], path: str | Path) -> Path | None:
    """Draw the ROC curves of the groups, one panel a split, with each AUC and the hard gap.

    The grey segment joins the groups' points at the common threshold where their rates differ most: curves that lie
    on each other can still be far apart there.

    Args:
        curves: for each split its curves, see :func:`~fcco_lightning.metrics.group.split_roc`.
        path: PNG file to write; its folder is created.

    Returns:
        The file written, or None if no split has a curve.
    """
    shown = {split: roc for split, roc in curves.items() if roc.groups}
    if not shown:
        return None
    figure = _figure(4.6 * len(shown), 4.7)
    for axes, (split, roc) in zip(_row_of_axes(figure, len(shown)), shown.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="0.75", linewidth=1, linestyle=":")
        for k, group in enumerate(roc.groups):
            _draw_group(axes, group, k)
        if roc.gap is not None and math.isfinite(roc.gap):
            _draw_gap(axes, roc.gap, roc.widest)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", title=f"ROC by group ({split})")
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        _quiet_frame(axes)
        axes.legend(loc="lower right", frameon=False)
    return _save(figure, path)


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


def _line(records: History, key: str) -> _Line:
    """Collect ``key`` over the epochs; empty without any finite value."""
    rows = sorted((record for record in records if record.get(key) is not None), key=lambda record: record["epoch"])
    # An infinity would stretch the axis beyond use; matplotlib leaves a hole at a NaN.
    values = [value if math.isfinite(value := float(record[key])) else math.nan for record in rows]
    return _Line([], []) if all(map(math.isnan, values)) else _Line([record["epoch"] for record in rows], values)


def _lines_by_split(history: History, key: str) -> dict[str, _Line]:
    splits = dict.fromkeys(record["split"] for record in history)
    lines = {split: _line([r for r in history if r["split"] == split], key) for split in splits}
    return {split: line for split, line in lines.items() if line.values}


def _records_with_constraints(history: History, split: str | None) -> History:
    able = [record for record in history if any(key.startswith(CONSTRAINT_PREFIX) for key in record)]
    splits = [record["split"] for record in able]
    chosen = split or ("train" if "train" in splits else next(iter(splits), None))
    return [record for record in able if record["split"] == chosen]


def _parse(key: str) -> _Constraint:
    found = re.fullmatch(r"(\w+)@([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)", key.removeprefix(CONSTRAINT_PREFIX))
    return _Constraint(key, found[1].lower(), float(found[2])) if found else _Constraint(key, "", None)


def _sequential_colors(constraints: Sequence[_Constraint]) -> list[Any]:
    """Colour a constraint by the rank of its threshold, or of its name; viridis without its pale end."""
    from matplotlib import colormaps  # noqa: PLC0415 (slow to import, and only needed here)

    levels = sorted({c.threshold for c in constraints if c.threshold is not None})
    names = [c.key for c in constraints if c.threshold is None]
    ranks = [names.index(c.key) if c.threshold is None else levels.index(c.threshold) for c in constraints]
    return [colormaps["viridis"](0.9 * rank / max(1, *ranks)) for rank in ranks]


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (slow to import)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _row_of_axes(figure: "Figure", count: int) -> list["Axes"]:
    return list(figure.subplots(1, count, squeeze=False)[0])


def _mark_feasible(axes: "Axes", label: str = "feasible: $h \\leq 0$") -> None:
    axes.axhline(0, color="0.35", linestyle="--", linewidth=1.1, label=label, zorder=1)


def _quiet_frame(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)


def _label_epochs(axes: "Axes", unit: str, title: str) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 (slow to import)

    axes.set(xlabel="epoch", ylabel=unit, title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    _quiet_frame(axes)


def _save(figure: "Figure", path: str | Path) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=DPI, format="png")
    return target
