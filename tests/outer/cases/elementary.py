"""Squares, hinges and functions of the difference of two inner values."""

import numpy as np
import torch
from mpmath import mpf

from fcco_lightning.outer import AbsoluteDifference, Hinge, MoreauEnvelope, Shifted, Square, SquaredHinge, cvar
from tests.outer.case import Case, Reference, Row, Separable, positive_part, reference

CASES = [
    Case(Hinge(), dual=(0.0, 1.0)),
    Case(Hinge(rho=4.0, kappa=0.3), kinks=((0.3,),), dual=(0.0, 4.0)),
    Case(Hinge(rho=0.7, kappa=-0.5), kinks=((-0.5,),), dual=(0.0, 0.7)),
    Case(cvar(0.15), dual=(0.0, 1 / 0.15)),
    Case(Square()),
    Case(Square(0.3)),
    Case(SquaredHinge(), dual=(0.0, np.inf)),
    Case(SquaredHinge(rho=5.0, kappa=0.2), kinks=((0.2,),), dual=(0.0, np.inf)),
    Case(AbsoluteDifference(Hinge(rho=4.0, kappa=0.1)), 2, kinks=((0.6, 0.5), (1.0, 1.1), (0.3, 0.3))),
    Case(AbsoluteDifference(Hinge(rho=1.5)), 2, kinks=((0.4, 0.4),)),
    Case(AbsoluteDifference(SquaredHinge(rho=2.0, kappa=0.2)), 2, kinks=((0.7, 0.5), (0.1, 0.1))),
    Case(AbsoluteDifference(MoreauEnvelope(Hinge(rho=2.0, kappa=0.1), 0.3)), 2, kinks=((0.6, 0.5),)),
    Case(AbsoluteDifference(Square(0.5)), 2, kinks=((0.2, 0.2),)),
    Case(AbsoluteDifference(Shifted(Hinge(3.0), torch.tensor(0.125))), 2, kinks=((0.625, 0.5), (0.5, 0.5))),
]


def hinge(f: Hinge) -> Reference:
    rho, kappa = mpf(f.rho), mpf(f.kappa)
    return Separable(
        lambda u: rho * positive_part(u - kappa),
        lambda u: rho if u > kappa else mpf(0),
        lambda u, lam: u - min(positive_part(u - kappa), lam * rho),
    )


def quadratic(weight: float, start: float, constant: mpf) -> Reference:
    """``(weight / 2) [u - start]_+^2 + constant``."""
    a, b = mpf(weight), mpf(start)
    return Separable(
        lambda u: a / 2 * positive_part(u - b) ** 2 + constant,
        lambda u: a * positive_part(u - b),
        lambda u, lam: b + (u - b) / (1 + lam * a) if u > b else u,
    )


def square(f: Square) -> Reference:
    c = mpf(f.c)
    return Separable(lambda u: c * u**2, lambda u: 2 * c * u, lambda u, lam: u / (1 + 2 * lam * c))


class DifferenceReference(Reference):
    def __init__(self, f: AbsoluteDifference) -> None:
        self.phi = reference(f.phi)

    def value(self, u: Row) -> mpf:
        return self.phi.value([abs(u[0] - u[1])])

    def subgradient(self, u: Row) -> Row:
        a = self.phi.subgradient([abs(u[0] - u[1])])[0]
        return [a, -a] if u[0] > u[1] else [-a, a]

    def prox(self, u: Row, lam: mpf) -> Row:
        """The mean of the two stays, the distance moves as under phi with 2 lam."""
        distance = self.phi.prox([abs(u[0] - u[1])], 2 * lam)[0]
        half, mean = (distance if u[0] > u[1] else -distance) / 2, (u[0] + u[1]) / 2
        return [mean + half, mean - half]


REFERENCES = {
    AbsoluteDifference: DifferenceReference,
    Hinge: hinge,
    Square: square,
    SquaredHinge: lambda f: quadratic(f.rho, f.kappa, mpf(0)),
}
