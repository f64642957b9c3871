"""Synthetic problems, most of which have a known optimum."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.special import ndtr

from fcco_lightning.checks import at_least, below_one, inside, non_negative, positive
from fcco_lightning.data.digits import Digits, digits
from fcco_lightning.data.roles import Columns
from fcco_lightning.errors import ConfigError


class Distribution(ABC):
    """A distribution of samples with their labels and groups."""

    @abstractmethod
    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return ``size`` samples as columns; ``size`` counts samples per group, or lists or bags, if there are any."""

    def train_and_test(self, num_train: int, num_test: int, seed: int) -> dict[str, dict[str, Tensor]]:
        """Return independent samples of the splits "train" and "test" by name.

        Raises:
            ConfigError: if a number is below 1.
        """
        generator = torch.Generator().manual_seed(seed)
        sizes = {"train": at_least("num_train", num_train, 1), "test": at_least("num_test", num_test, 1)}
        return {split: self.sample(size, generator) for split, size in sizes.items()}


class TableDistribution(Distribution):
    """A distribution whose samples are a table: features are encoded, and rows can be held out."""

    columns: ClassVar[Columns]
    """What the columns of the table mean."""

    whole: ClassVar[str | None] = None
    """Column whose equal values stay together in a split; None if every row is on its own."""

    def table(self, sample: dict[str, Tensor]) -> pd.DataFrame:
        """Return one column x00, x01, ... for each feature of ``x`` (n, d), and the other columns after them."""
        features = {f"x{i:02d}": column.numpy() for i, column in enumerate(sample["x"].T)}
        return pd.DataFrame(features | {name: column.numpy() for name, column in sample.items() if name != "x"})


class TensorDistribution(Distribution):
    """A distribution whose samples are used without encoding; batches may have further parts, see :attr:`others`."""

    num_classes: int | None = None
    """Number of classes, if ``y`` is one of many."""

    @property
    def num_groups(self) -> int | None:
        """Number of groups (the column ``group``), if there are any."""
        return None

    @property
    def others(self) -> dict[str, int]:
        """Name of a further part of batches -> number of objects, such as classes, from which it is drawn."""
        return {}


@dataclass(frozen=True)
class GaussianGroups(TableDistribution):
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
        angle: angle between the directions v_0 and v_1, in radians.

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

    columns = Columns("y", positive=1, sensitive="group", favoured=1, use_sensitive=True)

    def __post_init__(self) -> None:
        at_least("dim", self.dim, 2)
        for group in (0, 1):
            positive(f"deltas[{group}]", self.deltas[group])
        shares = {"priors[0]": self.priors[0], "priors[1]": self.priors[1], "favoured_share": self.favoured_share}
        for name, share in shares.items():
            inside(name, share)

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

    def table(self, sample: dict[str, Tensor]) -> pd.DataFrame:
        """Return the features but the last one, which is the group, and the columns ``y`` and ``group``."""
        return super().table(sample | {"x": sample["x"][:, :-1]})

    def bayes_score(self, x: Tensor) -> Tensor:
        """Return the log-odds log P(y=1 | x) / P(y=0 | x) of ``x`` (n, d + 1), shape (n,): no score ranks better."""
        group = x[:, -1].long()
        projection = (x[:, :-1] * self._directions().to(x)[group]).sum(dim=1)
        return torch.tensor(self.deltas).to(x)[group] * projection + torch.tensor(self.priors).logit().to(x)[group]

    def bayes_auc(self) -> float:
        """Return the AUC of :meth:`bayes_score` over the whole population, the largest there is."""
        up, down, spread = self._score_laws()
        priors, groups = self._float64(self.priors), self._float64((1 - self.favoured_share, self.favoured_share))
        weight_up, weight_down = priors * groups, (1 - priors) * groups
        weights = torch.outer(weight_up / weight_up.sum(), weight_down / weight_down.sum())
        wins = ndtr((up[:, None] - down) / (spread[:, None].square() + spread.square()).sqrt())
        return float((weights * wins).sum())

    def bayes_roc_gap(self) -> float:
        """Return the largest difference between the groups' true or false positive rates at a common threshold.

        It is computed on a grid of 100,001 thresholds that covers both groups' scores to 8 standard deviations.
        """
        up, down, spread = self._score_laws()
        low, high = float((down - 8 * spread).min()), float((up + 8 * spread).max())
        thresholds = torch.linspace(low, high, 100_001, dtype=torch.float64)[:, None]
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
class ProportionalHazards(TableDistribution):
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

    columns = Columns("event", positive=1, extra=["time", "event"])

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
        observed = torch.minimum(time, censored)
        if self.tick:
            observed = (observed / self.tick).ceil().clamp(min=1) * self.tick
        return {"x": x, "time": observed.clamp(min=1e-6).float(), "event": (time <= censored).long()}

    @staticmethod
    def log_risk(x: Tensor) -> Tensor:
        """Return h of ``x`` (n, d), shape (n,): no score has a larger expected concordance."""
        return x[:, 0] - x[:, 1] + x[:, 0] * x[:, 2]


