"""What decisions are for: which scores become a "yes", in training, constraints, reports and predictions alike."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from fcco_lightning.checks import inside, one_of, positive
from fcco_lightning.constraints.calibration import Calibration, calibrated, calibration_of
from fcco_lightning.constraints.score_scales import QuantileScores
from fcco_lightning.constraints.vacuity import masses
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import Quantity, SoftRate, binary_scores
from fcco_lightning.objectives.base import one_label_each
from fcco_lightning.outer import Range

_HARDLY = 1e-4  # what a negative counts among the positives: between two of these lies a way without a step


@dataclass(frozen=True)
class TopShare(Quantity):
    r"""``sigmoid((level of s - (1 - share)) / temperature)``: whether a sample is among the highest scores of all.

    A budget: its mean over everyone is about ``share`` whatever the scores, so means over groups say who gets it.
    Levels are those of :class:`QuantileScores` among the samples of the batch, so that batches estimate them with a
    bias that falls with their size.

    Args:
        share: of the samples that are selected, in (0, 1).
        temperature: unit of the level, > 0; the smaller, the closer to the hard rate.
        scale: how levels are measured.
        of: whose scores levels are measured among: of all samples, or of the positives, of which ``share`` are then
            selected beside the negatives with scores as high (a least true positive rate).

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
        """Between which shares of all samples of a split the selected are: a budget, or at least some positives."""
        if self.of == "all":
            return self.share, self.share
        total, positives = masses(one_label_each(batch, self) == 1, batch.get("weight"))
        return 0.0, self.share * positives / total


@dataclass(frozen=True)
class Decisions:
    r"""How scores become decisions, by what these are for; at most one of the four is given.

    *Costs* of the two mistakes enter where the network is trained: the loss of a sample of class c counts ``costs[c]``
    times, scaled so that the mean over the training samples is 1, and a sample is decided positive where its score is
    above 0.  With the logistic loss the score is then the log-odds plus ``log(costs[1] / costs[0])``, so that the
    decision is the one of least expected cost (Elkan, The foundations of cost-sensitive learning, 2001, eq. (2)).  A
    *threshold* p of the probability asks for the same decisions as the costs ``(p, 1 - p)``.  A *budget* or a *least
    rate* divides the scores where it is met, whatever the scores are: the training does not know of it, the constraints
    do.

    An objective of ranking, such as AUC, gives scores no meaning at 0.  There the division is found on the validation
    split, or without one on the training split: that of least cost, or where the budget or the rate is met.

    Args:
        costs: of deciding a sample of class 0, 1, ... wrongly, each > 0: ``(1, 10)`` where a positive that is missed
            costs as much as ten false alarms.  "balanced" takes ``n / (C n_c)`` of the n_c samples of class c, with
            which the balanced accuracy is maximised.
        share: of all samples that can be chosen, in (0, 1): those with the highest scores.
        tpr: least share of the positives that are to be found, in (0, 1).
        threshold: probability of a positive above which one is decided, in (0, 1).

    Raises:
        ConfigError: if several are given, or one is out of range.

    Example:
        >>> Decisions(threshold=0.2).class_costs(torch.tensor([50, 50])).tolist()  # for a probability above 1/5
        [0.4, 1.6]
    """

    costs: Literal["balanced"] | Sequence[float] | None = None
    share: float | None = None
    tpr: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        settings = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        if len(settings) > 1:
            raise ConfigError(f"decisions are for one thing, got {settings}. Leave all but one of them out.")
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
        """Whether anything was asked for; else a positive is decided where it is more probable than not."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    @property
    def mistakes(self) -> bool:
        """Whether decisions follow from what mistakes cost, and not from how many are to be made."""
        return self.share is None and self.tpr is None

    def class_costs(self, sizes: Tensor) -> Tensor:
        """What the loss of a sample of every class counts, shape (C,), float64; of mean 1 over the samples.

        Args:
            sizes: number of training samples of every class, shape (C,).

        Raises:
            DataError: if a class has no sample, where costs are balanced.
            ConfigError: if there are not as many costs as classes.
        """
        sizes = sizes.double()
        if self.costs == "balanced":
            if not bool((sizes > 0).all()):
                raise DataError(f"decisions='balanced': a class has no training sample, the classes have {_of(sizes)}.")
            return sizes.sum() / (len(sizes) * sizes)
        costs = torch.ones_like(sizes)
        if self.threshold is not None:
            costs = sizes.new_tensor([self.threshold, 1 - self.threshold])
        elif self.costs is not None:
            costs = sizes.new_tensor(self.costs)
        if len(costs) != len(sizes):
            raise ConfigError(f"decisions name {len(costs)} classes, and the data has {len(sizes)}. Give each a cost.")
        return costs * sizes.sum() / (costs @ sizes)

    def rate(self, smooth: Quantity) -> Quantity:
        """The smoothed decision of a sample, for constraints.

        Args:
            smooth: that of a score above 0, which is taken where decisions follow from costs.
        """
        if not isinstance(smooth, SoftRate) or smooth.threshold is not None or self.mistakes:
            return smooth
        return TopShare(self.share) if self.share is not None else TopShare(_given(self.tpr), of="positives")

    def division(self, scores: Tensor, y: Tensor, weight: Tensor | None = None) -> float:
        """Where to divide scores whose 0 means nothing: a sample is decided positive if its score is above it.

        That is the score above which a share of the samples, or of the positives, lies, or the one of least total cost.

        Args:
            scores: of a split, shape (n,).
            y: classes 0 and 1, shape (n,).
            weight: of the samples, shape (n,); None for equal ones.

        Raises:
            DataError: if the split has no positive and no negative sample, and these count.
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
        # scores are compared in their type, in which the middle of neighbours is one of them
        return float(middle if middle.to(dtype) < ranked[cut] else ranked[cut + 1])

    def decided(self, scores: Tensor, division: float = 0.0) -> Tensor:
        """Whether each sample is decided positive, shape (n,), bool.

        A budget is a share of the samples that are given; of equal scores at its end none is chosen.

        Args:
            scores: shape (n,).
            division: the score above which a positive is decided, where there is no budget.
        """
        if self.share is not None:
            division = self.division(scores, torch.zeros_like(scores))
        return scores > division

    def describe(self) -> str:
        """What decisions are for, in words."""
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
                f"decisions are for {self.describe()}, and the split that they are fitted on has {float(positives):g} "
                f"positives and {float(negatives):g} negatives. Divide the data by class (splits)."
            )


