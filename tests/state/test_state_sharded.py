"""A dual state with rows in several processes behaves as one table for readers and writers."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from fcco_lightning.state import SHARDED_FROM, DualState, copies, shard_of
from tests.combinations import every_pair
from tests.state import pool as pools
from tests.state.pool import Failure, attempt

pool = pools.pool  # the fixture

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def bits(tensor):
    return tensor.contiguous().view(BITS[tensor.dtype])


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(bits(one), bits(other))


def random_bits(shape, dtype, seed=0):
    """Every kind of NaN, -0.0, infinities and denormal numbers among them."""
    rng = np.random.default_rng(seed)
    integers = torch.from_numpy(rng.integers(-(2**63), 2**63 - 1, shape)).to(BITS[dtype])
    words = integers.flatten()
    if dtype == torch.float64:
        words[:6] = torch.tensor([-(2**63), 0x7FF8000000000001, 0x7FF0000000000001, 1, -1, 0x7FF0000000000000])
    else:
        words[:6] = torch.tensor([-(2**31), 0x7FC00001, 0x7F800001, 1, -1, 0x7F800000])
    return integers.view(dtype)


def count_sums(processes):
    """Count the collectives by which rows travel."""
    counter, original = SimpleNamespace(sums=0), processes.sum_

    def counted(tensor):
        counter.sums += 1
        return original(tensor)

    processes.sum_ = counted
    return counter


def filled(processes, num_rows=7, width=2, dtype=torch.float64, layout="sharded", *, sink=False):
    """Row i holds (i + .25, -i); every third was never written."""
    state = DualState(num_rows, width, dtype, processes, layout, sink=sink)
    index = torch.tensor([i for i in range(num_rows) if i % 3 != 2])
    state.write(index, torch.stack([index + 0.25, -index.to(dtype)], 1)[:, :width].to(dtype))
    return state


# ---- shards


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 8, 9, 12, 1000, 1001])
def test_shards_cover_all_rows_once_as_chunk_divides_them(num_rows, size):
    parts = [shard_of(num_rows, rank, size) for rank in range(size)]
    rows = [list(range(first, first + count)) for first, count in parts]
    assert list(chain.from_iterable(rows)) == list(range(num_rows))
    chunks = [chunk.tolist() for chunk in torch.arange(num_rows).chunk(size)]
    assert [r for r in rows if r] == chunks


def extents(processes, num_rows):
    state = DualState(num_rows, 1, torch.float32, processes, "sharded")
    return state.first, len(state.rows), state.sharded, state.partial


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("num_rows", [1, 3, 5, 9, 12])
def test_every_process_holds_its_shard(pool, num_rows, size):
    for rank, (first, count, sharded, divided) in enumerate(pool.values(extents, size, num_rows)):
        assert (first, count) == shard_of(num_rows, rank, size)
        assert sharded
        assert divided == (size > 1)


class Largest(TorchFunctionMode):
    """The number of elements of the largest tensor that a function of torch gives."""

    numel = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numel = max(self.numel, result.numel())
        return result


def build_large(processes, num_rows):
    index, values = torch.tensor([0, num_rows // 2, num_rows - 1]), torch.tensor([[1.0], [2.0], [3.0]])
    with Largest() as building:
        state = DualState(num_rows, 1, torch.float32, processes)
    with Largest() as stepping:
        state.read(index)
        state.write(index, values)
        read = state.read(index).flatten().tolist()
    with Largest() as reporting:
        share = state.seen_share()
    return state.rows.numel(), [building.numel, stepping.numel, reporting.numel], read, share


def test_no_process_ever_holds_all_rows(pool):
    num_rows = 10_000_000
    for held, largest, values, share in pool.values(build_large, 4, num_rows):
        assert held == num_rows // 4
        assert max(largest) <= held + 1  # a step sees the table itself, and what lies behind it
        assert values == [1, 2, 3]
        assert share == 3 / num_rows


def layouts(processes, counts):
    return [DualState(n, width, torch.float32, processes).partial for n, width in counts]


def test_large_tables_are_sharded_by_themselves(pool):
    counts = [(SHARDED_FROM - 1, 1), (SHARDED_FROM, 1), (SHARDED_FROM // 2, 2), (SHARDED_FROM // 2 - 1, 2)]
    assert pool.values(layouts, 2, counts) == [[False, True, True, False]] * 2
    assert pool.values(layouts, 1, counts) == [[False] * 4]


# ---- reading and writing


def read_all(processes, num_rows, indices, layout, dtype):
    state = filled(processes, num_rows, 2, dtype, layout)
    counter = count_sums(processes)
    found = [state.read(index) for index in indices]
    assert counter.sums == len(indices) * state.partial  # one collective for each
    return [*found, *map(state.gather, indices), state.gather(None)], state.seen_share()


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("num_rows", [2, 7, 12])
@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_reading_is_as_from_one_table(pool, size, num_rows, dtype):
    last = num_rows - 1
    indices = [torch.arange(num_rows), torch.tensor([last, 0, last, 1]), torch.tensor([], dtype=torch.int64)]
    ((expected, share),) = pool.values(read_all, 1, num_rows, indices, "replicated", dtype)
    for layout in ("sharded", "replicated"):
        for reads, own_share in pool.values(read_all, size, num_rows, indices, layout, dtype):
            assert own_share == share
            assert all(same_bits(*pair) for pair in zip(reads, expected, strict=True))


def exchange_bits(processes, values, index):
    state = DualState(len(values), values.shape[1], values.dtype, processes, "sharded")
    state.rows.copy_(values[state.first : state.first + len(state.rows)])
    return state.read(index), state.gather(None)


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_every_bit_survives_the_exchange(pool, dtype, size):
    values = random_bits((50, 2), dtype)
    index = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    for read, whole in pool.values(exchange_bits, size, values, index):
        assert same_bits(read, values[index])
        assert same_bits(whole, values)


def scaled(processes):
    state = filled(processes)
    state.scale_(0.5)
    return state.read(torch.arange(7))


def test_scaling_reaches_the_rows_of_all_processes(pool):
    ((expected),) = pool.values(scaled, 1)
    assert all(same_bits(values, expected) for values in pool.values(scaled, 3))


# ---- the sink


def write_beside(processes, layout):
    """What is read and what is reported after a step that has rows, some of them twice, and entries for no row."""
    state, index = filled(processes, layout=layout, sink=True), torch.tensor([6, 7, 0, 6, 7, 2])
    counter = count_sums(processes)
    values = 10 + torch.tensor([6.0, 7, 0, 6, 7, 2], dtype=torch.float64).unsqueeze(1).expand(-1, 2)
    state.scatter_(index, values)
    assert counter.sums == 0
    found = state.gather(index)[index < 7]
    outcomes = [attempt(state.read, index), attempt(state.write, index, values)]
    return state.first, state.rows, found, state.seen_share(), state.state_dict()["rows"], outcomes, state.gather(None)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", ["sharded", "replicated"])
def test_the_sink_is_nowhere_to_be_seen(pool, size, layout):
    expected = torch.tensor([[10, 10], [1.25, -1], [12, 12], [3.25, -3], [4.25, -4], [-1, -1], [16, 16]]).double()
    for rank, (first, rows, found, share, stored, outcomes, whole) in enumerate(
        pool.values(write_beside, size, layout)
    ):
        part = slice(*np.cumsum(shard_of(7, rank, size)).tolist()) if layout == "sharded" else slice(0, 7)
        assert first == part.start
        for held in (rows, stored):
            assert same_bits(held.nan_to_num(-1), expected[part])
        assert same_bits(whole.nan_to_num(-1), expected)
        assert found.tolist() == [[16, 16], [10, 10], [16, 16], [12, 12]]
        assert share == 6 / 7
        assert [o.kind for o in outcomes] == ["StateIndexError"] * 2


def gather_wrong(processes, sink):
    state, counter = filled(processes, sink=sink), count_sums(processes)
    found = [state.gather(torch.tensor([0, wrong, 6])) for wrong in (-1, 7, 8, -7, 2**40)]
    return found, counter.sums


@pytest.mark.parametrize("sink", [False, True])
def test_a_wrong_index_is_seen_by_all_where_nobody_holds_its_row(pool, sink):
    for found, sums in pool.values(gather_wrong, 3, sink):
        assert sums == len(found)
        for position, rows in enumerate(found):
            assert rows[[0, 2]].tolist() == [[0.25, 0], [6.25, -6]]
            assert rows[1].isinf().all() == (not sink or position != 1)


# ---- checkpoints


def store(processes, num_rows, others):
    """The rows of a process, restored; and what happens with those of other states."""
    state, again = (DualState(num_rows, 2, torch.float64, processes, "sharded") for _ in range(2))
    state.scatter_(None, torch.arange(2.0 * num_rows).view(-1, 2))
    stored = {name: value.clone() if torch.is_tensor(value) else value for name, value in state.state_dict().items()}
    again.load_state_dict(stored)
    outcomes = []
    for rows, width in others:
        other = filled(processes, rows, width)
        before = other.rows.clone()
        outcomes.append(attempt(other.load_state_dict, stored))
        assert same_bits(other.rows, before)
    return stored["rows"], again.gather(None), outcomes


def test_rows_of_another_table_are_refused_with_both_shapes(pool):
    others = [(13, 2), (7, 1), (9, 2)]
    for rank, (rows, whole, outcomes) in enumerate(pool.values(store, 3, 7, others)):
        assert whole.flatten().tolist() == [*range(14)]
        first, count = shard_of(7, rank, 3)
        assert rows.shape == (count, 2)
        assert [o.kind for o in outcomes] == ["CheckpointError"] * 3
        assert (
            f"shape ({count}, 2) (rows, width), this problem needs ({shard_of(13, rank, 3)[1]}, 2)"
            in outcomes[0].message
        )
        assert f"shape ({count}, 2) (rows, width), this problem needs ({count}, 1)" in outcomes[1].message
        if rank < 2:  # as many rows here, of another table
            assert f"starts at row {first} of 7, this process holds rows from {first} of 9" in outcomes[2].message


# ---- errors

BAD_INDICES = {
    "large": torch.tensor([0, 2, 7]),
    "negative": torch.tensor([0, -1, 3]),
    "fractions": torch.tensor([0.0, 1.0, 2.0]),
    "two-dimensional": torch.tensor([[0], [1], [2]]),
}


def refuse(processes, index, value, layout):
    state, counter = filled(processes, layout=layout), count_sums(processes)
    before = state.rows.clone()
    outcomes = [attempt(state.read, index)] if value is None else []
    values = torch.ones(3, 2, dtype=torch.float64)
    values[1, 1] = 1.0 if value is None else value
    outcomes.append(attempt(state.write, index, values))
    assert same_bits(state.rows, before)
    refused = counter.sums
    return outcomes, refused, state.read(torch.tensor([0, 6])).tolist()


@pytest.mark.parametrize("layout", ["sharded", "replicated"])
@pytest.mark.parametrize("name", BAD_INDICES)
def test_a_wrong_index_raises_everywhere_and_changes_nothing(pool, name, layout):
    for outcomes, sums, rest in pool.values(refuse, 3, BAD_INDICES[name], None, layout):
        assert [o.kind for o in outcomes] == ["StateIndexError"] * 2
        assert sums == 0
        assert rest == [[0.25, 0], [6.25, -6]]


@pytest.mark.parametrize("layout", ["sharded", "replicated"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [0, 3, 6])
def test_a_bad_value_raises_everywhere_whoever_holds_its_row(pool, value, row, layout):
    index = torch.tensor([1, row, 5])
    for (outcome,), sums, rest in pool.values(refuse, 3, index, value, layout):
        assert outcome.kind == "NonFiniteError"
        assert f"row {row} of the dual state" in outcome.message
        assert sums == 0
        assert rest == [[0.25, 0], [6.25, -6]]


# ---- thousands of random steps against a dictionary

GAMMA = 0.3
ACTIONS, WEIGHTS = ("step", "gather", "read", "bad value", "bad index", "scale"), (0.4, 0.3, 0.15, 0.06, 0.06, 0.03)


class Draws:
    """Random choices: those that all processes make alike, and those of each."""

    def __init__(self, num_rows, width, dtype, seed, size):
        self.num_rows, self.width, self.dtype, self.size = num_rows, width, dtype, size
        self.common = np.random.default_rng([seed, 99])
        self.own = [np.random.default_rng([seed, rank]) for rank in range(size)]

    def action(self):
        return str(self.common.choice(ACTIONS, p=WEIGHTS)), int(self.common.integers(self.size))

    def index(self):
        return torch.from_numpy(self.common.integers(0, self.num_rows, int(self.common.integers(0, 12))))

    def batch(self, rank, action, spoiler):
        """What a process brings along: few of the rows, so that they repeat; sometimes nothing."""
        rng, count = self.own[rank], int(self.own[rank].integers(0, 6))
        rows = min(self.num_rows, 3) if rng.random() < 0.3 else self.num_rows
        index = rng.integers(0, rows, count)
        if action == "gather":  # some entries are for no row
            index[rng.random(count) < 0.3] = self.num_rows
        values = rng.normal(size=(len(index), self.width)) * 10.0 ** rng.integers(-3, 4)
        values[rng.random(values.shape) < 0.1] = -0.0
        if action.startswith("bad") and rank == spoiler:
            index = np.append(index, rng.integers(0, self.num_rows))
            values = np.append(values, np.ones((1, self.width)), axis=0)
            if action == "bad value":
                values[-1, -1] = rng.choice([np.nan, np.inf, -np.inf])
            else:
                index[-1] = rng.choice([-1, self.num_rows, 2**40])
        return torch.from_numpy(index), torch.from_numpy(values).to(self.dtype)


def averaged(rows, seen, fresh):
    return torch.where(seen.unsqueeze(-1), torch.lerp(rows, fresh, GAMMA), fresh)


def walk(processes, shape, steps, seed, layout):
    """A log of everything that is read or refused, and the rows held in the end."""
    draws, state = Draws(*shape, seed, processes.size), DualState(*shape, processes, layout, sink=True)
    log = []
    for _ in range(steps):
        action, spoiler = draws.action()
        if action == "read":
            log.append(state.read(draws.index()))
            continue
        if action == "scale":
            state.scale_(0.9)
            continue
        index, values = processes.gather([*draws.batch(processes.rank, action, spoiler)]).tensors
        outcome = attempt(gather_and_scatter if action == "gather" else read_and_write, state, index, values)
        log.append(outcome.kind if isinstance(outcome, Failure) else outcome)
    return log, state.rows


def gather_and_scatter(state, index, values):
    rows, again = state.gather(index), copies(index)
    fresh = again.total(values) / again.count.unsqueeze(1)
    state.scatter_(index, averaged(rows, ~rows[:, 0].isnan(), fresh))
    return rows[index < state.num_rows]


def read_and_write(state, index, values):
    rows, again = state.read(index), copies(index)
    new = averaged(rows, ~rows[:, 0].isnan(), again.total(values) / again.count.unsqueeze(1))
    first = again.first.unique()
    state.write(index[first], new[first])
    return rows


def means_by_hand(index, values):
    """The mean of the values of equal indices, by index."""
    groups = {}
    for i, value in zip(index.tolist(), values, strict=True):
        groups.setdefault(i, []).append(value)
    return {i: sum(group, torch.zeros_like(group[0])) / len(group) for i, group in groups.items()}


def walk_by_hand(shape, steps, seed, size):
    """The same with a dictionary, in one process."""
    (num_rows, width, dtype), log = shape, []
    draws, table, never = Draws(*shape, seed, size), {}, torch.full((width,), float("nan"), dtype=dtype)

    def look_up(index):
        return torch.stack([table.get(int(i), never) for i in index]) if len(index) else never.new_empty(0, width)

    for _ in range(steps):
        action, spoiler = draws.action()
        if action == "read":
            log.append(look_up(draws.index()))
            continue
        if action == "scale":
            table = {i: row * 0.9 for i, row in table.items()}
            continue
        batches = [draws.batch(rank, action, spoiler) for rank in range(size)]
        if action.startswith("bad"):
            log.append("NonFiniteError" if action == "bad value" else "StateIndexError")
            continue
        index, values = (torch.cat(parts) for parts in zip(*batches, strict=True))
        inside = index < num_rows
        log.append(look_up(index[inside]))
        for i, fresh in means_by_hand(index[inside], values[inside]).items():
            table[i] = averaged(table.get(i, never), torch.tensor(i in table), fresh)
    return log, look_up(range(num_rows)), len(table)


TABLES = {
    "13 float64": ((13, 2, torch.float64), 120),
    "97 float32": ((97, 1, torch.float32), 160),
    "3 float32": ((3, 3, torch.float32), 60),
}


@every_pair(
    "size, layout, table",
    {str(size): size for size in (1, 2, 3, 4)},
    {layout: layout for layout in ("replicated", "sharded")},
    TABLES,
)
def test_random_steps_equal_those_of_a_dictionary(pool, size, layout, table):
    shape, steps = table
    seed = 10 * size + (layout == "sharded")
    expected, whole, visited = walk_by_hand(shape, steps, seed, size)
    assert visited > shape[0] / 2
    assert {"NonFiniteError", "StateIndexError"} <= {e for e in expected if isinstance(e, str)}
    held = []
    for log, rows in pool.values(walk, size, shape, steps, seed, layout):
        assert len(log) == len(expected)
        for actual, wanted in zip(log, expected, strict=True):
            assert actual == wanted if isinstance(wanted, str) else same_bits(actual, wanted)
        held.append(rows)
    for rows in [torch.cat(held)] if layout == "sharded" else held:
        assert same_bits(rows, whole)
