"""Properties of every algorithm in the registry."""

import copy
import functools
import itertools
import pickle
from typing import NamedTuple

import pytest
import torch

from fcco_lightning import CVaRGroupDRO, Objective
from fcco_lightning.errors import ConfigError, NonFiniteError
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import Ratio
from fcco_lightning.state.processes import Processes
from tests.state import pool as pools

from .divided import train_all
from .registry_algorithms import ALGORITHMS
from .trainings import BROKEN, Margins, MergedMargins, Training, assert_same_bits, leaves, make_batch, make_batches

pool = pools.pool  # the fixture


def every(**wanted):
    """All members with these capabilities."""
    chosen = [name for name, m in ALGORITHMS.items() if all(getattr(m, k) == v for k, v in wanted.items())]
    return pytest.mark.parametrize("name", chosen)


# ------------------------------------------------------------------------------------------------------------- resume

BATCHES = make_batches(7)
LAST = 4  # an epoch ends here, in the middle of an inner loop


def run(training, start=0, stop=7):
    for t in range(start, stop):
        training.step(BATCHES[t], last_batch=t == LAST)


class Uninterrupted(NamedTuple):
    """What a training that nothing happens to holds before every step and at the end, and its parts then."""

    held: list[dict]
    training: Training


@functools.cache
def uninterrupted(name):
    training, held = Training(ALGORITHMS[name]), []
    for t in range(len(BATCHES)):
        held.append(leaves(training.stored()))
        run(training, t, t + 1)
    return Uninterrupted([*held, leaves(training.stored())], training)


@every()
def test_a_checkpoint_after_any_step_continues_bit_for_bit(name):
    """Every step is done by a training that knows no more than the checkpoint before it."""
    before = Training(ALGORITHMS[name])
    for t, held in enumerate(uninterrupted(name).held):
        resumed = Training(ALGORITHMS[name])
        resumed.load(before.save())
        assert_same_bits(held, leaves(resumed.stored()))
        if t < len(BATCHES):
            run(resumed, t, t + 1)
        before = resumed


@every()
def test_a_copy_goes_on_as_the_original_and_leaves_it_alone(name):
    """Made within an inner loop, by ``copy.deepcopy`` and by pickle."""
    training = Training(ALGORITHMS[name])
    run(training, 0, 2)
    before = leaves(training.stored())
    for copied in (copy.deepcopy(training), pickle.loads(pickle.dumps(training))):  # noqa: S301 - of this test
        run(copied, 2)
        assert_same_bits(uninterrupted(name).held[-1], leaves(copied.stored()))
    assert_same_bits(before, leaves(training.stored()))


@every()
def test_the_checkpoint_matters(name):
    other, whole = Training(ALGORITHMS[name]), leaves(uninterrupted(name).training.stored()["network"])
    run(other, 5)
    moved = [k for k, v in whole.items() if not torch.equal(v, leaves(other.stored()["network"])[k])]
    assert len(moved) == 4


# ---------------------------------------------------------------------------------------------------------- bad values


def forwards_per_step(name):
    training = Training(ALGORITHMS[name])
    run(training, 0, 2)
    before = training.forwards
    run(training, 2, 3)
    return training.forwards - before


@functools.cache
def spoils(name, at):
    """What can be bad in a step; the first one, and those at the start of an inner loop of 3, have no point before."""
    kinds = ["feature", "value", *["gradient"] * ALGORITHMS[name].gradients]
    if at == 2 and forwards_per_step(name) == 2:
        kinds += ["second value", *["second gradient"] * name.startswith(("MSVR", "PDSCA"))]
    return kinds


def bad_step(training, spoil):
    batch = {k: v.clone() for k, v in make_batches(1, seed=5)[0].items()}
    if spoil == "feature":
        batch["x"][2, 1] = BROKEN
    else:
        training.spoil(spoil.split()[-1], 2 if spoil.startswith("second") else 1)
    with pytest.raises(NonFiniteError, match="no row and no weight was changed"):
        training.step(batch)