@dataclass(frozen=True)
class GradedLists(TableDistribution):
    r"""Queries with items whose grades 0 to 4 are a noisy function of a nonlinear score.

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

    columns = Columns("y", target="number", extra=["query"])
    whole = "query"

    def __post_init__(self) -> None:
        at_least("dim", self.dim, 3)
        at_least("items", self.items, 2)
        non_negative("noise", self.noise)

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``size`` lists with n items in all.

        Returns:
            ``x`` (n, d) float32, ``y`` (n,) int64 in 0..4, ``query`` (n,) int64 in 0..size - 1.
        """
        query = torch.arange(at_least("size", size, 1)).repeat_interleave(self.items)
        x = torch.randn(len(query), self.dim, generator=generator)
        shift = torch.randn(size, generator=generator)[query] / 2
        latent = self.score(x) + shift + self.noise * torch.randn(len(query), generator=generator)
        return {"x": x, "y": (latent.unsqueeze(1) > torch.arange(1, 5)).sum(1), "query": query}

    @staticmethod
    def score(x: Tensor) -> Tensor:
        """Return s of ``x`` (n, d), shape (n,): no score ranks better in expectation."""
        return x[:, 0] + x[:, 1] * x[:, 2]


@dataclass(frozen=True)
class Garnet(TensorDistribution):
    r"""A Markov reward process of the Garnet family, a usual benchmark of policy evaluation.

    Each of n states has ``branching`` successors, chosen at random, with probabilities that are the gaps between
    uniform points in [0, 1]; the expected reward of a state is uniform in [0, 1], and the reward of a transition has
    Gaussian noise.  The features of a state are d random binary numbers and a constant.

    Args:
        num_states: n, >= 2.
        branching: number of successors of a state, in 1..n.
        num_features: d, >= 1; with d >= n - 1 a linear value function can usually be exact.
        discount: discount factor, in [0, 1).
        noise: standard deviation of a reward, >= 0.
        seed: seed of the process.

    Example:
        >>> problem = Garnet(num_states=30, branching=3)
        >>> P, r, v = problem.transitions(), problem.rewards(), problem.values()
        >>> bool(torch.allclose(v, r + problem.discount * P @ v))
        True
    """

    num_states: int = 200
    branching: int = 4
    num_features: int = 20
    discount: float = 0.95
    noise: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("num_states", self.num_states, 2)
        at_least("num_features", self.num_features, 1)
        if not 1 <= at_least("branching", self.branching, 1) <= self.num_states:
            raise ConfigError(f"branching must lie in 1..num_states={self.num_states}, got {self.branching!r}.")
        below_one("discount", self.discount)
        non_negative("noise", self.noise)

    @property
    def num_groups(self) -> int:
        """Number of states, which are the groups."""
        return self.num_states

    def transitions(self) -> Tensor:
        """Probabilities P of going from state s to state s', shape (n, n), float64."""
        n, generator = self.num_states, self._generator(0)
        cuts = torch.rand(n, self.branching - 1, generator=generator, dtype=torch.float64).sort(1).values
        bounds = torch.cat([torch.zeros(n, 1), cuts, torch.ones(n, 1)], 1)
        reached = torch.rand(n, n, generator=generator).argsort(1)[:, : self.branching]
        return torch.zeros(n, n, dtype=torch.float64).scatter_(1, reached, bounds.diff(dim=1).double())

    def rewards(self) -> Tensor:
        """Expected rewards of the states, shape (n,), float64."""
        return torch.rand(self.num_states, generator=self._generator(1), dtype=torch.float64)

    def features(self) -> Tensor:
        """Features of the states, shape (n, d + 1), float32; the last one is 1."""
        bits = torch.rand(self.num_states, self.num_features, generator=self._generator(2)) < 0.5
        return torch.cat([bits.float(), torch.ones(self.num_states, 1)], 1)

    def values(self) -> Tensor:
        """The value function, the solution of ``V = r + discount P V``, shape (n,), float64."""
        eye = torch.eye(self.num_states, dtype=torch.float64)
        values: Tensor = torch.linalg.solve(eye - self.discount * self.transitions(), self.rewards())
        return values

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``size`` transitions from every state, m in all.

        Returns: ``x`` (m, 2, d + 1), features of a state and its successor; ``group`` (m,), number of the state;
            ``next`` (m,), number of the successor; ``reward`` (m,) and ``value`` (m,), the state's true value, float32.
        """
        state = torch.arange(self.num_states).repeat_interleave(at_least("size", size, 1))
        follows = torch.multinomial(self.transitions()[state], 1, generator=generator).squeeze(1)
        reward = self.rewards()[state] + self.noise * torch.randn(len(state), generator=generator)
        features = self.features()
        return {
            "x": torch.stack([features[state], features[follows]], 1),
            "group": state,
            "next": follows,
            "reward": reward.float(),
            "value": self.values()[state].float(),
        }

    def _generator(self, part: int) -> torch.Generator:
        return torch.Generator().manual_seed(3 * at_least("seed", self.seed, 0) + part)


@dataclass(frozen=True)
class ManyClasses(TensorDistribution):
    r"""Points around the centres of C equally likely classes, ``x = c_y + noise z`` with z and the centres ~ N(0, I_d).

    The Bayes classifier takes the nearest centre, and its logits are linear in x.

    Args:
        num_classes: C, >= 2.
        dim: d, >= 1.
        noise: > 0.
        seed: seed of the centres.
    """

    num_classes: int = 1000
    dim: int = 32
    noise: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("num_classes", self.num_classes, 2)
        at_least("dim", self.dim, 1)
        positive("noise", self.noise)

    @property
    def others(self) -> dict[str, int]:
        """Batches have a part with some of the classes."""
        return {"classes": self.num_classes}

    def centres(self) -> Tensor:
        """Centres of the classes, shape (C, d), float32."""
        return torch.randn(self.num_classes, self.dim, generator=torch.Generator().manual_seed(self.seed))

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``x`` (n, d) float32 and ``y`` (n,) int64."""
        y = torch.randint(self.num_classes, (size,), generator=generator)
        return {"x": self.centres()[y] + self.noise * torch.randn(size, self.dim, generator=generator), "y": y}


