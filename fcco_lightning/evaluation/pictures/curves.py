"""Pictures of rates against rates: ROC, precision and recall, predicted against observed survival."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fcco_lightning.evaluation.metrics.ranking import (
    GroupRates,
    auc,
    average_precision,
    group_rates,
    partial_auc,
    precision_recall_curve,
    roc_curve,
)
from fcco_lightning.evaluation.pictures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = ((style.BLUE, "-"), (style.VERMILION, "--"), (style.GREEN, "-."))
_POINTS = "os"
_NAMED = 3  # curves with a colour and a legend of their own


def plot_ranking(
    lists: Mapping[str, tuple[Tensor, Tensor]],
    path: str | Path,
    *,
    region: tuple[float, float] = (1.0, 0.0),
    split: str = "",
) -> Path | None:
    """Draw precision over recall and, beside it, the ROC curve, of every label.

    Of more than three labels those with the lowest, the middle and the highest average precision have colours, the
    others are grey.  A dotted line is the share of the positives, which is the precision of a random ranking.

    Args:
        lists: the scores and the classes of each label, as :mod:`fcco_lightning.evaluation.metrics.ranking` takes
            them, by its name, which may be empty if there is one only.
        path: PNG file to write; its folder is created.
        region: largest false positive rate and smallest true positive rate of the part of the ROC curve to shade.
        split: what is shown, for the titles.

    Returns:
        The file written, or None if there is no list.
    """
    if not lists:
        return None
    ordered = sorted(lists, key=lambda name: average_precision(*lists[name]).item())
    last = len(ordered) - 1
    named = sorted({0, last // 2, last}) if last >= _NAMED else range(last + 1)
    looks = dict(zip(named, _STYLES, strict=False))
    max_fpr, min_tpr = region
    figure = style.new_figure(9.4, 4.6)
    left, right = style.row_of_axes(figure, 2)
    style.mark_diagonal(right)
    right.fill_between([0, max_fpr], [min_tpr, min_tpr], 1, color="0.93", zorder=0)
    for i, name in enumerate(ordered):
        _draw_list(left, right, name, *lists[name], region, looks.get(i))
    suffix = f" ({split})" if split else ""
    style.unit_square(left, xlabel="recall", ylabel="precision", title=f"Precision and recall{suffix}")
    style.unit_square(right, xlabel="false positive rate", ylabel="true positive rate", title=f"ROC{suffix}")
    for axes in (left, right):
        axes.legend(loc="best", frameon=False)
    return style.save(figure, path)


def _draw_list(
    left: "Axes",
    right: "Axes",
    name: str,
    scores: Tensor,
    y: Tensor,
    region: tuple[float, float],
    look: tuple[str, str] | None,
) -> None:
    """Both curves of a label, grey and without a name where it has no look."""
    color, dashes = look or ("0.82", "-")
    shown: dict[str, Any] = {"color": color, "linestyle": dashes, "linewidth": 1.6 if look else 0.8}
    names: list[str | None] = [None, None]
    if look:
        prefix = f"{style.shown(name)}: " if name else ""
        ap, area = average_precision(scores, y).item(), partial_auc(scores, y, *region).item()
        names = [f"{prefix}AP {ap:.3f}", f"{prefix}shaded part {area:.3f}"]
        left.axhline(float(y.double().mean()), color=color, linewidth=0.8, linestyle=":")
    precision, recall = precision_recall_curve(scores, y)
    fpr, tpr = roc_curve(scores, y)
    left.step(recall.tolist(), precision.tolist(), where="pre", label=names[0], **shown)
    right.plot(fpr.tolist(), tpr.tolist(), label=names[1], **shown)


def plot_roc_by_group(
    splits: Mapping[str, tuple[Tensor, Tensor, Tensor]],
    path: str | Path,
    *,
    names: tuple[str, str] = ("group 0", "group 1"),
    num_thresholds: int = 200,
) -> Path | None:
    """Draw the ROC curves of the groups, one panel a split, with each AUC and the hard gap.

    The grey segment joins the groups' points at the common threshold where their rates differ most: curves that lie
    on each other can still be far apart there.

    Args:
        splits: scores, classes and groups of each split, as :func:`~fcco_lightning.evaluation.metrics.group_rates`
            takes them.
        path: PNG file to write; its folder is created.
        names: of the groups 0 and 1.
        num_thresholds: the number of quantiles of the scores at which the gap is taken, >= 1.

    Returns:
        The file written, or None if there is no split.
    """
    if not splits:
        return None
    figure = style.new_figure(4.6 * len(splits), 4.7)
    labels = {"xlabel": "false positive rate", "ylabel": "true positive rate"}
    for axes, (split, (scores, y, group)) in zip(style.row_of_axes(figure, len(splits)), splits.items(), strict=True):
        style.mark_diagonal(axes)
        for k, (name, (color, dashes)) in enumerate(zip(names, _STYLES, strict=False)):
            own = scores[group == k], y[group == k]
            fpr, tpr = roc_curve(*own)
            label = f"{style.shown(name)}: AUC {auc(*own).item():.3f}"
            axes.plot(fpr.tolist(), tpr.tolist(), dashes, color=color, linewidth=1.6, label=label)
        _draw_gap(axes, group_rates(scores, y, group, num_thresholds))
        style.unit_square(axes, aspect="equal", title=f"ROC by group ({split})", **labels)
        axes.legend(loc="lower right", frameon=False)
    return style.save(figure, path)


def _draw_gap(axes: "Axes", rates: GroupRates) -> None:
    widest = int(rates.gaps.argmax())
    label = f"hard gap {float(rates.gaps[widest]):.3f}, at one threshold"
    fpr, tpr = rates.fpr[:, widest].tolist(), rates.tpr[:, widest].tolist()
    axes.plot(fpr, tpr, color="0.25", linewidth=1.2, label=label, zorder=3)
    for x, y, (color, _), marker in zip(fpr, tpr, _STYLES, _POINTS, strict=False):
        axes.plot(x, y, marker, color=color, markeredgecolor="0.25", markersize=7, zorder=4)


def plot_calibration(
    groups: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, *, horizon: float | None = None
) -> Path | None:
    """Draw the predicted probability of groups of samples against the observed share; on the diagonal they agree.

    Args:
        groups: for each split a list of records with ``predicted`` and ``observed``, probabilities.
        path: PNG file to write; its folder is created.
        horizon: where survival is meant, until when; None for the class of positives.

    Returns:
        The file written, or None if no split has a group.
    """
    shown = {split: records for split, records in groups.items() if records}
    if not shown:
        return None
    figure = style.new_figure(4.6, 4.7)
    axes = figure.subplots()
    style.mark_diagonal(axes)
    for split, records in shown.items():
        points = ([record[name] for record in records] for name in ("predicted", "observed"))
        axes.plot(*points, linewidth=1.2, label=split, **style.split_style(split))
    if horizon is None:
        labels = {"title": "Probabilities of positives", "ylabel": "observed, by tenths of the samples"}
    else:
        labels = {"title": f"survival to {horizon:.4g}", "ylabel": "observed (Kaplan-Meier)"}
    style.unit_square(axes, aspect="equal", xlabel="predicted", **labels)
    if horizon is None:  # of rare positives all are small
        most = max(max(record["predicted"], record["observed"]) for records in shown.values() for record in records)
        axes.set(xlim=(-0.02 * most, 1.05 * most), ylim=(-0.02 * most, 1.05 * most))
    axes.legend(loc="lower right", frameon=False)
    return style.save(figure, path)
