"""Objectives for binary labels, optionally with an additional cross-entropy."""

from abc import ABC
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcco_lightning.checks import non_negative
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import Objective, binary_scores, mean_over_data
from fcco_lightning.objectives.quantities import LogisticLoss

_LOG_ODDS = 10  # so many times the weight of the objective makes cross-entropy decide what outputs mean


class BinaryObjective(Objective, ABC):
    r"""An objective of scores s_i of samples with labels 0 or 1; scores are the network's outputs or their sigmoids.

    There is one output per sample, shape (B,) or (B, 1), except for objectives with several labels.

    A loss of score differences has a gradient for a positive as long as some negative is near, however high both scores
    are, so that a few positives are soon overfitted.  The sigmoid saturates for high scores, which prevents this;
    LibAUC's losses also take sigmoids.  With some hundred positives it makes little difference.

    Cross-entropy uses every sample and can be added: ``F = c CE + F_own`` with the mean cross-entropy CE of the
    outputs.  If c is not given, :class:`~fcco_lightning.FCCOModule` uses the weights that were best in benchmarks
    (:attr:`recommended_mixture`) when it trains as recommended; otherwise F = F_own.  The papers' objectives have
    ``sigmoid=False, cross_entropy=0``.

    Args:
        sigmoid: whether s_i is the sigmoid of the output, in (0, 1), instead of the output itself.
        cross_entropy: c, the weight of the additional cross-entropy, >= 0; None for 0, or for
            :attr:`recommended_mixture` if the objective is trained as recommended.

    Attributes:
        recommended_mixture: the recommended weights of the cross-entropy and of F_own in F.
        of_sigmoids: whether this recommendation is for ``sigmoid=True`` only.
        seen_alone: a sentence for :attr:`instead` on the results without cross-entropy, if they were worse.

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
        """The present weights of the cross-entropy and of F_own in F."""
        if self.cross_entropy is not None:
            return self.cross_entropy, 1.0
        mixed = self.recommended and (self.sigmoid or not self.of_sigmoids)
        return self.recommended_mixture if mixed else (0.0, 1.0)

    @property
    def proper(self) -> bool:
        """Whether outputs are log-odds, as the cross-entropy has at least 10 times the weight of F_own.

        On new rows of 12 tables the log loss was then, on average, at most .003 above that of cross-entropy
        (``examples/benchmarks/results/tables_pay.md``).
        """
        entropy_weight, own_weight = self.mixture
        return entropy_weight >= _LOG_ODDS * own_weight

    @property
    def always_measured(self) -> bool:
        """True with an additional cross-entropy."""
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
        """The direct part of F, given that of F_own, g0; the cross-entropy is not multiplied by ``direct_weight``."""
        entropy_weight, own_weight = self.mixture
        if g0 is not None and own_weight != 1:
            g0 = own_weight * g0
        if entropy_weight == 0:
            return g0
        entropy = entropy_weight / self.direct_weight * self.entropy(outputs, batch)
        return entropy if g0 is None else entropy + g0

    def row_weights(self, owners: Tensor, dtype: torch.dtype) -> Tensor:
        """The weights of the rows of F_own in F, (B,), given which samples own a row, or the weights of their rows."""
        own_weight = self.mixture[1]
        return owners if own_weight == 1 else own_weight * owners.to(dtype)
