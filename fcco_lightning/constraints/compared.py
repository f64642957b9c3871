"""How a constraint compares what it measures: the third of its parts, beside what is measured and over which sides."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fcco_lightning.checks import positive
from fcco_lightning.outer import Linear, OuterFunction, RatioDifference, Shifted


class Comparison(ABC):
    """Makes one number s of the inner values of a row, which is to be at most kappa, or at most kappa away from 0.

    Attributes:
        width: k, the number of inner values of a row.
        sides: 2 where ``|s| <= kappa`` is asked for, 1 for ``s <= kappa``.
        equalises: whether sides are to be treated alike, as scores that know nothing of anyone treat them.
    """

    width: ClassVar[int] = 1
    sides: ClassVar[Literal[1, 2]] = 1
    equalises: ClassVar[bool] = False

    @abstractmethod
    def signed(self, phi: OuterFunction) -> OuterFunction:
        """``phi(s(.))`` of the inner values, for a function phi of one variable."""


class AtMost(Comparison):
    """``s = u``."""

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return phi


@dataclass(frozen=True)
class Near(Comparison):
    """``s = u - target``, of either sign.

    Args:
        target: what u is to be near.
    """

    target: float
    sides = 2

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return Shifted(phi, torch.tensor(self.target, dtype=torch.float64))


class Difference(Comparison):
    """``s = u_1 - u_2``, of either sign."""

    width = 2
    sides = 2
    equalises = True

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return Linear(phi, (1.0, -1.0))


@dataclass(frozen=True)
class AtLeastTimes(Comparison):
    """``s = ratio u_2 - u_1``: the first is at least a ratio of the second, without a division.

    Args:
        ratio: > 0.
    """

    ratio: float
    width = 2
    equalises = True

    def __post_init__(self) -> None:
        positive("ratio", self.ratio)

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return Linear(phi, (-1.0, self.ratio))


class DifferenceOfRatios(Comparison):
    """``s = u_1 / u_2 - u_3 / u_4``, of either sign."""

    width = 4
    sides = 2
    equalises = True

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return RatioDifference(phi)
