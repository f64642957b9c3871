"""Smoothed functions; tests/outer adds an envelope of every class that has one."""

import torch
from mpmath import erfc, exp, mpf, pi, sqrt

from fcco_lightning.outer import (
    Absolute,
    AveragedHinge,
    Hinge,
    Linear,
    MoreauEnvelope,
    OuterFunction,
    Shifted,
    SmoothedHinge,
)
from tests.outer.case import Case, Reference, Row, reference

AVERAGED = [
    Case(Hinge(rho=4.0, kappa=0.3), kinks=((0.3,),)),
    Case(Linear(Hinge(rho=1.5), (-1.0, 0.5)), 2, kinks=((0.25, 0.5),)),
    Case(Shifted(Absolute(Hinge(rho=2.0, kappa=0.25)), torch.tensor(0.5)), kinks=((0.75,), (0.25,), (0.5,))),
    Case(Linear(Absolute(Hinge(rho=4.0, kappa=0.1)), (1.0, -1.0)), 2, kinks=((0.6, 0.5), (0.3, 0.3))),
    Case(Shifted(Hinge(2.0, 0.1), torch.tensor(0.25, dtype=torch.float64), 0.5), kinks=((0.3,),)),
]


class EnvelopeReference(Reference):
    def __init__(self, inner: Reference, lam: mpf) -> None:
        self.inner, self.lam = inner, lam

    def value(self, u: Row) -> mpf:
        return self.inner.envelope(u, self.lam)

    def subgradient(self, u: Row) -> Row:
        return self.inner.envelope_gradient(u, self.lam)

    def prox(self, u: Row, lam: mpf) -> Row:
        """From ``(u - v) / lam = grad f_{lam + self.lam}(u)``."""
        return [a - lam * b for a, b in zip(u, self.inner.envelope_gradient(u, lam + self.lam), strict=True)]


class AverageReference(Reference):
    """A sum of hinges ``rho [<a, u> - b]_+`` under noise of deviation ``|a| sigma``."""

    def __init__(self, f: OuterFunction, sigma: float) -> None:
        self.sigma = mpf(sigma)
        self.hinges = hinges(f)

    def value(self, u: Row) -> mpf:
        total = mpf(0)
        for rho, a, b in self.hinges:
            z, width = self.standard(u, a, b)
            total += rho * width * (z * erfc(-z / sqrt(2)) / 2 + exp(-(z**2) / 2) / sqrt(2 * pi))
        return total

    def subgradient(self, u: Row) -> Row:
        slope = [mpf(0) for _ in u]
        for rho, a, b in self.hinges:
            z, _ = self.standard(u, a, b)
            slope = [s + rho * c * erfc(-z / sqrt(2)) / 2 for s, c in zip(slope, a, strict=True)]
        return slope

    def standard(self, u: Row, a: Row, b: mpf) -> tuple[mpf, mpf]:
        width = sqrt(sum(c**2 for c in a)) * self.sigma
        return (sum(c * x for c, x in zip(a, u, strict=True)) - b) / width, width


def hinges(f: OuterFunction) -> list[tuple[mpf, Row, mpf]]:
    """Of every hinge of the sum: rho, a and b."""
    if isinstance(f, Hinge):
        return [(mpf(f.rho), [mpf(1)], mpf(f.kappa))]
    inner = hinges(f.phi)
    if isinstance(f, Shifted):
        scale = mpf(f.scale)
        return [(rho, [c / scale for c in a], b + a[0] * mpf(f.shift.item()) / scale) for rho, a, b in inner]
    if isinstance(f, Absolute):
        return [(rho, [s * a[0]], b) for rho, a, b in inner for s in (1, -1)]
    return [(rho, [a[0] * mpf(c) for c in f.weights], b) for rho, a, b in inner]


CASES = [
    Case(SmoothedHinge(rho=4.0, kappa=0.3, lam=0.25), kinks=((0.3,), (1.3,)), dual=(0.0, 4.0)),
    Case(AveragedHinge(rho=4.0, kappa=0.3, sigma=0.2), kinks=((0.3,),), dual=(0.0, 4.0), envelope=False),
    *(
        Case(c.outer.averaged(0.4), c.width, kinks=c.kinks, envelope=False, given=AverageReference(c.outer, 0.4))
        for c in AVERAGED
    ),
]
REFERENCES = {
    AveragedHinge: lambda f: AverageReference(Hinge(f.rho, f.kappa), f.sigma),
    MoreauEnvelope: lambda f: EnvelopeReference(reference(f.phi), mpf(f.lam)),
    SmoothedHinge: lambda f: EnvelopeReference(reference(Hinge(f.rho, f.kappa)), mpf(f.lam)),
}
