"""Two estimates in NumPy, written from their papers alone: the AUC of bags of instances, and PDSCA.

Gradients are by hand; of a Hessian only its product with a vector is taken, by a complex step,
``H v = Im grad(w + i h v) / h``, which loses no digits.
"""

import numpy as np

HIDDEN, TAU, ALPHA, ROW_GAMMA = 3, 0.7, 0.7, 0.3
SIZES, POSITIVE = np.array([4, 1, 2, 7, 1, 5, 3]), np.array([0, 1, 0, 1, 0, 0, 1], dtype=bool)
BAG = np.repeat(np.arange(7), SIZES)
BAG_LABELS = POSITIVE[BAG].astype(np.int64)
SAMPLE_LABELS = (np.arange(len(BAG)) % 4 == 1).astype(np.int64)  # 6 of 23, for PDSCA
X = np.random.default_rng(0).normal(size=(len(BAG), 2)) + 0.4 * BAG_LABELS[:, None]
X[BAG == 4] = X[BAG == 1]  # bags of one instance, of either class, whose scores tie
SLOPES = {"logistic": lambda d: -1 / (1 + np.exp(d)), "hinge": lambda d: -2 * np.maximum(0.5 - d, 0)}


def network(w, x, k=1):
    """``C tanh(A x + b) + c``, shape (B, k), and the map from r (B, k) to the gradient of ``sum r * outputs`` by w."""
    at = np.cumsum([2 * HIDDEN, HIDDEN, k * HIDDEN])
    first, bias, second, constant = np.split(w, at)
    second = second.reshape(k, HIDDEN)
    active = np.tanh(x @ first.reshape(HIDDEN, 2).T + bias)

    def pull(r):
        inside = r @ second * (1 - active**2)
        return np.concatenate([(inside.T @ x).ravel(), inside.sum(0), (r.T @ active).ravel(), r.sum(0)])

    return active @ second.T + constant, pull


class Bags:
    """Zhu et al. (2023) with the mean over pairs of bags: rows u of means over instances, and G."""

    def __init__(self, w, pooling, loss, chance, *, gamma, fresh):
        self.w, self.smooth, self.slope, self.chance = w, pooling == "smooth", SLOPES[loss], chance
        self.gamma, self.fresh, self.k = gamma, fresh, 1 if pooling == "smooth" else 2
        self.u = np.full((7, self.k), np.nan)

    def gradient(self, index):
        """G, and what each bag's means weigh in it; the rows move.  None if the batch lacks a class."""
        out, pull = network(self.w, X[index], self.k)
        bags, place = np.unique(BAG[index], return_inverse=True)
        one = POSITIVE[bags]
        if one.all() or not one.any():
            return None
        last = np.exp(out[:, -1:] / (TAU if self.smooth else 1))
        t = last if self.smooth else np.hstack([last * out[:, :1], last])
        means = np.stack([t[place == i].mean(0) for i in range(len(bags))])
        old = np.where(np.isnan(self.u[bags]), means, self.u[bags])
        self.u[bags] = (1 - self.gamma) * old + self.gamma * means
        at = self.u[bags] if self.fresh else old
        h = TAU * np.log(at[:, 0]) if self.smooth else at[:, 0] / at[:, 1]
        dh = TAU / at if self.smooth else np.stack([1 / at[:, 1], -at[:, 0] / at[:, 1] ** 2], axis=1)
        slopes, y = self.slope(h[one][:, None] - h[~one]), np.zeros(len(bags))
        y[one], y[~one] = slopes.mean(1) / 3, -slopes.mean(0) / 4  # of 3 positive and 4 negative bags
        y = (y / self.chance[bags])[:, None] * dh
        each = y[place] / np.bincount(place)[place][:, None]
        if self.smooth:
            return pull(each * t / TAU), y
        return pull(np.stack([each[:, 0] * last[:, 0], (each * t).sum(1)], axis=1)), y


class Composition:
    """Yuan et al. (2022) with F the mean over pairs of (1.2 - d)^2, or the margin loss with a, b and a row of means."""

    def __init__(self, w, weight, chance, *, margin, gamma, hessian):
        self.w, self.weight, self.chance, self.margin = w, weight, chance, margin
        self.gamma, self.hessian, self.u, self.row, self.size = gamma, hessian, None, None, len(w) - 2 * margin

    def inner(self, w, index):
        """Grad L, L the mean cross-entropy, of which a and b are no part."""
        out, pull = network(w[: self.size], X[index])
        residual = 1 / (1 + np.exp(-out[:, 0])) - SAMPLE_LABELS[index]
        return np.pad(pull((self.weight[index] * residual)[:, None] / len(index)), (0, 2 * self.margin))

    def outer(self, u, index):
        """Grad F at u; the row moves."""
        out, pull = network(u[: self.size], X[index])
        one, r, own = SAMPLE_LABELS[index] == 1, np.zeros(len(index)), []
        if one.all() or not one.any():
            return np.zeros_like(u)
        up, down = out[one, 0], out[~one, 0]
        if self.margin:
            (a, b), means = u[self.size :], np.array([down.mean(), up.mean()])
            old = means if self.row is None else self.row
            self.row = (1 - ROW_GAMMA) * old + ROW_GAMMA * means
            slope = 2 * max(0.5 + old[0] - old[1], 0)
            r[one], r[~one] = (2 * (up - a) - slope) / len(up), (2 * (down - b) + slope) / len(down)
            own = [2 * (a - up.mean()), 2 * (b - down.mean())]
        else:
            slopes = -2 * (1.2 - (up[:, None] - down))
            r[one], r[~one] = slopes.mean(1) / len(up), -slopes.mean(0) / len(down)
        return np.concatenate([pull(r[:, None]), own]) / self.chance

    def through(self, y, index):
        """``(I - alpha hess L) y``."""
        along = self.inner(self.w + 1e-30j * y, index).imag / 1e-30
        return y - ALPHA * along if self.hessian else y

    def gradient(self, index):
        """G; u moves."""
        new = self.w - ALPHA * self.inner(self.w, index)
        self.u = new if self.u is None else (1 - self.gamma) * self.u + self.gamma * new
        return self.through(self.outer(self.u, index), index)
