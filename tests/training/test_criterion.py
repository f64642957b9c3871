"""The objective as a loss: the weights and rows of the engine, which other tests compare with formulas."""

import copy

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    BSGD,
    MOAP,
    MSVR,
    SGD,
    SOAP,
    SONEX,
    SOX,
    AUCMargin,
    AveragePrecision,
    Criterion,
    CVaRPartialAUC,
    Engine,
    HingePenalty,
    IndexedDataset,
    Objective,
)
from fcco_lightning.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from fcco_lightning.state.processes import Processes
from fcco_lightning.training.criterion import _NOT_FOLLOWED
from tests.algorithms.toy_problem import (
    BATCH,
    HingeMargin,
    N,
    flat,
    make_batches,
    make_constraints,
    make_engine,
    make_network,
)
from tests.combinations import every_pair
from tests.conftest import QUIET
from tests.forgeries import VALUES, forged, paths
from tests.state import pool as pools

pool = pools.pool  # the fixture

ALGORITHMS = [SOX, SOAP, BSGD, MOAP, lambda: ALEXR(theta=0, mirror=True), lambda: SONEX(gamma_prime=0)]


def make(algorithm, network, lr=0.05, penalty=None):
    criterion = Criterion(
        HingeMargin(), algorithm, num_samples=N, constraints=make_constraints(), penalty=penalty, dtype=torch.float64
    )
    return criterion, criterion.follow(torch.optim.SGD(network.parameters(), lr=lr, momentum=0.5))


def step(criterion, network, optimizer, batch):
    optimizer.zero_grad()
    loss = criterion(network(batch["x"]), batch)
    loss.backward()
    optimizer.step()
    return loss


def rows(criterion):
    return [state.rows.clone() for state in criterion.engine.problem.states]


