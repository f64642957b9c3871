"""Area under the ROC curve of bags of instances, of which a batch holds some bags and some instances of each."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives.base import Objective, Partition, RowDomain
from fcco_lightning.objectives.pairwise import PairLoss, SigmoidPair
from fcco_lightning.objectives.pooling import Bags, Pooling, SmoothMaxPooling, bags_of
from fcco_lightning.objectives.ranking import both_classes
from fcco_lightning.outer import OuterFunction, PooledPairs
from fcco_lightning.records import Columns, Inner


class MultiInstanceAUC(Objective):
    r"""``F(w) = mean over positive bags i and negative bags j of l(h_i - h_j)``, h a pooled score of a bag's instances.

    Source: Zhu et al., 2023 (MIDAM), with the mean over pairs in the place of its min-max form.

    Each sample is an instance.  The column ``bag`` (B,) int64 names its bag, ``y`` (B,) is the label of that bag, 0 or
    1 and the same for all of its instances.  The score ``h_i = h(u_i)`` of a bag (:class:`Pooling`) is a function of
    means over all of its instances; a batch holds some of them, and row i remembers their estimate u_i.

    A batch speaks of a bag if it holds an instance of it and one of a bag of the other class, with whose remembered
    means it is compared.  The gradient is right on average, given exact rows, where the bags of a class are drawn with
    equal chances: batches of :class:`BagSampling`, of :class:`GroupSampling` with ``column: bag``, and batches that are
    drawn without regard to bags if all bags of a class are of one size.  It is biased with others, which are warned of.
    Means over a bag are weighted by the column ``weight``, if there is one.

    As MIDAM does, take the gradient at the new u_i (:class:`SOAP`).  It contains the ratio of the batch's mean of
    exp(s / tau) to u_i, which is at most 1 / gamma for the new u_i and has no bound for the one from before the step.
    A loss of bounded slope (sigmoid, logistic) bears best with rows that were remembered long ago.

    Args:
        pooling: h; :class:`SmoothMaxPooling` by default.
        loss: l; :class:`SigmoidPair` by default.
    """

    distinct = True
    dtype = torch.float64

    def __init__(self, pooling: Pooling | None = None, loss: PairLoss | None = None) -> None:
        super().__init__()
        self.pooling = pooling or SmoothMaxPooling()
        self.loss = loss or SigmoidPair()
        self.width = self.pooling.width
        # on the host: of the bags, sorted by name; and the number of bags by those of a class
        self._names, self._positive = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bool)
        self._each = torch.empty(2, dtype=torch.float64)

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """The losses of the pairs of all bags, once these are known from :meth:`row_domain`."""
        return self._pairs(torch.arange(len(self._names)))

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every bag, by increasing name.

        Raises:
            ConfigError: if the training split is not known.
            DataError: if it lacks bags or labels, a label is neither 0 nor 1, a bag holds both, or all bags have one.
        """
        both_classes(columns, self)
        assert columns is not None  # noqa: S101 - refused by both_classes
        bags = bags_of(on_host(columns), self)
        self._names, self._positive = bags.names, bags.labels(on_host(columns), self) == 1
        sizes = torch.bincount(self._positive.long(), minlength=2).double()
        self._each = sizes.sum() / sizes
        return RowDomain(len(bags.names), range=self.pooling.range)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of a bag if it holds an instance of it, and one of a bag of the other class."""
        bags = bags_of(columns, self)
        positive = bags.labels(columns, self) == 1
        of_positive = positive[bags.of]
        return Partition(bags.of, len(positive), [~of_positive, of_positive], (~positive).long())

    def know_presence(self, probability: Tensor) -> None:
        """Warn where bags of one class are drawn with unequal chances: each counts as much, but not as a partner.

        Raises:
            DataError: if batches never speak of a bag.
        """
        for label, of_class in ((1, self._positive), (0, ~self._positive)):
            least, most = (float(end) for end in probability[of_class].aminmax())
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

    def inner(self, outputs: Any, batch: Columns) -> Inner | None:
        """The means over the instances of every bag in the batch; None if it lacks one of the classes.

        Raises:
            DataError: if the outputs do not fit the pooling, or bags are missing, wrong or not of the training split.
        """
        batch = on_host(batch)
        terms, bags = self.pooling.terms(outputs), bags_of(batch, self)
        rows = self._rows(bags)
        positive = self._positive[rows]
        if bool(positive.all()) or not bool(positive.any()):
            return None
        means = bags.means(terms, batch.get("weight"))
        alike = torch.ones_like(means[:, 0])  # in F; estimates of it then count a bag the more the rarer it is drawn
        return Inner(rows, means, self._pairs(rows, means), alike)

    def _rows(self, bags: Bags) -> Tensor:
        """The rows of the bags of a batch."""
        if not len(self._names):
            raise ConfigError(f"{type(self).__name__} does not know the training split yet: pose the problem first.")
        rows = torch.searchsorted(self._names, bags.names).clamp(max=len(self._names) - 1)
        strange = self._names[rows] != bags.names
        if bool(strange.any()):
            raise DataError(
                f"bag {int(bags.names[strange][0])} of a batch is none of the {len(self._names)} bags of the training "
                "split. Name the bags of both in the same way."
            )
        return rows

    def _pairs(self, rows: Tensor, like: Tensor | None = None) -> PooledPairs:
        positive = self._positive[rows]
        share, like = self._each[positive.long()], positive if like is None else like
        return PooledPairs(self.pooling, self.loss, send(positive, like), send(share, like))
