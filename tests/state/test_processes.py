"""Collective calls of processes: gathering, sums, means and gradients."""

import time
from contextlib import ExitStack
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from fcco_lightning.state.processes import Processes, require_same_everywhere
from tests.state.pool import Failure, attempt

DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64]


def columns(rank, rows, seed=0):
    """What a process contributes: a tensor of every dtype, then other shapes and one that is not contiguous."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    tensors = [torch.randint(0, 250, (rows,), generator=generator).to(dtype) for dtype in DTYPES]
    tensors += [torch.randn(rows, *shape, generator=generator) for shape in [(3,), (2, 2), (1,), (0,)]]
    return [*tensors, torch.randn(4, rows, generator=generator).T]


def same(one, other):
    return one.dtype == other.dtype and torch.equal(one, other)


# ---- gather


def gather_columns(processes, sizes, seeds):
    return [processes.gather(columns(processes.rank, sizes[processes.rank], seed), 2) for seed in seeds]


@pytest.mark.parametrize(
    "sizes", [(2, 2), (3, 1), (0, 4), (5, 0), (0, 0), (2, 2, 2), (1, 0, 3), (4, 4, 4, 4), (1, 2, 0, 5)], ids=str
)
def test_gather_concatenates_in_the_order_of_ranks(pool, sizes):
    for results in pool.values(gather_columns, len(sizes), sizes, (0, 1)):
        for seed, gathered in enumerate(results):
            parts = [columns(rank, b, seed) for rank, b in enumerate(sizes)]
            expected = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
            assert all(same(e, t) for e, t in zip(expected, gathered.tensors, strict=True))
            assert gathered.sizes == list(sizes)
            assert gathered.marks == [2] * len(sizes)


def gather_many(processes, rounds):
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    results, collectives, original = [], [], getattr(dist, name)

    def counted(*args, **options):
        collectives[-1] += 1
        return original(*args, **options)

    setattr(dist, name, counted)
    try:
        for seed, sizes in enumerate(rounds):
            collectives.append(0)
            results.append(processes.gather(columns(processes.rank, sizes[processes.rank], seed)).tensors)
    finally:
        setattr(dist, name, original)
    return results, collectives


def test_only_a_gather_larger_than_all_before_takes_a_second_collective(pool):
    rounds = [(1, 1, 1), (1, 1, 1), (2, 3, 90), (90, 90, 90), (1, 0, 2), (500, 0, 0), (0, 0, 0), (7, 500, 3)]
    for results, collectives in pool.values(gather_many, 3, rounds):
        assert collectives == [2, 1, 2, 1, 1, 2, 1, 1]
        for seed, (sizes, tensors) in enumerate(zip(rounds, results, strict=True)):
            parts = zip(*(columns(rank, b, seed) for rank, b in enumerate(sizes)), strict=True)
            assert all(same(torch.cat(p), t) for p, t in zip(parts, tensors, strict=True))


def gather_marks(processes):
    nothing = processes.gather([], processes.rank)
    some = processes.gather([torch.ones(2)], 4 * (processes.rank == 1))
    return nothing, some.marks, [some.any_mark(m) for m in (1, 2, 4)]


def test_marks_of_one_process_are_seen_by_all(pool):
    for nothing, marks, seen in pool.values(gather_marks, 3):
        assert (nothing.tensors, nothing.sizes, nothing.marks) == ([], [0, 0, 0], [0, 1, 2])
        assert marks == [0, 4, 0]
        assert seen == [False, False, True]


def count_exchanges(processes):
    before = processes.bytes
    processes.gather([torch.ones(10)])
    after = processes.bytes
    processes.sum_(torch.ones(5, dtype=torch.float64))
    return before, after, processes.bytes - after


def test_bytes_are_counted(pool):
    for before, after, summed in pool.values(count_exchanges, 2):
        assert before == 0
        assert after >= 40
        assert summed == 40


# ---- gradients


def surrogate(scores, features, weight):
    """A function of all rows together, so that every row's gradient depends on the others; and of ``weight``."""
    pairs = torch.tanh(scores.unsqueeze(1) - scores) * (features @ features.T)
    return pairs.square().sum() * weight.exp() + weight


def outputs_of(parameters, x):
    scores = torch.tanh(x @ parameters[0]).sum(1) * parameters[1]
    return scores, x * parameters[1]


def make_parameters():
    generator = torch.Generator().manual_seed(5)
    shapes = [(3, 4), (), ()]
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def make_x(rows):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def gradients_together(processes, sizes):
    parameters = make_parameters()
    x = make_x(sum(sizes)).split(sizes)[processes.rank]
    outputs = [o.detach().requires_grad_() for o in outputs_of(parameters, x)]
    union = processes.gather([*outputs, x]).tensors
    assert [u.requires_grad for u in union] == [True, True, False]
    direct = torch.autograd.grad(surrogate(*union[:2], parameters[2]), outputs)
    union = processes.gather(list(outputs_of(parameters, x))).tensors
    gradients = torch.autograd.grad(surrogate(*union, parameters[2]), parameters)
    processes.average_(gradients)
    return direct, gradients