@every()
def test_a_value_that_is_not_finite_changes_nothing_and_training_goes_on(name):
    expected, training = uninterrupted(name).held, Training(ALGORITHMS[name])
    for t in range(len(BATCHES)):
        for spoil in spoils(name, t) if t in (0, 2, 3) else ():  # the first step of all, inside and at a loop's start
            bad_step(training, spoil)
            assert_same_bits(expected[t], leaves(training.stored()))
        run(training, t, t + 1)
    assert_same_bits(expected[-1], leaves(training.stored()))


def test_second_forwards_are_where_they_are_expected():
    for name in ("MSVR", "SONX", "SONEX", "ALEXR", "ALEXR2, part", "DoubleLoop"):
        assert forwards_per_step(name) == 2
    for name in ("SGD", "BSGD", "SOX", "SOAP", "MOAP", "OOA", "SMD"):
        assert forwards_per_step(name) != 2


# ---------------------------------------------------------------------------------------------------------- duplicates


@every(max_form=False, compositional=True, logarithm=False)
def test_repeated_samples_count_once_with_the_mean_of_their_values(name):
    own, merged = (Training(ALGORITHMS[name], objective=kind(), limits=[]) for kind in (Margins, MergedMargins))
    for t, index in enumerate([[0, 1, 0, 3, 3, 4], [5, 5, 5, 1, 0, 1], [2, 7, 2, 9, 9, 9]]):
        own.step(make_batch(index, t))
        merged.step(make_batch(index, t))
    torch.testing.assert_close([*own.engine.params], [*merged.engine.params], rtol=1e-12, atol=1e-13)
    for a, b in zip(own.problem.states, merged.problem.states, strict=True):
        torch.testing.assert_close(a.rows, b.rows, rtol=1e-12, atol=1e-13, equal_nan=True)


# ----------------------------------------------------------------------------------------------------------- processes


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3])
def divided(request, pool):
    """Results of the members that are looked at, in several processes and in one."""
    here = [i for i in request.session.items if i.path == request.path and "divided" in i.fixturenames]
    names = sorted({i.callspec.params["name"] for i in here if i.callspec.params["divided"] == request.param})
    return pool.values(train_all, request.param, request.param, names), train_all(Processes(), request.param, names)


@every()
def test_several_processes_with_parts_of_a_batch_equal_one_with_all_of_it(name, divided):
    several, alone = divided
    for key in [key for key in alone if key[0] == name]:
        weights, rows = alone[key]
        for other, _ in (one[key] for one in several):
            torch.testing.assert_close(other, weights, rtol=1e-11, atol=1e-12)
            assert torch.equal(other, several[0][key][0])  # the replicas have not drifted apart by a bit
        for position, (table, _) in enumerate(rows):
            held, split = zip(*(one[key][1][position] for one in several), strict=True)
            assert split[0] == (key[1] == "sharded" and position == 0 and len(table) > 3)
            for whole in [torch.cat(held)] if split[0] else held:
                torch.testing.assert_close(whole, table, rtol=1e-11, atol=1e-12, equal_nan=True)


# ------------------------------------------------------------------------------------------------------- micro-batches


@pytest.mark.parametrize(("name", "size"), [*zip(ALGORITHMS, itertools.cycle([4, 1]))])
def test_micro_batches_of_a_batch_give_its_gradient(name, size):
    whole, cut = uninterrupted(name).training, Training(ALGORITHMS[name], micro_batch=size)
    run(cut)
    torch.testing.assert_close([*cut.engine.params], [*whole.engine.params], rtol=1e-12, atol=1e-13)
    for a, b in zip(cut.problem.states, whole.problem.states, strict=True):
        torch.testing.assert_close(a.rows, b.rows, rtol=1e-12, atol=1e-13, equal_nan=True)


# ---------------------------------------------------------------------------------------------------------- evaluation


