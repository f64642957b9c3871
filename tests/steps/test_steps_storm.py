"""STORM and the memory of earlier weights."""

import pytest
import torch

from fcco_lightning.errors import CheckpointError, ConfigError
from fcco_lightning.steps import PreviousWeights, Storm, like_parameters

EXACT = 1e-15  # sums of three numbers of order one


def parameters(*sizes):
    return [torch.nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in sizes]


def draw(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def run(step, sizes, steps, start=0):
    """What the step makes of G(w_t; B), of seed t, and G(w_{t-1}; B), of seed 1000 + t."""
    return [
        torch.cat(step.update(draw(sizes, t), None if t == 0 else draw(sizes, 1000 + t)))
        for t in range(start, start + steps)
    ]


def test_storm_is_the_recursion_by_hand():
    b, v = 0.3, None
    for t, corrected in enumerate(run(Storm(b), (2, 3), 20)):
        g, before = torch.cat(draw((2, 3), t)), torch.cat(draw((2, 3), 1000 + t))
        v = g if v is None else g + (1 - b) * (v - before)
        assert torch.allclose(corrected, v, atol=EXACT * 20, rtol=0)


def test_b_one_is_the_plain_gradient():
    for t, corrected in enumerate(run(Storm(1.0), (2,), 5)):
        assert torch.equal(corrected, draw((2,), t)[0])


def test_the_gradients_that_are_given_stay_as_they_are():
    step, given = Storm(0.5), draw((2,), 0)
    kept = given[0].clone()
    step.update(given, None)
    step.update(draw((2,), 1), draw((2,), 2))
    assert torch.equal(given[0], kept)


def test_storm_continues_from_its_memory():
    expected = run(Storm(0.2), (2, 3), 8)[4:]
    first, second = Storm(0.2), Storm(0.2)
    run(first, (2, 3), 4)
    second.v = like_parameters(first.v, parameters(2, 3))
    assert all(torch.equal(a, b) for a, b in zip(run(second, (2, 3), 4, start=4), expected, strict=True))


def test_state_of_another_network_is_refused():
    stored = draw((2, 3), 0)
    assert like_parameters([], parameters(2)) == []
    with pytest.raises(CheckpointError, match=r"\[\(2,\), \(3,\)\], the trainable parameters have \[\(2,\), \(4,\)\]"):
        like_parameters(stored, parameters(2, 4))


@pytest.mark.parametrize("b", [0.0, -0.1, 1.1, float("nan")])
def test_b_must_lie_in_zero_one(b):
    Storm(1.0)
    with pytest.raises(ConfigError, match=r"b must lie in \(0, 1\]"):
        Storm(b)


def test_previous_weights_are_a_copy_that_can_be_forgotten_and_restored():
    params = parameters(2, 3)
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
