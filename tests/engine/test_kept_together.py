"""Neighbouring constraints of one class are measured together, with the values that each has alone."""

from copy import deepcopy

import pytest
import torch

from fcco_lightning import (
    ALEXR,
    AUC,
    SONEX,
    SOX,
    AdaptivePenalty,
    BalancedSampling,
    Engine,
    HingePenalty,
    LogisticLoss,
    MeanAtMost,
    MeanDifferenceAtMost,
    MeanNear,
    NuPI,
    SoftRate,
    SquaredHingePenalty,
    TensorDataModule,
)
from fcco_lightning.constraints import kept_together
from fcco_lightning.engine import problem
from fcco_lightning.errors import DataError
from fcco_lightning.outer import Hinge

RATE, N = SoftRate(0.1, 0.7), 40
CAPS = [
    MeanAtMost(RATE, 0.3, {"group": 0}),
    MeanAtMost(RATE, 0.4, {"group": [1, 2], "y": 1}),
    MeanAtMost(RATE, 0.2, {"age": "<0.5"}, name="young"),
    MeanAtMost(RATE, 0.1),
]
DIFFERENCES = [
    MeanDifferenceAtMost(RATE, 0.05, {"group": 0}, {"group": [1, 2]}),
    MeanDifferenceAtMost(RATE, 0.1, {"y": 1, "group": 1}, {"y": 1}, name="positives"),
    MeanDifferenceAtMost(RATE, 0.05, {"age": "<0.5"}, {"age": ">=0.5"}, name="young"),
]
NEAR = [
    MeanNear(RATE, 0.3, 0.02, {"group": 0}),
    MeanNear(RATE, 0.5, 0.05, {"group": [1, 2], "y": 1}),
    MeanNear(RATE, 0.4, 0.0, {"age": "<0.5"}, name="young"),
]
KINDS = {"caps": CAPS, "differences": DIFFERENCES, "near": NEAR}
ALGORITHMS = {
    "SOX": (lambda: SOX(0.3), lambda: SquaredHingePenalty(20.0)),
    "SONEX": (lambda: SONEX(0.3, 0.2, lam=0.1), lambda: HingePenalty(5.0)),
    "ALEXR": (lambda: ALEXR(1.0, 0.1), lambda: HingePenalty(5.0)),
    "multipliers": (lambda: SONEX(0.3, 0.2, lam=0.1), AdaptivePenalty),
    "NuPI": (lambda: SOX(0.3), NuPI),
}


def data():
    """Groups 1 and 2 are absent from some batches."""
    draw = torch.Generator().manual_seed(0)
    columns = {
        "x": torch.randn(N, 4, generator=draw, dtype=torch.float64),
        "y": torch.arange(N) % 2,
        "group": torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 2, 0]).repeat(N // 10),
        "age": torch.rand(N, generator=draw),
    }
    module = TensorDataModule({"train": columns, "test": columns}, batches=BalancedSampling(6))
    module.setup()
    return module


def trained(constraints, name):
    torch.manual_seed(0)
    network, module = torch.nn.Linear(4, 1, dtype=torch.float64), data()
    algorithm, penalty = (make() for make in ALGORITHMS[name])
    sampling = module.sampling()
    posed = algorithm.pose(AUC(), constraints, penalty, num_samples=N, dtype=torch.float64, sampling=sampling)
    engine, optimizer = Engine(network, posed, algorithm), torch.optim.SGD(network.parameters(), lr=0.1)
    loaded = list(module.train_dataloader())
    assert any(not (batch["group"] == 1).any() for batch in loaded)
    every = {**module.tables["train"].columns, "index": torch.arange(N), "weight": torch.ones(N)}
    for batch in [every, *loaded]:  # multipliers take their unit from the first batch that speaks of a term
        engine.train_batch(batch, optimizer)
    rows = torch.cat([state.rows.flatten() for state in posed.states])
    return network.weight.detach(), rows, torch.tensor(list(posed.multipliers().values()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_constraints_kept_together_train_as_they_do_apart(name, kind, monkeypatch):
    together = trained(KINDS[kind], name)
    monkeypatch.setattr(problem, "kept_together", list)
    apart = trained(KINDS[kind], name)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_only_neighbours_that_are_alike_are_kept_together_and_the_order_of_the_rows_stays():
    class Own(MeanAtMost):
        pass

    other = MeanAtMost(LogisticLoss(), 0.5, name="loss")
    mixed = [*CAPS, other, CAPS[0], Own(RATE, 0.1), Own(RATE, 0.2), MeanNear(RATE, 0.5, 0.3), *CAPS[2:]]
    together = kept_together(mixed)
    assert [c.num_rows for c in together] == [4, 1, 1, 1, 1, 1, 2]
    wider = MeanDifferenceAtMost(LogisticLoss(), 0.1, {"group": 0}, {"group": 1})
    assert [c.num_rows for c in kept_together([*DIFFERENCES, wider, *DIFFERENCES[1:], *NEAR])] == [3, 1, 2, 3]
    assert [name for c in together for name in c.names] == [name for c in mixed for name in c.names]


@pytest.mark.parametrize("kind", KINDS)
def test_a_joint_constraint_measures_what_its_members_do(kind):
    columns = data().tables["train"].columns
    batch = {name: column[columns["group"] == 0] for name, column in columns.items()}  # nothing of the other groups
    scores = torch.randn(len(batch["y"]), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (joint,) = kept_together(KINDS[kind])
    rows = joint.measure(scores, batch)[1]
    alone = [member.measure(scores, batch)[1] for member in KINDS[kind]]
    torch.testing.assert_close(rows.values, torch.cat([one.values for one in alone]))
    assert torch.equal(rows.weight, torch.cat([one.weight for one in alone]))
    assert 0 < rows.weight.sum() < len(rows.weight)
    full = torch.rand(joint.num_rows, joint.width, dtype=torch.float64)
    expected = [member.violation(u.unsqueeze(0)) for member, u in zip(KINDS[kind], full, strict=True)]
    torch.testing.assert_close(joint.violation(full), torch.cat(expected))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["SONEX", "multipliers"])
def test_margins_of_constraints_kept_together_are_each_its_own(name, kind, monkeypatch):
    """They train as they do apart with one margin for each, the first of which is 0."""
    for k, member in enumerate(members := deepcopy(KINDS[kind])):
        member.tighten(0.01 * k)
    together = trained(members, name)
    monkeypatch.setattr(problem, "kept_together", list)
    for one, other in zip(together, trained(members, name), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_a_joint_constraint_follows_its_members_margins():
    members = [MeanAtMost(RATE, 0.3, {"group": 0}), MeanAtMost(RATE, 0.4, {"group": 1})]
    (joint,) = kept_together(members)
    members[1].tighten(0.1)
    values = torch.tensor([[0.5], [0.5]], dtype=torch.float64)
    torch.testing.assert_close(joint.outer(Hinge())(values), torch.tensor([0.2, 0.2], dtype=torch.float64))
    torch.testing.assert_close(joint.violation(values), torch.tensor([0.2, 0.1], dtype=torch.float64))


def test_a_missing_column_is_named():
    (joint,) = kept_together(CAPS)
    with pytest.raises(DataError, match="age"):
        joint.measure(torch.zeros(2), {"y": torch.tensor([0, 1]), "group": torch.tensor([0, 1])})