@pytest.mark.parametrize("sizes", [(4, 4), (6, 1), (0, 5), (3, 3, 3), (2, 0, 5), (0, 7, 0), (1, 2, 3, 4)], ids=str)
def test_the_average_of_gradients_is_the_gradient_of_the_union(pool, sizes):
    parameters, x = make_parameters(), make_x(sum(sizes))
    outputs = outputs_of(parameters, x)
    value = surrogate(*outputs, parameters[2])
    direct = [g.split(sizes) for g in torch.autograd.grad(value, outputs, retain_graph=True)]
    expected = torch.autograd.grad(value, parameters)
    for rank, (own, averaged) in enumerate(pool.values(gradients_together, len(sizes), sizes)):
        torch.testing.assert_close(averaged, expected, rtol=1e-12, atol=1e-12)
        for gradient, parts in zip(own, direct, strict=True):  # before averaging: P times one's part
            torch.testing.assert_close(gradient, len(sizes) * parts[rank], rtol=1e-12, atol=1e-12)


def gather_without_grad(processes):
    leaf = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        silent = processes.gather([leaf]).tensors[0].requires_grad
    whole = processes.gather([leaf]).tensors[0]
    return silent, whole.requires_grad


def test_no_graph_where_none_is_wanted(pool):
    assert pool.values(gather_without_grad, 2) == [(False, True)] * 2


# ---- sums and means


def sums_and_means(processes):
    rank = processes.rank
    whole = torch.full((2, 3), 2**40 + rank)
    returned = processes.sum_(whole)
    scalar = processes.sum_(torch.tensor(rank))
    tensors = [
        torch.full((2, 2), float(rank)),
        torch.tensor(10.0 * rank),
        torch.full((3, 2), rank, dtype=torch.float64).T,
        torch.empty(0),
    ]
    pointers = [t.data_ptr() for t in tensors]
    processes.average_(tensors)
    processes.average_([])
    assert [t.data_ptr() for t in tensors] == pointers
    return returned is whole, whole, scalar, tensors


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_are_exact_and_means_in_place(pool, size):
    total = size * (size - 1) // 2
    for in_place, whole, scalar, (square, single, transposed, empty) in pool.values(sums_and_means, size):
        assert in_place
        assert torch.equal(whole, torch.full((2, 3), size * 2**40 + total))
        assert scalar.item() == total
        assert torch.equal(square, torch.full((2, 2), total / size))
        assert single.item() == 10 * total / size
        assert torch.equal(transposed, torch.full((2, 3), total / size, dtype=torch.float64))
        assert empty.shape == (0,)


def average_of_leaf(processes):
    leaf = torch.full((2,), float(processes.rank), requires_grad=True)
    processes.average_([leaf])
    return leaf.requires_grad, leaf.grad_fn is None, leaf.tolist()


def copies_of_the_first(processes):
    tensors = [torch.full((2, 3), processes.rank, dtype=kind).T for kind in (torch.float32, torch.int64)]
    processes.copy_first_(tensors)
    return [tensor.tolist() for tensor in tensors]


@pytest.mark.parametrize("size", [1, 2])
def test_all_have_the_tensors_of_the_first_process(pool, size):
    assert pool.values(copies_of_the_first, size) == [[[[0, 0]] * 3] * 2] * size


def test_means_of_tensors_that_are_trained(pool):
    assert pool.values(average_of_leaf, 2) == [(True, True, [0.5, 0.5])] * 2


# ---- failures

MEETINGS = {
    "gather": lambda p: p.gather([torch.ones(3)]),
    "larger gather": lambda p: p.gather([torch.ones(3000)]),
    "agree": lambda p: p.agree(),
    "everyone": lambda p: p.everyone("here"),
    "together": lambda p: together(p, lambda: None),
}


def together(processes, body):
    with processes.together():
        body()


def guarded(processes, body, depth=1):
    with ExitStack() as stack:
        for _ in range(depth):
            stack.enter_context(processes.guard())
        body()


def fail_with(kind, message):
    raise kind(message)


def one_fails(processes, failing, meeting, kind, depth):
    processes.gather([torch.ones(2)])
    if processes.rank in failing:
        message = f"broken {processes.rank}"
        outcome = attempt(guarded, processes, lambda: fail_with(kind, message), depth)
    else:
        outcome = attempt(MEETINGS[meeting], processes)
    return outcome, processes.gather([torch.tensor([processes.rank])]).tensors[0].tolist()


