"""Penalties as outer functions of the excess."""

import pytest

from fcco_lightning.constraints import HingePenalty, SmoothedHingePenalty, SquaredHingePenalty
from fcco_lightning.outer import Hinge, SmoothedHinge, SquaredHinge


@pytest.mark.parametrize(
    ("penalty", "outer"),
    [
        (HingePenalty(5.0), Hinge(5.0, 0.1)),
        (SmoothedHingePenalty(5.0, lam=0.02), SmoothedHinge(5.0, 0.1, 0.02)),
        (SquaredHingePenalty(5.0), SquaredHinge(5.0, 0.1)),
    ],
)
def test_penalties_are_outer_functions_of_the_excess(penalty, outer):
    assert penalty.outer(kappa=0.1) == outer
