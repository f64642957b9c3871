"""Squares and hinges."""

import numpy as np
from mpmath import mpf

from fcco_lightning.outer import Hinge, Square, SquaredHinge
from tests.outer.case import Case, Reference, Separable, positive_part

CASES = [
    Case(Hinge(), dual=(0.0, 1.0)),
    Case(Hinge(rho=4.0, kappa=0.3), kinks=((0.3,),), dual=(0.0, 4.0)),
    Case(Hinge(rho=0.7, kappa=-0.5), kinks=((-0.5,),), dual=(0.0, 0.7)),
    Case(Hinge(1 / 0.15), dual=(0.0, 1 / 0.15)),
    Case(Square()),
    Case(Square(0.3)),
    Case(SquaredHinge(), dual=(0.0, np.inf)),
    Case(SquaredHinge(rho=5.0, kappa=0.2), kinks=((0.2,),), dual=(0.0, np.inf)),
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


REFERENCES = {
    Hinge: hinge,
    Square: square,
    SquaredHinge: lambda f: quadratic(f.rho, f.kappa, mpf(0)),
}
