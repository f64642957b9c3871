"""Functions of a weighted sum, of a distance to a number and of a difference of ratios."""

import torch
from mpmath import mpf

from fcco_lightning.outer import (
    AbsoluteDifference,
    AbsoluteDistance,
    Hinge,
    Linear,
    RatioDifference,
    Shifted,
    SmoothedHinge,
    Square,
    SquaredHinge,
)
from tests.outer.case import Case, Reference, Row, reference

CASES = [
    Case(AbsoluteDifference(Hinge(rho=4.0, kappa=0.1)), 2, kinks=((0.6, 0.5), (1.0, 1.1), (0.3, 0.3))),
    Case(AbsoluteDifference(Hinge(rho=1.5)), 2, kinks=((0.4, 0.4),)),
    Case(AbsoluteDifference(SquaredHinge(rho=2.0, kappa=0.2)), 2, kinks=((0.7, 0.5), (0.1, 0.1))),
    Case(AbsoluteDifference(SmoothedHinge(rho=2.0, kappa=0.1, lam=0.3)), 2, kinks=((0.6, 0.5),)),
    Case(AbsoluteDifference(Square(0.5)), 2, kinks=((0.2, 0.2),)),
    Case(AbsoluteDifference(Shifted(Hinge(3.0), torch.tensor(0.125))), 2, kinks=((0.625, 0.5), (0.5, 0.5))),
    Case(Linear(SquaredHinge(rho=2.0, kappa=-1.0), (1.0, -1.0)), 2, kinks=((0.5, 1.5),)),
    Case(Linear(Hinge(rho=1.5, kappa=0.25), (1.0, -1.0)), 2, kinks=((0.75, 0.5),)),
    Case(Linear(SquaredHinge(rho=2.0, kappa=0.25), (-1.0, 0.5)), 2, kinks=((0.25, 1.0),)),
    Case(Linear(Hinge(rho=1.5), (-1.0, 0.5)), 2, kinks=((0.25, 0.5),)),
    Case(AbsoluteDistance(Hinge(rho=2.0, kappa=0.25), 0.5), kinks=((0.75,), (0.25,), (0.5,)), dual=(-2.0, 2.0)),
    Case(AbsoluteDistance(SquaredHinge(rho=2.0, kappa=0.1), -0.5), kinks=((-0.4,),)),
    *(
        Case(
            RatioDifference(AbsoluteDistance(phi)), 4, 0.5, kinks=((1.0, 1.0, 0.75, 1.0),), convex=False, envelope=False
        )
        for phi in (Hinge(2.0, 0.25), SquaredHinge(2.0, 0.25))
    ),
]


class LinearReference(Reference):
    def __init__(self, phi: Reference, weights: tuple[float, ...]) -> None:
        self.phi, self.weights = phi, [mpf(c) for c in weights]

    def along(self, u: Row) -> mpf:
        return sum(c * a for c, a in zip(self.weights, u, strict=True))

    def value(self, u: Row) -> mpf:
        return self.phi.value([self.along(u)])

    def subgradient(self, u: Row) -> Row:
        slope = self.phi.subgradient([self.along(u)])[0]
        return [c * slope for c in self.weights]

    def prox(self, u: Row, lam: mpf) -> Row:
        """Moves along the weights only, by which the sum moves as under phi with |c|^2 lam."""
        square, along = self.along(self.weights), self.along(u)
        step = (self.phi.prox([along], square * lam)[0] - along) / square
        return [a + c * step for c, a in zip(self.weights, u, strict=True)]


class DistanceReference(Reference):
    def __init__(self, f: AbsoluteDistance | AbsoluteDifference, centre: float) -> None:
        self.phi, self.centre = reference(f.phi), mpf(centre)

    def value(self, u: Row) -> mpf:
        return self.phi.value([abs(u[0] - self.centre)])

    def subgradient(self, u: Row) -> Row:
        slope = self.phi.subgradient([abs(u[0] - self.centre)])[0]
        return [slope if u[0] > self.centre else -slope]

    def prox(self, u: Row, lam: mpf) -> Row:
        distance = self.phi.prox([abs(u[0] - self.centre)], lam)[0]
        return [self.centre + (distance if u[0] > self.centre else -distance)]


class RatioDifferenceReference(Reference):
    def __init__(self, f: RatioDifference) -> None:
        self.phi, self.floor = reference(f.phi), mpf(f.floor)

    def value(self, u: Row) -> mpf:
        a, b, c, d = u
        return self.phi.value([a / max(b, self.floor) - c / max(d, self.floor)])

    def subgradient(self, u: Row) -> Row:
        a, b, c, d = u
        difference = a / max(b, self.floor) - c / max(d, self.floor)
        slope = self.phi.subgradient([difference])[0]
        below = [-a / b**2 if b > self.floor else mpf(0), c / d**2 if d > self.floor else mpf(0)]
        return [slope / max(b, self.floor), slope * below[0], -slope / max(d, self.floor), slope * below[1]]


REFERENCES = {
    AbsoluteDifference: lambda f: LinearReference(DistanceReference(f, 0.0), (1.0, -1.0)),
    AbsoluteDistance: lambda f: DistanceReference(f, f.centre),
    Linear: lambda f: LinearReference(reference(f.phi), f.weights),
    RatioDifference: RatioDifferenceReference,
}
