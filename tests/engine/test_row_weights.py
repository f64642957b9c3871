"""Weights of rows in a mean over all rows, by enumeration and by hand; parameters of samples and of f."""

import warnings
from itertools import combinations, product

import pytest
import torch
from torch import nn

from fcco_lightning import ALEXR2, SGD, SONEX, SOX, CVaRGroupDRO, Engine, MeanAtMost, Objective, ROCFairness, SoftRate
from fcco_lightning.algorithms.two_draws import halves
from fcco_lightning.data.batches import BatchDraws, Drawn
from fcco_lightning.engine import Outputs
from fcco_lightning.engine.probability import Inclusion, can_know, partner_presence, presence, warn_of_rare_rows
from fcco_lightning.engine.terms import Term
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.objectives import Measurable, RowDomain, SampleParameters
from fcco_lightning.objectives.base import Partition
from fcco_lightning.outer import Square
from fcco_lightning.state import copies
from tests.contracts.registry_plans import PLANS
from tests.plans import BagBatches, GroupBatches

ROUNDING = 1e-12


class Uniform(BatchDraws):
    """Batches of ``size`` of the samples, all alike; probabilities by enumeration of a hypergeometric draw."""

    def __init__(self, num_samples, size):
        self.num_samples, self.size = num_samples, size

    def absence(self, counts, share=1.0):
        every = list(combinations(range(self.num_samples), int(self.size * share)))
        return sum(min(batch) >= int(counts) for batch in every) / len(every)


def weighed(weights, rows, present=None, names=None, /, **columns):
    """What the rows of a batch weigh in all: the weights of the entries times how much of its row each of them is."""
    names = torch.tensor(rows if names is None else names)
    present = torch.ones(len(names), dtype=torch.float64) if present is None else present.double()
    again = copies(names)
    each = present / again.total(present).clamp(min=1)
    found = weights.mean_weight(None if rows is None else torch.tensor(rows), columns, each, again)
    return each * found


class Part(Measurable):
    """Measures nothing."""

    def measure(self, outputs, batch):
        return None, None


def of_rows(number, probability=None, ratio=None):
    """A term of some rows; where samples own them, with the row that is none behind them."""
    owners = None if ratio is None else torch.ones(number, dtype=torch.bool)
    domain = RowDomain(number, per_sample=owners is not None, owners=owners)
    return Term("", Part(), Square(), domain, inclusion=Inclusion(probability, ratio))


def of_samples(*probability, ratio=1.0, rows=10):
    return of_rows(rows, *probability or (1.0,), ratio)


def test_samples_weigh_alike_or_as_their_column_says():
    assert weighed(of_samples(), [4, 1, 0], index=torch.tensor([4, 1, 0])).tolist() == pytest.approx([1 / 3] * 3)
    index, weight = torch.tensor([7, 3, 9, 3]), torch.tensor([2.0, 0.5, 1.0, 0.5])  # 3 comes twice
    rows, owns, names = [2, 0, 1, 0], index != 7, index.tolist()  # rows 0 and 1 of two, of samples 3 and 9
    half = of_samples(ratio=2.0, rows=2)
    assert weighed(half, rows, owns, names, index=index).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1 / 3])
    found = weighed(half, rows, owns, names, index=index, weight=weight)
    assert found.tolist() == pytest.approx([0, 0.5 * 2 / 4, 2 * 1 / 4, 0.5 * 2 / 4])
    assert half.state_dict() == {}  # known from the data again


def test_samples_that_a_batch_cannot_hold_twice_weigh_as_if_it_were_looked_up():
    index, weight, each = torch.tensor([7, 3, 9]), torch.tensor([2.0, 0.5, 1.0]), torch.ones(3)
    for columns in ({"index": index}, {"index": index, "weight": weight}):
        found = of_samples(ratio=2.0).mean_weight(index, columns, each, None) * each
        torch.testing.assert_close(found, of_samples(ratio=2.0).mean_weight(index, columns, each, copies(index)) * each)


