"""What an ambiguity set offers: its worst case and its projections."""

from abc import ABC, abstractmethod

from torch import Tensor


class AmbiguitySet(ABC):
    r"""A closed convex set Q of weights ``q >= 0, sum q = 1`` of n groups; the objective is ``max_{q in Q} <q, R>``.

    n is the length of what the methods are given.
    """

    @abstractmethod
    def worst_case(self, risks: Tensor) -> Tensor:
        """A q in Q with the largest ``<q, risks>``: (n,) -> (n,)."""

    @abstractmethod
    def project(self, v: Tensor) -> Tensor:
        """``argmin_{q in Q} |q - v|^2``: (n,) -> (n,)."""

    @abstractmethod
    def project_kl(self, log_p: Tensor) -> Tensor:
        """``argmin_{q in Q} KL(q, p)`` for ``p = exp(log_p)``, of any sum: (n,) -> (n,)."""

    @abstractmethod
    def check(self, num_groups: int) -> None:
        """Raise :class:`ConfigError` if the set makes no sense for so many groups."""