@dataclass(frozen=True)
class LatentChoice(TensorDistribution):
    r"""Binary responses y that depend on a latent variable z with m values.

    ``x ~ N(0, I_d)``, ``p(z | x)`` proportional to ``exp(sharpness <x, e_z>)``, and
    ``p(1 | z, x) = sigmoid(scale <x, a_z>)`` with random unit vectors e_z and a_z, so that
    :class:`~fcco_lightning.models.LatentMixture` with linear features is exact.

    Args:
        num_latent: m, >= 2.
        dim: d, >= 1.
        sharpness: > 0.
        scale: > 0.
        seed: seed of the vectors.
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

    @property
    def others(self) -> dict[str, int]:
        """Batches have a part with some of the values of the latent variable."""
        return {"latent": self.num_latent}

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


@dataclass(frozen=True)
class BlockDistributions(TensorDistribution):
    r"""m distributions of features, each in two neighbouring blocks, and labels by one network for all of them.

    The features are m blocks of ``block_size``.  Under P_i the blocks i and i + 1 (of the last distribution the last
    and the first one) are independent and uniform on [-1, 1], the others are 0.  The label is 1 where

    .. math:: \sigma(X_1 x)^\top x_2 + z > 0, \quad z \sim U[-\text{noise}, \text{noise}],

    with the sigmoid :math:`\sigma` and the entries of X_1 (hidden, m block_size) and x_2 (hidden,) uniform on [-1, 1].

    Args:
        num_distributions: m, >= 3.
        block_size: features of a block, >= 1.
        hidden: width of the labelling network, >= 1.
        noise: >= 0.
        seed: of the labelling network.  Of many seeds nearly all labels are the same; of seed 2 two thirds are 1.
    Source: PG-SMD paper, section 5.3.
    """

    num_distributions: int = 5
    block_size: int = 10
    hidden: int = 10
    noise: float = 0.01
    seed: int = 2

    def __post_init__(self) -> None:
        at_least("num_distributions", self.num_distributions, 3)
        at_least("block_size", self.block_size, 1)
        at_least("hidden", self.hidden, 1)
        non_negative("noise", self.noise)

    @property
    def num_groups(self) -> int:
        """Number of distributions, which are the groups."""
        return self.num_distributions

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.num_distributions * self.block_size

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``size`` samples of every distribution, n in all.

        Returns:
            ``x`` (n, dim) float32, ``y`` (n,) int64 in {0, 1} and ``group`` (n,) int64, the number of the distribution.
        """
        group = torch.arange(self.num_distributions).repeat_interleave(size)
        x = 2 * torch.rand(len(group), self.dim, generator=generator) - 1
        block = torch.arange(self.dim) // self.block_size
        after = (block - group.unsqueeze(1)) % self.num_distributions
        x = torch.where(after <= 1, x, 0.0)
        z = self.noise * (2 * torch.rand(len(group), generator=generator) - 1)
        return {"x": x, "y": (self.score(x) + z > 0).long(), "group": group}

    def score(self, x: Tensor) -> Tensor:
        """The labelling network's score of ``x`` (n, dim), shape (n,); without noise its sign is the label."""
        generator = torch.Generator().manual_seed(self.seed)
        first = 2 * torch.rand(self.hidden, self.dim, generator=generator) - 1
        second = 2 * torch.rand(self.hidden, generator=generator) - 1
        return torch.sigmoid(x @ first.T.to(x)) @ second.to(x)