def test_rows_of_samples_are_seen_with_a_partner_only():
    """Each has its own probability of that, and a sample without a row has none."""
    index = torch.tensor([5, 0, 2])
    weights = of_samples(torch.tensor([0.5, 0.25]), ratio=3.0, rows=2)
    found = weighed(weights, [2, 0, 1], torch.tensor([0, 1, 1]), [5, 0, 2], index=index)
    assert found.tolist() == pytest.approx([0, 1 / 0.5, 1 / 0.25])
    same = of_samples(torch.tensor([0.5, 0.5]), ratio=3.0, rows=2)
    assert weighed(same, [2, 0, 1], torch.tensor([0, 1, 1]), [5, 0, 2], index=index).tolist() == [0, 2, 2]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_partners_come_as_often_as_among_all_batches(share):
    owners, partners = torch.arange(7) < 3, torch.arange(7) == 5
    found = partner_presence(owners, partners, Drawn({}, Uniform(7, 4)), "pairs", share)
    batches = [batch for batch in combinations(range(7), int(4 * share)) if 0 in batch]
    assert found == pytest.approx(sum(5 in batch for batch in batches) / len(batches))


@pytest.mark.parametrize("replaced", [False, True])
def test_rows_of_labels_weigh_on_average_as_all_do(replaced):
    """Batches of three draws from five samples, which are drawn with probabilities of their own; two labels each."""
    chance = torch.tensor([0.1, 0.1, 0.2, 0.3, 0.3], dtype=torch.float64)
    owns = torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1], [0, 1]])  # by sample and label
    row_of = torch.where(owns.flatten() > 0, owns.flatten().cumsum(0) - 1, 7)
    weights, total = of_rows(7, 1.0, 5 / 7), torch.zeros(8, dtype=torch.float64)
    for draw in product(range(5), repeat=3):
        index = torch.tensor(draw)
        columns = {"index": index, "weight": 1 / (5 * chance[index])}
        names = torch.cat([2 * index, 2 * index + 1])
        rows, present = row_of[names], owns.flatten()[names]
        found = weighed(weights, rows.tolist(), present, names.tolist(), **columns)
        total.index_add_(0, rows, chance[index].prod() * found)
    torch.testing.assert_close(total[:7], torch.full((7,), 1 / 7, dtype=torch.float64))
    assert total[7] == 0


def test_rows_of_subsets_weigh_by_their_probabilities():
    weights = of_rows(3, torch.tensor([0.5, 0.1, 1.0]))
    assert weighed(weights, [2, 1]).tolist() == pytest.approx([1 / 3, 10 / 3])
    every = weighed(weights, None, torch.tensor([1, 0, 1]), [0, 1, 2])  # all rows, of one of which nothing is said
    assert every.tolist() == pytest.approx([2 / 3, 0, 1 / 3])
    assert weighed(of_rows(2, torch.tensor([0.5, 0.5])), [1]).item() == pytest.approx(1.0)
    assert weights.state_dict() == {}  # known from the data again


def test_the_mean_over_rows_is_right_on_average():
    """Over all batches of four of eight samples, of which each row needs some; values differ from row to row."""
    masks = [torch.arange(8) < 2, torch.arange(8) >= 5, torch.arange(8) % 2 == 0]
    rows = [[masks[0]], [masks[0], masks[1]], masks[1:]]
    weights = of_rows(3, presence(rows, Drawn({}, Uniform(8, 4)), ["a", "b", "c"]))
    values, every = torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64), list(combinations(range(8), 4))
    total = torch.zeros(3, dtype=torch.float64)
    for batch in every:
        spoken = torch.tensor([all(bool(mask[list(batch)].any()) for mask in row) for row in rows])
        total += weighed(weights, None, spoken, [0, 1, 2]) * values / len(every)
    torch.testing.assert_close(total, values / 3)


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
    """Row i has its samples, and needs a partner of one kind, of another, or none; sample 1 is in no row.

    Samples of weight 0 do not count.
    """
    plan, weights = case.tiny, case.tiny.weights()
    counting = torch.ones(plan.num_rows) > 0 if weights is None else weights > 0
    of = torch.tensor([0, -1, 1, 0, 2, 1, 2, 3, 3, 0])[: plan.num_rows]
    number = int(of.max()) + 1
    partners, partner_of = [of < 0, of == 0], torch.tensor([0, 1, -1, 0])[:number]
    rows = Partition(of, number, partners, partner_of)
    found = presence(rows, Drawn({}, plan), list("abcd")[:number])
    for row, probability in enumerate(found.tolist()):
        needed = [set((mask & counting).nonzero().flatten().tolist()) for mask in rows[row]]
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
    with pytest.warns(UserWarning, match=r"few batches contain samples of '0' .4.00% do.: .* up to 25 times"):
        warn_of_rare_rows(torch.tensor([0.04] + 99 * [1.0]), list(map(str, range(100))))
    with pytest.warns(UserWarning, match=r"few batches contain samples of 'a' .4.00% do.: .* up to 25 times"):
        warn_of_rare_rows(torch.tensor([0.04, 1.0]), ["a", "b"])
    with pytest.warns(UserWarning, match="and 2 more"):
        warn_of_rare_rows(torch.full((7,), 0.01), list("abcdefg"))


