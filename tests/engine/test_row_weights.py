"""Weights of rows in a mean over all of them, by enumeration and by hand; parameters of samples and of f."""

import warnings
from itertools import combinations, product
from typing import NamedTuple

import pytest
import torch
from torch import nn

from fcco_lightning import SGD, SONEX, SOX, CVaRGroupDRO, Engine, MeanAtMost, Objective, ROCFairness, SoftRate
from fcco_lightning.data import BagBatches, GroupBatches, RepeatedBatches
from fcco_lightning.engine.forward import Samples
from fcco_lightning.engine.row_weights import (
    Arrival,
    EstimatedWeights,
    SampleWeights,
    SubsetWeights,
    can_know,
    presence,
    warn_of_rare_rows,
)
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.objectives import SampleParameters
from fcco_lightning.objectives.base import Partition
from tests.contracts.registry_plans import PLANS

ROUNDING = 1e-12


class Uniform:
    """Batches of ``size`` of the samples, all alike; probabilities by enumeration of a hypergeometric draw."""

    strata = None

    def __init__(self, num_samples, size):
        self.num_samples, self.size = num_samples, size

    def absence(self, counts, share=1.0):
        every = list(combinations(range(self.num_samples), int(self.size * share)))
        return sum(min(batch) >= int(counts) for batch in every) / len(every)


class Drawn(NamedTuple):
    columns: dict[str, torch.Tensor]
    plan: Uniform


def arrival(rows, samples=None, **columns):
    return Arrival(torch.tensor(rows), torch.tensor(rows if samples is None else samples), columns)


def test_samples_weigh_alike_or_as_their_column_says():
    assert SampleWeights()(arrival([4, 1, 0])) == pytest.approx(1 / 3)
    index, weight = torch.tensor([7, 3, 9, 3]), torch.tensor([2.0, 0.5, 1.0, 0.5])  # 3 comes twice
    assert SampleWeights(2.0)(arrival([0, 1], [3, 9], index=index)) == pytest.approx(2 / 3)
    found = SampleWeights(2.0)(arrival([0, 1], [3, 9], index=index, weight=weight))  # rows 0 and 1, of samples 3 and 9
    assert found.tolist() == pytest.approx([2 * 0.5 * 2 / 4, 2 * 1 / 4])


def test_rows_of_subsets_weigh_by_their_probabilities():
    weights = SubsetWeights(torch.tensor([0.5, 0.1, 1.0]))
    assert weights(arrival([2, 1])).tolist() == pytest.approx([1 / 3, 10 / 3])
    assert SubsetWeights(torch.tensor([0.5, 0.5]))(arrival([1])) == pytest.approx(1.0)
    assert weights.state_dict() == {}  # known from the data again


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_probabilities_are_those_of_counting(share):
    masks = [torch.arange(8) < 3, torch.arange(8) >= 5, torch.arange(8) % 2 == 0]
    rows = [[masks[0]], [masks[0], masks[1]], masks]
    found = presence(rows, Drawn({}, Uniform(8, 4)), ["a", "b", "c"], share)
    every = list(combinations(range(8), int(4 * share)))
    for probability, subsets in zip(found.tolist(), rows, strict=True):
        spoken = sum(all(any(bool(mask[i]) for i in batch) for mask in subsets) for batch in every)
        assert probability == pytest.approx(spoken / len(every), abs=ROUNDING)
    assert can_know([masks] * 3)
    assert not can_know([[masks[0]] * 11])


def test_an_empty_subset_is_named():
    with pytest.raises(DataError, match="no training sample belongs to subset 1 of 'rates'"):
        presence([[torch.ones(4) > 0, torch.ones(4) < 0]], Drawn({}, Uniform(4, 2)), ["rates"])


@pytest.mark.parametrize("case", PLANS.values(), ids=PLANS)
def test_rows_that_partition_the_samples_are_seen_as_often_as_among_all_batches(case):
    """Row i has its samples, and needs a partner of one kind, of another, or none; sample 1 is in no row."""
    plan = case.tiny
    of = torch.tensor([0, -1, 1, 0, 2, 1, 2, 3, 3, 0])[: plan.num_rows]
    number = int(of.max()) + 1
    partners, partner_of = [of < 0, of == 0], torch.tensor([0, 1, -1, 0])[:number]
    rows = Partition(of, number, partners, partner_of)
    found = presence(rows, Drawn({}, plan), list("abcd")[:number])
    for row, probability in enumerate(found.tolist()):
        needed = [set(mask.nonzero().flatten().tolist()) for mask in rows[row]]
        assert len(needed) == 1 + (int(partner_of[row]) >= 0)
        spoken = sum(p for p, batch in case.outcomes if all(set(batch) & subset for subset in needed))
        assert probability == pytest.approx(spoken, abs=1e-9)
    torch.testing.assert_close(presence(list(rows), Drawn({}, plan), list("abcd")[:number]), found)  # from masks


