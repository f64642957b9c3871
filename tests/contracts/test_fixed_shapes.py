"""Measuring reads no number of a tensor, has shapes that depend on the batch size only, and ignores masked entries.

This holds for every objective and constraint alone, and in a step of algorithms of every kind, which reads one number.
"""

from itertools import combinations, cycle, islice

import pytest
import torch
from torch.utils import _pytree as pytree

from fcco_lightning import HeavyBall
from fcco_lightning.engine import read
from fcco_lightning.errors import ConfigError, DataError
from tests.contracts.looks import Looks
from tests.contracts.registry_algorithms import ALGORITHMS
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES as OBJECTIVES
from tests.contracts.sampled import WAYS, Bench, N
from tests.contracts.trainings import Training, make_batches

pytestmark = pytest.mark.filterwarnings("ignore:MultiInstanceAUC compares:UserWarning")

CASES = {**OBJECTIVES, **{f"constraint: {name}": case for name, case in CONSTRAINTS.items()}}
UNIFORM = [[0, 1, 2, 6, 7, 8], [1, 3, 4, 6], [0, 2, 5], [0, 3, 0, 5, 5, 1, 3]]  # of both classes, of one, with repeats
every = pytest.mark.parametrize("name", CASES)


def drawn(name):
    """Batches that are drawn uniformly and in another way, each evaluated, with the bench; other cases have others."""
    others = [way for way in dict.fromkeys(("balanced", *CASES[name].unbiased)) if way != "uniform"]
    for way in ("uniform", others[[*CASES].index(name) % len(others)]):
        bench = Bench(CASES[name], WAYS[way]())
        some = UNIFORM if way == "uniform" else (list(b) for b, _ in islice(bench.way.sampler.batches(), 0, 60, 40))
        for index in some:
            yield bench, bench.engine.evaluate(bench.batch(index))


def test_looks_are_noticed():
    number, mask = torch.ones(()), torch.tensor([True, False])
    with Looks() as looks:
        for look in (float, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.nonzero, torch.Tensor.unique):
            look(number.view(1))
        _ = mask[mask], mask.repeat_interleave(torch.tensor([1, 2])), bool(mask.any())
        _ = torch.nonzero_static(mask, size=1), mask.repeat_interleave(2), mask[torch.tensor([1, 0])]
    assert len(looks.found) == 8


@every
def test_measuring_and_differentiating_look_at_no_number(name):
    for bench, seen in drawn(name):
        with Looks() as looks:
            now = bench.engine.measure(seen)
            total = sum(reading.g.sum() for reading in now[1]) + (0 if now[0] is None else now[0])
            torch.autograd.grad(total, bench.parameters(), allow_unused=True)
        assert looks.found == []


ONE_OF_A_KIND = (  # the others differ in what they make of rows, and are looked at below
    *("SGD", "SOX", "MSVR", "SONEX, multipliers", "ALEXR2, old", "SCENT", "PDSCA"),
    *("OOA", "PGSMD, best start", "PGSVRG, penalty"),
)


@every
@pytest.mark.parametrize("most", [1, pytest.param(len(ONE_OF_A_KIND), marks=pytest.mark.slow)])
def test_a_step_looks_once(name, most):
    """Of an algorithm that takes the problem, or of all: whether everything is finite, and with it what they ask."""
    took, first = 0, [*CASES].index(name) % len(ONE_OF_A_KIND)
    for algorithm in ONE_OF_A_KIND[first:] + ONE_OF_A_KIND[:first]:
        if took == most:
            break
        bench, member = Bench(CASES[name], WAYS["uniform"]()), ALGORITHMS[algorithm]
        if algorithm == "PDSCA" and bench.columns.get("y", torch.zeros(1)).dim() > 1:
            continue  # its loss is one of single labels
        try:
            engine = bench.started(member.make(), member.penalty())
            engine.arrivals.left = 0  # the first batches are looked at more than once
            optimizer = HeavyBall(engine.params, lr=0.01, beta=0.3)
            engine.train_batch(bench.batch(UNIFORM[0]), optimizer)  # the first one is checked
        except (ConfigError, DataError):
            continue
        took += 1
        for t, index in enumerate((UNIFORM[1], UNIFORM[3])):
            with Looks() as looks:
                engine.train_batch(bench.batch(index), optimizer, last_batch=t == 0)
            assert len(looks.found) <= 1, (algorithm, looks.found)
    assert took


MORE = {"SOXBoost": 2}  # at the end of a stage it draws a number, on the host


