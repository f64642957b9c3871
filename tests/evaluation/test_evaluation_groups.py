"""Figures by group of a split against numpy and scikit-learn."""

import math

import pytest
import torch

from fcco_lightning import GroupEvaluation
from fcco_lightning.evaluation.base import correct_and_loss
from tests.evaluation.reference import by_group, group_figures, split

# ------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize(("groups", "alpha"), [(1, 0.1), (2, 0.1), (7, 0.3), (7, 1.0), (30, 0.25)])
def test_figures_as_sklearn(groups, alpha, classes, pooled):
    outputs, batch = split(groups, classes)
    got = GroupEvaluation(alpha, most_groups=0, pooled=pooled)(outputs, batch)
    assert got == pytest.approx(group_figures(outputs, batch, alpha, pooled), rel=1e-9)


def test_a_column_of_scores_is_one_score():
    outputs, batch = split(3)
    assert GroupEvaluation()(outputs.unsqueeze(1), batch) == GroupEvaluation()(outputs, batch)


@pytest.mark.parametrize(("most", "logged"), [(2, 0), (3, 6), (32, 6)])
def test_groups_are_logged_if_they_are_few(most, logged):
    assert sum("/" in name for name in GroupEvaluation(most_groups=most)(*split(3))) == logged


def test_a_split_without_some_groups():
    outputs, batch = split(4)
    kept = (batch["group"] != 0) & (batch["group"] != 2)
    outputs, batch = outputs[kept], {name: column[kept] for name, column in batch.items()}
    evaluation = GroupEvaluation(alpha=0.5)
    evaluation.group_names = ["a", "b", "c", "d", "e"]
    got = evaluation(outputs, batch)
    scalars = {k: v for k, v in got.items() if "/" not in k}
    assert scalars == pytest.approx(
        group_figures(outputs, batch, 0.5), rel=1e-9
    )  # alpha of the two groups that are there
    assert {k for k in got if "/" in k} == {f"group_{what}/{name}" for what in ("accuracy", "loss") for name in "bd"}
    assert {row["name"] for row in evaluation.details(outputs, batch)["groups"]} == {"b", "d"}
    assert not any(math.isnan(value) for value in got.values())


@pytest.mark.parametrize("weighted", [False, True])
def test_samples_of_no_group_count_nowhere(weighted):
    outputs, batch = split(4)
    batch |= {"weight": torch.rand(len(outputs)) + 0.5} if weighted else {}
    batch["group"] = torch.where(torch.arange(len(outputs)) % 5 == 0, -1, batch["group"])
    known = batch["group"] >= 0
    rest = outputs[known], {name: column[known] for name, column in batch.items()}
    evaluation = GroupEvaluation()
    assert evaluation(outputs, batch) == evaluation(*rest)
    assert evaluation.details(outputs, batch) == evaluation.details(*rest)


def test_large_scores_have_finite_losses():
    _, loss = correct_and_loss(torch.tensor([1e4, -1e4]), torch.tensor([0, 1]))
    assert loss.tolist() == [1e4, 1e4]


def test_table_of_groups_the_worst_first():
    outputs, batch = split(7, classes=3)
    evaluation = GroupEvaluation(alpha=0.3)
    rows = evaluation.details(outputs, batch)["groups"]
    found = by_group(outputs, batch)
    assert {row["group"] for row in rows} == set(range(7))
    for row in rows:
        assert (row["size"], row["accuracy"], row["loss"]) == pytest.approx(found[row["group"]])
    assert [row["accuracy"] for row in rows] == sorted(row["accuracy"] for row in rows)
    assert sum(row["weight"] for row in rows) == pytest.approx(1)
    tail = sum(row["weight"] * row["loss"] for row in rows)
    assert tail == pytest.approx(group_figures(outputs, batch, 0.3)["cvar_loss"])


def test_groups_of_equal_accuracy_stand_by_their_loss():
    outputs, batch = torch.tensor([1.0, 3.0, 2.0]), {"y": torch.zeros(3).long(), "group": torch.arange(3)}
    assert [row["group"] for row in GroupEvaluation().details(outputs, batch)["groups"]] == [1, 2, 0]


# ------------------------------------------------------------------------------------------------------------ mistakes
