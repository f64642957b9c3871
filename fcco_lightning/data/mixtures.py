"""Synthetic problems with very many classes, and with a latent variable of many values; both with known optima."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fcco_lightning.checks import at_least, positive


@dataclass(frozen=True)
class ManyClasses:
    r"""Points around the centres of C equally likely classes, ``x = c_y + noise z`` with z and the centres ~ N(0, I_d).

    The Bayes classifier takes the nearest centre, and its logits are linear in x.

    Args:
        num_classes: C, >= 2.
        dim: d, >= 1.
        noise: > 0.
        seed: of the centres.
    """

    num_classes: int = 1000
    dim: int = 32
    noise: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("num_classes", self.num_classes, 2)
        at_least("dim", self.dim, 1)
        positive("noise", self.noise)

    def centres(self) -> Tensor:
        """Centres of the classes, shape (C, d), float32."""
        return torch.randn(self.num_classes, self.dim, generator=torch.Generator().manual_seed(self.seed))

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``x`` (n, d) float32 and ``y`` (n,) int64."""
        y = torch.randint(self.num_classes, (size,), generator=generator)
        return {"x": self.centres()[y] + self.noise * torch.randn(size, self.dim, generator=generator), "y": y}

    def bayes_logits(self, x: Tensor) -> Tensor:
        """Logits of the Bayes classifier for x (n, d), shape (n, C)."""
        centres = self.centres()
        return (x @ centres.T - centres.square().sum(1) / 2) / self.noise**2


@dataclass(frozen=True)
class LatentChoice:
    r"""Responses y of 0 or 1 that depend on which of m latent values applies.

    ``x ~ N(0, I_d)``, ``p(z | x)`` proportional to ``exp(sharpness <x, e_z>)``, and
    ``p(1 | z, x) = sigmoid(scale <x, a_z>)`` with random unit vectors e_z and a_z, so that
    :class:`~fcco_lightning.models.LatentMixture` with linear features is exact.

    Args:
        num_latent: m, >= 2.
        dim: d, >= 1.
        sharpness: > 0.
        scale: > 0.
        seed: of the vectors.
    """

    num_latent: int = 200
    dim: int = 8
    sharpness: float = 4.0
    scale: float = 6.0
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("num_latent", self.num_latent, 2)
        at_least("dim", self.dim, 1)
        positive("sharpness", self.sharpness)
        positive("scale", self.scale)

    def log_odds(self, x: Tensor) -> Tensor:
        """``log p(1 | x) - log p(0 | x)`` of x (n, d), shape (n,)."""
        generator = torch.Generator().manual_seed(self.seed)
        vectors = torch.randn(2, self.num_latent, self.dim, generator=generator)
        e, a = vectors / vectors.norm(dim=2, keepdim=True)
        share, score = (self.sharpness * x @ e.T).log_softmax(1), self.scale * x @ a.T
        odds: Tensor = (share + logsigmoid(score)).logsumexp(1) - (share + logsigmoid(-score)).logsumexp(1)
        return odds

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``x`` (n, d) float32 and ``y`` (n,) int64."""
        x = torch.randn(size, self.dim, generator=generator)
        return {"x": x, "y": (torch.rand(size, generator=generator) < self.log_odds(x).sigmoid()).long()}
