"""Duals of divergences, and the maximum."""

import numpy as np
from mpmath import exp, expm1, log, mpf

from fcco_lightning.outer import ChiSquare, KullbackLeibler, Maximum
from tests.outer.case import Case, Reference, Row, Separable, positive_part
from tests.outer.cases.elementary import quadratic

CASES = [
    Case(KullbackLeibler(), dual=(0.0, np.inf)),
    Case(KullbackLeibler(0.4), low=-2.0, high=1.5, dual=(0.0, np.inf)),
    Case(ChiSquare(), kinks=((-1.0,),), dual=(0.0, np.inf)),
    Case(ChiSquare(lam0=0.5, half=False), kinks=((-2.0,),), dual=(0.0, np.inf)),
    Case(Maximum(), 2, kinks=((0.5, 0.5),)),
    Case(Maximum(), 3, kinks=((0.5, 0.5, 0.5), (1.0, 1.0, -1.0))),
]


def chi_square(f: ChiSquare) -> Reference:
    s = mpf(1 if f.half else 2)
    return quadratic(mpf(f.lam0) / s, -s, -mpf(f.lam0) * s / 2)


def kullback_leibler(f: KullbackLeibler) -> Reference:
    a = mpf(f.lam0)
    return Separable(
        lambda u: a * expm1(u),
        lambda u: a * exp(u),
        low=lambda u, lam: min(u - 1, -log(lam * a)),
        high=lambda u, lam: min(u, positive_part(log(positive_part(u) / (lam * a) + 1)) + 1) if u > 0 else u,
    )


class MaximumReference(Reference):
    def value(self, u: Row) -> mpf:
        return max(u)

    def subgradient(self, u: Row) -> Row:
        return [mpf(int(j == u.index(max(u)))) for j in range(len(u))]

    def prox(self, u: Row, lam: mpf) -> Row:
        """The largest entries are cut off at the level t where what is cut off adds up to lam."""
        ordered = sorted(u, reverse=True)
        level = max((sum(ordered[: j + 1]) - lam) / (j + 1) for j in range(len(u)))
        return [min(a, level) for a in u]


REFERENCES = {
    ChiSquare: chi_square,
    KullbackLeibler: kullback_leibler,
    Maximum: lambda _: MaximumReference(),
}
