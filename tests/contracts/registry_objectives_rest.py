"""Other objectives with inner functions, with their formulas written a second time."""

import torch
from torch.nn.functional import normalize

from fcco_lightning import (
    AttentionPooling,
    BellmanResidual,
    LatentVariable,
    MultiInstanceAUC,
    RobustLogistic,
    SampledSoftmax,
    SmoothMaxPooling,
    SquaredHingePair,
    ViewContrastive,
)
from fcco_lightning.models.outputs import ClassVectors, Embeddings, LatentVectors
from tests.contracts.registry_objectives_ranking import binary
from tests.contracts.sampled import BAG, GROUP, STRATUM, Case, N, logistic, mean, scores, sigmoid, table_columns


def robust_logistic(s, columns):
    return mean([logistic(a, y) for a, y in zip(s, columns["y"], strict=True)])


def bellman(s, columns):
    squares = []
    for state in range(3):
        residuals = []
        for (now, after), group, reward, terminal in zip(
            s, columns["group"], columns["reward"], columns["terminal"], strict=True
        ):
            if group == state:
                residuals.append(now - reward - (0 if terminal else 0.8 * after))
        squares.append(mean(residuals) ** 2)
    return mean(squares)


TRANSITIONS = {
    "group": torch.tensor(GROUP),
    "reward": scores(N, seed=3),
    "terminal": torch.tensor([0, 0, 1, 0, 0, 1, 0, 0, 0]),
}


def sampled_softmax(s, columns):
    """A table row holds the features of a sample and its class vector, or twice the vector of one of 3 classes."""
    total = []
    for row, y in zip(s[:N], columns["y"], strict=True):
        features, own = row[:2], row[2:]

        def logit(vector, features=features):
            return features[0] * vector[0] + features[1] * vector[1]

        others = [torch.exp(logit(s[N + k][:2]) - logit(own)) for k in range(3) if k != y]
        total.append(torch.log((1 + sum(others)) / 3))
    return mean(total)


def latent_variable(s, columns):
    """A table row holds (e, a) of a sample, or of one of 4 values of the latent variable."""
    total = []
    for row, y in zip(s[:N], columns["y"], strict=True):
        joint, prior = 0, 0
        for z in s[N:]:
            affinity = torch.exp(row[0] * z[0] + row[1] * z[1])
            positive = 1 / (1 + torch.exp(-row[2] * z[2]))
            joint = joint + affinity * (positive if y == 1 else 1 - positive)
            prior = prior + affinity
        total.append(-torch.log(joint / prior))
    return mean(total)


def unit(vector):
    length = sum(v * v for v in vector) ** 0.5
    return [v / length for v in vector]


def views(*, itself=True):
    def formula(s, columns):
        pairs = [(unit(row[:3]), unit(row[3:])) for row in s]
        total = []
        for i, pair in enumerate(pairs):
            own = sum(x * y for x, y in zip(*pair, strict=True))
            for view in pair:
                terms = [torch.ones(())] if itself else []
                for other in [v for j, both in enumerate(pairs) if j != i for v in both]:
                    cosine = sum(x * y for x, y in zip(view, other, strict=True))
                    terms.append(torch.exp((cosine - own) / 0.3))
                total.append(0.3 * torch.log(mean(terms)))
        return 2 * mean(total)

    return formula


def smooth_maximum(instances):
    return 0.5 * torch.log(mean([torch.exp(s / 0.5) for s in instances]))


def attention(instances):
    return sum(torch.exp(a) * s for s, a in instances) / sum(torch.exp(a) for _, a in instances)


def of_bags(make, outputs, pooled, loss):
    def formula(s, columns):
        sides = {0: [], 1: []}
        for bag in set(BAG):
            inside = [i for i in range(N) if columns["bag"][i] == bag]
            sides[columns["y"][inside[0]]].append(pooled([s[i] for i in inside]))
        return mean([loss(h - other) for h in sides[1] for other in sides[0]])

    return Case(
        make,
        outputs,
        {"bag": torch.tensor(BAG), "y": torch.tensor(STRATUM)},
        formula,
        unbiased=("bags", "some bags"),
        missing="bag",
        bad_outputs=scores(N, 3),
    )


def of_views(positive, brute, unbiased):
    return Case(
        lambda: ViewContrastive(0.3, positive=positive),
        scores(N, 6),
        {},
        brute,
        lambda table: Embeddings(normalize(table[:, :3], dim=1), normalize(table[:, 3:], dim=1)),
        unbiased,
        bad_outputs=scores(N),
    )


CASES = {
    "views": of_views("dataset", views(), ("uniform", "balanced", "some classes", "copies of classes")),
    "views without the pair": of_views("none", views(itself=False), ("uniform", "balanced")),
    "multi-instance auc, smooth maximum": of_bags(
        lambda: MultiInstanceAUC(SmoothMaxPooling(0.5)), scores(), smooth_maximum, lambda d: sigmoid(-d)
    ),
    "multi-instance auc, attention": of_bags(
        lambda: MultiInstanceAUC(AttentionPooling(), SquaredHingePair(1.5)),
        scores(N, 2),
        attention,
        lambda d: torch.relu(1.5 - d) ** 2,
    ),
    "bellman residual": Case(
        lambda: BellmanResidual(0.8, num_states=3),
        scores(N, 2),
        TRANSITIONS,
        bellman,
        missing="reward",
        bad_outputs=scores(N, 3),
    ),
    "robust logistic": binary(RobustLogistic, robust_logistic),
    "sampled softmax": Case(
        lambda: SampledSoftmax(3),
        scores(N + 3, 4),
        {"y": torch.tensor([0, 1, 2, 0, 1, 0, 1, 2, 2])},
        sampled_softmax,
        lambda table: ClassVectors(table[:, :2], table[:, 2:]),
        unbiased=("uniform", "balanced"),
        missing="y",
        bad_outputs={"target": scores(N, 2)},
        others={"classes": 3},
    ),
    "latent variable": Case(
        LatentVariable,
        scores(N + 4, 3),
        table_columns(),
        latent_variable,
        lambda table: LatentVectors(table[:, :2], table[:, 2:]),
        unbiased=("uniform", "balanced"),
        missing="y",
        bad_outputs={"target": scores(N, 2)},
        others={"latent": 4},
    ),
}
