"""Seeded, stratified splits, and the check that a split can carry the metrics asked of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, below_one
from fcco_lightning.errors import ConfigError, DataError

_MOST_NAMED = 12


@dataclass(frozen=True)
class Splits:
    """How the rows of a table are divided.

    Args:
        test_fraction: share of the training table held out for testing, in (0, 1); None with a test table of its own.
        val_fraction: share of what remains held out for validation, in [0, 1).
        seed: seed of the splits, a whole number >= 0.
        whole: a further column of a batch (``columns.extra``), of which no value is divided among splits, such as a
            query or a patient; the shares are then those of its values.  None divides rows by class and group.
        remove_positives: share of the positives (y = 1) of the training table that is taken out at random (by ``seed``)
            before anything is split off, in [0, 1); a test table of its own stays as it is.

    Raises:
        ConfigError: if a share or the seed is out of range.
    """

    test_fraction: float | None = None
    val_fraction: float = 0.0
    seed: int = 0
    whole: str | None = None
    remove_positives: float = 0.0

    def __post_init__(self) -> None:
        at_least("splits.seed", self.seed, 0)
        if self.test_fraction is not None and not 0 < self.test_fraction < 1:
            raise ConfigError(f"splits.test_fraction must lie in (0, 1), got {self.test_fraction!r}.")
        below_one("splits.val_fraction", self.val_fraction)
        if not 0 <= self.remove_positives < 1:
            raise ConfigError(
                f"splits.remove_positives must lie in [0, 1), got {self.remove_positives!r}; 0.995 leaves one of 200."
            )


def keep_positives(y: Tensor, kept: int, seed: int) -> Tensor:
    """Return the rows, in order, that are left when positives (y = 1) are taken out at random until ``kept`` stay."""
    positives = (y == 1).nonzero().flatten()
    order = torch.randperm(len(positives), generator=torch.Generator().manual_seed(seed))
    return torch.cat([(y == 0).nonzero().flatten(), positives[order[:kept]]]).sort().values


def stratified_split(
    strata: Tensor, held_out: float, seed: int, argument: str, *, both_sides: bool = False
) -> tuple[Tensor, Tensor]:
    """Split the rows 0..n-1 at random so that every stratum gives the same share; ``strata`` (n,) are whole numbers.

    With ``both_sides`` rounding takes no stratum of two rows or more away from either part.

    Returns:
        Row numbers of the rest and of the held-out part, each in ascending order.

    Raises:
        ConfigError: if ``held_out``, which ``argument`` names in messages, is not in (0, 1).
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
        kinds = len(torch.unique(strata))
        raise DataError(
            f"{argument}={held_out!r} of {len(strata)} rows holds out none: it is less than half a row of each of the "
            f"{kinds} classes (and groups). Raise it, or if the label is a number set columns.target='number'."
        )
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def whole_split(
    values: Tensor, held_out: float, seed: int, argument: str, strata: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split the rows 0..n-1 at random so that rows of one value stay together; ``held_out`` is a share of the values.

    With ``strata``, whole numbers (n,), it is that of the values whose first row lies in each of them.

    Raises:
        ConfigError: if ``held_out`` is not in (0, 1).
        DataError: if there is one value only, so that one part would have none.
    """
    names, of = torch.unique(values, return_inverse=True)
    if len(names) < 2:
        raise DataError(
            f"{argument}={held_out!r} holds out whole values of splits.whole, but there is one value only. Use another "
            "column, or leave splits.whole out."
        )
    first = torch.full((len(names),), len(of)).scatter_reduce(0, of, torch.arange(len(of)), "amin")
    kinds = torch.zeros(len(names), dtype=torch.int64) if strata is None else strata[first]
    _, held = stratified_split(kinds, held_out, seed, argument, both_sides=True)
    chosen = torch.isin(of, held)
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def grouped_split(
    group: Tensor, names: Sequence[str], held_out: float, seed: int, argument: str, kinds: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split the rows 0..n-1 as :func:`stratified_split` does by group, but leave every group a row in both parts.

    With ``kinds``, whole numbers >= 0 (n,), such as classes, rows are split by group and kind; those kinds of a group
    of which the share is no row, or all rows, are split together.

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
            "merge parts of groups.by, or hold out less."
        )
    strata = group if kinds is None else _strata(group, kinds, held_out)
    return stratified_split(strata, held_out, seed, argument, both_sides=True)


def _strata(group: Tensor, kinds: Tensor, held_out: float) -> Tensor:
    number = int(kinds.max()) + 1
    _, of, sizes = torch.unique(number * group + kinds, return_inverse=True, return_counts=True)
    counts = (held_out * sizes.double()).round()
    few = (counts == 0) | (counts == sizes)
    return (number + 1) * group + torch.where(few[of], number, kinds)


def require_all_cells(
    y: Tensor, group: Tensor | None, classes: Sequence[str], groups: Sequence[str], where: str
) -> None:
    """Raise :class:`DataError` naming what is empty unless all classes, groups and combinations of both have rows.

    The labels ``y`` (n,) number the ``classes``, and ``group`` (n,), or None for no groups, the ``groups``; rows of
    group -1 are of none.
    """
    if group is not None:
        y, group = y[group >= 0], group[group >= 0]
    groups = ["all"] if group is None else groups
    cells = y if group is None else len(classes) * group + y
    counts = torch.bincount(cells, minlength=len(groups) * len(classes)).reshape(len(groups), len(classes))
    names = [f"{group_name} x {class_name}" for group_name in groups for class_name in classes]
    rows = dict(zip(names, counts.flatten().tolist(), strict=True))
    empty = [f"class {name!r}" for name, n in zip(classes, counts.sum(0), strict=True) if n == 0]
    empty = empty or [f"group {name!r}" for name, n in zip(groups, counts.sum(1), strict=True) if n == 0]
    empty = empty or [f"cell {name!r}" for name, n in rows.items() if n == 0]
    if empty:
        first, counted = empty[:_MOST_NAMED], dict(list(rows.items())[:_MOST_NAMED])
        more = [
            f" and {len(every) - len(some)} more" * (len(every) > len(some))
            for every, some in ((empty, first), (rows, counted))
        ]
        raise DataError(
            f"The {where} has no rows in {', '.join(first)}{more[0]}, so what is measured there is undefined. Rows per "
            f"group x class: {counted}{more[1]}. Use more data, or other values of positive, favoured or the fractions."
            " If the label is a number, set columns.target='number'."
        )
