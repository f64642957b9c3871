"""Sentences that summarise the result of a run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fcco_lightning.evaluation import Standing, direction, is_feasible, standing
from fcco_lightning.reports.summary_table import TITLES, splits_of

_RUINED = 1 / 3  # a ranking that lost a larger share of its advantage over chance is called ruined
_LEARNT = 0.55  # the least AUC of the best one, as a ranking that no weights have learnt cannot be ruined


def verdict(report: Mapping[str, Any], figures: Sequence[str]) -> str | None:
    """Say whether the constraints hold on the training and the test split, and what they cost on the latter.

    In continual learning it also says if the target was not learnt.

    Args:
        report: splits with ``constraints`` (name to h) and figures, and optionally ``decided`` (name to h on
            decisions), ``vacuous`` and the reason ``vacuous_because``; optionally ``decisions``, whether constraints
            are enforced on decisions, ``unconstrained``, the same splits of a model without constraints, and ``kappas``
            of all constraints, including those without samples in a split.
        figures: names of the figures to compare; figures that the split lacks are left out.

    Returns:
        A sentence, or None if there are no constraints.

    Example:
        >>> train, test = {"constraints": {"a": -0.01, "b": -0.003}}, {"auc": 0.861}
        >>> verdict({"train": train, "test": test, "unconstrained": {"test": {"auc": 0.88}}}, ["auc"])
        'Both constraints hold on the training split (largest h -0.003); test AUC 0.861 against 0.880 unconstrained.'
    """
    constrained = [name for name, part in splits_of(report).items() if part.get("constraints")]
    if not constrained:
        num_constraints, rest = len(report.get("kappas", {})), headline(report, figures)
        subject = "The constraint" if num_constraints == 1 else f"The {num_constraints} constraints"
        unjudged = f"{subject} cannot be evaluated: no split has samples of their subsets with a weight > 0."
        return f"{unjudged} {rest}" if num_constraints and rest else None
    checked = "train" if "train" in constrained else constrained[0]
    split = "test" if "test" in report else checked
    compared = _comparison(report[split], report.get("unconstrained", {}).get(split, {}), figures)
    decisions, elsewhere = bool(report.get("decisions")), ""
    if split in constrained and split != checked:
        worst = max(_enforced(report[split], decisions=decisions).values(), key=lambda h: (math.isnan(h), h))
        elsewhere = f", on {split} {worst:+.3f}"
    text = _outcome(report[checked], "training" if checked == "train" else checked, elsewhere, decisions=decisions)
    unknown = len(report.get("kappas", {}).keys() - report[checked]["constraints"].keys())
    text += f"; {unknown} more cannot be evaluated, as it has no samples of their subsets" if unknown else ""
    return (f"{text}; {split} {compared}." if compared else f"{text}.") + _not_learnt(report[split], split)


def headline(report: Mapping[str, Any], figures: Sequence[str]) -> str | None:
    """The figures of a run without constraints as a sentence; None if it has none of them.

    Example:
        >>> headline({"train": {"auc": 0.9}, "test": {"auc": 0.8614, "loss": 0.3}}, ["auc", "loss"])
        'On the test split: AUC 0.861, loss 0.300.'
    """
    splits = splits_of(report)
    split = "test" if "test" in splits else next(iter(splits), "")
    comparison = _comparison(splits.get(split, {}), {}, figures)
    return f"On the {split} split: {comparison}.{_not_learnt(splits[split], split)}" if comparison else None


def _not_learnt(results: Mapping[str, Any], split: str) -> str:
    """A clause if a model is no better on the target task than before; else empty."""
    change = results.get("delta_target", math.nan)
    if not change <= 0:
        return ""
    accuracy = f", to {results['target_accuracy']:.3f}" if "target_accuracy" in results else ""
    return f" The target has not improved: its accuracy on the {split} split has changed by {change:+.3f}{accuracy}."


def _enforced(results: Mapping[str, Any], *, decisions: bool) -> Mapping[str, float]:
    """The enforced h of a split by name: those on decisions if ``decisions``."""
    smooth: Mapping[str, float] = results["constraints"]
    return {**smooth, **results.get("decided", {})} if decisions else smooth


def _outcome(results: Mapping[str, Any], split: str, elsewhere: str, *, decisions: bool) -> str:
    values = _enforced(results, decisions=decisions)
    smooth = results["constraints"]
    decided = results.get("decided", {})
    kind, others, other_kind = "", decided, "of decisions"
    if decisions and decided:
        kind, others, other_kind = " of decisions", smooth, "smoothed"
    broken = {name: h for name, h in values.items() if not h <= 0}  # NaN counts as violated
    remark = f"; {other_kind} {max(others.values()):+.3f}" if others else ""
    count = f"{len(values)} constraint" + ("s" if len(values) > 1 else "")
    if broken:
        worst = max(broken, key=lambda name: broken[name])
        verb = "does" if len(broken) == 1 else "do"
        return (
            f"{len(broken)} of {count} {verb} not hold on the {split} split "
            f"(largest h{kind} {broken[worst]:+.3f}, {worst}{elsewhere}{remark})"
        )
    subject = {1: "The constraint holds", 2: "Both constraints hold"}.get(len(values), f"All {count} hold")
    emptily = f", but {'it is' if len(values) == 1 else 'they are'} vacuous there" if results.get("vacuous") else ""
    emptily += f": {results['vacuous_because']}" if emptily and results.get("vacuous_because") else ""
    return f"{subject} on the {split} split (largest h{kind} {max(values.values()):+.3f}{elsewhere}{remark}){emptily}"


def _comparison(results: Mapping[str, Any], other: Mapping[str, Any], figures: Sequence[str]) -> str:
    parts: list[str] = []
    for name in figures:
        if name in results and not math.isnan(results[name]):
            title, comma, qualifier = TITLES.get(name, name.replace("_", " ")).partition(", ")
            title += f" ({qualifier})" if comma else ""  # no comma within a list of figures
            reference = f" against {other[name]:.3f}" if name in other else ""
            suffix = " unconstrained" if reference and not any("against" in p for p in parts) else ""
            parts.append(f"{title} {results[name]:.3f}{reference}{suffix}")
    return ", ".join(parts)


def chosen_line(chosen: dict[str, Any]) -> str:
    """Name the epoch of the chosen weights, and say whether they are feasible.

    Example:
        >>> chosen_line({"epoch": 3, "feasible": False, "worst_violation": 0.0123})
        'No epoch was feasible on the validation split; these are the weights of epoch 3, with the smallest \
violation (h +0.012).'
    """
    epoch = f"epoch {chosen['epoch']}"
    if chosen.get("vacuous"):
        return (
            "In every epoch the constraints were vacuous on the validation split, so that none is feasible; these are "
            f"the weights of {epoch}, with the best figure."
        )
    if "bound" not in chosen:
        if chosen["feasible"]:
            return f"The weights are those of {epoch}, the best that is feasible on the validation split."
        return (
            f"No epoch was feasible on the validation split; these are the weights of {epoch}, with the smallest "
            f"violation (h {chosen['worst_violation']:+.3f})."
        )
    number, bound = chosen["constraints"], chosen["bound"]
    all_of_them = "that the constraint holds" if number == 1 else f"that all {number} constraints hold together"
    finding = f"the validation split confirms with {chosen['confidence']:.0%} confidence {all_of_them} on unseen data"
    if chosen["feasible"]:
        return (
            f"The weights are those of {epoch}, the best epoch for which {finding} (largest upper bound {bound:+.3f})."
        )
    return (
        f"There is no epoch for which {finding}; these are the weights of {epoch}, with the smallest upper bound "
        f"({bound:+.3f}). A kappa larger by {bound:.2g} would be confirmed for them."
    )


def reached_line(
    history: Sequence[Mapping[str, Any]], figure: str | None = None, *, enforced: bool = True
) -> str | None:
    """Say how close a run that ends infeasible has come to weights that satisfy all constraints.

    Args:
        history: records of the validations of one split, with ``epoch``, ``worst_violation`` and ``vacuous``, and
            optionally the final weights as the last record.
        figure: figure by which feasible weights are compared; None for the worst violation.
        enforced: whether the constraints were enforced, and not measured only.

    Returns:
        A sentence, or None if the last weights are feasible or there are no records.

    Example:
        >>> reached_line([{"epoch": 0, "worst_violation": 0.03}, {"epoch": 1, "worst_violation": 0.05}])
        'No weights were found that satisfy all constraints; those of epoch 0 have the smallest violation \
(h +0.03). Either kappa must be larger by this amount, or some constraints contradict each other or the data.'
    """
    validations = [r for r in history if not math.isnan(r.get("worst_violation", math.nan))]
    if not validations or is_feasible(validations[-1]["worst_violation"], validations[-1].get("vacuous")):
        return None
    best = max(validations, key=lambda record: _standing(record, figure))
    h, level = best["worst_violation"], _standing(best, figure).level
    if level == 2:
        chooser = "the callback BestFeasible (--feasible.enabled true) with a validation split"
        return f"All of them held in epoch {best['epoch']}: {chooser} chooses such weights."
    if level == 0:
        satisfied = validations[-1]["worst_violation"] <= 0  # vacuous: see the verdict
        reason = "" if satisfied else validations[-1].get("vacuous_because", "")
        return f"They were vacuous in every epoch{reason and f': {reason}'}."
    if not enforced:
        return "They were only measured, not enforced (rho=0)."
    clause = " and are not vacuous" if any(record.get("vacuous") for record in validations) else ""
    return (
        f"No weights were found that satisfy all constraints{clause}; those of epoch {best['epoch']} have the smallest "
        f"violation (h {h:+.2g}). Either kappa must be larger by this amount, or some constraints contradict each "
        "other or the data."
    )


def ranking_line(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    unconstrained: Mapping[str, Mapping[str, Any]],
    command: str = "",
) -> str | None:
    """Say whether the constraints have ruined the ranking, and what a larger kappa would gain, if that is known.

    A ranking is ruined if it has lost more than a third of the advantage over chance of the best known ranking, on
    every split with another ranking to compare with, since a model without constraints may have memorised the training
    split; it cannot be if the best one is near chance.  The gain of a larger kappa is estimated from the validations
    and the model without constraints, each with its largest h: among those that recover half of the loss, the one with
    the smallest h is named.

    Args:
        histories: split -> records of validations with ``epoch``, ``worst_violation`` and ``auc``, the last of which
            are the final weights; the figures in the sentence are those of the first split.
        unconstrained: split -> figures of a model without constraints; empty if there is none.
        command: the command that trains further points of the trade-off.

    Example:
        >>> weights = [{"epoch": 0, "worst_violation": 0.04, "auc": 0.74}, {"worst_violation": -0.01, "auc": 0.55}]
        >>> ranking_line({"train": weights}, {"train": {"worst_violation": 0.2, "auc": 0.8}})
        'The constraints ruin the ranking: train AUC 0.550 against 0.800 unconstrained. With kappa larger by 0.04 the \
weights of epoch 0 had 0.740.'
    """
    compared = {}
    for split, history in histories.items():
        keys = ("worst_violation", "auc")
        rows = [*history, unconstrained.get(split, {})]
        candidates = [row for row in rows if not any(math.isnan(row.get(name, math.nan)) for name in keys)]
        if len(candidates) > 1 and history and history[-1] in candidates:
            compared[split] = history[-1]["auc"], max(candidates, key=lambda row: row["auc"]), candidates
    lost = [(best["auc"] - final, _RUINED * (best["auc"] - 0.5)) for final, best, _ in compared.values()]
    learnt = all(best["auc"] >= _LEARNT for _, best, _ in compared.values())
    if not compared or not learnt or any(loss <= max(0.0, limit) for loss, limit in lost):
        return None
    split, (final, best, candidates) = next(iter(compared.items()))
    half = [row for row in candidates if row["auc"] >= (final + best["auc"]) / 2]
    looser = min(half, key=lambda row: row["worst_violation"])
    h = looser["worst_violation"]
    condition = "At this kappa" if h <= 0 else f"With kappa larger by {h:.2g}"
    return (
        f"The constraints ruin the ranking: {split} AUC {final:.3f} against {best['auc']:.3f} {_epoch_clause(best)}. "
        f"{condition} the {_name_of_weights(looser)} had {looser['auc']:.3f}"
        + (f"; points in between: {command}" if command else ".")
    )


def _epoch_clause(record: Mapping[str, Any]) -> str:
    return f"in epoch {record['epoch']}" if "epoch" in record else "unconstrained"


def _name_of_weights(record: Mapping[str, Any]) -> str:
    return f"weights of epoch {record['epoch']}" if "epoch" in record else "model without constraints"


def _standing(record: Mapping[str, Any], figure: str | None) -> Standing:
    h = record["worst_violation"]
    value = -h
    if figure is not None and figure in record:
        value = record[figure] * (1 if direction(figure) == "max" else -1)
    return standing(value, h, record.get("vacuous"))
