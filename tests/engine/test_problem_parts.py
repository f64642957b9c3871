"""Batches with parts from several loaders."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from fcco_lightning import (
    ALEXR2,
    AUC,
    SONEX,
    BatchNetwork,
    Engine,
    HingePenalty,
    LogisticLoss,
    MeanAtMost,
    SoftRate,
)
from fcco_lightning.algorithms.two_draws import dual_part, halves
from fcco_lightning.engine import Outputs, as_batch, other_columns, outputs_of, outputs_of_columns
from fcco_lightning.engine.batches import part_name
from fcco_lightning.errors import ConfigError


def columns(n, seed):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"x": x, "y": torch.arange(n) % 2, "index": torch.arange(n)}


BATCH = {"first": columns(6, 0), "second": columns(4, 1)}


class Sums(BatchNetwork):
    inputs = ("x", "weight")

    def forward(self, batch):
        return {name: columns["x"].sum(1) for name, columns in batch.items()}


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


def test_a_network_of_batches_is_given_the_parts_by_name():
    assert torch.equal(outputs_of(Sums(), BATCH)["second"], BATCH["second"]["x"].sum(1))
    assert torch.equal(outputs_of_columns(Sums(), BATCH["first"]), BATCH["first"]["x"].sum(1))


def test_the_columns_of_one_loader_are_the_part_target():
    assert as_batch(BATCH["first"]) == {"target": BATCH["first"]}
    assert as_batch(BATCH) is BATCH


def test_inputs_are_nobody_elses():
    own = BATCH["first"] | {"weight": torch.ones(6), "note": ["a"] * 6}
    assert set(other_columns(nn.Linear(3, 1), own)) == {"y", "index", "weight"}
    assert set(other_columns(Sums(), own)) == {"y", "index"}


def test_a_term_is_measured_on_its_part():
    assert part_name(BATCH, None) == "first"
    assert part_name(BATCH, "second") == "second"
    with pytest.raises(
        ConfigError, match=r"the part 'third' of a batch, but the loaders give the parts \['first', 'second'\]"
    ):
        part_name(BATCH, "third")


def test_halves_are_of_every_part():
    outputs = {"first": torch.arange(6), "second": (torch.arange(4),)}
    earlier = {name: tree_map(lambda leaf: -leaf, output) for name, output in outputs.items()}
    first, second = halves(Outputs(outputs, BATCH, earlier, None, {}))
    assert first.now["first"].tolist() == [0, 1, 2]
    assert second.now["second"][0].tolist() == [2, 3]
    assert second.columns["first"]["index"].tolist() == [3, 4, 5]
    assert first.before["second"][0].tolist() == [0, -1]
    assert second.before["first"].tolist() == [-3, -4, -5]
    assert halves(Outputs(outputs, BATCH, None, None, {}))[0].before is None
    one = Outputs({"only": torch.zeros(1)}, {"only": {"y": torch.zeros(1)}}, None, None, {})
    with pytest.raises(ConfigError, match="the part 'only' of a batch contains 1 sample, which cannot be split"):
        halves(one)


def test_the_dual_part_stands_for_the_first_one():
    batch = {"target": BATCH["first"], "dual": BATCH["second"]}
    seen = dual_part(Outputs({"target": 1, "dual": 2}, batch, {"target": 3, "dual": 4}, None, {}))
    assert (seen.now, seen.columns, seen.before) == ({"target": 2}, {"target": BATCH["second"]}, {"target": 4})
    with pytest.raises(ConfigError, match="Set two_draws of the datamodule's `batches`"):
        ALEXR2(jacobian="part").check(Outputs({"first": 1, "second": 2}, BATCH, None, None, {}))


def test_a_step_uses_the_objective_of_the_first_and_constraints_of_their_own():
    network = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    twin = copy.deepcopy(network)
    limits = [
        MeanAtMost(SoftRate(temperature=1.0), 0.1, part="second"),
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
