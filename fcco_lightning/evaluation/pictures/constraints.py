"""Pictures of constrained training: objective and worst violation, every constraint."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fcco_lightning.evaluation.pictures import style
from fcco_lightning.evaluation.pictures.style import History, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONSTRAINT_PREFIX, MULTIPLIER_PREFIX = "h/", "nu/"
_MEANING = "constraint value $h_i$ (feasible: at most 0)"
_MOST_LINES, _MOST_ROWS = 14, 40
_LINEAR = 0.05  # of the largest value: from there on colours follow its logarithm, so that small values have a sign
MINUS = "\N{MINUS SIGN}"  # as on the axes; a hyphen is too short to be seen


class _Constraint(NamedTuple):
    """A constraint's name in parts; ``rate`` and ``threshold`` are empty for a name not like ``tpr@-3``."""

    key: str
    rate: str
    threshold: float | None

    @property
    def label(self) -> str:
        name = self.key.partition("/")[2]
        if self.threshold is None:
            return style.shown(name)
        return f"{style.shown(self.rate.upper())}, τ = {self.threshold:g}".replace("-", MINUS)


def plot_objective_and_violation(history: History, path: str | Path) -> Path | None:
    """Draw AUC and worst constraint violation (largest h_i) against the epoch, one line a split, side by side.

    Args:
        history: records with ``auc`` and ``worst_violation``; a panel without any number is left out.
        path: PNG file to write; its folder is created.

    Returns:
        The file written, or None if no record holds either number.
    """
    panels = [
        ("auc", "AUC", "AUC of the raw scores"),
        ("worst_violation", "largest constraint value, max $h_i$", "Worst constraint violation"),
    ]
    shown = [(key, unit, title) for key, unit, title in panels if style.lines_by_split(history, key)]
    if not shown:
        return None
    figure = style.new_figure(4.8 * len(shown), 3.7)
    for axes, (key, unit, title) in zip(style.row_of_axes(figure, len(shown)), shown, strict=True):
        for split, line in style.lines_by_split(history, key).items():
            axes.plot(*line, label=split, markersize=3.5, linewidth=1.6, **style.split_style(split))
        if key == "worst_violation":
            style.mark_level(axes, 0, "feasible: $h \\leq 0$")
        style.label_epochs(axes, unit, title)
        axes.legend(frameon=False)
    return style.save(figure, path)


def plot_constraints(history: History, path: str | Path, split: str | None = None) -> Path | None:
    """Draw every constraint value h_i against the epoch on one pair of axes.

    More than 14 lines could not be told apart.  They become a heat map with a row for each constraint and a column for
    each epoch, orange where it is violated and purple where it holds; of more than 40 it has those that are largest at
    the end.

    Constraints called ``tpr@<threshold>`` or ``fpr@<threshold>`` are coloured by their threshold, from dark to light;
    TPR lines are solid, FPR lines dashed.  Other names are solid and coloured by their order.

    Args:
        history: records with keys ``h/<name>``.
        path: PNG file to write; its folder is created.
        split: whose values to draw; None takes ``train``, or else the first split that has any.

    Returns:
        The file written, or None if that split has no constraint values.
    """
    shown, lines = _lines(CONSTRAINT_PREFIX, history, split)
    if not lines:
        return None
    title = f"Constraint values ({shown})"
    if len(lines) > _MOST_LINES:
        return style.save(_heat_map(lines, title, _MEANING), path)
    figure, axes = _drawn(lines, title, _MEANING)
    style.mark_level(axes, 0, "_unlisted")  # an odd entry would push the legend's two columns out of step
    return style.save(figure, path)


def plot_multipliers(history: History, path: str | Path) -> Path | None:
    """Draw every multiplier nu_i against the epoch, in the colours of :func:`plot_constraints`.

    More than 14 become a heat map, the darker the larger.

    Args:
        history: records with keys ``nu/<name>``.
        path: PNG file to write; its folder is created.

    Returns:
        The file written, or None if there are no multipliers.
    """
    _, lines = _lines(MULTIPLIER_PREFIX, history)
    if not lines:
        return None
    title, meaning = "Multipliers of the constraints", "multiplier $\\nu_i$"
    if len(lines) > _MOST_LINES:
        signed = any(nu < 0 for line in lines.values() for nu in line.values)  # as those of equalities may be
        return style.save(_heat_map(lines, title, meaning, signed=signed), path)
    return style.save(_drawn(lines, title, meaning)[0], path)


