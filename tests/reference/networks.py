"""Small data, three small networks and their Jacobians by hand (NumPy, float64).

A network is evaluated on the whole data set at once: ``network.at(w)`` is a :class:`Point` with outputs and Jacobians
of all n samples, from which terms pick the samples of a batch.  The vector ``w`` (d,) holds the parameters in the order
of ``torch.nn.Module.parameters()``, each flattened row by row, and after them ``extra`` free scalars (CVaR thresholds).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """Features x (n, 3), a second view (n, 3), labels (n,) in {0, 1} and group numbers (n,)."""

    x: Array
    view: Array
    labels: Indices
    groups: Indices

    def __len__(self) -> int:
        return len(self.labels)

    def members(self, group: int) -> Indices:
        return np.flatnonzero(self.groups == group)


def make_data(sizes: tuple[int, ...] = (120, 60, 17, 3), seed: int = 0) -> Data:
    """Groups of the given sizes in random order; both classes occur in every group of two or more samples."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    n = len(groups)
    labels = (rng.random(n) < 0.35 + 0.1 * groups).astype(np.int64)
    for group, size in enumerate(sizes):
        if size >= 2:
            labels[np.flatnonzero(groups == group)[:2]] = 0, 1
    x = rng.normal(size=(n, 3))
    x[:, 0] += 1.2 * labels
    x[:, 1] += 0.6 * groups
    return Data(x, x + 0.5 * rng.normal(size=(n, 3)), labels, groups)


@dataclass(frozen=True)
class Point:
    """Outputs of a network at ``w`` on all n samples.

    Scores: ``scores`` (n,) and ``jacobian`` (n, d).  Embeddings: ``images`` and ``texts`` (n, e) of length one, and
    ``images_jacobian`` and ``texts_jacobian`` (n, e, d).  A network fills one of the two pairs.
    """

    w: Array
    scores: Array = field(default_factory=lambda: np.zeros(0))
    jacobian: Array = field(default_factory=lambda: np.zeros((0, 0)))
    images: Array = field(default_factory=lambda: np.zeros((0, 0)))
    texts: Array = field(default_factory=lambda: np.zeros((0, 0)))
    images_jacobian: Array = field(default_factory=lambda: np.zeros((0, 0, 0)))
    texts_jacobian: Array = field(default_factory=lambda: np.zeros((0, 0, 0)))


class Linear:
    """Scores ``s = a^T x + b`` with ``w = (a, b, extra scalars)``, as ``torch.nn.Linear(3, 1)``."""

    def __init__(self, data: Data, extra: int = 0) -> None:
        self.x, self.inner = data.x, data.x.shape[1] + 1
        self.size = self.inner + extra

    def at(self, w: Array) -> Point:
        n, features = self.x.shape
        jacobian = np.zeros((n, self.size))
        jacobian[:, :features] = self.x
        jacobian[:, features] = 1.0
        return Point(w, scores=jacobian[:, : self.inner] @ w[: self.inner], jacobian=jacobian)


class Tanh:
    """Scores ``s = c^T tanh(W x + b) + c_0`` with ``w = (W, b, c, c_0, extra scalars)``.

    The same order as ``torch.nn.Sequential(Linear(3, hidden), Tanh(), Linear(hidden, 1))``.
    """

    def __init__(self, data: Data, hidden: int = 4, extra: int = 0) -> None:
        self.x, self.hidden = data.x, hidden
        self.inner = hidden * data.x.shape[1] + 2 * hidden + 1
        self.size = self.inner + extra

    def at(self, w: Array) -> Point:
        n, features = self.x.shape
        h = self.hidden
        weight, bias = w[: h * features].reshape(h, features), w[h * features : h * features + h]
        c, c0 = w[h * features + h : self.inner - 1], w[self.inner - 1]
        active = np.tanh(self.x @ weight.T + bias)  # (n, h)
        inside = c * (1 - active**2)  # derivative of s by the argument of each tanh
        parts = [(inside[:, :, None] * self.x[:, None, :]).reshape(n, -1), inside, active, np.ones((n, 1))]
        jacobian = np.zeros((n, self.size))
        jacobian[:, : self.inner] = np.concatenate(parts, axis=1)
        return Point(w, scores=active @ c + c0, jacobian=jacobian)


class TwoTowers:
    """Unit embeddings ``a_i = V x_i / |V x_i|`` and ``t_i = U v_i / |U v_i|`` with ``w = (V, U)``, both (e, 3)."""

    def __init__(self, data: Data, width: int = 2) -> None:
        self.x, self.view, self.width = data.x, data.view, width
        self.size = 2 * width * data.x.shape[1]

    def at(self, w: Array) -> Point:
        half = self.size // 2
        images, images_jacobian = self._tower(self.x, w[:half])
        texts, texts_jacobian = self._tower(self.view, w[half:])
        nothing = np.zeros_like(images_jacobian)
        return Point(
            w,
            images=images,
            texts=texts,
            images_jacobian=np.concatenate([images_jacobian, nothing], axis=2),
            texts_jacobian=np.concatenate([nothing, texts_jacobian], axis=2),
        )

    def _tower(self, x: Array, w: Array) -> tuple[Array, Array]:
        """``z = M x``; ``dz_k = x^T dM_k`` and ``d(z/|z|) = (I - u u^T) dz / |z|`` with ``u = z/|z|``."""
        n, features = x.shape
        z = x @ w.reshape(self.width, features).T
        norm = np.linalg.norm(z, axis=1)[:, None]
        unit = z / norm
        dz = np.einsum("kl,nf->nklf", np.eye(self.width), x).reshape(n, self.width, -1)
        inward = np.einsum("nk,nl,nld->nkd", unit, unit, dz)
        return unit, (dz - inward) / norm[:, :, None]
