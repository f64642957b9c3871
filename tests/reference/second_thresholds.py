"""Objectives with trained scalars besides the weights, in NumPy: partial AUC with thresholds, the margin loss.

Scores are ``s = x w``.  A batch that lacks a class contributes nothing, and the other batches are weighted by the
inverse probability that both classes are present.  Steps are those of SOX with plain gradient descent.
"""

import numpy as np

from .networks import Array, Indices


class PartialAUC:
    """``min c + (1/n_+) sum_i [L_i - c]_+ / (1 - tpr)``, ``L_i = min_s s + mean_j [l_ij - s]_+ / fpr``.

    ``c`` moves with the weights, ``s`` (n_+,) by its own steps of projected gradient descent, at every visit once.
    With ``fpr = 1`` there is no s and L_i is the mean over j; with ``tpr = 0`` there is no c and F is the mean of L_i.

    Rows u (n_+,) hold the mean over j, NaN before the first visit.  ``chances`` are the probability of a batch with
    both classes, and of one with a certain positive and a negative.
    """

    def __init__(
        self, x: Array, y: Indices, w: Array, part: tuple[float, float], chances: tuple[float, float], *, own_lr: float
    ) -> None:
        self.x, self.y, self.w, self.own_lr = x, y, w.copy(), own_lr
        self.fpr, self.tpr = part
        self.row = np.cumsum(y) - 1  # of a positive
        self.c, self.s, self.u = 0.0, np.zeros(y.sum()), np.full(y.sum(), np.nan)
        (self.both, self.chance), self.n = chances, len(self.s)

    def step(self, batch: Indices, gamma: float, lr: float) -> None:
        positive, negative = batch[self.y[batch] == 1], batch[self.y[batch] == 0]
        if not len(positive) or not len(negative):
            self.c -= lr * (self.tpr > 0)  # what F says of c without rows
            return
        at = self.row[positive]
        own = self.s[at]
        over = np.maximum(1 - (self.x[positive] @ self.w)[:, None] + self.x[negative] @ self.w, 0)
        above = over**2 > own[:, None] if self.fpr < 1 else np.ones_like(over, dtype=bool)
        value = np.where(above, over**2 - own[:, None], 0).mean(1) / self.fpr
        pull = np.where(above, 2 * over, 0) / self.fpr / len(negative)  # derivative by s_j; less that by s_i
        outer, weight = np.ones(len(at)), np.full(len(at), 1 / len(at) / self.both)
        if self.tpr:
            before = np.where(np.isnan(self.u[at]), value, self.u[at])
            outer, weight = (before + own > self.c) / (1 - self.tpr), np.full(len(at), 1 / (self.n * self.chance))
            self.u[at] = (1 - gamma) * before + gamma * value
        each = (weight * outer)[:, None] * pull
        gradient = each.sum(0) @ self.x[negative] - each.sum(1) @ self.x[positive]
        if self.fpr < 1:
            pace = self.own_lr * weight * self.n * self.chance  # own_lr on the mean over visits
            self.s[at] = np.maximum(own - pace * outer * (1 - above.mean(1) / self.fpr), 0)
        self.w = self.w - lr * gradient
        self.c -= lr * (1 - weight @ outer) * (self.tpr > 0)


class Margin:
    """``E[(s - a)^2 | 1] + E[(s - b)^2 | 0] + [m + u_0 - u_1]_+^2``, u the mean scores of both classes, one row."""

    def __init__(self, x: Array, y: Indices, w: Array, margin: float) -> None:
        self.x, self.y, self.w, self.margin, self.centre, self.u = x, y, w.copy(), margin, np.zeros(2), None

    def step(self, batch: Indices, gamma: float, lr: float) -> None:
        x = [self.x[batch[self.y[batch] == label]] for label in (0, 1)]
        away = [one @ self.w - a for one, a in zip(x, self.centre, strict=True)]
        mean = np.array([(one @ self.w).mean() for one in x])
        before = mean if self.u is None else self.u
        self.u = (1 - gamma) * before + gamma * mean
        pull = 2 * max(self.margin + before[0] - before[1], 0)
        gradient = pull * (x[0].mean(0) - x[1].mean(0))
        gradient = gradient + sum(2 * d @ one / len(one) for d, one in zip(away, x, strict=True))
        self.centre = self.centre + lr * 2 * np.array([d.mean() for d in away])
        self.w = self.w - lr * gradient
