"""Moreau envelopes; the folder adds one of every convex function with a prox."""

from mpmath import mpf

from fcco_lightning.outer import MoreauEnvelope
from tests.outer.case import Case, Reference, Row, reference

CASES: list[Case] = []


class EnvelopeReference(Reference):
    def __init__(self, f: MoreauEnvelope) -> None:
        self.inner, self.lam = reference(f.outer), mpf(f.lam)

    def value(self, u: Row) -> mpf:
        return self.inner.envelope(u, self.lam)

    def subgradient(self, u: Row) -> Row:
        return self.inner.envelope_gradient(u, self.lam)

    def prox(self, u: Row, lam: mpf) -> Row:
        """From ``(u - v) / lam = grad f_{lam + self.lam}(u)``."""
        return [a - lam * b for a, b in zip(u, self.inner.envelope_gradient(u, lam + self.lam), strict=True)]


REFERENCES = {MoreauEnvelope: EnvelopeReference}
