"""Quantities of single samples: probabilities of wrong classes, hinge losses, and the exposure of items of lists."""

import math

import pytest
import torch
from sklearn.metrics import hinge_loss

from fcco_lightning import CostedLoss, CrossEntropyLoss, DataError, ErrorProbability, Exposure, HingeLoss
from fcco_lightning.objectives import SigmoidPair
from tests.plans import QueryBatches

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5], [0.0, 9.0, 0.0]], dtype=torch.float64)
CLASSES = {"y": torch.tensor([0, 2, 0])}
SCORES, LABELS = torch.tensor([0.3, -2.0, 1.5, 0.9]), torch.tensor([1, 0, 0, 1])


def test_wrong_classes_add_up_and_tend_to_the_error_rate():
    p = torch.exp(LOGITS) / torch.exp(LOGITS).sum(1, keepdim=True)
    expected = torch.stack([p[0, 1] + p[0, 2], p[1, 0] + p[1, 1], p[2, 1] + p[2, 2]])
    torch.testing.assert_close(ErrorProbability()(LOGITS, CLASSES), expected)
    torch.testing.assert_close(ErrorProbability(2.0)(2 * LOGITS, CLASSES), expected)
    hard = ErrorProbability(1e-3)(LOGITS, CLASSES)
    torch.testing.assert_close(hard, torch.tensor([0.0, 2 / 3, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_score_is_the_difference_of_two(shape):
    quantity, both = ErrorProbability(0.7), torch.stack([torch.zeros(4), SCORES], dim=1)
    found = quantity(SCORES.reshape(shape), {"y": LABELS})
    torch.testing.assert_close(found, quantity(both, {"y": LABELS}))


def test_a_score_of_zero_decides_for_class_0():
    """As everywhere: a positive is decided where the score is above 0."""
    labels = {"y": torch.tensor([0, 1, 0, 1])}
    assert ErrorProbability().decided(torch.tensor([0.0, 0.0, 1e-9, -1e-9]), labels).tolist() == [0, 1, 1, 1]
    assert ErrorProbability(1e3).decided(torch.zeros(4, 1), labels).tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_labels_of_two_classes_may_be_of_any_type(dtype):
    y = {"y": LABELS.to(dtype)}
    for quantity in (CrossEntropyLoss(), ErrorProbability()):
        quantity.check(LOGITS[:, :2].repeat(2, 1)[:4], y)
        quantity.check(SCORES, y)


@pytest.mark.parametrize("y", [LABELS, LABELS.float(), LABELS.bool()])
def test_costs_of_labels_of_width_one(y):
    loss = CostedLoss(CrossEntropyLoss(), torch.tensor([1.0, 3.0]))
    expected = CrossEntropyLoss()(SCORES, {"y": LABELS}) * (1 + 2 * LABELS)
    torch.testing.assert_close(loss(SCORES, {"y": y}), expected)
    torch.testing.assert_close(loss(SCORES.unsqueeze(1), {"y": y.unsqueeze(1)}), expected)


def test_the_mean_hinge_loss_is_that_of_scikit_learn():
    losses = HingeLoss()(SCORES, {"y": LABELS})
    assert losses.mean().item() == pytest.approx(hinge_loss(LABELS.numpy(), SCORES.numpy()))
    torch.testing.assert_close(HingeLoss(2.0)(SCORES, {"y": LABELS}), 2 * HingeLoss()(SCORES / 2, {"y": LABELS}))


# ---- the exposure of items

QUERY = torch.tensor([5, 2, 5, 5, 2, 9, 2, 5, 9, 2])
GRADE = torch.tensor([1, 0, 0, 2, 1, 0, 0, 0, 1, 3])
H = torch.randn(10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SPLIT = {"query": QUERY, "y": GRADE, "index": torch.arange(10)}
EXPOSURE = Exposure(SigmoidPair(0.5))


def by_loops():
    found = []
    for i, h in enumerate(H.tolist()):
        others = [other for j, other in enumerate(H.tolist()) if j != i and QUERY[j] == QUERY[i]]
        above = sum(1 / (1 + math.exp((h - other) / 0.5)) for other in others)
        found.append(1 / math.log2(2 + above))
    return torch.tensor(found, dtype=torch.float64)


def test_exposure_on_a_split():
    torch.testing.assert_close(EXPOSURE(H, SPLIT), by_loops())


def test_exposure_in_batches_that_hold_whole_lists_some_of_them_twice():
    plan = QueryBatches(QUERY, GRADE > 0, 2, 2, 2)
    columns = SPLIT | plan.columns()
    for index in plan.batches(0):
        found = EXPOSURE(H[index], {name: column[index] for name, column in columns.items()})
        torch.testing.assert_close(found, by_loops()[index])


@pytest.mark.parametrize(
    ("quantity", "outputs", "columns", "message"),
    [
        (
            ErrorProbability(),
            LOGITS,
            {"y": torch.tensor([0, 3, 1])},
            r"needs classes y of 0\.\.2 .*, got 3 at position 1",
        ),
        (HingeLoss(), SCORES, {"y": 2 * LABELS - 1}, "HingeLoss needs labels `y` of 0 and 1, got -1 at position 1"),
        (EXPOSURE, H, SPLIT, r"what part of the list it holds. Set `batches: QuerySampling`"),
    ],
    ids=["classes", "labels", "unknown draws"],
)
def test_batches_that_would_be_misread_are_refused(quantity, outputs, columns, message):
    with pytest.raises(DataError, match=message):
        quantity.check(outputs, columns)
