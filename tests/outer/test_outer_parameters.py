"""Known parameters of outer functions: gradients against finite differences."""

import pytest
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import (
    Absolute,
    ChiSquare,
    Hinge,
    KullbackLeibler,
    KullbackLeiblerOfLog,
    Linear,
    LogWithTemperature,
    Maximum,
    Power,
    Shifted,
    Softplus,
    Square,
    slopes,
)

SLOPE = 1e-8  # central differences with h = 1e-4 of functions with third derivatives of order 1
EXACT = 1e-12
MAKERS = {  # name: (parameter -> outer function, width of the rows, a value of the parameter)
    "hinge": (lambda s: Shifted(Hinge(2.0, 0.1), s, 0.5), 2, 0.3),
    "smoothed hinge": (lambda s: Shifted(Hinge(2.0), s).smoothed(0.7), 2, 0.3),
    "shifted envelope": (lambda s: Shifted(Hinge(1 / 0.2).smoothed(0.4), s, 1.5), 1, -0.2),
    "chi-square": (lambda s: Shifted(ChiSquare(0.5), s, 0.5), 1, 0.2),
    "kl": (lambda s: Shifted(KullbackLeibler(2.0), s, 2.0), 1, -0.4),
    "smoothed kl": (lambda s: Shifted(KullbackLeibler(), s).smoothed(0.3), 1, 0.1),
    "smoothed power": (lambda s: Shifted(Power(3.0), s).smoothed(0.3), 1, 0.1),
    "smoothed maximum": (lambda s: Shifted(Maximum(), s, 0.8).smoothed(0.6), 2, 0.1),
    "twice": (lambda s: Shifted(Shifted(Softplus(-1.5), s * s), s, 2.0), 1, 0.6),
    "fairness": (lambda s: Linear(Absolute(Shifted(Hinge(1.5), s)), (1.0, -1.0)), 2, 0.25),
    "smoothed fairness": (lambda s: Linear(Absolute(Shifted(Hinge(1.5), s)), (1.0, -1.0)).smoothed(0.3), 2, 0.25),
    "soft two-way partial auc": (lambda c: KullbackLeiblerOfLog(1.2, 2.0, c), 1, 0.4),
    "temperature": (lambda tau: LogWithTemperature(tau, rho=0.4), 2, 0.7),
}


def rows(width, count=9):
    generator = torch.Generator().manual_seed(3)
    return 0.2 + 2 * torch.rand(count, width, generator=generator, dtype=torch.float64)


def parameter(value, shape):
    generator = torch.Generator().manual_seed(4)
    spread = 0.1 * torch.rand(shape, generator=generator, dtype=torch.float64)
    return (value + spread).requires_grad_()


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_gradient_with_respect_to_the_parameter_is_that_of_differences(name, per_row):
    make, width, value = MAKERS[name]
    u, h = rows(width), 1e-4
    known = parameter(value, (len(u), 1 if "fairness" in name else width) if per_row else ())
    make(known)(u).sum().backward()
    if not per_row:
        slope = (make(known.detach() + h)(u).sum() - make(known.detach() - h)(u).sum()) / (2 * h)
        torch.testing.assert_close(known.grad, slope, rtol=SLOPE, atol=SLOPE)
        return
    for j, step in enumerate(h * torch.eye(known.shape[1], dtype=torch.float64)):
        slope = (make(known.detach() + step)(u) - make(known.detach() - step)(u)) / (2 * h)
        torch.testing.assert_close(known.grad[:, j], slope, rtol=SLOPE, atol=SLOPE)