def test_a_partner_in_the_same_stratum_tells_rows_apart():
    """Three groups of two; the second samples of the first one and the third are partners."""
    plan = GroupBatches(torch.tensor([0, 0, 1, 1, 2, 2]), 2, 1)
    rows = Partition(
        torch.tensor([0, -1, 1, -1, -1, -1]), 2, [torch.tensor([0, 1, 0, 0, 0, 1]) > 0], torch.zeros(2).long()
    )
    found = presence(rows, Drawn({}, plan), ["a", "b"])
    assert found.tolist() == pytest.approx([1 / 3 * 1 / 4, 2 / 3 * 1 / 4])  # with the third group; with either one


@pytest.mark.parametrize("kind", ["bags", "groups"])
def test_rows_that_lie_alike_share_one_computation(kind, monkeypatch):
    """Of 600 bags of 1, 2 or 3 samples, a third of them positive: twelve kinds, and not 600 computations."""
    bag = torch.repeat_interleave(torch.arange(600), torch.arange(600) % 3 + 1)
    y = (bag % 9 < 3).long()
    plan = BagBatches(bag, y, 3, 5, 2) if kind == "bags" else GroupBatches(bag, 16, 2, replacement=True)
    rows = Partition(bag, 600, [y == 0, y == 1], (torch.arange(600) % 9 >= 3).long())
    calls, absence = [], plan.absence
    monkeypatch.setattr(plan, "absence", lambda counts, share: calls.append(counts) or absence(counts, share))
    found = presence(rows, Drawn({}, plan), list(map(str, range(600))))
    assert len(calls) == 14
    some = [0, 4, 8, 300, 301, 599]
    each = presence([rows[i] for i in some], Drawn({}, plan), list(map(str, some)))
    torch.testing.assert_close(found[some], each, rtol=1e-12, atol=0)


def test_a_row_of_a_partition_without_samples_or_partners_is_named():
    drawn, of = Drawn({}, Uniform(4, 2)), torch.tensor([0, 0, 2, 2])
    with pytest.raises(DataError, match="no training sample belongs to subset 0 of 'b'"):
        presence(Partition(of, 3), drawn, ["a", "b", "c"])
    with pytest.raises(DataError, match="no training sample belongs to subset 1 of 'a'"):
        presence(Partition(of // 2, 2, [of > 5], torch.tensor([0, 0])), drawn, ["a", "b"])


def test_rare_rows_are_named_in_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_rare_rows(torch.tensor([0.05, 1.0]), ["a", "b"])
        warn_of_rare_rows(torch.full((100,), 0.04), list(map(str, range(100))))  # four in a batch, each a quarter
        warn_of_rare_rows(torch.tensor(50 * [0.16] + 1950 * [0.004]), list(map(str, range(2000))))  # classes alike
    with pytest.warns(UserWarning, match=r"few batches speak of '0' in 4.00%: .* up to 25 times"):
        warn_of_rare_rows(torch.tensor([0.04] + 99 * [1.0]), list(map(str, range(100))))
    with pytest.warns(UserWarning, match=r"few batches speak of 'a' in 4.00%: .* up to 25 times"):
        warn_of_rare_rows(torch.tensor([0.04, 1.0]), ["a", "b"])
    with pytest.warns(UserWarning, match="and 2 more"):
        warn_of_rare_rows(torch.full((7,), 0.01), list("abcdefg"))


def test_estimated_weights_tend_to_those_of_the_probabilities():
    probability, generator = torch.tensor([1.0, 0.5, 0.1]), torch.Generator().manual_seed(0)
    weights = EstimatedWeights(3)
    for _ in range(6000):
        weights.count((torch.rand(3, generator=generator) < probability).nonzero().flatten())
    found = weights(arrival([0, 1, 2]))
    torch.testing.assert_close(found, (1 / (3 * probability)).double(), rtol=0.1, atol=0)
    first = EstimatedWeights(4)(arrival([2, 3]))  # at first all rows are equally likely: n p = b
    assert first.tolist() == pytest.approx([0.5 * 17 / 17] * 2, rel=0.1)
    assert EstimatedWeights(2)(arrival([0, 1])) == pytest.approx(0.5)


def test_estimated_weights_are_part_of_a_checkpoint_and_keep_their_digits():
    first, second = EstimatedWeights(3), EstimatedWeights(3)
    for index in ([0, 1], [0], [0, 2]):
        first.count(torch.tensor(index))
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(arrival([0, 2])), first(arrival([0, 2])))
    assert second.half().counts.dtype == torch.float64
    assert second.counts.tolist() == [3, 1, 1, 3]


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.7, -0.4], dtype=torch.float64))

    def forward(self, x):
        return x @ self.w


X = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y, GROUP = torch.arange(8) % 2, torch.arange(8) // 2 % 2
BATCH = {"x": X, "y": Y, "group": GROUP, "index": torch.arange(8)}


