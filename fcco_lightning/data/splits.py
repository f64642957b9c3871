"""Division of rows into splits, and the check that a split has all classes and groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, below_one, inside, list_of, one_of
from fcco_lightning.data.columns import ROW, and_more, listed, require_filled, text_of
from fcco_lightning.errors import ConfigError, DataError

PARTS = ("train", "val", "id_val", "id_test", "test")
"""Splits in their order."""

_MOST_NAMED = 12


@dataclass(frozen=True)
class Splits:
    """How the rows of a table are divided into splits.

    Args:
        test_fraction: share of the training table held out for testing, in (0, 1); None if there is a test table.
        val_fraction: share of the remaining rows held out for validation, in [0, 1).
        seed: seed of the splits, a whole number >= 0.
        whole: a further column of a batch (``columns.extra``), such as a query or a patient; rows with the same value
            stay in one split, and the shares are shares of its values.  None divides rows, stratified by class and
            group.
        remove_positives: share of the positives (y = 1) of the training table that is removed at random (by ``seed``)
            before rows are held out, in [0, 1); a separate test table is not changed.

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
        if self.test_fraction is not None:
            inside("splits.test_fraction", self.test_fraction)
        below_one("splits.val_fraction", self.val_fraction)
        if not 0 <= self.remove_positives < 1:
            raise ConfigError(
                f"splits.remove_positives must lie in [0, 1), got {self.remove_positives!r}; 0.995 leaves one of 200."
            )

    @property
    def held_out(self) -> dict[str, tuple[float, str]]:
        """Split -> its share of the rows that earlier splits leave, and the name of the argument; in order."""
        shares = {"test": self.test_fraction, "val": self.val_fraction}
        return {name: (share, f"splits.{name}_fraction") for name, share in shares.items() if share}

    def kept(self, y: Tensor) -> Tensor | None:
        """Return the training rows that ``remove_positives`` leaves, given their labels (n,); None for all.

        Raises:
            DataError: if there are not exactly two classes, or no positive would be left.
        """
        removed = self.remove_positives
        if not removed:
            return None
        if y.is_floating_point() or not _has_two_classes(y):
            raise DataError(
                f"splits.remove_positives={removed!r} needs one label of two classes. Say which values are positive "
                "(columns.positive)."
            )
        count = round((1 - removed) * int(y.sum()))
        if not count:
            raise DataError(f"splits.remove_positives={removed!r} leaves none of {int(y.sum())} positives. Lower it.")
        return keep_positives(y, count, self.seed)


