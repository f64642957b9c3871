"""Cross-entropy over so many classes that a batch scores only some of them."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import Columns
from fcco_lightning.models.outputs import ClassVectors
from fcco_lightning.numerics import bounded_exp
from fcco_lightning.objectives.base import Objective, RowDomain, agreed, one_label_each, require, vectors
from fcco_lightning.objectives.measurable import Rows, nan_where
from fcco_lightning.outer import Log, Range

CLASSES = "classes"
"""The part of a batch that holds the sampled classes."""


class SampledSoftmax(Objective):
    r"""``F(w) = (1/n) sum_i log g_i(w)``, ``g_i = (1/C) sum over classes k of exp(<h_i, v_k> - <h_i, v_{y_i}>)``.

    With the features h_i of sample i and the vector v_k of class k this is the softmax cross-entropy of the logits
    ``<h_i, v_k>``, up to the constant log C.  A batch scores its samples against the classes of its part "classes",
    drawn uniformly.  A sample's own class always has the weight 1/C, and the mean over the other C - 1 classes is
    estimated from the drawn classes (without its own class), which is unbiased with two or more drawn classes; so is
    the gradient given exact rows.  The logarithm of a mean over a batch (BSGD, and the usual sampled softmax) is
    biased.

    Row i remembers u_i, an estimate of g_i, in float64; inner values are clipped to [e^-600, e^600].  Any algorithm for
    non-convex objectives applies; the averages of :class:`~fcco_lightning.SCENT` are made for values of such a range.
    Source: SOX paper, section 1, and ALEXR paper, section 1, for exponentials under a logarithm.

    Batches have the parts "target" (``y`` (B,), ``index`` (B,)) and "classes" (``index`` (M,), numbers of classes), and
    the network returns :class:`~fcco_lightning.models.ClassVectors` for both
    (:class:`~fcco_lightning.models.ClassVectorNetwork` does).

    Args:
        num_classes: C, >= 2; None takes it from the datamodule.

    Raises:
        ConfigError: if C is not known, or the datamodule has another number.
        DataError: if the outputs are something else, and from ``check``, if a label or class is not in 0..C-1.
    """

    weighs_samples = False
    outer = Log(floor=1e-300)
    dtype = torch.float64
    part = ("target", CLASSES)

    def __init__(self, num_classes: int | None = None) -> None:
        super().__init__()
        self.num_classes = None if num_classes is None else at_least("num_classes", num_classes, 2)

    def adapt(self, datamodule: Any) -> None:
        self.num_classes = agreed("num_classes", self.num_classes, datamodule, self)

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every sample, whose values are at least 1/C."""
        return RowDomain(num_samples, per_sample=True, range=Range(least=1 / self._classes()))

    def check(self, outputs: Any, batch: Mapping[str, Columns]) -> None:  # noqa: ARG002
        """Refuse labels and classes that are not in 0..C-1."""
        for numbers, what in zip(self._numbers(batch), ("labels y", "classes"), strict=True):
            rule = f"{what} must lie in 0..{self._classes() - 1}"
            require(~self._outside(numbers), numbers, rule, "Number the classes from 0, and check num_classes.")

    def measure(self, outputs: Any, batch: Mapping[str, Columns]) -> tuple[Tensor | None, Rows | None]:
        """The g_i of every sample, shape (B, 1), with the weight 0 if only its own class was drawn."""
        samples, classes = (vectors(outputs, part, ClassVectors, self, "ClassVectorNetwork") for part in self.part)
        count, (label, classes_drawn) = self._classes(), self._numbers(batch)
        wide = torch.promote_types(samples.vector.dtype, torch.float32)
        features = samples.vector.to(wide)
        logits = features @ classes.vector.to(wide).T - (features * samples.own.to(wide)).sum(1, keepdim=True)
        other = label.unsqueeze(1) != classes_drawn
        number = other.sum(1)
        shift = math.log1p(-1 / count) - number.clamp(min=1).to(wide).log()
        shift = nan_where(self._outside(label) | self._outside(classes_drawn).any(), shift)
        others = logits.masked_fill(~other, -math.inf).logsumexp(1) + shift
        logs = torch.logaddexp(others, others.new_full((), -math.log(count)))
        return None, Rows(bounded_exp(logs.unsqueeze(1)), number > 0)

    def _numbers(self, batch: Mapping[str, Columns]) -> tuple[Tensor, Tensor]:
        """The labels of the samples, shape (B,), and the drawn classes, (M,)."""
        return one_label_each(batch["target"], self), one_label_each(batch[CLASSES], self, "index")

    def _outside(self, number: Tensor) -> Tensor:
        """A mask of the numbers that are not those of a class."""
        return number != number.clamp(0, self._classes() - 1)

    def _classes(self) -> int:
        if self.num_classes is None:
            raise ConfigError("SampledSoftmax needs the number of classes: set num_classes, or use a datamodule.")
        return self.num_classes
