"""Functions of a weighted sum, of a norm and of a difference of ratios."""

import torch
from mpmath import mpf

from fcco_lightning.outer import (
    Absolute,
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
    Case(Linear(Absolute(Hinge(rho=4.0, kappa=0.1)), (1.0, -1.0)), 2, kinks=((0.6, 0.5), (1.0, 1.1), (0.3, 0.3))),
    Case(Linear(Absolute(Hinge(rho=1.5)), (1.0, -1.0)), 2, kinks=((0.4, 0.4),)),
    Case(Linear(Absolute(SquaredHinge(rho=2.0, kappa=0.2)), (1.0, -1.0)), 2, kinks=((0.7, 0.5), (0.1, 0.1))),
    Case(Linear(Absolute(SmoothedHinge(rho=2.0, kappa=0.1, lam=0.3)), (1.0, -1.0)), 2, kinks=((0.6, 0.5),)),
    Case(Linear(Absolute(Square(0.5)), (1.0, -1.0)), 2, kinks=((0.2, 0.2),)),
    Case(Linear(Absolute(Shifted(Hinge(3.0), torch.tensor(0.125))), (1.0, -1.0)), 2, kinks=((0.625, 0.5), (0.5, 0.5))),
    Case(Absolute(Hinge(rho=2.0, kappa=0.25)), kinks=((0.25,), (-0.25,), (0.0,)), dual=(-2.0, 2.0)),
    Case(Linear(SquaredHinge(rho=2.0, kappa=-1.0), (1.0, -1.0)), 2, kinks=((0.5, 1.5),)),
    Case(Linear(Hinge(rho=1.5, kappa=0.25), (1.0, -1.0)), 2, kinks=((0.75, 0.5),)),
    Case(Linear(SquaredHinge(rho=2.0, kappa=0.25), (-1.0, 0.5)), 2, kinks=((0.25, 1.0),)),
    Case(Linear(Hinge(rho=1.5), (-1.0, 0.5)), 2, kinks=((0.25, 0.5),)),
    Case(
        Shifted(Absolute(Hinge(rho=2.0, kappa=0.25)), torch.tensor(0.5)),
        kinks=((0.75,), (0.25,), (0.5,)),
        dual=(-2.0, 2.0),
    ),
    Case(Shifted(Absolute(SquaredHinge(rho=2.0, kappa=0.1)), torch.tensor(-0.5)), kinks=((-0.4,),)),
    *(
        Case(RatioDifference(Absolute(phi)), 4, 0.5, kinks=((1.0, 1.0, 0.75, 1.0),), convex=False, envelope=False)
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


class AbsoluteReference(Reference):
    def __init__(self, f: Absolute) -> None:
        self.phi = reference(f.phi)

    def value(self, u: Row) -> mpf:
        return self.phi.value([abs(u[0])])

    def subgradient(self, u: Row) -> Row:
        slope = self.phi.subgradient([abs(u[0])])[0]
        return [slope if u[0] > 0 else -slope]

    def prox(self, u: Row, lam: mpf) -> Row:
        size = self.phi.prox([abs(u[0])], lam)[0]
        return [size if u[0] > 0 else -size]


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
    Absolute: AbsoluteReference,
    Linear: lambda f: LinearReference(reference(f.phi), f.weights),
    RatioDifference: RatioDifferenceReference,
}
