"""What the losses of ranked lists share: which items own a row, how much each counts, and sums over an item's list."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.estimators import Range
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives.base import Objective, RowDomain, binary_scores, required_column
from fcco_lightning.objectives.self_weights import stands_for
from fcco_lightning.records import Columns, Inner


class Lists(NamedTuple):
    """The lists of the training split.

    Attributes:
        grade: relevance of every item, shape (n,), float64, >= 0.
        of: number of its list, shape (n,), int64 in 0..number - 1.
        number: of lists.
    """

    grade: Tensor
    of: Tensor
    number: int

    def total(self, values: Tensor) -> Tensor:
        """Sum over every list of values (n,) of its items, shape (number,)."""
        return values.new_zeros(self.number).index_add_(0, self.of, values)

    def ordered(self) -> bool:
        """Whether some list has items of different grades."""
        ends = [
            self.grade.new_zeros(self.number).scatter_reduce_(0, self.of, self.grade, end, include_self=False)
            for end in ("amin", "amax")
        ]
        return not torch.equal(*ends)

    def softmax(self) -> Tensor:
        """Softmax of the grades within every list, shape (n,)."""
        highest = self.grade.new_full((self.number,), -torch.inf).scatter_reduce_(0, self.of, self.grade, "amax")
        powers = (self.grade - highest[self.of]).exp()
        return powers / self.total(powers)[self.of]

    def rank(self) -> Tensor:
        """Place 1, 2, ... of every item in its list by falling grade (ties in the order of the table), shape (n,)."""
        order = (-self.grade).argsort(stable=True)
        order = order[self.of[order].argsort(stable=True)]
        sizes = torch.bincount(self.of, minlength=self.number)
        firsts = sizes.cumsum(0) - sizes
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - firsts[self.of[order]] + 1
        return rank


class ListObjective(Objective, ABC):
    r"""Every item of a list against all others of its list.

    ``F(w) = (1/Q) sum over Q lists, sum over their items i, of c_i f(g_i(w))`` with
    ``g_i = 1 + sum over j != i in the list of i of l(h_i, h_j)``,
    for a comparison l >= 0 and importances c_i >= 0 that the training split determines.  An item with c_i > 0 owns a
    row; Q counts the lists with such an item.  As g_i is a sum and not a mean, it is at least 1 for any length.

    The outputs are scores h, shape (n,) or (n, 1).  A batch needs the columns ``query`` (B,) int64, which names an
    item's list, and the grade ``y`` (B,), a number >= 0.  The estimate of g_i is unbiased where batches are uniform,
    balanced with weights, or hold a few lists each (:class:`QueryBatches`), which uses the items of a batch best.
    """

    dtype = torch.float64

    def __init__(self) -> None:
        super().__init__()
        self._num_samples: int | None = None
        self._relevance: Tensor | None = None  # (n_rows / Q) c_i of every sample, (n,), on the host

    @abstractmethod
    def importance(self, lists: Lists) -> Tensor:
        """Return c_i of every item, shape (n,), float64, >= 0."""

    @abstractmethod
    def compared(self, difference: Tensor, own: Tensor, others: Tensor) -> Tensor:
        """Return l >= 0 for m items against B others, shape (m, B).

        Args:
            difference: h_j - h_i, shape (m, B).
            own: grades of the items i, shape (m, 1).
            others: grades of the items j, shape (B,).
        """

    def prepare(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every item that counts.

        Raises:
            ConfigError: if the training split is not known.
            DataError: if it lacks queries or grades, they have other values, no item counts, or no list has an order.
        """
        name = type(self).__name__
        if columns is None:
            raise ConfigError(
                f"{name} must know the queries and grades of the whole training split. Use a datamodule with "
                "`sampling()`, such as TabularDataModule, or pass sampling= to pose()."
            )
        query, grade = graded(columns, self)
        names, of = torch.unique(query, return_inverse=True)
        lists = Lists(grade.double(), of, len(names))
        importance = self.importance(lists)
        owners = importance > 0
        if not (bool(owners.any()) and lists.ordered()):
            raise DataError(
                f"{name} finds no item to learn from in {len(names)} lists: no list has items of different grades, or "
                "all grades are 0. Check the columns `query` and `y`."
            )
        number = len(torch.unique(of[owners]))
        self._relevance = (importance * int(owners.sum()) / number).cpu()
        return RowDomain(0, per_sample=True, owners=owners, range=Range(least=1.0))

    def inner(self, outputs: Tensor, batch: Columns) -> Inner:
        """Estimates for the items of a batch that own a row, each from all items of its list that the batch holds.

        Raises:
            ConfigError: before the training split is known.
            DataError: if the outputs are not one score per item, or queries or grades are missing or wrong.
        """
        batch, scores = on_host(batch), binary_scores(outputs).double()
        query, grade = graded(batch, self)
        if self._relevance is None:
            raise ConfigError(f"{type(self).__name__} does not know the training split yet: pose the problem first.")
        relevance = self._relevance[batch["index"]]
        anchors = (relevance > 0).nonzero().squeeze(1)
        same_list = query[anchors].unsqueeze(1) == query
        weights = stands_for(batch, anchors, self._num_samples, within=same_list)
        mine, grades = scores.index_select(0, send(anchors, scores)), send(grade, scores)
        own = send(grade[anchors], scores).unsqueeze(1)
        compared = self.compared(scores - mine.unsqueeze(1), own, grades)
        values = 1 + (send(weights, scores) * compared).sum(1)
        return Inner(batch["index"][anchors], values.unsqueeze(1), relevance=relevance[anchors], owners=anchors)


def graded(columns: Columns, needed_by: object) -> tuple[Tensor, Tensor]:
    """Return the queries and the grades, shape (B,) each.

    Raises:
        DataError: if a column is missing, queries are not whole numbers, or a grade is negative or not finite.
    """
    query, grade = required_column(columns, "query", needed_by), required_column(columns, "y", needed_by)
    if query.is_floating_point() or query.dim() != 1 or grade.shape != query.shape:
        raise DataError(
            f"`query` must hold one whole number per item and `y` one grade, got {query.dtype} of shape "
            f"{tuple(query.shape)} and grades of shape {tuple(grade.shape)}."
        )
    wrong = ~((grade >= 0) & torch.isfinite(grade))
    if bool(wrong.any()):
        raise DataError(
            f"grades in `y` must be finite and >= 0 (0 is irrelevant), got {grade[wrong][0].item()!r} at position "
            f"{int(wrong.nonzero()[0])}. Shift or recode the column."
        )
    return query, grade
