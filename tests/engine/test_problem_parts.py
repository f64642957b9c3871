"""Batches to which several loaders contribute."""

import copy

import pytest
import torch
from fcco_lightning.problem import other_columns, outputs_of
from fcco_lightning.problem.parts import part, parts_of
from torch import nn

from fcco_lightning import (
    AUC,
    SONEX,
    BatchNetwork,
    Engine,
    HingePenalty,
    InnerFunctions,
    LogisticLoss,
    MeanAtMost,
    Problem,
    SoftRate,
)
from fcco_lightning.errors import ConfigError


def columns(n, seed):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"x": x, "y": torch.arange(n) % 2, "index": torch.arange(n)}


BATCH = {"first": columns(6, 0), "second": columns(4, 1)}


class Sums(BatchNetwork):
    inputs = ("x", "weight")

    def forward(self, batch):
        return {name: own["x"].sum(1) for name, own in batch.items()} if parts_of(batch) else batch["x"].sum(1)


def test_a_plain_network_sees_all_parts_at_once():
    calls = []
    layer = nn.Linear(3, 2).double()
    layer.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
    network = nn.Sequential(layer, Split())
    outputs = outputs_of(network, BATCH)
    assert calls == [10]
    for name, own in BATCH.items():
        scores, both = layer(own["x"])[:, 0], layer(own["x"])
        torch.testing.assert_close(outputs[name], {"scores": scores, "both": (both,)})


class Split(nn.Module):
    def forward(self, x):
        return {"scores": x[:, 0], "both": (x,)}


def test_a_network_of_batches_is_given_the_batch():
    for batch in (BATCH, BATCH["first"]):
        found = outputs_of(Sums(), batch)
        first = found["first"] if batch is BATCH else found
        assert torch.equal(first, BATCH["first"]["x"].sum(1))


def test_inputs_are_nobody_elses():
    own = BATCH["first"] | {"weight": torch.ones(6), "note": ["a"] * 6}
    assert set(other_columns(nn.Linear(3, 1), own)) == {"y", "index", "weight"}
    assert set(other_columns(Sums(), own)) == {"y", "index"}


def test_a_term_is_measured_on_its_part():
    outputs = {"first": 1, "second": 2}
    assert part(outputs, BATCH, None) == (1, BATCH["first"])
    assert part(outputs, BATCH, "second") == (2, BATCH["second"])
    assert part(5, BATCH["first"], "second") == (5, BATCH["first"])  # evaluation goes through one split at a time
    with pytest.raises(ConfigError, match=r"the part 'third' of a batch, the loaders give \['first', 'second'\]"):
        part(outputs, BATCH, "third")


def test_a_step_uses_the_objective_of_the_first_and_constraints_of_their_own():
    network = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    twin = copy.deepcopy(network)
    limits = [
        MeanAtMost(SoftRate(), 0.1, part="second"),
        MeanAtMost(LogisticLoss(), 0.2, {"y": 1}),
    ]
    problem = Problem(AUC(), limits, HingePenalty(3.0), SONEX(lam=0.05), 6, torch.float64)
    engine = Engine(InnerFunctions(network, AUC(), problem.constraints), problem)
    engine.train_batch(BATCH, torch.optim.SGD(engine.params, lr=0.0))

    first, second = twin(BATCH["first"]["x"]), twin(BATCH["second"]["x"])
    rate = torch.sigmoid(second).mean()
    loss = nn.functional.softplus(-first[BATCH["first"]["y"] == 1]).mean()
    auc = torch.sigmoid(first[BATCH["first"]["y"] == 0] - first[BATCH["first"]["y"] == 1].unsqueeze(1)).mean()
    slopes = [((u.detach() - kappa) / 0.05).clamp(0, 3) / 2 for u, kappa in ((rate, 0.1), (loss, 0.2))]
    (auc + slopes[0] * rate + slopes[1] * loss).backward()
    torch.testing.assert_close([p.grad for p in network.parameters()], [p.grad for p in twin.parameters()])
    assert [s.rows.item() for s in problem.states] == pytest.approx([rate.item(), loss.item()])