@dataclass(frozen=True)
class DigitBags(TensorDistribution):
    """Bags of images of digits; a bag is positive if it contains a nine.

    The images are those of :func:`fcco_lightning.data.digits.digits`, equally many of every digit, divided at random
    among the bags.  The columns of the n instances (images) are ``x`` (n, 256) float32, grey levels of mean about 0 and
    variance about 1, ``bag`` (n,) int64, the number of the bag, and ``y`` (n,) int64, the label of the bag.

    Args:
        size: number of images in a bag, >= 1; with 8 images, 57% of the bags are positive.
    """

    size: int = 8

    def __post_init__(self) -> None:
        at_least("size", self.size, 1)

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``size`` bags of images of the training split."""
        seed = int(torch.randint(2**31, (), generator=generator))
        return self._bags(digits(size * self.size, 10, seed)["train"], generator)

    def train_and_test(self, num_train: int, num_test: int, seed: int) -> dict[str, dict[str, Tensor]]:
        """Return bags of both splits, which have no handwriting in common."""
        generator = torch.Generator().manual_seed(seed)
        train, test = at_least("num_train", num_train, 1), at_least("num_test", num_test, 1)
        images = digits(train * self.size, test * self.size, seed)
        return {split: self._bags(part, generator) for split, part in images.items()}

    def _bags(self, images: Digits, generator: torch.Generator) -> dict[str, Tensor]:
        order = torch.randperm(len(images.labels), generator=generator)
        positive = (images.labels[order] == 9).view(-1, self.size).any(1).long()
        bag = torch.arange(len(order)) // self.size
        return {"x": (images.images[order].flatten(1) / 255 - 0.2) / 0.3, "bag": bag, "y": positive[bag]}
