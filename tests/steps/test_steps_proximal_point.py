import pytest
import torch

from fcco_lightning.errors import CheckpointError, ConfigError
from fcco_lightning.steps import ProximalPoint

CONVERGED = 1e-9  # 400 contractions by at most 0.95
EXACT = 1e-14  # the same arithmetic in another order, float64

A = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)  # F(z) = z'Az/2 - b'z
B = torch.tensor([1.0, -2.0], dtype=torch.float64)


def bound(step, start=(1.0, 3.0)):
    p = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    step.bind([p])
    return p


def iterate(step, p, *, last_batch=False):
    with step.at_iterate():
        p.grad = A @ p.detach() - B
        step.inner_optimizer.step()
        z = p.detach().clone()
    return step.inner_done(last_batch=last_batch), z


@pytest.mark.parametrize(("eta", "nu"), [(0.1, 0.4), (0.3, 2.0)])
def test_outer_gradient_tends_to_that_of_the_moreau_envelope(eta, nu):
    step = ProximalPoint(K=400, eta=eta, nu=nu)
    p = bound(step)
    w = p.detach().clone()
    done = [iterate(step, p)[0] for _ in range(400)]
    assert done == [False] * 399 + [True]
    prox = torch.linalg.solve(A + torch.eye(2, dtype=torch.float64) / nu, B + w / nu)
    assert torch.allclose(p.grad, (w - prox) / nu, atol=CONVERGED, rtol=0)


def test_inner_iterates_are_those_of_the_box():
    eta, nu = 0.2, 0.5
    step = ProximalPoint(K=3, eta=eta, nu=nu)
    p = bound(step)
    w = p.detach().clone()
    z = w
    for k in range(3):
        z = (nu * z + eta * w - eta * nu * (A @ z - B)) / (eta + nu)
        done, at = iterate(step, p)
        assert torch.allclose(at, z, atol=EXACT, rtol=0)
        assert torch.equal(p, w)  # outside, the parameters hold w
        assert done == (k == 2)
    assert torch.allclose(p.grad, (w - z) / nu, atol=EXACT, rtol=0)


def test_the_next_inner_loop_starts_at_the_new_centre():
    step = ProximalPoint(K=2, eta=0.2, nu=0.5)
    p = bound(step)
    iterate(step, p)
    iterate(step, p)
    with torch.no_grad():
        p.copy_(torch.tensor([-4.0, 4.0]))
    with step.at_iterate():
        assert p.tolist() == [-4, 4]


def test_the_last_batch_closes_the_loop():
    step = ProximalPoint(K=5, eta=0.2, nu=0.5)
    p = bound(step)
    assert iterate(step, p)[0] is False
    done, z = iterate(step, p, last_batch=True)
    assert done is True
    assert torch.allclose(p.grad, (p.detach() - z) / 0.5, atol=EXACT)
    assert iterate(step, p)[0] is False  # counts from the start again


def test_parameters_hold_w_after_an_exception_inside():
    step = ProximalPoint(K=3, eta=0.2, nu=0.5)
    p = bound(step)
    w = p.detach().clone()
    _, z = iterate(step, p)
    with pytest.raises(ZeroDivisionError), step.at_iterate():
        1 / 0  # noqa: B018
    assert torch.equal(p, w)
    with step.at_iterate():
        assert torch.equal(p, z)  # and the iterate is not lost


def test_the_iterate_can_be_taken_as_the_weights():
    step = ProximalPoint(K=10, eta=0.2, nu=0.5)
    p = bound(step)
    _, z = iterate(step, p)
    step.take_iterate()
    assert torch.equal(p, z)


@pytest.mark.parametrize("stop", [0, 2, 4])
def test_stopping_in_the_middle_of_the_loop_and_resuming_continues_it(stop, tmp_path):
    def run(step, p, steps):
        for _ in range(steps):
            if iterate(step, p)[0]:
                with torch.no_grad():
                    p.sub_(p.grad, alpha=0.3)

    whole = ProximalPoint(K=4, eta=0.2, nu=0.5)
    expected = bound(whole)
    run(whole, expected, 9)

    first, second = ProximalPoint(K=4, eta=0.2, nu=0.5), ProximalPoint(K=4, eta=0.2, nu=0.5)
    p = bound(first)
    run(first, p, stop)
    torch.save(first.state_dict(), tmp_path / "step.pt")
    q = bound(second, p.tolist())
    second.load_state_dict(torch.load(tmp_path / "step.pt", weights_only=True))
    run(second, q, 9 - stop)
    assert torch.equal(q, expected)


def test_state_of_another_network_is_refused():
    first, second = ProximalPoint(), ProximalPoint()
    iterate(first, bound(first))
    second.bind([torch.nn.Parameter(torch.zeros(3))])
    with pytest.raises(CheckpointError, match="shapes"):
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"K": 0}, "K must be a whole number >= 1"),
        ({"K": 2.5}, "K must be a whole number >= 1"),
        ({"eta": 0.0}, "eta must be a finite number > 0"),
        ({"nu": -1.0}, "nu must be a finite number > 0"),
        ({"nu": float("nan")}, "nu must be a finite number > 0"),
        ({"recovery_steps": -1}, "recovery_steps must be"),
        ({"recovery_steps": 2.5}, "recovery_steps must be"),
    ],
)
def test_bad_arguments_are_refused(bad, message):
    ProximalPoint(K=1, eta=1e-6, nu=1e-6, recovery_steps=0)
    with pytest.raises(ConfigError, match=message):
        ProximalPoint(**bad)
