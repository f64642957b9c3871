"""Several processes with parts of a batch take the step of one process with the whole batch."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fcco_lightning import (
    ALEXR2,
    AUC,
    BSGD,
    MOAP,
    MSVR,
    SONEX,
    SOX,
    Engine,
    HeavyBall,
    Hinge,
    HingePenalty,
    MeanAtMost,
    Objective,
    ROCFairness,
    SoftRate,
)
from fcco_lightning.data.batches import UniformBatches
from fcco_lightning.data.loader import RankBatches
from fcco_lightning.objectives import RowDomain
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.state.processes import Processes
from tests.combinations import every_pair
from tests.state import pool as pools
from tests.state.pool import Failure, attempt

pool = pools.pool  # the fixture

N = 11


def name_of(algorithm):
    return getattr(algorithm, "__name__", getattr(algorithm, "func", algorithm))


class Margin(Objective):
    """``0.05 mean s^2`` and a hinge of the margin of every sample."""

    outer = Hinge(1.5, 0.2)

    def measure(self, outputs, batch):
        values = (1 - (2 * batch["y"] - 1) * self.scaled(outputs)).unsqueeze(1)
        return self.direct(outputs), Rows(values, torch.ones_like(batch["y"], dtype=torch.bool))

    def direct(self, outputs):
        return 0.05 * outputs.square().mean()

    def scaled(self, outputs):
        return outputs


class Tempered(Margin):
    """With a temperature that is trained along with the network."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def direct(self, outputs):
        return super().direct(outputs) + self.temperature.square()

    def scaled(self, outputs):
        return outputs / self.temperature.exp()


class Pairs(Margin):
    """Outputs are a dict of scores and features, and every row compares a sample with all others of the batch."""

    width = 2

    def measure(self, outputs, batch):
        (scores,), features = outputs["scores"], outputs["features"]
        direct, rows = super().measure(scores, batch)
        near = torch.sigmoid(features @ features.T).mean(1, keepdim=True)
        return direct, rows._replace(values=torch.cat([rows.values, near], 1))


class Groups(Margin):
    """Rows belong to groups, not to samples."""

    def row_domain(self, num_samples, columns):
        return RowDomain(2)

    def measure(self, outputs, batch):
        member = (batch["group"] == torch.arange(2, device=outputs.device).unsqueeze(1)).to(outputs.dtype)
        count = member.sum(1)
        means = member @ outputs.square() / count.clamp(min=1)
        return self.direct(outputs), Rows(means.unsqueeze(1), count > 0)


class ScoresAndFeatures(nn.Module):
    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, x):
        return {"scores": (self.scores(x),), "features": 0.5 * x.tanh() * self.scores[0].bias[:3]}


def constraints():
    return [ROCFairness((-0.5, 0.5), kappa=0.01), MeanAtMost(SoftRate(temperature=0.5), kappa=0.3, where={"y": 0})]


PROBLEMS = {
    "AUC and constraints": (AUC, constraints),
    "margins": (Margin, list),
    "margins and constraints": (Margin, constraints),
    "temperature": (Tempered, list),
    "pairs": (Pairs, list),
    "groups": (Groups, list),
}


class Training:
    """An engine; every process makes its own from the same numbers."""

    def __init__(self, processes, problem, algorithm, layout="replicated", dtype=torch.float64, num_samples=N):
        generator = torch.Generator().manual_seed(0)
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()
        with torch.no_grad():
            for p in self.network.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
        self.network.register_forward_pre_hook(self.look)
        objective, limits = PROBLEMS[problem][0]().to(dtype), PROBLEMS[problem][1]()
        network = (ScoresAndFeatures(self.network) if problem == "pairs" else self.network).to(dtype)
        self.processes, self.dtype = processes, dtype
        method = algorithm()
        options = {"num_samples": num_samples, "dtype": dtype, "processes": processes, "layout": layout}
        self.problem = method.pose(objective, limits, HingePenalty(3.0), **options)
        self.engine = Engine(network, self.problem, method)
        self.optimizer = HeavyBall(self.engine.params, lr=0.05, beta=0.3)
        self.forwards, self.break_at = 0, 0

    def look(self, *_):
        self.forwards += 1
        if self.forwards == self.break_at:
            raise RuntimeError("broken network")

    def step(self, batch, *, last_batch=False):
        batch = {name: c.to(self.dtype) if c.is_floating_point() else c for name, c in batch.items()}
        estimates = self.engine.train_batch(batch, self.optimizer, last_batch=last_batch)
        return {name: value.item() for name, value in estimates.items()}

    def moved(self):
        """Copies of everything that a step moves."""
        everything = [
            self.engine.params,
            self.problem.state_dict(),
            self.optimizer.state_dict(),
            self.engine.state_dict(),
        ]
        return [t.detach().clone() for t in tensors_in(everything)]

    def result(self):
        weights = torch.cat([p.detach().reshape(-1) for p in self.engine.params])
        return weights, [(s.rows.clone(), s.partial) for s in self.problem.states]


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for part in parts for tensor in tensors_in(part)]


