"""Group distributionally robust objectives: worst cases over the risks of groups."""

import math
from abc import ABC
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fcco_lightning.ambiguity import AmbiguitySet, CappedSimplex, DivergencePenalty, KLPenalty
from fcco_lightning.checks import at_least, finite, one_of
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import SAMPLE_WEIGHT, Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives.base import (
    Objective,
    Partition,
    RowDomain,
    agreed,
    one_label_each,
    require,
)
from fcco_lightning.objectives.groups.best_threshold import better_threshold
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.quantities import CrossEntropyLoss, Quantity, means_by_part, one_number_each, parts_of
from fcco_lightning.objectives.ratios import warn_of_ratios
from fcco_lightning.outer import (
    ChiSquare,
    Hinge,
    KullbackLeibler,
    LogSumExp,
    Maximum,
    OuterFunction,
    Shifted,
    WorstCase,
)

_SETTLED = 2000  # groups; with more of them a settling step would cost more than the batch
_START = 0.5  # fraction of the epochs: at first delayed weights make the network oscillate between groups
_RISE = 0.5  # in units of R: about the noise of the mean of a few samples


class GroupObjective(Objective, ABC):
    r"""An objective on risks ``R_i(w) = E[l(w; z) | group i]``, estimated by mean losses of groups in a batch.

    If samples are not drawn uniformly, the mean is weighted by the column ``weight``.  For a group with samples in
    several strata (classes of balanced batches) it is then a ratio of two estimates, with a bias of the order of 1/B.

    Batches have a column ``group`` (B,), whole numbers in [0, n).  The row of a group without samples in the batch is
    unchanged.  The rows of a batch are all groups or, if there are far more groups than samples (n > 4 B), the group of
    every sample.

    Args:
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.

    Attributes:
        ambiguity: Q, if the objective is a worst case over a set of weights of the groups; otherwise None.
    """

    ambiguity: AmbiguitySet | None = None

    def __init__(self, loss: Quantity | None = None, num_groups: int | None = None) -> None:
        super().__init__()
        self.loss = loss or CrossEntropyLoss()
        self.num_groups: int | None = None
        if num_groups is not None:
            self._set_num_groups(at_least("num_groups", num_groups, 1))

    def adapt(self, datamodule: Any) -> None:
        known = agreed("num_groups", self.num_groups, datamodule, self)
        if known is not None:
            self._set_num_groups(known)

    def check(self, outputs: Any, batch: Columns) -> None:
        """Refuse group labels that are out of range, and what the loss would misread."""
        self.loss.check(outputs, batch)
        group, last = one_label_each(batch, self, "group"), self._known_groups() - 1
        rule = f"group labels must lie in 0..{last}"
        require((group >= 0) & (group <= last), group, rule, "Number the groups from 0.")
        if SAMPLE_WEIGHT in batch:
            warn_of_ratios(group == torch.unique(group).unsqueeze(1), batch, type(self).__name__)

    def _set_num_groups(self, num_groups: int) -> None:
        if self.ambiguity is not None:
            self.ambiguity.check(num_groups)
        self.num_groups = num_groups

    @property
    def tail(self) -> float | None:
        """The fraction alpha, if the objective is a mean over the worst alpha n groups; otherwise None."""
        return self.ambiguity.alpha if isinstance(self.ambiguity, CappedSimplex) else None

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every group."""
        return RowDomain(self._known_groups(), range=self.loss.range)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:
        """A batch measures group i if it holds a sample of it."""
        if "group" not in columns:
            return None
        return Partition(one_label_each(columns, self, "group"), self._known_groups())

    def _known_groups(self) -> int:
        if self.num_groups is None:
            raise ConfigError(
                "an objective on groups does not know the number of groups: use a datamodule with groups (of a table: "
                "--data.groups.by), or set num_groups."
            )
        return self.num_groups

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor | None, Rows | None]:
        """The risk R_i of every group, shape (n, 1), or of every sample's group, (B, 1)."""
        position, part, risks, total = self._risks(outputs, batch)
        if part is position:
            return None, Rows(risks.unsqueeze(1), total != 0)
        risks, total = risks.index_select(0, part), total.index_select(0, part)
        return None, Rows(risks.unsqueeze(1), total != 0, index=position)

    def _risks(self, outputs: Any, batch: Columns) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The group and the part of every sample, (B,) each; and the risk and the total weight of every part.

        A part is a group; if there are far more groups than samples, a group in the batch.
        """
        losses = one_number_each(self.loss, outputs, batch, self, "MultiTaskGroupDRO takes several.")
        position, weight = self._members(batch, losses)
        part, num_parts = parts_of(position, self._known_groups())
        risks, total = means_by_part(part, num_parts, weight * losses if "weight" in batch else losses, weight)
        return position, part, risks, total

    def _position(self, batch: Columns) -> Tensor:
        """The group of every sample, shape (B,), int64; labels out of range are clamped."""
        return one_label_each(batch, self, "group").long().clamp(0, self._known_groups() - 1)

    def _members(self, batch: Columns, losses: Tensor) -> tuple[Tensor, Tensor]:
        """The group of every sample, and its weight, shape (B,).

        On a GPU, which cannot raise for it, a label out of range gets the weight NaN.
        """
        group = one_label_each(batch, self, "group")
        weight = batch["weight"].to(losses.dtype) if "weight" in batch else torch.ones_like(group, dtype=losses.dtype)
        if group.device.type == "cpu":
            return group.long(), weight
        position = self._position(batch)
        return position, torch.where(position == group, weight, torch.nan)


class _MeanGroupRisk(GroupObjective):
    """``g_0(w)``: the unweighted mean of the risks of the groups in a batch, without inner functions."""

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor, None]:
        """The mean, a scalar; 0 of a batch that holds no group."""
        *_, risks, total = self._risks(outputs, batch)
        held = total != 0
        return torch.where(held, risks, 0.0).sum() / held.sum().clamp(min=1), None

    @property
    def in_words(self) -> str:
        return "the mean risk of the groups"


class _ShiftedGroupObjective(GroupObjective):
    """``min_c c + (1/n) sum_i h((R_i - c) / scale)``, a minimum over a threshold c.

    Rows remember the sampled risks R_i only; f(R) = h((R - c) / scale) uses the present c, whose gradient is exact
    given the rows.

    Args:
        base: the function h, convex and non-decreasing.
        scale: scale of the argument, in units of R, > 0.
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: initial value of c, which is then trained with the network; None to start at 0, and to use the
            minimiser if the objective is trained as recommended.
    """

    def __init__(
        self, base: OuterFunction, scale: float, loss: Quantity | None, num_groups: int | None, threshold: float | None
    ) -> None:
        self._base, self._scale = base, scale
        super().__init__(loss, num_groups)
        self._trained = threshold is not None
        start = 0.0 if threshold is None else finite("threshold", threshold)
        self.threshold = nn.Parameter(torch.tensor(float(start)))

    @property
    def settles(self) -> bool:  # type: ignore[override]
        """Whether c is set to the minimiser: unless an initial value was given, or there are too many rows."""
        return not self._trained and self._known_groups() <= _SETTLED

    @property
    def recommended_lam(self) -> float | None:  # type: ignore[override]
        """Smoothing with which a group's weight rises from 0 to its maximum over half a unit of R above c."""
        return None if self._base.smooth else _RISE / self._base.lipschitz

    @property
    def recommended_start(self) -> tuple[float, Objective] | None:  # type: ignore[override]
        """Half of the epochs on the mean of the groups' risks, for a non-smooth h, with which weights of groups jump.

        None for a smooth h, if c has an initial value, or if the loss has trained parameters.
        """
        trained = isinstance(self.loss, nn.Module) and any(p.requires_grad for p in self.loss.parameters())
        if trained or self._trained or self._base.smooth:  # parameters of the loss would not be kept
            return None
        return _START, _MeanGroupRisk(self.loss, self.num_groups)

    def settle(self, rows: Tensor, f: OuterFunction) -> None:
        """Set c near the minimiser for the known risks, see :func:`better_threshold`."""
        with torch.no_grad():
            self.threshold.copy_(better_threshold(rows, f, self.threshold))

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """The function f with the present threshold; a move to another device may replace the parameter."""
        return Shifted(self._base, self.threshold, self._scale)

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor | None, Rows | None]:
        """The threshold c, and the R_i as in :meth:`GroupObjective.measure`."""
        return self.threshold, super().measure(outputs, batch)[1]


