"""Objectives that rank positives above negatives, with their formulas written a second time."""

import torch

from fcco_lightning import (
    AUC,
    AUCMargin,
    AveragePrecision,
    CVaRPartialAUC,
    KLPartialAUC,
    MeanAveragePrecision,
    PNormPush,
)
from fcco_lightning.objectives import LogisticPair, RecallAtK, SquaredHingePair
from tests.contracts.sampled import Case, N, mean, scores, table_columns

MISSING = -1


def squared_hinge(d, margin=1.0):
    return torch.relu(margin - d) ** 2


def logistic_pair(d):
    return torch.log(1 + torch.exp(-d))


def sides(s, columns):
    """The scores of the positives and of the negatives."""
    marked = list(zip(s, columns["y"], strict=True))
    return [a for a, y in marked if y == 1], [a for a, y in marked if y == 0]


def average_precision(s, labels, loss=squared_hinge, prevalence=None):
    positives, negatives = sides(s, {"y": labels})
    share = len(positives) / (len(positives) + len(negatives)) if prevalence is None else prevalence
    total = []
    for a in positives:
        among_positives = share * mean([loss(a - b) for b in positives])
        total.append(among_positives / (among_positives + (1 - share) * mean([loss(a - b) for b in negatives])))
    return -mean(total)


def as_recommended(make):
    """A maker of the objective with the defaults of FCCOModule."""

    def made():
        objective = make()
        objective.recommended = True
        return objective

    return made


def beside_cross_entropy(formula, weight=0.1):
    """The formula of the cross-entropy plus ``weight`` times that of an objective."""
    return lambda s, columns, **given: weight * formula(s, columns, **given) + logistic(s, columns["y"])


def logistic(s, labels):
    """The mean logistic loss: minus the logarithm of the predicted probability of a sample's label."""
    return mean([-(one if label == 1 else -one).sigmoid().log() for one, label in zip(s, labels, strict=True)])


def mean_average_precision(s, columns):
    every = []
    for t in range(3):
        given = [i for i in range(N) if columns["y"][i][t] != MISSING]
        every.append(average_precision([s[i][t] for i in given], [columns["y"][i][t] for i in given]))
    return mean(every)


def of_sigmoids(formula):
    """The formula of an objective whose scores are sigmoids of the outputs."""
    return lambda s, columns, **given: formula([one.sigmoid() for one in s], columns, **given)


def pairs(s, columns):
    positives, negatives = sides(s, columns)
    return mean([squared_hinge(a - b) for a in positives for b in negatives])


def push(p, *, over_negatives):
    def formula(s, columns):
        positives, negatives = sides(s, columns)
        if over_negatives:
            return mean([mean([torch.exp(b - a) for a in positives]) ** p for b in negatives])
        return mean([mean([torch.exp(b - a) for b in negatives]) ** p for a in positives])

    return formula


def recall_at_k(k):
    def formula(s, columns):
        ranks = [sum(logistic_pair(a - b) for b in s) for a in sides(s, columns)[0]]
        return mean([torch.relu(rank / k - 1) for rank in ranks])

    return formula


def margin(s, columns, a, b):
    positives, negatives = sides(s, columns)
    spread = mean([(x - a) ** 2 for x in positives]) + mean([(x - b) ** 2 for x in negatives])
    return spread + torch.relu(0.8 + mean(negatives) - mean(positives)) ** 2


def excess(a, negatives, threshold, max_fpr):
    """The term of one positive: its threshold plus the scaled mean excess of its losses over the threshold."""
    return threshold + mean([torch.relu(squared_hinge(a - b) - threshold) for b in negatives]) / max_fpr


def few_false_positives(s, columns):
    positives, negatives = sides(s, columns)
    return mean([excess(a, negatives, 0.7, 0.4) for a in positives])


def many_true_positives(s, columns, threshold):
    positives, negatives = sides(s, columns)
    losses = [mean([squared_hinge(a - b) for b in negatives]) for a in positives]
    return threshold + mean([torch.relu(v - threshold) / (1 - 0.4) for v in losses])


def both(s, columns, threshold):
    positives, negatives = sides(s, columns)
    return threshold + mean([torch.relu(excess(a, negatives, 0.7, 0.5) - threshold) / (1 - 0.3) for a in positives])


def soft(s, columns, lam=0.6):
    positives, negatives = sides(s, columns)
    return mean([lam * torch.log(mean([torch.exp(squared_hinge(a - b) / lam) for b in negatives])) for a in positives])


def soft_twice(tau):
    def formula(s, columns, threshold):
        positives, negatives = sides(s, columns)
        each = [1.2 * torch.log(mean([torch.exp(squared_hinge(a - b) / 1.2) for b in negatives])) for a in positives]
        return threshold + mean([tau * (torch.exp((v - threshold) / tau) - 1) for v in each])

    return formula


def binary(make, brute, *ways):
    unbiased = ("uniform", "balanced", *ways)
    return Case(make, scores(), table_columns(), brute, unbiased=unbiased, missing="y", bad_outputs=scores(N, 2))


def labels(*, missing):
    """Three labels of nine samples, some of which are unknown."""
    y = (scores(N, 3, seed=3) > 0.2).long()
    if missing:
        y[[1, 5, 8], [0, 2, 2]] = MISSING
    return y


def entropy_of_labels(s, columns):
    every = []
    for t in range(3):
        given = [i for i in range(N) if columns["y"][i][t] != MISSING]
        every.append(logistic([s[i][t] for i in given], [columns["y"][i][t] for i in given]))
    return mean(every)


