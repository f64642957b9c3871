"""The registry of public constraints, with their formulas written a second time."""

import torch

from fcco_lightning.constraints import (
    AUCParity,
    DemographicParity,
    Distillation,
    EqualizedOdds,
    EqualOpportunity,
    FourFifthsRule,
    GroupAUCAtLeast,
    MeanAtMost,
    MeanDifferenceAtMost,
    MeanNear,
    NonForgetting,
    PredictiveParity,
    ROCFairness,
    StandardScores,
)
from fcco_lightning.objectives import LogisticLoss, SoftRate
from tests.contracts.sampled import GROUP, Case, N, logistic, mean, scores, sigmoid, table_columns

TWO_GROUPS = [0, 1, 1, 0, 1, 0, 0, 1, 1]  # both have samples of both classes
THRESHOLDS = (-0.5, 0.4)


def subset_mean(values, columns, where):
    return mean([values[i] for i in subset(columns, where)])


def subset(columns, where):
    """Positions of the samples that meet all conditions: a value, a list of values, or "<" with a number."""

    def meets(value, condition):
        if isinstance(condition, list):
            return any(meets(value, one) for one in condition)
        return value < float(condition[1:]) if str(condition).startswith("<") else value == condition

    size = len(next(iter(columns.values())))
    return [i for i in range(size) if all(meets(columns[name][i], value) for name, value in where.items())]


def at_most(quantity, where, kappa):
    def formula(s, columns):
        return [subset_mean(quantity(s, columns), columns, where) - kappa]

    return formula


def soft_rates(s, columns):
    return [sigmoid((a - 0.2) / 0.5) for a in s]


def logistic_losses(s, columns):
    return [logistic(a, y) for a, y in zip(s, columns["y"], strict=True)]


def forgetting(kappa):
    def formula(s, columns):
        change = []
        for row, y, old in zip(s, columns["y"], columns["protected_loss"], strict=True):
            change.append(torch.log(sum(torch.exp(v) for v in row)) - row[y] - old)
        return [subset_mean(change, columns, {"task": task}) - kappa for task in range(2)]

    return formula


def distillation(temperature, kappa):
    def formula(s, columns):
        def probabilities(row):
            powers = [torch.exp(torch.as_tensor(v, dtype=torch.float64) / temperature) for v in row]
            return [p / sum(powers) for p in powers]

        lost = []
        for row, old in zip(s, columns["old_logits"], strict=True):
            pairs = zip(probabilities(old), probabilities(row), strict=True)
            lost.append(sum(p * torch.log(p / q) for p, q in pairs))
        return [subset_mean(lost, columns, {"task": task}) - kappa for task in range(2)]

    return formula


def near(quantity, where, target, kappa):
    def formula(s, columns):
        return [abs(subset_mean(quantity(s, columns), columns, where) - target) - kappa]

    return formula


TWO = [([1], [0])]
PAIRS = [([1], [0]), ([2], [0]), ([2], [1])]
REST = [([0], [1, 2]), ([1], [0, 2]), ([2], [0, 1])]
WHOLE = [([0], [0, 1, 2]), ([1], [0, 1, 2]), ([2], [0, 1, 2])]
BOTH_WAYS = [(a, b) for pair in PAIRS for a, b in (pair, pair[::-1])]


def rate_parity(sides, classes, kappa):
    def formula(s, columns):
        q, rows = soft_rates(s, columns), []
        for where in classes:
            for a, b in sides:
                rates = [subset_mean(q, columns, where | {"group": side}) for side in (a, b)]
                rows.append(abs(rates[0] - rates[1]) - kappa)
        return rows

    return formula


def roc(sides, kappa, temperature, *, standard=False):
    def formula(s, columns):
        if standard:
            centre = mean(s)
            unit = mean([(a - centre) ** 2 for a in s]) ** 0.5
            s = [(a - centre) / unit for a in s]
        rows = []
        for label in (1, 0):
            for a, b in sides:
                for tau in THRESHOLDS:
                    above = [sigmoid((v - tau) / temperature) for v in s]
                    rates = [subset_mean(above, columns, {"y": label, "group": side}) for side in (a, b)]
                    rows.append(abs(rates[0] - rates[1]) - kappa)
        return rows

    return formula


def four_fifths(kappa):
    def formula(s, columns):
        q = soft_rates(s, columns)
        rates = [(subset_mean(q, columns, {"group": a}), subset_mean(q, columns, {"group": b})) for a, b in BOTH_WAYS]
        return [0.8 * b - a - kappa for a, b in rates]

    return formula


def precision_parity(sides, kappa):
    def formula(s, columns):
        q, rows = soft_rates(s, columns), []
        for a, b in sides:
            shares = []
            for side in (a, b):
                inside = subset(columns, {"group": side})
                shares.append(sum(q[i] for i in inside if columns["y"][i] == 1) / sum(q[i] for i in inside))
            rows.append(abs(shares[0] - shares[1]) - kappa)
        return rows

    return formula


def group_losses(s, columns, side):
    inside = subset(columns, {"group": side})
    positives, negatives = ([i for i in inside if columns["y"][i] == label] for label in (1, 0))
    return mean([sigmoid(s[j] - s[i]) for i in positives for j in negatives])


def group_auc(least):
    def formula(s, columns):
        return [group_losses(s, columns, [g]) - (1 - least) for g in range(3)]

    return formula


def auc_parity(sides, kappa):
    def formula(s, columns):
        return [abs(group_losses(s, columns, a) - group_losses(s, columns, b)) - kappa for a, b in sides]

    return formula


