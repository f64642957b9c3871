"""Optimizers: proximal descent and the heavy ball against their formulas, and their states."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import AdamType, HeavyBall, ProximalDescent, ProximalSGD

EXACT = 1e-14  # the same arithmetic in another order, float64
ARGMIN = 1e-6  # scipy's minimiser
CONVERGED = 1e-9  # 400 contractions by at most 0.95


def parameters(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(size, generator=generator, dtype=torch.float64)) for size in sizes]


def gradients(params, t):
    generator = torch.Generator().manual_seed(100 + t)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def flat(params):
    return torch.cat([p.detach().reshape(-1) for p in params]).numpy()


def slopes(params):
    return torch.cat([p.grad.reshape(-1) for p in params]).numpy()


def test_proximal_descent_is_the_argmin_of_its_model():
    eta, nu = 0.3, 0.7
    params = parameters(2, 3)
    optimizer = ProximalDescent(params, eta, nu)
    optimizer.centre = [p.detach().clone() for p in parameters(2, 3, seed=1)]
    gradients(params, 0)
    z, w, g = flat(params), flat(optimizer.centre), slopes(params)
    model = minimize(
        lambda v: g @ v + ((v - w) ** 2).sum() / (2 * nu) + ((v - z) ** 2).sum() / (2 * eta), z, options={"gtol": 1e-10}
    )
    optimizer.step()
    assert flat(params) == pytest.approx(model.x, abs=ARGMIN)
    assert flat(params) == pytest.approx((nu * z + eta * w - eta * nu * g) / (eta + nu), abs=EXACT)


@pytest.mark.parametrize(("eta", "nu"), [(0.1, 0.4), (0.3, 2.0)])
def test_iterates_of_proximal_descent_tend_to_the_proximal_point(eta, nu):
    """Of ``F(z) = z'Az/2 - b'z``, which is a linear system's solution."""
    a = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    b, w = torch.tensor([[1.0, -2.0], [1.0, 3.0]], dtype=torch.float64)
    p = torch.nn.Parameter(w.clone())
    descent = ProximalDescent([p], eta, nu)
    descent.centre = [w]
    for _ in range(400):
        p.grad = a @ p.detach() - b
        descent.step()
    proximal_point = torch.linalg.solve(a + torch.eye(2, dtype=torch.float64) / nu, b + w / nu)
    assert torch.allclose(p.detach(), proximal_point, atol=CONVERGED, rtol=0)


def test_every_tensor_of_proximal_descent_stays_in_its_ball():
    far, near = torch.nn.Parameter(torch.tensor([3.0, 4.0])), torch.nn.Parameter(torch.tensor([0.3, 0.4]))
    step = ProximalDescent([far, near], eta=0.1, nu=1.0, radius=1.0)
    step.centre = [far.detach().clone(), near.detach().clone()]
    step.step()
    torch.testing.assert_close(far.detach(), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(near.detach(), torch.tensor([0.3, 0.4]))


def test_proximal_descent_pulls_a_parameter_without_gradient_towards_the_centre():
    (p,) = parameters(1)
    optimizer = ProximalDescent([p], eta=1.0, nu=1.0)
    optimizer.centre = [torch.tensor([5.0], dtype=torch.float64)]
    before = p.item()
    optimizer.step()
    assert p.item() == pytest.approx((before + 5.0) / 2)


def test_proximal_descent_runs_a_closure():
    (p,) = parameters(1)
    optimizer = ProximalDescent([p], eta=1.0, nu=1.0)
    optimizer.centre = [p.detach().clone()]
    assert optimizer.step(lambda: 3.0) == 3.0


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_heavy_ball_is_the_average_of_gradients_from_the_first_on(beta):
    params = parameters(2, 3)
    optimizer = HeavyBall(params, lr=0.2, beta=beta, weight_decay=0.05)
    w, v = flat(params), None
    for t in range(10):
        gradients(params, t)
        g = slopes(params) + 0.05 * w
        v = g if v is None else (1 - beta) * v + beta * g
        w = w - 0.2 * v
        optimizer.step()
        assert flat(params) == pytest.approx(w, abs=EXACT)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_heavy_ball_from_zero_is_the_loop_of_the_papers(beta, foreach):
    params = parameters(2, 3)
    optimizer = HeavyBall(params, lr=0.2, beta=beta, weight_decay=0.05, zero_start=True)
    optimizer.param_groups[0]["foreach"] = foreach
    w, v = flat(params), np.zeros(5)
    for t in range(10):
        gradients(params, t)
        v = (1 - beta) * v + beta * (slopes(params) + 0.05 * w)
        w = w - 0.2 * v
        optimizer.step()
        assert flat(params) == pytest.approx(w, abs=EXACT)


def test_heavy_ball_from_zero_also_for_a_parameter_whose_gradient_comes_later():
    params = parameters(2, 3)
    optimizer = HeavyBall(params, lr=0.5, beta=0.1, zero_start=True)
    gradients(params, 0)
    params[1].grad = None
    before = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1], before)
    gradients(params, 1)
    optimizer.step()
    assert torch.allclose(params[1], before - 0.5 * 0.1 * params[1].grad, rtol=EXACT)


