"""How scores become decisions, consistently in training, constraints, reports and predictions."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from fcco_lightning.checks import inside, one_of, positive
from fcco_lightning.constraints.calibration import Calibration, calibrated, calibration_of
from fcco_lightning.constraints.score_scales import QuantileScores
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import Quantity, SoftRate, binary_scores
from fcco_lightning.objectives.base import one_label_each
from fcco_lightning.objectives.vacuity import masses
from fcco_lightning.outer import Range

_HARDLY = 1e-4  # weight of a negative among the positives: it keeps the levels strictly increasing


@dataclass(frozen=True)
class TopShare(Quantity):
    r"""``sigmoid((level of s - (1 - share)) / temperature)``: whether a sample is among the highest scores.

    It models a budget: its mean over all samples is about ``share`` for any scores, and its means over groups are the
    groups' parts of the budget.  Levels are those of :class:`QuantileScores` within the batch, an estimate whose bias
    decreases with the batch size.

    Args:
        share: fraction of the samples that are selected, in (0, 1).
        temperature: width of the sigmoid, > 0, in units of the level; the smaller, the closer to the hard rate.
        scale: how levels are measured.
        of: the samples among whose scores levels are measured: "all", or "positives", of which the fraction ``share``
            is then selected, with all negatives of equally high scores (a minimum true positive rate).

    Raises:
        ConfigError: if an argument is out of range.
    """

    share: float
    temperature: float = 0.05
    scale: QuantileScores = QuantileScores()  # noqa: RUF009 - frozen
    of: Literal["all", "positives"] = "all"
    range = Range(0.0, 1.0)
    smooths = True

    def __post_init__(self) -> None:
        inside("share", self.share)
        positive("temperature", self.temperature)
        one_of("of", self.of, ("all", "positives"))

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        scores, weight = binary_scores(outputs), batch.get("weight")
        if self.of == "positives":
            counts = torch.where(one_label_each(batch, self) == 1, 1.0, _HARDLY).to(scores.dtype)
            weight = counts if weight is None else counts * weight.to(scores.dtype)
        levels = self.scale(scores, weight)
        return SoftRate(1 - self.share, self.temperature)(levels, batch)

    def positive_share(self, batch: Columns) -> tuple[float, float]:
        """Bounds of the fraction of selected samples in a split."""
        if self.of == "all":
            return self.share, self.share
        total, positives = masses(one_label_each(batch, self) == 1, batch.get("weight"))
        return 0.0, self.share * positives / total


@dataclass(frozen=True)
class Decisions:
    r"""How scores become decisions; at most one of the four arguments is given.

    *Costs* of the two errors enter the training: the loss of a sample of class c is multiplied by ``costs[c]``, scaled
    so that the mean over the training samples is 1, and the decision is positive for a score above 0.  With the
    logistic loss the score is then the log-odds plus ``log(costs[1] / costs[0])``, so that the decision has the least
    expected cost (Elkan, The foundations of cost-sensitive learning, 2001, eq. (2)).  A *threshold* p of the
    probability gives the same decisions as the costs ``(p, 1 - p)``.  A *budget* or a *minimum true positive rate* sets
    the threshold of the score at which it is met; it does not change the objective, only the constraints.

    For a ranking objective, such as AUC, a score of 0 has no meaning.  The threshold of the score ("division") is then
    found on the validation split, or without one on the training split: that of least cost, or that at which the budget
    or the rate is met.

    Args:
        costs: cost of a wrong decision for a sample of class 0, 1, ..., each > 0: ``(1, 10)`` if a missed positive
            costs as much as ten false alarms. "balanced" uses ``n / (C n_c)`` with n_c samples of class c out of n,
            which maximises the balanced accuracy.
        share: budget: the fraction of all samples, those with the highest scores, with a positive decision, in (0, 1).
        tpr: minimum true positive rate, in (0, 1).
        threshold: probability of a positive above which the decision is positive, in (0, 1).

    Raises:
        ConfigError: if several are given, or one is out of range.

    Example:
        >>> Decisions(threshold=0.2).class_costs(torch.tensor([50, 50])).tolist()  # positive above 1/5
        [0.4, 1.6]
    """

    costs: Literal["balanced"] | Sequence[float] | None = None
    share: float | None = None
    tpr: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        settings = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        if len(settings) > 1:
            raise ConfigError(f"at most one setting of decisions can be given, got {settings}. Remove all but one.")
        for name in {"share", "tpr", "threshold"} & settings.keys():
            inside(f"decisions.{name}", settings[name])
        if self.costs is None or self.costs == "balanced":
            return
        costs: Any = self.costs
        several = isinstance(costs, Collection) and not isinstance(costs, str) and len(costs) > 1
        if not several or not all(isinstance(c, int | float) and 0 < c < math.inf for c in costs):
            raise ConfigError(
                "decisions.costs must be 'balanced', or a number > 0 for every class, those of class 0 first: [1, 10] "
                f"where a missed positive costs as much as ten false alarms. Got {self.costs!r}."
            )

    @property
    def asked(self) -> bool:
        """Whether an argument was given; otherwise the threshold of the probability is 1/2."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    @property
    def mistakes(self) -> bool:
        """Whether decisions follow from costs of errors, and not from a budget or a rate."""
        return self.share is None and self.tpr is None

    def class_costs(self, sizes: Tensor) -> Tensor:
        """The factor on the loss of samples of every class, shape (C,), float64, with mean 1 over the samples.

        Args:
            sizes: number of training samples of every class, shape (C,).

        Raises:
            DataError: if costs are balanced, and a class has no sample.
            ConfigError: if the number of costs is not the number of classes.
        """
        sizes = sizes.double()
        if self.costs == "balanced":
            if not bool((sizes > 0).all()):
                raise DataError(
                    f"decisions='balanced' needs training samples of every class, got {_of(sizes)} by class. Remove "
                    "the empty class."
                )
            return sizes.sum() / (len(sizes) * sizes)
        costs = torch.ones_like(sizes)
        if self.threshold is not None:
            costs = sizes.new_tensor([self.threshold, 1 - self.threshold])
        elif self.costs is not None:
            costs = sizes.new_tensor(self.costs)
        if len(costs) != len(sizes):
            raise ConfigError(
                f"decisions give {len(costs)} costs, and the data has {len(sizes)} classes. Give each class a cost."
            )
        return costs * sizes.sum() / (costs @ sizes)

    def rate(self, smooth: Quantity) -> Quantity:
        """The smoothed decision of a sample, for constraints.

        Args:
            smooth: the smoothed decision for a score above 0, which is used if decisions follow from costs.
        """
        if not isinstance(smooth, SoftRate) or smooth.threshold is not None or self.mistakes:
            return smooth
        return TopShare(self.share) if self.share is not None else TopShare(_given(self.tpr), of="positives")

    def division(self, scores: Tensor, y: Tensor, weight: Tensor | None = None) -> float:
        """The threshold of the score above which a decision is positive, for scores whose 0 has no meaning.

        It is the score above which the budgeted fraction of the samples, or the required fraction of the positives,
        lies, or the threshold of least total cost.

        Args:
            scores: the scores of a split, shape (n,).
            y: classes 0 and 1, shape (n,).
            weight: weights of the samples, shape (n,); None for equal weights.

        Raises:
            DataError: if the split lacks positives or negatives, unless there is a budget.
        """
        dtype = scores.dtype
        scores = scores.double()
        y = y == 1
        weight = torch.ones_like(scores) if weight is None else weight.double()
        order = scores.argsort(descending=True)
        ranked, count = scores[order], weight[order]
        positives, negatives = (count * y[order]).cumsum(0), (count * ~y[order]).cumsum(0)
        chosen = positives + negatives
        last = torch.cat([ranked[1:] != ranked[:-1], ranked.new_ones(1, dtype=torch.bool)])
        if self.share is not None:
            within_share = last & (chosen <= self.share * chosen[-1] * (1 + 1e-12))
            cut = int(within_share.nonzero()[-1]) if bool(within_share.any()) else -1
        else:
            self._require_both(positives[-1], negatives[-1])
            if self.tpr is not None:
                cut = int((last & (positives >= self.tpr * positives[-1] * (1 - 1e-12))).nonzero()[0])
            else:
                costs = self.class_costs(torch.stack([negatives[-1], positives[-1]]))
                total = costs[0] * negatives + costs[1] * (positives[-1] - positives)
                none = costs[1] * positives[-1]
                cut = int(torch.where(last, total, torch.inf).argmin())
                cut = cut if bool(total[cut] < none) else -1
        if cut < 0:
            return float(ranked[0])
        if cut + 1 == len(ranked):
            return float(ranked[cut]) - max(1.0, float(ranked[cut].abs()))
        middle = (ranked[cut] + ranked[cut + 1]) / 2
        # in the scores' type the midpoint of neighbouring numbers may round to one of them
        return float(middle if middle.to(dtype) < ranked[cut] else ranked[cut + 1])

    def decided(self, scores: Tensor, division: float = 0.0) -> Tensor:
        """Whether the decision for each sample is positive, shape (n,), bool.

        A budget is a fraction of the given samples; equal scores at its boundary are not selected.

        Args:
            scores: the scores of the samples, shape (n,).
            division: the threshold of the score without a budget.
        """
        if self.share is not None:
            division = self.division(scores, torch.zeros_like(scores))
        return scores > division

    def describe(self) -> str:
        """A phrase that describes the decisions."""
        if self.share is not None:
            return f"the {self.share:.3g} of all samples with the highest scores"
        if self.tpr is not None:
            return f"at least {self.tpr:.3g} of the positives"
        if self.threshold is not None:
            return f"a probability above {self.threshold:g}"
        if self.costs == "balanced":
            return "the least mean error of the classes (balanced)"
        return "a probability above 1/2" if self.costs is None else f"the least cost, {_of(self.costs)} by class"

    def _require_both(self, positives: Tensor, negatives: Tensor) -> None:
        if not float(positives) or not float(negatives):
            raise DataError(
                f"the decision threshold for {self.describe()} needs both classes, and the split on which it is fitted "
                f"has {float(positives):g} positives and {float(negatives):g} negatives. Stratify the splits by class."
            )


