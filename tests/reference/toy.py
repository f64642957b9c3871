"""Terms of the toy problem: direct objectives and inner functions with rows, with gradients by hand (NumPy, float64).

``F(w) = sum_c g_c(w) + sum_terms share * [ (1/rows) sum_i f(g_i(w)) ]`` with an extra ``s + ...`` and ``f(R_i - s)`` in
a term that has a threshold s = w[threshold].  A batch is a sequence of sample indices.
"""

from dataclasses import dataclass

import numpy as np

from .networks import Array, Data, Indices, Linear, Point, Tanh, TwoTowers
from .outer import Outer


def sigmoid(v: Array) -> Array:
    return 1 / (1 + np.exp(-v))


@dataclass(frozen=True)
class Inner:
    """What one batch says of one term: row numbers (r,), inner values (r, k) and Jacobians (r, k, d).

    Rows come sorted and once each; a sample that stands in the batch twice has given the mean of its values.
    """

    rows: Indices
    values: Array
    jacobians: Array


def merge(rows: Indices, values: Array, jacobians: Array) -> Inner:
    """Duplicates of a row count once with the mean of what they say."""
    present, position = np.unique(rows, return_inverse=True)
    if len(present) == len(rows):
        order = np.argsort(rows)
        return Inner(rows[order], values[order], jacobians[order])
    average = np.zeros((len(present), len(rows)))
    average[position, np.arange(len(rows))] = 1.0
    average /= average.sum(axis=1, keepdims=True)
    return Inner(present, np.einsum("pr,rk->pk", average, values), np.einsum("pr,rkd->pkd", average, jacobians))


# Direct objectives: value(point, batch) and gradient(point, batch); the batch of all samples gives the exact ones.


class MeanLogistic:
    """``g_0 = mean log(1 + exp(-(2 y_i - 1) s_i))``: empirical risk minimisation."""

    def __init__(self, data: Data) -> None:
        self.signs = 2.0 * data.labels - 1

    def value(self, point: Point, batch: Indices) -> float:
        return float(np.mean(np.logaddexp(0.0, -self.signs[batch] * point.scores[batch])))

    def gradient(self, point: Point, batch: Indices) -> Array:
        slopes = -self.signs[batch] * sigmoid(-self.signs[batch] * point.scores[batch])
        return slopes @ point.jacobian[batch] / len(batch)


class PairLoss:
    """``g_0`` = mean over positives i and negatives j of ``sigmoid(-(s_i - s_j))``; 0 if the batch lacks a class."""

    def __init__(self, data: Data) -> None:
        self.labels = data.labels

    def _parts(self, point: Point, batch: Indices) -> tuple[Indices, Indices, Array]:
        positives, negatives = batch[self.labels[batch] == 1], batch[self.labels[batch] == 0]
        return positives, negatives, sigmoid(point.scores[negatives][None, :] - point.scores[positives][:, None])

    def value(self, point: Point, batch: Indices) -> float:
        losses = self._parts(point, batch)[2]
        return float(losses.mean()) if losses.size else 0.0

    def gradient(self, point: Point, batch: Indices) -> Array:
        positives, negatives, losses = self._parts(point, batch)
        if not losses.size:
            return np.zeros_like(point.w)
        slopes = losses * (1 - losses) / losses.size  # d sigmoid(s_j - s_i) / d s_j
        return slopes.sum(axis=0) @ point.jacobian[negatives] - slopes.sum(axis=1) @ point.jacobian[positives]


class Term:
    """A compositional term: ``n_rows`` rows of width k, an outer function, ``threshold`` (index in w) or None."""

    n_rows: int
    width: int
    outer: Outer
    threshold: int | None = None
    floor: float | None = None  # a lower bound of every inner value, known beforehand

    def measure(self, point: Point, batch: Indices) -> Inner:
        raise NotImplementedError

    def argument(self, w: Array, u: Array) -> Array:
        """The outer function's argument: the row itself, less the threshold at its present value."""
        return u if self.threshold is None else u - w[self.threshold]

    def slopes(self, w: Array, u: Array) -> Array:
        """``y = grad f_lam(u - s)`` for rows ``u`` (r, k)."""
        return self.outer.gradient(self.argument(w, u))

    def project(self, u: Array) -> Array:
        return u if self.floor is None else np.maximum(u, self.floor)


