"""Probabilities that a batch contains a sample of a subset, or of both of two: formulas, enumeration and Monte Carlo.

Every sampler has ``absent(subset)``, a formula for the probability that no sample of the subset is in the batch.  Then

    P(A present) = 1 - absent(A),    P(A and B present) = 1 - absent(A) - absent(B) + absent(A or B).

``batches()`` lists all batches with their probabilities (tiny cases), ``draw(rng)`` draws one.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from math import comb

import numpy as np

from .networks import Indices

Subset = Sequence[int] | Indices
Batches = Iterator[tuple[tuple[int, ...], float]]


def none_of(n: int, drawn: int, size: int) -> float:
    """``drawn`` of n samples without replacement miss a subset of ``size``: C(n - size, drawn) / C(n, drawn)."""
    return comb(n - size, drawn) / comb(n, drawn)


class Sampler:
    """What the three samplers have in common."""

    def absent(self, subset: Subset) -> float:
        raise NotImplementedError

    def batches(self) -> Batches:
        raise NotImplementedError

    def draw(self, rng: np.random.Generator) -> Indices:
        raise NotImplementedError

    def present(self, subset: Subset) -> float:
        return 1 - self.absent(subset)

    def both(self, first: Subset, second: Subset) -> float:
        return 1 - self.absent(first) - self.absent(second) + self.absent(sorted({*map(int, first), *map(int, second)}))

    def enumerated(self, *subsets: Subset) -> float:
        """Probability that every subset is present, by listing all batches."""
        wanted = [set(map(int, subset)) for subset in subsets]
        return sum(chance for batch, chance in self.batches() if all(not one.isdisjoint(batch) for one in wanted))

    def simulated(self, draws: int, rng: np.random.Generator, *subsets: Subset) -> float:
        """The same by drawing batches."""
        wanted = [set(map(int, subset)) for subset in subsets]
        hits = 0
        for _ in range(draws):
            batch = self.draw(rng).tolist()
            hits += all(not one.isdisjoint(batch) for one in wanted)
        return hits / draws


class Uniform(Sampler):
    """B of n samples without replacement."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size = n, size

    def absent(self, subset: Subset) -> float:
        return none_of(self.n, self.size, len(np.unique(subset)))

    def batches(self) -> Batches:
        for batch in combinations(range(self.n), self.size):
            yield batch, 1 / comb(self.n, self.size)

    def draw(self, rng: np.random.Generator) -> Indices:
        return rng.permutation(self.n)[: self.size]


class Balanced(Sampler):
    """``drawn[c]`` samples of class c without replacement, positives first."""

    def __init__(self, labels: Subset, positives: int, negatives: int) -> None:
        labels = np.asarray(labels)
        self.classes = [np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)]
        self.drawn = [positives, negatives]

    def absent(self, subset: Subset) -> float:
        chance = 1.0
        for members, drawn in zip(self.classes, self.drawn, strict=True):
            chance *= none_of(len(members), drawn, int(np.isin(members, subset).sum()))
        return chance

    def batches(self) -> Batches:
        pairs = list(zip(self.classes, self.drawn, strict=True))
        chance = 1 / np.prod([comb(len(members), drawn) for members, drawn in pairs])
        for parts in product(*(combinations(members.tolist(), drawn) for members, drawn in pairs)):
            yield sum(parts, ()), float(chance)

    def draw(self, rng: np.random.Generator) -> Indices:
        parts = [rng.permutation(m)[:drawn] for m, drawn in zip(self.classes, self.drawn, strict=True)]
        return np.concatenate(parts)


class Groups(Sampler):
    """``groups_drawn`` (B1) of G groups without replacement, ``samples`` (B2) of each, group after group.

    ``replace``: the samples of a group are drawn with replacement; otherwise without, and a group smaller than B2 gives
    all its samples.  With q_g the probability that group g, once drawn, misses the subset, the batch misses it with
    probability ``e_B1(q_1, .., q_G) / C(G, B1)``, e_B1 the elementary symmetric polynomial.
    """

    def __init__(self, groups: Subset, groups_drawn: int, samples: int, replace: bool = False) -> None:
        groups = np.asarray(groups)
        self.members = [np.flatnonzero(groups == g) for g in range(int(groups.max()) + 1)]
        self.groups_drawn, self.samples, self.replace = groups_drawn, samples, replace

    def _missed(self, members: Indices, subset: Subset) -> float:
        inside, size = int(np.isin(members, subset).sum()), len(members)
        if self.replace:
            return (1 - inside / size) ** self.samples
        return none_of(size, min(self.samples, size), inside)

    def absent(self, subset: Subset) -> float:
        missed = [self._missed(members, subset) for members in self.members]
        symmetric = [1.0] + [0.0] * self.groups_drawn  # e_0 .. e_B1 of the groups so far
        for q in missed:
            for order in range(self.groups_drawn, 0, -1):
                symmetric[order] += q * symmetric[order - 1]
        return symmetric[self.groups_drawn] / comb(len(missed), self.groups_drawn)

    def _inside(self, members: Indices) -> list[tuple[int, ...]]:
        if self.replace:
            return list(product(members.tolist(), repeat=self.samples))
        return list(combinations(members.tolist(), min(self.samples, len(members))))

    def batches(self) -> Batches:
        for chosen in combinations(self.members, self.groups_drawn):
            inside = [self._inside(members) for members in chosen]
            chance = 1 / comb(len(self.members), self.groups_drawn) / np.prod([len(one) for one in inside])
            for parts in product(*inside):
                yield sum(parts, ()), float(chance)

    def draw(self, rng: np.random.Generator) -> Indices:
        parts = []
        for group in rng.permutation(len(self.members))[: self.groups_drawn]:
            members = self.members[group]
            if self.replace:
                parts.append(members[rng.integers(0, len(members), self.samples)])
            else:
                parts.append(rng.permutation(members)[: self.samples])
        return np.concatenate(parts)
