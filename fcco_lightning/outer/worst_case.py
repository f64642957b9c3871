"""The one outer function that does not act row by row."""

from dataclasses import dataclass

from torch import Tensor

from fcco_lightning.ambiguity import AmbiguitySet
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import OuterFunction


@dataclass(frozen=True)
class WorstCase(OuterFunction):
    r"""``max_{q in Q} sum_i q_i u_i`` over all n rows together, for primal-dual methods that remember q.

    What stands for a row in :meth:`value` is ``n q_i u_i``, so that the mean over rows is the value.

    Args:
        ambiguity: Q.
    """

    ambiguity: AmbiguitySet
    coupled = True
    monotone = True
    smooth = True  # smoothing acts row by row, so it is left alone

    def value(self, u: Tensor) -> Tensor:
        return u.sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:  # noqa: ARG002
        raise ConfigError(f"{self!r} has no subgradient of a single row. Use OOA or SMD.")
