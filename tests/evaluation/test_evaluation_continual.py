"""Learning, forgetting and the table of tasks; the figures are tested in tests/contracts."""

import math

import pytest
import torch

from fcco_lightning import ContinualEvaluation, DataError
from tests.evaluation.reference import split

# The classes 7 and 8 are the target, 9 belongs to neither; protected task k is the class 6 - k.
TASK_OF_CLASS = torch.tensor([6, 5, 4, 3, 2, 1, 0, -1, -1, -2])
NAMES = ["six", "five", "four", "three", "two", "one", "zero"]


@pytest.fixture(scope="module")
def models():
    """Outputs of an old and of a new model, and the samples' columns."""
    old, batch = split(1, classes=10)
    new = old + torch.randn(old.shape, generator=torch.Generator().manual_seed(1))
    return old, new, {"y": batch["y"], "task": TASK_OF_CLASS[batch["y"]]}


def compare(models, **arguments):
    """The evaluation, and the new model's outputs with the old one's columns."""
    old, new, batch = models
    evaluation = ContinualEvaluation(**arguments)
    evaluation.group_names = NAMES
    return evaluation, new, batch | evaluation.reference(old, batch)


def small(y, task, old_correct, old_loss=None):
    """A batch of a few samples; the network says class 0."""
    columns = {"y": y, "task": task, "old_correct": old_correct, "old_loss": old_loss or [0.0] * len(y)}
    batch = {name: torch.tensor(column) for name, column in columns.items()}
    return torch.tensor([[2.0, 0.0]]).repeat(len(y), 1), batch


# ------------------------------------------------------------------------------------------------------------- figures


def test_what_is_kept_of_the_old_model_is_small(models):
    old, _, batch = models
    kept = ContinualEvaluation().reference(old, batch)
    assert {name: column.dtype for name, column in kept.items()} == {
        "old_loss": torch.float32,
        "old_correct": torch.int64,
    }


def test_the_old_model_has_changed_nothing_exactly(models):
    """Although its losses were rounded: at the start of training every constraint holds."""
    old, _, _ = models
    evaluation, _, batch = compare(models)
    got = evaluation(old, batch)
    assert {got[name] for name in got if "change" in name or name == "delta_target"} == {0.0}
    assert got["satisfied"] == got["satisfied_loss"] == 1.0


def test_without_the_old_model(models):
    _, new, batch = models
    evaluation, _, both = compare(models)
    got = evaluation(new, batch)
    assert got.keys() == {"accuracy", "target_accuracy", "protected_accuracy"}
    assert got == {name: evaluation(new, both)[name] for name in got}


def test_samples_of_neither_count_in_the_average_only():
    outputs, batch = small([0, 1, 0, 1], [-1, 0, -2, -5], [0, 1, 0, 0])
    got = ContinualEvaluation()(outputs, batch)
    assert got["accuracy"] == 0.5
    assert [got[name] for name in ("target_accuracy", "delta_target")] == [1, 1]
    assert {name for name in got if name.startswith("change/")} == {"change/0"}
    assert got["change/0"] == got["worst_change"] == -1


def test_tolerances():
    """Task 0 loses 1 of 10 answers, task 1 gains one, task 2 is as it was; the network's losses are 0.127 or 2.127."""
    y = [1, *[0] * 9, *[0] * 10, 0]
    old = [*[1] * 10, 0, *[1] * 9, 1]
    outputs, batch = small(y, [*[0] * 10, *[1] * 10, 2], old, [0.0] * 10 + [5.0] * 10 + [0.05])
    for tolerance, satisfied in ((0.0, 2 / 3), (0.09, 2 / 3), (0.1, 1.0)):
        assert ContinualEvaluation(tolerance)(outputs, batch)["satisfied"] == satisfied
    low = math.log1p(math.exp(-2))
    got = ContinualEvaluation()(outputs, batch)
    assert [got[f"loss_change/{k}"] for k in range(3)] == pytest.approx([low + 0.2, low - 5, low - 0.05], rel=1e-5)
    assert got["worst_loss_change"] == got["loss_change/0"]
    for tolerance, satisfied in ((0.0, 1 / 3), (0.1, 2 / 3), (0.4, 1.0)):
        assert ContinualEvaluation(tolerance_loss=tolerance)(outputs, batch)["satisfied_loss"] == satisfied


@pytest.mark.parametrize(
    ("task", "name", "undefined"),
    [
        (0, "0", {"target_accuracy", "delta_target"}),
        (-1, "target", {"protected_accuracy", "worst_change", "satisfied", "worst_loss_change", "satisfied_loss"}),
    ],
)
def test_what_a_split_leaves_undefined(task, name, undefined):
    outputs, batch = small([0, 1], [task] * 2, [1, 1])
    got = ContinualEvaluation()(outputs, batch)
    assert {figure for figure, value in got.items() if math.isnan(value)} == undefined
    assert [row["name"] for row in ContinualEvaluation().details(outputs, batch)["tasks"]] == [name]


def test_tasks_that_a_split_lacks():
    outputs, batch = small([0, 1, 0], [4, 1, 4], [1, 1, 0])
    evaluation = ContinualEvaluation()
    evaluation.group_names = ["a", "b", "c"]  # of the last no name is known
    got = evaluation(outputs, batch)
    assert {k: v for k, v in got.items() if k.startswith("change/")} == {"change/b": -1.0, "change/4": 0.5}
    assert got["protected_accuracy"] == 0.5
    assert got["satisfied"] == 0.5


# --------------------------------------------------------------------------------------------------------------- table


def test_table_of_tasks(models):
    old, _, columns = models
    evaluation, outputs, batch = compare(models)
    figures, first, *rows = evaluation(outputs, batch), *evaluation.details(outputs, batch)["tasks"]
    assert (first["name"], first["change"]) == ("target", figures["delta_target"])
    assert first["size"] == int((columns["task"] == -1).sum())
    changes = {row["name"]: row["change"] for row in rows}
    assert changes == {name: figures[f"change/{name}"] for name in NAMES}
    assert list(changes.values()) == sorted(changes.values())
    before, *were = evaluation.details(old, columns)["tasks"]
    assert list(before) == ["name", "size", "accuracy", "loss"]
    assert [was["accuracy"] for was in were] == sorted(was["accuracy"] for was in were)
    were = {was["name"]: was for was in (before, *were)}
    for row in (first, *rows):
        was = were[row["name"]]
        assert row["size"] == was["size"]
        assert (row["old_accuracy"], row["old_loss"]) == pytest.approx((was["accuracy"], was["loss"]), rel=1e-5)
        assert row["accuracy"] - row["old_accuracy"] == pytest.approx(row["change"])
        assert row["loss"] - row["old_loss"] == pytest.approx(row["loss_change"], abs=1e-5)


# ------------------------------------------------------------------------------------------------------------ mistakes


def test_no_reference_without_labels():
    with pytest.raises(DataError, match="need a column 'y'"):
        ContinualEvaluation().reference(torch.zeros(2, 2), {"task": torch.zeros(2)})


# ------------------------------------------------------------------------------------------------------------ pictures


def test_without_an_old_model_nothing_is_drawn(models, tmp_path):
    _, new, batch = models
    evaluation = ContinualEvaluation()
    history = [{"epoch": 0, "split": "train", **evaluation(new, batch)}]
    assert evaluation.draw(history, {"train": (new, batch)}, tmp_path) == []
