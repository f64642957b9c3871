"""Cases and references of every outer function: a module for each theme, all of which are collected unasked.

A module holds ``CASES``, a list of :class:`tests.outer.case.Case`, and ``REFERENCES``, class -> maker of the reference.
"""

from importlib import import_module
from pkgutil import iter_modules

from fcco_lightning.outer import MoreauEnvelope
from tests.outer.case import REFERENCES, Case

CASES: list[Case] = []
for name in sorted(found.name for found in iter_modules(__path__)):
    module = import_module(f"{__name__}.{name}")
    CASES += module.CASES
    REFERENCES.update(module.REFERENCES)

PLAIN = [c for c in CASES if c.convex and c.prox]
ENVELOPES = [  # of the last case of every class
    Case(MoreauEnvelope(c.outer, 0.4), c.width, c.low, c.high, c.kinks, c.dual)
    for c in {type(c.outer): c for c in PLAIN}.values()
]
WITH_PROX = PLAIN + ENVELOPES
CONVEX = WITH_PROX + [c for c in CASES if c.convex and not c.prox]
NOT_CONVEX = [c for c in CASES if not c.convex]
NOT_CONVEX_WITH_PROX = [c for c in NOT_CONVEX if c.prox]
WITHOUT_PROX = [c for c in CASES if not c.prox]
ALL_OUTER = CONVEX + NOT_CONVEX
