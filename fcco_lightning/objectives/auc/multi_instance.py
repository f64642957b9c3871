"""Area under the ROC curve of bags of instances; a batch holds some bags and some instances of each."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives.auc.pairwise import PairLoss, SigmoidPair
from fcco_lightning.objectives.auc.pooled_pairs import PooledPairs
from fcco_lightning.objectives.auc.pooling import Bags, Pooling, SmoothMaxPooling, bag_column, bags_of
from fcco_lightning.objectives.base import Objective, Partition, RowDomain, whole_split
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.quantities import means_by_part, parts_of
from fcco_lightning.objectives.ranking.ranking import both_classes
from fcco_lightning.outer import OuterFunction


class MultiInstanceAUC(Objective):
    r"""``F(w) = mean over positive bags i and negative bags j of l(h_i - h_j)``, h a pooled score of a bag's instances.

    Source: Zhu et al., 2023 (MIDAM), with the mean over pairs in place of its min-max form.

    Each sample is an instance.  The column ``bag`` (B,) int64 names its bag, and ``y`` (B,) is the label of that bag, 0
    or 1, the same for all of its instances.  The score ``h_i = h(u_i)`` of a bag (:class:`Pooling`) is a function of
    means over all of its instances; a batch holds some of the instances, and row i is a running average u_i of these
    means.

    A batch measures a bag if it holds an instance of it and an instance of a bag of the other class, with whose
    remembered means it is compared.  Given exact rows, the gradient is unbiased if the bags of a class are drawn with
    equal probabilities: batches of :class:`BagSampling`, of :class:`GroupSampling` with ``column: bag``, and batches
    drawn without regard to bags if all bags of a class have the same size.  Otherwise it is biased, and there is a
    warning.  Means over a bag are weighted by the column ``weight``, if there is one.

    As in MIDAM, take the gradient at the new u_i (:class:`SOAP`).  It contains the ratio of the batch's mean of exp(s /
    tau) to u_i, which is at most 1 / gamma for the new u_i and unbounded for the u_i before the step.  A loss with a
    bounded slope (sigmoid, logistic) is most robust to outdated rows.

    Args:
        pooling: h; :class:`SmoothMaxPooling` by default.
        loss: l; :class:`SigmoidPair` by default.
    """

    weighs_samples = False
    dtype = torch.float64

    def __init__(self, pooling: Pooling | None = None, loss: PairLoss | None = None) -> None:
        super().__init__()
        self.pooling = pooling or SmoothMaxPooling()
        self.loss = loss or SigmoidPair()
        self.width = self.pooling.width
        # of the bags, sorted by name: names, positive or not, and n / n_i with n_i bags of the same class
        self._names = self._positive = self._share = Known(torch.empty(0))

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """The losses of the pairs of all bags, which are known after :meth:`row_domain`."""
        return PooledPairs(self.pooling, self.loss, self._positive.values, self._share.values)

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every bag, in increasing order of names.

        Raises:
            ConfigError: if the training split is not known.
            DataError: if it lacks bags or labels, a label is neither 0 nor 1, a bag has both labels, or all bags have
                the same label.
        """
        both_classes(columns, self)
        bags, positive = self._bags(whole_split(columns, self, "bags"))
        sizes = torch.bincount(positive.long(), minlength=2).double()
        self._names, self._positive = Known(bags.names), Known(positive)
        self._share = Known((len(positive) / sizes)[positive.long()])
        return RowDomain(len(bags.names), range=self.pooling.range)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch measures a bag if it holds an instance of it, and an instance of a bag of the other class."""
        bags, positive = self._bags(columns)
        in_positive_bag = positive[bags.of]
        return Partition(bags.of, len(positive), [~in_positive_bag, in_positive_bag], (~positive).long())

    def _bags(self, columns: Columns) -> tuple[Bags, Tensor]:
        """The bags of the training split, and a mask of the positive ones, shape (m,)."""
        bags = bags_of(columns, self)
        return bags, bags.labels(columns, self) == 1

    def know_presence(self, probability: Tensor) -> None:
        """Warn if bags of a class are drawn with unequal probabilities, and thus compared unequally often.

        Raises:
            DataError: if no batch can measure a bag.
        """
        positive = self._positive.values
        for label, bags in ((1, positive), (0, ~positive)):
            least, most = (float(end) for end in probability[bags].aminmax())
            if least < 1e-6:  # 0 up to rounding
                raise DataError(
                    f"MultiInstanceAUC compares bags with one another, but no batch holds a bag of y = {label} beside "
                    "one of the other class. Draw larger batches, or bags of both classes: `batches: BagSampling`."
                )
            if most > (1 + 1e-6) * least:
                warnings.warn(
                    f"MultiInstanceAUC compares every bag with the bags of the other class in its batch, and bags with "
                    f"y = {label} are there with probabilities from {least:.2g} to {most:.2g}: those seen more often "
                    "are compared with more often, so that the gradient is biased towards them. Draw bags with equal "
                    "chances: `batches: BagSampling`.",
                    stacklevel=2,
                )

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        """Refuse bags that are not in the training split."""
        strange = bag_column(batch, self)[self._rows(batch)[1]]
        if strange.numel():
            raise DataError(
                f"bag {int(strange.min())} of a batch is not among the {len(self._names.values)} bags of the training "
                "split. Name the bags of both in the same way."
            )

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor | None, Rows | None]:
        """The means over the bag of every instance, shape (B, k), with the weight 0 if the batch lacks a class."""
        terms, (row, strange) = self.pooling.terms(outputs), self._rows(batch)
        weight = torch.where(strange, torch.nan, batch.get("weight", 1.0)).to(terms.dtype)
        part, num_parts = parts_of(row, len(self._names.values))
        means, _ = means_by_part(part, num_parts, weight.unsqueeze(1) * terms, weight)
        positive = self._positive.like(row).index_select(0, row)
        compared = (positive != positive[:1]).any() | strange  # the NaN of an unknown bag must not be left out
        ones = torch.ones_like(weight)
        copies = ones.new_zeros(num_parts).index_add(0, part, ones).index_select(0, part)
        outer = PooledPairs(self.pooling, self.loss, positive, self._share.like(row).index_select(0, row), copies)
        return None, Rows(means.index_select(0, part), compared.to(terms.dtype), outer, row)

    def _rows(self, batch: Columns) -> tuple[Tensor, Tensor]:
        """The row of every instance's bag, and a mask of instances whose bag is unknown, shape (B,) each."""
        bag = bag_column(batch, self)
        names = self._names.like(bag)
        if not len(names):
            raise ConfigError(f"{type(self).__name__} does not know the training split yet: pose the problem first.")
        row = torch.searchsorted(names, bag).clamp(max=len(names) - 1)
        return row, names.index_select(0, row) != bag
