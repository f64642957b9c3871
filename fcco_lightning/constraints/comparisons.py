"""Which groups of samples a constraint compares."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import one_of
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives.base import one_label_each

_NUMBERED = ["0", "1"]  # two groups of which no names are known
Against = Literal["pairs", "rest", "whole"]


class Comparison(NamedTuple):
    """Two sides that are compared, as positions in :meth:`GroupComparisons.members`, and what they are called."""

    first: int
    second: int
    name: str


class GroupComparisons:
    """Comparisons between any number of groups.

    - "pairs": every group with every other one, G (G - 1) / 2 comparisons: the worst of them is the largest difference
      of any two groups;
    - "rest": every group with the samples of all other groups, G comparisons;
    - "whole": every group with the samples of all groups, G comparisons.

    Batches without the group do not measure a row, so that under "whole" those that do hold more of the group than all
    samples do, also in the mean over everyone: with few samples of a group in a batch the estimate is biased towards
    no difference.  A mean over everyone differs from that of a group of share p by 1 - p times what the mean over all
    others does; so "rest" with ``kappa / (1 - p)`` asks the same without that bias, where batches are drawn uniformly
    or hold all groups.

    Two groups are one comparison of group 1 with group 0 under "pairs" and "rest".

    Args:
        by: the column that numbers or names the groups: "group", or with a datamodule of tables any of its columns.
        against: with what a group is compared.
        names: of the groups 0, 1, ...; None takes them from the datamodule, and without one there are two groups.

    Attributes:
        pairs: the comparisons.

    Raises:
        ConfigError: if ``against`` is none of the three, or there are fewer than two names or equal ones.
    """

    def __init__(self, by: str = "group", against: Against = "pairs", names: Sequence[str] | None = None) -> None:
        self.by, self.against = by, one_of("against", against, ("pairs", "rest", "whole"))
        self.column, self._given = by, names is not None
        self._name(_NUMBERED if names is None else [str(name) for name in names])

    def adapt(self, datamodule: Any) -> None:
        """Take the groups from the datamodule (or None), by name.

        Raises:
            ConfigError: if it has other groups than those that were named.
            DataError: if it has no such column.
        """
        known = [str(name) for name in getattr(datamodule, "group_names", None) or ()]
        if self.by != "group" and hasattr(datamodule, "add_groups"):
            self.column, known = datamodule.add_groups(self.by)
        if self._given and known and known != self.names:
            raise ConfigError(f"groups={self.names}, but the data has the groups {known}. Leave groups out.")
        if known:
            self._name(known)

    def rows(self, rate: str, *, always: bool = True) -> list[str]:
        """Return a name for every comparison of a rate.

        Args:
            rate: what is compared.
            always: name the groups also where there are two only; if they have names.
        """
        single = len(self.pairs) == 1 and (not always or self.names == _NUMBERED)
        return [rate if single else f"{rate}: {pair.name}" for pair in self.pairs]

    def both_ways(self) -> list[Comparison]:
        """The comparisons in both directions, called "a / b"."""
        called = [*self.names, *["others"] * len(self.names)]
        both = [sides for a, b, _ in self.pairs for sides in ((a, b), (b, a))]
        return [Comparison(a, b, f"{called[a]} / {called[b]}") for a, b in both]

    def _name(self, names: list[str]) -> None:
        size = len(names)
        if size < 2 or len(set(names)) < size:
            raise ConfigError(f"groups must be at least two different names, got {names!r}.")
        self.names, self._numbers = names, Known(torch.arange(size).unsqueeze(1))
        if self.against == "whole":
            self.pairs = [Comparison(g, size, f"{name} - everyone") for g, name in enumerate(names)]
        elif self.against == "pairs" or size == 2:
            # the later group first: group 1 is the favoured one of two
            self.pairs = [Comparison(b, a, f"{names[b]} - {names[a]}") for a, b in combinations(range(size), 2)]
        else:
            self.pairs = [Comparison(g, size + g, f"{name} - rest") for g, name in enumerate(names)]
        self._groups_only = max(pair.second for pair in self.pairs) < size  # groups are compared with groups

    def mark_in_order(self, groups: Sequence[int]) -> None:
        """Let :meth:`members` mark the groups, all of which are compared with groups, in another order."""
        self._numbers = Known(torch.tensor(groups).unsqueeze(1))

    def members(self, batch: Columns, needed_by: object) -> Tensor:
        """Mark the samples of every side, shape (number of sides, B), bool: the groups, then everyone or the rests.

        Raises:
            DataError: if the batch lacks the column.
        """
        groups = one_label_each(batch, needed_by, self.column)
        single = groups == self._numbers.like(groups)
        if self._groups_only:
            return single
        everyone = single.any(0, keepdim=True)
        return torch.cat([single, everyone if self.against == "whole" else everyone & ~single])

    def check(self, batch: Columns, needed_by: object) -> None:
        """Refuse groups without a number from 0 on; samples of no group are marked by -1.

        Raises:
            DataError: naming the value.
        """
        groups = one_label_each(batch, needed_by, self.column)
        wrong = groups[(groups < -1) | (groups >= len(self.names)) | (groups != groups.round())]
        if wrong.numel():
            raise DataError(
                f"{type(needed_by).__name__} knows the groups 0 to {len(self.names) - 1} ({self.names}), got "
                f"{wrong.flatten()[0].item():g} in the column {self.column!r}. Number the groups from 0, and name all "
                "of them with `groups`."
            )
