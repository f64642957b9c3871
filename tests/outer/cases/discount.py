"""The discounted gain of a rank."""

from mpmath import log, mpf

from fcco_lightning.outer import DiscountedGain
from tests.outer.case import Case, Reference, Separable

CASES = [
    Case(outer, len(kink), 1.0, 40.0, (kink,), convex=False, envelope=False)
    for outer, kink in ((DiscountedGain(), (1.5,)), (DiscountedGain(cutoff=5.5, sharpness=3.0), (5.5, 1.5)))
]


def discounted_gain(f: DiscountedGain) -> Reference:
    def cut(r: mpf) -> mpf:
        return mpf(1) if f.cutoff is None else 1 / (1 + (r / mpf(f.cutoff)) ** mpf(f.sharpness))

    def slope(r: mpf) -> mpf:
        discount = log(2) / log(1 + r)
        of_cut = mpf(0) if f.cutoff is None else -mpf(f.sharpness) / r * cut(r) * (1 - cut(r))
        return discount**2 / (log(2) * (1 + r)) * cut(r) - discount * of_cut

    return Separable(lambda r: -cut(r) * log(2) / log(1 + r), slope)


REFERENCES = {DiscountedGain: discounted_gain}
