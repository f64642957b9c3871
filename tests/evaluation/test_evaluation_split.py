"""A whole split collected from its batches, and the values of the constraints on it."""

import math

import pytest
import torch

from fcco_lightning import DataError, DemographicParity, Evaluation, GroupAUCAtLeast, MeanAtMost, NonForgetting
from fcco_lightning.evaluation import Split, concatenate, constraint_values, summarise
from fcco_lightning.objectives import Quantity
from fcco_lightning.state.processes import Processes
from tests.state import pool as pools

pool = pools.pool


class Output(Quantity):
    """The output itself."""

    def __call__(self, outputs, batch):
        return outputs


class Size(Evaluation):
    """Counts the samples."""

    def __call__(self, outputs, batch):
        return {"size": float(len(outputs))}


OUTPUTS, BATCH = torch.tensor([1.0, 3.0]), {"y": torch.tensor([0, 1])}  # the mean output is 2


def test_batches_are_joined_in_their_order():
    parts = [Split(OUTPUTS, BATCH), Split(OUTPUTS[:1] + 4, {"y": torch.tensor([7])})]
    outputs, columns = concatenate(parts, Processes())
    assert (outputs.tolist(), columns["y"].tolist()) == ([1, 3, 5], [0, 1, 7])
    with pytest.raises(DataError, match="fewer samples than there are processes"):
        concatenate([], Processes())


def of_a_share(processes, repeated):  # in every process
    own = [2, 0] if processes.rank == 0 else [1, 2 if repeated else 3]
    index = torch.tensor(own if processes.size > 1 else [0, 1, 2])
    return concatenate([Split(index * 10.0, {"index": index})], processes)


def test_samples_that_a_sampler_repeats_count_once(pool):
    [(expected, _)] = pool.values(of_a_share, 1, True)
    for outputs, columns in pool.values(of_a_share, 2, True):
        assert outputs.tolist() == expected.tolist() == [0, 10, 20]
        assert columns["index"].tolist() == [0, 1, 2]
    for outputs, _ in pool.values(of_a_share, 2, False):
        assert outputs.tolist() == [20, 0, 10, 30]


def test_values_of_constraints():
    constraints = [MeanAtMost(Output(), 1.5), MeanAtMost(Output(), 3.0), MeanAtMost(Output(), -1.0)]
    values = constraint_values(constraints, OUTPUTS, BATCH)
    assert values == {"h/output": 0.5, "h/output'": -1.0, "h/output''": 3.0}
    figures, reason = summarise(Size(), constraints, OUTPUTS, BATCH)
    assert figures == {"size": 2.0, "worst_violation": 3.0, "vacuous": 0.0, **values}
    assert reason is None


def test_a_split_without_constraints_has_the_figures_of_the_evaluation():
    assert summarise(Size(), [], OUTPUTS, BATCH) == ({"size": 2.0}, None)


def test_why_constraints_are_vacuous():
    class Empty(MeanAtMost):
        def vacuous(self, outputs, batch, *, decisions=False):
            return f"nothing within {self.kappa}"

    figures, reason = summarise(Size(), [Empty(Output(), 3.0), Empty(Output(), 4.0)], OUTPUTS, BATCH)
    assert (figures["vacuous"], reason) == (1.0, "nothing within 3.0; nothing within 4.0")
    assert not math.isnan(figures["worst_violation"])


def test_columns_that_a_constraint_would_misread_are_named():
    columns = {"y": torch.tensor([0, 1]), "task": torch.tensor([0, 2]), "protected_loss": torch.zeros(2)}
    with pytest.raises(DataError, match=r"task must be < 2 .*, got 2"):
        constraint_values([NonForgetting(names=["a", "b"])], torch.zeros(2, 3), columns)


def test_constraints_on_decisions_are_counted():
    scores = torch.tensor([0.3, -0.1, 2.0, -3.0, 0.2, 0.1])
    columns = {"y": torch.tensor([1, 0, 1, 0, 1, 0]), "group": torch.tensor([0, 0, 0, 1, 1, 1])}
    constraints = [DemographicParity(kappa=0.1), GroupAUCAtLeast(0.6)]
    found = constraint_values(constraints, scores, columns)
    assert [name for name in found if name.startswith("decided/")] == ["decided/selection rate"]  # the AUC smooths none
    assert found["decided/selection rate"] == pytest.approx(abs(2 / 3 - 2 / 3) - 0.1)
    figures, _ = summarise(Size(), constraints, scores, columns)
    smooth = [h for name, h in found.items() if name.startswith("h/")]
    assert figures["worst_violation"] == max(smooth)
    enforced, _ = summarise(Size(), constraints, scores, columns, decisions=True)
    assert enforced["worst_violation"] == max(found["decided/selection rate"], smooth[-1]) != max(smooth)
    assert figures["decided/selection rate"] == found["decided/selection rate"]
