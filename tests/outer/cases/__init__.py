"""Cases and references of all outer functions: one module for each theme, collected automatically.

A module has ``CASES``, a list of :class:`tests.outer.case.Case`, and ``REFERENCES``, class -> maker of the reference.
"""

from importlib import import_module
from pkgutil import iter_modules

from mpmath import mpf

from tests.outer.case import REFERENCES, Case
from tests.outer.cases.smoothing import EnvelopeReference

CASES: list[Case] = []
for name in sorted(found.name for found in iter_modules(__path__)):
    module = import_module(f"{__name__}.{name}")
    CASES += module.CASES
    REFERENCES.update(module.REFERENCES)

SMOOTHED = [c for c in CASES if c.envelope]
ENVELOPES = [  # of the last case of every class
    Case(c.outer.smoothed(0.4), c.width, c.low, c.high, c.kinks, c.dual, given=EnvelopeReference(c.exact, mpf(0.4)))
    for c in {type(c.outer): c for c in SMOOTHED}.values()
]
ALL_OUTER = CASES + ENVELOPES
CONVEX = [c for c in ALL_OUTER if c.convex]
