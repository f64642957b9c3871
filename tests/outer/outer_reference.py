"""The outer functions in 60 digits, written from their definitions: what the package's arithmetic is measured against.

Every function is given by its value, its slope and its proximal map; the gradient of the envelope and the prox of the
conjugate follow from these by ``(u - prox) / lam`` and Moreau's identity, which cost nothing in 60 digits.
"""

from collections.abc import Callable, Sequence
from functools import cache

from mpmath import exp, expm1, findroot, log, log1p, mp, mpf, sqrt

from fcco_lightning.outer import (
    AbsoluteDifference,
    AbsoluteDistance,
    ChiSquare,
    DiscountedGain,
    Hinge,
    KullbackLeibler,
    KullbackLeiblerOfLog,
    Linear,
    Log,
    LogRatio,
    LogSumExp,
    LogWithTemperature,
    Maximum,
    MoreauEnvelope,
    NegativeLog,
    OuterFunction,
    Power,
    Ratio,
    RatioDifference,
    Shifted,
    Softplus,
    Square,
    SquaredHinge,
)

mp.dps = 60
Row = list[mpf]
HALVINGS = 130  # a bracket of 1e12 down to 1e-27


class Reference:
    """A function of a row; a subclass states value, slope and prox."""

    def value(self, u: Row) -> mpf:
        raise NotImplementedError

    def subgradient(self, u: Row) -> Row:
        raise NotImplementedError

    def prox(self, u: Row, lam: mpf) -> Row:
        raise NotImplementedError

    def envelope_gradient(self, u: Row, lam: mpf) -> Row:
        return [(a - b) / lam for a, b in zip(u, self.prox(u, lam), strict=True)]

    def envelope(self, u: Row, lam: mpf) -> mpf:
        v = self.prox(u, lam)
        return self.value(v) + lam / 2 * sum(a**2 for a in self.envelope_gradient(u, lam))

    def conjugate_prox(self, y: Row, tau: mpf) -> Row:
        return self.envelope_gradient([a / tau for a in y], 1 / tau)


class Separable(Reference):
    """A sum over the coordinates of a function of one variable."""

    def __init__(self, value, slope, prox=None, low=lambda u, lam: u, high=lambda u, lam: u) -> None:
        self.one_value, self.slope, self.one_prox, self.low, self.high = value, slope, prox, low, high

    def value(self, u: Row) -> mpf:
        return sum(map(self.one_value, u))

    def subgradient(self, u: Row) -> Row:
        return list(map(self.slope, u))

    def prox(self, u: Row, lam: mpf) -> Row:
        return [self.one_prox(a, lam) if self.one_prox else self.root(a, lam) for a in u]

    def envelope_gradient(self, u: Row, lam: mpf) -> Row:
        return super().envelope_gradient(u, lam) if self.one_prox else self.subgradient(self.prox(u, lam))

    @cache  # noqa: B019 - a reference lives as long as its test
    def root(self, u: mpf, lam: mpf) -> mpf:
        low, high = self.low(u, lam), self.high(u, lam)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if middle + lam * self.slope(middle) < u:
                low = middle
            else:
                high = middle
        return (low + high) / 2


def positive_part(x: mpf) -> mpf:
    return max(x, mpf(0))


def hinge(f: Hinge) -> Reference:
    rho, kappa = mpf(f.rho), mpf(f.kappa)
    return Separable(
        lambda u: rho * positive_part(u - kappa),
        lambda u: rho if u > kappa else mpf(0),
        lambda u, lam: u - min(positive_part(u - kappa), lam * rho),
    )


def quadratic(weight: float, start: float, constant: mpf) -> Reference:
    """``(weight / 2) [u - start]_+^2 + constant``."""
    a, b = mpf(weight), mpf(start)
    return Separable(
        lambda u: a / 2 * positive_part(u - b) ** 2 + constant,
        lambda u: a * positive_part(u - b),
        lambda u, lam: b + (u - b) / (1 + lam * a) if u > b else u,
    )


def square(f: Square) -> Reference:
    c = mpf(f.c)
    return Separable(lambda u: c * u**2, lambda u: 2 * c * u, lambda u, lam: u / (1 + 2 * lam * c))


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


def softplus(f: Softplus) -> Reference:
    b = mpf(f.b)
    return Separable(
        lambda u: max(b * u, mpf(0)) + log1p(exp(-abs(b * u))),
        lambda u: b / (1 + exp(-b * u)),
        low=lambda u, lam: u - lam * abs(b),
        high=lambda u, lam: u + lam * abs(b),
    )


def power(f: Power) -> Reference:
    p = mpf(f.p)
    return Separable(
        lambda u: positive_part(u) ** p,
        lambda u: p * positive_part(u) ** (p - 1),
        low=lambda u, lam: min(u, mpf(0)),
    )