@every()
def test_evaluation_writes_nothing(name):
    training, expected = Training(ALGORITHMS[name]), uninterrupted(name).held
    run(training, 0, 2)
    training.network.eval()
    with torch.no_grad():
        batch = training.given(BATCHES[5])
        parts = batch if training.two_parts else {"target": batch}
        training.engine.measure(training.engine.evaluate(parts))
        for term in training.problem.all_terms:
            if term.state is not None:
                training.algorithm.duals(term, term.state.rows)
    training.network.train()
    assert_same_bits(expected[2], leaves(training.stored()))
    run(training, 2)
    assert_same_bits(expected[-1], leaves(training.stored()))


# ------------------------------------------------------------------------------------------------------ wrong problems


class Ratios(Objective):
    """f(u) = -u_1/u_2 is not convex."""

    outer, width = Ratio(), 2

    def measure(self, outputs, batch):
        values = torch.stack([torch.sigmoid(outputs), 1 + torch.sigmoid(outputs)], 1)
        return None, Rows(values, torch.ones_like(outputs, dtype=torch.bool))


def pose(name, objective):
    return ALGORITHMS[name].make().pose(objective, num_samples=12)


@every(max_form=False, logarithm=False, inner=True)
def test_functions_that_are_not_convex(name):
    if not ALGORITHMS[name].convex:
        assert pose(name, Ratios()).all_terms[0].outer == Ratio()
        return
    with pytest.raises(ConfigError, match=f"{ALGORITHMS[name].make().name} needs a convex outer function"):
        pose(name, Ratios())


@every(logarithm=False, inner=True)
def test_forms_of_an_objective(name):
    cvar = CVaRGroupDRO(0.5, num_groups=3)
    if ALGORITHMS[name].max_form:
        assert pose(name, cvar).all_terms[0].outer.coupled
        with pytest.raises(ConfigError, match="Margins is not a maximum over weights of groups, as OOA and SMD need"):
            pose(name, Margins())
    else:
        pose(name, cvar)
        with pytest.raises(ConfigError, match=f"{ALGORITHMS[name].make().name} needs an outer function for each row"):
            pose(name, cvar.max_form())


@every()
def test_rows_are_allocated_where_they_are_remembered(name):
    member = ALGORITHMS[name]
    sizes = [tuple(s.rows.shape) for s in Training(member).problem.states]
    groups = member.max_form and "samples" not in name
    expected = [(3, 1)] if groups else [(12, 1)] if member.max_form else [(12, 1), (1, 1)]
    assert sizes == (expected if member.rows else [])


# -------------------------------------------------------------------------------------------------------------- frozen


@every()
@pytest.mark.filterwarnings("ignore:.* began outside")  # as in Training, when the layers are thawed
def test_frozen_layers_stay_and_are_not_remembered(name):
    training = Training(ALGORITHMS[name], frozen=True)
    start = [p.clone() for p in training.network.parameters()]
    run(training, 0, 4)
    moved = [not torch.equal(a, b) for a, b in zip(start, training.network.parameters(), strict=True)]
    assert moved == [False, False, True, True]
    shapes = {
        tuple(v.shape)
        for k, v in leaves(training.stored()["engine"]).items()
        if "algorithm/" in k and isinstance(v, torch.Tensor) and v.dim()
    }
    assert not shapes & {(4, 3)}  # the weight of the frozen layer
    training.network[0].requires_grad_(True)
    training.optimizer.add_param_group(
        {**training.optimizer.param_groups[0], "params": list(training.network[0].parameters())}
    )
    assert training.engine.follow_parameters()
    for _ in range(2):
        run(training, 5)
    assert all(not torch.equal(a, b) for a, b in zip(start, training.network.parameters(), strict=True))


def test_scent_is_for_logarithms_alone():
    with pytest.raises(
        ConfigError, match=r"SCENT needs an objective whose outer function is a logarithm; that of Ratios is"
    ):
        pose("SCENT", Ratios())