def test_estimated_weights_tend_to_those_of_the_probabilities():
    probability, generator = torch.tensor([1.0, 0.5, 0.1]), torch.Generator().manual_seed(0)
    weights = of_rows(3)
    for step in range(6000):
        spoken = torch.rand(3, generator=generator) < probability
        index = spoken.nonzero().flatten()
        weights.count(*((None, spoken.double()) if step % 2 else (index, torch.ones(len(index)))))
    found = weighed(weights, [0, 1, 2])
    torch.testing.assert_close(found, (1 / (3 * probability)).double(), rtol=0.1, atol=0)
    first = weighed(of_rows(4), [2, 3])  # at first all rows are equally likely: n p = b
    assert first.tolist() == pytest.approx([0.5 * 17 / 17] * 2, rel=0.1)
    assert weighed(of_rows(2), [0, 1]).tolist() == pytest.approx([0.5, 0.5])
    assert weighed(of_rows(100), [3]).tolist() == pytest.approx([17 / (100 * (1 + 16 / 100))])


@pytest.mark.parametrize("named", [False, True])
def test_batches_that_speak_of_all_rows_are_counted_as_any_other(named):
    """Batches of all rows and of some: p_i = (c_i + 16 b/n) / (T + 16) with this batch, b of n rows on average."""
    weights, batches = of_rows(3), [[0, 1, 2], [0, 1, 2], [1], [0, 1, 2], [0, 2], [2, 0, 1]]
    for held in batches:
        present = torch.tensor([float(i in held) for i in range(3)])
        weights.count(*((torch.tensor(held), torch.ones(len(held))) if named else (None, present)))
    assert weights.counts.tolist() == [5, 5, 5, 6]
    for now in ([0, 1, 2], [1]):
        rows = [5 + (i in now) for i in range(3)]
        share = (15 + len(now)) / (3 * 7)
        expected = [(i in now) * (7 + 16) / (3 * (rows[i] + 16 * share)) for i in range(3)]
        found = weighed(weights, None, torch.tensor([i in now for i in range(3)]), [0, 1, 2])
        assert found.tolist() == pytest.approx(expected, rel=1e-12)
        of_names = weighed(weights, now)
        assert of_names.tolist() == pytest.approx([expected[i] for i in now], rel=1e-12)


def test_a_first_batch_that_says_nothing_weighs_nothing():
    assert weighed(of_rows(3), None, torch.zeros(3), [0, 1, 2]).tolist() == [0, 0, 0]


def test_copies_of_a_row_count_once():
    weights, other, index = of_rows(3), of_rows(3), torch.tensor([2, 0, 2])
    assert weighed(weights, [2, 0, 2])[[0, 2]].sum() == pytest.approx(float(weighed(weights, [2, 0])[0]))
    weights.count(index, torch.tensor([0.5, 1.0, 0.5]))
    other.count(torch.tensor([0, 2]), torch.ones(2))
    assert torch.equal(weights.counts, other.counts)


def test_what_is_known_is_not_counted():
    weights = of_rows(3, torch.tensor([0.5, 0.1, 1.0]))
    weights.count(None, torch.ones(3))
    assert weights.counts is None
    assert list(weights.buffers()) == []