@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("failing", [(0,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_a_failure_stops_all_in_the_same_call_and_the_group_goes_on(pool, failing, meeting):
    for rank, (outcome, after) in enumerate(pool.values(one_fails, 3, failing, meeting, ValueError, 1)):
        assert after == [0, 1, 2]
        if rank in failing:
            assert outcome[:2] == ("ValueError", f"broken {rank}")
        else:
            assert outcome.kind == "PeerError"
            assert [r for r in range(3) if f"process {r} failed with ValueError: broken {r}" in outcome.message] == [
                *failing
            ]
            assert "this process stops too" in outcome.message


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, RuntimeError])
@pytest.mark.parametrize("depth", [1, 3])
def test_every_kind_of_exception_is_told_once(pool, kind, depth):
    (first, _), (second, _) = pool.values(one_fails, 2, (1,), "gather", kind, depth)
    assert second[:2] == (kind.__name__, "broken 1")
    assert first.kind == "PeerError"
    assert f"{kind.__name__}: broken 1" in first.message


def all_together(processes, failing):
    body = (lambda: fail_with(KeyError, "x")) if processes.rank in failing else (lambda: None)
    return attempt(together, processes, body)


@pytest.mark.parametrize("failing", [(), (1,), (0, 3), (0, 1, 2, 3)], ids=str)
def test_all_get_through_together_or_none(pool, failing):
    outcomes = pool.run(all_together, 4, failing)
    if not failing:
        assert outcomes == [None] * 4
        return
    assert [o.kind for o in outcomes] == ["KeyError" if rank in failing else "PeerError" for rank in range(4)]


def fail_from(error):
    raise TypeError("while tidying up") from error


def tell_twice(processes, wrapped):
    """A failure on its way out passes several guards; a PeerError is no news, who gets one has nobody left to tell."""

    def body():
        try:
            with processes.guard():
                if processes.rank == 0:
                    fail_with(ValueError, "first")
                processes.agree()
        except Exception as error:
            fail_from(error) if wrapped else processes.fail(error)
            raise

    return attempt(guarded, processes, body)


@pytest.mark.parametrize("wrapped", [False, True], ids=["as it was", "wrapped"])
def test_what_is_known_is_not_told_again(pool, wrapped):
    outcomes = pool.run(tell_twice, 3, wrapped, limit=5)
    if wrapped:
        assert [o.kind for o in outcomes] == ["TypeError"] * 3
        return
    assert [o.kind for o in outcomes] == ["ValueError", "PeerError", "PeerError"]
    assert all("process 0 failed with ValueError: first" in o.message for o in outcomes[1:])


OTHER_TENSORS = {
    "shape": [[torch.ones(2, 3)], [torch.ones(2, 4)], [torch.ones(2, 3)]],
    "dtype": [[torch.ones(2)], [torch.ones(2)], [torch.ones(2, dtype=torch.float64)]],
    "number": [[torch.ones(2), torch.ones(2)], [torch.ones(2)], [torch.ones(2)]],
    "none": [[], [torch.ones(2)], [torch.ones(2)]],
    "order": [[torch.ones(2), torch.ones(2, 1)], [torch.ones(2, 1), torch.ones(2)], [torch.ones(2), torch.ones(2, 1)]],
    "dimensions": [[torch.ones(4, 1)], [torch.ones(4)], [torch.ones(40, 1)]],
}


def gather_other_tensors(processes, tensors):
    outcome = attempt(processes.gather, tensors[processes.rank])
    return outcome, processes.gather([torch.tensor([processes.rank])]).tensors[0].tolist()


@pytest.mark.parametrize("case", OTHER_TENSORS)
def test_other_tensors_on_another_process_stop_all(pool, case):
    for outcome, after in pool.values(gather_other_tensors, 3, OTHER_TENSORS[case]):
        assert outcome.kind == "PeerError"
        for rank, tensors in enumerate(OTHER_TENSORS[case]):
            assert f"process {rank} has [" in outcome.message
            assert all(str(t.dtype).removeprefix("torch.") in outcome.message for t in tensors)
        assert after == [0, 1, 2]


def gather_crooked(processes, tensors, ranks):
    even = [torch.ones(3), torch.ones(3, 2)]
    outcome = attempt(processes.gather, tensors if processes.rank in ranks else even)
    return outcome, processes.gather([torch.tensor([processes.rank])]).tensors[0].tolist()


@pytest.mark.parametrize(
    "tensors",
    [[torch.ones(3), torch.ones(4, 2)], [torch.ones(4), torch.ones(3, 2)], [torch.tensor(1.0), torch.ones(3, 2)]],
    ids=["more", "fewer", "no rows"],
)
@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["one", "all"])
def test_tensors_of_different_lengths_are_never_mixed_up(pool, tensors, ranks):
    for rank, (outcome, after) in enumerate(pool.values(gather_crooked, 2, tensors, ranks, limit=5)):
        assert isinstance(outcome, Failure)
        assert (outcome.kind == "PeerError") == (rank not in ranks)
        assert after == [0, 1]