class GroupRisks(Term):
    """Row i: ``R_i`` = mean logistic loss of group i, in ``s + (1/n) sum_i (1/alpha) [R_i - s]_+``.

    The outer function is given (``Hinge(1/alpha, 0, lam)``); ``threshold`` is the index of s in w.
    """

    width = 1

    def __init__(self, data: Data, outer: Outer, threshold: int | None) -> None:
        self.outer, self.threshold = outer, threshold
        self.signs, self.n_rows = 2.0 * data.labels - 1, int(data.groups.max()) + 1
        self.member = np.eye(self.n_rows)[data.groups]  # (n, rows)

    def measure(self, point: Point, batch: Indices) -> Inner:
        margin = self.signs[batch] * point.scores[batch]
        slopes = -self.signs[batch] * sigmoid(-margin)
        member = self.member[batch]
        counts = member.sum(axis=0)
        rows = np.flatnonzero(counts)
        average = member[:, rows].T / counts[rows, None]  # (r, B)
        values = average @ np.logaddexp(0.0, -margin)
        return Inner(rows, values[:, None], ((average * slopes) @ point.jacobian[batch])[:, None, :])


class MeanRate(Term):
    """One row: the mean of ``sigmoid((s - level) / temperature)`` over a subset; kappa stands in the outer function."""

    n_rows = 1
    width = 1

    def __init__(self, data: Data, subset: Indices, outer: Outer, level: float = 0.0, temperature: float = 1.0) -> None:
        self.outer, self.level, self.temperature = outer, level, temperature
        self.member = np.zeros(len(data), dtype=bool)
        self.member[subset] = True

    def measure(self, point: Point, batch: Indices) -> Inner:
        return _rates(point, batch, (self.member,), self.level, self.temperature)


class RateGap(Term):
    """One row of width two: the rates a, b of two subsets; constraint ``|a - b| <= kappa``; present if both are."""

    n_rows = 1
    width = 2

    def __init__(
        self, data: Data, first: Indices, second: Indices, outer: Outer, level: float = 0.0, temperature: float = 1.0
    ) -> None:
        self.outer, self.level, self.temperature = outer, level, temperature
        self.members = np.zeros((2, len(data)), dtype=bool)
        self.members[0, first] = True
        self.members[1, second] = True

    def measure(self, point: Point, batch: Indices) -> Inner:
        return _rates(point, batch, (self.members[0], self.members[1]), self.level, self.temperature)


def _rates(point: Point, batch: Indices, members: tuple[Array, ...], level: float, temperature: float) -> Inner:
    """Mean soft rates of subsets as one row, no row if one of them is missing from the batch."""
    values, jacobians = [], []
    for member in members:
        chosen = batch[member[batch]]
        if not len(chosen):
            shape = (0, len(members))
            return Inner(np.zeros(0, dtype=np.int64), np.zeros(shape), np.zeros((*shape, len(point.w))))
        rate = sigmoid((point.scores[chosen] - level) / temperature)
        values.append(rate.sum() / len(chosen))
        jacobians.append((rate * (1 - rate) / temperature) @ point.jacobian[chosen] / len(chosen))
    return Inner(np.zeros(1, dtype=np.int64), np.array([values]), np.array([jacobians]))


