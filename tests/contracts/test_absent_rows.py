"""The inner values of rows that a batch does not contain have no effect, whatever finite numbers they are."""

from contextlib import contextmanager

import pytest
import torch

from fcco_lightning import (
    SGD,
    AdaptivePenalty,
    AugmentedLagrangian,
    CVaRGroupDRO,
    EqualizedOdds,
    FourFifthsRule,
    HingePenalty,
    Lagrangian,
    MeanAtMost,
    MeanNear,
    NuPI,
    ROCFairness,
    SoftRate,
)
from fcco_lightning.algorithms import SingleLoop
from fcco_lightning.analysis import value_of
from fcco_lightning.constraints.penalty import SmoothedHingePenalty, SquaredHingePenalty
from fcco_lightning.engine import Term
from fcco_lightning.engine.diagnosis import reason
from fcco_lightning.objectives import RowDomain
from fcco_lightning.outer import MoreauSmoothing
from tests.combinations import every_nth

from .registry_algorithms import ALGORITHMS, Member
from .registry_constraints import CASES as CONSTRAINTS
from .registry_estimators import ESTIMATORS
from .registry_objectives import CASES as OBJECTIVES
from .sampled import Bench
from .trainings import LogMargins, Margins, Training, assert_same_bits, leaves, make_batch

SHOWN = [[0, 3, 6, 9, 6, 0], [1, 4, 8, 11], [0, 6, 9, 10], [5, 3, 2, 11], [1, 7, 4, 1], [2, 5, 8, 11], [0, 1, 4, 2]]
"""Batches that lack groups, labels and owners of rows; each half of the third lacks others."""


def owned(kind):
    """The objective with rows of the positive samples alone."""

    class Owned(kind):
        def row_domain(self, num_samples, columns):
            return RowDomain(num_samples, per_sample=True, owners=columns["y"] == 1)

        def measure(self, outputs, batch):
            direct, rows = super().measure(outputs, batch)
            return direct, rows._replace(weight=batch["y"] == 1)

    return Owned()


def limits():
    """On subsets, groups, pairs of groups in strata, and one that holds on both sides."""
    names, soft = ["a", "b", "c"], SoftRate(temperature=0.5)
    return [
        MeanAtMost(soft, 0.3, {"y": 0}),
        MeanAtMost(soft, 0.3, {"group": 2}),
        MeanNear(soft, 0.9, 0.02, {"group": 1}),
        EqualizedOdds(0.02, soft, groups=names),
        FourFifthsRule(0.8, 0.01, soft, groups=names),
        ROCFairness([-0.5, 0.5], 0.05, 0.7, groups=names),
    ]


@contextmanager
def filled_with(size):
    """Inside, large numbers stand for everything that is measured for rows that a batch does not contain.

    Their signs alternate from row to row, and are drawn anew for every measurement; no two of them cancel.
    """
    contained, generator = Term.seen, torch.Generator().manual_seed(0)

    def filled(rows, sign):
        numbers = sign * size * torch.arange(1, len(rows.values) + 1, dtype=rows.values.dtype)
        numbers[1::2] *= -1
        return rows._replace(values=torch.where((rows.weight == 0).unsqueeze(1), numbers.unsqueeze(1), rows.values))

    def seen(term, now, before, *given):
        sign = 1 - 2 * int(torch.randint(2, (), generator=generator))
        found = contained(term, filled(now, sign), None if before is None else filled(before, sign), *given)
        if found.decided is None:
            return found
        return found._replace(decided=torch.where(found.present.unsqueeze(1), found.decided, -sign * size))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Term, "seen", seen)
        yield


def outcome(member):
    """Everything that a training leaves, and what it reports after every step."""
    objective = CVaRGroupDRO(0.5, num_groups=3).double() if member.max_form and member.objective is None else None
    if member.compositional and not member.max_form:
        objective = owned(LogMargins if member.logarithm else Margins)
    training, told = Training(member, objective=objective, limits=limits()), []
    for t, index in enumerate([*SHOWN, *SHOWN[:3]]):
        estimates = training.step(make_batch(index, t), last_batch=t == 4)
        told.append({**estimates, **training.problem.multipliers()})
    duals = [training.algorithm.duals(t, t.state.rows) for t in training.problem.all_terms if t.state is not None]
    return leaves([training.stored(), told, duals])


