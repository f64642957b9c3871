"""The forward pass at the previous weights, and errors about batches that cannot be used."""

import copy
import re

import pytest
import torch
from torch import nn

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    MSVR,
    SGD,
    SOAP,
    SONEX,
    SOX,
    AveragePrecision,
    Constraint,
    CrossEntropy,
    Engine,
    HeavyBall,
    Hinge,
    HingePenalty,
    Objective,
)
from fcco_lightning.data import UniformBatches
from fcco_lightning.data.batches import Drawn
from fcco_lightning.engine import InnerFunctions, named_samples
from fcco_lightning.engine.functions import in_full
from fcco_lightning.errors import CheckpointError, ConfigError, NonFiniteError, StateIndexError
from fcco_lightning.objectives.measurable import Rows

N = 10


class Margin(Objective):
    """Direct part and one hinge per sample, both of the scores; ``spoil`` names the part to be made NaN."""

    outer = Hinge(2.0, 0.1)
    spoil = ""

    def measure(self, outputs, batch):
        direct = outputs.square().mean() * (float("nan") if self.spoil == "direct" else 1.0)
        values = outputs.unsqueeze(1).clone()
        if self.spoil == "inner":
            values = values + torch.tensor([[0.0], [float("nan")]] + [[0.0]] * (len(values) - 2))
        return direct, Rows(values, torch.ones(len(values), dtype=torch.bool))


class Cap(Constraint):
    """``mean score <= 0``; NaN while it is spoiled."""

    kappa, names, width, spoil = 0.0, ["cap"], 1, False

    def measure(self, outputs, batch):
        value = outputs.mean().reshape(1, 1) * (float("nan") if self.spoil else 1.0)
        return None, Rows(value, torch.ones(1, dtype=torch.bool))

    def outer(self, phi):
        return phi

    def violation(self, values):
        return values[:, 0]


def plain():
    return [nn.Linear(3, 8), nn.Tanh()]


def with_dropout():
    return [nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5)]


def with_batch_norm():
    return [nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh()]


class Training:
    def __init__(self, algorithm, hidden=plain, constraints=(), objective=None):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.network = nn.Sequential(*hidden(), nn.Linear(8, 1), nn.Flatten(0)).double()
        self.objective, self.algorithm = objective or Margin(), algorithm
        problem = algorithm.pose(self.objective, constraints, HingePenalty(10.0), num_samples=N, dtype=torch.float64)
        self.engine = Engine(self.network, problem, algorithm)
        self.optimizer = HeavyBall(self.network.parameters(), lr=0.05, beta=0.5)
        self.forwards = 0
        self.network.register_forward_hook(self.count)

    def count(self, *_):
        self.forwards += 1

    def step(self, batch, **options):
        return self.engine.train_batch(batch, self.optimizer, **options)

    def everything(self):
        tensors = [*self.network.state_dict().values(), *self.engine.problem.state_dict().values()]
        tensors += [v for s in self.optimizer.state.values() for v in s.values()]
        return [t.clone() for t in tensors if isinstance(t, torch.Tensor)]


def make_batch(seed=0, size=6):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    return {"x": x, "y": torch.ones(size), "index": torch.randperm(N, generator=generator)[:size]}


def equal(before, after):
    return len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


# -------------------------------------------------------------------------------------------------- the second forward


@pytest.mark.parametrize("hidden", [with_dropout, with_batch_norm])
def test_at_the_same_weights_the_second_forward_is_the_first(hidden):
    engine = Training(SONEX(), hidden).engine
    weights = [p.detach().clone() for p in engine.params]
    batch = {"target": make_batch()}
    seen = engine.evaluate(batch, weights)
    assert torch.equal(seen.now["target"], seen.before["target"])
    assert not seen.before["target"].requires_grad
    measured = engine.measure(seen)
    assert torch.equal(measured[1][0].g, measured[1][0].before)
    assert engine.measure(seen, direct=False)[0] is None
    other = engine.evaluate(batch, [w + 0.1 for w in weights])
    assert not torch.equal(other.now["target"], other.before["target"])
    if hidden is with_dropout:
        assert not torch.equal(seen.now["target"], other.now["target"])  # the next masks differ
    assert all(torch.equal(p, w) for p, w in zip(engine.params, weights, strict=True))