def several_as_recommended(s, columns):
    sigmoids = [[score.sigmoid() for score in of_sample] for of_sample in s]
    return 0.1 * mean_average_precision(sigmoids, columns) + entropy_of_labels(s, columns)


def several(make, formula=mean_average_precision, *, missing):
    columns, unbiased = {"y": labels(missing=missing)}, ("uniform", "balanced", "some classes", "copies of classes")
    return Case(make, scores(N, 3), columns, formula, unbiased=unbiased, missing="y", bad_outputs=scores(N, 2))


CASES = {
    "average precision": binary(
        lambda: AveragePrecision(sigmoid=False),
        lambda s, c: average_precision(s, c["y"]),
        "classes redrawn",
        "some classes",
        "copies",
        "events",
    ),
    "average precision of balanced data": binary(
        lambda: AveragePrecision(LogisticPair(), prevalence=0.5, sigmoid=False),
        lambda s, c: average_precision(s, c["y"], logistic_pair, 0.5),
        "some classes",
    ),
    "average precision of sigmoids": binary(AveragePrecision, of_sigmoids(lambda s, c: average_precision(s, c["y"]))),
    "average precision beside cross-entropy": binary(
        lambda: AveragePrecision(cross_entropy=10),
        lambda s, c: average_precision([one.sigmoid() for one in s], c["y"]) + 10 * logistic(s, c["y"]),
        "some classes",
        "copies",
    ),
    "average precision as recommended": binary(
        as_recommended(AveragePrecision),
        beside_cross_entropy(of_sigmoids(lambda s, c: average_precision(s, c["y"]))),
        "some classes",
        "copies",
    ),
    "mean average precision": several(lambda: MeanAveragePrecision(sigmoid=False), missing=False),
    "mean average precision, labels missing": several(
        lambda: MeanAveragePrecision(missing=MISSING, sigmoid=False), missing=True
    ),
    "mean average precision as recommended": several(
        as_recommended(MeanAveragePrecision), several_as_recommended, missing=False
    ),
    "mean average precision as recommended, labels missing": several(
        as_recommended(lambda: MeanAveragePrecision(missing=MISSING)), several_as_recommended, missing=True
    ),
    "p-norm push": binary(lambda: PNormPush(3.0), push(3.0, over_negatives=True)),
    "p-norm push over positives": binary(
        lambda: PNormPush(2.5, push_over="positives"), push(2.5, over_negatives=False)
    ),
    "recall at k": binary(
        lambda: RecallAtK(4, LogisticPair(), sigmoid=False), recall_at_k(4), "copies redrawn", "copies of classes"
    ),
    "recall at k as recommended": binary(
        as_recommended(lambda: RecallAtK(4, LogisticPair())),
        lambda s, c: 0.03 * 4 / len(s) * of_sigmoids(recall_at_k(4))(s, c) + logistic(s, c["y"]),
        "copies redrawn",
        "copies of classes",
    ),
    "auc margin": binary(lambda: AUCMargin(0.8), margin),
    "auc margin of sigmoids": binary(lambda: AUCMargin(0.8, sigmoid=True), of_sigmoids(margin)),
    "auc of sigmoids": binary(lambda: AUC(SquaredHingePair(), sigmoid=True), of_sigmoids(pairs)),
    "auc as recommended": binary(
        as_recommended(lambda: AUC(SquaredHingePair())), beside_cross_entropy(pairs, 0.03), "copies of classes"
    ),
    "partial auc, low fpr": binary(
        lambda: CVaRPartialAUC(max_fpr=0.4, thresholds=0.7, sigmoid=False), few_false_positives
    ),
    "partial auc, high tpr": binary(
        lambda: CVaRPartialAUC(min_tpr=0.4, threshold=1.1, sigmoid=False), many_true_positives
    ),
    "partial auc, two-way": binary(
        lambda: CVaRPartialAUC(0.5, 0.3, SquaredHingePair(), threshold=1.1, thresholds=0.7, sigmoid=False), both
    ),
    "partial auc of sigmoids": binary(
        lambda: CVaRPartialAUC(max_fpr=0.4, thresholds=0.7), of_sigmoids(few_false_positives)
    ),
    "partial auc, low fpr, as recommended": binary(
        as_recommended(lambda: CVaRPartialAUC(max_fpr=0.4, thresholds=0.7)),
        beside_cross_entropy(of_sigmoids(few_false_positives)),
    ),
    "partial auc, high tpr, as recommended": binary(
        as_recommended(lambda: CVaRPartialAUC(min_tpr=0.4, threshold=1.1)),
        beside_cross_entropy(of_sigmoids(many_true_positives)),
    ),
    "partial auc, two-way, as recommended": binary(
        as_recommended(lambda: CVaRPartialAUC(0.5, 0.3, SquaredHingePair(), threshold=1.1, thresholds=0.7)),
        beside_cross_entropy(of_sigmoids(both)),
    ),
    "soft partial auc": binary(lambda: KLPartialAUC(0.6, sigmoid=False), soft),
    "soft partial auc as recommended": binary(
        as_recommended(lambda: KLPartialAUC(0.6)), beside_cross_entropy(of_sigmoids(soft))
    ),
    "soft partial auc, two-way, as recommended": binary(
        as_recommended(lambda: KLPartialAUC(1.2, tau=2.0, threshold=1.5)),
        beside_cross_entropy(of_sigmoids(soft_twice(2.0))),
    ),
    "soft partial auc of sigmoids": binary(lambda: KLPartialAUC(0.6), of_sigmoids(soft)),
    "soft partial auc, two-way": binary(
        lambda: KLPartialAUC(1.2, tau=2.0, threshold=1.5, sigmoid=False), soft_twice(2.0)
    ),
}
