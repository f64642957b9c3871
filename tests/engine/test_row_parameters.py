"""Parameters of single samples move by the gradient of their own term, however often a batch contains the sample."""

import copy

import pytest
import torch

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    MSVR,
    PDSCA,
    SGD,
    SONEX,
    SONX,
    SOX,
    BalancedSampling,
    CVaRPartialAUC,
    Engine,
    GroupSampling,
    HeavyBall,
    MeanAtMost,
    SoftRate,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.algorithms import ICPPAC
from fcco_lightning.data.batches import Drawn
from fcco_lightning.errors import DataError, StateIndexError

RATE, SAMPLES = 1e-3, 40
DRAWN = {  # number of positives, how batches are drawn, and how far the mean move may be from the right one
    "uniform": (10, UniformSampling(8), 0.1),
    "balanced": (10, BalancedSampling(8), 1e-6),
    "positives repeat": (3, BalancedSampling(16, allow_repeats=True), 1e-6),
    "with replacement": (10, GroupSampling(2, samples_per_group=8, replacement=True, prevalence="data"), 0.1),
}
ONE_WAY = {"SGD": (SGD, []), "ICPPAC": (lambda: ICPPAC(eta=1e-12, K=9), [MeanAtMost(SoftRate(), 0.9)])}
TWO_WAY = {
    "SONX": SONX,
    "SOX": SOX,
    "MSVR": MSVR,
    "ALEXR": lambda: ALEXR(theta=0.1, tau=0.1, jacobian="old"),
    "ALEXR, two draws": lambda: ALEXR(theta=0.1, tau=0.1, jacobian="part"),
    "ALEXR2, two draws": lambda: ALEXR2(K=2, jacobian="part"),
    "PDSCA": PDSCA,
}


def mean_move(algorithm, constraints, drawn, min_tpr):
    """Of a threshold in a batch that holds its sample, in units of the step size.

    Thresholds are above all losses, so that ``dL_i / ds_i = 1``, and the weights stay where they are.
    """
    positives, sampling, _ = DRAWN[drawn]
    columns = {"y": (torch.arange(SAMPLES) < positives).long(), "index": torch.arange(SAMPLES)}
    columns |= {
        "x": torch.linspace(-1, 1, SAMPLES, dtype=torch.float64).unsqueeze(1),
        "group": torch.arange(SAMPLES) % 2,
    }
    plan = sampling.plan(columns, seed=0)
    columns |= plan.columns()
    objective = CVaRPartialAUC(0.5, min_tpr, thresholds=50.0, thresholds_lr=RATE, threshold=-100.0)
    given = {"num_samples": SAMPLES, "sampling": {"target": Drawn(columns, plan)}, "dtype": torch.float64}
    problem = algorithm.pose(objective, constraints, **given)
    network = torch.nn.Linear(1, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD([*network.parameters(), *objective.parameters()], lr=1e-12)
    engine, held, moves = Engine(network, problem, algorithm), problem.row_parameters.state, []
    for epoch in range(12):
        for batch, dual in zip(plan.batches(epoch), plan.second_draw().batches(epoch), strict=True):
            parts = {"target": {name: column[batch] for name, column in columns.items()}}
            if getattr(algorithm, "jacobian", None) == "part":
                parts["dual"] = {name: column[dual] for name, column in columns.items()}
            before = held.gather(None).nan_to_num(50.0).clone()
            engine.train_batch(parts, optimizer)
            seen = parts["target"]["index"][parts["target"]["y"] == 1].unique()
            moves.append((before - held.gather(None).nan_to_num(50.0))[seen].flatten() / RATE)
    return torch.cat(moves)


@pytest.mark.filterwarnings("ignore:few batches contain samples of")
@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("name", ONE_WAY)
def test_a_visit_moves_a_threshold_by_its_gradient(name, drawn):
    make, constraints = ONE_WAY[name]
    moves = mean_move(make(), constraints, drawn, min_tpr=0.0)
    moves = moves[moves != 0]  # the first batch of a stage of ICPPAC moves nothing
    assert len(moves) > 20
    assert moves.mean().item() == pytest.approx(1, abs=DRAWN[drawn][2])


@pytest.mark.filterwarnings("ignore:few batches contain samples of")
@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("name", TWO_WAY)
def test_a_visit_moves_a_threshold_by_the_outer_gradient(name, drawn):
    moves = mean_move(TWO_WAY[name](), [], drawn, min_tpr=0.5)[-40:]  # rows that remember y have come to rest
    assert moves.mean().item() == pytest.approx(2, rel=max(DRAWN[drawn][2], 1e-3))  # 1 / (1 - min_tpr)


def started(columns):
    """An engine with thresholds of samples after a batch, with the optimizer."""
    plan = UniformSampling(SAMPLES).plan(columns, seed=0)
    objective, algorithm = CVaRPartialAUC(0.5, thresholds_lr=RATE), SGD()
    problem = algorithm.pose(objective, num_samples=SAMPLES, sampling={"target": Drawn(columns, plan)})
    network = torch.nn.Linear(1, 1)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=0.1)
    engine.train_batch(columns, optimizer)
    return engine, optimizer


