"""Every outer function of the package, with where its rows live, and brute-force minimisation."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

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
    cvar,
)


@dataclass(frozen=True)
class Case:
    outer: OuterFunction
    width: int = 1
    low: float = -3.0  # rows are drawn from [low, high]
    high: float = 3.0
    kinks: tuple[tuple[float, ...], ...] = ((0.0,),)  # points where a non-smooth f is not differentiable
    dual: tuple[float, float] = (-np.inf, np.inf)  # dom f* of a function of one variable

    def rows(self, count: int, seed: int = 0) -> Tensor:
        """Random rows and the kinks."""
        generator = torch.Generator().manual_seed(seed)
        u = torch.rand(count, self.width, generator=generator, dtype=torch.float64)
        u = self.low + (self.high - self.low) * u
        return torch.cat([u, torch.tensor(self.kinks, dtype=torch.float64)])


PLAIN = [
    Case(Hinge(), dual=(0.0, 1.0)),
    Case(Hinge(rho=4.0, kappa=0.3), kinks=((0.3,),), dual=(0.0, 4.0)),
    Case(Hinge(rho=0.7, kappa=-0.5), kinks=((-0.5,),), dual=(0.0, 0.7)),
    Case(cvar(0.15), dual=(0.0, 1 / 0.15)),
    Case(Square()),
    Case(Square(0.3)),
    Case(SquaredHinge(), dual=(0.0, np.inf)),
    Case(SquaredHinge(rho=5.0, kappa=0.2), kinks=((0.2,),), dual=(0.0, np.inf)),
    Case(AbsoluteDifference(Hinge(rho=4.0, kappa=0.1)), 2, kinks=((0.6, 0.5), (1.0, 1.1), (0.3, 0.3))),
    Case(AbsoluteDifference(Hinge(rho=1.5)), 2, kinks=((0.4, 0.4),)),
    Case(AbsoluteDifference(SquaredHinge(rho=2.0, kappa=0.2)), 2, kinks=((0.7, 0.5), (0.1, 0.1))),
    Case(AbsoluteDifference(MoreauEnvelope(Hinge(rho=2.0, kappa=0.1), 0.3)), 2, kinks=((0.6, 0.5),)),
    Case(AbsoluteDifference(Square(0.5)), 2, kinks=((0.2, 0.2),)),
    Case(Linear(SquaredHinge(rho=2.0, kappa=-1.0), (1.0, -1.0)), 2, kinks=((0.5, 1.5),)),
    Case(Linear(Hinge(rho=1.5, kappa=0.25), (1.0, -1.0)), 2, kinks=((0.75, 0.5),)),
    Case(Linear(SquaredHinge(rho=2.0, kappa=0.25), (-1.0, 0.5)), 2, kinks=((0.25, 1.0),)),
    Case(Linear(Hinge(rho=1.5), (-1.0, 0.5)), 2, kinks=((0.25, 0.5),)),
    Case(AbsoluteDistance(Hinge(rho=2.0, kappa=0.25), 0.5), kinks=((0.75,), (0.25,), (0.5,)), dual=(-2.0, 2.0)),
    Case(AbsoluteDistance(SquaredHinge(rho=2.0, kappa=0.1), -0.5), kinks=((-0.4,),)),
    Case(KullbackLeibler(), dual=(0.0, np.inf)),
    Case(KullbackLeibler(0.4), low=-2.0, high=1.5, dual=(0.0, np.inf)),
    Case(ChiSquare(), kinks=((-1.0,),), dual=(0.0, np.inf)),
    Case(ChiSquare(lam0=0.5, half=False), kinks=((-2.0,),), dual=(0.0, np.inf)),
    Case(Maximum(), 2, kinks=((0.5, 0.5),)),
    Case(Maximum(), 3, kinks=((0.5, 0.5, 0.5), (1.0, 1.0, -1.0))),
    Case(Power(1.5), dual=(0.0, np.inf)),
    Case(Power(2.0), dual=(0.0, np.inf)),
    Case(Power(4.0), dual=(0.0, np.inf)),
    Case(Softplus(1.0), dual=(0.0, 1.0)),
    Case(Softplus(-2.5), dual=(-2.5, 0.0)),
    Case(NegativeLog(), low=0.05, kinks=((1.0,),), dual=(-np.inf, 0.0)),
    Case(NegativeLog(tau=0.4), low=0.05, kinks=((1.0,),), dual=(-np.inf, 0.0)),
    Case(Shifted(cvar(0.25), torch.tensor(0.4)), kinks=((0.4,),), dual=(0.0, 4.0)),
    Case(Shifted(Hinge(2.0, 0.1), torch.tensor(0.25, dtype=torch.float64), 0.5), kinks=((0.3,),), dual=(0.0, 4.0)),
    Case(Shifted(ChiSquare(0.5), torch.tensor(-0.2), 0.5), kinks=((-0.7,),), dual=(0.0, np.inf)),
    Case(Shifted(KullbackLeibler(2.0), torch.tensor(0.3), 2.0), dual=(0.0, np.inf)),
    Case(
        Shifted(Shifted(SquaredHinge(), torch.tensor(0.5)), torch.tensor(0.25), 2.0),
        kinks=((1.25,),),
        dual=(0.0, np.inf),
    ),
    Case(Shifted(Maximum(), torch.tensor([[0.5, -0.25]]), 0.5), 2, kinks=((0.75, 0.0),)),
    Case(AbsoluteDifference(Shifted(Hinge(3.0), torch.tensor(0.125))), 2, kinks=((0.625, 0.5), (0.5, 0.5))),
]
ENVELOPES = [  # of the last case of every class
    Case(MoreauEnvelope(c.outer, 0.4), c.width, c.low, c.high, c.kinks, c.dual)
    for c in {type(c.outer): c for c in PLAIN}.values()
]
WITHOUT_PROX = [
    Case(LogSumExp(), 3, kinks=((0.0, 0.0, 0.0),)),
    Case(LogSumExp(theta=0.3, mean=True), 2, kinks=((0.0, 0.0),)),
]
WITH_PROX = PLAIN + ENVELOPES
CONVEX = WITH_PROX + WITHOUT_PROX
NOT_CONVEX_WITH_PROX = [
    Case(Log(tau=0.5), low=0.5, kinks=((1.0,),)),
    Case(Ratio(), 2, low=0.5, kinks=((1.0, 1.0),)),
    Case(LogRatio(tau=0.5), 2, low=0.5, kinks=((1.0, 1.0),)),
]
NOT_CONVEX = [
    *NOT_CONVEX_WITH_PROX,
    Case(DiscountedGain(), low=1.0, high=40.0, kinks=((1.5,),)),
    Case(DiscountedGain(cutoff=5.5, sharpness=3.0), 2, low=1.0, high=40.0, kinks=((5.5, 1.5),)),
    Case(LogWithTemperature(torch.tensor([[0.4, 0.7]]), rho=0.3), 2, low=0.3, kinks=((1.0, 1.0),)),
]
NOT_CONVEX += [
    Case(KullbackLeiblerOfLog(1.2, 2.0, torch.tensor(0.25)), low=0.5, kinks=((1.0,),)),
    Case(KullbackLeiblerOfLog(0.5, 2.5, torch.tensor(-0.5)), low=0.5, kinks=((1.0,),)),
]
NOT_CONVEX += [
    Case(RatioDifference(Hinge(2.0, 0.25)), 4, low=0.5, kinks=((1.0, 1.0, 0.75, 1.0),)),
    Case(RatioDifference(SquaredHinge(2.0, 0.25)), 4, low=0.5, kinks=((1.0, 1.0, 0.75, 1.0),)),
]
WITHOUT_PROX += NOT_CONVEX[len(NOT_CONVEX_WITH_PROX) :]
ALL_OUTER = CONVEX + NOT_CONVEX


def case_name(case: object) -> str | None:
    return f"{case.outer!r}-{case.width}" if isinstance(case, Case) else None


def minimum(objective: Callable[[Tensor], Tensor], low: float, high: float, count: int = 4001) -> tuple[float, float]:
    """Global minimiser and minimum of a function of one variable: dense grid, then scipy inside its best cell."""
    grid = torch.linspace(low, high, count, dtype=torch.float64)
    values = objective(grid.unsqueeze(1))
    best = int(values.argmin())
    a, b = grid[max(best - 1, 0)].item(), grid[min(best + 1, count - 1)].item()

    def scalar(v: float) -> float:
        return objective(torch.tensor([[v]], dtype=torch.float64)).item()

    polished = minimize_scalar(scalar, bounds=(a, b), method="bounded", options={"xatol": 1e-12})
    if polished.fun < values[best]:
        return polished.x, polished.fun
    return grid[best].item(), values[best].item()


def cloud(centre: Tensor, scales: tuple[float, ...] = (1e-5, 1e-3, 0.03, 0.3, 1.0, 4.0)) -> Tensor:
    """Points around one row (k,): random ones and, along every ridge of the functions above, {-1, 0, 1}^k."""
    k = centre.numel()
    generator = torch.Generator().manual_seed(1)
    random = torch.randn(60, k, generator=generator, dtype=torch.float64)
    ridges = torch.tensor([d for d in product((-1.0, 0.0, 1.0), repeat=k) if any(d)], dtype=torch.float64)
    directions = torch.cat([random, ridges])
    return torch.cat([centre + s * directions for s in scales])
