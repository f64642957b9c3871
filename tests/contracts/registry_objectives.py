"""The registry of public objectives, with their formulas written a second time."""

import torch
from torch.nn.functional import normalize

from fcco_lightning import (
    AUC,
    CappedSimplex,
    ChiSquareGroupDRO,
    CrossEntropy,
    CVaRGroupDRO,
    GlobalContrastive,
    InfoNCE,
    KLGroupDRO,
    MultiLabelLoss,
    MultiTaskGroupDRO,
    SampleDRO,
    SquaredError,
    WorstGroupDRO,
)
from fcco_lightning.models.outputs import Embeddings
from fcco_lightning.objectives import (
    BinaryObjective,
    GroupMaxForm,
    GroupObjective,
    ListObjective,
    LogisticPair,
    Objective,
    RankingObjective,
)
from fcco_lightning.objectives.contrastive.contrastive import PairObjective
from tests.contracts.registry_objectives_lists import CASES as LISTS
from tests.contracts.registry_objectives_ranking import CASES as RANKING
from tests.contracts.registry_objectives_rest import CASES as REST
from tests.contracts.sampled import (
    GROUP,
    Case,
    N,
    logistic,
    mean,
    scores,
    sigmoid,
    table_columns,
)

BASES = (Objective, BinaryObjective, GroupObjective, ListObjective, PairObjective, RankingObjective)


def losses(s, columns):
    return [logistic(a, y) for a, y in zip(s, columns["y"], strict=True)]


def risks(s, columns):
    values = losses(s, columns)
    return [mean([v for v, g in zip(values, columns["group"], strict=True) if g == j]) for j in range(3)]


def cross_entropy(s, columns):
    return mean(losses(s, columns))


def softmax_cross_entropy(s, columns):
    return mean([torch.log(sum(torch.exp(v) for v in row)) - row[y] for row, y in zip(s, columns["y"], strict=True)])


def squared_error(s, columns):
    return mean([(score - y) ** 2 for score, y in zip(s, columns["y"], strict=True)])


def auc(loss):
    def formula(s, columns):
        y = columns["y"]
        return mean([loss(s[i] - s[j]) for i in range(len(y)) for j in range(len(y)) if y[i] == 1 and y[j] == 0])

    return formula


def cvar(rho):
    def formula(s, columns, threshold):
        return threshold + mean([rho * torch.relu(r - threshold) for r in risks(s, columns)])

    return formula


def chi_square(lam0, half):
    def formula(s, columns, threshold):
        def conjugate(t):  # of phi on t >= 0: phi(t) = (t - 1)^2 / 2, or (t - 1)^2
            bottom = -1.0 if half else -2.0
            return (t + t**2 / 2 if half else t + t**2 / 4) if t > bottom else t.new_tensor(-0.5 if half else -1.0)

        return threshold + mean([lam0 * conjugate((r - threshold) / lam0) for r in risks(s, columns)])

    return formula


def kl(lam0):
    def formula(s, columns, threshold):
        return threshold + mean([lam0 * (torch.exp((r - threshold) / lam0) - 1) for r in risks(s, columns)])

    return formula


def tasks(soft):
    def formula(s, columns):
        total = []
        for t in range(2):
            cells = []
            for g in range(3):
                inside = [i for i in range(len(s)) if columns["group"][i] == g]
                cells.append(mean([logistic(s[i][t], columns["y"][i][t]) for i in inside]))
            total.append(torch.log(sum(torch.exp(c) for c in cells)) if soft else max(cells))
        return mean(total)

    return formula


def pairs(table):
    """Unit embeddings: the first three outputs are of the image, the others of the text."""
    return Embeddings(normalize(table[:, :3], dim=1), normalize(table[:, 3:], dim=1))


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5)


def contrastive(tau=0.2, *, itself=True, rho=0.0, learnt=None, mini_batch=False):
    def formula(s, columns, **parameters):
        t = tau if learnt is None else learnt + (tau - learnt) * torch.exp(parameters["temperature.theta"])
        image, text, n = [row[:3] for row in s], [row[3:] for row in s], len(s)
        total = []
        for i in range(n):
            own = cosine(image[i], text[i])
            others = [j for j in range(n) if itself or j != i]
            by_image = mean([torch.exp((cosine(image[i], text[j]) - own) / t) for j in others])
            by_text = mean([torch.exp((cosine(image[j], text[i]) - own) / t) for j in others])
            if mini_batch:  # the mean cross-entropies instead
                total.append(torch.log(n * by_image) + torch.log(n * by_text))
            else:
                total.append(t * (torch.log(by_image) + rho) + t * (torch.log(by_text) + rho))
        return mean(total) * ((t if learnt is None else 0.5) if mini_batch else 1)

    return formula


