"""Objectives of labels that are 0 or 1, perhaps with the cross-entropy of the same outputs beside them."""

from abc import ABC
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcco_lightning.checks import non_negative
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import Objective, binary_scores, mean_over_data
from fcco_lightning.objectives.quantities import LogisticLoss


class BinaryObjective(Objective, ABC):
    r"""An objective of scores s_i of samples whose labels are 0 or 1: the network's outputs, or their sigmoids.

    Outputs are one for each sample, of shape (B,) or (B, 1), unless an objective of several labels says otherwise.

    A loss of differences of scores pulls at the positives as long as some negative is near, however high they stand, so
    that few positives are soon learnt by heart.  The sigmoid is flat where they stand high, which leaves them alone; it
    is what LibAUC's losses are given.  With some hundred positives it hardly matters.

    Cross-entropy learns from every sample, and may stand beside the objective: ``F = c CE + F_own`` with the mean
    cross-entropy CE of the outputs.  Where :class:`~fcco_lightning.FCCOModule` trains as is recommended, it does so by
    the weights that were found best (:attr:`recommended_mixture`), if nothing is said of c; elsewhere F is F_own.  The
    papers' objectives are those of ``sigmoid=False, cross_entropy=0``.

    Args:
        sigmoid: whether s_i is the sigmoid of the output, in (0, 1), in the place of the output itself.
        cross_entropy: c, >= 0, the weight of the cross-entropy beside the objective; None for 0, or where training is
            as recommended for :attr:`recommended_mixture`.

    Attributes:
        recommended_mixture: the weights of the cross-entropy and of the objective in F that are recommended.
        of_sigmoids: whether that is so where scores are sigmoids only; of others the objective alone is recommended.
        seen_alone: what came out without cross-entropy beside the objective, if that did not pay: a sentence, for
            :attr:`instead`.

    Raises:
        ConfigError: if ``cross_entropy`` is negative or not finite.
    """

    recommended_mixture: tuple[float, float] = (0.0, 1.0)
    of_sigmoids: ClassVar[bool] = False
    seen_alone: ClassVar[str | None] = None

    def __init__(self, *, sigmoid: bool = False, cross_entropy: float | None = None) -> None:
        super().__init__()
        self.sigmoid = sigmoid
        self.cross_entropy = None if cross_entropy is None else non_negative("cross_entropy", cross_entropy)

    @property
    def mixture(self) -> tuple[float, float]:
        """The weights of the cross-entropy and of the objective in F, as they are now."""
        if self.cross_entropy is not None:
            return self.cross_entropy, 1.0
        mixed = self.recommended and (self.sigmoid or not self.of_sigmoids)
        return self.recommended_mixture if mixed else (0.0, 1.0)

    @property
    def always_measured(self) -> bool:
        """Where cross-entropy stands beside the objective."""
        return self.mixture[0] > 0

    @property
    def in_words(self) -> str:
        entropy_weight, own_weight = self.mixture
        times = "" if entropy_weight == own_weight else f"{entropy_weight / own_weight:.3g} times "
        return super().in_words + (f" beside {times}the cross-entropy" if entropy_weight else "")

    @property
    def instead(self) -> str | None:
        return None if self.mixture[0] else self.seen_alone

    def scores(self, outputs: Any) -> Tensor:
        """The s_i, shape (B,).

        Raises:
            DataError: if the outputs have another shape.
        """
        scores = binary_scores(outputs)
        return scores.sigmoid() if self.sigmoid else scores

    def entropy(self, outputs: Any, batch: Columns) -> Tensor:
        """The estimate of CE on a batch, a scalar."""
        return mean_over_data(LogisticLoss()(outputs, batch), batch)

    def with_cross_entropy(self, g0: Tensor | None, outputs: Any, batch: Columns) -> Tensor | None:
        """The direct part of F, given that of F_own: every batch measures the cross-entropy, which counts as it is."""
        entropy_weight, own_weight = self.mixture
        if g0 is not None and own_weight != 1:
            g0 = own_weight * g0
        if entropy_weight == 0:
            return g0
        entropy = entropy_weight / self.direct_weight * self.entropy(outputs, batch)
        return entropy if g0 is None else entropy + g0

    def row_weights(self, owners: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights of the rows of F_own in F, from whether samples own one or what its row counts, shape (B,)."""
        own_weight = self.mixture[1]
        return owners if own_weight == 1 else own_weight * owners.to(dtype)
