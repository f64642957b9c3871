"""Where inner values are known to lie."""

from typing import NamedTuple

from torch import Tensor


class Range(NamedTuple):
    """The interval in which every coordinate of a row is known to lie; None where there is no bound."""

    least: float | None = None
    most: float | None = None

    def project(self, rows: Tensor) -> Tensor:
        """The nearest rows in the interval."""
        if self.least is None and self.most is None:
            return rows
        return rows.clamp(min=self.least, max=self.most)
