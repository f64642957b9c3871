"""Functions of constraints with multipliers of their own."""

import numpy as np
import torch
from mpmath import mpf

from fcco_lightning.outer import Multiplied
from tests.outer.case import Case, Reference, Row


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def case(outer: Multiplied, *kinks: float, dual: tuple[float, float]) -> Case:
    return Case(outer, low=0.0, kinks=tuple((kink,) for kink in kinks), dual=dual, envelope=False)


BOTH = Multiplied(rows(0.25, 2.0), 0.5, 1.0)  # in (0.25, 1.5) both sides push
CASES = [
    case(Multiplied(rows(0.75), 2.0, 0.5), 0.5, dual=(0.0, np.inf)),
    case(Multiplied(rows(0.75), 2.0, rows(0.5), rows(1.0)), 0.5, 2.5, dual=(0.0, 1.0)),
    case(BOTH, 0.25, 1.5, dual=(-np.inf, np.inf)),
    case(Multiplied(rows(0.25, 2.0), rows(0.5), 1.0), 0.25, 1.5, dual=(-np.inf, np.inf)),  # a kappa of its own
    case(Multiplied(rows(0.75, 6.0), 0.5, torch.tensor(3.0)), 0.25, 1.5, dual=(-np.inf, np.inf)),
    case(Multiplied(rows(0.25, 2.0), 0.5, 1.0, rows(1.0, 2.5)), -1.0, 0.25, 1.25, 1.5, dual=(-2.5, 1.0)),
    case(Multiplied(rows(0.5, 2.0), 0.5, rows(0.0, 1.0)), 1.5, dual=(-np.inf, 0.5)),
]


class MultipliedReference(Reference):
    def __init__(self, f: Multiplied) -> None:
        def sides(part):
            part = torch.as_tensor(part, dtype=torch.float64).expand(1, f.multiplier.shape[1])
            return [mpf(v) for v in part[0].tolist()]

        self.kappa, self.nu, self.c = mpf(float(f.kappa)), sides(f.multiplier), sides(f.curvature)
        self.cap = sides(float("inf") if f.cap is None else f.cap)

    def slopes(self, u: Row) -> Row:
        moved = zip(self.nu, self.c, self.cap, self.excesses(u), strict=True)
        return [min(max(nu + c * x, mpf(0)), cap) for nu, c, cap, x in moved]

    def excesses(self, u: Row) -> Row:
        return [u[0] - self.kappa, -u[0] - self.kappa][: len(self.nu)]

    def value(self, u: Row) -> mpf:
        total = mpf(0)
        for nu, c, y, x in zip(self.nu, self.c, self.slopes(u), self.excesses(u), strict=True):
            total += y * x - ((y - nu) ** 2 / (2 * c) if c else 0)
        return total

    def subgradient(self, u: Row) -> Row:
        slopes = self.slopes(u)
        return [slopes[0] - sum(slopes[1:])]


REFERENCES = {Multiplied: MultipliedReference}
