"""The default evaluation of every type of objective."""

from collections.abc import Callable
from functools import singledispatch
from typing import Any

from fcco_lightning import objectives
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.evaluation.classes import ClassEvaluation, NeighbourEvaluation
from fcco_lightning.evaluation.continual import ContinualEvaluation
from fcco_lightning.evaluation.groups import GroupEvaluation, TaskEvaluation
from fcco_lightning.evaluation.numbers import NumberEvaluation, ValueEvaluation
from fcco_lightning.evaluation.ranking import BagEvaluation, BinaryEvaluation, RankingEvaluation
from fcco_lightning.evaluation.retrieval import RetrievalEvaluation
from fcco_lightning.evaluation.survival import SurvivalEvaluation
from fcco_lightning.objectives import Objective


@singledispatch
def default_evaluation(objective: Any) -> Evaluation:
    """Return the evaluation that fits an objective, chosen by the objective's type.

    An objective whose type is not registered has :class:`BinaryEvaluation`, which refuses outputs that are not one
    score per sample.  A new kind of objective registers its own evaluation::

        @default_evaluation.register
        def _(objective: MyObjective) -> Evaluation:
            return MyEvaluation()

    Args:
        objective: The objective.

    Raises:
        ConfigError: if it is not an :class:`~fcco_lightning.objectives.Objective`.

    Example:
        >>> from fcco_lightning.objectives import AUC, WorstGroupDRO
        >>> [type(default_evaluation(objective)).__name__ for objective in (AUC(), WorstGroupDRO())]
        ['BinaryEvaluation', 'GroupEvaluation']
    """
    raise ConfigError(
        f"there is no default evaluation for {type(objective).__name__}, which is not an Objective. Choose one with "
        "--model.evaluation."
    )


def _for(merit: str, evaluation: Evaluation) -> Evaluation:
    """Set the figure of merit: the figure of which the objective is a surrogate."""
    evaluation.merit = merit
    return evaluation


def _group_evaluation(objective: objectives.GroupObjective) -> Evaluation:
    """The tail of groups has the size of the objective's, if the objective is about a share of the groups."""
    return GroupEvaluation() if objective.tail is None else GroupEvaluation(objective.tail)


def _region_evaluation(objective: objectives.CVaRPartialAUC) -> Evaluation:
    """Partial areas in the objective's region; a side that the objective leaves open has the default limit."""
    usual = RankingEvaluation()
    max_fpr = objective.max_fpr if objective.max_fpr < 1 else usual.max_fpr
    one_sided = "partial_auc" if objective.max_fpr < 1 else "partial_auc_tpr"
    merit = "two_way_partial_auc" if objective.max_fpr < 1 and objective.min_tpr else one_sided
    return _for(merit, RankingEvaluation(max_fpr, objective.min_tpr or usual.min_tpr))


def _list_evaluation(objective: objectives.NDCG) -> Evaluation:
    """NDCG with the objective's gain and, if the objective has a number of first places, with that number."""
    places = (5, 10) if objective.top_k is None else (objective.top_k,)
    return RetrievalEvaluation(places, objective.gain)


_BY_TYPE: dict[Any, Callable[[Any], Evaluation]] = {
    Objective: lambda _: BinaryEvaluation(),
    objectives.GroupObjective: _group_evaluation,
    objectives.MultiTaskGroupDRO: lambda _: TaskEvaluation(),
    objectives.RankingObjective: lambda _: RankingEvaluation(),
    objectives.AUCMargin: lambda _: _for("auc", RankingEvaluation()),
    objectives.KLPartialAUC: lambda objective: _for(
        "two_way_partial_auc" if objective.tau else "partial_auc", RankingEvaluation()
    ),
    objectives.CVaRPartialAUC: _region_evaluation,
    objectives.RecallAtK: lambda objective: _for(f"recall_at_{objective.k}", RankingEvaluation(top=[objective.k])),
    objectives.MeanAveragePrecision: lambda objective: RankingEvaluation(missing=objective.missing),
    objectives.MultiInstanceAUC: lambda objective: _for("auc", BagEvaluation(objective.pooling)),
    objectives.GlobalContrastive: lambda _: ContinualEvaluation(),
    objectives.InfoNCE: lambda _: ContinualEvaluation(),
    objectives.LatentVariable: lambda _: ClassEvaluation(),
    objectives.SampledSoftmax: lambda _: ClassEvaluation(),
    objectives.ViewContrastive: lambda _: NeighbourEvaluation(),
    objectives.NeighbourhoodComponents: lambda _: NeighbourEvaluation(distance="euclidean"),
    objectives.ListObjective: lambda _: RetrievalEvaluation(),
    objectives.NDCG: _list_evaluation,
    objectives.CoxPartialLikelihood: lambda _: SurvivalEvaluation(),
    objectives.SquaredError: lambda _: NumberEvaluation(),
    objectives.BellmanResidual: lambda objective: ValueEvaluation(objective.loss.discount),
}
for _kind, _make in _BY_TYPE.items():
    default_evaluation.register(_kind, _make)
