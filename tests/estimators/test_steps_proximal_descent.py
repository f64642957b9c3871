"""Inner iterations of a double loop, on a quadratic whose proximal point is a linear system's solution."""

import pytest
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import ProximalDescent

CONVERGED = 1e-9  # 400 contractions by at most 0.95
EXACT = 1e-14  # the same arithmetic in another order, float64

A = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)  # F(z) = z'Az/2 - b'z
B = torch.tensor([1.0, -2.0], dtype=torch.float64)


def descend(eta, nu, steps):
    """Iterates around w = (1, 3)."""
    p = torch.nn.Parameter(torch.tensor([1.0, 3.0], dtype=torch.float64))
    descent = ProximalDescent([p], eta, nu)
    descent.centre = [p.detach().clone()]
    iterates = []
    for _ in range(steps):
        p.grad = A @ p.detach() - B
        descent.step()
        iterates.append(p.detach().clone())
    return descent.centre[0], iterates


@pytest.mark.parametrize(("eta", "nu"), [(0.1, 0.4), (0.3, 2.0)])
def test_the_iterates_tend_to_the_proximal_point(eta, nu):
    w, iterates = descend(eta, nu, 400)
    prox = torch.linalg.solve(A + torch.eye(2, dtype=torch.float64) / nu, B + w / nu)
    assert torch.allclose(iterates[-1], prox, atol=CONVERGED, rtol=0)


def test_the_iterates_are_those_of_the_box():
    eta, nu = 0.2, 0.5
    w, iterates = descend(eta, nu, 3)
    z = w
    for found in iterates:
        z = (nu * z + eta * w - eta * nu * (A @ z - B)) / (eta + nu)
        assert torch.allclose(found, z, atol=EXACT, rtol=0)


def test_a_parameter_without_gradient_is_pulled_to_the_centre():
    p = torch.nn.Parameter(torch.tensor([4.0]))
    descent = ProximalDescent([p], 1.0, 1.0)
    descent.centre = [torch.zeros(1)]
    descent.step()
    assert p.item() == 2


@pytest.mark.parametrize("bad", [{"eta": 0.0}, {"nu": -1.0}, {"nu": float("nan")}])
def test_bad_arguments_are_refused(bad):
    p = torch.nn.Parameter(torch.zeros(1))
    ProximalDescent([p], eta=1e-6, nu=1e-6)
    with pytest.raises(ConfigError, match=f"{next(iter(bad))} must be a finite number > 0"):
        ProximalDescent([p], **({"eta": 0.1, "nu": 0.1} | bad))


def test_every_tensor_stays_in_its_ball():
    far, near = torch.nn.Parameter(torch.tensor([3.0, 4.0])), torch.nn.Parameter(torch.tensor([0.3, 0.4]))
    step = ProximalDescent([far, near], eta=0.1, nu=1.0, radius=1.0)
    step.centre = [far.detach().clone(), near.detach().clone()]
    step.step()
    torch.testing.assert_close(far.detach(), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(near.detach(), torch.tensor([0.3, 0.4]))
