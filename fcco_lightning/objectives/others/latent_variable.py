"""The likelihood of responses that depend on a latent variable."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from fcco_lightning.models.batch import Columns
from fcco_lightning.models.outputs import LatentVectors
from fcco_lightning.numerics import bounded_exp
from fcco_lightning.objectives.base import Objective, RowDomain, require_binary_labels, vectors
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.others.robust_logistic import signs
from fcco_lightning.outer import LogRatio, Range

LATENT = "latent"
"""The part of a batch that holds the sampled values of the latent variable."""


class LatentVariable(Objective):
    r"""``F(w) = -(1/n) sum_i log p(y_i | x_i)``, where y depends on a latent variable z with many values.

    ``p(y | x) = sum_z p(y | z, x) p(z | x)`` with ``p(z | x)`` proportional to ``exp(<e_x, e_z>)``, and for a
    response y of 0 or 1 ``p(1 | z, x) = sigmoid(<a_x, a_z>)``.  Both sums have too many terms for a step, so they are
    the two inner functions of sample i, means over the values of z:

    ``g_i1 = mean_z p(y_i | z, x_i) exp(<e_x, e_z>)``, ``g_i2 = mean_z exp(<e_x, e_z>)``, ``f(u) = log u_2 - log u_1``.

    Source: SOX paper, sections 1 and 4 (latent variable models).  A batch draws some values of z uniformly, as its part
    "latent", which makes both means unbiased.  Rows are float64; inner values are clipped to [e^-600, e^600].

    Batches have the parts "target" (``y`` (B,) in {0, 1}, ``index`` (B,)) and "latent", and the network returns
    :class:`~fcco_lightning.models.LatentVectors` for both (:class:`~fcco_lightning.models.LatentMixture` does).

    Raises:
        DataError: if the outputs are something else, or a label is neither 0 nor 1.
    """

    weighs_samples = False
    outer = LogRatio(floor=1e-300)
    width = 2
    dtype = torch.float64
    part = ("target", LATENT)

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every sample."""
        return RowDomain(num_samples, per_sample=True, range=Range(least=0.0))

    def check(self, outputs: Any, batch: Mapping[str, Columns]) -> None:  # noqa: ARG002
        require_binary_labels(batch["target"], self)

    def measure(self, outputs: Any, batch: Mapping[str, Columns]) -> tuple[None, Rows]:
        samples, latent = (vectors(outputs, part, LatentVectors, self, "LatentMixture") for part in self.part)
        sign = signs(batch["target"], self)
        wide = torch.promote_types(samples.affinity.dtype, torch.float32)
        prior = samples.affinity.to(wide) @ latent.affinity.to(wide).T
        response = sign.to(wide).unsqueeze(1) * (samples.response.to(wide) @ latent.response.to(wide).T)
        # logarithms of sums over the drawn values
        logs = torch.stack([(logsigmoid(response) + prior).logsumexp(1), prior.logsumexp(1)], 1)
        values = bounded_exp(logs - math.log(prior.shape[1]))
        return None, Rows(values, torch.ones_like(sign, dtype=torch.bool))
