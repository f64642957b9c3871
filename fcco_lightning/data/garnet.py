"""Random Markov reward processes whose value function is known in closed form."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError


@dataclass(frozen=True)
class Garnet:
    r"""A Markov reward process of the Garnet family, on which methods of policy evaluation are usually compared.

    From each of n states the chain goes on to one of ``branching`` others, chosen at random, with probabilities that
    are the gaps between uniform points in [0, 1]; the expected reward of a state is uniform in [0, 1] and that of a
    transition has Gaussian noise.  The features of a state are d random binary numbers and a constant.

    Args:
        num_states: n, >= 2.
        branching: next states of a state, in 1..n.
        num_features: d, >= 1; with d >= n - 1 a linear value function can usually be exact.
        discount: in [0, 1).
        noise: standard deviation of a reward, >= 0.
        seed: of the process.

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
        if not 0 <= self.discount < 1:
            raise ConfigError(f"discount must lie in [0, 1), got {self.discount!r}.")
        if not self.noise >= 0:
            raise ConfigError(f"noise must be >= 0, got {self.noise!r}.")

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

    def sample(self, per_state: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``per_state`` transitions from every state, m in all.

        Returns: ``x`` (m, 2, d + 1), features of both states; ``group`` (m,), number of the first; ``next`` (m,),
            number of the second; ``reward`` (m,) and ``value`` (m,), the true value of the first, float32.
        """
        state = torch.arange(self.num_states).repeat_interleave(at_least("per_state", per_state, 1))
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
