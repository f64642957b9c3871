"""Partial areas under the ROC curve: low false positive rates, high true positive rates, or both."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.checks import below_one, finite, fraction, positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.auc.pairwise import ExponentialOf, PairLoss
from fcco_lightning.objectives.base import SampleParameters, mean_over_data, required_column
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.ranking.ranking import RankingObjective, both_classes
from fcco_lightning.outer import Hinge, KullbackLeiblerOfLog, Log, OuterFunction, Range, Shifted

_BESIDE = 0.1  # recommended weight beside cross-entropy, found on other tables than those of the tests
_SEEN_ALONE = (
    "On 14 imbalanced tables partial AUC of raw scores ended up to .007 below that of cross-entropy, and on CIFAR-10 "
    ".005 to .016 below it in the same batches: compare with the default (nothing said of cross_entropy, sigmoid and "
    "pretrain), or with --model.objective CrossEntropy."
)


class CVaRPartialAUC(RankingObjective):
    r"""The mean pair loss of the lowest (1 - min_tpr) n_+ positives against the highest max_fpr n_- negatives.

    Up to constants this is minus the part of the area under the ROC curve with false positive rates up to ``max_fpr``
    and true positive rates of at least ``min_tpr``, with l in place of the 0-1 loss of a pair.  Both selections are
    conditional values at risk; with ``L_i = min_s s + mean over negatives j of [l(s_i - s_j) - s]_+ / max_fpr``

    ``F(w) = min_c c + (1/n_+) sum over positives i of [L_i - c]_+ / (1 - min_tpr)``.

    - ``max_fpr`` alone (one-way, SOPA of Zhu et al., 2022): every positive has its own threshold s_i, trained by
      projected gradient descent.  There are no running averages: F is a mean over pairs.
    - ``min_tpr`` alone (ALEXR paper, section 5.2, erratum ALEXR-4): c is trained with the network, its step size is
      ``--model.schedule.objective_lr``; row i remembers the mean loss of positive i.  Convex where the pair losses
      are convex in the weights.
    - both (two-way): c and all s_i.  Row i remembers ``mean_j [l(s_i - s_j) - s_i]_+ / max_fpr``, which is not smooth
      in the weights: use SONX, ALEXR or ALEXR2, since SONEX smooths f only.

    On new samples of 14 imbalanced tables the partial AUC reached with raw scores was .005 to .007 below that of
    cross-entropy; with sigmoids and a weight of .1 beside the cross-entropy, the default of FCCOModule, it was equal
    (``examples/benchmarks/results/tables_pay.md``).

    Args:
        max_fpr: fraction of the negatives that is used, in (0, 1].
        min_tpr: fraction of the positives that is left out, in [0, 1).
        loss: l, non-negative and decreasing, so that the highest losses are those of the highest negatives and the
            lowest positives; the squared hinge with margin 1 by default.
        threshold: initial value of c; used with ``min_tpr`` only.
        thresholds: initial value of the s_i, >= 0; used with ``max_fpr`` < 1 only.
        thresholds_lr: step size of the s_i, > 0.  One visit changes s_i on average by ``-thresholds_lr dL_i / ds_i``,
            with ``dL_i / ds_i = 1 - (fraction of negatives j with l_ij > s_i) / max_fpr`` as in SOPA, independently of
            the fraction of positives; with ``min_tpr`` it is multiplied by the outer gradient, 0 or 1 / (1 - min_tpr).
            If samples have weights, the one-way step is a ratio: in batches with few positives it is larger for
            positives with small weights.
        sigmoid: whether the scores are sigmoids of the network's outputs, see :class:`BinaryObjective`.
        cross_entropy: weight of the cross-entropy beside the objective, see :class:`BinaryObjective`.  On sigmoids a
            tenth of the objective beside it is recommended; steps of c are then a tenth, too, but for optimizers that
            scale them, such as Adam.

    Raises:
        ConfigError: if an argument is out of range, or nothing is left out (F would be the mean over all pairs, AUC).
    """

    recommended_mixture = (1.0, _BESIDE)
    of_sigmoids = True
    seen_alone = _SEEN_ALONE

    def __init__(
        self,
        max_fpr: float = 1.0,
        min_tpr: float = 0.0,
        loss: PairLoss | None = None,
        threshold: float = 0.0,
        thresholds: float = 0.0,
        thresholds_lr: float = 0.1,
        *,
        sigmoid: bool = True,
        cross_entropy: float | None = None,
    ) -> None:
        super().__init__(loss, sigmoid=sigmoid, cross_entropy=cross_entropy)
        self.max_fpr = fraction("max_fpr", max_fpr)
        below_one("min_tpr", min_tpr)
        if max_fpr == 1 and min_tpr == 0:
            raise ConfigError("max_fpr=1 and min_tpr=0 leave nothing out. Set one of them, or use AUC.")
        self.min_tpr = min_tpr
        if max_fpr < 1:
            lr = positive("thresholds_lr", thresholds_lr)
            if finite("thresholds", thresholds) < 0:
                raise ConfigError(f"thresholds must be >= 0, as losses are, got {thresholds!r}.")
            self.sample_parameters = SampleParameters("threshold", 1, thresholds, 0.0, float("inf"), lr)
        if min_tpr > 0:
            self.threshold = nn.Parameter(torch.tensor(float(finite("threshold", threshold))))
            self._tail = Hinge(rho=1 / (1 - min_tpr))

    @property
    def outer(self) -> OuterFunction | None:  # type: ignore[override]
        """``[u - c]_+ / (1 - min_tpr)`` with the present c; None without ``min_tpr``."""
        return Shifted(self._tail, self.threshold) if self.min_tpr else None

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor] | None:
        """Both classes, if F is a mean over pairs."""
        if self.min_tpr:
            return None
        positive, negative = both_classes(columns, self)
        self._know_sizes(columns, positive)
        return [positive, negative]

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor | None, Rows | None]:
        """The threshold c and the inner values; or, without ``min_tpr``, the mean of the L_i."""
        scores = self.scores(outputs)
        owners, share, negatives = self._classes(batch, scores.dtype)
        if self.max_fpr == 1:
            g0 = self.with_cross_entropy(self.threshold, outputs, batch)
            losses = self._means(self.loss, scores, owners, negatives)
            return g0, Rows(losses, self.row_weights(owners, losses.dtype))
        thresholds = self._thresholds(batch, scores.dtype)
        excess = self._means(self.loss, scores, owners, negatives, thresholds) / self.max_fpr
        if self.min_tpr:
            outer = Shifted(self._tail, self.threshold - thresholds.unsqueeze(1))
            g0 = self.with_cross_entropy(self.threshold, outputs, batch)
            return g0, Rows(excess, self.row_weights(owners, excess.dtype), outer)
        return self.with_cross_entropy((share * owners) @ (thresholds + excess.squeeze(1)), outputs, batch), None

    def _thresholds(self, batch: Columns, dtype: torch.dtype) -> Tensor:
        """The s_i of all samples, shape (B,), with gradients scaled to those of L_i.

        Steps of samples' parameters assume that F is a mean over all n samples; here it is a mean over n_+ samples
        times a weight, which the scaling removes.
        """
        thresholds, own_weight = required_column(batch, "threshold", self).squeeze(1).to(dtype), self.mixture[1]
        if self.class_sizes is None:  # only batches are known
            return torch.lerp(
                thresholds.detach(), thresholds, mean_over_data(self._owners(batch).to(dtype), batch) / own_weight
            )
        return torch.lerp(thresholds.detach(), thresholds, self.class_sizes[1] / sum(self.class_sizes) / own_weight)


class KLPartialAUC(RankingObjective):
    r"""Soft partial AUC: ``(1/n_+) sum_i L_i``, ``L_i = lam log mean_j exp(l_ij / lam)`` over negatives j.

    Source: SOPA-s and SOTA-s of Zhu et al., 2022.

    L_i is the largest weighted mean loss of positive i over weights of the negatives, minus lam times the KL divergence
    of the weights from uniform weights.  A small lam emphasises the highest negatives (low false positive rates); for a
    large lam F tends to the mean over pairs.  With ``tau`` the positives are weighted in the same way (two-way): ``F =
    tau log mean_i exp(L_i / tau)``, computed as ``min_c c + (1/n_+) sum_i tau (exp((L_i - c)/tau) - 1)`` with c trained
    with the network (its step size is ``--model.schedule.objective_lr``).  This has two levels, while the sources have
    a third one, with its own running average.

    Row i remembers ``mean_j exp(l_ij / lam)``, at least 1, in float64.  Above the exponent 500 the exponential is
    continued by its tangent.

    Args:
        lam: weight of the divergence of the negatives, > 0, in units of the loss.
        tau: weight of the divergence of the positives, > 0; None for equal weights of the positives.
        loss: l, non-negative; the squared hinge with margin 1 by default.
        threshold: initial value of c, used with ``tau`` only; for a small tau a value near F avoids large exponentials.
        sigmoid: whether the scores are sigmoids of the network's outputs, see :class:`BinaryObjective`.
        cross_entropy: weight of the cross-entropy beside the objective, see :class:`BinaryObjective`.  On sigmoids a
            tenth of the objective beside it is recommended; steps of c are then a tenth, too, but for optimizers that
            scale them, such as Adam.

    Raises:
        ConfigError: if an argument is out of range.
    """

    dtype = torch.float64
    recommended_mixture = (1.0, _BESIDE)
    of_sigmoids = True
    seen_alone = _SEEN_ALONE

    def __init__(
        self,
        lam: float = 1.0,
        tau: float | None = None,
        loss: PairLoss | None = None,
        threshold: float = 0.0,
        *,
        sigmoid: bool = True,
        cross_entropy: float | None = None,
    ) -> None:
        super().__init__(loss, sigmoid=sigmoid, cross_entropy=cross_entropy)
        self.lam = positive("lam", lam)
        self.tau = None if tau is None else positive("tau", tau)
        self.against_overflow = f"Raise lam (it is {lam:g}), which divides the losses in an exponent."
        threshold = float(finite("threshold", threshold))
        if tau is not None:
            self.against_overflow = (
                f"Raise tau (it is {tau:g}) or lam ({lam:g}), which divide losses in an exponent, or start from a "
                f"`threshold` near F (it is {threshold:g})."
            )
            self.threshold = nn.Parameter(torch.tensor(threshold))

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """``lam log u``, or ``tau (exp((lam log u - c)/tau) - 1)`` with the present c."""
        if self.tau is None:
            return Log(self.lam, floor=1.0)
        return KullbackLeiblerOfLog(self.lam, self.tau, self.threshold, floor=1.0)

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor | None, Rows]:
        """The threshold c, with ``tau``, and ``mean_j exp(l_ij / lam)`` of the batch's positives."""
        owners, _, others = self._classes(batch, self.dtype)
        means = self._means(ExponentialOf(self.loss, self.lam), self.scores(outputs), owners, others)
        g0 = self.with_cross_entropy(None if self.tau is None else self.threshold, outputs, batch)
        return g0, Rows(means, self.row_weights(owners, means.dtype))

    def _range(self) -> Range:
        """Losses are not negative."""
        return Range(least=1.0)