class CVaRGroupDRO(_ShiftedGroupObjective):
    r"""The mean of the worst ``alpha n`` risks: ``min_s s + (1/n) sum_i (1/alpha) [R_i - s]_+``.

    Source: SONEX paper, eq. (10), ALEXR paper, F.1.

    s is trained with the network, without weight decay; ``--model.schedule.objective_lr`` sets its step size.  A
    trained s slows down short runs: it moves by about that step size per update, and groups with risks below it have no
    gradient.  So by default :class:`~fcco_lightning.FCCOModule` sets s to the minimiser for the remembered risks (of
    the smoothed function, if the algorithm smooths) after every update, at a cost of O(n).  This needs an algorithm
    that remembers the risks (SONEX, SONX, SOX, MSVR, ALEXR2), ``threshold=None``, and at most 2,000 groups.

    In an FCCOModule there are two more defaults (``pretrain=None`` switches off all three).  SONEX smooths f such that
    the weight of a group rises from 0 to its maximum while its risk rises from s to s + 1/2 (:attr:`recommended_lam` =
    alpha/2); with less smoothing the noise of small batches decides which groups have a gradient.  And the first half
    of the epochs trains on the mean of the groups' risks (not in a run of one epoch).  That mean is over the groups in
    a batch; if batches are not drawn by group, rare groups have less weight in it.  The reason: from random weights a
    network first shifts the scores of all samples together, so that groups of one label gain what those of the other
    lose, and weights that follow the risks with a delay oscillate between them.  Figures are in
    ``examples/benchmarks/results/groups_pay.md``.

    Primal-dual methods (OOA, SMD) use the equivalent ``max {sum_i q_i R_i : sum q = 1, 0 <= q_i <= 1/(alpha n)}``.

    Args:
        alpha: fraction of the groups, in [1/n, 1] (ALEXR paper: .1, .15; r = .15 in the SONEX paper).
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: initial value of s, which is then trained with the network; None to start at 0, or for the minimiser,
            see above.

    Raises:
        ConfigError: if alpha n < 1.
    """

    def __init__(
        self, alpha: float, loss: Quantity | None = None, num_groups: int | None = None, threshold: float | None = None
    ) -> None:
        self.ambiguity = CappedSimplex(alpha)
        super().__init__(Hinge(rho=1 / alpha), 1.0, loss, num_groups, threshold)

    def max_form(self) -> Objective:
        return GroupMaxForm(self.ambiguity, self.loss, self.num_groups)


