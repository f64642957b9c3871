"""Base class of losses on ranked lists: which items own rows, their weights, and sums over an item's list."""

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives.base import (
    Objective,
    RowDomain,
    binary_scores,
    one_label_each,
    require,
    whole_numbers,
    whole_split,
)
from fcco_lightning.objectives.measurable import Rows, nan_where
from fcco_lightning.objectives.self_weights import Comparisons
from fcco_lightning.outer import Range


class Lists(NamedTuple):
    """The lists of the training split.

    Attributes:
        grade: relevance of every item, shape (n,), float64, >= 0.
        of: list of every item, shape (n,), int64 in 0..number - 1.
        number: number of lists.
    """

    grade: Tensor
    of: Tensor
    number: int

    def total(self, values: Tensor) -> Tensor:
        """Sum over every list of values (n,) of its items, shape (number,)."""
        return values.new_zeros(self.number).index_add_(0, self.of, values)

    def extreme(self, end: Literal["amin", "amax"]) -> Tensor:
        """The smallest or largest grade in every list, shape (number,)."""
        none = self.grade.new_zeros(self.number)
        return none.scatter_reduce_(0, self.of, self.grade, end, include_self=False)

    def softmax(self) -> Tensor:
        """Softmax of the grades within every list, shape (n,)."""
        powers = (self.grade - self.extreme("amax")[self.of]).exp()
        return powers / self.total(powers)[self.of]

    def rank(self) -> Tensor:
        """Rank 1, 2, ... of every item in its list by decreasing grade (ties in the order of the table), shape (n,)."""
        order = (-self.grade).argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = equals_before(self.of[order]) + 1
        return rank


class ListObjective(Objective, ABC):
    r"""An objective that compares every item of a list with all others of its list.

    ``F(w) = (1/Q) sum over Q lists, sum over their items i, of c_i f(g_i(w))`` with
    ``g_i = 1 + sum over j != i in the list of i of l(h_i, h_j)``,
    with a comparison l >= 0 and importances c_i >= 0 that depend on the training split only.  An item with c_i > 0 owns
    a row; Q counts the lists with such an item.  As g_i is a sum and not a mean, it is at least 1 for lists of any
    length.

    The outputs are scores h, shape (n,) or (n, 1).  A batch needs the columns ``query`` (B,) int64, which names an
    item's list, and the grade ``y`` (B,), a number >= 0.  The estimate of g_i is unbiased if batches are uniform,
    balanced with weights, or hold items of a few lists (:class:`QuerySampling`), which is the most efficient.
    """

    weighs_samples = scores_classes = False
    dtype = torch.float64

    _relevance: Known | None = None  # (n_rows / Q) c_i of every sample, (n,)

    @abstractmethod
    def importance(self, lists: Lists) -> Tensor:
        """Return c_i of every item, shape (n,), float64, >= 0."""

    @abstractmethod
    def compared(self, difference: Tensor, grades: Tensor, others: Tensor) -> Tensor:
        """Return l >= 0 for B items i against B items j, shape (B, B).

        l must be finite for all pairs, although pairs from different lists have the weight 0.

        Args:
            difference: h_j - h_i, shape (B, B), float64.
            grades: grades of the items i, shape (B, 1).
            others: grades of the items j, shape (B,).
        """

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every item with an importance above 0.

        Raises:
            ConfigError: if the training split is not known.
            DataError: if it lacks queries or grades, they have invalid values, no item has an importance above 0, or no
                list has different grades.
        """
        name = type(self).__name__
        query, grade = graded(whole_split(columns, self, "queries and grades"), self)
        names, of = torch.unique(query, return_inverse=True)
        lists = Lists(grade.double(), of, len(names))
        importance = self.importance(lists)
        owners = importance > 0
        if not bool(owners.any()) or torch.equal(lists.extreme("amin"), lists.extreme("amax")):
            raise DataError(
                f"{name} finds no item to learn from in {len(names)} lists: no list has items of different grades, or "
                "all grades are 0. Check the columns `query` and `y`."
            )
        self._relevance = Known(importance * int(owners.sum()) / len(torch.unique(of[owners])))
        return RowDomain(0, per_sample=True, owners=owners, range=Range(least=1.0))

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        graded(batch, self)
        self._comparisons(batch).check()

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        """Estimates for all items of a batch, each from the items of its list in the batch."""
        scores, (_, grade) = binary_scores(outputs).double(), graded(batch, self, look=False)
        compared = self.compared(scores - scores.unsqueeze(1), grade.unsqueeze(1), grade)
        values = 1 + torch.linalg.vecdot(self._comparisons(batch).table(), compared)
        return None, Rows(nan_where(grade.isnan().any(), values).unsqueeze(1), self._relevance_of(batch))

    def _comparisons(self, batch: Columns) -> Comparisons:
        """Comparisons of every item with the items of its list."""
        query, owners = graded(batch, self, look=False)[0], self._relevance_of(batch) > 0
        return Comparisons(batch, self.num_samples, owners=owners, within=query.unsqueeze(1) == query)

    def _relevance_of(self, batch: Columns) -> Tensor:
        """Weight of the row of each item of a batch, shape (B,), float64; 0 for an item without a row."""
        if self._relevance is None:
            raise ConfigError(f"{type(self).__name__} does not know the training split yet: pose the problem first.")
        return self._relevance.like(batch["index"])[batch["index"]]


def graded(columns: Columns, needed_by: object, *, look: bool = True) -> tuple[Tensor, Tensor]:
    """Return the queries and the grades, shape (B,) each.

    Raises:
        DataError: if a column is missing, queries are not whole numbers, or, with ``look``, a grade is negative or not
            finite.
    """
    remedy = "Number the lists, for example with pandas.factorize."
    query = whole_numbers(columns, "query", needed_by, remedy, look=look)
    grade = one_label_each(columns, needed_by)
    if look:
        rule = "grades in `y` must be finite and >= 0 (0 is irrelevant)"
        require((grade >= 0) & torch.isfinite(grade), grade, rule, "Shift or recode the column.")
    return query, grade


def equals_before(values: Tensor) -> Tensor:
    """The number of equal values before each entry, shape (n,), int64: 0, 0, 1 and 2 for 7, 3, 7 and 7."""
    ordered, order = values.sort(stable=True)
    before = torch.empty_like(order)
    before[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
    return before
