"""The p-norm push: ranking that emphasises the top of the list, or the lowest positives."""

from typing import Any, Literal

import torch

from fcco_lightning.checks import greater, one_of
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.auc.pairwise import ExponentialPair, PairLoss
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.ranking.ranking import RankingObjective
from fcco_lightning.outer import OuterFunction, Power


class PNormPush(RankingObjective):
    r"""``(1/n_-) sum over negatives j of (mean over positives i of l(s_i - s_j))^p``.

    Source: Rudin, 2009; SOX paper, section 4.2, erratum SOX-3; ALEXR paper, App. B, erratum ALEXR-5.

    A larger p gives more weight to the negatives that are ranked above many positives, and thus pushes negatives out of
    the top of the list.  With ``push_over="positives"``, as in the ALEXR paper, the roles are exchanged, and the lowest
    positives are pushed up.

    If pair losses are convex in the weights, as with a linear network, the objective is convex.  Rows are float64.

    Args:
        p: exponent, > 1.
        push_over: class whose samples own the rows.
        loss: l, non-negative; the exponential one by default.

    Raises:
        ConfigError: if an argument is out of range.
    """

    dtype = torch.float64

    def __init__(
        self,
        p: float = 4.0,
        push_over: Literal["negatives", "positives"] = "negatives",
        loss: PairLoss | None = None,
    ) -> None:
        super().__init__(loss or ExponentialPair())
        self.outer: OuterFunction = Power(greater("p", p, 1.0))
        self.against_overflow = f"Lower p (it is {p:g}), of which inner values are raised to the power."
        self.owner = int(one_of("push_over", push_over, ("negatives", "positives")) == "positives")

    def measure(self, outputs: Any, batch: Columns) -> tuple[None, Rows]:
        """Mean losses of the samples that own rows against those of the other class in the batch."""
        owners, _, others = self._classes(batch, self.dtype)
        return None, Rows(self._means(self.loss, self.scores(outputs), owners, others), owners)