def same(before, after):
    """Bit for bit, but any NaN is a NaN."""
    pairs = zip(before, after, strict=True)
    return all(torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def make_batch(index, seed=None, num_samples=N):
    """The samples' columns; with a seed, features are drawn afresh around the sample's centre, as augmentation does."""
    centres = torch.randn(num_samples, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y, group = torch.arange(num_samples) % 2, torch.arange(num_samples) // 2 % 2
    x = centres[index]
    if seed is not None:
        x = x + 0.2 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    return {"x": x, "y": y[index], "group": group[index], "index": index}


def part_of(batch, sizes, rank):
    return {name: column.split(sizes)[rank] for name, column in batch.items()}


def make_epoch(size):
    """Union batches with the number of samples of each process.  Odd samples are positive."""
    one = [
        ([0, 1, 2, 3, 7, 10], [3, 3]),
        ([1, 1, 4, 4, 0, 1, 9, 8], [4, 4]),  # repeats within and across processes
        ([5, 6, 2, 3, 9], [4, 1]),  # uneven
        ([1, 3, 5, 2, 4, 6, 8], [4, 3]),  # no positive in process 1
        ([7, 8, 9, 10, 2, 2], [0, 6]),  # nothing at all in process 0
        ([0, 2, 4, 6], [2, 2]),  # no positive anywhere
        ([3, 10, 5, 0, 1], [5, 0]),
        ([4, 9, 6, 7], [1, 3]),
    ]
    if size == 3:
        sizes = [[2, 2, 2], [3, 2, 3], [1, 3, 1], [3, 2, 2], [0, 4, 2], [1, 2, 1], [5, 0, 0], [1, 2, 1]]
        one = [(index, split) for (index, _), split in zip(one, sizes, strict=True)]
    return [(make_batch(torch.tensor(index), t), split) for t, (index, split) in enumerate(one)]


def train(processes, batches, *options):
    """Weights, rows held here, the estimates of all steps and their means; the fourth batch is an epoch's last."""
    training = Training(processes, *options)
    training.engine.average_estimates()
    estimates = [
        training.step(batch if sizes is None else part_of(batch, sizes, processes.rank), last_batch=t == 4)
        for t, (batch, sizes) in enumerate(batches)
    ]
    means = {name: value.item() for name, value in training.engine.averages.values().items()}
    return *training.result(), [*estimates, means]


def train_alone(batches, *options):
    return train(Processes(), [(batch, None) for batch, _ in batches], *options)


def assert_same_training(results, expected, tolerance=1e-12):
    def close(actual, wanted):
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)

    weights, rows, estimates = expected
    for own_weights, _, own_estimates in results:
        assert torch.equal(own_weights, results[0][0])  # the replicas have not drifted apart by a bit
        close(own_weights, weights)
        for own, wanted in zip(own_estimates, estimates, strict=True):
            assert own.keys() == wanted.keys()
            close(torch.tensor([*own.values()]), torch.tensor([*wanted.values()]))
    for position, (table, _) in enumerate(rows):
        held, divided = zip(*(own_rows[position] for _, own_rows, _ in results), strict=True)
        close(torch.cat(held) if divided[0] else held[0], table)
        assert divided[0] or all(same(held[:1], [copy]) for copy in held)


@every_pair(
    "problem, layout, algorithm, size",
    {problem: problem for problem in ("temperature", "pairs", "groups", "AUC and constraints")},
    {layout: layout for layout in ("replicated", "sharded")},
    {"SOX": SOX, "SONEX": SONEX, "MSVR": MSVR, "ALEXR2": partial(ALEXR2, K=2)},
    {"2 processes": 2, "3 processes": 3},
)
def test_other_objectives(pool, problem, layout, algorithm, size):
    """A parameter of the objective gets its full gradient; outputs may be nested; rows need not be samples."""
    batches, options = make_epoch(size), (problem, algorithm, layout)
    results = pool.values(train, size, batches, *options)
    assert_same_training(results, train_alone(batches, *options))


@pytest.mark.parametrize("problem", ["AUC and constraints", "margins"])
def test_single_precision(pool, problem):
    batches, options = (
        make_epoch(3),
        (problem, SONEX, "sharded" if problem == "margins" else "replicated", torch.float32),
    )
    results = pool.values(train, 3, batches, *options)
    assert results[0][0].dtype == results[0][1][0][0].dtype == torch.float32
    assert_same_training(results, train_alone(batches, *options), 1e-5)


# ---- exchanges of rows

ROWS = 22


def train_with_plan(processes, size, *options):
    """Two epochs as in :func:`train`; and the number of times that rows, which travel as integers, were exchanged."""
    training, counter = Training(processes, *options, torch.float64, ROWS), SimpleNamespace(rows=0)
    sum_ = processes.sum_

    def counted(tensor):
        counter.rows += not tensor.is_floating_point()
        return sum_(tensor)

    processes.sum_ = counted
    sampler = RankBatches(range(ROWS), UniformBatches(ROWS, 3 * size, 5), processes.rank, processes.size)
    estimates = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        estimates += [training.step(make_batch(torch.tensor(index), None, ROWS)) for index in sampler]
    return (*training.result(), estimates), counter.rows


@pytest.mark.parametrize("algorithm", [BSGD, MOAP, MSVR, SONEX, partial(ALEXR2, K=2, jacobian="halves")], ids=name_of)
@pytest.mark.parametrize("size", [2, 3])
def test_rows_are_exchanged_once_for_every_read(pool, algorithm, size):
    options = size, "margins", algorithm, "sharded"
    results, exchanges = zip(*pool.values(train_with_plan, size, *options), strict=True)
    expected, _ = train_with_plan(Processes(), *options)
    assert_same_training(results, expected)
    steps = 2 * UniformBatches(ROWS, 3 * size, 5).num_batches
    reads = int(bool(expected[1])) * steps
    if name_of(algorithm) is ALEXR2:  # two half-batches are read apart
        reads = 2 * steps
    if algorithm is MSVR:  # which reads at the previous weights, too, once there are some
        reads = 2 * steps - 1
    assert exchanges == (reads,) * size


@pytest.mark.parametrize("algorithm", [SOX, MOAP], ids=name_of)
def test_it_does_not_matter_who_is_given_the_samples_of_a_row(pool, algorithm):
    """The same samples, given now to those who hold their rows and then to the others."""
    own = [torch.tensor([0, 1, 9, 10]), torch.tensor([3, 10])]
    batches = [
        (make_batch(i, t), [len(i) // 2] * 2) for t, i in enumerate([own[0], own[0].flip(0), own[1], own[0].flip(0)])
    ]
    options = "margins", algorithm, "sharded"
    assert_same_training(pool.values(train, 2, batches, *options), train_alone(batches, *options))


# ---- what happens on one process only

BEFORE, AFTER = 3, 5  # good steps, then a bad one, then good ones


def train_around(processes, spoil, *options):
    """Outcome of the bad step, whether anything has moved then, and everything in the end."""
    training, outcome, still = Training(processes, *options), None, True
    for t, (batch, sizes) in enumerate(make_epoch(processes.size)[:AFTER]):
        part = part_of(batch, sizes, processes.rank)
        if t == BEFORE and spoil is not None:
            bad = {name: column.clone() for name, column in part.items()}
            before = training.moved()
            spoil(training, bad)
            outcome = attempt(training.step, bad)
            still = same(before, training.moved())
            training.break_at = 0
        training.step(part)
    return outcome, still, training.moved()


def nan_feature(training, batch):
    if training.processes.rank == 1:
        batch["x"][0, 1] = float("nan")


def broken_network(training, batch):
    if training.processes.rank == 1:
        training.break_at = training.forwards + 1


def broken_second_forward(training, batch):
    if training.processes.rank == 1:
        training.break_at = training.forwards + 2


def wrong_index(training, batch):
    if training.processes.rank == 1:
        batch["index"][0] = N


def broken_on_two(training, batch):
    if training.processes.rank != 1:
        training.break_at = training.forwards + 1


@pytest.mark.parametrize(
    ("algorithm", "problem", "layout"),
    [
        (SOX, "AUC and constraints", "replicated"),
        (MSVR, "margins", "replicated"),
        (SONEX, "margins", "sharded"),
        (partial(ALEXR2, K=2), "margins", "sharded"),
    ],
)
def test_a_nan_on_one_process_stops_all_before_anything_moves(pool, algorithm, problem, layout):
    options = problem, algorithm, layout
    control = pool.values(train_around, 3, None, *options)
    for (outcome, still, end), (_, _, expected) in zip(
        pool.values(train_around, 3, nan_feature, *options), control, strict=True
    ):
        assert isinstance(outcome, Failure)
        assert outcome.kind == "NonFiniteError"
        assert "no row and no weight was changed" in outcome.message
        assert still
        assert same(end, expected)


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
@pytest.mark.parametrize(
    ("algorithm", "spoil", "failing"),
    [
        (SOX, broken_network, {1}),
        (SOX, broken_on_two, {0, 2}),
        (SONEX, broken_network, {1}),
        (SONEX, broken_second_forward, {1}),
        (MSVR, broken_second_forward, {1}),
        (partial(ALEXR2, K=2), broken_network, {1}),
        (partial(ALEXR2, K=2), broken_second_forward, {1}),
    ],
)
def test_an_exception_on_some_processes_stops_the_others_before_anything_moves(pool, algorithm, layout, spoil, failing):
    options = "margins and constraints" if layout == "replicated" else "margins", algorithm, layout
    control = pool.values(train_around, 3, None, *options)
    for rank, (outcome, still, end) in enumerate(pool.values(train_around, 3, spoil, *options)):
        if rank in failing:
            assert outcome[:2] == ("RuntimeError", "broken network")
        else:
            assert outcome.kind == "PeerError"
            named = [r for r in range(3) if f"process {r} failed with RuntimeError: broken network" in outcome.message]
            assert {*named} == failing
        assert still
        assert same(end, control[rank][2])  # all were out of the same step, and go on in step


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_a_wrong_index_on_one_process_stops_all_before_anything_moves(pool, layout):
    options = "margins", SONEX, layout
    control = pool.values(train_around, 3, None, *options)
    for rank, (outcome, still, end) in enumerate(pool.values(train_around, 3, wrong_index, *options)):
        assert outcome.kind == "StateIndexError"  # all look for it in the same step
        assert f"got index {N} at batch position" in outcome.message
        assert still
        assert same(end, control[rank][2])


def train_unstoppable(processes, *options):
    training = Training(processes, *options)
    asked = []
    for t, (batch, sizes) in enumerate(make_epoch(processes.size)[:3]):
        training.engine.stop_asked = t == 1 and processes.rank == 1
        training.step(part_of(batch, sizes, processes.rank))
        asked.append(training.engine.stop_agreed)
    return asked


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_all_hear_in_the_same_step_that_one_was_asked_to_stop(pool, layout):
    assert pool.values(train_unstoppable, 3, "margins", SOX, layout) == [[False, True, False]] * 3


def go_on(processes, layout):
    """What becomes of a batch where the engine's state was loaded alone, and after the rows, too."""
    first, again = (Training(processes, "margins", SONEX, layout) for _ in range(2))
    batch = part_of(make_batch(torch.arange(4), 0), [2, 1, 1], processes.rank)  # the rows of the first process alone
    first.step(batch)
    again.engine.load_state_dict(first.engine.state_dict())
    again.optimizer.load_state_dict(first.optimizer.state_dict())
    refused = attempt(again.step, batch)
    again.problem.load_state_dict(first.problem.state_dict())
    return refused, attempt(again.step, batch)


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
def test_rows_that_are_missing_on_all_processes_are_not_those_that_one_never_held(pool, layout):
    for refused, estimates in pool.values(go_on, 3, layout):
        assert refused.kind == "CheckpointError"
        assert isinstance(estimates, dict)
