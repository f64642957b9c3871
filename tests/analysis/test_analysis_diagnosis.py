"""All diagnostics together, at a convex optimum found by scipy and for functions that need no smoothing."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fcco_lightning.analysis import diagnose, jacobian
from tests.analysis.problems import cut, linear, make, whole


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


def test_smooth_functions_need_no_smoothing():
    found = diagnose(make("chi2").objective, jacobian(make("chi2"), [whole()]), lam=0.1)
    assert [point["lam"] for point in found["stationarity"]["grid"]] == [0]
    assert found["duals"]["worst_case"] == math.inf
    assert "predicted" not in found["duals"]
