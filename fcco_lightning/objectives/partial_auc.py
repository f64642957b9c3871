"""Partial areas under the ROC curve: low false positive rates, high true positive rates, or both."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.checks import finite, fraction, positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Range
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives.base import SampleParameters, nothing, required_column
from fcco_lightning.objectives.pairwise import ExponentialOf, PairLoss, SquaredHingePair, shares
from fcco_lightning.objectives.ranking import ComparedClasses, RankingObjective, both_classes
from fcco_lightning.outer import Hinge, KullbackLeiblerOfLog, Log, OuterFunction, Shifted
from fcco_lightning.records import Arrangement, Columns


class CVaRPartialAUC(RankingObjective):
    r"""The mean pair loss of the lowest (1 - min_tpr) n_+ positives against the highest max_fpr n_- negatives.

    That is minus the part of the area under the ROC curve with false positive rates up to ``max_fpr`` and true positive
    rates from ``min_tpr`` on, with l in the place of the 0-1 loss of a pair.  Both choices are conditional values at
    risk; with ``L_i = min_s s + mean over negatives j of [l(s_i - s_j) - s]_+ / max_fpr``

    ``F(w) = min_c c + (1/n_+) sum over positives i of [L_i - c]_+ / (1 - min_tpr)``.

    - ``max_fpr`` alone (one-way, SOPA of Zhu et al., 2022): every positive has a threshold s_i of its own, trained row
      by row by projected gradient descent.  No inner values are remembered: F is a mean over pairs.
    - ``min_tpr`` alone (ALEXR paper, section 5.2, erratum ALEXR-4): c is trained with the network, its step size is
      ``--model.objective_lr``; row i remembers the mean loss of positive i.  Convex where the pair losses are convex in
      the weights.
    - both (two-way): c and all s_i.  Row i remembers ``mean_j [l(s_i - s_j) - s_i]_+ / max_fpr``, which is not smooth
      in the weights: use SONX, ALEXR or ALEXR2, since SONEX smooths f only.

    Args:
        max_fpr: share of the negatives, in (0, 1].
        min_tpr: share of the positives that is left out, in [0, 1).
        loss: l, non-negative and decreasing, so that the highest losses are those of the highest negatives and the
            lowest positives; the squared hinge with margin 1 by default.
        threshold: c to start from.
        thresholds: s_i to start from, >= 0.
        thresholds_lr: step size of the s_i, > 0.  One visit moves s_i on average by ``-thresholds_lr dL_i / ds_i``,
            with ``dL_i / ds_i = 1 - (share of negatives j with l_ij > s_i) / max_fpr`` as in SOPA, whatever the share
            of positives in the data or the batches; with ``min_tpr`` times the outer gradient, 0 or 1 / (1 - min_tpr).
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps where positives are few; see
            :class:`BinaryObjective`.

    Raises:
        ConfigError: if an argument is out of range, or nothing is left out (then F is the mean over all pairs, AUC).
    """

    def __init__(
        self,
        max_fpr: float = 1.0,
        min_tpr: float = 0.0,
        loss: PairLoss | None = None,
        threshold: float = 0.0,
        thresholds: float = 0.0,
        thresholds_lr: float = 0.1,
        *,
        sigmoid: bool = False,
    ) -> None:
        super().__init__(sigmoid=sigmoid)
        self.max_fpr = fraction("max_fpr", max_fpr)
        if not 0 <= finite("min_tpr", min_tpr) < 1:
            raise ConfigError(f"min_tpr must lie in [0, 1), got {min_tpr!r}.")
        if max_fpr == 1 and min_tpr == 0:
            raise ConfigError("max_fpr=1 and min_tpr=0 leave nothing out. Set one of them, or use AUC.")
        self.min_tpr = min_tpr
        self.loss = loss or SquaredHingePair()
        if max_fpr < 1:
            lr = positive("thresholds_lr", thresholds_lr)
            if finite("thresholds", thresholds) < 0:
                raise ConfigError(f"thresholds must be >= 0, as losses are, got {thresholds!r}.")
            self.sample_parameters = SampleParameters("threshold", 1, thresholds, 0.0, float("inf"), lr)
        if min_tpr > 0:
            self.threshold = nn.Parameter(torch.tensor(float(finite("threshold", threshold))))

    @property
    def outer(self) -> OuterFunction | None:  # type: ignore[override]
        """``[u - c]_+ / (1 - min_tpr)``, with c at its present value; None without ``min_tpr``."""
        return self._outer(0.0) if self.min_tpr else None

    def _outer(self, thresholds: Tensor | float) -> OuterFunction:
        return Shifted(Hinge(rho=1 / (1 - self.min_tpr)), self.threshold - thresholds)

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor] | None:
        """Both classes where F is a mean over pairs."""
        if self.min_tpr:
            return None
        positive, negative = both_classes(columns, self)
        self.class_sizes = int(negative.sum()), int(positive.sum())
        return [positive, negative]

    def arrange_direct(self, batch: Columns, like: Tensor) -> tuple[Any, ...]:
        """The pairs, the s_i, and weights of the positives; nothing with ``min_tpr``, or without both classes."""
        if self.min_tpr:
            return ()
        _, pairs, _, owners = self._arranged_pairs(batch, like, None)
        if owners is None or pairs is None:
            return ()
        return pairs, self._thresholds(owners, batch, like), shares(on_host(batch).get("weight"), owners, like)

    def direct_value(self, outputs: Any, given: tuple[Any, ...]) -> Tensor:
        """C, or without ``min_tpr`` the mean of the L_i at their present thresholds."""
        if self.min_tpr:
            return self.threshold
        if not given:
            return nothing(outputs)
        pairs, thresholds, share = given
        mean: Tensor = share @ (thresholds + self._excess(outputs, pairs, thresholds)).squeeze(1)
        return mean

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement | None:
        """The pairs and the s_i, if there are any; None without ``min_tpr``."""
        if not self.min_tpr:
            return None
        arranged, thresholds = self._arranged_pairs(batch, like, None), None
        if self.max_fpr < 1 and arranged.given is not None and arranged.owners is not None:
            thresholds = self._thresholds(arranged.owners, batch, like)
        return arranged._replace(given=(arranged.given, thresholds))

    def values(self, outputs: Any, given: tuple[ComparedClasses | None, Tensor | None]) -> Tensor:
        """What is sampled of the L_i of the batch's positives, shape (a, 1)."""
        return self._excess(outputs, *given)

    def known_outer(self, given: tuple[ComparedClasses | None, Tensor | None]) -> OuterFunction:
        return self._outer(0.0 if given[1] is None else given[1])

    def _excess(self, outputs: Any, pairs: ComparedClasses | None, thresholds: Tensor | None) -> Tensor:
        """``mean_j [l_ij - s_i]_+ / max_fpr``, or the mean loss where all negatives count, shape (a, 1)."""
        mean = self._means(self.loss, outputs, pairs, thresholds)
        return mean if thresholds is None else mean / self.max_fpr

    def _thresholds(self, owners: Tensor, batch: Columns, like: Tensor) -> Tensor:
        """The s_i of the positives, shape (a, 1), with the graph of L_i and not of L_i n / n_+.

        Steps of samples' own parameters are taken as if F were a mean over all n samples, and here it is one over n_+.
        """
        every = required_column(batch, "threshold", self)
        given = every.index_select(0, send(owners, every)).to(like.dtype)
        if given.requires_grad:
            share = self._share_of_owners(owners, on_host(batch), like)
            given.register_hook(lambda g: g * share)  # type: ignore[no-untyped-call]
        return given

    def _share_of_owners(self, owners: Tensor, host: Columns, like: Tensor) -> Tensor | float:
        """n_+ / n, or that of the batches where samples are weighted, shape (a, 1)."""
        if self.class_sizes is None:  # only batches are known
            return len(owners) / len(host["index"])
        share = self.class_sizes[1] / sum(self.class_sizes)
        if "weight" not in host:
            return share
        return send(share / host["weight"][owners].unsqueeze(1).to(like.dtype), like)


