"""Figures of tasks by groups, some of which are absent; other figures are compared among the contracts."""

import pytest
import torch

from fcco_lightning import TaskEvaluation

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
