"""The evaluation that fits an objective, by its type."""

import math

import pytest
import torch

from fcco_lightning import (
    AUC,
    NDCG,
    AUCMargin,
    AveragePrecision,
    BinaryEvaluation,
    ConfigError,
    ContinualEvaluation,
    CoxPartialLikelihood,
    CrossEntropy,
    CVaRGroupDRO,
    CVaRPartialAUC,
    Evaluation,
    GlobalContrastive,
    GroupEvaluation,
    InfoNCE,
    KLGroupDRO,
    KLPartialAUC,
    ListNet,
    MeanAveragePrecision,
    MultiLabelLoss,
    MultiTaskGroupDRO,
    NeighbourEvaluation,
    NeighbourhoodComponents,
    RankingEvaluation,
    RecallAtK,
    RetrievalEvaluation,
    SurvivalEvaluation,
    TaskEvaluation,
    default_evaluation,
)


class NewObjective(CrossEntropy):
    """A kind of objective that the package does not know."""


class NewEvaluation(Evaluation):
    """Its own evaluation."""

    def __call__(self, outputs, batch):
        return {"size": float(len(outputs))}


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (AUC(), BinaryEvaluation),
        (CrossEntropy(), BinaryEvaluation),
        (NewObjective(), BinaryEvaluation),
        (CVaRGroupDRO(0.5), GroupEvaluation),
        (KLGroupDRO(), GroupEvaluation),
        (CVaRGroupDRO(0.5).max_form(), GroupEvaluation),
        (MultiTaskGroupDRO(2, MultiLabelLoss()), TaskEvaluation),
        (GlobalContrastive(), ContinualEvaluation),
        (InfoNCE(), ContinualEvaluation),
        (AUCMargin(), RankingEvaluation),
        (AveragePrecision(), RankingEvaluation),
        (MeanAveragePrecision(), RankingEvaluation),
        (CVaRPartialAUC(min_tpr=0.25), RankingEvaluation),
        (ListNet(), RetrievalEvaluation),
        (NDCG(), RetrievalEvaluation),
        (CoxPartialLikelihood(), SurvivalEvaluation),
        (NeighbourhoodComponents(), NeighbourEvaluation),
    ],
    ids=lambda part: type(part).__name__ if not isinstance(part, type) else "",
)
def test_the_type_of_the_objective_decides(objective, expected):
    assert type(default_evaluation(objective)) is expected


@pytest.mark.parametrize(
    ("objective", "merit"),
    [
        (AUC(), "auc"),
        (AUCMargin(), "auc"),
        (AveragePrecision(), "average_precision"),
        (CVaRPartialAUC(max_fpr=0.2), "partial_auc"),
        (CVaRPartialAUC(min_tpr=0.25), "partial_auc_tpr"),
        (CVaRPartialAUC(max_fpr=0.2, min_tpr=0.25), "two_way_partial_auc"),
        (KLPartialAUC(), "partial_auc"),
        (RecallAtK(7), "recall_at_7"),
        (CVaRGroupDRO(0.5), "worst_group_accuracy"),
        (NDCG(), "ndcg_10"),
    ],
    ids=lambda part: type(part).__name__ if not isinstance(part, str) else part,
)
def test_what_the_objective_stands_for_chooses(objective, merit):
    evaluation = default_evaluation(objective)
    assert evaluation.figure_of_merit() == merit
    assert evaluation.figure_of_merit("loss") == "loss"


def test_an_evaluation_of_several_figures_says_which_one_counts():
    evaluation = NewEvaluation()
    evaluation.bar = ("size", "loss")
    with pytest.raises(ConfigError, match=r"which of its figures \(size, loss\) counts"):
        evaluation.figure_of_merit()


def test_every_call_makes_a_new_one():
    """The names of the groups are set on it, so two modules must not share one."""
    assert default_evaluation(AUC()) is not default_evaluation(AUC())


def test_a_new_objective_registers_its_evaluation():
    class Registered(NewObjective):
        pass

    default_evaluation.register(Registered, lambda objective: NewEvaluation())
    assert isinstance(default_evaluation(Registered()), NewEvaluation)
    assert isinstance(default_evaluation(NewObjective()), BinaryEvaluation)


def test_what_is_no_objective_is_refused():
    with pytest.raises(ConfigError, match="no default evaluation for str, which is not an Objective"):
        default_evaluation("binary")


def test_a_split_without_a_positive_is_named_once():
    evaluation, scores = RankingEvaluation(top=[]), torch.tensor([0.1, 0.2, 0.3])
    with pytest.warns(UserWarning, match=r"\(NaN\): of 3 samples of a split none is positive"):
        assert math.isnan(evaluation(scores, {"y": torch.zeros(3)})["auc"])
    evaluation(scores, {"y": torch.zeros(3)})  # a second warning would be an error here
    several = RankingEvaluation(top=[])
    with pytest.warns(UserWarning, match=r"\(NaN\) for 1 of 2 labels, first '1': of 2 samples of a split"):
        several(torch.ones(2, 2), {"y": torch.tensor([[0, 1], [1, 1]])})