THREE_GROUPS = [0, 0, 1, 1, 2, 2, 0, 1, 2]  # all have samples of both classes
NAMES = ["a", "b", "c"]
_THREE = table_columns(group=THREE_GROUPS)
_AGES = {**_THREE, "age": torch.tensor([20.0, 30.0, 22.0, 41.0, 19.0, 24.0, 67.0, 33.0, 21.0])}


BOTH = ("uniform", "balanced")


def on_scores(make, brute, columns, unbiased=BOTH, missing="group", seed=0):
    return Case(make, scores(seed=seed), columns, brute, unbiased=unbiased, missing=missing, bad_outputs=scores(N, 2))


def many(make, brute, unbiased=BOTH):
    """The case of a constraint on three groups."""
    return on_scores(make, brute, _THREE, unbiased, seed=3)


_PROTECTED = {
    "y": torch.tensor(GROUP),
    "task": torch.tensor([0, 0, -1, 1, 0, 0, -1, 0, 1]),
    "protected_loss": torch.linspace(0.2, 1.0, N, dtype=torch.float64),
    "old_logits": scores(N, 3, seed=4),
}
_TABLE, _TWO = table_columns(), table_columns(group=TWO_GROUPS)

CASES = {
    "mean of everyone": on_scores(
        lambda: MeanAtMost(LogisticLoss(), 0.5), at_most(logistic_losses, {}, 0.5), _TABLE, ("uniform",), "y"
    ),
    "false positive rate": on_scores(
        lambda: MeanAtMost(SoftRate(0.2, 0.5), 0.1, {"y": 0}),
        at_most(soft_rates, {"y": 0}, 0.1),
        _TABLE,
        missing="y",
    ),
    "loss of the group of one": on_scores(
        lambda: MeanAtMost(LogisticLoss(), 0.2, {"group": 2}),
        at_most(logistic_losses, {"group": 2}, 0.2),
        _TABLE,
        (*BOTH, "groups"),
    ),
    "equal opportunity": on_scores(
        lambda: MeanDifferenceAtMost(SoftRate(0.2, 0.5), 0.02, {"y": 1, "group": 1}, {"y": 1, "group": 0}),
        rate_parity(TWO, [{"y": 1}], 0.02),
        _TWO,
    ),
    "roc": on_scores(lambda: ROCFairness(THRESHOLDS, 0.05, 0.7), roc(TWO, 0.05, 0.7), _TWO),
    "roc, standard scores": on_scores(
        lambda: ROCFairness(THRESHOLDS, 0.05, 0.7, StandardScores()), roc(TWO, 0.05, 0.7, standard=True), _TWO, ()
    ),
    "rate of a subset by any column": on_scores(
        lambda: MeanAtMost(SoftRate(0.2, 0.5), 0.1, {"group": [0, 2], "age": "<25"}),
        at_most(soft_rates, {"group": [0, 2], "age": "<25"}, 0.1),
        _AGES,
        ("uniform",),
        "age",
    ),
    "rate near a target": on_scores(
        lambda: MeanNear(SoftRate(0.2, 0.5), 0.9, 0.02, {"y": 0}),
        near(soft_rates, {"y": 0}, 0.9, 0.02),
        _TABLE,
        missing="y",
    ),
    "roc of pairs": many(lambda: ROCFairness(THRESHOLDS, 0.05, 0.7, groups=NAMES), roc(PAIRS, 0.05, 0.7)),
    "roc against the rest": many(
        lambda: ROCFairness(THRESHOLDS, 0.05, 0.7, against="rest", groups=NAMES),
        roc(REST, 0.05, 0.7),
    ),
    "roc against the whole": many(
        lambda: ROCFairness(THRESHOLDS, 0.02, 0.7, against="whole", groups=NAMES),
        roc(WHOLE, 0.02, 0.7),
        (),
    ),
    "demographic parity": many(
        lambda: DemographicParity(0.02, SoftRate(0.2, 0.5), groups=NAMES), rate_parity(PAIRS, [{}], 0.02), ("uniform",)
    ),
    "equal opportunity of groups": many(
        lambda: EqualOpportunity(0.02, SoftRate(0.2, 0.5), groups=NAMES), rate_parity(PAIRS, [{"y": 1}], 0.02)
    ),
    "equalized odds": many(
        lambda: EqualizedOdds(0.02, SoftRate(0.2, 0.5), groups=NAMES), rate_parity(PAIRS, [{"y": 1}, {"y": 0}], 0.02)
    ),
    "four fifths": many(
        lambda: FourFifthsRule(0.8, 0.01, SoftRate(0.2, 0.5), groups=NAMES), four_fifths(0.01), ("uniform",)
    ),
    "predictive parity": many(
        lambda: PredictiveParity(0.02, SoftRate(0.2, 0.5), groups=NAMES), precision_parity(PAIRS, 0.02), ("uniform",)
    ),
    "auc of every group": many(lambda: GroupAUCAtLeast(0.7, groups=NAMES), group_auc(0.7)),
    "equal aucs": on_scores(lambda: AUCParity(0.02), auc_parity(TWO, 0.02), _TWO, seed=3),
    "non-forgetting": Case(
        lambda: NonForgetting(kappa=0.1, names=["a", "b"]),
        scores(N, 3),
        _PROTECTED,
        forgetting(0.1),
        unbiased=("uniform",),
        missing="task",
    ),
    "distillation": Case(
        lambda: Distillation(temperature=2.0, kappa=0.1, names=["a", "b"]),
        scores(N, 3),
        _PROTECTED,
        distillation(2.0, 0.1),
        unbiased=("uniform",),
        missing="old_logits",
    ),
}
