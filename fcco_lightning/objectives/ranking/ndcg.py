"""Normalized discounted cumulative gain of whole lists, or of their first k ranks."""

from typing import Literal

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, greater, one_of
from fcco_lightning.errors import DataError
from fcco_lightning.objectives.auc.pairwise import PairLoss, SquaredHingePair
from fcco_lightning.objectives.base import Objective
from fcco_lightning.objectives.ranking.lists import ListObjective, Lists
from fcco_lightning.objectives.ranking.listwise import ListNet
from fcco_lightning.outer import DiscountedGain

_LARGEST_GRADE = 50  # with larger gains float64 loses small ones


class NDCG(ListObjective):
    r"""Minus the mean NDCG of the lists, with smooth ranks (the surrogate of SONG; Qiu et al., 2022).

    ``F(w) = -(1/Q) sum_q (1/Z_q) sum over items i of q of (2^y_i - 1) / log2(1 + r_i)``, where
    ``r_i = 1 + sum over j != i in the list of l(h_i - h_j)`` is the smooth rank of item i among *all* items of its
    list, and Z_q is the DCG of the ideal order.  Items with y_i > 0 own a row, which remembers r_i.  As r_i is a sum
    and not a mean, slope and curvature of the discount are bounded for any length of the list.

    With ``top_k`` only the first k ranks count: the discount is multiplied by the smooth cutoff ``1 / (1 + (r_i / (k +
    1/2))^sharpness)``, and Z_q is the DCG of the first k ranks.  As the cutoff is a function of the same rank, there is
    no second level. (K-SONG compares the score with a threshold lambda_q, the solution of a lower-level problem.)  The
    cutoff decreases as a power of the rank, so that items far below rank k still have a gradient; it becomes exact for
    a large sharpness.

    Ranks are sums over whole lists, so rows must be revisited often, or a batch must hold most of a list, and from
    random weights the surrogate is hard to optimise.  So it is better to spend the first three quarters of the epochs
    on :class:`ListNet`, with the same optimizer and schedule, which is the default of
    :class:`~fcco_lightning.FCCOModule` without constraints (``pretrain=None`` switches it off).  On 400 simulated lists
    of 40 items, 12 of them in a batch, 30 epochs then reached an NDCG@10 of .921 on new lists, as much as ListNet
    alone, but .866 from random weights (``examples/benchmarks/results/ranking.md``).  See :class:`ListObjective` for
    columns and batches.

    Args:
        loss: l; :class:`SquaredHingePair` by default, as in SONG; with :class:`SigmoidPair` with a small scale the
            smooth ranks approach the true ranks.
        top_k: k; None for all ranks.
        sharpness: exponent of the cutoff, >= 1.
        gain: "exponential" for 2^y - 1, "linear" for y.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def __init__(
        self,
        loss: PairLoss | None = None,
        top_k: int | None = None,
        sharpness: float = 2.0,
        gain: Literal["exponential", "linear"] = "exponential",
    ) -> None:
        super().__init__()
        self.loss = loss or SquaredHingePair()
        self.top_k = None if top_k is None else at_least("top_k", top_k, 1)
        self.sharpness = greater("sharpness", sharpness, 1.0, equal=True)
        self.gain = one_of("gain", gain, ("exponential", "linear"))
        self.outer = DiscountedGain(None if self.top_k is None else self.top_k + 0.5, self.sharpness, floor=1.0)

    @property
    def recommended_start(self) -> tuple[float, Objective]:  # type: ignore[override]
        """Three quarters of the epochs on ListNet."""
        return 0.75, ListNet()

    @property
    def instead(self) -> str | None:
        if self.recommended:
            return None
        return (
            "On simulated lists NDCG without a start by ListNet ended behind that in its own figure (.866 against "
            ".921). Where it had none, compare with the default (nothing said of pretrain and algorithm), or with "
            "--model.objective ListNet."
        )

    def importance(self, lists: Lists) -> Tensor:
        """The item's gain divided by the list's ideal DCG; 0 in lists without a relevant item.

        Raises:
            DataError: if a grade is too large for its gain.
        """
        gains = self.gains(lists.grade)
        rank = lists.rank()
        discounted = gains / torch.log2(1 + rank.double())
        if self.top_k is not None:
            discounted = discounted * (rank <= self.top_k)
        return gains / lists.total(discounted)[lists.of].clamp(min=torch.finfo(torch.float64).tiny)

    def gains(self, grade: Tensor) -> Tensor:
        """2^y - 1, or y."""
        if self.gain == "linear":
            return grade
        if float(grade.max()) > _LARGEST_GRADE:
            raise DataError(
                f"the gain 2^y - 1 is meant for grades of 0 to {_LARGEST_GRADE}, got {float(grade.max()):g}. Rescale "
                "`y`, or set gain='linear'."
            )
        return torch.expm1(grade * torch.log(torch.tensor(2.0, dtype=grade.dtype)))

    def compared(self, difference: Tensor, grades: Tensor, others: Tensor) -> Tensor:  # noqa: ARG002
        """l(h_i - h_j)."""
        return self.loss(-difference)