@pytest.mark.parametrize("name", ALGORITHMS)
def test_steps_of_every_algorithm_look_once(name):
    training = Training(ALGORITHMS[name])
    training.optimizer = HeavyBall(training.engine.params, lr=0.05, beta=0.3)  # Adam reads its own count of steps
    for t, batch in enumerate(make_batches(5)):
        with Looks() as looks:
            training.step(batch, last_batch=t == 3)
        assert t == 0 or len(looks.found) <= MORE.get(name, 1), looks.found


@every
def test_shapes_follow_from_the_size_of_a_batch_and_what_is_left_out_is_finite(name):
    bench, shapes = Bench(CASES[name]), set()
    for index in [*combinations(range(N), 4)][::11]:
        seen = bench.engine.evaluate(bench.batch(index))
        direct, rows = bench.part.measure(*read(seen.now, seen.columns, bench.part))
        assert direct is None or direct.shape == ()
        if rows is not None:
            assert rows.values.isfinite().all()
            assert rows.weight.dtype in (torch.bool, rows.values.dtype)
            assert not rows.weight.requires_grad
            assert rows.weight.shape == rows.values.shape[:1]
            assert rows.values.shape[1] == bench.part.width
        shapes.add((direct is None, rows is None or rows.values.shape, rows is None or rows.weight.dtype))
    assert len(shapes) == 1


# ------------------------------------------------------------------------------------------- what plays no role


def measured(bench, seen, leaves):
    """g_0 and what is said of rows, flat; with the weights of these."""
    outputs = pytree.tree_unflatten(leaves, pytree.tree_structure(seen.now))
    direct, rows = bench.part.measure(*read(outputs, seen.columns, bench.part))
    said = [] if direct is None else [direct.view(1)]
    if rows is None:
        return torch.cat(said), None
    assert rows.values.isfinite().all()
    return torch.cat([*said, rows.values[rows.weight != 0].flatten()]), rows.weight


def slopes(bench, seen, leaves):
    """What is said, and the gradients of a combination of it."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    said, weight = measured(bench, seen, leaves)
    mixed = said @ torch.linspace(1.0, 2.0, len(said), dtype=said.dtype)
    return said.detach(), weight, torch.autograd.grad(mixed, leaves, allow_unused=True, materialize_grads=True)


def silent(bench, seen, leaves):
    """Which outputs have no say: the slope is 0 there, also where hinges and tails lie elsewhere."""
    none = [torch.ones_like(leaf, dtype=torch.bool) for leaf in leaves]
    generator = torch.Generator().manual_seed(0)
    for size in (0.01, 0.01, 1.0):
        others = [size * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype) for leaf in leaves]
        none = [a & (g == 0) for a, g in zip(none, slopes(bench, seen, others)[2], strict=True)]
    return none


def of_others(bench, batch):
    """Columns that other objectives name, and this one does not."""
    names = {key for case in CASES.values() for key in case.columns} - {*bench.columns, *batch[bench.name]}
    unknown = torch.full((len(batch[bench.name]["x"]),), torch.nan)
    return {**batch, bench.name: batch[bench.name] | dict.fromkeys(names, unknown)}


@pytest.mark.parametrize(("name", "dtype"), [*zip(CASES, cycle([torch.float32, torch.float64]))])
def test_what_has_no_say_may_be_anything(name, dtype):
    """Outputs that enter nothing that is said, and columns of others."""
    extreme = 1e30 if dtype == torch.float32 else -1e30
    for bench, seen in drawn(name):
        bench.objective.to(dtype)
        leaves = [leaf.to(dtype) for leaf in pytree.tree_leaves(seen.now)]
        free = silent(bench, seen, leaves)
        filled = [torch.where(at, extreme, leaf) for at, leaf in zip(free, leaves, strict=True)]
        (said, weight, gradients), other = (
            slopes(bench, seen, leaves),
            slopes(bench, seen._replace(columns=of_others(bench, seen.columns)), filled),
        )
        torch.testing.assert_close(other[:2], (said, weight), rtol=1e-6, atol=1e-9)
        for at, expected, found in zip(free, gradients, other[2], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
            assert not found[at].any()


def test_some_outputs_have_no_say():
    """Those of a batch of one class, of other subsets, of labels that are not known."""
    for name in ("average precision", "mean average precision, labels missing", "constraint: false positive rate"):
        found = [any(at.any() for at in silent(b, s, pytree.tree_leaves(s.now))) for b, s in drawn(name)]
        assert any(found)
