"""Group distributionally robust objectives: a worst case over the risks of groups."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fcco_lightning.ambiguity import AmbiguitySet, CappedSimplex, KLPenalty, Penalty
from fcco_lightning.checks import at_least, finite, positive
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives.base import Objective, Partition, RowDomain
from fcco_lightning.objectives.quantities import CrossEntropyLoss, Quantity
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
from fcco_lightning.records import Arrangement, Columns, Inner, Usual


class GroupObjective(Objective, ABC):
    r"""Made of the risks ``R_i(w) = E[l(w; z) | group i]``, estimated by the mean loss of a group's samples in a batch.

    Where samples are not drawn uniformly the mean is weighted by the column ``weight``.  It is then a ratio of two
    estimates for a group that crosses strata (classes of balanced batches), with a bias of the order of 1/B.

    Batches carry ``group`` (B,), whole numbers in [0, n).  A group that a batch lacks keeps its row.

    Args:
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
    """

    distinct = True

    def __init__(self, loss: Quantity | None = None, num_groups: int | None = None) -> None:
        super().__init__()
        self.loss = loss or CrossEntropyLoss()
        self.num_groups: int | None = None
        if num_groups is not None:
            self._set_num_groups(at_least("num_groups", num_groups, 1))

    def adapt(self, datamodule: Any) -> None:
        known = getattr(datamodule, "num_groups", None)
        if self.num_groups is None and known is not None:
            self._set_num_groups(int(known))
        elif None not in (self.num_groups, known) and self.num_groups != known:
            raise ConfigError(
                f"num_groups={self.num_groups} of {type(self).__name__}, but the data has {known} groups. Leave "
                "num_groups out."
            )

    def check(self, outputs: Tensor, batch: Columns) -> None:
        self.loss.check(outputs, batch)

    def _set_num_groups(self, num_groups: int) -> None:
        self.num_groups = num_groups

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every group."""
        return RowDomain(self._known_groups(), range=self.loss.range)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:
        """A batch speaks of group i if it holds a sample of it."""
        groups = columns.get("group")
        return None if groups is None else Partition(groups, self._known_groups())

    def _known_groups(self) -> int:
        if self.num_groups is None:
            raise ConfigError(
                f"{type(self).__name__} does not know the number of groups: use a datamodule with groups, or set "
                "num_groups."
            )
        return self.num_groups

    @property
    def tail(self) -> float | None:
        """Alpha, where the objective is a mean over the worst alpha n groups."""
        return None

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        """The groups in the batch, which of them each sample is in, and what they count.

        Raises:
            DataError: if there is no column ``group``, or a label in it is out of range.
        """
        columns, batch = batch, on_host(batch)
        present, position, counts = self._groups(batch)
        weight = None
        if "weight" in batch:
            weight = batch["weight"].to(like.dtype)
            counts = weight.new_zeros(len(present)).index_add(0, position, weight)
            weight = send(weight, like)
        return Arrangement(present, (columns, send(position, like), send(counts.to(like.dtype), like), weight))

    def arrange_usual(self, batch: Columns, like: Tensor) -> Usual | None:
        """The same for a batch with samples of all groups."""
        if self.num_groups is None or "group" not in batch:
            return None
        group, last = batch["group"], self.num_groups - 1
        position = group.long().clamp(0, last)
        weight = batch["weight"].to(like.dtype) if "weight" in batch else None
        each = torch.ones_like(position, dtype=like.dtype) if weight is None else weight
        counts = each.new_zeros(self.num_groups).index_add(0, position, each)
        return Usual((batch, position, counts, weight), (counts > 0).all() & (group == position).all())

    def values(self, outputs: Any, given: Any) -> Tensor:
        """R_i of the groups in the batch, shape (b, 1), with graph.

        Raises:
            DataError: if there is not one loss per sample.
        """
        columns, position, counts, weight = given
        losses = self.loss(outputs, columns)
        if losses.dim() != 1:
            raise DataError(
                f"{type(self).__name__} needs one loss per sample, {type(self.loss).__name__} gave "
                f"{tuple(losses.shape)}. MultiTaskGroupDRO takes several."
            )
        losses = losses if weight is None else weight * losses
        sums = losses.new_zeros(counts.shape).index_add(0, position, losses)
        risks: Tensor = sums / counts
        return risks.unsqueeze(1)

    def _groups(self, batch: Columns) -> tuple[Tensor, Tensor, Tensor]:
        """The groups of a batch in increasing order, which of them each sample is in, and their sizes."""
        if "group" not in batch:
            raise DataError(f"{type(self).__name__} needs the column `group`, the batch has {sorted(batch)}.")
        present, position, counts = torch.unique(batch["group"], return_inverse=True, return_counts=True)
        if len(present) and self.num_groups is not None:
            low, high = int(present[0]), int(present[-1])
            if low < 0 or high >= self.num_groups:
                wrong = low if low < 0 else high
                raise DataError(
                    f"group labels must lie in 0..{self.num_groups - 1}, got {wrong} at batch position "
                    f"{int((batch['group'] == wrong).nonzero()[0])}. Number the groups from 0."
                )
        return present, position, counts


