"""Exact inner functions, Gram matrix, dual values and stationarity against autograd and scipy."""

import math

import numpy as np
import pytest
import torch
from fcco_lightning.problem.diagnostics import (
    GRID,
    diagnose,
    duals,
    gram,
    jacobian,
    outer_gradients,
    remembered_duals,
    spectrum,
    stationarity,
)
from scipy.optimize import minimize
from torch import nn
from torch.func import functional_call, jacrev

from fcco_lightning import (
    ALEXR,
    AUC,
    OOA,
    SGD,
    SONEX,
    ChiSquareGroupDRO,
    ConfigError,
    CVaRGroupDRO,
    DataError,
    InnerFunctions,
    KLGroupDRO,
    MultiLabelLoss,
    MultiTaskGroupDRO,
    NonFiniteError,
    Problem,
    SquaredLoss,
    WorstGroupDRO,
)
from fcco_lightning.outer import Hinge, MoreauEnvelope
from tests.distributed import pool as pools

pool = pools.pool
GROUPS, TASKS, SIZE = 5, 3, 61

OBJECTIVES = {
    "cvar": lambda: CVaRGroupDRO(0.4, threshold=0.3),
    "worst": lambda: WorstGroupDRO(threshold=0.3),
    "chi2": lambda: ChiSquareGroupDRO(0.5, threshold=0.2),
    "kl": lambda: KLGroupDRO(0.7, threshold=0.1),
    "max form": lambda: CVaRGroupDRO(0.4).max_form(),
    "tasks": lambda: MultiTaskGroupDRO(TASKS, MultiLabelLoss()),
    "task column": lambda: MultiTaskGroupDRO(TASKS, SquaredLoss()),
}


def network(outputs=1):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, outputs)).double()


def whole(name="cvar"):
    generator = torch.Generator().manual_seed(0)
    label = (SIZE, TASKS) if name == "tasks" else (SIZE,)
    return {
        "x": torch.randn(SIZE, 4, generator=generator, dtype=torch.float64),
        "y": torch.randint(2, label, generator=generator),
        "group": torch.randint(GROUPS, (SIZE,), generator=generator),
        "task": torch.arange(SIZE) % TASKS,
    }


def cut(batch, size):
    count = len(batch["x"])
    return [{k: v[i : i + size] for k, v in batch.items()} for i in range(0, count, size)]


def make(name="cvar", groups=GROUPS):
    objective = OBJECTIVES[name]()
    objective._set_num_groups(groups)
    return InnerFunctions(network(TASKS if name == "tasks" else 1), objective.double(), [])


def by_autograd(functions, batch):
    """``(g, rows, g_0, its gradient)`` of the whole split as one batch."""
    functions.eval()
    weights = {k: p.detach() for k, p in functions.trainable().items()}

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.functions = functions

        def forward(self):
            measured = self.functions(self.functions.outputs(batch), batch)
            direct = measured.direct
            return measured.inner[0].values, torch.zeros((), dtype=torch.float64) if direct is None else direct

    parts = Parts()

    def values(w):
        return functional_call(parts, {f"functions.{k}": v for k, v in w.items()}, ())

    g, direct = values(weights)
    inner, first = jacrev(values)(weights)
    flat = [torch.cat([t[k].reshape(*shape, -1) for k in weights], -1) for t, shape in ((inner, g.shape), (first, ()))]
    functions.train()
    return g, flat[0].reshape(g.numel(), -1), float(direct), flat[1]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_values_and_gradients_are_those_of_autograd(name):
    functions, batch = make(name), whole(name)
    expected = by_autograd(functions, batch)
    for size in (7, SIZE):
        found = jacobian(functions, cut(batch, size))
        for got, other in zip(found, expected, strict=False):
            torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(other), rtol=1e-10, atol=1e-12)
    assert found.num_network == sum(p.numel() for p in functions.network.parameters())
    J = expected[1]
    torch.testing.assert_close(gram(found.rows), J @ J.T)
    assert spectrum(gram(found.rows)).lambda_min == pytest.approx(
        max(0, np.linalg.eigvalsh((J @ J.T).numpy())[0]), abs=1e-12
    )