def _of(numbers: Any) -> str:
    return ", ".join(f"{float(number):g}" for number in numbers)


def _given(value: float | None) -> float:
    assert value is not None  # noqa: S101 - one of the four is
    return value


def as_decisions(value: Decisions | Mapping[str, Any] | str | None) -> Decisions:
    """Convert what a user may give: None for a probability above 1/2, "balanced" for balanced costs.

    Raises:
        ConfigError: for any other value.
    """
    if value is None:
        return Decisions()
    if value == "balanced":
        return Decisions(costs="balanced")
    if isinstance(value, Mapping):
        return Decisions(**value)
    if not isinstance(value, Decisions):
        raise ConfigError(
            f"decisions must be 'balanced' or Decisions(costs=..., share=..., tpr=... or threshold=...), got {value!r}."
        )
    return value


@dataclass
class DecisionRule:
    """The decisions of a trained network, with the numbers that were found from the data.

    Args:
        decisions: how scores become decisions.
        costs: factors on the classes during training, from costs of errors or from class-balanced batches; empty if all
            were 1.
        division: score above which a decision is positive, see :meth:`Decisions.division`.
        calibration: a map from scores to probabilities; None if no samples were held out to fit it.
        known: whether the division is known: it is 0 if a score of 0 has a meaning, and is otherwise found on a split.
        proper: whether the objective makes scores log-odds, see :attr:`~fcco_lightning.objectives.Objective.proper`.
    """

    decisions: Decisions = Decisions()
    costs: list[float] = field(default_factory=list)
    division: float = 0.0
    calibration: Calibration | None = None
    known: bool = field(default=False, kw_only=True)
    proper: bool = field(default=True, kw_only=True)

    def fit(
        self, scores: Tensor, y: Tensor, weight: Tensor | None = None, *, classifies: bool, held_out: bool = False
    ) -> None:
        """Find the division on a split, and the calibration if its samples were not trained on.

        Args:
            scores: one score per sample, shape (n,).
            y: classes 0 and 1, shape (n,).
            weight: weights of the samples, shape (n,); None for equal weights.
            classifies: whether the objective gives positives a score above 0.
            held_out: whether the samples were held out of the training.
        """
        counted = y if weight is None else y[weight > 0]
        both = bool((counted == 1).any() & (counted == 0).any())
        self.known = True
        zero_decides = classifies or (self.proper and not self.decisions.asked)  # costs are in the scores, or unset
        if zero_decides and self.decisions.mistakes:
            self.division = 0.0
        elif self.decisions.share is not None or both:
            self.division = self.decisions.division(scores, y, weight)
        else:
            self.known = False
        self.calibration = calibrated(scores, y, weight) if held_out and both else None

    def decided(self, scores: Tensor, *, among_themselves: bool = False) -> Tensor:
        """Whether the decision for each sample is positive, shape (n,), bool.

        Args:
            scores: the scores of the samples, shape (n,).
            among_themselves: whether a budget is a fraction of these samples; otherwise the division that was found on
                another split is used, so that a decision does not depend on the other samples.
        """
        return self.decisions.decided(scores, self.division) if among_themselves else scores > self.division

    def probabilities(self, scores: Tensor) -> Tensor | None:
        """Probabilities of a positive, or of the classes; None if the scores do not determine them.

        With one score per sample they are those of the calibration, or without one the sigmoid of the score, if the
        objective makes scores log-odds.  The effect of costs on scores is removed.

        Args:
            scores: one score per sample, (n,), or one per sample and class, (n, C), to which the softmax is applied.
        """
        if scores.dim() == 2 and scores.shape[1] > 1:
            return self._log_odds(scores).softmax(1)
        if self.calibration is not None:
            return self.calibration(scores)
        return self._log_odds(scores).sigmoid() if self.proper else None

    def _log_odds(self, scores: Tensor) -> Tensor:
        """``s - log(costs[1] / costs[0])`` for a single score, ``s_c - log(costs[c])`` for several."""
        if not self.costs:
            return scores
        logs = scores.new_tensor(self.costs).log()
        return scores - (logs if scores.dim() == 2 and scores.shape[1] > 1 else logs[1] - logs[0])

    def state(self) -> dict[str, Any]:
        """The rule in plain values, from which :meth:`of` restores it."""
        settings = {name: value for name, value in asdict(self.decisions).items() if value is not None}
        if isinstance(settings.get("costs"), list | tuple):
            settings["costs"] = [float(cost) for cost in settings["costs"]]
        numbers = {name: value for name, value in asdict(self).items() if name != "decisions"}
        return {"asked": settings, **numbers}

    def take(self, other: "DecisionRule") -> None:
        """Copy the numbers of another rule, if it is for the same decisions."""
        if other.state()["asked"] == self.state()["asked"]:
            self.costs = list(other.costs)
            self.division = other.division
            self.known = other.known
            self.calibration = other.calibration

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "DecisionRule":
        """Restore the rule from its :meth:`state`."""
        numbers, stored = dict(state), state["calibration"]
        calibration = None if stored is None else calibration_of(stored)
        return cls(Decisions(**numbers.pop("asked")), **numbers | {"calibration": calibration})
