"""Batches to which several loaders contribute."""

import copy

import pytest
import torch
from torch import nn

from fcco_lightning import (
    AUC,
    SONEX,
    BatchNetwork,
    Engine,
    HingePenalty,
    LogisticLoss,
    MeanAtMost,
    SoftRate,
)
from fcco_lightning.engine import Samples, as_batch, other_columns, outputs_of, outputs_of_columns
from fcco_lightning.engine.parts import part_name
from fcco_lightning.errors import ConfigError
from fcco_lightning.records import TARGET


def columns(n, seed):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"x": x, "y": torch.arange(n) % 2, "index": torch.arange(n)}


BATCH = {"first": columns(6, 0), "second": columns(4, 1)}


class Sums(BatchNetwork):
    inputs = ("x", "weight")

    def forward(self, batch):
        return {name: own["x"].sum(1) for name, own in batch.items()}


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
    outputs = outputs_of(Sums(), BATCH)
    assert list(outputs) == ["first", "second"]
    assert torch.equal(outputs["first"], BATCH["first"]["x"].sum(1))
    assert torch.equal(outputs_of_columns(Sums(), BATCH["second"]), BATCH["second"]["x"].sum(1))


def test_the_columns_of_one_loader_are_the_part_target():
    assert as_batch(BATCH) is BATCH
    assert as_batch(BATCH["first"]) == {TARGET: BATCH["first"]}


def test_inputs_are_nobody_elses():
    own = BATCH["first"] | {"weight": torch.ones(6), "note": ["a"] * 6}
    assert set(other_columns(nn.Linear(3, 1), own)) == {"y", "index", "weight"}
    assert set(other_columns(Sums(), own)) == {"y", "index"}


def test_a_term_is_measured_on_its_part():
    assert part_name(BATCH, None) == "first"
    assert part_name(BATCH, "second") == "second"
    with pytest.raises(ConfigError, match=r"the part 'third' of a batch, the loaders give \['first', 'second'\]"):
        part_name(BATCH, "third")


def seen():
    return Samples(outputs_of(Sums(), BATCH), {name: other_columns(Sums(), own) for name, own in BATCH.items()})


def test_halves_are_of_every_part_and_hold_every_sample_once():
    first, second = seen().halves()
    assert [len(first.outputs[n]) for n in BATCH] == [len(second.outputs[n]) for n in BATCH] == [3, 2]
    for name, own in BATCH.items():
        assert torch.equal(torch.cat([half.outputs[name] for half in (first, second)]), own["x"].sum(1))
        assert torch.equal(torch.cat([half.batch[name]["index"] for half in (first, second)]), own["index"])
    with pytest.raises(ConfigError, match="the part 'first' of a batch holds 1 sample, two half-batches need two"):
        first.part("first").halves()[0].halves()


def test_one_part_alone():
    second = seen().part("second")
    assert list(second.outputs) == list(second.batch) == ["second"]
    with pytest.raises(ConfigError, match="the part 'third'"):
        seen().part("third")


def test_the_dual_part_stands_for_the_first_and_others_for_their_own():
    parts = {"target": 1, "other": 2, "dual": 3, "dual_other": 4}
    dual = Samples(parts, {name: {"y": torch.tensor([i])} for name, i in parts.items()}).dual_part()
    assert dual.outputs == {"target": 3, "other": 4}
    assert {name: own["y"].item() for name, own in dual.batch.items()} == {"target": 3, "other": 4}
    with pytest.raises(ConfigError, match=r"the part 'dual' of a batch; the loaders give \['first', 'second'\]"):
        seen().dual_part()


def test_a_step_uses_the_objective_of_the_first_and_constraints_of_their_own():
    network = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    twin = copy.deepcopy(network)
    limits = [
        MeanAtMost(SoftRate(), 0.1, part="second"),
        MeanAtMost(LogisticLoss(), 0.2, {"y": 1}),
    ]
    algorithm = SONEX(lam=0.05)
    problem = algorithm.pose(AUC(), limits, HingePenalty(3.0), num_samples=6, dtype=torch.float64)
    engine = Engine(network, problem, algorithm)
    engine.train_batch(BATCH, torch.optim.SGD(engine.params, lr=0.0))

    first, second = twin(BATCH["first"]["x"]), twin(BATCH["second"]["x"])
    rate = torch.sigmoid(second).mean()
    loss = nn.functional.softplus(-first[BATCH["first"]["y"] == 1]).mean()
    auc = torch.sigmoid(first[BATCH["first"]["y"] == 0] - first[BATCH["first"]["y"] == 1].unsqueeze(1)).mean()
    slopes = [((u.detach() - kappa) / 0.05).clamp(0, 3) / 2 for u, kappa in ((rate, 0.1), (loss, 0.2))]
    (auc + slopes[0] * rate + slopes[1] * loss).backward()
    torch.testing.assert_close([p.grad for p in network.parameters()], [p.grad for p in twin.parameters()])
    assert [s.rows.item() for s in problem.states] == pytest.approx([rate.item(), loss.item()])
