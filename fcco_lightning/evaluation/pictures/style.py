"""What all pictures share: palette, lines against epochs, frames, PNG files.

A *history* is a list of records, one an epoch and split, as logged at the end of the epoch::

    {"epoch": 0, "split": "train", "auc": 0.89, "worst_violation": 0.02, "h/tpr@-3": -0.004, "h/fpr@2": 0.02}

All keys but ``epoch`` and ``split`` are optional.  A picture whose numbers are absent is skipped (the function returns
None).  An absent or None value is passed over, one that is not finite leaves a hole in its line.

Figures are made without pyplot, so no global state or display is touched, and matplotlib is imported only when a
picture is drawn.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fcco_lightning.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History: TypeAlias = Sequence[Mapping[str, Any]]
"""Records of a run, see the module."""

DPI = 130
# Okabe & Ito's palette, told apart under the common colour blindnesses; markers differ too, for print in grey.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_SPLIT_STYLES = {"train": (BLUE, "o"), "val": (VERMILION, "s"), "test": (GREEN, "^")}
_MOST_LETTERS = 28  # of a name


class Line(NamedTuple):
    """Values against epochs, in order."""

    epochs: list[int]
    values: list[float]


def line_of(records: History, key: str) -> Line:
    """Collect ``key`` over the epochs; empty without any finite value."""
    rows = sorted((record for record in records if record.get(key) is not None), key=lambda record: record["epoch"])
    # An infinity would stretch the axis beyond use; matplotlib leaves a hole at a NaN.
    values = [value if math.isfinite(value := float(record[key])) else math.nan for record in rows]
    return Line([], []) if all(map(math.isnan, values)) else Line([record["epoch"] for record in rows], values)


def lines_by_split(history: History, key: str) -> dict[str, Line]:
    """The lines of ``key``, a split each; without those that have no finite value."""
    splits = dict.fromkeys(record["split"] for record in history)
    lines = {split: line_of([r for r in history if r["split"] == split], key) for split in splits}
    return {split: line for split, line in lines.items() if line.values}


def split_style(split: str) -> dict[str, Any]:
    """Colour and marker of a split, as matplotlib names them."""
    color, marker = _SPLIT_STYLES.get(split, (PURPLE, "D"))
    return {"color": color, "marker": marker}


def shown(name: object, most: int = _MOST_LETTERS) -> str:
    """A name from data as a picture may show it: short, without control characters, and no formula.

    It is without its middle where it is long: names of intersections often differ in their last part.  A dollar would
    begin a formula, and a legend leaves out what is empty or begins with an underscore.
    """
    text = printable(name, most).replace("$", r"\$")
    return f" {text}" if text.startswith("_") or not text else text


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of that size in inches, which keeps its parts from overlapping."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (slow to import)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def row_of_axes(figure: "Figure", count: int) -> list["Axes"]:
    """Panels side by side."""
    return list(figure.subplots(1, count, squeeze=False)[0])


def quiet_frame(axes: "Axes") -> None:
    """A light grid behind, no frame above and to the right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)


def unit_square(axes: "Axes", **labels: Any) -> None:
    """Both axes from 0 to 1, as of shares, with titles and the like."""
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), **labels)
    quiet_frame(axes)


def mark_diagonal(axes: "Axes") -> None:
    """Where both are equal."""
    axes.plot([0, 1], [0, 1], color="0.75", linewidth=1, linestyle=":")


def mark_level(axes: "Axes", level: float, label: str) -> None:
    """A level that divides what is good from what is not."""
    axes.axhline(level, color="0.35", linestyle="--", linewidth=1.1, label=label, zorder=1)


def label_epochs(axes: "Axes", unit: str, title: str) -> None:
    """Whole epochs on the x-axis."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 (slow to import)

    axes.set(xlabel="epoch", ylabel=unit, title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    quiet_frame(axes)


def save(figure: "Figure", path: str | Path) -> Path:
    """Write the PNG, whole or not at all; its folder is created."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(target, dpi=DPI, format="png")
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target