def assert_not_read(outcome, *case):
    expected = outcome(*case)
    with filled_with(1e30):
        assert_same_bits(expected, outcome(*case))


@pytest.mark.parametrize("name", every_nth(5, [n for n in ALGORITHMS if n != "SMD"]))  # which needs all rows in a batch
def test_no_algorithm_reads_them(name):
    assert_not_read(outcome, ALGORITHMS[name])


PENALTIES = {
    "squared hinge": lambda: SquaredHingePenalty(3.0),
    "smoothed hinge": lambda: SmoothedHingePenalty(3.0),
    "adaptive": AdaptivePenalty,
    "adaptive, decisions": lambda: AdaptivePenalty(decisions=True),
    "augmented": lambda: AugmentedLagrangian(rate=0.3),
    "Lagrangian, decisions": lambda: Lagrangian(0.3, decisions=True),
    "NuPI, decisions": lambda: NuPI(0.3, decisions=True),
}


@pytest.mark.parametrize(
    ("name", "penalty"),
    every_nth(7, [(n, p) for n in ("SOX", "MSVR", "SONEX", "ALEXR2, part", "PDSCA") for p in PENALTIES]),
)
def test_no_multiplier_reads_them(name, penalty):
    assert_not_read(outcome, ALGORITHMS[name]._replace(penalty=PENALTIES[penalty]))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_no_estimator_reads_them(name):
    make = ESTIMATORS[name].make
    penalty = AdaptivePenalty if make().follows_values else lambda: HingePenalty(3.0)
    assert_not_read(outcome, Member(lambda: SingleLoop(make(), MoreauSmoothing(0.1)), SGD, penalty=penalty))


def outcome_of_part(case):
    """The same of an objective or a constraint, by batches of a few of its samples."""
    bench = Bench(case)
    engine = bench.started(bench.algorithm, HingePenalty(3.0))
    optimizer = torch.optim.SGD(engine.params, lr=0.05)
    batches = [bench.batch(index) for index in ([0, 1, 3], [4, 2, 5], [8, 6], [1, 7, 5], [0, 3, 4, 8])]
    told = [dict(engine.train_batch(batch, optimizer)) for batch in batches]
    return leaves([engine.problem.state_dict(), engine.state_dict(), bench.parameters(), told])


@pytest.mark.parametrize("case", [*OBJECTIVES.values(), *CONSTRAINTS.values()], ids=[*OBJECTIVES, *CONSTRAINTS])
def test_those_of_every_part_are_not_read(case):
    assert_not_read(outcome_of_part, case)


@pytest.mark.parametrize("name", ["cvar", "kl", "chi square", "average precision"])
def test_those_are_not_read_where_a_whole_split_is_measured(name):
    bench = Bench(OBJECTIVES[name])
    objective, columns = bench.objective, bench.batch([4, 2, 5])[bench.name]
    measure = objective.measure

    def gradient(value=None):
        def filled(*given):
            direct, rows = measure(*given)
            absent = (rows.weight == 0).unsqueeze(1)
            return direct, rows if value is None else rows._replace(values=torch.where(absent, value, rows.values))

        objective.measure = filled
        return bench.gradient_of(value_of(objective, bench.network(columns["x"]), columns))

    expected = gradient()
    assert expected.isfinite().all()
    for value in (1e30, -1e30):
        assert torch.equal(gradient(value), expected)


def test_no_message_reads_them():
    bench = Bench(CONSTRAINTS["loss of the group of one"])
    engine, batch = bench.engine, bench.batch([0, 1])
    outputs = engine.evaluate(batch)
    with filled_with(1e30), torch.no_grad():
        found = reason(engine.problem, engine.functions, engine.measure, batch, outputs, [torch.tensor(1e25)])
    assert "overflows" in found
    assert "e+30" not in found