def test_the_correction_vanishes_where_the_weights_stand_still():
    # lr so small that w_t = w_{t-1} in floating point: the corrected average is the plain one
    rows = []
    for gamma_prime in (0.0, 5.0):
        torch.manual_seed(1)
        training = Training(SONEX(0.3, gamma_prime), with_dropout)
        training.optimizer.param_groups[0]["lr"] = 1e-300
        for seed in range(4):
            training.step(make_batch(seed))
        rows.append(training.engine.problem.states[0].rows.clone())
        assert training.forwards == (4 if gamma_prime == 0 else 7)
    assert torch.equal(rows[0], rows[1])


def test_the_second_forward_leaves_the_random_stream_where_the_first_put_it():
    class Noisy(Margin):
        def measure(self, outputs, batch):  # draws too, but only at the present weights
            direct, rows = super().measure(outputs, batch)
            return direct + torch.rand(()) if outputs.requires_grad else direct, rows

    torch.manual_seed(1)
    training = Training(SONEX(0.3, 0.5), with_dropout, objective=Noisy())
    training.step(make_batch(0))
    training.step(make_batch(1))
    after = torch.rand(3)
    torch.manual_seed(1)
    for seed in (0, 1):
        training.network(make_batch(seed)["x"])
        torch.rand(())
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize("algorithm", [SONEX(0.3, 0.5), MSVR(0.3), ALEXR(1.0, 0.5), ALEXR2(K=3)], ids=lambda a: a.name)
def test_batch_norm_statistics_move_once_per_batch(algorithm):
    training, reference = Training(algorithm, with_batch_norm), Training(SOX(), with_batch_norm)
    norm, expected = training.network[1], reference.network[1]
    for seed in range(2):
        reference.network.load_state_dict(training.network.state_dict())
        if isinstance(algorithm, ALEXR2) and seed:  # the forward is made at z, which starts at w
            with algorithm._point.held():
                reference.network.load_state_dict(training.network.state_dict())
        reference.network(make_batch(seed)["x"])
        training.step(make_batch(seed))
        assert norm.num_batches_tracked.item() == seed + 1
        assert torch.equal(norm.running_mean, expected.running_mean)
        assert torch.equal(norm.running_var, expected.running_var)
    assert training.forwards == 3  # no previous point at the first batch


