"""Figures of tasks by groups: what is refused; the figures themselves are compared among the contracts."""

import pytest
import torch

from fcco_lightning import DataError, TaskEvaluation

OUTPUTS = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
BATCH = {"y": torch.tensor([[1, 1], [1, 1], [1, 1]]), "group": torch.tensor([0, 3, 3])}


def test_absent_groups_count_nowhere():
    """Task 0 is wrong on half of group 3, task 1 on all of group 0; there are no groups 1 and 2."""
    got = TaskEvaluation()(OUTPUTS, BATCH)
    assert {k: got[k] for k in ("task_accuracy/0", "task_accuracy/1", "worst_accuracy", "worst_group_accuracy")} == {
        "task_accuracy/0": 0.5,
        "task_accuracy/1": 0.0,
        "worst_accuracy": 0.0,
        "worst_group_accuracy": 0.25,
    }
    assert got["accuracy"] == pytest.approx(4 / 6)
    assert set(TaskEvaluation.bar) <= got.keys()


@pytest.mark.parametrize(
    ("outputs", "changes", "match"),
    [
        (OUTPUTS, {"y": BATCH["y"][:, :1]}, r"one shape \(n, T\), got \(3, 2\) and \(3, 1\)"),
        (OUTPUTS[:, 0], {"y": BATCH["y"][:, 0]}, r"one shape \(n, T\), got \(3,\) and \(3,\)"),
        (OUTPUTS, {"group": None}, r"need a column 'group'.*\['y'\].*--model.evaluation"),
        (OUTPUTS, {"y": None}, "need a column 'y'"),
    ],
)
def test_wrong_splits_are_refused(outputs, changes, match):
    batch = {name: column for name, column in (BATCH | changes).items() if column is not None}
    with pytest.raises(DataError, match=match):
        TaskEvaluation()(outputs, batch)