class _ShiftedGroupObjective(GroupObjective):
    """``c + (1/n) sum_i h((R_i - c) / scale)`` with a threshold c that is trained with the network.

    Rows remember the risks R_i, which are sampled.  The threshold is known: f(R) = h((R - c) / scale) takes it at its
    present value, and its gradient is exact given the rows.

    Args:
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: c to start from.
    """

    scale: float = 1.0

    def __init__(self, loss: Quantity | None, num_groups: int | None, threshold: float) -> None:
        super().__init__(loss, num_groups)
        self.threshold = nn.Parameter(torch.tensor(float(finite("threshold", threshold))))

    @property
    @abstractmethod
    def base(self) -> OuterFunction:
        """The function h."""

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """f, at the present threshold."""
        return Shifted(self.base, self.threshold, self.scale)

    def arrange_direct(self, batch: Columns, like: Tensor) -> tuple[()]:  # noqa: ARG002
        return ()

    def arrange_direct_usual(self, batch: Columns, like: Tensor) -> Usual:  # noqa: ARG002
        return Usual((), like.new_ones((), dtype=torch.bool))

    def direct_value(self, outputs: Any, given: Any) -> Tensor:  # noqa: ARG002
        return self.threshold

    def known_outer(self, given: Any) -> OuterFunction:  # noqa: ARG002
        return self.outer


class CVaRGroupDRO(_ShiftedGroupObjective):
    r"""Mean of the worst ``alpha n`` risks: ``min_s s + (1/n) sum_i (1/alpha) [R_i - s]_+``.

    Source: SONEX paper, eq. (10), ALEXR paper, F.1.

    s is trained with the network, without weight decay; ``--model.objective_lr`` sets its own step size.  Primal-dual
    methods (OOA, SMD) use the equal ``max {sum_i q_i R_i : sum q = 1, 0 <= q_i <= 1/(alpha n)}``.

    Args:
        alpha: share of the groups, in [1/n, 1] (ALEXR paper: .1, .15; r = .15 in the SONEX paper).
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: s to start from.

    Raises:
        ConfigError: if alpha n < 1.
    """

    def __init__(
        self, alpha: float, loss: Quantity | None = None, num_groups: int | None = None, threshold: float = 0.0
    ) -> None:
        self.ambiguity = CappedSimplex(alpha)
        super().__init__(loss, num_groups, threshold)

    @property
    def base(self) -> OuterFunction:
        """``[u]_+ / alpha``."""
        return Hinge(rho=1 / self.ambiguity.alpha)

    def _set_num_groups(self, num_groups: int) -> None:
        self.ambiguity.check(num_groups)
        super()._set_num_groups(num_groups)

    @property
    def tail(self) -> float | None:
        """Alpha."""
        return self.ambiguity.alpha

    def max_form(self) -> Objective:
        return GroupMaxForm(self.ambiguity, self.loss, self.num_groups)


class WorstGroupDRO(_ShiftedGroupObjective):
    r"""``max_i R_i``: :class:`CVaRGroupDRO` with ``alpha = 1/n`` (Sagawa et al., 2020; ALEXR paper, section 5.1).

    Args:
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: s to start from.
    """

    def __init__(self, loss: Quantity | None = None, num_groups: int | None = None, threshold: float = 0.0) -> None:
        super().__init__(loss, num_groups, threshold)

    @property
    def base(self) -> OuterFunction:
        """``n [u]_+``."""
        return Hinge(rho=float(self.num_groups or 1))

    @property
    def tail(self) -> float | None:
        """1/n."""
        return 1 / (self.num_groups or 1)

    def max_form(self) -> Objective:
        return GroupMaxForm(None, self.loss, self.num_groups)


class ChiSquareGroupDRO(_ShiftedGroupObjective):
    r"""``max_q <q, R> - (lam0/n) sum_i phi(n q_i)``, as ``min_c c + (1/n) sum_i lam0 phi*((R_i - c)/lam0)``.

    ``half=True``: phi(t) = (t-1)^2/2; ``half=False``: (t-1)^2 (ALEXR paper, section 5.1 and F.2; erratum ALEXR-3).

    Args:
        lam0: weight of the divergence, > 0: small is close to the worst group, large to the mean.
        half: which normalisation.
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: c to start from.
    """

    def __init__(
        self,
        lam0: float = 1.0,
        half: bool = True,
        loss: Quantity | None = None,
        num_groups: int | None = None,
        threshold: float = 0.0,
    ) -> None:
        super().__init__(loss, num_groups, threshold)
        self._base = ChiSquare(lam0, half)
        self.scale = positive("lam0", lam0)

    @property
    def base(self) -> OuterFunction:
        """``lam0 phi*(u)``."""
        return self._base