class Counted(nn.Module):
    """A forward pass that assigns its buffer anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.passes = self.passes + 1
        return x * self.passes


def with_spectral_norm():
    return [nn.utils.spectral_norm(nn.Linear(3, 8)), nn.Tanh()]


def with_counted():
    return [Counted(), nn.Linear(3, 8), nn.Tanh()]


@pytest.mark.parametrize("hidden", [with_spectral_norm, with_counted])
def test_both_passes_find_the_same_buffers_which_move_once(hidden):
    training = Training(SONEX(0.3, 0.5), hidden)
    for seed in range(3):
        training.step(make_batch(seed))
    assert hidden is not with_counted or training.network[0].passes == 3
    seen = training.engine.evaluate({"target": make_batch()}, [p.detach().clone() for p in training.engine.params])
    assert torch.equal(seen.now["target"], seen.before["target"])


@pytest.mark.parametrize("algorithm", [SONEX(0.3, 0.9), MSVR(0.3, 0.9), ALEXR2(K=2)], ids=lambda a: a.name)
def test_autocast_does_not_keep_the_weights_of_one_point_for_the_other(algorithm):
    found = []
    for cached in (True, False):
        training = Training(copy.deepcopy(algorithm))
        training.network.float()
        for seed in range(4):
            batch = make_batch(seed)
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
                training.step({**batch, "x": batch["x"].float()})
        found.append(training.everything())
    assert equal(*found)


@pytest.mark.parametrize(
    ("algorithm", "forwards"),
    [
        (SOX(), 4),
        (SOAP(), 4),
        (SONEX(0.3, 0.0), 4),
        (SONEX(0.3, 0.1), 7),
        (SONEX(0.3, 0.0, objective_gamma_prime=0.1), 7),
        (ALEXR(1.0, 0.0), 4),
        (ALEXR(1.0, 0.5), 7),
        (ALEXR2(K=2, gamma_prime=0.0), 4),
        (ALEXR2(K=2), 6),  # the first inner iteration of a loop has no previous point
        (MSVR(), 7),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_number_of_forward_passes_in_four_batches(algorithm, forwards):
    training = Training(algorithm)
    for seed in range(4):
        training.step(make_batch(seed))
    assert training.forwards == forwards


# -------------------------------------------------------------------------------------------------- what must not enter

ALGORITHMS = {
    "SOX": lambda: SOX(0.5),
    "SONEX": lambda: SONEX(0.5, 0.1),
    "ALEXR": lambda: ALEXR(1.0, 0.5, jacobian="old"),
    "ALEXR2": lambda: ALEXR2(K=3, jacobian="old"),
    "MSVR": lambda: MSVR(0.5),
}


def started(name, hidden=plain):
    cap = Cap()
    training = Training(ALGORITHMS[name](), hidden, [cap])
    for seed in range(4):
        training.step(make_batch(seed))
    return training, cap


@pytest.mark.parametrize(
    ("spoil", "message"),
    [("direct", r"the objective Margin \(value nan\)"), ("inner", r"value of row \d+ of the objective")],
)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_message_names_the_part_that_is_not_finite(name, spoil, message):
    training, cap = started(name)
    training.objective.spoil = spoil
    before = training.everything()
    with pytest.raises(NonFiniteError, match=message):
        training.step(make_batch(5))
    training.objective.spoil, cap.spoil = "", True
    with pytest.raises(NonFiniteError, match=r"value of row \d+ of the penalty"):
        training.step(make_batch(5))
    assert equal(before, training.everything())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_index_out_of_range_changes_nothing(name):
    training, _ = started(name)
    before = training.everything()
    batch = make_batch(5)
    batch["index"][3] = N
    with pytest.raises(StateIndexError, match=f"got index {N} at batch position 3"):
        training.step(batch)
    assert equal(before, training.everything())


def freeze(training):
    training.network.requires_grad_(False)


def take_another_network(training):
    training.optimizer = torch.optim.Adam(nn.Linear(3, 1).parameters())


def take_lbfgs(training):
    training.optimizer = torch.optim.LBFGS(training.network.parameters())


@pytest.mark.parametrize(
    ("spoil", "around", "message"),
    [
        (freeze, torch.enable_grad, "nothing can be trained: all parameters are frozen"),
        (take_another_network, torch.enable_grad, "the optimizer Adam holds no parameter of the network"),
        (take_lbfgs, torch.enable_grad, "LBFGS evaluates a batch several times.* Use another optimizer"),
        (lambda _: None, torch.no_grad, r"within torch\.no_grad\(\)"),
    ],
)
def test_a_batch_that_can_train_nothing_is_refused_and_changes_nothing(spoil, around, message):
    training, _ = started("SOX")
    before, spared = training.everything(), training.optimizer
    spoil(training)
    with around(), pytest.raises(ConfigError, match=message):
        training.step(make_batch(5))
    training.optimizer = spared
    assert equal(before, training.everything())
    training.network.requires_grad_()
    training.step(make_batch(5))
    assert not equal(before, training.everything())


def leave_out_a_threshold(training):
    training.objective.threshold = nn.Parameter(torch.zeros(()))
    training.engine.follow_parameters()
    training.optimizer = HeavyBall(training.network.parameters(), lr=0.05)


def unfreeze(training):
    training.network[0].requires_grad_(False)
    training.engine.follow_parameters()
    training.network[0].requires_grad_()


def add_a_layer(training):
    training.network.append(nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 1).double(), nn.Flatten(0)))
    training.optimizer = HeavyBall(training.network.parameters(), lr=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            leave_out_a_threshold,
            "Margin has trainable parameters, and the optimizer HeavyBall does not hold threshold, which",
        ),
        (unfreeze, r"unfrozen or added after the last call of Engine.follow_parameters, for example network.0.weight"),
        (
            add_a_layer,
            r"unfrozen or added after the last call of Engine.follow_parameters, for example network.4.1.weight",
        ),
    ],
)
def test_parameters_that_nobody_would_train_rightly_are_refused_and_nothing_changes(change, message):
    training, _ = started("SONEX")
    change(training)
    before = training.everything()
    with pytest.raises(ConfigError, match=message):
        training.step(make_batch(5))
    assert equal(before, training.everything())
    training.engine.follow_parameters()
    training.optimizer = HeavyBall(training.engine.params, lr=0.05)
    training.step(make_batch(5))
    assert not equal(before, training.everything())


@pytest.mark.parametrize("hidden", [plain, with_dropout, with_batch_norm])
def test_a_network_that_an_evaluation_has_left_in_its_mode_is_told_of_once(hidden, recwarn):
    training = Training(SOX(), hidden)
    training.network.eval()  # as whoever fine-tunes with fixed statistics wants it
    training.step(make_batch(0))
    training.network.train()
    training.step(make_batch(1))
    assert not recwarn
    training.network.eval()
    for seed in range(2, 4):
        training.step(make_batch(seed))
    told = ["network has been switched to evaluation mode since the last batch" in str(w.message) for w in recwarn]
    assert told == [True] * (hidden is not plain)


# ---------------------------------------------------------------------------------------------- states that are loaded


def test_the_state_of_an_engine_is_not_continued_by_another_algorithm():
    state = started("SOX")[0].engine.state_dict()
    with pytest.raises(CheckpointError, match="was written by the algorithm SOX, this engine runs MSVR"):
        started("MSVR")[0].engine.load_state_dict(state)


class Margins(Margin):
    """Another objective whose rows have the same shape."""


class OtherCap(Cap):
    names = ("other cap",)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"objective": Margins()}, "the objective Margin, but this run has Margins"),
        ({"constraints": [OtherCap()]}, r"the constraints Cap \(cap\), but this run has OtherCap \(other cap\)"),
    ],
)
def test_the_state_of_an_engine_is_not_continued_on_another_problem(other, message):
    state = Training(SOX(), constraints=[Cap()]).engine.state_dict()
    with pytest.raises(CheckpointError, match=message):
        Training(SOX(), **({"constraints": [Cap()]} | other)).engine.load_state_dict(state)


class Shift(Margin):
    """The same with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.ones(()))

    def measure(self, outputs, batch):
        return super().measure(outputs - self.shift, batch)