@dataclass(frozen=True)
class ImageSplits:
    """How labelled images or texts are divided into splits.

    Args:
        by: "column" takes the column ``split`` of the layout, which must have "train" and "test" and may have "val",
            "id_val" and "id_test", or the numbers 0, 1 and 2 for "train", "val" and "test"; "fractions" divides at
            random, stratified by class and group.
        fractions: shares of training, validation (may be 0) and test, with sum 1; None for 0.8, 0.1, 0.1.
        seed: seed of the random split, a whole number >= 0.
        limit: largest number of rows of every split (the first ones), for a quick try.
        imbalance: share of positives (y = 1) in the training split, in (0, 1), which is reached by removing positives
            at random (by ``seed``); None removes none.  The other splits are not changed.
        whole: a column of the table, such as a patient with several images; "fractions" keeps rows with the same value
            in one split, and the shares are shares of its values.  None for the column ``comment`` of "civilcomments",
            which has a row for each identity in a comment, and for no column in other layouts.

    Raises:
        ConfigError: if the shares are invalid, or given although ``by`` is "column", or a number is out of range.
    """

    by: Literal["column", "fractions"] = "column"
    fractions: list[float] | None = None
    seed: int = 0
    limit: int | None = None
    imbalance: float | None = None
    whole: str | None = None

    def __post_init__(self) -> None:
        one_of("splits.by", self.by, ("column", "fractions"))
        for name in ("fractions", "whole"):
            if getattr(self, name) is not None and self.by == "column":
                raise ConfigError(
                    f"splits.{name}={getattr(self, name)!r} goes with splits.by='fractions' only. Leave it out, or set "
                    "that."
                )
        shares = self.shares
        possible = len(shares) == 3 and shares[0] > 0 and shares[1] >= 0 and shares[2] > 0
        if not possible or not math.isclose(sum(shares), 1, abs_tol=1e-6):
            raise ConfigError(
                "splits.fractions must be the shares of training (> 0), validation (>= 0) and test (> 0), of sum 1, "
                f"got {list(shares)}."
            )
        if self.imbalance is not None and not 0 < self.imbalance < 1:
            raise ConfigError(
                f"splits.imbalance must be a share of positives in (0, 1), got {self.imbalance!r}; 0.01 leaves one "
                "positive for 99 negatives."
            )
        at_least("splits.seed", self.seed, 0)
        if self.limit is not None:
            at_least("splits.limit", self.limit, 1)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of training, validation and test."""
        return (0.8, 0.1, 0.1) if self.fractions is None else tuple(list_of("splits.fractions", self.fractions))

    @property
    def held_out(self) -> dict[str, tuple[float, str]]:
        """Split -> its share of the rows that earlier splits leave, and the name of the argument; in order."""
        _, val, test = self.shares
        shares = {"test": test, "val": val / (1 - test)} if self.by == "fractions" else {}
        return {name: (share, "splits.fractions") for name, share in shares.items() if share}

    def parts(self, frame: pd.DataFrame, kind: str) -> dict[str, tuple[pd.DataFrame, str]]:
        """Return the rows of every split in the column ``split``, at most ``limit``, and its name in messages.

        With "fractions" all rows are "train".  The numbers 0, 1 and 2 stand for "train", "val" and "test", as in the
        metadata of Waterbirds and of WILDS.

        Args:
            frame: the rows.
            kind: what the samples are, in messages.

        Raises:
            DataError: if there is no such column, if it has other values than :data:`PARTS`, or if "train" or "test" is
                absent.
        """
        limit, where = len(frame) if self.limit is None else self.limit, f"the table of the {kind}"
        if self.by == "fractions":
            return {"train": (frame.head(limit), where)}
        if "split" not in frame:
            raise DataError(
                f"splits.by='column' needs a column 'split', which {where} lacks here (its columns are "
                f"{listed(frame.columns.drop(ROW))}; CelebA has it from list_eval_partition). Add it, or set "
                "splits.by='fractions' (--data.splits.by fractions)."
            )
        require_filled(frame["split"], "split", where)
        split = text_of(frame["split"]).replace("validation", "val")
        if {"0", "2"} <= set(split) <= {"0", "1", "2"}:
            split = split.replace({"0": "train", "1": "val", "2": "test"})
        values = set(split)
        if not {"train", "test"} <= values <= set(PARTS):
            raise DataError(
                f"The column 'split' of {where} must hold 'train' and 'test', and possibly 'val', 'id_val' and "
                f"'id_test', or 0 for training, 1 for validation and 2 for testing; got {listed(values)}. Repair it, "
                "or set splits.by='fractions'."
            )
        rows = {name: frame[split == name].head(limit).reset_index(drop=True) for name in PARTS if name in values}
        return {name: (part, f"the {name} rows") for name, part in rows.items()}

    def kept(self, y: Tensor) -> Tensor | None:
        """Return the training rows that remain when positives are removed until their share is ``imbalance``.

        Raises:
            DataError: if the labels are not 0 and 1, if there are too few positives already, or if none would be left.
        """
        share = self.imbalance
        if share is None:
            return None
        if not _has_two_classes(y):
            raise DataError(
                "splits.imbalance needs two classes, but the labels have more. Say which classes are positive "
                "(columns.positive: [cat, dog])."
            )
        positives = int((y == 1).sum())
        count = round(share / (1 - share) * (len(y) - positives))
        if not 1 <= count <= positives:
            raise DataError(
                f"splits.imbalance={share!r} asks for {count} positives beside {len(y) - positives} negatives; the "
                f"training split has {positives}. Choose a share between those of 1 and {positives} positives."
            )
        return keep_positives(y, count, self.seed)


def _has_two_classes(y: Tensor) -> bool:
    return y.dim() == 1 and bool(((y == 0) | (y == 1)).all())


def keep_positives(y: Tensor, count: int, seed: int) -> Tensor:
    """Return the rows, in order, that remain when positives (y = 1) are removed at random until ``count`` are left."""
    positives = (y == 1).nonzero().flatten()
    order = torch.randperm(len(positives), generator=torch.Generator().manual_seed(seed))
    return torch.cat([(y == 0).nonzero().flatten(), positives[order[:count]]]).sort().values


def stratified_split(
    strata: Tensor, held_out: float, seed: int, argument: str, *, both_sides: bool = False
) -> tuple[Tensor, Tensor]:
    """Split the rows 0..n-1 at random with the same share of every stratum; ``strata`` (n,) are whole numbers.

    With ``both_sides`` every stratum of at least two rows has rows in both parts.

    Returns:
        Row numbers of the rest and of the held-out part, each in ascending order.

    Raises:
        ConfigError: if ``held_out``, which ``argument`` names in messages, is not in (0, 1).
        DataError: if nothing would be held out.
    """
    inside(argument, held_out)
    generator = torch.Generator().manual_seed(seed)
    is_held_out = torch.zeros(len(strata), dtype=torch.bool)
    for stratum in torch.unique(strata):
        rows = (strata == stratum).nonzero().flatten()
        order = torch.randperm(len(rows), generator=generator)
        count = round(held_out * len(rows))
        if both_sides:
            count = min(max(count, 1), len(rows) - 1)
        is_held_out[rows[order[:count]]] = True
    if not is_held_out.any():
        kinds = len(torch.unique(strata))
        raise DataError(
            f"{argument}={held_out!r} of {len(strata)} rows holds out none: it is less than half a row of each of the "
            f"{kinds} classes (and groups). Raise it, or if the label is a number set columns.target='number'."
        )
    return (~is_held_out).nonzero().flatten(), is_held_out.nonzero().flatten()


def whole_split(
    values: Tensor, held_out: float, seed: int, argument: str, strata: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split the rows 0..n-1 at random so that rows of one value stay together; ``held_out`` is a share of the values.

    With ``strata``, whole numbers (n,), values are stratified by the stratum of their first row.

    Raises:
        ConfigError: if ``held_out`` is not in (0, 1).
        DataError: if there is one value only, so that one part would have none.
    """
    names, unit = torch.unique(values, return_inverse=True)
    if len(names) < 2:
        raise DataError(
            f"{argument}={held_out!r} holds out whole values of splits.whole, but there is one value only. Use another "
            "column, or leave splits.whole out."
        )
    first = torch.full((len(names),), len(unit)).scatter_reduce(0, unit, torch.arange(len(unit)), "amin")
    kinds = torch.zeros(len(names), dtype=torch.int64) if strata is None else strata[first]
    _, held_units = stratified_split(kinds, held_out, seed, argument, both_sides=True)
    is_held_out = torch.isin(unit, held_units)
    return (~is_held_out).nonzero().flatten(), is_held_out.nonzero().flatten()


