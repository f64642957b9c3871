"""Logarithms, powers, exponentials and ratios."""

import numpy as np
import torch
from mpmath import exp, expm1, log, log1p, mpf, sqrt

from fcco_lightning.outer import (
    KullbackLeiblerOfLog,
    Log,
    LogRatio,
    LogSumExp,
    LogWithTemperature,
    NegativeLog,
    Power,
    Ratio,
    Softplus,
)
from tests.outer.case import Case, Reference, Row, Separable, positive_part

CASES = [
    Case(Power(1.5), dual=(0.0, np.inf)),
    Case(Power(2.0), dual=(0.0, np.inf)),
    Case(Power(4.0), dual=(0.0, np.inf)),
    Case(Softplus(1.0), dual=(0.0, 1.0)),
    Case(Softplus(-2.5), dual=(-2.5, 0.0)),
    Case(NegativeLog(), low=0.05, kinks=((1.0,),), dual=(-np.inf, 0.0)),
    Case(NegativeLog(tau=0.4), low=0.05, kinks=((1.0,),), dual=(-np.inf, 0.0)),
    Case(LogSumExp(), 3, kinks=((0.0, 0.0, 0.0),), envelope=False),
    Case(LogSumExp(theta=0.3), 2, kinks=((0.0, 0.0),), envelope=False),
    Case(Log(tau=0.5), low=0.5, kinks=((1.0,),), convex=False, envelope=False),
    Case(Ratio(), 2, low=0.5, kinks=((1.0, 1.0),), convex=False, envelope=False),
    Case(LogRatio(tau=0.5), 2, low=0.5, kinks=((1.0, 1.0),), convex=False, envelope=False),
    Case(
        LogWithTemperature(torch.tensor([[0.4, 0.7]]), rho=0.3),
        2,
        low=0.3,
        kinks=((1.0, 1.0),),
        convex=False,
        envelope=False,
    ),
    *(
        Case(KullbackLeiblerOfLog(lam, tau, torch.tensor(c)), low=0.5, kinks=((1.0,),), convex=False, envelope=False)
        for lam, tau, c in ((1.2, 2.0, 0.25), (0.5, 2.5, -0.5))
    ),
]


def power(f: Power) -> Reference:
    p = mpf(f.p)
    return Separable(
        lambda u: positive_part(u) ** p,
        lambda u: p * positive_part(u) ** (p - 1),
        low=lambda u, lam: min(u, mpf(0)),
    )


def softplus(f: Softplus) -> Reference:
    b = mpf(f.b)
    return Separable(
        lambda u: max(b * u, mpf(0)) + log1p(exp(-abs(b * u))),
        lambda u: b / (1 + exp(-b * u)),
        low=lambda u, lam: u - lam * abs(b),
        high=lambda u, lam: u + lam * abs(b),
    )


def logarithm(tau: float, sign: int) -> Reference:
    """``sign tau log u``; the prox is the larger root of ``v^2 - u v + sign lam tau = 0``."""
    t = mpf(tau)
    return Separable(
        lambda u: sign * t * log(u),
        lambda u: sign * t / u,
        lambda u, lam: (u + sqrt(u**2 - sign * 4 * lam * t)) / 2,
    )


class LogRatioReference(Reference):
    def __init__(self, f: LogRatio) -> None:
        self.parts = logarithm(f.tau, -1), logarithm(f.tau, 1)

    def value(self, u: Row) -> mpf:
        return sum(part.value([a]) for part, a in zip(self.parts, u, strict=True))

    def subgradient(self, u: Row) -> Row:
        return [part.subgradient([a])[0] for part, a in zip(self.parts, u, strict=True)]


class RatioReference(Reference):
    def value(self, u: Row) -> mpf:
        return -u[0] / u[1]

    def subgradient(self, u: Row) -> Row:
        return [-1 / u[1], u[0] / u[1] ** 2]


class LogSumExpReference(Reference):
    def __init__(self, f: LogSumExp) -> None:
        self.theta = mpf(f.theta)

    def value(self, u: Row) -> mpf:
        return self.theta * log(sum(exp(a / self.theta) for a in u))

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


class LogDivergenceReference(Reference):
    def __init__(self, f: KullbackLeiblerOfLog) -> None:
        self.lam, self.tau, self.c = mpf(f.lam), mpf(f.tau), mpf(f.c.item())

    def value(self, u: Row) -> mpf:
        return sum(self.tau * expm1((self.lam * log(a) - self.c) / self.tau) for a in u)

    def subgradient(self, u: Row) -> Row:
        return [self.lam / a * exp((self.lam * log(a) - self.c) / self.tau) for a in u]


REFERENCES = {
    KullbackLeiblerOfLog: LogDivergenceReference,
    Log: lambda f: logarithm(f.tau, 1),
    LogRatio: LogRatioReference,
    LogSumExp: LogSumExpReference,
    LogWithTemperature: TemperatureReference,
    NegativeLog: lambda f: logarithm(f.tau, -1),
    Power: power,
    Ratio: lambda _: RatioReference(),
    Softplus: softplus,
}
