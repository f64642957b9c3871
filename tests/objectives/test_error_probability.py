"""The probability of wrong classes."""

import pytest
import torch

from fcco_lightning import ConfigError, DataError, ErrorProbability

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5], [0.0, 9.0, 0.0]], dtype=torch.float64)
Y = torch.tensor([0, 2, 0])


def test_it_adds_up_the_wrong_classes_and_tends_to_the_error_rate():
    p = torch.exp(LOGITS) / torch.exp(LOGITS).sum(1, keepdim=True)
    expected = torch.stack([p[0, 1] + p[0, 2], p[1, 0] + p[1, 1], p[2, 1] + p[2, 2]])
    torch.testing.assert_close(ErrorProbability()(LOGITS, {"y": Y}), expected)
    torch.testing.assert_close(ErrorProbability(2.0)(2 * LOGITS, {"y": Y}), expected)
    hard = ErrorProbability(1e-3)(LOGITS, {"y": Y})
    torch.testing.assert_close(hard, torch.tensor([0.0, 2 / 3, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_score_is_the_difference_of_two(shape):
    scores, y = torch.tensor([0.3, -2.0, 1.5, 0.9]), torch.tensor([1, 0, 0, 1])
    both = torch.stack([torch.zeros(4), scores], dim=1)
    torch.testing.assert_close(
        ErrorProbability(0.7)(scores.reshape(shape), {"y": y}), ErrorProbability(0.7)(both, {"y": y})
    )


def test_classes_and_temperatures_that_are_none_are_refused():
    with pytest.raises(DataError, match=r"needs classes y of 0\.\.2"):
        ErrorProbability().check(LOGITS, {"y": torch.tensor([0, 3, 1])})
    with pytest.raises(ConfigError, match="temperature must be a finite number > 0, got 0"):
        ErrorProbability(0)