def test_nothing_is_left_behind():
    functions = make()
    functions.train()
    functions.network[1].eval()  # a layer that its owner has frozen
    state = {k: v.clone() for k, v in functions.state_dict().items()}
    random = torch.get_rng_state()
    with torch.inference_mode():
        jacobian(functions, cut(whole(), 7))
    assert all(torch.equal(v, state[k]) for k, v in functions.state_dict().items())
    assert all(p.grad is None for p in functions.parameters())
    assert [m.training for m in functions.network] == [True, False, True, True, True]
    assert torch.equal(random, torch.get_rng_state())


def test_frozen_layers_are_no_parameters():
    functions = make()
    functions.network[0].requires_grad_(False)
    found = jacobian(functions, [whole()])
    assert found.rows.shape == (GROUPS, 3 + 3 + 3 + 1 + 1)
    functions.requires_grad_(False)
    with pytest.raises(ConfigError, match="all of them are frozen"):
        jacobian(functions, [whole()])


def test_two_equal_groups_make_the_gram_matrix_singular():
    batch = whole()
    batch["group"] = batch["group"].clamp(max=GROUPS - 2)
    first = spectrum(gram(jacobian(make(groups=GROUPS - 1), [batch]).rows))
    assert first.lambda_min > 1e-8 * first.lambda_max
    assert first.condition == pytest.approx(first.lambda_max / first.lambda_min)
    own = batch["group"] == 2
    twice = {k: torch.cat([v, v[own]]) for k, v in batch.items()}
    twice["group"][SIZE:] = GROUPS - 1
    found = spectrum(gram(jacobian(make(), cut(twice, 7)).rows))
    assert 0 <= found.lambda_min < 1e-14 * found.lambda_max
    assert found.condition == math.inf


def test_the_gram_matrix_goes_through_blocks(monkeypatch):
    found = jacobian(make(), [whole()])
    expected = gram(found.rows), stationarity(make().objective, found, [0.0, 0.1])
    monkeypatch.setattr("fcco_lightning.problem.diagnostics._BLOCK", 3 * GROUPS)
    torch.testing.assert_close(gram(found.rows), expected[0])
    for got, other in zip(stationarity(make().objective, found, [0.0, 0.1]), expected[1], strict=True):
        assert got == pytest.approx(other)


# ---------------------------------------------------------------------------------------------------- duals


def test_duals_by_hand():
    y = torch.tensor([[2.5], [0.0], [1e-9], [2.5]], dtype=torch.float64)
    assert duals(y) == (4, 2, pytest.approx(6.25))
    assert duals(torch.zeros(3, 1)) == (3, 0, 0)
    assert duals(torch.zeros(0, 1)) == (0, 0, 0)


def test_a_max_form_has_the_weights_of_the_worst_case():
    objective = make("max form").objective
    y = outer_gradients(objective, torch.tensor([[0.1], [0.5], [0.3], [0.2], [0.4]]))
    torch.testing.assert_close(y.flatten(), torch.tensor([0, 2.5, 0, 0, 2.5]))
    found = diagnose(objective, jacobian(make("max form"), [whole()]), lam=0.1)
    assert found["duals"]["predicted"] == found["duals"]["exact"]["omega"] == pytest.approx(5 / 0.8)
    assert len(found["stationarity"]["grid"]) == 1
    assert "at" not in found["stationarity"]
    assert "value" not in found


