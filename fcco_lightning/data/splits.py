"""Seeded, stratified splits, and the check that a split can carry the metrics asked of it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, DataError


def stratified_split(
    strata: Tensor, held_out: float, seed: int, argument: str, *, both_sides: bool = False
) -> tuple[Tensor, Tensor]:
    """Split the rows 0..n-1 so that every stratum gives the same share.

    Args:
        strata: stratum of every row, shape (n,), int64.
        held_out: share of the second part, in (0, 1).
        seed: equal seeds give equal splits.
        argument: which argument ``held_out`` came from, for messages.
        both_sides: let rounding take no stratum of two rows or more away from either part.

    Returns:
        Row numbers of the rest and of the held-out part, each in ascending order.

    Raises:
        ConfigError: if ``held_out`` is not in (0, 1).
        DataError: if nothing would be held out.
    """
    if not 0 < held_out < 1:
        raise ConfigError(f"{argument} must lie in (0, 1), got {held_out!r}.")
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(strata), dtype=torch.bool)
    for stratum in torch.unique(strata):
        rows = (strata == stratum).nonzero().flatten()
        order = torch.randperm(len(rows), generator=generator)
        count = round(held_out * len(rows))
        if both_sides:
            count = min(max(count, 1), len(rows) - 1)
        held[rows[order[:count]]] = True
    if not held.any():
        raise DataError(f"{argument}={held_out!r} of {len(strata)} rows holds out none. Raise it.")
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def grouped_split(
    group: Tensor, names: Sequence[str], held_out: float, seed: int, argument: str
) -> tuple[Tensor, Tensor]:
    """Split the rows 0..n-1 as :func:`stratified_split` does by group, but leave every group a row in both parts.

    Args:
        group: group of every row, shape (n,), int64 in 0..G-1.
        names: names of the G groups, for messages.
        held_out: share of the second part, in (0, 1).
        seed: equal seeds give equal splits.
        argument: which argument ``held_out`` came from, for messages.

    Returns:
        Row numbers of the rest and of the held-out part, each in ascending order.

    Raises:
        ConfigError: if ``held_out`` is not in (0, 1).
        DataError: naming a group that has one row only.
    """
    counts = torch.bincount(group, minlength=len(names))
    if counts.min() < 2:
        smallest = int(counts.argmin())
        raise DataError(
            f"{argument}={held_out!r} must leave a row of every group on both sides, but of the rows to be split "
            f"group {names[smallest]!r} has {int(counts[smallest])}. Raise min_size so that small groups are left out, "
            "merge parts of group_by, or hold out less."
        )
    return stratified_split(group, held_out, seed, argument, both_sides=True)


def require_all_cells(y: Tensor, group: Tensor, classes: Sequence[str], groups: Sequence[str], where: str) -> None:
    """Check that both classes, both groups and all four combinations have rows.

    Args:
        y: labels, shape (n,), in {0, 1}.
        group: groups, shape (n,), in {0, 1}.
        classes: names of the labels 0 and 1.
        groups: names of the groups 0 and 1.
        where: which split it is, for the message.

    Raises:
        DataError: naming what is empty and all counts.
    """
    counts = torch.bincount(2 * group + y, minlength=4).reshape(2, 2)
    table = {f"{groups[a]} x {classes[b]}": int(counts[a, b]) for a in (0, 1) for b in (0, 1)}
    empty = [f"class {classes[b]!r}" for b in (0, 1) if counts[:, b].sum() == 0]
    empty = empty or [f"group {groups[a]!r}" for a in (0, 1) if counts[a].sum() == 0]
    empty = empty or [f"cell {name!r}" for name, count in table.items() if count == 0]
    if empty:
        raise DataError(
            f"The {where} has no rows in {', '.join(empty)}, so ranking within groups is undefined. "
            f"Rows per group x class: {table}. Use more data, or other values of positive, favoured or the fractions."
        )