def grouped_split(
    group: Tensor, names: Sequence[str], held_out: float, seed: int, argument: str, kinds: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split the rows 0..n-1 as :func:`stratified_split` does by group, with rows of every group in both parts.

    With ``kinds``, whole numbers >= 0 (n,), such as classes, rows are stratified by group and kind; kinds of a group so
    rare that a part would have none of their rows are united.

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
    _, cell, sizes = torch.unique(number * group + kinds, return_inverse=True, return_counts=True)
    counts = (held_out * sizes.double()).round()
    unsplittable = (counts == 0) | (counts == sizes)
    return (number + 1) * group + torch.where(unsplittable[cell], number, kinds)


def require_all_cells(
    y: Tensor, group: Tensor | None, classes: Sequence[str], groups: Sequence[str], where: str
) -> None:
    """Raise :class:`DataError` naming the empty ones unless all classes, groups and combinations of both have rows.

    ``y`` (n,) are numbers of ``classes``, and ``group`` (n,), or None for no groups, numbers of ``groups``, or -1 for
    rows without one.
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
        raise DataError(
            f"The {where} has no rows in {', '.join(first)}{and_more(empty, _MOST_NAMED)}, so what is measured there "
            f"is undefined. Rows per group x class: {counted}{and_more(rows, _MOST_NAMED)}. Use more data, or other "
            "values of positive, favoured or the fractions. If the label is a number, set columns.target='number'."
        )