class KLGroupDRO(_ShiftedGroupObjective):
    r"""``max_q <q, R> - lam0 KL(q, 1/n) = lam0 log mean_i exp(R_i/lam0)``.

    As ``min_c c + (1/n) sum_i lam0 (exp((R_i - c)/lam0) - 1)``, phi(t) = t log t - t + 1 in eq. (8) of the ALEXR paper.

    Args:
        lam0: weight of the divergence, > 0: small is close to the worst group, large to the mean.
        loss: l; cross-entropy by default.
        num_groups: n; None takes it from the datamodule.
        threshold: c to start from; with a small lam0 one near the risks, so that the exponentials do not overflow.
    """

    def __init__(
        self,
        lam0: float = 1.0,
        loss: Quantity | None = None,
        num_groups: int | None = None,
        threshold: float = 0.0,
    ) -> None:
        super().__init__(loss, num_groups, threshold)
        self._base = KullbackLeibler(lam0)
        self.scale = positive("lam0", lam0)

    @property
    def base(self) -> OuterFunction:
        """``lam0 (exp(u) - 1)``."""
        return self._base

    def max_form(self) -> Objective:
        return GroupMaxForm(None, self.loss, self.num_groups, KLPenalty(self.scale))


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
        penalty: Penalty | None = None,
    ) -> None:
        self.ambiguity, self.penalty = ambiguity, penalty
        super().__init__(loss, num_groups)
        self.outer: OuterFunction = WorstCase(ambiguity or CappedSimplex(1 / (num_groups or 1)))

    def _set_num_groups(self, num_groups: int) -> None:
        if self.ambiguity is not None:
            self.ambiguity.check(num_groups)
        super()._set_num_groups(num_groups)
        self.outer = WorstCase(self.ambiguity or CappedSimplex(1 / num_groups))

    @property
    def tail(self) -> float | None:
        """Of Q, if it is a capped simplex."""
        ambiguity = self.ambiguity or CappedSimplex(1 / (self.num_groups or 1))
        return ambiguity.alpha if isinstance(ambiguity, CappedSimplex) else None

    def max_form(self) -> Objective:
        return self


class MultiTaskGroupDRO(GroupObjective):
    r"""``(1/n) sum_i max_j R_ij(w)`` over n tasks i and m groups j, or with a soft maximum (ALEXR paper, App. B).

    ``R_ij = E[l_i(w; z) | group j]``.  A task's row has width m and needs all groups: a task of which a batch lacks a
    group is left out of that batch, so let the sampler draw every group.

    Args:
        num_tasks: n, >= 1.
        loss: gives (B, n), the losses of all tasks (:class:`MultiLabelLoss`), or (B,), the loss of the task that the
            column ``task`` names.
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
        if aggregate not in ("max", "logsumexp"):
            raise ConfigError(f"aggregate must be 'max' or 'logsumexp', got {aggregate!r}.")
        self.num_tasks = at_least("num_tasks", num_tasks, 1)
        super().__init__(loss, num_groups)
        self.outer: OuterFunction = Maximum() if aggregate == "max" else LogSumExp()

    def _set_num_groups(self, num_groups: int) -> None:
        super()._set_num_groups(num_groups)
        self.width = num_groups

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every task."""
        self._known_groups()
        return RowDomain(self.num_tasks, range=self.loss.range)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:
        """A batch speaks of a task if it holds a sample of every group (of that task, where samples have one)."""
        groups = super().subsets(columns)
        if groups is None:
            return None
        tasks = columns.get("task")
        every = [mask for (mask,) in groups]
        return [every if tasks is None else [m & (tasks == t) for m in every] for t in range(self.num_tasks)]

    def inner(self, outputs: Any, batch: Columns) -> Inner:
        losses, groups, batch = self.loss(outputs, batch), self.width, on_host(batch)
        self._groups(batch)  # checks their labels
        if losses.dim() == 2:
            if losses.shape[1] != self.num_tasks:
                raise DataError(f"num_tasks={self.num_tasks}, but {type(self.loss).__name__} gave {losses.shape[1]}.")
            cell = batch["group"].unsqueeze(1) + groups * torch.arange(self.num_tasks)
        else:
            cell = batch["group"] + groups * self._task(batch)
        weight = torch.ones(losses.shape, dtype=losses.dtype)
        if "weight" in batch:
            weight = weight * batch["weight"].to(losses.dtype).view(-1, *[1] * (losses.dim() - 1))
        cell, shape = cell.reshape(-1), (self.num_tasks, groups)
        totals = weight.new_zeros(self.num_tasks * groups).index_add(0, cell, weight.reshape(-1)).view(shape)
        weighted, zeros = (send(weight, losses) * losses).reshape(-1), losses.new_zeros(self.num_tasks * groups)
        sums = zeros.index_add(0, send(cell, losses), weighted).view(shape)
        complete = (totals > 0).all(1).nonzero().squeeze(1)
        return Inner(complete, sums.index_select(0, send(complete, sums)) / send(totals[complete], sums))

    def _task(self, batch: Columns) -> Tensor:
        if "task" not in batch:
            raise DataError(
                f"one loss per sample needs the column `task`, the batch has {sorted(batch)}. Or use a loss that gives "
                "the losses of all tasks, such as MultiLabelLoss."
            )
        task = batch["task"]
        if len(task) and not (int(task.min()) >= 0 and int(task.max()) < self.num_tasks):
            raise DataError(f"tasks must lie in 0..{self.num_tasks - 1}, got {int(task.min())}..{int(task.max())}.")
        return task
