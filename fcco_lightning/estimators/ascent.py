"""Estimator of primal-dual methods: the weights of all groups, moved by mirror ascent."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.estimators.base import Estimator, Sampling
from fcco_lightning.outer import OuterFunction, WorstCase
from fcco_lightning.records import Tracked

_TINY = 1e-30  # a weight that was rounded to zero can grow again


@dataclass(frozen=True)
class DualAscent(Estimator):
    r"""``q <- argmax_{q in Q} <q, h> - D(q, q_t) / eta`` with ``h_i = (n/B1) R_i`` for sampled groups i, 0 for others.

    h estimates all n risks without bias, and so does ``(n/B1) sum_{sampled} q_i grad R_i`` the gradient: the outer
    gradients are ``n q_i``, with the updated q.  D is ``KL(q, q_t)`` (a multiplicative step) or ``|q - q_t|^2 / 2``.
    q starts uniform.  Each step costs O(n log n).

    Args:
        eta: dual step size, > 0.
        geometry: "kl" or "euclidean".
        whole: every batch must hold all groups.
    Source: 000 section 5.1 and App. F; the scaling of the primal step is this project's.
    """

    eta: float = 0.1
    geometry: Literal["kl", "euclidean"] = "kl"
    whole: bool = False
    dense = True

    def __post_init__(self) -> None:
        positive("eta", self.eta)
        if self.geometry not in ("kl", "euclidean"):
            raise ConfigError(f"geometry must be 'kl' or 'euclidean', got {self.geometry!r}.")

    def update(
        self,
        rows: Tensor,
        inner: Tensor,
        previous: Tensor | None,  # noqa: ARG002
        outer: OuterFunction,
        sampling: Sampling,
    ) -> Tracked:
        n, sampled = sampling.num_rows, sampling.batch
        if self.whole and sampled < n:
            raise DataError(
                f"SMD needs all {n} groups in every batch, this one holds {sampled}. Set groups_per_batch={n}, or use "
                "OOA, which samples groups."
            )
        assert isinstance(outer, WorstCase)  # noqa: S101 - the problem has seen to it
        assert sampling.index is not None  # noqa: S101 - dense
        # in float64: the weights of many groups are small, and add up to one
        q = rows[:, 0].double()
        h = q.new_zeros(n).index_copy_(0, sampling.index, inner[:, 0].double() * (n / sampled))
        if self.geometry == "kl":
            q = outer.ambiguity.project_kl(q.clamp(min=_TINY).log() + self.eta * h)
        else:
            q = outer.ambiguity.project(q + self.eta * h)
        rows = q.to(rows.dtype).unsqueeze(1)
        return Tracked(rows, n * rows.index_select(0, sampling.index))

    def track(
        self,
        rows: Tensor,
        seen: Tensor | None,
        inner: Tensor,
        previous: Tensor | None,
        outer: OuterFunction,
        sampling: Sampling,
    ) -> Tracked:
        if seen is not None:  # uniform at first
            rows = torch.where(seen.unsqueeze(1), rows, 1 / sampling.num_rows)
        return self.update(rows, inner, previous, outer, sampling)

    def estimate(self, inner: Tensor, tracked: Tracked) -> Tensor:
        return tracked.weights * inner
