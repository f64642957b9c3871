"""The default evaluation of an objective."""

import math

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fcco_lightning import (
    AUC,
    NDCG,
    AUCMargin,
    AveragePrecision,
    BinaryEvaluation,
    ClassEvaluation,
    ConfigError,
    ContinualEvaluation,
    CoxPartialLikelihood,
    CrossEntropy,
    CVaRGroupDRO,
    CVaRPartialAUC,
    DataError,
    Evaluation,
    FCCOModule,
    GlobalContrastive,
    GroupEvaluation,
    IndexedDataset,
    InfoNCE,
    KLGroupDRO,
    KLPartialAUC,
    MeanAveragePrecision,
    MultiLabelLoss,
    MultiTaskGroupDRO,
    NeighbourEvaluation,
    NeighbourhoodComponents,
    NumberEvaluation,
    RankingEvaluation,
    RecallAtK,
    RetrievalEvaluation,
    SquaredError,
    SurvivalEvaluation,
    TaskEvaluation,
    ValueEvaluation,
    default_evaluation,
)
from fcco_lightning.evaluation import direction
from tests.conftest import QUIET


class NewObjective(CrossEntropy):
    """A kind of objective that the package does not know."""


class NewEvaluation(Evaluation):
    """Its own evaluation."""

    def __call__(self, outputs, batch):
        return {"size": float(len(outputs))}


@pytest.mark.parametrize(
    ("objective", "expected", "merit"),
    [
        (AUC(), BinaryEvaluation, "auc"),
        (CrossEntropy(), BinaryEvaluation, "auc"),
        (NewObjective(), BinaryEvaluation, "auc"),
        (CVaRGroupDRO(0.5), GroupEvaluation, "worst_group_accuracy"),
        (CVaRGroupDRO(0.5).max_form(), GroupEvaluation, "worst_group_accuracy"),
        (MultiTaskGroupDRO(2, MultiLabelLoss()), TaskEvaluation, "worst_group_accuracy"),
        (GlobalContrastive(), ContinualEvaluation, "target_accuracy"),
        (InfoNCE(), ContinualEvaluation, "target_accuracy"),
        (AUCMargin(), RankingEvaluation, "auc"),
        (AveragePrecision(), RankingEvaluation, "average_precision"),
        (MeanAveragePrecision(), RankingEvaluation, "average_precision"),
        (CVaRPartialAUC(max_fpr=0.2), RankingEvaluation, "partial_auc"),
        (CVaRPartialAUC(min_tpr=0.25), RankingEvaluation, "partial_auc_tpr"),
        (CVaRPartialAUC(max_fpr=0.2, min_tpr=0.25), RankingEvaluation, "two_way_partial_auc"),
        (KLPartialAUC(), RankingEvaluation, "partial_auc"),
        (KLPartialAUC(tau=1.0), RankingEvaluation, "two_way_partial_auc"),
        (RecallAtK(7), RankingEvaluation, "recall_at_7"),
        (NDCG(), RetrievalEvaluation, "ndcg_10"),
        (NDCG(top_k=3), RetrievalEvaluation, "ndcg_3"),
        (CoxPartialLikelihood(), SurvivalEvaluation, "c_index"),
        (NeighbourhoodComponents(), NeighbourEvaluation, "knn_accuracy"),
    ],
    ids=lambda part: part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__),
)
def test_the_type_of_the_objective_decides(objective, expected, merit):
    evaluation = default_evaluation(objective)
    assert type(evaluation) is expected
    assert evaluation.figure_of_merit() == merit
    assert evaluation.figure_of_merit("loss") == "loss"


@pytest.mark.parametrize("gain", ["exponential", "linear"])
def test_ndcg_is_reported_with_the_gain_that_is_trained(gain):
    assert default_evaluation(NDCG(gain=gain)).gain == gain


def test_an_evaluation_of_several_figures_says_which_one_counts():
    evaluation = NewEvaluation()
    evaluation.bar = ("size", "loss")
    with pytest.raises(ConfigError, match=r"no figure of merit \(it shows size, loss\)"):
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


@pytest.mark.parametrize(
    ("objective", "alpha"),
    [(CVaRGroupDRO(0.5), 0.5), (CVaRGroupDRO(0.5).max_form(), 0.5), (KLGroupDRO(1.0), 0.1)],
)
def test_as_many_groups_are_the_worst_ones_as_for_the_objective(objective, alpha):
    assert default_evaluation(objective).alpha == alpha


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.parametrize(
    ("objective", "outputs", "said"),
    [
        (CrossEntropy(), 2, r"BinaryEvaluation needs one score per sample.*\(8, 2\).*ClassEvaluation"),
        (CrossEntropy(), 3, r"BinaryEvaluation needs one score per sample.*\(8, 3\).*ClassEvaluation"),
        (AUC(), 2, r"need one score per sample, shape \(B,\) or \(B, 1\), got \(8, 2\)"),
        (SquaredError(), 3, "needs a number `y` for every output"),
    ],
)
def test_outputs_of_which_there_are_no_figures_are_refused_at_the_first_batch(objective, outputs, said, tmp_path):
    data = IndexedDataset(TensorDataset(torch.randn(24, 3), torch.arange(24) % 2))
    loader, test = DataLoader(data, 8, shuffle=True), DataLoader(data, 8)

    def fit(**changes):
        module = FCCOModule(nn.Linear(3, outputs), objective, **changes)
        trainer = Trainer(**QUIET, max_epochs=1, accelerator="cpu", default_root_dir=tmp_path)
        try:
            trainer.fit(module, loader, test)
        finally:
            updates.append(trainer.global_step)
        return trainer.callback_metrics

    updates = []
    with pytest.raises(DataError, match=said):
        fit()
    assert updates == [0]
    if isinstance(objective, CrossEntropy):
        assert 0 < fit(evaluation=ClassEvaluation())["val_loss"] < 5


@pytest.mark.parametrize("evaluation", [NumberEvaluation(), SurvivalEvaluation(), ValueEvaluation()])
def test_of_errors_the_smaller_one_is_better(evaluation):
    """Of every figure: a model that knows what is to be predicted has the better one."""
    n = 40
    event, reward = torch.ones(n, dtype=torch.int64), torch.zeros(n)
    y = torch.randn(n, generator=torch.Generator().manual_seed(0))
    columns = {"y": y, "time": (-y).exp(), "event": event, "reward": reward, "value": 0 * y}
    columns["group"] = torch.arange(n) % 5
    best = torch.zeros(n, 2) if isinstance(evaluation, ValueEvaluation) else y
    worst = torch.stack([y, -y], dim=1) if isinstance(evaluation, ValueEvaluation) else -y
    good, bad = evaluation(best, columns), evaluation(worst, columns)
    assert all((good[name] > bad[name]) == (direction(name) == "max") for name in good), (good, bad)


def test_a_share_of_what_is_satisfied_is_no_loss():
    assert direction("satisfied_loss") == direction("satisfied") == "max"
    assert direction("group_accuracy/loss") == "max"
    assert direction("worst_loss_change") == direction("loss_change/gap") == "min"