def fail_again(processes):
    outcomes = []
    for message in ("first", "second"):
        if processes.rank == 1:
            outcomes.append(attempt(guarded, processes, lambda said=message: fail_with(ValueError, said), 2))
        else:
            outcomes.append(attempt(processes.gather, [torch.ones(2)]))
    return outcomes


def test_a_second_failure_is_told_too(pool):
    for rank, outcomes in enumerate(pool.values(fail_again, 2, limit=5)):
        assert [o.kind for o in outcomes] == (["ValueError"] * 2 if rank else ["PeerError"] * 2)
        assert ["first" in outcomes[0].message, "second" in outcomes[1].message] == [True, True]


def fail_alone(processes):
    lonely, start = Processes(dist.new_group(timeout=timedelta(seconds=20))), time.monotonic()
    if processes.rank == 0:
        lonely.fail(ValueError("nobody listens"), timeout=0.3)
    return time.monotonic() - start


def test_a_failure_that_nobody_listens_to_takes_the_given_time(pool):
    waited, *_ = pool.values(fail_alone, 4)
    assert 0.2 < waited < 5


# ---- what must be the same


def say(processes, descriptions):
    return attempt(require_same_everywhere, processes, descriptions[processes.rank])


def test_the_same_everywhere_is_accepted(pool):
    assert pool.values(say, 3, [{"rows": "10", "seed": "1"}] * 3) == [None] * 3


def test_a_difference_is_named_with_the_value_of_every_process(pool):
    descriptions = [{"rows": "10", "seed": str(seed)} for seed in (1, 1, 2)]
    for outcome in pool.run(say, 3, descriptions):
        assert outcome.kind == "ConfigError"
        assert "do not agree on `seed`. process 0: 1; process 1: 1; process 2: 2." in outcome.message


@pytest.mark.parametrize("lacking", [0, 1])
def test_something_that_one_process_lacks_is_a_difference(pool, lacking):
    descriptions = [{"rows": "10"} if rank == lacking else {"rows": "10", "seed": "1"} for rank in range(2)]
    for outcome in pool.run(say, 2, descriptions):
        assert isinstance(outcome, Failure)
        assert "`seed`" in outcome.message


def say_or_fail(processes):
    if processes.rank == 1:
        return attempt(guarded, processes, lambda: fail_with(OSError, "no file"))
    return attempt(processes.everyone, processes.rank)


def test_everyone_hears_of_a_failure(pool):
    assert [o.kind for o in pool.run(say_or_fail, 3)] == ["PeerError", "OSError", "PeerError"]


def values_of_everyone(processes):
    return processes.everyone({"rank": processes.rank})


def test_values_of_everyone_come_by_rank(pool):
    assert pool.values(values_of_everyone, 4) == [[{"rank": r} for r in range(4)]] * 4


# ---- a group apart


def exchange_apart(processes):
    """The two groups are used in another order by every other process."""
    apart, number = Processes.apart(), torch.tensor(1)
    reduced = {}

    def begin():
        reduced["work"] = dist.all_reduce(number, group=processes.group, async_op=True)

    if processes.rank % 2:
        begin()
    gathered = apart.gather([torch.tensor([processes.rank])]).tensors[0].tolist()
    if not reduced:
        begin()
    reduced["work"].wait()
    return apart.size, apart.rank, gathered, number.item()


def test_what_is_exchanged_apart_does_not_get_between(pool):
    assert pool.values(exchange_apart, 4) == [(4, rank, [0, 1, 2, 3], 4) for rank in range(4)]


# ---- a process alone


def act_alone(processes):
    tensors = [torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.int64)]
    gathered = processes.gather(tensors, 5)
    assert all(a is b for a, b in zip(gathered.tensors, tensors, strict=True))
    assert (gathered.sizes, gathered.marks, gathered.any_mark(4)) == ([3], [5], True)
    assert processes.gather([]).sizes == [0]
    mean = torch.tensor([2.0, 3.0])
    processes.average_([mean])
    assert mean.tolist() == [2, 3]
    assert processes.sum_(mean) is mean
    assert processes.everyone("x") == ["x"]
    processes.agree()
    require_same_everywhere(processes, {"a": "1"})
    for run in (guarded, together):
        assert attempt(run, processes, lambda: fail_with(ValueError, "mine"))[:2] == ("ValueError", "mine")
    processes.fail(ValueError("nobody there"))
    return processes.size, processes.rank, processes.bytes


def test_alone_nothing_is_sent(pool):
    expected = (1, 0, 0)
    assert act_alone(Processes()) == expected
    assert pool.values(act_alone, 1) == [expected]  # although there is a group