def of_labels(make, brute, **changes):
    return Case(make, scores(), table_columns(), brute, unbiased=("uniform", "balanced"), missing="y", **changes)


def of_groups(make, brute, **changes):
    return Case(
        make, scores(), table_columns(), brute, missing="group", bad_outputs=scores(N, 1).unsqueeze(2), **changes
    )


def of_pairs(make, brute, unbiased):
    bad = scores(N)
    return Case(make, scores(N, 6), {}, brute, pairs, unbiased, bad_outputs=bad)


_LABELS = {"y": (scores(N, 2, seed=5) > 0).long(), "group": torch.tensor(GROUP)}
_TASKS = {"outputs": scores(N, 2), "columns": _LABELS, "missing": "group", "bad_outputs": scores(N, 3)}

CASES = {
    "cross entropy": of_labels(CrossEntropy, cross_entropy),
    "squared error": of_labels(SquaredError, squared_error),
    "cross entropy of classes": Case(
        CrossEntropy,
        scores(N, 3),
        {"y": torch.tensor(GROUP)},
        softmax_cross_entropy,
        unbiased=("uniform", "balanced"),
        missing="y",
    ),
    "auc": of_labels(AUC, auc(lambda d: sigmoid(-d)), bad_outputs=scores(N, 2)),
    "auc with logistic pairs": of_labels(
        lambda: AUC(LogisticPair()), auc(lambda d: torch.log1p(torch.exp(-d))), bad_outputs=scores(N, 2)
    ),
    "cvar": of_groups(lambda: CVaRGroupDRO(0.5, num_groups=3, threshold=0.6), cvar(2)),
    "worst group": of_groups(lambda: WorstGroupDRO(num_groups=3, threshold=0.6), cvar(3)),
    "chi square": of_groups(lambda: ChiSquareGroupDRO(0.3, num_groups=3, threshold=0.6), chi_square(0.3, half=True)),
    "chi square, whole": of_groups(
        lambda: ChiSquareGroupDRO(0.3, half=False, num_groups=3, threshold=0.6), chi_square(0.3, half=False)
    ),
    "kl": of_groups(lambda: KLGroupDRO(0.7, num_groups=3, threshold=0.6), kl(0.7)),
    "max form": of_groups(lambda: GroupMaxForm(num_groups=3), lambda s, c: max(risks(s, c)), coupled=True),
    "samples": of_labels(
        lambda: SampleDRO(CappedSimplex(1 / 3)), lambda s, c: mean(sorted(losses(s, c))[-3:]), coupled=True
    ),
    "tasks": Case(
        lambda: MultiTaskGroupDRO(2, MultiLabelLoss(), num_groups=3),
        brute=tasks(soft=False),
        unbiased=("uniform", "all groups"),
        **_TASKS,
    ),
    "tasks, soft": Case(
        lambda: MultiTaskGroupDRO(2, MultiLabelLoss(), "logsumexp", num_groups=3),
        brute=tasks(soft=True),
        unbiased=("uniform", "all groups"),
        **_TASKS,
    ),
    "contrastive": of_pairs(
        lambda: GlobalContrastive(0.2),
        contrastive(),
        ("uniform", "balanced", "some classes", "copies"),
    ),
    "contrastive without the pair": of_pairs(
        lambda: GlobalContrastive(0.2, positive="none"),
        contrastive(itself=False),
        ("uniform", "balanced", "some classes", "copies of classes"),
    ),
    "contrastive of mini-batches": of_pairs(lambda: GlobalContrastive(0.2, positive="batch"), contrastive(), ()),
    "contrastive, learnt": of_pairs(
        lambda: GlobalContrastive(0.2, learn="global", rho=0.8, tau_min=0.01),
        contrastive(rho=0.8, learnt=0.01),
        ("uniform", "balanced"),
    ),
    "contrastive, per sample": of_pairs(
        lambda: GlobalContrastive(0.2, learn="per_sample", rho=0.8), contrastive(rho=0.8), ("uniform", "balanced")
    ),
    "info nce": of_pairs(lambda: InfoNCE(0.2), contrastive(mini_batch=True), ()),
    "info nce, learnt": of_pairs(
        lambda: InfoNCE(0.2, learn=True, tau_min=0.01), contrastive(learnt=0.01, mini_batch=True), ()
    ),
    **LISTS,
    **RANKING,
    **REST,
}