@pytest.mark.parametrize("name", [n for n in MAKERS if n not in ("temperature", "soft two-way partial auc")])
def test_the_pairing_with_a_dual_variable_has_its_slope_and_that_of_the_parameter(name):
    make, width, value = MAKERS[name]
    known, u = parameter(value, ()), rows(width).requires_grad_()
    outer = make(known)
    y = slopes(outer, u)
    (wanted,) = torch.autograd.grad(outer(u).sum(), known, retain_graph=True)
    in_rows, in_parameter = torch.autograd.grad(outer.paired(y, u).sum(), (u, known), allow_unused=True)
    torch.testing.assert_close(in_rows, y, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(in_parameter, wanted, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("name", MAKERS)
def test_values_follow_the_parameter_and_slopes_are_constants(name):
    make, width, value = MAKERS[name]
    outer, u = make(parameter(value, ())), rows(width)
    assert outer(u).requires_grad
    assert not slopes(outer, u).requires_grad
    assert not outer.convex or not slopes(outer.smoothed(0.3), u).requires_grad


def test_parameters_are_found_through_every_wrapper():
    s, t = torch.tensor(0.5), torch.tensor([[0.5], [0.25]])
    assert Hinge().parameters() == ()
    assert Hinge().smoothed(0.1).parameters() == ()
    nested = Linear(Absolute(Shifted(Shifted(Hinge(), s), t)), (1.0, -1.0)).smoothed(0.1)
    assert [id(p) for p in nested.parameters()] == [id(t), id(s)]
    assert LogWithTemperature(s).parameters()[0] is s


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_threshold_of_cvar_gets_one_minus_the_share_of_the_tail(scale):
    losses = torch.arange(10, dtype=torch.float64).unsqueeze(1)
    s = torch.tensor(6.5, dtype=torch.float64, requires_grad=True)
    risk = s + scale * Shifted(Hinge(1 / 0.3), s, scale)(losses).mean()
    assert risk.item() == pytest.approx(8.0)  # the mean of the three largest of ten
    risk.backward()
    assert s.grad.item() == pytest.approx(0.0, abs=EXACT)  # 6.5 is a quantile, where CVaR's dual is minimal


def test_at_a_kink_the_slope_in_the_parameter_is_minus_that_in_the_row():
    s = torch.tensor(0.5, requires_grad=True)
    outer, kink = Shifted(Hinge(3.0), s), torch.tensor([[0.5]])
    outer(kink).sum().backward()
    assert s.grad.item() == -slopes(outer, kink).sum().item() == 0


def test_rows_that_need_a_gradient_get_one_too():
    u = rows(2).requires_grad_()
    outer = Shifted(Square(), parameter(0.3, ())).smoothed(0.4)
    outer(u).sum().backward()
    assert torch.allclose(u.grad, slopes(outer, u), rtol=EXACT)


def test_a_parameter_of_other_rows_is_refused():
    outer = Shifted(Hinge(), torch.zeros(3, 1))
    assert outer(torch.zeros(3, 1)).shape == (3,)
    with pytest.raises(ConfigError, match=r"3 rows does not belong to 2 rows .* one row for each"):
        outer(torch.zeros(2, 1))
    with pytest.raises(ConfigError, match="3 rows does not belong to 2 rows"):
        slopes(LogWithTemperature(torch.ones(3, 1)), torch.ones(2, 1))


@pytest.mark.parametrize("bad", [0.5, torch.tensor(1), torch.zeros(3), torch.zeros(1, 1, 1)], ids=str)
def test_a_parameter_is_a_scalar_tensor_or_rows(bad):
    Shifted(Hinge(), torch.zeros(()))
    LogWithTemperature(torch.ones(1, 2))
    with pytest.raises(ConfigError, match="shift must be a floating-point tensor"):
        Shifted(Hinge(), bad)
    with pytest.raises(ConfigError, match="tau must be a floating-point tensor"):
        LogWithTemperature(bad)


def test_the_fairness_function_looks_at_the_slope_in_every_row():
    Absolute(Shifted(Hinge(), torch.tensor([[0.1], [0.0]])))
    with pytest.raises(ConfigError, match="slope 1 there"):
        Absolute(Shifted(Hinge(), torch.tensor([[0.1], [-0.1]])))


def test_lipschitz_constant_of_a_temperature_is_that_of_the_largest():
    assert LogWithTemperature(torch.tensor([[0.5, 0.25]]), floor=0.1).lipschitz == pytest.approx(5.0)
    assert Shifted(Hinge(3.0), torch.tensor(0.0), 2.0).lipschitz == 1.5