@pytest.mark.parametrize(
    ("algorithm", "rows", "expected"),
    [
        (SONEX(lam=0.5), [-1, 0.25, 3], [0, 0.5, 2.5]),  # grad f_lam(u)
        (ALEXR(), [0, 1, 2.5], [0, 1, 2.5]),  # y
        (OOA(), [0.2, 0.3, 0.1], [1, 1.5, 0.5]),  # n q
    ],
)
def test_remembered_duals(algorithm, rows, expected):
    objective = CVaRGroupDRO(0.4, num_groups=GROUPS)
    problem = Problem(objective.max_form() if algorithm.max_form else objective, [], None, algorithm, SIZE)
    problem.states[0].write(torch.tensor([0, 2, 3]), torch.tensor(rows).float().unsqueeze(1))
    expected = torch.tensor(expected, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(remembered_duals(problem), expected, rtol=1e-6, atol=0)


def test_an_algorithm_without_rows():
    problem = Problem(AUC(), [], None, SGD(), SIZE)
    assert remembered_duals(problem) is None


# --------------------------------------------------------------------------------------------- stationarity


def linear(weights, threshold, alpha, groups):
    layer = nn.Linear(len(weights), 1, bias=False).double()
    objective = CVaRGroupDRO(alpha, SquaredLoss(), groups).double()
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(weights))
        objective.threshold.fill_(threshold)
    return InnerFunctions(layer, objective, [])


