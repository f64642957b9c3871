"""What a run under constraints has achieved, in one line."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcco_lightning.reports.summary_table import NOT_SPLITS, TITLES


def verdict(report: Mapping[str, Any], figures: Sequence[str]) -> str | None:
    """Say whether the constraints hold on the training split and what they cost on the test split.

    Args:
        report: splits with ``constraints`` (name to h), ``vacuous`` and figures; and maybe ``unconstrained``, the same
            splits of a model trained without constraints.
        figures: names of the figures to compare, those that the split has not are left out.

    Returns:
        None if there are no constraints.

    Example:
        >>> train, test = {"constraints": {"a": -0.01, "b": -0.003}}, {"auc": 0.861}
        >>> verdict({"train": train, "test": test, "unconstrained": {"test": {"auc": 0.88}}}, ["auc"])
        'Both constraints hold on the training split (largest h -0.003); test AUC 0.861 against 0.880 unconstrained.'
    """
    results = {name: part for name, part in report.items() if isinstance(part, Mapping) and name not in NOT_SPLITS}
    splits = [name for name, part in results.items() if part.get("constraints")]
    if not splits:
        return None
    checked = "train" if "train" in splits else splits[0]
    shown = "test" if "test" in report else checked
    compared = _comparison(report[shown], report.get("unconstrained", {}).get(shown, {}), figures)
    held = _held(report[checked], "training" if checked == "train" else checked)
    return f"{held}; {shown} {compared}." if compared else f"{held}."


def headline(report: Mapping[str, Any], figures: Sequence[str]) -> str | None:
    """What a run without constraints has achieved; None if it has none of the figures.

    Example:
        >>> headline({"train": {"auc": 0.9}, "test": {"auc": 0.8614, "loss": 0.3}}, ["auc", "loss"])
        'On the test split: AUC 0.861, loss 0.300.'
    """
    splits = [name for name, part in report.items() if isinstance(part, Mapping) and name not in NOT_SPLITS]
    shown = "test" if "test" in splits else next(iter(splits), "")
    found = _comparison(report.get(shown, {}), {}, figures)
    return f"On the {shown} split: {found}." if found else None


def _held(results: Mapping[str, Any], split: str) -> str:
    values: Mapping[str, float] = results["constraints"]
    broken = {name: h for name, h in values.items() if not h <= 0}  # NaN does not hold
    count = f"{len(values)} constraint" + ("s" if len(values) > 1 else "")
    if broken:
        worst = max(broken, key=lambda name: broken[name])
        verb = "does" if len(broken) == 1 else "do"
        return (
            f"{len(broken)} of {count} {verb} not hold on the {split} split (largest h {broken[worst]:+.3f}, {worst})"
        )
    subject = {1: "The constraint holds", 2: "Both constraints hold"}.get(len(values), f"All {count} hold")
    emptily = f", but {'it says' if len(values) == 1 else 'they say'} nothing there" if results.get("vacuous") else ""
    return f"{subject} on the {split} split (largest h {max(values.values()):+.3f}){emptily}"


def _comparison(results: Mapping[str, Any], other: Mapping[str, Any], figures: Sequence[str]) -> str:
    parts: list[str] = []
    for name in figures:
        if name in results:
            title, comma, of = TITLES.get(name, name.replace("_", " ")).partition(", ")
            title += f" ({of})" if comma else ""  # in a list of figures a comma would divide it
            against = f" against {other[name]:.3f}" if name in other else ""
            word = " unconstrained" if against and not any("against" in p for p in parts) else ""
            parts.append(f"{title} {results[name]:.3f}{against}{word}")
    return ", ".join(parts)