def _lines(prefix: str, history: History, split: str | None = None) -> tuple[str | None, dict[str, Line]]:
    """The split that is shown, and what is drawn of every constraint, by key."""
    able = [record for record in history if any(key.startswith(prefix) for key in record)]
    splits = [record["split"] for record in able]
    shown = split or ("train" if "train" in splits else next(iter(splits), None))
    records = [record for record in able if record["split"] == shown]
    keys = dict.fromkeys(key for record in records for key in record if key.startswith(prefix))
    return shown, {key: line for key in keys if (line := style.line_of(records, key)).values}


def _drawn(lines: Mapping[str, Line], title: str, meaning: str) -> "tuple[Figure, Axes]":
    figure = style.new_figure(8.4, 4.4)
    axes = figure.add_subplot()
    constraints = _ordered(lines)
    for constraint, color in zip(constraints, _sequential_colors(constraints), strict=True):
        dashes, marker = ("--", "x") if constraint.rate == "fpr" else ("-", "o")
        line = lines[constraint.key]
        alone = marker if len(line.values) == 1 else None  # one epoch draws no line
        axes.plot(*line, dashes, color=color, marker=alone, label=constraint.label, linewidth=1.5)
    style.label_epochs(axes, meaning, title)
    # One column a rate, thresholds side by side; outside, because 14 lines leave no free corner.
    columns = 1 + (len(lines) > 10)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, ncols=columns, fontsize=9)
    return figure, axes


def _ordered(keys: Iterable[str]) -> list[_Constraint]:
    """True positive rates first, each kind by its thresholds."""
    return sorted(map(_parse, keys), key=lambda c: (c.rate != "tpr", c.rate, c.threshold or 0.0))


def _heat_map(lines: Mapping[str, Line], title: str, meaning: str, *, signed: bool = True) -> "Figure":
    from matplotlib.colors import SymLogNorm  # noqa: PLC0415 (slow to import, and only needed here)

    at_end = {key: math.inf if math.isnan(line.values[-1]) else line.values[-1] for key, line in lines.items()}
    largest = set(sorted(lines, key=lambda key: -at_end[key])[:_MOST_ROWS])
    shown = _ordered(key for key in lines if key in largest)
    epochs = sorted({epoch for key in largest for epoch in lines[key].epochs})
    values = [dict(zip(*lines[c.key], strict=True)) for c in shown]
    rows = [[row.get(epoch, math.nan) for epoch in epochs] for row in values]
    bound = max(abs(h) for row in rows for h in row if not math.isnan(h)) or 1.0
    figure = style.new_figure(8.4, 1.4 + 0.22 * len(shown))
    axes = figure.add_subplot()
    axes.set_facecolor("0.85")  # where nothing is known
    norm = SymLogNorm(_LINEAR * bound, vmin=-bound if signed else 0.0, vmax=bound)
    colours = "PuOr_r" if signed else "Purples"
    mesh = axes.pcolormesh(_edges(epochs), range(len(shown) + 1), rows, cmap=colours, norm=norm)
    axes.set_yticks([i + 0.5 for i in range(len(shown))], [c.label for c in shown], fontsize=8)
    axes.invert_yaxis()
    title += f": the {len(shown)} largest of {len(lines)}" if len(shown) < len(lines) else ""
    style.label_epochs(axes, "", title)
    axes.grid(visible=False)
    figure.colorbar(mesh, ax=axes, label=meaning)
    return figure


def _edges(epochs: Sequence[int]) -> list[float]:
    """Where columns begin and end, each around its epoch, however far apart these are."""
    between = [(a + b) / 2 for a, b in pairwise(epochs)]
    first, last = (between[0], between[-1]) if between else (epochs[0] + 0.5, epochs[0] - 0.5)
    return [2 * epochs[0] - first, *between, 2 * epochs[-1] - last]


def _parse(key: str) -> _Constraint:
    match = re.fullmatch(r"(\w+)@([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)", key.partition("/")[2])
    return _Constraint(key, match[1].lower(), float(match[2])) if match else _Constraint(key, "", None)


def _sequential_colors(constraints: Sequence[_Constraint]) -> list[Any]:
    """Colour a constraint by the rank of its threshold, or of its name; viridis without its pale end."""
    from matplotlib import colormaps  # noqa: PLC0415 (slow to import, and only needed here)

    levels = sorted({c.threshold for c in constraints if c.threshold is not None})
    names = [c.key for c in constraints if c.threshold is None]
    ranks = [names.index(c.key) if c.threshold is None else levels.index(c.threshold) for c in constraints]
    return [colormaps["viridis"](0.9 * rank / max(1, *ranks)) for rank in ranks]