def logarithm(tau: float, sign: int) -> Reference:
    """``sign tau log u``; the prox is the larger root of ``v^2 - u v + sign lam tau = 0``."""
    t = mpf(tau)
    return Separable(
        lambda u: sign * t * log(u),
        lambda u: sign * t / u,
        lambda u, lam: (u + sqrt(u**2 - sign * 4 * lam * t)) / 2,
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


class RatioReference(Reference):
    def value(self, u: Row) -> mpf:
        return -u[0] / u[1]

    def subgradient(self, u: Row) -> Row:
        return [-1 / u[1], u[0] / u[1] ** 2]

    def prox(self, u: Row, lam: mpf) -> Row:
        v = findroot(lambda v: u[0] / v**2 + lam / v**3 + (v - u[1]) / lam, u[1], solver="newton", tol=mpf(10) ** -60)
        return [u[0] + lam / v, v]


class LogRatioReference(Reference):
    def __init__(self, f: LogRatio) -> None:
        self.parts = logarithm(f.tau, -1), logarithm(f.tau, 1)

    def value(self, u: Row) -> mpf:
        return sum(part.value([a]) for part, a in zip(self.parts, u, strict=True))

    def subgradient(self, u: Row) -> Row:
        return [part.subgradient([a])[0] for part, a in zip(self.parts, u, strict=True)]

    def prox(self, u: Row, lam: mpf) -> Row:
        return [part.prox([a], lam)[0] for part, a in zip(self.parts, u, strict=True)]


def discounted_gain(f: DiscountedGain) -> Reference:
    def cut(r: mpf) -> mpf:
        return mpf(1) if f.cutoff is None else 1 / (1 + (r / mpf(f.cutoff)) ** mpf(f.sharpness))

    def slope(r: mpf) -> mpf:
        discount = log(2) / log(1 + r)
        of_cut = mpf(0) if f.cutoff is None else -mpf(f.sharpness) / r * cut(r) * (1 - cut(r))
        return discount**2 / (log(2) * (1 + r)) * cut(r) - discount * of_cut

    return Separable(lambda r: -cut(r) * log(2) / log(1 + r), slope)


class LogSumExpReference(Reference):
    def __init__(self, f: LogSumExp) -> None:
        self.theta, self.mean = mpf(f.theta), f.mean

    def value(self, u: Row) -> mpf:
        return self.theta * log(sum(exp(a / self.theta) for a in u) / (len(u) if self.mean else 1))

    def subgradient(self, u: Row) -> Row:
        total = sum(exp(a / self.theta) for a in u)
        return [exp(a / self.theta) / total for a in u]


class TemperatureReference(Reference):
    def __init__(self, f: LogWithTemperature) -> None:
        self.tau, self.rho = [mpf(t) for t in f.tau.flatten().tolist()], mpf(f.rho)

    def value(self, u: Row) -> mpf:
        return sum(t * (log(a) + self.rho) for t, a in zip(self.tau, u, strict=True))

    def subgradient(self, u: Row) -> Row:
        return [t / a for t, a in zip(self.tau, u, strict=True)]


class DifferenceReference(Reference):
    def __init__(self, f: AbsoluteDifference) -> None:
        self.phi = reference(f.phi)

    def value(self, u: Row) -> mpf:
        return self.phi.value([abs(u[0] - u[1])])

    def subgradient(self, u: Row) -> Row:
        a = self.phi.subgradient([abs(u[0] - u[1])])[0]
        return [a, -a] if u[0] > u[1] else [-a, a]

    def prox(self, u: Row, lam: mpf) -> Row:
        """The mean of the two stays, the distance moves as under phi with 2 lam."""
        distance = self.phi.prox([abs(u[0] - u[1])], 2 * lam)[0]
        half, mean = (distance if u[0] > u[1] else -distance) / 2, (u[0] + u[1]) / 2
        return [mean + half, mean - half]


class LinearReference(Reference):
    def __init__(self, f: Linear) -> None:
        self.phi, self.weights = reference(f.phi), [mpf(c) for c in f.weights]

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
    def __init__(self, f: AbsoluteDistance) -> None:
        self.phi, self.centre = reference(f.phi), mpf(f.centre)

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
        return self.phi.value([abs(a / max(b, self.floor) - c / max(d, self.floor))])

    def subgradient(self, u: Row) -> Row:
        a, b, c, d = u
        difference = a / max(b, self.floor) - c / max(d, self.floor)
        slope = self.phi.subgradient([abs(difference)])[0] * (1 if difference > 0 else -1)
        below = [-a / b**2 if b > self.floor else mpf(0), c / d**2 if d > self.floor else mpf(0)]
        return [slope / max(b, self.floor), slope * below[0], -slope / max(d, self.floor), slope * below[1]]


class LogDivergenceReference(Reference):
    def __init__(self, f: KullbackLeiblerOfLog) -> None:
        self.lam, self.tau, self.c = mpf(f.lam), mpf(f.tau), mpf(f.c.item())

    def value(self, u: Row) -> mpf:
        return sum(self.tau * expm1((self.lam * log(a) - self.c) / self.tau) for a in u)

    def subgradient(self, u: Row) -> Row:
        return [self.lam / a * exp((self.lam * log(a) - self.c) / self.tau) for a in u]


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


class ShiftedReference(Reference):
    def __init__(self, f: Shifted) -> None:
        self.inner, self.scale = reference(f.outer), mpf(f.scale)
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


REFERENCES: dict[type[OuterFunction], Callable[..., Reference]] = {
    AbsoluteDifference: DifferenceReference,
    AbsoluteDistance: DistanceReference,
    ChiSquare: chi_square,
    DiscountedGain: discounted_gain,
    Hinge: hinge,
    KullbackLeibler: kullback_leibler,
    KullbackLeiblerOfLog: LogDivergenceReference,
    Linear: LinearReference,
    Log: lambda f: logarithm(f.tau, 1),
    LogRatio: LogRatioReference,
    LogSumExp: LogSumExpReference,
    LogWithTemperature: TemperatureReference,
    Maximum: lambda _: MaximumReference(),
    MoreauEnvelope: EnvelopeReference,
    NegativeLog: lambda f: logarithm(f.tau, -1),
    Power: power,
    Ratio: lambda _: RatioReference(),
    RatioDifference: RatioDifferenceReference,
    Shifted: ShiftedReference,
    Softplus: softplus,
    Square: square,
    SquaredHinge: lambda f: quadratic(f.rho, f.kappa, mpf(0)),
}


def reference(outer: OuterFunction) -> Reference:
    """The reference of an outer function; a new one has to state its own in REFERENCES."""
    return REFERENCES[type(outer)](outer)