def _of(numbers: Any) -> str:
    return ", ".join(f"{float(number):g}" for number in numbers)


def _given(value: float | None) -> float:
    assert value is not None  # noqa: S101 - one of the four is
    return value


def as_decisions(value: Decisions | Mapping[str, Any] | str | None) -> Decisions:
    """Decisions as they may be written: None for a probability above 1/2, "balanced" for balanced costs.

    Raises:
        ConfigError: if it is something else.
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
    """Decisions as a trained network makes them: what they are for, with the numbers that follow from the data.

    Args:
        decisions: what they are for.
        costs: how much the classes counted in training, by what mistakes cost or by how often batches held them; none
            where all counted 1.
        division: score above which a positive is decided, see :meth:`Decisions.division`.
        calibration: from scores to probabilities; None where no samples were held out to find it.
        known: whether the division is known: it is 0 where a score of 0 has a meaning, and found on a split elsewhere.
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
        """Find the division on a split, and the probabilities if its samples were held out of the training.

        Args:
            scores: one for every sample, shape (n,).
            y: classes 0 and 1, shape (n,).
            weight: of the samples, shape (n,); None for equal ones.
            classifies: whether a score above 0 is what the objective gives to positives.
            held_out: whether no sample was trained on.
        """
        counted = y if weight is None else y[weight > 0]
        both = bool((counted == 1).any() & (counted == 0).any())
        self.known = True
        if classifies and self.decisions.mistakes:
            self.division = 0.0
        elif self.decisions.share is not None or both:
            self.division = self.decisions.division(scores, y, weight)
        else:
            self.known = False
        self.calibration = calibrated(scores, y, weight) if held_out and both else None

    def decided(self, scores: Tensor, *, among_themselves: bool = False) -> Tensor:
        """Whether each sample is decided positive, shape (n,), bool.

        Args:
            scores: shape (n,).
            among_themselves: whether a budget is a share of these samples; else they are compared with those of the
                split on which the division was found, so that a decision does not depend on who else is decided on.
        """
        return self.decisions.decided(scores, self.division) if among_themselves else scores > self.division

    def probabilities(self, scores: Tensor) -> Tensor | None:
        """Probabilities of a positive, or of the classes; None if the scores have none.

        One score for every sample has that of the calibration.  Without one it is taken for log-odds if the objective
        makes it so; what mistakes cost moves the scores, not the probabilities, and is taken back.

        Args:
            scores: one for every sample, or one for every sample and class, (n, C), of which the softmax is taken.
        """
        if scores.dim() == 2 and scores.shape[1] > 1:
            return self._log_odds(scores).softmax(1)
        if self.calibration is not None:
            return self.calibration(scores)
        return self._log_odds(scores).sigmoid() if self.proper else None

    def _log_odds(self, scores: Tensor) -> Tensor:
        """``s - log(costs[1] / costs[0])`` of one score, ``s_c - log(costs[c])`` of several."""
        if not self.costs:
            return scores
        logs = scores.new_tensor(self.costs).log()
        return scores - (logs if scores.dim() == 2 and scores.shape[1] > 1 else logs[1] - logs[0])

    def state(self) -> dict[str, Any]:
        """What :meth:`of` makes the rule of, in plain values."""
        settings = {name: value for name, value in asdict(self.decisions).items() if value is not None}
        if isinstance(settings.get("costs"), list | tuple):
            settings["costs"] = [float(cost) for cost in settings["costs"]]
        numbers = {name: value for name, value in asdict(self).items() if name != "decisions"}
        return {"asked": settings, **numbers}

    def take(self, other: "DecisionRule") -> None:
        """Take over the numbers of a rule for the same decisions."""
        if other.state()["asked"] == self.state()["asked"]:
            self.costs = list(other.costs)
            self.division = other.division
            self.known = other.known
            self.calibration = other.calibration

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "DecisionRule":
        """The rule of a :meth:`state`."""
        numbers, stored = dict(state), state["calibration"]
        calibration = None if stored is None else calibration_of(stored)
        return cls(Decisions(**numbers.pop("asked")), **numbers | {"calibration": calibration})
