"""A split with groups, and figures of it computed with numpy and scikit-learn."""

import math

import numpy as np
import torch
from sklearn.metrics import accuracy_score, log_loss


def split(groups, classes=1, size=400, seed=0):
    """Outputs and batch in float32; one score a sample for ``classes=1``."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, max(2, classes), (size,), generator=generator)
    group = torch.randint(0, groups, (size,), generator=generator)
    harder = 1 + 3 * group / groups  # sklearn cuts probabilities below 1e-16, so no more than that
    noise = torch.randn((size, classes) if classes > 1 else (size,), generator=generator)
    noise *= harder.unsqueeze(1) if classes > 1 else harder
    signal = torch.nn.functional.one_hot(y, classes) if classes > 1 else 2 * y - 1
    return signal * 2 + noise, {"y": y, "group": group}


def probabilities(outputs):
    scores = outputs.double().numpy()
    if scores.ndim == 1:
        p = 1 / (1 + np.exp(-scores))
        return np.stack([1 - p, p], 1)
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_group(outputs, batch):
    """``{group: (size, accuracy, loss)}`` by sklearn."""
    p, y, group = probabilities(outputs), batch["y"].numpy(), batch["group"].numpy()
    classes = range(p.shape[1])
    return {
        g: (
            int((own := group == g).sum()),
            accuracy_score(y[own], p[own].argmax(1)),
            log_loss(y[own], p[own], labels=classes),
        )
        for g in np.unique(group).tolist()
    }


def group_figures(outputs, batch, alpha, pooled=False):
    found = list(by_group(outputs, batch).values())
    sizes, accuracies, losses = map(np.array, zip(*found, strict=True))
    worst = np.argsort(accuracies, kind="stable")[: math.ceil(round(alpha * len(found), 9))]
    thresholds = [s + np.maximum(losses - s, 0).sum() / (alpha * len(losses)) for s in losses]
    return {
        "accuracy": np.average(accuracies, weights=sizes),
        "worst_group_accuracy": accuracies.min(),
        "tail_accuracy": np.average(accuracies[worst], weights=sizes[worst] if pooled else None),
        "group_balanced_accuracy": accuracies.mean(),
        "loss": np.average(losses, weights=sizes),
        "worst_group_loss": losses.max(),
        "cvar_loss": min(thresholds),
    }