def parts_of(training):
    engine = training.engine
    return {"network": training.network, "rows": engine.problem, "engine": engine, "optimizer": training.optimizer}


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("nothing", None),
        ("rows", "saved after training, but the rows of the problem are empty and would start anew"),
        ("engine", r"rows were loaded without the engine's state.* other state \(previous\) belongs to another step"),
        (
            "optimizer",
            "with the optimizer HeavyBall, which had accumulated moments; the state of this HeavyBall is empty",
        ),
    ],
)
def test_what_is_not_loaded_is_named_before_the_next_batch(left_out, message, recwarn):
    trainings = first, again = Training(SONEX(), objective=Shift()), Training(SONEX(), objective=Shift())
    for training in trainings:
        training.optimizer = HeavyBall(training.engine.params, lr=0.05, beta=0.5)
    for seed in range(3):
        first.step(make_batch(seed))
    states = {name: copy.deepcopy(part.state_dict()) for name, part in parts_of(first).items()}
    for name, part in parts_of(again).items():
        if name != left_out:
            part.load_state_dict(states[name])
    if left_out == "rows":
        with pytest.raises(CheckpointError, match=message):
            again.step(make_batch(3))
        again.engine.problem.load_state_dict(states["rows"])
    for seed in range(3, 6):
        first.step(make_batch(seed))
        again.step(make_batch(seed))
    whole = left_out in ("nothing", "rows")
    assert [re.search(message, str(w.message)) and w.filename for w in recwarn] == [__file__] * (not whole)
    assert equal(first.everything(), again.everything()) == whole
    assert torch.equal(first.objective.shift, again.objective.shift) == whole


def test_the_position_of_a_wrong_index_is_that_of_the_batch_also_with_duplicates():
    training, _ = started("SOX")
    batch = make_batch(5)
    batch["index"] = torch.tensor([N + 2, 3, 3, 1, 0, 2])
    with pytest.raises(StateIndexError, match=f"got index {N + 2} at batch position 0"):
        training.step(batch)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_batch_that_says_nothing_is_no_error(name):
    class Silent(Margin):
        def measure(self, outputs, batch):
            rows = super().measure(outputs, batch)[1]
            return None, rows if len(outputs) > 2 else None

    training = Training(ALGORITHMS[name](), objective=Silent())
    problem = training.engine.problem
    for seed in range(4):
        training.step(make_batch(seed))
    rows = problem.states[0].rows.clone()
    assert training.step(make_batch(5, size=2)) == {}
    assert torch.equal(problem.states[0].rows, rows)
    assert training.step(make_batch(6)).keys() == {"objective"}


@pytest.mark.parametrize(("count", "more"), [(9, ""), (10, ""), (13, " and 3 more")])
def test_ten_samples_are_named(count, more):
    bad = torch.arange(20) < count
    numbers = [str(100 + i) for i in range(count)]
    named = named_samples(bad, {"index": torch.arange(100, 120)})
    assert named == f"the samples with index {', '.join(numbers[:10])}{more}"
    assert named_samples(bad, {}).startswith("the samples with position 0, 1,")


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("autocast", [False, True])
def test_what_is_computed_of_outputs_has_at_least_the_bits_of_float32(default, autocast):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            with in_full("cpu"):
                made = torch.ones(2, 2)
                product = made @ made
            assert torch.get_default_dtype() == default
            assert torch.is_autocast_enabled("cpu") == autocast
    finally:
        torch.set_default_dtype(before)
    wide = torch.float32 if default == torch.bfloat16 else default
    assert (made.dtype, product.dtype) == (wide, wide)


