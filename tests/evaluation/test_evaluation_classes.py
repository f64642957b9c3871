"""The report for three or more classes, against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_score, recall_score

from fcco_lightning import ClassEvaluation

N, C = 400, 4


def split():
    rng = np.random.default_rng(0)
    y = rng.integers(0, C - 1, N)  # none is of the last class
    outputs = rng.normal(size=(N, C)) + 1.5 * np.eye(C)[y]
    return torch.from_numpy(outputs), {"y": torch.from_numpy(y)}, torch.from_numpy(rng.uniform(0, 2, N))


@pytest.mark.parametrize("weighted", [False, True])
def test_every_class_is_described_as_scikit_learn_does(weighted):
    outputs, columns, weight = split()
    evaluation = ClassEvaluation()
    evaluation.class_names = ["a", "b", "c", "d"]
    records = evaluation.details(outputs, columns | ({"weight": weight} if weighted else {}))["classes"]
    y, decided = columns["y"].numpy(), outputs.argmax(1).numpy()
    by = {"sample_weight": weight.numpy() if weighted else None}
    recall = recall_score(y, decided, average=None, labels=range(C), zero_division=np.nan, **by)
    precision = precision_score(y, decided, average=None, labels=range(C), zero_division=np.nan, **by)
    missed = confusion_matrix(y, decided, labels=range(C), **by) * (1 - np.eye(C))
    assert [one["recall"] for one in records[:-1]] == sorted(one["recall"] for one in records[:-1])
    for one in records:
        c = "abcd".index(one["class"])
        assert one["samples"] == (y == c).sum()
        assert [one["recall"], one["precision"]] == pytest.approx([recall[c], precision[c]], nan_ok=True)
        assert one["mistaken for"] == ("abcd"[missed[c].argmax()] if c < 3 else None)
    assert records[-1]["class"] == "d"
    assert math.isnan(records[-1]["recall"])


def test_two_classes_are_described_with_their_decisions():
    outputs, columns, _ = split()
    binary = {"y": columns["y"].clamp(max=1)}
    assert ClassEvaluation().details(outputs[:, :2], binary) == {}
    assert ClassEvaluation().details(outputs[:, :1], binary) == {}
    assert ClassEvaluation().details(outputs[:, 0], binary) == {}