class KLPartialAUC(RankingObjective):
    r"""Partial AUC with soft choices: ``(1/n_+) sum_i L_i``, ``L_i = lam log mean_j exp(l_ij / lam)`` over negatives j.

    Source: SOPA-s and SOTA-s of Zhu et al., 2022.

    L_i is the largest mean loss of positive i over weights of the negatives, less lam times the weights' KL divergence
    from uniform ones.  Small lam looks at the highest negatives only (low false positive rates), large lam at all of
    them, and F tends to the mean over pairs.  With ``tau`` the positives are weighted likewise (two-way):
    ``F = tau log mean_i exp(L_i / tau)``, computed as ``min_c c + (1/n_+) sum_i tau (exp((L_i - c)/tau) - 1)`` with c
    trained beside the network (its own step size: ``--model.objective_lr``).  That has two levels, where the sources
    keep a running mean for the third.

    Row i remembers ``mean_j exp(l_ij / lam)``, at least 1, in float64.  Exponents beyond 500 are continued by a
    tangent.

    Args:
        lam: weight of the divergence of the negatives, > 0, in units of the loss.
        tau: weight of the divergence of the positives, > 0; None weighs all positives the same.
        loss: l, non-negative; the squared hinge with margin 1 by default.
        threshold: c to start from; one near F keeps exponentials small where tau is.
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps where positives are few; see
            :class:`BinaryObjective`.

    Raises:
        ConfigError: if an argument is out of range.
    """

    dtype = torch.float64

    def __init__(
        self,
        lam: float = 1.0,
        tau: float | None = None,
        loss: PairLoss | None = None,
        threshold: float = 0.0,
        *,
        sigmoid: bool = False,
    ) -> None:
        super().__init__(sigmoid=sigmoid)
        self.lam = positive("lam", lam)
        self.tau = None if tau is None else positive("tau", tau)
        self.loss = loss or SquaredHingePair()
        self.against_overflow = f"Raise lam (it is {lam:g}), which divides the losses in an exponent."
        if tau is not None:
            self.against_overflow = (
                f"Raise tau (it is {tau:g}) or lam ({lam:g}), which divide losses in an exponent, or start from a "
                f"`threshold` near F (it is {threshold:g})."
            )
            self.threshold = nn.Parameter(torch.tensor(float(finite("threshold", threshold))))

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """``lam log u``, or ``tau (exp((lam log u - c)/tau) - 1)`` with c at its present value."""
        if self.tau is None:
            return Log(self.lam, floor=1.0)
        return KullbackLeiblerOfLog(self.lam, self.tau, self.threshold, floor=1.0)

    def arrange_direct(self, batch: Columns, like: Tensor) -> tuple[()] | None:  # noqa: ARG002
        """Nothing, where there is c."""
        return None if self.tau is None else ()

    def direct_value(self, outputs: Any, given: Any) -> Tensor:  # noqa: ARG002
        """C."""
        return self.threshold

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        return self._arranged_pairs(batch, like)

    def values(self, outputs: Any, given: Any) -> Tensor:
        """``mean_j exp(l_ij / lam)`` of the batch's positives, shape (a, 1)."""
        return self._means(ExponentialOf(self.loss, self.lam), outputs, given)

    def known_outer(self, given: Any) -> OuterFunction:  # noqa: ARG002
        return self.outer

    def _range(self) -> Range:
        """Losses are not negative."""
        return Range(least=1.0)
