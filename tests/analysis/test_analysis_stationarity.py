"""Stationarity against autograd of the smoothed objective, also if f has trained parameters."""

import pytest
import torch

from fcco_lightning.analysis import GRID, jacobian, stationarity
from fcco_lightning.engine import read
from fcco_lightning.outer import slopes
from tests.analysis.problems import cut, linear, make, whole


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
    outer = functions.objective.outer.smoothed(lam) if lam else functions.objective.outer
    parts = {"target": batch}
    direct, rows = functions.objective.measure(*read(functions.outputs(parts), parts, functions.objective))
    total = outer(rows.values).mean() + (0 if direct is None else direct)
    weights = list(functions.trainable().values())
    if name != "tasks" or lam:
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(total, weights)])
        assert point.gradient == pytest.approx(gradient.norm().item(), rel=1e-8)
    u = found.values
    t = u - lam * slopes(outer, u)
    assert point.shift == pytest.approx(float((t - u).norm(dim=1).max()))
    assert point.eps == max(point.shift, point.gradient)


def test_theorem_4_2():
    """``lam = eps / C_f`` and ``|grad F_lam| <= eps`` give approximate eps-stationarity: no shift is above eps."""
    functions = make()
    found = jacobian(functions, [whole()])
    points = stationarity(functions.objective, found, GRID)
    assert all(p.shift <= p.lam * functions.objective.outer.lipschitz * (1 + 1e-12) for p in points)