@pytest.mark.parametrize("saved_after", [0, 4])
@pytest.mark.parametrize("zero_start", [False, True])
def test_heavy_ball_goes_on_where_it_was_saved(zero_start, saved_after):
    through, parted = parameters(2, 3), parameters(2, 3)
    whole = HeavyBall(through, lr=0.2, beta=0.3, zero_start=zero_start)
    first = HeavyBall(parted, lr=0.2, beta=0.3, zero_start=zero_start)
    for t in range(saved_after):
        gradients(parted, t)
        first.step()
    later = HeavyBall(parted, lr=0.7, beta=0.9, zero_start=not zero_start)  # what is saved wins, as for lr
    later.load_state_dict(first.state_dict())
    for t in range(8):
        gradients(through, t)
        whole.step()
        if t >= saved_after:
            gradients(parted, t)
            later.step()
    assert flat(parted) == pytest.approx(flat(through), abs=0)


def test_heavy_ball_runs_a_closure_once():
    params, calls = parameters(1), []
    gradients(params, 0)
    assert HeavyBall(params, zero_start=True).step(lambda: calls.append(torch.is_grad_enabled()) or 3.0) == 3.0
    assert calls == [True]


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_adam_type_is_adam_with_the_complementary_betas(beta):
    ours, theirs = parameters(2, 3), parameters(2, 3)
    own = AdamType(ours, lr=0.02, beta=beta, beta_prime=0.01, eps=1e-6, weight_decay=0.1)
    adam = torch.optim.AdamW(theirs, lr=0.02, betas=(1 - beta, 0.99), eps=1e-6, weight_decay=0.1)
    w = flat(ours)
    v, s = np.zeros(5), np.zeros(5)
    for t in range(1, 11):
        gradients(ours, t)
        gradients(theirs, t)
        g = slopes(ours)
        v, s = (1 - beta) * v + beta * g, 0.99 * s + 0.01 * g * g
        w = w * (1 - 0.02 * 0.1) - 0.02 * (v / (1 - (1 - beta) ** t)) / (np.sqrt(s / (1 - 0.99**t)) + 1e-6)
        own.step()
        adam.step()
        assert flat(ours) == pytest.approx(flat(theirs), abs=EXACT)
        assert flat(ours) == pytest.approx(w, abs=1e-12)


@pytest.mark.parametrize(("mu", "radius"), [(0.0, None), (0.8, None), (0.8, 1.0), (0.0, 100.0)])
def test_proximal_sgd_is_the_argmin_over_the_ball(mu, radius):
    lr, params = 0.3, parameters(2, 3)
    optimizer = ProximalSGD(params, lr=lr, mu=mu, radius=radius)
    gradients(params, 0)
    w, g = flat(params), slopes(params)
    ball = () if radius is None else ({"type": "ineq", "fun": lambda v: radius**2 - v @ v},)
    found = minimize(
        lambda v: g @ v + mu / 2 * (v @ v) + ((v - w) ** 2).sum() / (2 * lr),
        np.zeros(5),
        constraints=ball,
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 500},
    )
    optimizer.step()
    assert flat(params) == pytest.approx(found.x, abs=ARGMIN)


def test_the_ball_holds_parameters_without_gradient_too():
    params = parameters(2, 3)
    optimizer = ProximalSGD(params, lr=0.1, radius=0.5)
    gradients(params, 0)
    params[1].grad = None
    optimizer.step()
    assert np.linalg.norm(flat(params)) == pytest.approx(0.5)


def test_the_ball_leaves_the_origin_where_it_is():
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.zeros(2)
    ProximalSGD([p], radius=1.0).step()
    assert p.tolist() == [0, 0]


def test_proximal_sgd_takes_no_closure():
    params = parameters(1)
    gradients(params, 0)
    assert ProximalSGD(params).step() is None
    with pytest.raises(ConfigError, match="no closure"):
        ProximalSGD(params).step(lambda: 0.0)
