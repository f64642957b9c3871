"""Functions shifted by a known parameter."""

from collections.abc import Sequence

import numpy as np
import torch
from mpmath import mpf

from fcco_lightning.outer import ChiSquare, Hinge, KullbackLeibler, Maximum, Shifted, SquaredHinge
from tests.outer.case import Case, Reference, Row, reference

CASES = [
    Case(Shifted(Hinge(1 / 0.25), torch.tensor(0.4)), kinks=((0.4,),), dual=(0.0, 4.0)),
    Case(Shifted(Hinge(2.0, 0.1), torch.tensor(0.25, dtype=torch.float64), 0.5), kinks=((0.3,),), dual=(0.0, 4.0)),
    Case(Shifted(ChiSquare(0.5), torch.tensor(-0.2), 0.5), kinks=((-0.7,),), dual=(0.0, np.inf)),
    Case(Shifted(KullbackLeibler(2.0), torch.tensor(0.3), 2.0), dual=(0.0, np.inf)),
    Case(
        Shifted(Shifted(SquaredHinge(), torch.tensor(0.5)), torch.tensor(0.25), 2.0),
        kinks=((1.25,),),
        dual=(0.0, np.inf),
    ),
    Case(Shifted(Maximum(), torch.tensor([[0.5, -0.25]]), 0.5), 2, kinks=((0.75, 0.0),)),
]


class ShiftedReference(Reference):
    def __init__(self, f: Shifted) -> None:
        self.inner, self.scale = reference(f.phi), mpf(f.scale)
        self.shift = [mpf(s) for s in f.shift.flatten().tolist()]

    def shifts(self, u: Row) -> Sequence[mpf]:
        return self.shift if len(self.shift) > 1 else self.shift * len(u)

    def argument(self, u: Row) -> Row:
        return [(a - s) / self.scale for a, s in zip(u, self.shifts(u), strict=True)]

    def value(self, u: Row) -> mpf:
        return self.inner.value(self.argument(u))

    def subgradient(self, u: Row) -> Row:
        return [a / self.scale for a in self.inner.subgradient(self.argument(u))]

    def prox(self, u: Row, lam: mpf) -> Row:
        v = self.inner.prox(self.argument(u), lam / self.scale**2)
        return [s + self.scale * a for s, a in zip(self.shifts(u), v, strict=True)]

    def envelope_gradient(self, u: Row, lam: mpf) -> Row:
        return [a / self.scale for a in self.inner.envelope_gradient(self.argument(u), lam / self.scale**2)]


REFERENCES = {Shifted: ShiftedReference}
