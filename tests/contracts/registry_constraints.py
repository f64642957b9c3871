"""Every public constraint of the package with its formula written a second time."""

import torch

from fcco_lightning.constraints import MeanAtMost, MeanDifferenceAtMost, NonForgetting, ROCFairness, StandardScores
from fcco_lightning.objectives import LogisticLoss, SoftRate
from tests.contracts.sampled import GROUP, Case, N, logistic, mean, scores, sigmoid, table_columns

TWO_GROUPS = [0, 1, 1, 0, 1, 0, 0, 1, 1]  # both have samples of both classes
THRESHOLDS = (-0.5, 0.4)


def subset_mean(values, columns, where):
    inside = [i for i in range(N) if all(columns[name][i] == value for name, value in where.items())]
    return mean([values[i] for i in inside])


def at_most(quantity, where, kappa):
    def formula(s, columns):
        return [subset_mean(quantity(s, columns), columns, where) - kappa]

    return formula


def difference(quantity, first, second, kappa):
    def formula(s, columns):
        q = quantity(s, columns)
        return [abs(subset_mean(q, columns, first) - subset_mean(q, columns, second)) - kappa]

    return formula


def soft_rates(s, columns):
    return [sigmoid((a - 0.2) / 0.5) for a in s]


def logistic_losses(s, columns):
    return [logistic(a, y) for a, y in zip(s, columns["y"], strict=True)]


def roc(kappa, temperature, standard):
    def formula(s, columns):
        if standard:
            centre = mean(s)
            unit = mean([(a - centre) ** 2 for a in s]) ** 0.5
            s = [(a - centre) / unit for a in s]
        rows = []
        for label in (1, 0):
            for tau in THRESHOLDS:
                above = [sigmoid((a - tau) / temperature) for a in s]
                rates = [subset_mean(above, columns, {"y": label, "group": g}) for g in (1, 0)]
                rows.append(abs(rates[0] - rates[1]) - kappa)
        return rows

    return formula


def forgetting(kappa):
    def formula(s, columns):
        change = []
        for row, y, old in zip(s, columns["y"], columns["protected_loss"], strict=True):
            change.append(torch.log(sum(torch.exp(v) for v in row)) - row[y] - old)
        return [subset_mean(change, columns, {"task": task}) - kappa for task in range(2)]

    return formula


_FIRST, _SECOND = {"y": 1, "group": 1}, {"y": 1, "group": 0}
_PROTECTED = {
    "y": torch.tensor(GROUP),
    "task": torch.tensor([0, 0, -1, 1, 0, 0, -1, 0, 1]),
    "protected_loss": torch.linspace(0.2, 1.0, N, dtype=torch.float64),
}
_TWO = table_columns(group=TWO_GROUPS)

CASES = {
    "mean of everyone": Case(
        lambda: MeanAtMost(LogisticLoss(), 0.5),
        scores(),
        table_columns(),
        at_most(logistic_losses, {}, 0.5),
        unbiased=("uniform",),
        missing="y",
        bad_outputs=scores(N, 2),
    ),
    "false positive rate": Case(
        lambda: MeanAtMost(SoftRate(0.2, 0.5), 0.1, {"y": 0}),
        scores(),
        table_columns(),
        at_most(soft_rates, {"y": 0}, 0.1),
        unbiased=("uniform", "balanced"),
        missing="y",
        bad_outputs=scores(N, 2),
    ),
    "loss of the group of one": Case(
        lambda: MeanAtMost(LogisticLoss(), 0.2, {"group": 2}),
        scores(),
        table_columns(),
        at_most(logistic_losses, {"group": 2}, 0.2),
        unbiased=("uniform", "balanced", "groups"),
        missing="group",
        bad_outputs=scores(N, 2),
    ),
    "equal opportunity": Case(
        lambda: MeanDifferenceAtMost(SoftRate(0.2, 0.5), 0.02, _FIRST, _SECOND),
        scores(),
        _TWO,
        difference(soft_rates, _FIRST, _SECOND, 0.02),
        unbiased=("uniform", "balanced"),
        missing="group",
        bad_outputs=scores(N, 2),
    ),
    "roc": Case(
        lambda: ROCFairness(THRESHOLDS, 0.05, 0.7),
        scores(),
        _TWO,
        roc(0.05, 0.7, standard=False),
        unbiased=("uniform", "balanced"),
        missing="group",
        bad_outputs=scores(N, 2),
    ),
    "roc, standard scores": Case(
        lambda: ROCFairness(THRESHOLDS, 0.05, 0.7, StandardScores()),
        scores(),
        _TWO,
        roc(0.05, 0.7, standard=True),
        unbiased=(),
        missing="group",
        bad_outputs=scores(N, 2),
    ),
    "non-forgetting": Case(
        lambda: NonForgetting(kappa=0.1, names=["a", "b"]),
        scores(N, 3),
        _PROTECTED,
        forgetting(0.1),
        unbiased=("uniform",),
        missing="task",
    ),
}
