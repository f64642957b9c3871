"""The sides of a constraint: the sets of samples on which it is measured."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor

from fcco_lightning.checks import list_of, one_of
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import require_binary_labels
from fcco_lightning.objectives.base import one_label_each

Against = Literal["pairs", "rest", "whole"]
_NUMBERED = ["0", "1"]  # two groups of which no names are known


class Sides(ABC):
    """Sets of samples, and which of them the rows of a constraint compare.

    Attributes:
        rows: for every row of a class the positions of its sides in :meth:`members`.
        names: names of all rows, class by class.
        classes: the labels whose samples are measured separately; empty for all samples together.
        levels: names of the levels at which every comparison has a row; none for one row.
        everyone: whether there is one side, which holds all samples.
    """

    rows: Sequence[Sequence[int]]
    names: list[str]
    classes: Sequence[int] = ()
    levels: Sequence[str] = ()
    everyone: bool = False

    @abstractmethod
    def adapt(self, datamodule: Any) -> None:
        """Read the meaning of names from the datamodule (or None), see :meth:`Measurable.adapt`."""

    @abstractmethod
    def members(self, batch: Columns, needed_by: object) -> Tensor:
        """Mark the samples of every class and side, shape (number of classes, number of sides, B), bool.

        Args:
            batch: columns.
            needed_by: the constraint, for messages.

        Raises:
            DataError: if the batch lacks a column, or has no single label for a sample.
        """

    @abstractmethod
    def check(self, columns: Columns, needed_by: object, *, split: bool = False) -> None:
        """Refuse columns that would be misread, in a batch or in a whole ``split``, and a split without a subset."""


class SidesOfGroups(Sides):
    """Groups within classes of the label: a row for every kind of rate, comparison of groups, and level.

    A group is compared with the following, for G groups:

    - "pairs": every group with every other one, G (G - 1) / 2 comparisons; the worst of them is the largest difference
      between any two groups;
    - "rest": every group with the samples of all other groups, G comparisons;
    - "whole": every group with the samples of all groups, G comparisons.

    A batch without the group does not measure its row.  Under "whole" the batches that do measure it contain more of
    the group than the data, also in the mean over everyone: with few samples of a group in a batch the estimate is
    biased towards no difference.  The difference between a group of share p and everyone is 1 - p times the difference
    between the group and the rest; so "rest" with ``kappa / (1 - p)`` is the same constraint without that bias, if
    batches are drawn uniformly or hold all groups.

    With two groups, "pairs" and "rest" give a single comparison of group 1 with group 0.

    Args:
        by: the column that numbers or names the groups: "group", or with a datamodule of tables any of its columns.
        against: what a group is compared with: "pairs", "rest" or "whole".
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, and without one there are two.
        kinds: names of the compared rates.
        classes: the labels whose samples are measured separately, in the order of ``kinds``; empty for all samples.
        labelled: whether labels ``y`` of 0 and 1 are needed.
        compared: "pairs" for the comparisons, "both ways" for each in both directions, "each" for every group alone.
        levels: names of the levels of a quantity with several numbers per sample, if each has a row of its own.

    Attributes:
        groups: names of the groups.
        pairs: the two sides of every comparison, as positions in :meth:`members`.

    Raises:
        ConfigError: if ``against`` is not one of the three, or there are fewer than two names, or names are equal.
    """

    def __init__(
        self,
        by: str,
        against: Against,
        groups: Sequence[str] | None,
        kinds: Sequence[str],
        classes: Sequence[int] = (),
        *,
        labelled: bool = True,
        compared: Literal["pairs", "both ways", "each"] = "pairs",
        levels: Sequence[str] = (),
    ) -> None:
        self.by, self.against = by, one_of("against", against, ("pairs", "rest", "whole"))
        self.kinds, self.classes, self._column, self._given = kinds, classes, by, groups is not None
        self._labelled, self._compared, self.levels = labelled, compared, levels
        self._labels = Known(torch.tensor(classes).view(-1, 1, 1))
        self._name(_NUMBERED if groups is None else [str(name) for name in list_of("groups", groups)])

    def adapt(self, datamodule: Any) -> None:
        """Read the names of the groups from the datamodule (or None).

        Raises:
            ConfigError: if it has other groups than those given as ``groups``.
            DataError: if it lacks the column ``by``.
        """
        known = [str(name) for name in getattr(datamodule, "group_names", None) or ()]
        if self.by != "group" and hasattr(datamodule, "add_groups"):
            self._column, known = datamodule.add_groups(self.by)
        if self._given and known and known != self.groups:
            raise ConfigError(f"groups={self.groups}, but the data has the groups {known}. Leave groups out.")
        if known:
            self._name(known)

    def _name(self, groups: list[str]) -> None:
        """Set the rows and their names for groups with these names."""
        size = len(groups)
        if size < 2 or len(set(groups)) < size:
            raise ConfigError(f"groups must be at least two different names, got {groups!r}.")
        if self.against == "whole":
            self.pairs, beyond = [(g, size) for g in range(size)], ["everyone"]
        elif self.against == "pairs" or size == 2:  # later group first: of two, 1 is the favoured one
            self.pairs, beyond = [(b, a) for a, b in combinations(range(size), 2)], []
        else:
            self.pairs, beyond = [(g, size + g) for g in range(size)], size * ["rest"]
        self.groups, called = groups, [*groups, *beyond]
        self.rows: list[Sequence[int]] = list(self.pairs)
        labels = [f": {called[a]} - {called[b]}" for a, b in self.pairs]
        if self._compared == "each":
            self.rows, labels = [[group] for group in range(size)], [f": {name}" for name in groups]
        elif self._compared == "both ways":
            called = [*groups, *(size * ["others"] if self.against == "rest" else beyond)]
            self.rows = [sides for a, b in self.pairs for sides in ((a, b), (b, a))]
            labels = [f": {called[a]} / {called[b]}" for a, b in self.rows]
        elif len(self.pairs) == 1 and (self.levels or groups == _NUMBERED):
            labels = [""]
        levels = [f"@{level}" for level in self.levels] or [""]
        self.names = [f"{kind}{level}{label}" for kind in self.kinds for label in labels for level in levels]
        order, picked = list(range(size)), [side for sides in self.rows for side in sides]
        if sorted(picked) == order:  # every group once: order the sides by row, without an index
            width, order = len(self.rows[0]), picked
            self.rows = [range(i, i + width) for i in range(0, len(picked), width)]
        self._numbers, self._beyond = Known(torch.tensor(order).unsqueeze(1)), bool(beyond)

    def check(self, columns: Columns, needed_by: object, *, split: bool = False) -> None:  # noqa: ARG002
        """Refuse labels other than 0 and 1, and groups that are not numbered from 0; -1 marks samples of no group.

        Raises:
            DataError: naming the value.
        """
        if self._labelled:
            require_binary_labels(columns, needed_by)
        groups = one_label_each(columns, needed_by, self._column)
        signed = groups.long()  # in an unsigned byte -1 would be 255
        wrong = groups[(signed < -1) | (signed >= len(self.groups)) | (signed != groups)]
        if wrong.numel():
            raise DataError(
                f"{type(needed_by).__name__} needs groups numbered 0 to {len(self.groups) - 1} ({self.groups}), got "
                f"{wrong.flatten()[0].item():g} in the column {self._column!r}. Number the groups from 0, and name all "
                "of them in `groups`."
            )

    def members(self, batch: Columns, needed_by: object) -> Tensor:
        """The samples of every group, followed by everyone or by the rest of every group, for each class."""
        groups = one_label_each(batch, needed_by, self._column)
        sides = groups == self._numbers.like(groups)
        if self._beyond:
            everyone = sides.any(0, keepdim=True)
            sides = torch.cat([sides, everyone if self.against == "whole" else everyone & ~sides])
        if not self.classes:
            return sides.unsqueeze(0)
        y = one_label_each(batch, needed_by)
        return (y == self._labels.like(y)) & sides


class StrataOfSides:
    r"""Means over sides from separately drawn strata, with the known shares of the strata (post-stratification).

    The mean of q over side a is ``sum_s (N_as / N_a) (mean of q over the samples of a in stratum s)``, with N_as of the
    N_a training samples of the side in stratum s.  The samples of a stratum are drawn alike, so each of these means is
    unbiased in the batches with a sample of side and stratum, and so is their sum in the batches with samples of the
    side from all of its strata (Cochran, Sampling Techniques, 1977, section 5A.9).

    Args:
        sides: the training samples of each side, masks (..., n), bool.
        strata: stratum of every training sample, shape (n,), int64; -1 for samples that are never drawn.
        some: the sides to measure in this way, shape (number of sides,), bool; None for all.
        counted: for training samples with weights w_i, which represent m_i samples of the population, the w_i and m_i,
            shape (n,) each; None without weights.  The mean of q is then ``sum_s (D_as / M_a) (mean of w q over the
            samples of a in stratum s)``, with M_a the sum of m over the side and D_as that of m/w over its samples in
            stratum s, which is unbiased, too.
    """

    def __init__(
        self,
        sides: Tensor,
        strata: Tensor,
        some: Tensor | None = None,
        counted: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.some = None if some is None else Known(some)
        number, drawn = int(strata.max()) + 1, strata >= 0
        weight, population = counted or 2 * (torch.ones(len(strata), dtype=torch.float64),)
        weighted, population = (torch.where(drawn, of, 0.0) for of in (population / weight, population))
        sizes = torch.stack(
            [torch.bincount(strata.clamp(min=0), side * weighted, minlength=number) for side in sides.flatten(0, -2)]
        )
        totals = (sides * population).sum(-1, keepdim=True)
        self._shares = Known(sizes.view(*sides.shape[:-1], number) / torch.where(totals > 0, totals, 1.0))
        self._numbers = Known(torch.arange(number).unsqueeze(1))

    def shares(
        self, members: Tensor, stratum: Tensor, dtype: torch.dtype, sample_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The weights of a batch's samples in each mean, and the sides with samples from all of their strata.

        Args:
            members: the samples of each side, masks (..., B), bool.
            stratum: stratum of every sample, shape (B,), int64.
            dtype: type of the shares.
            sample_weight: weights of the samples, shape (B,), if they have weights of their own.

        Returns: the shares, shape (..., B), which sum to 1 (in expectation, if samples have weights); and a mask (...).
        """
        counts, strata_shares = members.to(dtype), self._shares.like(members, dtype)
        within = (stratum == self._numbers.like(stratum)).to(dtype)
        held = counts @ within.T
        known = ((held > 0) | (strata_shares == 0)).all(-1) & members.any(-1)
        shares = counts * ((strata_shares / held.clamp(min=1)) @ within)
        return shares if sample_weight is None else shares * sample_weight.to(dtype), known
