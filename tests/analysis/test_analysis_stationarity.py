"""Stationarity against autograd of the smoothed objective, and where f itself has trained parameters."""

import pytest
import torch
from torch import nn

from fcco_lightning import CVaRGroupDRO, InnerFunctions
from fcco_lightning.analysis import GRID, jacobian, stationarity
from fcco_lightning.engine import read
from fcco_lightning.objectives import GroupObjective, SquaredLoss
from fcco_lightning.outer import Hinge, MoreauEnvelope, OuterFunction
from tests.analysis.problems import GROUPS, cut, linear, make, network, whole


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
    parts = {"target": batch}
    direct, rows = functions.objective.measure(*read(functions.outputs(parts), parts, functions.objective))
    total = outer.value(rows.values).mean() + (0 if direct is None else direct)
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


class ShiftedHinge(OuterFunction):
    """``f(u) = rho [u - s]_+`` with a trained s, where the inner values are the risks themselves."""

    def __init__(self, rho, shift):
        self.hinge, self.shift = Hinge(rho), shift

    def value(self, u):
        return self.hinge.value(u - self.shift)

    def subgradient(self, u):
        return self.hinge.subgradient(u - self.shift)

    def prox(self, u, lam):
        return self.shift + self.hinge.prox(u - self.shift, lam)


class RisksAsInnerValues(GroupObjective):
    """CVaR with the threshold inside f."""

    def __init__(self, alpha, threshold):
        super().__init__(SquaredLoss(), GROUPS)
        self.threshold = nn.Parameter(torch.tensor(threshold, dtype=torch.float64))
        self.outer = ShiftedHinge(1 / alpha, self.threshold)

    def measure(self, outputs, batch):
        return self.threshold, super().measure(outputs, batch)[1]


@pytest.mark.parametrize("lam", [0.0, 1e-3, 0.05, 1.0])
def test_a_threshold_within_the_outer_function_counts_as_one_within_the_inner_functions(lam):
    batch = whole()
    risks = jacobian(InnerFunctions(network(), RisksAsInnerValues(0.4, 0.0), []), [batch]).values.flatten().tolist()
    threshold = sorted(risks)[3] - 0.01  # so that for some lam a prox ends at the kink
    inside = InnerFunctions(network(), RisksAsInnerValues(0.4, threshold), [])
    outside = InnerFunctions(network(), CVaRGroupDRO(0.4, SquaredLoss(), GROUPS).double(), [])
    with torch.no_grad():
        outside.objective.threshold.fill_(threshold)
    got, expected = (
        stationarity(functions.objective, jacobian(functions, cut(batch, 7)), [lam])[0]
        for functions in (inside, outside)
    )
    assert got == pytest.approx(expected, rel=1e-9)
    assert got.gradient > 1e-3
