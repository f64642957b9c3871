"""Figures of bags of instances that are ranked by a pooled score."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.evaluation.pictures.style import History
from fcco_lightning.evaluation.ranking import RankingEvaluation
from fcco_lightning.evaluation.samples import require_columns
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import Pooling
from fcco_lightning.objectives.pooling import bags_of


class BagEvaluation(Evaluation):
    """The figures and the picture of :class:`RankingEvaluation` for bags, each with the pooled score of its instances.

    The outputs are those that the pooling reads, with first dimension n, the number of instances.  The column ``bag``
    (n,) names the bag of an instance, the column ``y`` (n,) contains the label of that bag, 0 or 1.  A bag is pooled
    over all of its instances in the split.

    Args:
        pooling: The pooling, that of the objective.
        figures: The evaluation of the bags; :class:`RankingEvaluation` with its defaults if it is None.
    """

    separable = False

    def __init__(self, pooling: Pooling, figures: RankingEvaluation | None = None) -> None:
        self.pooling, self.figures = pooling, figures or RankingEvaluation()
        self.bar, self.merit = self.figures.bar, self.figures.merit

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """Compute the figures.

        Raises:
            DataError: if the outputs do not fit the pooling, or ``bag`` or ``y`` is missing or wrong.
        """
        return self.figures(*self._bags(outputs, batch))

    def draw(self, history: History, final: Mapping[str, tuple[Tensor, Columns]], folder: Path) -> list[Path]:
        """Draw ``constraints.png`` and ``ranking.png``."""
        return self.figures.draw(history, {name: self._bags(*split) for name, split in final.items()}, folder)

    def _bags(self, outputs: Tensor, batch: Columns) -> tuple[Tensor, Columns]:
        """The pooled scores and the labels of the bags."""
        require_columns(batch, "bag", "y", figures="figures of bags")
        bags = bags_of(batch, self)
        scores = self.pooling.score(bags.means(self.pooling.terms(outputs)))
        return scores, {"y": bags.labels(batch, self)}
