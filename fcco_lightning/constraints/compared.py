"""How a constraint compares the statistics of its sides."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fcco_lightning.checks import positive
from fcco_lightning.outer import Linear, OuterFunction, RatioDifference, Shifted


class Comparison(ABC):
    """Computes a number s from the inner values of a row; the constraint is ``s <= kappa`` or ``|s| <= kappa``.

    Attributes:
        width: k, the number of inner values of a row.
        sides: 2 for ``|s| <= kappa``, 1 for ``s <= kappa``.
        equalises: whether the constraint asks for equal treatment, which random scores satisfy, too.
    """

    width: ClassVar[int] = 1
    sides: ClassVar[Literal[1, 2]] = 1
    equalises: ClassVar[bool] = False

    @abstractmethod
    def signed(self, phi: OuterFunction) -> OuterFunction:
        """The outer function ``phi(s(.))`` of the inner values, for a function phi of one variable."""


class AtMost(Comparison):
    """``s = u``."""

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return phi


@dataclass(frozen=True)
class Near(Comparison):
    """``s = u - target``, of either sign.

    Args:
        target: required value of u.
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
    """``s = ratio u_2 - u_1``: for kappa = 0 the constraint is ``u_1 >= ratio u_2``, without a division.

    Args:
        ratio: smallest quotient ``u_1 / u_2``, > 0.
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