class Tied(nn.Module):
    """One weight under two modules."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x)).sum(1)


def test_tied_weights_are_all_replaced_and_a_module_held_twice_comes_back():
    network = Tied()
    twice = nn.Module()
    twice.inner, twice.again = network, network  # as Fabric's wrapper holds it
    twice.forward = lambda x: network(x)  # noqa: PLW0108
    functions = InnerFunctions(twice, Margin(), [])
    (weight,) = functions.trainable().values()
    kept, x = weight.detach().clone(), torch.randn(4, 3)
    other = torch.randn(3, 3)
    with functions.at([other]):
        outputs = functions.outputs({"target": {"x": x}})["target"]
    assert torch.allclose(outputs, (x @ other.T @ other.T).sum(1), atol=1e-6)
    assert network.first.weight is network.second.weight is weight
    assert torch.equal(weight, kept)


def test_problems_with_one_objective_know_their_own_data():
    """A prevalence that is given weighs the classes by how many of each this problem's data has."""
    inputs, objective = [torch.randn(16, 3) for _ in range(3)], AveragePrecision(prevalence=0.5)
    y = (torch.arange(16) < 8).long()

    def posed(objective, n, share):
        columns = {"y": (torch.arange(n) < share * n).long(), "index": torch.arange(n)}
        algorithm = SOX()
        sampling = {"target": Drawn(columns, UniformBatches(n, 16, 0))}
        problem = algorithm.pose(objective, num_samples=n, sampling=sampling)
        torch.manual_seed(0)
        network = torch.nn.Linear(3, 1)
        return Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=0.1)

    posed(objective, 60, 0.5)  # which has written some of the same numbers already
    shared = [posed(objective, 60, 0.5), posed(objective, 200, 0.3)]
    apart = [posed(AveragePrecision(prevalence=0.5), 60, 0.5), posed(AveragePrecision(prevalence=0.5), 200, 0.3)]
    for x in inputs:
        for (one, its), (other, others), n in zip(shared, apart, (60, 200), strict=True):
            batch = {"x": x, "y": y, "index": torch.cat([torch.arange(8), torch.arange(n - 8, n)])}
            assert one.train_batch(batch, its)["objective"] == other.train_batch(batch, others)["objective"]


class Steep(nn.Module):
    """Outputs of moderate size, whose gradient by the weights is about 6e4 times the slope."""

    def __init__(self, slope):
        super().__init__()
        self.weights, self.slope = nn.Linear(3, 1, bias=False), slope
        nn.init.constant_(self.weights.weight, 1e-6)

    def forward(self, x):
        return self.slope * self.weights(x)


class Rooted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Linear(3, 1)

    def forward(self, x):
        return (0 * self.weights(x)).sqrt()


@pytest.mark.parametrize("autocast", [False, True], ids=["weights", "autocast"])
def test_a_gradient_that_overflows_float16_is_told_from_one_that_does_not_exist(autocast):
    def refused(network, size):
        network = network if autocast else network.half()
        x = torch.full((8, 3), size, dtype=torch.float32 if autocast else torch.float16)
        algorithm = SGD()
        engine = Engine(network, algorithm.pose(CrossEntropy(), num_samples=8), algorithm)
        batch = {"x": x, "y": torch.zeros(8), "index": torch.arange(8)}
        with torch.autocast("cpu", dtype=torch.float16, enabled=autocast), pytest.raises(NonFiniteError) as error:
            engine.train_batch(batch, torch.optim.SGD(network.parameters(), lr=0.1))
        return str(error.value)

    overflow = refused(Steep(64), 6e4)  # 64 * 6e4 / 2 > 65504
    assert "It overflows on its way back through the network, all of whose derivatives exist" in overflow
    assert "float16" in overflow
    assert "bf16-mixed" in overflow
    assert "sqrt" not in overflow
    no_derivative = refused(Rooted(), 1.0)
    assert "such as sqrt or norm at 0" in no_derivative
    assert "overflow" not in no_derivative
    assert "65504" not in no_derivative
