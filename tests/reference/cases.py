"""Complete problems of three families with a sampler, a start and the inclusion probabilities of their rows.

``make_case(name)`` is for whole batches; ``make_case(name, halved=True)`` has the inclusion probabilities of half a
batch, for methods that divide it into halves.
"""

from dataclasses import dataclass

import numpy as np

from .networks import Array, Data, Indices, Tanh, TwoTowers, make_data
from .outer import GapHinge, Hinge, Log
from .probabilities import Groups, Sampler, Uniform
from .toy import Contrastive, GroupRisks, MeanRate, PairLoss, Part, Problem, RateGap, Term

ALPHA, RHO, TEMPERATURE = 0.5, 4.0, 0.4
CASES = ("groups", "constraints", "contrastive")


def presences(sampler: Sampler, term: Term, data: Data) -> Array:
    """Presence probability of every row of a term, by the sampler's formula."""
    if isinstance(term, GroupRisks):
        return np.array([sampler.present(data.members(g)) for g in range(term.n_rows)])
    if isinstance(term, MeanRate):
        return np.array([sampler.present(np.flatnonzero(term.member))])
    if isinstance(term, RateGap):
        return np.array([sampler.both(*(np.flatnonzero(member) for member in term.members))])
    return np.array([sampler.present([i]) for i in range(len(data))])


@dataclass(frozen=True)
class Case:
    """A problem with its data, the sampler of whole batches and the start w (d,)."""

    data: Data
    problem: Problem
    sampler: Sampler
    w: Array

    def batches(self, count: int, seed: int = 0) -> list[Indices]:
        rng = np.random.default_rng(seed)
        return [self.sampler.draw(rng) for _ in range(count)]


def make_case(name: str, *, lam: float = 0.05, halved: bool = False) -> Case:
    """The cases of ``CASES``; ``lam`` smooths the hinges.

    * groups: ``s + (1/4) sum_i (1/alpha) [R_i - s]_+``, 3 of 4 groups with 8 samples each (with replacement).
    * constraints: the AUC pair loss under three constraints (shares 1/3): the mean rate of the 3 samples of the
      smallest group, the rate gap between the two largest groups at level 0, and the same at level .5; uniform batches
      of 24 of 200.
    * contrastive: 40 pairs, uniform batches of 8, tau = .4.
    """
    sizes = (25, 12, 3) if name == "contrastive" else (120, 60, 17, 3)
    data = make_data(sizes)
    network = TwoTowers(data) if name == "contrastive" else Tanh(data, extra=int(name == "groups"))
    smallest, first, second = data.members(len(sizes) - 1), data.members(0), data.members(1)
    share = 2 if halved else 1
    direct: tuple[tuple[PairLoss, float], ...] = ()
    terms: list[Term]
    sampler: Sampler
    if name == "groups":
        sampler, half = Groups(data.groups, 3, 8, replace=True), Groups(data.groups, 3, 8 // share, replace=True)
        terms = [GroupRisks(data, Hinge(1 / ALPHA, 0.0, lam), network.size - 1)]
    elif name == "constraints":
        sampler, half = Uniform(200, 24), Uniform(200, 24 // share)
        terms = [MeanRate(data, smallest, Hinge(RHO, 0.1, lam))]
        terms += [RateGap(data, first, second, GapHinge(RHO, 0.02, lam), level, 0.5) for level in (0.0, 0.5)]
        classes = [np.flatnonzero(data.labels == label) for label in (0, 1)]
        direct = ((PairLoss(data), sampler.both(*classes)),)  # measured on the whole batch
    else:
        sampler, half = Uniform(40, 8), Uniform(40, 8 // share)
        terms = [Contrastive(data, Log(TEMPERATURE), TEMPERATURE)]
    parts = tuple(Part(term, presences(half, term, data), 1 / len(terms)) for term in terms)
    w = np.random.default_rng(5).normal(size=network.size) * 0.5
    return Case(data, Problem(network, len(data), parts, direct), sampler, w)