@pytest.mark.parametrize("make_algorithm", ALGORITHMS, ids=["SOX", "SOAP", "BSGD", "MOAP", "ALEXR", "SONEX"])
@pytest.mark.parametrize("penalty", [HingePenalty(3.0), None], ids=["hinge", "multipliers"])
def test_it_trains_as_the_engine_does(make_algorithm, penalty):
    network, other = make_network(), make_network()
    criterion, optimizer = make(make_algorithm(), network, penalty=penalty)
    algorithm = make_algorithm()
    problem = algorithm.pose(HingeMargin(), make_constraints(), penalty, num_samples=N, dtype=torch.float64)
    engine, its = Engine(other, problem, algorithm), torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.5)
    for batch in make_batches(6):
        loss = step(criterion, network, optimizer, batch)
        estimates = engine.train_batch(batch, its)
    assert torch.equal(flat(network.parameters()), flat(other.parameters()))
    for own, expected in zip(criterion.engine.problem.states, problem.states, strict=True):
        assert torch.equal(own.rows.nan_to_num(9), expected.rows.nan_to_num(9))
    assert loss.item() == pytest.approx(sum(float(v) for v in estimates.values()))


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_parameters_of_samples_move_as_the_engine_moves_them(scale):
    """By true gradients, also where the user scales the loss."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(N, 3, generator=draw, dtype=torch.float64), torch.arange(N) % 3 == 0
    batches = [{"x": x[i], "y": y[i].long(), "index": i} for _ in range(3) for i in torch.arange(N).split(BATCH)]
    network = nn.Linear(3, 1, dtype=torch.float64)
    other, make_objective = copy.deepcopy(network), lambda: CVaRPartialAUC(0.5, thresholds=0.7)
    criterion = Criterion(make_objective(), SGD(), num_samples=N, dtype=torch.float64)
    optimizer = criterion.follow(torch.optim.SGD(network.parameters(), lr=0.05 / scale))
    algorithm, its = SGD(), torch.optim.SGD(other.parameters(), lr=0.05)
    problem = algorithm.pose(make_objective(), num_samples=N, dtype=torch.float64)
    engine = Engine(other, problem, algorithm)
    for batch in batches:
        optimizer.zero_grad()
        (scale * criterion(network(batch["x"]), batch)).backward()
        optimizer.step()
        engine.train_batch(batch, its)
    own, expected = (e.problem.row_parameters.state.rows for e in (criterion.engine, engine))
    assert (expected[y] - 0.7).abs().max() > 0.1
    torch.testing.assert_close(own, expected, rtol=1e-12, atol=0, equal_nan=True)
    torch.testing.assert_close(flat(network.parameters()), flat(other.parameters()), rtol=1e-12, atol=0)


def test_a_copy_with_its_optimizer_trains_as_the_original():
    network = make_network()
    criterion, optimizer = make(SOX(), network)
    step(criterion, network, optimizer, make_batches(1)[0])
    copied = copy.deepcopy((criterion, network, optimizer))
    for batch in make_batches(4)[1:]:
        step(criterion, network, optimizer, batch)
        step(*copied, batch)
    assert torch.equal(flat(network.parameters()), flat(copied[1].parameters()))
    assert all(torch.equal(*pair) for pair in zip(rows(criterion), rows(copied[0]), strict=True))


def test_a_step_of_an_optimizer_that_is_not_followed_is_said_and_followed_on_request():
    network, batches = make_network(), make_batches(3)
    criterion, _ = make(SOX(), network)
    step(criterion, network, criterion.engine.optimizer, batches[0])
    before, other = rows(criterion), torch.optim.Adam(network.parameters())
    for _ in range(_NOT_FOLLOWED):
        step(criterion, network, other, batches[1])
    with pytest.warns(UserWarning, match=r"without a step of the optimizer.*call criterion\.follow\(optimizer\)"):
        step(criterion, network, other, batches[1])
    torch.testing.assert_close(rows(criterion), before, rtol=0, atol=0, equal_nan=True)
    criterion.follow(other)
    step(criterion, network, other, batches[1])
    assert not all(torch.equal(*pair) for pair in zip(rows(criterion), before, strict=True))


def test_rows_change_with_a_step_that_is_taken_only():
    network = make_network()
    criterion, optimizer = make(SOX(), network)
    first, second, third = make_batches(3)
    step(criterion, network, optimizer, first)
    before = rows(criterion)
    criterion(network(second["x"]), second)  # never differentiated
    scaler = torch.amp.GradScaler("cpu")  # which drops the step, since the gradient overflows
    with pytest.warns(UserWarning, match="called again before backward was called for the previous batch"):
        value = criterion(network(second["x"]), second)
    scaler.scale(value).backward()
    network[0].weight.grad.fill_(torch.inf)
    scaler.step(optimizer)
    optimizer.zero_grad()
    spoiled = {**second, "x": second["x"] * torch.nan}
    weights = flat(network.parameters())
    with pytest.raises(NonFiniteError, match="no row and no weight was changed"):
        step(criterion, network, optimizer, spoiled)
    network[0].weight.register_hook(lambda g: g * torch.nan)
    with pytest.raises(NonFiniteError, match="gradient is not finite"):
        step(criterion, network, optimizer, third)
    assert torch.equal(flat(network.parameters()), weights)
    for own, expected in zip(rows(criterion), before, strict=True):
        assert torch.equal(own.nan_to_num(9), expected.nan_to_num(9))


def test_a_fused_optimizer_drops_a_step_that_overflows_and_so_do_the_rows():
    network, (first, second) = make_network(), make_batches(2)
    criterion, optimizer = make(SOX(), network)
    step(criterion, network, optimizer, first)
    before, fused = rows(criterion), criterion.follow(torch.optim.Adam(network.parameters(), fused=True))
    scaler = torch.amp.GradScaler("cpu")
    for overflows in (True, False):
        fused.zero_grad()
        scaler.scale(criterion(network(second["x"]), second)).backward()
        if overflows:
            network[0].weight.grad.fill_(torch.inf)
        scaler.step(fused)
        scaler.update()
        same = all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(rows(criterion), before, strict=True))
        assert same == overflows


def test_with_the_state_from_before_the_first_fit_nothing_is_remembered():
    network = make_network()
    criterion, optimizer = make(SOX(), network)
    initial = Criterion(
        HingeMargin(), SOX(), num_samples=N, constraints=make_constraints(), dtype=torch.float64
    ).state_dict()
    before = rows(criterion)
    step(criterion, network, optimizer, make_batches(1)[0])
    criterion.load_state_dict(initial)
    torch.testing.assert_close(rows(criterion), before, rtol=0, atol=0, equal_nan=True)
    step(criterion, network, optimizer, make_batches(1)[0])  # with the same optimizer
    assert not torch.equal(rows(criterion)[0].nan_to_num(9), before[0].nan_to_num(9))


@every_pair(
    "make_algorithm, kind", {"SOX": SOX, "SONEX": lambda: SONEX(gamma_prime=0)}, {kind: kind for kind in VALUES}
)
def test_a_state_that_is_not_whole_is_refused_in_words_and_changes_nothing(make_algorithm, kind):
    network = make_network()
    criterion, optimizer = make(make_algorithm(), network)
    step(criterion, network, optimizer, make_batches(1)[0])
    whole = copy.deepcopy(criterion.get_extra_state())
    refused = 0
    for _ in range(2):
        step(criterion, network, optimizer, make_batches(1)[0])
    now = rows(criterion)
    for at in paths(whole):
        try:
            criterion.set_extra_state(forged(copy.deepcopy(whole), at, VALUES[kind]))
        except (CheckpointError, DataError):  # the latter of other samples
            refused += 1
            torch.testing.assert_close(rows(criterion), now, rtol=0, atol=0, equal_nan=True)
        else:
            step(criterion, network, optimizer, make_batches(1)[0])
            now = rows(criterion)
    assert refused >= 3


def same(value, other):
    if isinstance(value, torch.Tensor):
        return torch.allclose(value, other, rtol=0, atol=0, equal_nan=True)
    return repr(value) == repr(other)  # NaN, too


@every_pair("make_algorithm, kind", {"MSVR": MSVR, "ALEXR2": ALEXR2, "SONEX": SONEX}, {kind: kind for kind in VALUES})
def test_a_state_of_the_engine_that_is_not_whole_is_refused_in_words(make_algorithm, kind):
    network = make_network()
    engine, optimizer = make_engine(make_algorithm(), network), torch.optim.SGD(network.parameters(), lr=0.05)
    for batch in make_batches(3):
        engine.train_batch(batch, optimizer)
    whole, refused = copy.deepcopy(engine.state_dict()), 0
    for at in paths(whole):
        before = copy.deepcopy(engine.state_dict())
        try:
            engine.load_state_dict(forged(copy.deepcopy(whole), at, VALUES[kind]))
        except (CheckpointError, DataError):  # the latter of other samples
            refused += 1
            assert all(map(same, tree_leaves(engine.state_dict()), tree_leaves(before)))
    assert refused >= 3


def test_a_batch_that_says_nothing_has_gradient_zero():
    data = IndexedDataset([(0, 0)] * N, columns={"y": torch.arange(N) % 2})
    criterion = Criterion(AveragePrecision(), SOX(), num_samples=N, sampling=data.drawn(BATCH))
    scores = nn.Parameter(torch.ones(3))
    optimizer = criterion.follow(torch.optim.SGD([scores], lr=1.0))
    criterion(scores, {"y": torch.zeros(3, dtype=torch.int64), "index": torch.tensor([0, 2, 4])}).backward()
    optimizer.step()
    assert torch.equal(scores, torch.ones(3))
    assert torch.equal(scores.grad, torch.zeros(3))


def test_accumulated_batches_each_move_their_rows():
    network = make_network()
    criterion, optimizer = make(SOX(), network)
    a, b = make_batches(2)
    for batch in (a, b):
        (criterion(network(batch["x"]), batch) / 2).backward()
    optimizer.step()
    seen = criterion.engine.problem.states[0].seen
    assert seen.nonzero().flatten().tolist() == sorted({*a["index"].tolist(), *b["index"].tolist()})


def trained_on_parts(processes, make_algorithm):
    network, everyone = make_network(), Processes()
    criterion, optimizer = make(make_algorithm(), network)
    for batch in make_batches(4):
        part = {name: column[pools.share(everyone, BATCH)] for name, column in batch.items()}
        optimizer.zero_grad()
        criterion(network(part["x"]), part).backward()
        everyone.average_([p.grad for p in network.parameters()])  # as DistributedDataParallel does
        optimizer.step()
    return flat(network.parameters()), rows(criterion)


def test_processes_with_parts_of_a_batch_equal_one_with_all_of_it(pool):
    network = make_network()
    criterion, optimizer = make(SOX(), network)
    for batch in make_batches(4):
        step(criterion, network, optimizer, batch)
    for weights, found in pool.run(trained_on_parts, pools.SIZE, SOX):
        assert torch.allclose(weights, flat(network.parameters()))
        for own, expected in zip(found, rows(criterion), strict=True):
            assert torch.allclose(own, expected, equal_nan=True)


class OwnModule(LightningModule):
    def __init__(self, algorithm=None):
        super().__init__()
        self.network = make_network()
        self.criterion = Criterion(HingeMargin(), algorithm or SOX(), num_samples=N, dtype=torch.float64)

    def training_step(self, batch, batch_idx):
        return self.criterion(self.network(batch["x"]), batch)

    def configure_optimizers(self):
        return self.criterion.follow(torch.optim.Adam(self.parameters(), lr=0.05))


def fit(module, epochs, path=None, **flags):
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", **QUIET | flags)
    trainer.fit(module, DataLoader(make_batches(3), batch_size=None), ckpt_path=path)
    return trainer


@pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:.*isinstance.treespec")
def test_automatic_optimization_and_a_checkpoint(tmp_path):
    whole, half = OwnModule(), OwnModule()
    fit(whole, 2)
    fit(half, 1).save_checkpoint(tmp_path / "half.ckpt", weights_only=False)
    again = OwnModule()
    fit(again, 2, tmp_path / "half.ckpt")
    assert torch.equal(flat(whole.network.parameters()), flat(again.network.parameters()))
    assert torch.equal(*(m.criterion.engine.problem.states[0].rows.nan_to_num(9) for m in (whole, again)))
    stored = torch.load(tmp_path / "half.ckpt", weights_only=True)["state_dict"]
    other = OwnModule(SOAP())
    other.load_state_dict(stored)  # kept until the problem is there
    with pytest.raises(CheckpointError, match="written by the algorithm SOX, this engine runs SOAP"):
        other.configure_optimizers()


@pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:.*isinstance.treespec")
def test_a_second_fit_goes_on_with_the_rows_of_the_first(tmp_path):
    class Seen(Callback):
        def on_train_start(self, trainer, module):
            self.rows = [row.nan_to_num(9) for row in rows(module.criterion)]

    module, seen = OwnModule(), Seen()
    fit(module, 1).save_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    for path in (None, tmp_path / "a.ckpt"):
        fit(module, 2, path)
        then = [row.nan_to_num(9) for row in rows(module.criterion)]
        fit(module, 1, callbacks=[seen])
        assert all(map(torch.equal, seen.rows, then))


@pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:.*isinstance.treespec")
def test_a_trained_module_can_be_copied_as_weight_averaging_does():
    module = OwnModule()
    fit(module, 1)
    twin = copy.deepcopy(module)
    assert torch.equal(flat(module.network.parameters()), flat(twin.network.parameters()))
    for own, copied in zip(rows(module.criterion), rows(twin.criterion), strict=True):
        assert torch.equal(own.nan_to_num(9), copied.nan_to_num(9))
    fit(module, 2, callbacks=[EMAWeightAveraging(decay=0.9)])


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [(SONEX(), "gamma_prime=0"), (ALEXR(), "theta=0"), (MSVR(), "of its own"), (ALEXR2(), "of its own")],
    ids=["SONEX", "ALEXR", "MSVR", "ALEXR2"],
)
def test_algorithms_that_need_the_engine_are_refused(algorithm, message):
    with pytest.raises(ConfigError, match=message):
        Criterion(HingeMargin(), algorithm, num_samples=N)


class Direct(Objective):
    def measure(self, outputs, batch):
        return outputs.square().mean(), None


def test_what_does_nothing_is_refused():
    weights = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(ConfigError, match="SOAP would do the same as SGD here: Direct has no inner functions"):
        SOAP().pose(Direct(), num_samples=N)
    with pytest.raises(ConfigError, match="does not hold a, b"):
        Criterion(AUCMargin(), SGD(), num_samples=N).follow(torch.optim.SGD(weights, lr=1.0))
    with pytest.raises(ConfigError, match="LBFGS evaluates a batch several times"):
        Criterion(HingeMargin(), SOX(), num_samples=N).follow(torch.optim.LBFGS(weights))
    SGD().pose(Direct(), num_samples=N)
    SOAP().pose(Direct(), make_constraints(), num_samples=N)


def test_outputs_of_another_batch_are_refused():
    network, batch = make_network(), make_batches(1)[0]
    criterion, _ = make(SOX(), network)
    with pytest.raises(DataError, match=rf"outputs of shape \({BATCH - 1},.*\) and a batch of {BATCH} samples"):
        criterion(network(batch["x"][1:]), batch)


def test_calls_outside_training_are_refused():
    batch = make_batches(1)[0]
    scores = torch.zeros(BATCH, requires_grad=True)
    criterion = Criterion(HingeMargin(), SOX(), num_samples=N)
    with pytest.raises(ConfigError, match="configure_optimizers"):
        criterion(scores, batch)
    criterion.follow(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    with pytest.raises(ConfigError, match="outside training"), torch.no_grad():
        criterion(scores, batch)
    with pytest.raises(ConfigError, match="outside training"):
        copy.deepcopy(criterion).eval()(scores, batch)