class WorstGroupDRO(_ShiftedGroupObjective):
    r"""``max_i R_i``: :class:`CVaRGroupDRO` with ``alpha = 1/n`` (Sagawa et al., 2020; ALEXR paper, section 5.1).

    Args:
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: initial value of s, as in :class:`CVaRGroupDRO`.
    """

    def __init__(
        self, loss: Quantity | None = None, num_groups: int | None = None, threshold: float | None = None
    ) -> None:
        super().__init__(Hinge(rho=1.0), 1.0, loss, num_groups, threshold)

    def _set_num_groups(self, num_groups: int) -> None:
        self.ambiguity = CappedSimplex(1 / num_groups)
        self._base = Hinge(rho=float(num_groups))
        super()._set_num_groups(num_groups)

    def max_form(self) -> Objective:
        return GroupMaxForm(self.ambiguity, self.loss, self.num_groups)


class ChiSquareGroupDRO(_ShiftedGroupObjective):
    r"""``max_q <q, R> - (lam0/n) sum_i phi(n q_i)``, as ``min_c c + (1/n) sum_i lam0 phi*((R_i - c)/lam0)``.

    ``half=True``: phi(t) = (t-1)^2/2; ``half=False``: (t-1)^2 (ALEXR paper, section 5.1 and F.2; erratum ALEXR-3).

    Args:
        lam0: weight of the divergence, > 0: small is close to the worst group, large to the mean.
        half: normalisation of phi, see above.
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: initial value of c, as in :class:`CVaRGroupDRO`.
    """

    def __init__(
        self,
        lam0: float = 1.0,
        half: bool = True,
        loss: Quantity | None = None,
        num_groups: int | None = None,
        threshold: float | None = None,
    ) -> None:
        super().__init__(ChiSquare(lam0, half), lam0, loss, num_groups, threshold)


class KLGroupDRO(_ShiftedGroupObjective):
    r"""``max_q <q, R> - lam0 KL(q, 1/n) = lam0 log mean_i exp(R_i/lam0)``.

    As ``min_c c + (1/n) sum_i lam0 (exp((R_i - c)/lam0) - 1)``, phi(t) = t log t - t + 1 in eq. (8) of the ALEXR paper.

    Args:
        lam0: weight of the divergence, > 0: small is close to the worst group, large to the mean.
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: initial value of c, as in :class:`CVaRGroupDRO`; for a small lam0 it should be near the risks, so
            that the exponentials do not overflow.
    """

    def __init__(
        self,
        lam0: float = 1.0,
        loss: Quantity | None = None,
        num_groups: int | None = None,
        threshold: float | None = None,
    ) -> None:
        super().__init__(KullbackLeibler(lam0), lam0, loss, num_groups, threshold)
        self.lam0 = lam0

    def max_form(self) -> Objective:
        return GroupMaxForm(None, self.loss, self.num_groups, KLPenalty(self.lam0))