class Mean(Objective):
    def direct(self, outputs, batch):
        return outputs.mean()


def weights_of(sampling):
    limits = [ROCFairness((0.0,), kappa=0.0), MeanAtMost(SoftRate(), kappa=0.1)]
    problem = SOX().pose(Mean(), limits, num_samples=8, sampling=sampling)
    return problem, [type(term.weights) for term in problem.all_terms]


def test_weights_are_exact_where_the_plan_is_known_and_estimated_elsewhere():
    drawn = {"target": Drawn({"y": Y, "group": GROUP}, Uniform(8, 4))}
    assert weights_of(drawn)[1] == [SubsetWeights, SubsetWeights]
    problem, kinds = weights_of(None)
    assert kinds == [EstimatedWeights, EstimatedWeights]
    assert sum(name.endswith("counts") for name in problem.state_dict()) == 2


def step(algorithm, objective, lr=0.1, steps=1):
    network = Scores()
    problem = algorithm.pose(objective, num_samples=8, dtype=torch.float64)
    engine = Engine(network, problem, algorithm)
    for _ in range(steps):
        estimates = engine.train_batch(BATCH, torch.optim.SGD(engine.params, lr=lr))
    return network, engine, estimates


@pytest.mark.parametrize("algorithm", [SOX(1.0), SONEX(1.0, 0.0, lam=1e-9)], ids=["SOX", "SONEX"])
def test_the_gradient_of_a_known_threshold_is_exact(algorithm):
    objective = CVaRGroupDRO(0.5, num_groups=2, threshold=0.8).double()
    network, engine, estimates = step(algorithm, objective, lr=0.0)
    w, s = (p.detach().clone().requires_grad_() for p in (network.w, objective.threshold))
    losses = nn.functional.softplus((1 - 2 * Y) * (X @ w))
    risks = torch.stack([losses[g == GROUP].mean() for g in (0, 1)])
    value = s + ((risks - s).clamp(min=0) / 0.5).mean()
    assert risks.min() < 0.8 < risks.max()  # one of the groups is in the tail
    torch.testing.assert_close([p.grad for p in engine.params], list(torch.autograd.grad(value, [w, s])))
    assert estimates["objective"].item() == pytest.approx(value.item(), abs=1e-8)
    torch.testing.assert_close(engine.problem.states[0].rows[:, 0], risks.detach())  # what is sampled, without s


class Tempered(Objective):
    """``(1/n) sum_i (s_i/t_i + t_i)`` with a temperature t_i of every sample."""

    sample_parameters = SampleParameters("t", 1, start=1.0, least=0.5, most=1.3, lr=0.2)

    def direct(self, outputs, batch):
        t = batch["t"][:, 0]
        return (outputs / t + t).mean()


def test_parameters_of_samples_descend_on_their_own_terms_within_their_bounds():
    network, engine, _ = step(SGD(), Tempered(), lr=0.0)
    t = engine.problem.row_parameters.state.rows[:, 0]
    scores = network(X).detach()
    expected = (1 - 0.2 * (1 - scores)).clamp(0.5, 1.3)  # d/dt (s/t + t) at t = 1
    torch.testing.assert_close(t, expected)
    assert t.max() == 1.3 or t.min() < 1
    _, engine, _ = step(SGD(), Tempered(), lr=0.0, steps=200)
    best = scores.clamp(min=0).sqrt().clamp(0.5, 1.3)
    torch.testing.assert_close(engine.problem.row_parameters.state.rows[:, 0], best, atol=1e-6, rtol=0)
    assert "row_parameters.state.rows" in engine.problem.state_dict()


@pytest.mark.parametrize("copies", [1, 2, 4])
def test_halves_of_batches_drawn_with_replacement_weigh_every_row_alike(copies):
    """On average over all batches; each half of a repeated batch holds all draws, half as often."""
    plan = GroupBatches(torch.tensor([0, 0, 1, 1, 1]), 2, 2, replacement=True, prevalence="data")
    columns = (plan if copies == 1 else RepeatedBatches(plan, copies)).columns()
    found, draws = torch.zeros(2, 5), list(product((0, 1), (2, 3, 4), (0, 1), (2, 3, 4)))
    for draw in draws:
        index = torch.tensor(draw).repeat(copies)
        batch = {name: column[index] for name, column in columns.items()} | {"index": index}
        for half, samples in enumerate(Samples({"": index}, {"": batch}).halves()):
            rows = samples.batch[""]["index"].unique()
            found[half, rows] += SampleWeights()(Arrival(rows, rows, samples.batch[""])) / len(draws)
    torch.testing.assert_close(found, torch.full((2, 5), 1 / 5))


def test_an_odd_number_of_copies_has_no_halves():
    batch = {"index": torch.arange(2).repeat(3), "replaced": torch.full((6,), 3)}
    with pytest.raises(ConfigError, match=r"every draw 3 times, .* an even number of copies"):
        Samples({"": batch["index"]}, {"": batch}).halves()