def test_estimated_weights_are_part_of_a_checkpoint_and_keep_their_digits():
    first, second = of_rows(3), of_rows(3)
    for index in ([0, 1], [0], [0, 2]):
        first.count(torch.tensor(index), torch.ones(len(index)))
    second.load_state_dict(first.state_dict())
    assert torch.equal(weighed(second, [0, 2]), weighed(first, [0, 2]))
    assert second.half().counts.dtype == torch.float64
    assert second.counts.tolist() == [3, 1, 1, 3]


def test_estimated_weights_of_earlier_checkpoints_are_read():
    """They called the counts ``weights.counts``."""
    problem, counted = SOX().pose(Mean(), [MeanAtMost(SoftRate(), kappa=0.1)], num_samples=8), torch.tensor([3.0, 5.0])
    state = problem.state_dict()
    state["terms.0.weights.counts"] = counted.double()
    del state["terms.0.counts"]
    problem.load_state_dict(state)
    assert problem.all_terms[0].counts.tolist() == [3, 5]
    assert "terms.0.weights.counts" in state


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
    def measure(self, outputs, batch):
        return outputs.mean(), None


def weights_of(sampling):
    limits = [ROCFairness((0.0,), kappa=0.0), MeanAtMost(SoftRate(), kappa=0.1)]
    problem = SOX().pose(Mean(), limits, num_samples=8, sampling=sampling)
    return problem, [term.counts is not None for term in problem.all_terms]


def test_weights_are_exact_where_the_plan_is_known_and_estimated_elsewhere():
    drawn = {"target": Drawn({"y": Y, "group": GROUP}, Uniform(8, 4))}
    assert weights_of(drawn)[1] == [False, False]
    problem, counted = weights_of(None)
    assert counted == [True, True]
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

    def measure(self, outputs, batch):
        t = batch["t"][:, 0]
        return (outputs / t + t).mean(), None


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


def evaluated(index, batch):
    return Outputs({"": index}, {"": batch}, None, None, {})


@pytest.mark.parametrize("times", [1, 2, 4])
def test_halves_of_batches_drawn_with_replacement_weigh_every_row_alike(times):
    """On average over all batches; each half of a repeated batch holds all draws, half as often."""
    plan = GroupBatches(torch.tensor([0, 0, 1, 1, 1]), 2, 2, replacement=True, prevalence="data")
    columns = (plan if times == 1 else plan.repeated(times)).columns()
    weights, draws = of_samples(rows=5), list(product((0, 1), (2, 3, 4), (0, 1), (2, 3, 4)))
    found = torch.zeros(2, 5, dtype=torch.float64)
    for draw in draws:
        index = torch.tensor(draw).repeat(times)
        batch = {name: column[index] for name, column in columns.items()} | {"index": index}
        for half, seen in enumerate(halves(evaluated(index, batch))):
            part = seen.columns[""]
            assert torch.equal(seen.now[""], part["index"])
            found[half].index_add_(0, part["index"], weighed(weights, part["index"].tolist(), **part) / len(draws))
    torch.testing.assert_close(found, torch.full((2, 5), 1 / 5, dtype=torch.float64), rtol=1e-6, atol=0)


def test_an_odd_number_of_copies_has_no_halves():
    batch = {"index": torch.arange(2).repeat(3), "replaced": torch.full((6,), 3)}
    with pytest.raises(ConfigError, match=r"every sample 3 times, .* an even number of copies"):
        ALEXR2(jacobian="halves").check(evaluated(batch["index"], batch))


def test_rows_of_which_no_batch_can_speak_are_not_called_rare():
    probability = torch.tensor([1.0, 0.0, 0.9, 0.0, 0.01], dtype=torch.float64)
    with (
        pytest.warns(UserWarning, match="no batch contains samples of all subsets of 'b' and 1 more, "),
        pytest.warns(UserWarning, match=r"few batches contain samples of 'e' .1.00% do.: .* up to 100 times"),
    ):
        warn_of_rare_rows(probability, list("abcde"))
