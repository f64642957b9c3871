"""Quantities of single samples; objectives, group risks and constraints are means of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fcco_lightning.checks import finite, fraction, non_negative, positive
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known, first_of_equals
from fcco_lightning.objectives.base import (
    binary_scores,
    one_label_each,
    one_tensor,
    require,
    require_binary_labels,
    required_column,
)
from fcco_lightning.objectives.ratios import only_of
from fcco_lightning.objectives.vacuity import Enough, constant_decision
from fcco_lightning.outer import Range

_ROUNDED = 0.01  # tolerance for the sum of class probabilities

MOST_ROWS = 4
"""Number of rows per sample of a batch up to which every step processes all rows."""


class Quantity(ABC):
    """A per-sample quantity q(outputs, batch) of shape (B,), with graph.

    Attributes:
        range: an interval that contains its values, and thus their means, for all outputs.
        smooths: whether it smooths a decision of 0 or 1, which :meth:`decided` returns.
        all_tasks: whether it has a value for each of n tasks, (B, n); a column ``task`` is then ignored.
        classifies: whether it is a loss that favours a score above 0, or the largest of several scores, for the class.
        numbers: t, if it has t numbers per sample, (B, t), which a constraint compares; 1 for shape (B,).
        of_both_classes: whether :meth:`over` uses the samples of both classes of a side together.
    """

    range: Range = Range()
    smooths: bool = False
    all_tasks: ClassVar[bool] = False
    classifies: ClassVar[bool] = False
    numbers: int = 1
    of_both_classes: ClassVar[bool] = False

    @property
    def proper(self) -> bool:
        """Whether it is a loss whose mean is minimal if the score of a sample is the log-odds of a positive."""
        return False

    @abstractmethod
    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        """One value per sample."""

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:
        """The decision, 0 or 1 for every sample, shape (B,), that a quantity with :attr:`smooths` smooths.

        By default it is 1 where the quantity exceeds 1/2.
        """
        values = self(outputs, batch)
        return (values > 0.5).to(values.dtype)

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: B027 - most quantities need not look
        """Refuse a batch with labels that the quantity would misread; see :meth:`Measurable.check`."""

    def over(self, shares: Tensor, values: Tensor) -> Tensor:
        """The quantity of sets of samples, in a constraint that compares them: by default its mean.

        Args:
            shares: weights of the samples in the mean over each class and side, shape (c, s, B).
            values: the values of the samples, (B,) or (B, t).

        Returns: shape (c, s) or (c, s, t).
        """
        return shares @ only_of(shares, values)

    def positive_share(self, batch: Columns) -> tuple[float, float]:  # noqa: ARG002
        """Bounds that the quantity sets for the fraction of positive decisions in a split, whatever the scores."""
        return 0.0, 1.0

    def vacuous(self, outputs: Tensor, batch: Columns, enough: Enough, decisions: bool) -> str | None:
        """A sentence on why means of sets of samples are alike for any order of the scores, or None.

        By default a quantity in [0, 1] counts as a rate of decisions, whose means are vacuous if nearly all decisions
        are equal, or smoothed decisions are too soft.

        Args:
            outputs: the network's outputs for a split.
            batch: its columns.
            enough: the required numbers of decisions of either kind.
            decisions: whether rates of decisions are enforced themselves, not the smoothed ones.
        """
        if self.range != (0.0, 1.0):
            return None  # a loss has no decisions
        rate = self.decided(outputs, batch) if decisions else self(outputs, batch)
        return constant_decision(rate, enough, batch.get("weight"))


@dataclass(frozen=True)
class SoftRate(Quantity):
    r"""``sigmoid((s - threshold) / temperature)``: its mean is a smoothed rate of predicted positives.

    Over the positives it is the true positive rate, over the negatives the false positive rate.

    Args:
        threshold: decision threshold on the score; None for 0, or for the threshold of the module's decisions, if these
            follow a budget or a least rate (:class:`~fcco_lightning.Decisions`).
        temperature: width of the sigmoid, > 0, in units of the score; the smaller, the closer to the hard rate.  At 1
            the smooth rate of a logistic model can be a fifth although no decision is positive; the default is
            therefore .4 (``examples/benchmarks/results/decisions.md``).
    """

    threshold: float | None = None
    temperature: float = 0.4
    range = Range(0.0, 1.0)
    smooths = True

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)
        if self.threshold is not None:
            finite("threshold", self.threshold)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:  # noqa: ARG002
        scores = binary_scores(outputs)
        return torch.sigmoid((scores - self.threshold if self.threshold else scores) / self.temperature)


@dataclass(frozen=True)
class LogisticLoss(Quantity):
    """Logistic loss of the score (nats); labels are 0, 1 or a probability."""

    range = Range(least=0.0)
    classifies = True
    proper = True

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        _check_logistic(batch, self)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        scores = binary_scores(outputs)
        y = one_label_each(batch, self).to(scores.dtype)
        return binary_cross_entropy_with_logits(scores, y, reduction="none")


def _check_logistic(batch: Columns, needed_by: object) -> None:
    y = one_label_each(batch, needed_by)
    remedy = (
        "The loss of others is unbounded below. Recode them, (y + 1) // 2 for -1 and 1, or give the network one output "
        "per class."
    )
    require((y >= 0) & (y <= 1), y, f"{type(needed_by).__name__} needs labels y in [0, 1]", remedy)


@dataclass(frozen=True)
class HingeLoss(Quantity):
    """``max(margin - b s, 0)`` with s the score and b = 1 or -1 for the labels 1 and 0 (PG-SMD paper, eq. (16)).

    Args:
        margin: score beyond which a correctly classified sample has no loss, > 0.
    """

    margin: float = 1.0
    range = Range(least=0.0)
    classifies = True

    def __post_init__(self) -> None:
        positive("margin", self.margin)

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        require_binary_labels(batch, self)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        scores = binary_scores(outputs)
        signs = 2 * one_label_each(batch, self).to(scores.dtype) - 1
        return (self.margin - signs * scores).clamp(min=0)


@dataclass(frozen=True)
class CrossEntropyLoss(Quantity):
    """Logistic loss for one score per sample, (B,) or (B, 1), softmax cross-entropy for (B, C) (nats).

    Args:
        label_smoothing: fraction of the target that is spread uniformly over the classes, in [0, 1); for (B, C) only.
    """

    label_smoothing: float = 0.0
    range = Range(least=0.0)
    classifies = True
    proper = True

    def __post_init__(self) -> None:
        non_negative("label_smoothing", self.label_smoothing)
        fraction("1 - label_smoothing", 1 - self.label_smoothing)

    def check(self, outputs: Tensor, batch: Columns) -> None:
        if not _of_classes(outputs):
            _check_logistic(batch, self)
            return
        y, classes = required_column(batch, "y", self), outputs.shape[1]
        if y.shape == outputs.shape:
            sums = y.sum(1)
            rule = f"{type(self).__name__} needs y of {tuple(y.shape)} to be probabilities of classes >= 0, of sum 1"
            remedy = "Give every sample one class; where several labels may hold at once use MeanAveragePrecision."
            require((y >= 0).all(1) & ((sums - 1).abs() <= _ROUNDED), sums, rule, remedy)
            return
        y = one_label_each(batch, self)
        rule = f"{type(self).__name__} needs classes y of 0..{classes - 1} for outputs of {tuple(outputs.shape)}"
        remedy = "Number the classes from 0, or give the network one output per class."
        require((y >= 0) & (y < classes) & (y == y.long()), y, rule, remedy)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        if _of_classes(outputs):
            y = required_column(batch, "y", self)
            target = y.to(outputs.dtype) if y.shape == outputs.shape else one_label_each(batch, self).long()
            return cross_entropy(outputs, target, reduction="none", label_smoothing=self.label_smoothing)
        return LogisticLoss()(outputs, batch)


class CostedLoss(Quantity):
    """``c_y l``: a loss in which mistakes on some classes cost more than on others.

    Args:
        loss: l, with labels ``y`` of 0..C-1; for two classes also probabilities of class 1.
        costs: c, the cost of each class, shape (C,), > 0.
    """

    range = Range(least=0.0)
    classifies = True

    def __init__(self, loss: Quantity, costs: Tensor) -> None:
        self.loss, self._costs = loss, Known(costs)

    @property
    def proper(self) -> bool:
        """As for the loss without costs, which are known and can be divided out."""
        return self.loss.proper

    def check(self, outputs: Tensor, batch: Columns) -> None:
        self.loss.check(outputs, batch)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        losses, y = self.loss(outputs, batch), one_label_each(batch, self.loss)
        costs = self._costs.like(losses, losses.dtype)
        if y.is_floating_point() and len(costs) == 2:
            return losses * torch.lerp(costs[0], costs[1], y.to(losses.dtype))
        return losses * costs.index_select(0, y.long())


@dataclass(frozen=True)
class ErrorProbability(Quantity):
    r"""``1 - p_y``, the probability that the model gives to wrong classes: a smoothed error rate.

    p is ``softmax(outputs / temperature)`` for outputs (B, C) and classes y of 0..C-1, and ``sigmoid(s / temperature)``
    for one score per sample, (B,) or (B, 1), with labels of 0, 1 or a probability in between.  Unlike the cross-entropy
    ``-log p_y`` it is bounded: a badly misclassified sample counts as one error, and a correctly classified one has
    almost no gradient.

    Args:
        temperature: divisor of the outputs, > 0; the smaller, the closer to the error rate of the largest output.
    """

    temperature: float = 1.0
    range = Range(0.0, 1.0)
    smooths = True

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)

    def check(self, outputs: Tensor, batch: Columns) -> None:
        CrossEntropyLoss().check(outputs, batch)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        y = one_label_each(batch, self)
        if _of_classes(outputs):
            correct = torch.softmax(outputs / self.temperature, dim=1).gather(1, y.long().unsqueeze(1))
            return 1 - correct.squeeze(1)
        scores = binary_scores(outputs) / self.temperature
        y = y.to(scores.dtype)
        return y * torch.sigmoid(-scores) + (1 - y) * torch.sigmoid(scores)

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:
        """1 where the decision (the largest output, or the sign of a single one) is wrong, else 0; shape (B,)."""
        y = one_label_each(batch, self)
        wrong = outputs.argmax(1) != y if _of_classes(outputs) else (binary_scores(outputs) > 0) != (y > 0.5)
        return wrong.to(outputs.dtype)

    def vacuous(self, outputs: Tensor, batch: Columns, enough: Enough, decisions: bool) -> str | None:  # noqa: ARG002
        """None, as errors may be rare."""
        return None


@dataclass(frozen=True)
class SquaredLoss(Quantity):
    """``(output - y)^2``, summed over the outputs of a sample."""

    range = Range(least=0.0)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        values = one_tensor(outputs).reshape(len(outputs), -1)
        y = required_column(batch, "y", self).to(values.dtype)
        if y.numel() != values.numel() or len(y) != len(values):
            raise DataError(
                f"SquaredLoss needs a number `y` for every output, got outputs of shape {tuple(outputs.shape)} and y "
                f"of shape {tuple(y.shape)}. Give the network as many outputs as there are numbers in y."
            )
        return (values - y.reshape(values.shape)).square().sum(1)


@dataclass(frozen=True)
class MultiLabelLoss(Quantity):
    """Logistic losses of T tasks, (B, T): outputs (B, T) against 0/1 labels ``batch[column]`` of that shape.

    Args:
        column: name of the column of labels.
    """

    column: str = "y"
    range = Range(least=0.0)
    all_tasks = True

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        y = required_column(batch, self.column, self)
        rule = f"{type(self).__name__} needs labels `{self.column}` in [0, 1]"
        require((y >= 0) & (y <= 1), y, rule, "The loss of others is unbounded below. Recode them.")

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        labels, outputs = required_column(batch, self.column, self), one_tensor(outputs)
        if labels.shape != outputs.shape:
            raise DataError(
                f"outputs have shape {tuple(outputs.shape)}, the labels `{self.column}` {tuple(labels.shape)}: both "
                "must be (B, T). Give the network one output per task."
            )
        return binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype), reduction="none")


def one_number_each(quantity: Quantity, outputs: Any, batch: Columns, needed_by: object, remedy: str) -> Tensor:
    """The values of a quantity, shape (B,), with graph.

    Raises:
        DataError: if it has several values per sample, naming the class of ``needed_by``.
    """
    values = quantity(outputs, batch)
    if values.dim() != 1:
        raise DataError(
            f"{type(needed_by).__name__} needs one number per sample, {type(quantity).__name__} gave "
            f"{tuple(values.shape)}. {remedy}"
        )
    return values


def _of_classes(outputs: Any) -> bool:
    """Whether the outputs are scores of several classes, (B, C), and not one score per sample."""
    scores = one_tensor(outputs)
    return scores.dim() == 2 and scores.shape[1] > 1


def means_by_part(part: Tensor, num_parts: int, weighted: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted means of a quantity over the parts of a batch.

    Args:
        part: part of every sample, in 0..num_parts - 1, shape (b,), int64.
        num_parts: m.
        weighted: weight times value of every sample, shape (b,) or (b, k), with graph.
        weight: weight of every sample, >= 0, shape (b,), without graph; NaN makes the mean of its part NaN.

    Returns: the means, shape (m,) or (m, k), 0 for a part without samples, and the sum of weights of every part, (m,).
    """
    total = weight.new_zeros(num_parts).index_add_(0, part, weight)
    sums = weighted.new_zeros(num_parts, *weighted.shape[1:]).index_add_(0, part, weighted)
    by = total.clamp(min=torch.finfo(total.dtype).tiny)
    return sums / (by if sums.dim() == 1 else by.unsqueeze(1)), total


def parts_of(row: Tensor, num_rows: int) -> tuple[Tensor, int]:
    """A numbering of the groups of samples with the same row: by row, or by first sample if there are far more rows.

    Args:
        row: row of every sample, in 0..num_rows - 1, shape (b,), int64.
        num_rows: n.

    Returns: the part of every sample, shape (b,), int64; and the number of parts.
    """
    return (row, num_rows) if num_rows <= MOST_ROWS * len(row) else (first_of_equals(row), len(row))
