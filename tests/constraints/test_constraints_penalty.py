"""Penalties as outer functions of the excess, and schedules of their weight rho."""

import pytest

from fcco_lightning.constraints import GeometricRho, HingePenalty, SmoothedHingePenalty, SquaredHingePenalty
from fcco_lightning.outer import Hinge, SmoothedHinge, SquaredHinge


@pytest.mark.parametrize(
    ("penalty", "outer"),
    [
        (HingePenalty(7.0), Hinge(5.0, 0.1)),
        (SmoothedHingePenalty(7.0, lam=0.02), SmoothedHinge(5.0, 0.1, 0.02)),
        (SquaredHingePenalty(7.0), SquaredHinge(5.0, 0.1)),
    ],
)
def test_penalties_are_outer_functions_of_the_excess(penalty, outer):
    assert penalty.weight(epoch=3) == penalty.rho == 7.0
    assert penalty.outer(rho=5.0, kappa=0.1) == outer


def test_geometric_schedule():
    penalty = HingePenalty(10.0, GeometricRho(start=0.01, epochs=4))
    assert [penalty.weight(e) for e in (0, 2, 4, 9)] == pytest.approx([0.1, 1.0, 10.0, 10.0])