class GroupMaxForm(GroupObjective):
    r"""``max_{q in Q} sum_i q_i R_i(w) - nu D(q, 1/n)`` for algorithms that keep q: the max form of a group objective.

    Args:
        ambiguity: Q; None for all weights (the worst group).
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        penalty: ``nu D(q, 1/n)``; None for none.
    """

    def __init__(
        self,
        ambiguity: AmbiguitySet | None = None,
        loss: Quantity | None = None,
        num_groups: int | None = None,
        penalty: DivergencePenalty | None = None,
    ) -> None:
        self.ambiguity, self.penalty = ambiguity, penalty
        super().__init__(loss, num_groups)

    def _set_num_groups(self, num_groups: int) -> None:
        self.ambiguity = self.ambiguity or CappedSimplex(1 / num_groups)
        super()._set_num_groups(num_groups)

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """The worst case over Q."""
        return WorstCase(self.ambiguity or CappedSimplex(1.0))

    def max_form(self) -> Objective:
        return self


class MultiTaskGroupDRO(GroupObjective):
    r"""``(1/n) sum_i max_j R_ij(w)`` over n tasks i and m groups j, or with a soft maximum (ALEXR paper, App. B).

    ``R_ij = E[l_i(w; z) | group j]``.  The row of a task has width m and needs samples of all groups; otherwise the
    batch does not measure the task, so batches should contain every group.

    Args:
        num_tasks: n, >= 1.
        loss: returns (B, n), the losses of all tasks (:class:`MultiLabelLoss`, or another quantity with ``all_tasks``),
            or (B,), the loss of the task in the column ``task``.
        aggregate: "max", or "logsumexp": ``log sum_j exp(R_ij)``.
        num_groups: m; None takes it from the datamodule.
    """

    def __init__(
        self,
        num_tasks: int,
        loss: Quantity,
        aggregate: Literal["max", "logsumexp"] = "max",
        num_groups: int | None = None,
    ) -> None:
        one_of("aggregate", aggregate, ("max", "logsumexp"))
        self.num_tasks = at_least("num_tasks", num_tasks, 1)
        super().__init__(loss, num_groups)
        self.outer: OuterFunction = Maximum() if aggregate == "max" else LogSumExp()

    def _set_num_groups(self, num_groups: int) -> None:
        super()._set_num_groups(num_groups)
        self.width, self._first = num_groups, Known(num_groups * torch.arange(self.num_tasks))

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every task."""
        self._known_groups()
        return RowDomain(self.num_tasks, range=self.loss.range)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:
        """A batch measures a task if it holds a sample of every group (of that task, where samples have one)."""
        groups = super().subsets(columns)
        if groups is None:
            return None
        masks = [mask for (mask,) in groups]
        if self.loss.all_tasks or "task" not in columns:
            return [masks] * self.num_tasks
        tasks = one_label_each(columns, self, "task")
        return [[mask & (tasks == t) for mask in masks] for t in range(self.num_tasks)]

    def check(self, outputs: Any, batch: Columns) -> None:
        """Refuse groups and tasks that are out of range, and what the loss would misread."""
        super().check(outputs, batch)
        if "task" in batch and self.loss(outputs, batch).dim() == 1:
            task, last = one_label_each(batch, self, "task"), self.num_tasks - 1
            rule = f"tasks must lie in 0..{last}"
            require((task >= 0) & (task <= last), task, rule, "Number the tasks from 0, and check num_tasks.")

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor | None, Rows | None]:
        """The risks R_ij of every task and group, shape (n, m)."""
        losses, shape = self.loss(outputs, batch), (self.num_tasks, self.width)
        cell, weight = self._cells(losses, batch)
        weighted = (weight * losses if "weight" in batch else losses).reshape(-1)
        risks, total = means_by_part(cell.reshape(-1), math.prod(shape), weighted, weight.reshape(-1))
        return None, Rows(risks.view(shape), total.view(shape).amin(1) != 0)  # keeps NaN

    def _cells(self, losses: Tensor, batch: Columns) -> tuple[Tensor, Tensor]:
        """``m task + group`` of every loss, and its weight, NaN where the task or the group is out of range."""
        group, weight = self._members(batch, losses)
        if losses.dim() == 2:
            if losses.shape[1] != self.num_tasks:
                raise DataError(f"num_tasks={self.num_tasks}, but {type(self.loss).__name__} gave {losses.shape[1]}.")
            if "task" in batch and not self.loss.all_tasks:
                raise ConfigError(
                    f"{type(self.loss).__name__} gave the losses of all {self.num_tasks} tasks, although the batch has "
                    "a column `task`. Set `all_tasks = True` in that class, or rename the column."
                )
            return group.unsqueeze(1) + self._first.like(group), weight.unsqueeze(1).expand_as(losses)
        number = one_label_each(batch, self, "task")  # or use a loss with `all_tasks`
        task, position = number.clamp(0, self.num_tasks - 1), group.clamp(0, self.width - 1)
        known = (task == number) & (position == group)  # a group beyond the last would be the next task's first
        return position + self.width * task, torch.where(known, weight, torch.nan)
