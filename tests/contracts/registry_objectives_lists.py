"""Objectives of lists, survival times and neighbours, with their formulas written a second time."""

import math

import torch

from fcco_lightning import NDCG, CoxPartialLikelihood, ListMLE, ListNet, NeighbourhoodComponents
from fcco_lightning.objectives import SigmoidPair
from tests.contracts.sampled import CLASS, EVENT, GRADE, GROUP, QUERY, STRATUM, Case, N, mean, scores, sigmoid

TIMES = [5.0, 2.0, 3.0, 2.0, 7.0, 3.0, 3.0, 9.0, 1.0]  # two pairs of tied events, one with a censored sample
SURVIVAL = {"time": torch.tensor(TIMES), "event": torch.tensor(EVENT)}
RANKED = {"query": torch.tensor(QUERY), "y": torch.tensor(GRADE)}


def breslow(s, columns):
    time, event = columns["time"], columns["event"]
    terms = []
    for i in range(N):
        if event[i] == 1:
            risk = sum(torch.exp(s[j]) for j in range(N) if time[j] >= time[i])
            terms.append(torch.log(risk) - s[i])
    return mean(terms)


def efron(s, columns):
    """Over all event times; the l-th of d tied events has a risk set without the share l/d of the tied events."""
    time, event = columns["time"], columns["event"]
    terms = []
    for t in sorted({time[i] for i in range(N) if event[i] == 1}):
        tied = [i for i in range(N) if event[i] == 1 and time[i] == t]
        risk = sum(torch.exp(s[j]) for j in range(N) if time[j] >= t)
        own = sum(torch.exp(s[j]) for j in tied)
        terms += [torch.log(risk - l / len(tied) * own) - s[i] for l, i in enumerate(tied)]  # noqa: E741
    return mean(terms)


def neighbours(temperature):
    def formula(z, columns):
        y, total = columns["y"], []
        for i in range(N):
            near = [
                torch.exp(-sum((a - b) ** 2 for a, b in zip(z[i], z[j], strict=True)) / temperature) for j in range(N)
            ]
            others = [j for j in range(N) if j != i]
            total.append(-sum(near[j] for j in others if y[j] == y[i]) / sum(near[j] for j in others))
        return mean(total)

    return formula


def by_query(columns):
    return [[i for i in range(N) if columns["query"][i] == q] for q in sorted(set(columns["query"]))]


def list_net(target):
    def formula(s, columns):
        total = []
        for items in by_query(columns):
            mass = [math.exp(columns["y"][i]) if target == "softmax" else columns["y"][i] for i in items]
            whole = torch.log(sum(torch.exp(s[j]) for j in items))
            total.append(sum(m / sum(mass) * (whole - s[i]) for m, i in zip(mass, items, strict=True)))
        return mean(total)

    return formula


def list_mle(s, columns):
    y, total = columns["y"], []
    for items in by_query(columns):
        terms = []
        for i in items:
            below = [j for j in items if y[j] < y[i]]
            terms.append(torch.log(torch.exp(s[i]) + sum(torch.exp(s[j]) for j in below)) - s[i] if below else 0 * s[i])
        total.append(sum(terms))
    return mean(total)


def ndcg(loss, gain, top_k=None, sharpness=2.0):
    def formula(s, columns):
        y, total = columns["y"], []
        for items in by_query(columns):
            best = sorted((gain(y[i]) for i in items), reverse=True)[:top_k]
            ideal = sum(g / math.log2(2 + place) for place, g in enumerate(best))
            reached = 0 * s[0]
            for i in items:
                rank = 1 + sum(loss(s[i] - s[j]) for j in items if j != i)
                cut = 1 if top_k is None else 1 / (1 + (rank / (top_k + 0.5)) ** sharpness)
                reached = reached + gain(y[i]) * cut * math.log(2) / torch.log(1 + rank)
            total.append(-reached / ideal)
        return mean(total)

    return formula


def of_times(make, brute):
    ways = ("uniform", "balanced", "events")
    return Case(make, scores(), SURVIVAL, brute, unbiased=ways, missing="time", bad_outputs=scores(N, 2))


def of_lists(make, brute):
    ways = ("uniform", "balanced", "queries", "some classes")
    return Case(make, scores(), RANKED, brute, unbiased=ways, missing="query", bad_outputs=scores(N, 2))


def of_neighbours(classes, *ways, temperature=1.0):
    return Case(
        lambda: NeighbourhoodComponents(temperature),
        scores(N, 2),
        {"y": torch.tensor(classes)},
        neighbours(temperature),
        unbiased=("uniform", "balanced", *ways),
        missing="y",
        bad_outputs=scores(N),
    )


CASES = {
    "cox, breslow": of_times(lambda: CoxPartialLikelihood("breslow"), breslow),
    "cox, efron": of_times(CoxPartialLikelihood, efron),
    "list net": of_lists(ListNet, list_net("softmax")),
    "list net, proportional": of_lists(lambda: ListNet("proportional"), list_net("proportional")),
    "list mle": of_lists(ListMLE, list_mle),
    "ndcg": of_lists(NDCG, ndcg(lambda d: torch.relu(1 - d) ** 2, lambda y: 2**y - 1)),
    "ndcg, first places": of_lists(
        lambda: NDCG(SigmoidPair(0.5), top_k=2, sharpness=3.0, gain="linear"),
        ndcg(lambda d: sigmoid(-d / 0.5), lambda y: y, top_k=2, sharpness=3.0),
    ),
    "neighbours": of_neighbours(STRATUM, "classes"),
    "neighbours, classes drawn": of_neighbours(CLASS, "some classes", "classes redrawn", temperature=0.7),
    "neighbours, one class of a single sample": of_neighbours(GROUP, "groups redrawn"),
}
