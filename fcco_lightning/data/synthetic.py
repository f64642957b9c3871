"""Problems whose best possible scores are known: two Gaussian groups, survival times, and ranked lists."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.special import ndtr

from fcco_lightning.checks import at_least, non_negative, positive
from fcco_lightning.errors import ConfigError


class Distribution(Protocol):
    """What samples can be drawn from."""

    def sample(self, size: int, generator: torch.Generator, /) -> dict[str, Tensor]:
        """Return ``size`` samples, or that many lists of them, as columns."""


def train_and_test(problem: Distribution, seed: int, **sizes: int) -> dict[str, dict[str, Tensor]]:
    """Return independent samples of both splits by their names; the sizes are called as the arguments they come from.

    Raises:
        ConfigError: if a size is below 1.
    """
    generator = torch.Generator().manual_seed(seed)
    checked = [at_least(name, size, 1) for name, size in sizes.items()]
    return {split: problem.sample(size, generator) for split, size in zip(("train", "test"), checked, strict=True)}


@dataclass(frozen=True)
class GaussianGroups:
    r"""Two imbalanced groups, separated by different amounts along different directions.

    .. math:: a \sim \mathrm{Bernoulli}(q), \quad y \mid a \sim \mathrm{Bernoulli}(p_a), \quad
              x \mid y, a \sim N((y - 1/2)\,\delta_a v_a,\ I_d)

    with v_0 = e_0 and v_1 = cos(angle) e_0 + sin(angle) e_1.  The group a is the last feature.  The Bayes score is the
    log-likelihood ratio plus the prior logit, s = delta_a <v_a, x> + logit p_a, so that within a group
    s | y ~ N((y - 1/2) delta_a^2 + logit p_a, delta_a^2).

    Args:
        dim: Gaussian features d >= 2 (x has d + 1 columns).
        deltas: separation of the classes in group 0 and 1, > 0.
        priors: share of positives in group 0 and 1, in (0, 1).
        favoured_share: q, share of group 1, in (0, 1).
        angle: between the two groups' directions, in radians.

    Example:
        >>> problem = GaussianGroups()
        >>> round(problem.bayes_auc(), 3), round(problem.bayes_roc_gap(), 3)
        (0.903, 0.555)
    """

    dim: int = 20
    deltas: tuple[float, float] = (2.4, 1.6)
    priors: tuple[float, float] = (0.1, 0.3)
    favoured_share: float = 0.7
    angle: float = math.pi / 3

    def __post_init__(self) -> None:
        at_least("dim", self.dim, 2)
        for group in (0, 1):
            positive(f"deltas[{group}]", self.deltas[group])
        shares = {"priors[0]": self.priors[0], "priors[1]": self.priors[1], "favoured_share": self.favoured_share}
        for name, share in shares.items():
            if not 0 < share < 1:
                raise ConfigError(f"{name} must lie in (0, 1), got {share!r}.")

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``size`` = n samples.

        Returns:
            ``x`` (n, d + 1) float32 with the group as last column, ``y`` (n,) and ``group`` (n,) int64.
        """
        group = (torch.rand(size, generator=generator) < self.favoured_share).long()
        y = (torch.rand(size, generator=generator) < torch.tensor(self.priors)[group]).long()
        shift = (y - 0.5) * torch.tensor(self.deltas)[group]
        x = torch.randn(size, self.dim, generator=generator) + shift[:, None] * self._directions()[group]
        return {"x": torch.cat([x, group[:, None].to(x)], dim=1), "y": y, "group": group}

    def bayes_score(self, x: Tensor) -> Tensor:
        """Return the log-odds log P(y=1 | x) / P(y=0 | x) of ``x`` (n, d + 1), shape (n,): no score ranks better."""
        group = x[:, -1].long()
        along = (x[:, :-1] * self._directions().to(x)[group]).sum(dim=1)
        return torch.tensor(self.deltas).to(x)[group] * along + torch.tensor(self.priors).logit().to(x)[group]

    def bayes_auc(self) -> float:
        """Return the AUC of :meth:`bayes_score` over the whole population, the largest there is."""
        up, down, spread = self._score_laws()
        priors, groups = self._float64(self.priors), self._float64((1 - self.favoured_share, self.favoured_share))
        weight_up, weight_down = priors * groups, (1 - priors) * groups
        weights = torch.outer(weight_up / weight_up.sum(), weight_down / weight_down.sum())
        wins = ndtr((up[:, None] - down) / (spread[:, None].square() + spread.square()).sqrt())
        return float((weights * wins).sum())

    def bayes_roc_gap(self, points: int = 100_001) -> float:
        """Return the largest difference between the groups' true or false positive rates at a common threshold.

        Args:
            points: thresholds in a grid that covers both groups' scores to 8 standard deviations.
        """
        up, down, spread = self._score_laws()
        low, high = float((down - 8 * spread).min()), float((up + 8 * spread).max())
        thresholds = torch.linspace(low, high, points, dtype=torch.float64)[:, None]
        rates = (ndtr((mean - thresholds) / spread) for mean in (up, down))
        return max(float((rate[:, 0] - rate[:, 1]).abs().max()) for rate in rates)

    def _score_laws(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean of positives, mean of negatives and standard deviation of the Bayes score, each of shape (2,)."""
        deltas, logits = self._float64(self.deltas), self._float64(self.priors).logit()
        return deltas.square() / 2 + logits, -deltas.square() / 2 + logits, deltas

    def _directions(self) -> Tensor:
        directions = torch.zeros(2, self.dim)
        directions[0, 0] = 1.0
        directions[1, 0], directions[1, 1] = math.cos(self.angle), math.sin(self.angle)
        return directions

    @staticmethod
    def _float64(values: tuple[float, float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class ProportionalHazards:
    r"""Survival times of Cox's model with a log risk that is not linear, censored at random.

    .. math:: x \sim N(0, I_d), \quad h(x) = x_0 - x_1 + x_0 x_2, \quad
              P(T > t \mid x) = \exp(-t\, e^{h(x)}), \quad C \sim \mathrm{Exp}(\text{rate})

    A sample is last seen at min(T, C), rounded up to a multiple of ``tick``, so that events are tied.

    Args:
        dim: features d >= 3.
        censoring: rate of the censoring times, > 0; at 0.5 about two thirds of the samples have an event.
        tick: times are multiples of it, >= 0; 0 for no rounding.
    """

    dim: int = 10
    censoring: float = 0.5
    tick: float = 0.01

    def __post_init__(self) -> None:
        at_least("dim", self.dim, 3)
        positive("censoring", self.censoring)
        non_negative("tick", self.tick)

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``size`` = n samples.

        Returns:
            ``x`` (n, d) float32, ``time`` (n,) float32 > 0, ``event`` (n,) int64 in {0, 1}.
        """
        x = torch.randn(size, self.dim, generator=generator)
        waits = -torch.log1p(-torch.rand(2, size, generator=generator, dtype=torch.float64))
        time, censored = waits[0] * torch.exp(-self.log_risk(x).double()), waits[1] / self.censoring
        seen = torch.minimum(time, censored)
        if self.tick:
            seen = (seen / self.tick).ceil().clamp(min=1) * self.tick
        return {"x": x, "time": seen.clamp(min=1e-6).float(), "event": (time <= censored).long()}

    @staticmethod
    def log_risk(x: Tensor) -> Tensor:
        """Return h of ``x`` (n, d), shape (n,): no score has a larger concordance in the long run."""
        return x[:, 0] - x[:, 1] + x[:, 0] * x[:, 2]


@dataclass(frozen=True)
class GradedLists:
    r"""Queries with items whose grades 0 to 4 follow a score that is not linear, with noise.

    .. math:: x \sim N(0, I_d), \quad s(x) = x_0 + x_1 x_2, \quad y = \text{number of the thresholds } 1, 2, 3, 4
              \text{ below } s(x) + \text{shift of the query} + \sigma \varepsilon

    Args:
        dim: features d >= 3.
        items: items of every query, >= 2.
        noise: sigma, >= 0.
    """

    dim: int = 10
    items: int = 40
    noise: float = 0.5

    def __post_init__(self) -> None:
        at_least("dim", self.dim, 3)
        at_least("items", self.items, 2)
        non_negative("noise", self.noise)

    def sample(self, queries: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``queries`` lists, n items together.

        Returns:
            ``x`` (n, d) float32, ``y`` (n,) int64 in 0..4, ``query`` (n,) int64 in 0..queries - 1.
        """
        size = at_least("queries", queries, 1) * self.items
        query = torch.arange(size) // self.items
        x = torch.randn(size, self.dim, generator=generator)
        shift = torch.randn(queries, generator=generator)[query] / 2
        latent = self.score(x) + shift + self.noise * torch.randn(size, generator=generator)
        return {"x": x, "y": (latent.unsqueeze(1) > torch.arange(1, 5)).sum(1), "query": query}

    @staticmethod
    def score(x: Tensor) -> Tensor:
        """Return s of ``x`` (n, d), shape (n,): no score ranks better in the long run."""
        return x[:, 0] + x[:, 1] * x[:, 2]