class Contrastive(Term):
    """Global contrastive loss: ``(1/n) sum_i tau log u_i1 + tau log u_i2`` with outer ``Log(tau)``.

    ``u_i1 = (1/n) sum_j exp((s_ij - s_ii)/tau)`` over texts j, ``u_i2 = (1/n) sum_j exp((s_ji - s_ii)/tau)`` over
    images j, ``s_ij = a_i^T t_j``.  In a batch the pair itself weighs 1/n, each of the other B - 1 places
    (1 - 1/n)/(B - 1).
    """

    width = 2

    def __init__(self, data: Data, outer: Outer, temperature: float) -> None:
        self.outer, self.temperature, self.n_rows = outer, temperature, len(data)
        self.floor = 1 / self.n_rows

    def measure(self, point: Point, batch: Indices) -> Inner:
        n, size, tau = self.n_rows, len(batch), self.temperature
        images, texts = point.images[batch], point.texts[batch]
        similarity = images @ texts.T  # (B, B)
        change = np.einsum("jk,ikd->ijd", texts, point.images_jacobian[batch])
        change += np.einsum("ik,jkd->ijd", images, point.texts_jacobian[batch])
        weights = np.full((size, size), (1 - 1 / n) / max(size - 1, 1))
        np.fill_diagonal(weights, 1 / n)
        own, own_change = np.diag(similarity), np.diagonal(change).T  # (B,), (B, d)
        values, jacobians = [], []
        for table, moved in ((similarity, change), (similarity.T, change.transpose(1, 0, 2))):
            terms = weights * np.exp((table - own[:, None]) / tau)
            values.append(terms.sum(axis=1))
            jacobians.append(((terms[:, None, :] @ moved)[:, 0] - values[-1][:, None] * own_change) / tau)
        return merge(batch, np.stack(values, axis=1), np.stack(jacobians, axis=1))


@dataclass(frozen=True)
class Part:
    """A term in the problem: its share in F and the probability (rows,) that a row is present in a batch.

    ``presence`` is that of the batch which gives the Jacobian (of half a batch where a method halves it).
    """

    term: Term
    presence: Array
    share: float = 1.0

    def gradient(self, w: Array, inner: Inner, y: Array) -> Array:
        """``share * sum_i w_i J_i^T y_i`` over rows present, ``w_i = 1/(rows p_i)``; by s: ``share (1 - w^T y)``."""
        weights = 1 / (self.term.n_rows * self.presence[inner.rows])
        gradient = (weights[:, None] * y).reshape(-1) @ inner.jacobians.reshape(-1, len(w))
        if self.term.threshold is not None:
            gradient[self.term.threshold] += 1 - weights @ y[:, 0]
        return self.share * gradient


Network = Linear | Tanh | TwoTowers
Direct = MeanLogistic | PairLoss


class Problem:
    """Network, direct objectives (each with the probability that a batch can measure it) and parts with rows."""

    def __init__(
        self, network: Network, n: int, parts: tuple[Part, ...] = (), direct: tuple[tuple[Direct, float], ...] = ()
    ) -> None:
        self.network, self.parts, self.direct, self.everything = network, parts, direct, np.arange(n)

    def at(self, w: Array) -> Point:
        return self.network.at(w)

    def exact_rows(self, w: Array) -> list[Array]:
        """The inner values of all rows over the whole data, one (rows, k) per part."""
        point = self.at(w)
        return [part.term.measure(point, self.everything).values for part in self.parts]

    def exact_value(self, w: Array) -> float:
        """F(w) over the whole data (of the envelopes, where an outer function is smoothed)."""
        point = self.at(w)
        total = sum(direct.value(point, self.everything) for direct, _ in self.direct)
        for part, rows in zip(self.parts, self.exact_rows(w), strict=True):
            threshold = 0.0 if part.term.threshold is None else w[part.term.threshold]
            total += part.share * (threshold + part.term.outer.value(part.term.argument(w, rows)).mean())
        return float(total)

    def exact_gradient(self, w: Array) -> Array:
        """The gradient of :meth:`exact_value`: every row is present for certain."""
        point = self.at(w)
        total = np.zeros_like(w)
        for direct, _ in self.direct:
            total += direct.gradient(point, self.everything)
        for part in self.parts:
            inner = part.term.measure(point, self.everything)
            certain = Part(part.term, np.ones(part.term.n_rows), part.share)
            total += certain.gradient(w, inner, part.term.slopes(w, inner.values))
        return total

    def direct_gradient(self, point: Point, batch: Indices) -> Array:
        """Gradient of the direct objectives on a batch, each over the probability that it can be measured."""
        total = np.zeros_like(point.w)
        for direct, presence in self.direct:
            total += direct.gradient(point, batch) / presence
        return total
