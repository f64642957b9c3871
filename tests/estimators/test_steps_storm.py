"""The STORM recursion, and copies of the weights at an earlier point."""

import pytest
import torch

from fcco_lightning.errors import CheckpointError
from fcco_lightning.estimators import Storm, copied, like_parameters

EXACT = 1e-15  # sums of three numbers of order one
SHAPES = (2, 3)


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in SHAPES]


def run(storm, steps):
    """v after each step: G(w_t; B) has seed t, G(w_{t-1}; B) has seed 1000 + t."""
    return [torch.cat(storm.update(draw(t), None if t == 0 else draw(1000 + t))).clone() for t in range(steps)]


def test_storm_is_the_recursion_by_hand():
    b, v = 0.3, None
    for t, found in enumerate(run(Storm(b), 20)):
        g, before = torch.cat(draw(t)), torch.cat(draw(1000 + t))
        v = g if v is None else g + (1 - b) * (v - before)
        assert torch.allclose(found, v, atol=EXACT * 20, rtol=0)


def test_b_one_is_the_plain_gradient():
    assert all(torch.equal(found, torch.cat(draw(t))) for t, found in enumerate(run(Storm(1.0), 5)))


def test_what_it_is_given_stays():
    storm, gradients = Storm(0.5), draw(0)
    before = [g.clone() for g in gradients]
    storm.update(gradients, None)
    storm.update(gradients, draw(1))
    assert all(torch.equal(a, b) for a, b in zip(gradients, before, strict=True))


def parameters():
    return [torch.nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in SHAPES]


def test_previous_weights_are_a_copy_in_memory_of_their_own():
    params = parameters()
    previous = copied(params)
    with torch.no_grad():
        params[0].add_(1)
    assert previous[0].tolist() == [0, 0]
    stored = like_parameters(previous, params)
    again = copied(params, previous)
    assert again[0] is previous[0]
    assert again[0].tolist() == [1, 1]
    assert not again[0].requires_grad
    assert stored[0].tolist() == [0, 0]


def test_tensors_of_another_network_are_refused():
    stored = draw(0)
    assert torch.equal(like_parameters(stored, parameters())[1], stored[1])
    with pytest.raises(
        CheckpointError, match=r"\[\(2,\), \(3,\)\], but the trainable parameters have shapes \[\(3,\), \(2,\)\]"
    ):
        like_parameters(stored, parameters()[::-1])
