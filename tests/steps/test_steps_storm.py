import pytest
import torch

from fcco_lightning.errors import CheckpointError, ConfigError
from fcco_lightning.steps import PreviousWeights, Step, Storm

EXACT = 1e-15  # sums of three numbers of order one


def bound(step, *sizes):
    params = [torch.nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in sizes]
    step.bind(params)
    return params


def draw(params, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params]


def run(step, params, steps, start=0):
    """Gradients after each step: G(w_t; B) has seed t, G(w_{t-1}; B) has seed 1000 + t."""
    out = []
    for t in range(start, start + steps):
        for p, g in zip(params, draw(params, t), strict=True):
            p.grad = g
        step.correct(None if t == 0 else draw(params, 1000 + t))
        out.append(torch.cat([p.grad.clone() for p in params]))
    return out


def test_storm_is_the_recursion_by_hand():
    b = 0.3
    params = bound(Storm(b), 2, 3)
    step = Storm(b)
    step.bind(params)
    v = None
    for t, corrected in enumerate(run(step, params, 20)):
        g, before = torch.cat(draw(params, t)), torch.cat(draw(params, 1000 + t))
        v = g if v is None else g + (1 - b) * (v - before)
        assert torch.allclose(corrected, v, atol=EXACT * 20, rtol=0)


def test_b_one_is_the_plain_gradient():
    step = Storm(1.0)
    params = bound(step, 2)
    for t, corrected in enumerate(run(step, params, 5)):
        assert torch.equal(corrected, draw(params, t)[0])


def test_a_parameter_without_gradient_counts_as_zero():
    step = Storm(0.5)
    p, q = bound(step, 1, 1)
    one = torch.ones(1, dtype=torch.float64)
    p.grad = one.clone()
    step.correct(None)
    p.grad, q.grad = one.clone(), one.clone()
    step.correct([None, 4 * one])
    assert p.grad.item() == 1.5  # 1 + (1 - b)(1 - 0)
    assert q.grad.item() == 1 - 2  # 1 + (1 - b)(0 - 4)


def test_storm_continues_from_its_state_dict():
    whole = Storm(0.2)
    expected = run(whole, bound(whole, 2, 3), 8)[4:]
    first, second = Storm(0.2), Storm(0.2)
    run(first, bound(first, 2, 3), 4)
    params = bound(second, 2, 3)
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(run(second, params, 4, start=4), expected, strict=True))


def test_state_of_another_network_is_refused():
    first, second = Storm(0.2), Storm(0.2)
    run(first, bound(first, 2, 3), 1)
    bound(second, 2, 4)
    with pytest.raises(CheckpointError, match=r"\[\(2,\), \(3,\)\], the trainable parameters have \[\(2,\), \(4,\)\]"):
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("b", [0.0, -0.1, 1.1, float("nan")])
def test_b_must_lie_in_zero_one(b):
    Storm(1.0)
    with pytest.raises(ConfigError, match=r"b must lie in \(0, 1\]"):
        Storm(b)


def test_the_direct_step_leaves_gradients_alone():
    step = Step()
    (p,) = bound(step, 2)
    p.grad = torch.ones(2, dtype=torch.float64)
    with step.at_iterate():
        step.correct(None)
    assert p.grad.tolist() == [1, 1]
    assert step.inner_done(last_batch=True) is False
    assert step.state_dict() == {}


def test_previous_weights_are_a_copy_that_can_be_forgotten_and_restored():
    params = bound(Step(), 2, 3)
    previous = PreviousWeights()
    assert previous.tensors is None
    previous.remember(params)
    with torch.no_grad():
        params[0].add_(1)
    assert previous.tensors[0].tolist() == [0, 0]
    other = PreviousWeights()
    other.load_state_dict(previous.state_dict(), params)
    previous.remember(params)
    assert previous.tensors[0].tolist() == [1, 1]
    assert other.tensors[0].tolist() == [0, 0]
    previous.forget()
    assert previous.tensors is None
