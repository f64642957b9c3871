"""Checks of scores, labels and groups, made once where a metric receives them."""

import torch
from torch import Tensor

from fcco_lightning.errors import DataError, NonFiniteError


def same_rows(**columns: Tensor) -> None:
    """Raise :class:`DataError` unless all columns have one shape (n,)."""
    shapes = {name: tuple(column.shape) for name, column in columns.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(f"Metrics need columns of one shape (n,), got {listed}. Flatten a trailing 1 with squeeze(-1).")


def checked_pair(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return finite ``scores`` (n,) as float64 without graph and ``labels == 1`` (n,) as bool, or raise."""
    same_rows(scores=scores, labels=labels)
    scores, positive = finite_scores(scores), binary_labels("labels", labels)
    if positive.all() or not positive.any():
        present, missing = (1, 0) if positive.all() else (0, 1)
        raise DataError(
            f"labels must hold both classes, got {len(labels)} samples of class {present} and none of class {missing}. "
            "Compute ranking metrics over a whole split, not over a batch."
        )
    return scores, positive


def checked_groups(scores: Tensor, labels: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`checked_pair` returns and ``groups == 1`` (n,) as bool; each group must hold both labels."""
    same_rows(scores=scores, labels=labels, groups=groups)
    scores, positive = checked_pair(scores, labels)
    favoured = binary_labels("groups", groups)
    for group, members in enumerate((~favoured, favoured)):
        for label, of_class in enumerate((~positive, positive)):
            if not (members & of_class).any():
                raise DataError(
                    f"Each group must hold both labels, got no sample with groups == {group} and labels == {label}. "
                    "Use a larger or a stratified split, or another grouping."
                )
    return scores, positive, favoured


def finite_scores(scores: Tensor) -> Tensor:
    """Return finite ``scores`` (n,) as float64 without graph, or raise."""
    if not scores.is_floating_point():
        raise DataError(f"scores must be floating point (raw model outputs), got {scores.dtype}.")
    if scores.numel() == 0:
        raise DataError("Metrics need at least one sample, got none. Is the split empty?")
    bad = ~scores.isfinite()
    if bad.any():
        where = int(bad.nonzero()[0])
        count = f"{int(bad.sum())} of {len(scores)} are not"
        raise NonFiniteError(f"scores must be finite, got {scores[where].item()} at position {where} ({count}).")
    return scores.detach().double()


def binary_labels(name: str, values: Tensor) -> Tensor:
    """Return ``values == 1`` (n,) as bool, or raise if a value is not 0 or 1."""
    one = values == 1
    bad = ~(one | (values == 0))
    if bad.any():
        where = int(torch.nonzero(bad)[0])
        raise DataError(f"{name} must be 0 or 1, got {values[where].item()} at position {where}.")
    return one
