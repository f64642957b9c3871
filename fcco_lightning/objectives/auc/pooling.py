"""Pooling of the scores of a bag's instances to a score of the bag."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import bounded_exp
from fcco_lightning.objectives.base import (
    binary_scores,
    one_label_each,
    one_tensor,
    require_binary_labels,
    whole_numbers,
)
from fcco_lightning.objectives.quantities import means_by_part
from fcco_lightning.outer import Range

_BOUND = 300.0  # exponent up to which products and quotients of exponentials fit into float64
_LEAST = math.exp(-_BOUND)


class Bags(NamedTuple):
    """The bags of a table of instances.

    Attributes:
        names: the distinct values of the column ``bag``, in increasing order, shape (m,), int64.
        of: for every instance the position of its bag in ``names``, shape (n,), int64.
    """

    names: Tensor
    of: Tensor

    def means(self, values: Tensor) -> Tensor:
        """The mean over every bag, shape (m, k), of values (n, k) of its instances."""
        return means_by_part(self.of.to(values.device), len(self.names), values, torch.ones_like(values[:, 0]))[0]

    def labels(self, columns: Columns, needed_by: object) -> Tensor:
        """The labels ``y`` of the bags, 0 or 1, shape (m,), int64.

        Raises:
            DataError: if ``y`` is missing or not (n,), holds another value, or differs within a bag.
        """
        require_binary_labels(columns, needed_by)
        y = one_label_each(columns, needed_by).long()
        some = y.new_zeros(len(self.names)).index_add(0, self.of, y)
        mixed = (some > 0) & (some < torch.bincount(self.of, minlength=len(self.names)))
        if bool(mixed.any()):
            raise DataError(
                f"all instances of a bag must have the label of the bag, but {int(mixed.sum())} bags hold both labels "
                f"(first: bag {int(self.names[mixed][0])}). Give every line the label of its bag, for a bag with a "
                "positive instance 1."
            )
        return (some > 0).long()


def bag_column(columns: Columns, needed_by: object) -> Tensor:
    """The column ``bag`` of a table or batch, shape (n,), int64; see :func:`whole_numbers`."""
    return whole_numbers(columns, "bag", needed_by, "Number the bags, for example with pandas.factorize.")


def bags_of(columns: Columns, needed_by: object) -> Bags:
    """The bags of a table, from its :func:`bag_column`; reads their number from the device."""
    return Bags(*torch.unique(bag_column(columns, needed_by), return_inverse=True))


class Pooling(ABC):
    r"""The score of a bag from means over its instances: ``h = score(u)`` with ``u = mean over instances of t``.

    A sample of the instances gives an unbiased estimate of u, but not of h.

    Attributes:
        width: k, the number of means of a bag.
        range: an interval that contains the means for all outputs.
    """

    width: ClassVar[int] = 1
    range: ClassVar[Range] = Range()

    @abstractmethod
    def terms(self, outputs: Any) -> Tensor:
        """The terms t of every instance from the network's outputs: (n, ...) -> (n, k), with graph, float64.

        Raises:
            DataError: if the outputs have another shape than the pooling needs.
        """

    @abstractmethod
    def score(self, u: Tensor) -> Tensor:
        """The score h of every bag: (m, k) -> (m,), differentiable."""


@dataclass(frozen=True)
class MeanPooling(Pooling):
    """``h = mean over instances of s``: the baseline for smooth maximum and attention.

    The network gives one score s per instance, (n,) or (n, 1).
    """

    def terms(self, outputs: Any) -> Tensor:
        return binary_scores(outputs).double().unsqueeze(1)

    def score(self, u: Tensor) -> Tensor:
        return u[..., 0]


@dataclass(frozen=True)
class SmoothMaxPooling(Pooling):
    r"""``h = tau log mean over instances of exp(s / tau)``, between the mean and the maximum of the scores s.

    The network gives one score per instance, (n,) or (n, 1).  Ratios s / tau are clipped to [-300, 300].  Source: Zhu
    et al., 2023 (MIDAM).

    Args:
        tau: temperature, > 0, in units of the score; small tau is near the maximum, large tau near the mean.
    """

    tau: float = 0.1
    range = Range(least=_LEAST)

    def __post_init__(self) -> None:
        positive("tau", self.tau)

    def terms(self, outputs: Any) -> Tensor:
        return bounded_exp(binary_scores(outputs).unsqueeze(1) / self.tau, _BOUND)

    def score(self, u: Tensor) -> Tensor:
        return self.tau * u[..., 0].clamp(min=_LEAST).log()


@dataclass(frozen=True)
class AttentionPooling(Pooling):
    r"""``h = mean of exp(a) s / mean of exp(a)`` over instances: a mean of the scores s with learnt weights.

    The network gives two outputs per instance, (n, 2): the score s and the logit a of its weight.  Logits are clipped
    to [-300, 300].  Source: Zhu et al., 2023 (MIDAM).
    """

    width = 2

    def terms(self, outputs: Any) -> Tensor:
        outputs = one_tensor(outputs)
        if outputs.dim() != 2 or outputs.shape[1] != 2:
            raise DataError(
                f"AttentionPooling needs two outputs per instance, shape (B, 2), its score and the logit of its "
                f"weight, got {tuple(outputs.shape)}. Set out_features: 2 of the network."
            )
        share = bounded_exp(outputs[:, 1], _BOUND)
        return torch.stack([share * outputs[:, 0].double(), share], dim=1)

    def score(self, u: Tensor) -> Tensor:
        return u[..., 0] / u[..., 1].clamp(min=_LEAST)