def everyone():
    return {
        "x": torch.linspace(-1, 1, SAMPLES).unsqueeze(1),
        "y": (torch.arange(SAMPLES) % 4 == 0).long(),
        "index": torch.arange(SAMPLES),
    }


@pytest.mark.filterwarnings("ignore:CVaRPartialAUC takes a mean")
def test_a_sample_of_weight_zero_moves_nothing():
    columns = everyone()
    columns["weight"] = (torch.arange(SAMPLES) != 4).float()
    engine, optimizer = started(columns)
    held = engine.problem.row_parameters.state.gather(None).clone()
    engine.train_batch(columns, optimizer)
    moved = (engine.problem.row_parameters.state.gather(None) != held).flatten()
    assert not moved[4]
    assert moved[columns["y"] == 1].sum() > 3


@pytest.mark.filterwarnings("ignore:CVaRPartialAUC takes a mean")
@pytest.mark.parametrize("without", [0, 1], ids=["a positive", "a negative"])
@pytest.mark.parametrize(("min_tpr", "algorithm"), [(0.0, SGD), (0.5, SONX)], ids=["one-way", "two-way"])
def test_a_sample_whose_own_weight_is_zero_moves_nothing(min_tpr, algorithm, without):
    """Of such weights the plan knows beforehand what samples count."""
    table = everyone() | {"sample_weight": (torch.arange(SAMPLES) != without).float()}
    del table["index"]
    data = TensorDataModule({"train": table, "test": table}, batches=UniformSampling(SAMPLES))
    data.setup()
    network, method = torch.nn.Linear(1, 1), algorithm()
    objective = CVaRPartialAUC(0.5, min_tpr, thresholds=0.25, thresholds_lr=RATE)
    engine = Engine(network, method.pose(objective, num_samples=SAMPLES, sampling=data.sampling()), method)
    engine.train_batch(next(iter(data.train_dataloader())), torch.optim.SGD(engine.params, lr=0.1))
    moved = engine.problem.row_parameters.state.gather(None).flatten() != 0.25
    assert not moved[without]
    assert moved[table["y"] == 1].sum() > 3


@pytest.mark.filterwarnings("ignore:CVaRPartialAUC takes a mean")
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (lambda c: c | {"index": c["index"] + 1}, StateIndexError, f"got index {SAMPLES} at batch position"),
        (lambda c: c | {"index": c["index"].float()}, DataError, "column `index` .* type torch.float32.*an integer"),
        (lambda c: {name: column[:0] for name, column in c.items()}, DataError, r"column `index`.* shape \(0,\)"),
        (lambda c: c | {"weight": c["weight"] - 1}, DataError, "column `weight` of the part 'target' contains -1"),
    ],
    ids=["out of range", "no whole numbers", "no samples", "negative weight"],
)
def test_a_column_that_cannot_be_is_named_and_nothing_moves(changed, error, message):
    columns = everyone() | {"weight": (torch.arange(SAMPLES) > 5).float()}
    engine, optimizer = started(columns)
    before = [p.clone() for p in engine.params] + [engine.problem.row_parameters.state.gather(None).clone()]
    engine.checked = False  # the first batch is looked at
    with pytest.raises(error, match=message):
        engine.train_batch(changed(columns), optimizer)
    after = [*engine.params, engine.problem.row_parameters.state.gather(None)]
    assert all(torch.equal(a.nan_to_num(9), b.nan_to_num(9)) for a, b in zip(before, after, strict=True))


