"""Figures by group of a split against numpy and scikit-learn."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import linprog

from fcco_lightning import ConfigError, GroupEvaluation, NonFiniteError
from fcco_lightning.evaluation.base import correct_and_loss
from fcco_lightning.evaluation.groups import worst_weights
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


# --------------------------------------------------------------------------------------------------------- worst groups


def cvar_by_linear_program(losses, number):
    size = len(losses)
    bounds = [(0, min(1.0, 1 / number))] * size
    return -linprog(-losses, A_eq=np.ones((1, size)), b_eq=[1], bounds=bounds).fun


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.3, 0.77, 1.0])
@pytest.mark.parametrize("size", [1, 3, 10, 30])
def test_weights_of_the_worst_by_both_definitions_of_cvar(size, alpha, ties):
    rng, number = np.random.default_rng(size), alpha * size
    losses = rng.integers(0, 4, size).astype(float) if ties else rng.normal(size=size)
    q = worst_weights(pd.Series(losses), number)
    by_threshold = min(s + np.maximum(losses - s, 0).sum() / number for s in losses)  # at one of its kinks
    assert q @ losses == pytest.approx(by_threshold, rel=1e-9, abs=1e-9)
    assert q @ losses == pytest.approx(cvar_by_linear_program(losses, number), rel=1e-7, abs=1e-7)
    assert q.sum() == pytest.approx(1)
    assert (q >= 0).all()
    assert (q <= min(1, 1 / number) + 1e-12).all()
    for level in np.unique(losses):
        assert np.ptp(q[losses == level]) == 0  # equal losses, equal weights


def test_number_of_worst_groups_is_exact():
    """Against whole-number arithmetic: alpha = percent / 100, and one group after the other has the accuracy 1."""
    for size in (1, 7, 30, 100, 199):
        for percent in (1, 5, 7, 10, 15, 29, 30, 57, 58, 100):
            number = max(1, -(-percent * size // 100))
            for right in (number - 1, number):  # so many of the groups are classified correctly
                outputs = torch.where(torch.arange(size) < size - right, -1.0, 1.0)
                batch = {"y": torch.ones(size).long(), "group": torch.arange(size)}
                figures = GroupEvaluation(percent / 100, most_groups=0)(outputs, batch)
                assert figures["tail_accuracy"] == pytest.approx(max(0, right - (size - number)) / number)


@pytest.mark.parametrize("pooled", [False, True])
def test_tied_groups_belong_to_the_worst_in_part(pooled):
    """Half of the four: the first, and half of each of the next two."""
    sizes, right = torch.tensor([10, 30, 50, 10]), torch.tensor([2, 18, 30, 9])
    group = torch.arange(4).repeat_interleave(sizes)
    outputs = torch.cat([torch.where(torch.arange(n) < r, 1.0, -1.0) for n, r in zip(sizes, right, strict=True)])
    figures = GroupEvaluation(0.5, pooled=pooled)(outputs, {"y": torch.ones(100).long(), "group": group})
    assert figures["tail_accuracy"] == pytest.approx((2 + 0.6 * 40) / 50 if pooled else (0.2 + 0.6) / 2)


@pytest.mark.parametrize("alpha", [0, -0.1, 1.5, math.nan, "0.1"])
def test_bad_alpha(alpha):
    with pytest.raises(ConfigError, match=r"alpha must lie in \(0, 1\], got"):
        GroupEvaluation(alpha)


def test_groups_of_any_whole_type():
    outputs, batch = split(3)
    small = batch | {"group": batch["group"].to(torch.uint8)}
    assert GroupEvaluation()(outputs, small) == GroupEvaluation()(outputs, batch)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_names_its_group(value):
    outputs, batch = split(3)
    outputs[(batch["group"] == 1) & (batch["y"] == 0)] = value
    with pytest.raises(NonFiniteError, match="loss of group 1 is"):
        GroupEvaluation()(outputs, batch)
