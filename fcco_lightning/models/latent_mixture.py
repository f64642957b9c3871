"""A mixture over the values of a latent variable."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.base import BatchNetwork
from fcco_lightning.models.class_vectors import with_one
from fcco_lightning.models.outputs import LatentVectors


class LatentMixture(BatchNetwork):
    r"""``p(1 | x) = sum_z p(z | x) sigmoid(<a_x, a_z>)``, ``p(z | x)`` proportional to ``exp(<e_x, e_z>)``.

    For a batch with the parts "target" and "latent" the outputs are :class:`~fcco_lightning.models.LatentVectors` of
    its samples and of the values z in the column ``index`` of the second part.  For a batch of samples alone, as in
    evaluation, they are the log-odds of p(1 | x), shape (B,), with the sum over all values.

    Args:
        features: network from ``x`` to shape (B, 2 d): the first d numbers are e_x, the others a_x (a constant 1 is
            appended to both); lazy layers get their input width from the data.
        num_latent: number of values of z, >= 2.
        dim: d, >= 1.
    """

    def __init__(self, features: nn.Module, num_latent: int, dim: int) -> None:
        super().__init__()
        self.features, self.dim = features, at_least("dim", dim, 1)
        self.vectors = nn.Embedding(at_least("num_latent", num_latent, 2), 2 * (dim + 1))
        nn.init.normal_(self.vectors.weight, std=dim**-0.5)

    def forward(self, batch: Any) -> Any:
        """Return LatentVectors by part, or the log-odds for samples alone."""
        (target, columns), *others = batch.items()
        features = self.features(columns["x"])
        if features.dim() != 2 or features.shape[1] != 2 * self.dim:
            raise ConfigError(
                f"features must have shape (B, 2 dim) = (B, {2 * self.dim}), got {tuple(features.shape)}. Let the "
                "network return 2 * dim features."
            )
        samples = LatentVectors(with_one(features[:, : self.dim]), with_one(features[:, self.dim :]))
        if not others:
            return {target: self._log_odds(samples)}
        parts = {name: LatentVectors(*self.vectors(part["index"]).chunk(2, 1)) for name, part in others}
        return {target: samples} | parts

    def _log_odds(self, samples: LatentVectors) -> Tensor:
        affinity, response = self.vectors.weight.chunk(2, 1)
        share = (samples.affinity @ affinity.T).log_softmax(1)
        scores = samples.response @ response.T
        positive = (share + logsigmoid(scores)).logsumexp(1)
        negative = (share + logsigmoid(-scores)).logsumexp(1)
        return positive - negative