def trained(algorithm, batches, interrupted=None):
    """Weights, rows and thresholds after steps on batches of these samples.

    Args:
        interrupted: a step after which another engine continues from what the first would save.
    """
    torch.manual_seed(0)
    columns = everyone() | {"x": torch.randn(SAMPLES, 2, dtype=torch.float64)}
    weights = torch.nn.Linear(2, 1, dtype=torch.float64).state_dict()

    def fresh():
        objective = CVaRPartialAUC(0.5, min_tpr=0.5, thresholds=0.3, thresholds_lr=0.5)
        sampling = {"target": Drawn(columns, UniformSampling(len(batches[0])).plan(columns, seed=0))}
        problem = algorithm().pose(objective, num_samples=SAMPLES, sampling=sampling, dtype=torch.float64)
        network = torch.nn.Linear(2, 1, dtype=torch.float64)
        network.load_state_dict(weights)
        optimizer = HeavyBall([*network.parameters(), *objective.parameters()], lr=0.3, beta=1)
        return Engine(network, problem, algorithm()), network, optimizer

    engine, network, optimizer = fresh()
    for step, index in enumerate(batches):
        engine.train_batch({name: column[index] for name, column in columns.items()}, optimizer)
        if step == interrupted:
            parts = (engine, engine.problem, network, optimizer)  # the engine has the objective's parameters
            saved = [copy.deepcopy(part.state_dict()) for part in parts]
            engine, network, optimizer = fresh()
            parts = (engine, engine.problem, network, optimizer)
            for part, state in zip(parts, saved, strict=True):
                part.load_state_dict(state)
    problem = engine.problem
    return [*network.parameters(), problem.states[0].rows, problem.row_parameters.state.rows]


SAME_ON_WHOLE_BATCHES = {
    "SONEX": (lambda: SONEX(gamma=0.5, gamma_prime=0.5), lambda: SONEX(gamma=1, gamma_prime=0)),
    "MSVR": (lambda: MSVR(gamma=0.5, gamma_prime=0.5), lambda: MSVR(gamma=0.5, gamma_prime=0.5, b=1)),
}


@pytest.mark.filterwarnings("ignore:CVaRPartialAUC takes a mean")
@pytest.mark.parametrize("name", SAME_ON_WHOLE_BATCHES)
def test_the_previous_weights_go_with_the_previous_thresholds(name):
    # where every batch is the whole split, u_i = g_i and v = G have no error that a correction would have to take back
    corrected, plain = (trained(make, [torch.arange(SAMPLES)] * 6) for make in SAME_ON_WHOLE_BATCHES[name])
    for a, b in zip(corrected, plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12, equal_nan=True)


@pytest.mark.filterwarnings("ignore:CVaRPartialAUC takes a mean")
@pytest.mark.parametrize("name", SAME_ON_WHOLE_BATCHES)
def test_the_previous_thresholds_are_part_of_what_is_saved(name):
    make = SAME_ON_WHOLE_BATCHES[name][0]
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randperm(SAMPLES, generator=generator)[: SAMPLES * 2 // 3] for _ in range(6)]
    for a, b in zip(trained(make, batches), trained(make, batches, interrupted=2), strict=True):
        assert torch.equal(a.nan_to_num(9), b.nan_to_num(9))


@pytest.mark.filterwarnings("ignore:CVaRPartialAUC takes a mean")
def test_weights_of_batches_of_which_nothing_else_is_known_leave_a_step_as_it_is():
    columns = everyone() | {"weight": torch.where(torch.arange(SAMPLES) % 4 == 0, 0.25, 1.25)}
    objective, network = CVaRPartialAUC(0.5, thresholds=50.0, thresholds_lr=RATE), torch.nn.Linear(1, 1)
    engine = Engine(network, SGD().pose(objective, num_samples=SAMPLES), SGD())
    engine.train_batch(columns, torch.optim.SGD(network.parameters(), lr=0.0))
    moved = 50.0 - engine.problem.row_parameters.state.gather(None)[columns["y"] == 1]
    torch.testing.assert_close(moved / RATE, torch.ones_like(moved), rtol=0.02, atol=0)