def regression(groups=10, hard=3, each=40):
    """Groups of which the first are so noisy that they are the worst ones wherever it matters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(groups * each, 2))
    group = np.repeat(np.arange(groups), each)
    noise = np.where(group < hard, 4 + 0.5 * group, 0.3 + 0.1 * group)
    y = x @ [1.0, -2.0] + noise * rng.normal(size=len(x))
    order = rng.permutation(len(x))
    batch = {"x": torch.from_numpy(x), "y": torch.from_numpy(y), "group": torch.from_numpy(group)}
    return {k: v[order] for k, v in batch.items()}


def risks(batch, w):
    squares = (batch["x"].numpy() @ w - batch["y"].numpy()) ** 2
    return np.bincount(batch["group"].numpy(), squares) / np.bincount(batch["group"].numpy())


def test_a_convex_optimum_of_cvar():
    batch, n, k = regression(), 10, 3
    best = minimize(lambda w: np.sort(risks(batch, w))[-k:].mean(), np.zeros(2), method="BFGS", options={"gtol": 1e-10})
    descending = np.sort(risks(batch, best.x))[::-1]
    assert descending[k - 1] > descending[k] + 1  # losses are distinct
    threshold = (descending[k - 1] + descending[k]) / 2
    functions = linear(best.x, threshold, k / n, n)
    found = diagnose(functions.objective, jacobian(functions, cut(batch, 64)), lam=1e-3)
    assert found["value"] == pytest.approx(best.fun)
    sizes = found["duals"]
    assert sizes["exact"]["active"] == k
    assert sizes["exact"]["omega"] == pytest.approx(sizes["predicted"]) == pytest.approx(n / (2 * k / n))
    assert sizes["worst_case"] == pytest.approx(n * (n / k) ** 2 / 2)
    assert sizes["alpha_n"] == pytest.approx(k)
    at, least = found["stationarity"]["at"], found["stationarity"]["best"]
    assert at["shift"] == pytest.approx(1e-3 * n / k)  # lam C_f
    assert at["eps"] < 0.01
    assert least["eps"] < 1e-4
    assert least == min(found["stationarity"]["grid"], key=lambda point: point["eps"])
    away = linear([3.0, 3.0], threshold, k / n, n)
    found = diagnose(away.objective, jacobian(away, [batch]), lam=1e-3)["stationarity"]
    assert found["at"]["eps"] > found["best"]["eps"] > 1


def test_where_risks_tie_smoothing_finds_the_solution():
    """The worst of two symmetric groups is least where they are equal: no single subgradient is small there."""
    x = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    batch = {"x": x, "y": torch.tensor([1.0, -1.0], dtype=torch.float64), "group": torch.tensor([0, 1])}
    functions = linear([0.0], 1 - 1e-3, 0.5, 2)
    found = jacobian(functions, [batch])
    none, half, *_ = stationarity(functions.objective, found, [0.0, 1e-3])
    assert none.gradient == pytest.approx(1)  # y = (2, 2) instead of (1, 1)
    assert half.eps == pytest.approx(1e-3)


@pytest.mark.parametrize("name", ["cvar", "worst", "chi2", "kl", "tasks"])
@pytest.mark.parametrize("lam", [0.0, 0.05, 1.0])
def test_the_gradient_is_that_of_the_smoothed_objective(name, lam):
    functions, batch = make(name), whole(name)
    found = jacobian(functions, cut(batch, 7))
    (point,) = stationarity(functions.objective, found, [lam])
    functions.eval()
    outer = MoreauEnvelope(functions.objective.outer, lam) if lam else functions.objective.outer
    measured = functions(functions.outputs(batch), batch)
    total = outer.value(measured.inner[0].values).mean() + (0 if measured.direct is None else measured.direct)
    weights = list(functions.trainable().values())
    if name != "tasks" or lam:
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(total, weights)])
        assert point.gradient == pytest.approx(gradient.norm().item(), rel=1e-8)
    u = found.values
    t = outer.outer.prox(u, lam) if lam else u
    assert point.shift == pytest.approx(float((t - u).norm(dim=1).max()))
    assert point.eps == max(point.shift, point.gradient)


def test_theorem_4_2():
    """``lam = eps / C_f`` and ``|grad F_lam| <= eps`` give approximate eps-stationarity: no shift is above eps."""
    functions = make()
    found = jacobian(functions, [whole()])
    points = stationarity(functions.objective, found, GRID)
    assert all(p.shift <= p.lam * functions.objective.outer.lipschitz * (1 + 1e-12) for p in points)


def test_smooth_functions_need_no_smoothing():
    found = diagnose(make("chi2").objective, jacobian(make("chi2"), [whole()]), lam=0.1)
    assert [point["lam"] for point in found["stationarity"]["grid"]] == [0]
    assert found["duals"]["worst_case"] == math.inf
    assert "predicted" not in found["duals"]


# ------------------------------------------------------------------------------------------------- refusals


def test_refusals():
    batch = whole()
    with pytest.raises(ConfigError, match=r"the objective is AUC. Use a group objective"):
        jacobian(InnerFunctions(network(), AUC(), []), [batch])
    with pytest.raises(ConfigError, match=r"5 inner values by 26 parameters, .* has 130 values, max_values is 129"):
        jacobian(make(), [batch], max_values=129)
    with pytest.raises(ConfigError, match="max_values must be"):
        jacobian(make(), [batch], max_values=0)
    with pytest.raises(DataError, match="inner function 5 has no sample, diagnostics need all 6"):
        jacobian(make(groups=6), [batch])
    with pytest.raises(DataError, match="needs the column `group`"):
        jacobian(make(), [{k: v for k, v in batch.items() if k != "group"}])
    with pytest.raises(NonFiniteError, match="not finite"):
        jacobian(make(), [{**batch, "x": batch["x"] * math.nan}])
    objective = make("task column").objective
    missing = {**batch, "task": torch.where(batch["group"] == 4, 0, batch["task"])}
    with pytest.raises(DataError, match=r"inner function 1 \(entry 4\) has no sample"):
        jacobian(InnerFunctions(network(), objective, []), [missing])


def of_a_share(processes, count):  # in every process
    functions, batch = make(), whole()
    own = slice(0, 9) if processes.rank == 0 else slice(9, None)
    batches = cut({k: v[own] for k, v in batch.items()}, 7) if processes.size > 1 else [batch]
    return [torch.as_tensor(part) for part in jacobian(functions, batches[: count or None], processes)]


def test_two_processes_add_up_their_shares(pool):
    [expected] = pool.values(of_a_share, 1, 0)
    for found in pool.values(of_a_share, 2, 0):
        for got, other in zip(found, expected, strict=True):
            torch.testing.assert_close(got, other, rtol=1e-10, atol=1e-12)


def test_float32_networks_keep_their_precision():
    functions = make()
    exact = jacobian(functions, [whole()])
    batch = whole()
    found = jacobian(functions.float(), [{**batch, "x": batch["x"].float()}])
    assert found.rows.dtype == torch.float32
    assert found.values.dtype == torch.float64
    torch.testing.assert_close(found.rows.double(), exact.rows, rtol=1e-4, atol=1e-5)


def test_the_hinge_at_its_kink():
    assert outer_gradients(CVaRGroupDRO(0.5), torch.zeros(2, 1)).tolist() == [[0], [0]]
    assert isinstance(CVaRGroupDRO(0.5).outer, Hinge)
