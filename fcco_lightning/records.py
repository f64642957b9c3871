"""The records that travel between the parts.  No logic."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from torch import Tensor

Batch: TypeAlias = Mapping[str, Tensor]
"""Columns of one batch, all with the same first dimension B.  Tabular batches hold

``x`` (B, d) float32, ``y`` (B,) int64 in {0, 1}, ``group`` (B,) int64 in {0, 1} with 1 the favoured group, and
``index`` (B,) int64: the position of the sample in the training split (the row of the dual state).  Image-text pairs
hold ``x`` (B, 3, H, W), ``text`` (B, L) int64 and ``index``.  Where several loaders contribute, a batch is a mapping of
parts, each of them such a mapping with a B of its own, the objective's first.
"""


class Embeddings(NamedTuple):
    """What a network of two towers returns for image-text pairs.

    Attributes:
        image: of the images, shape (B, d), rows of length 1.
        text: of the texts, the same.
    """

    image: Tensor
    text: Tensor


class Inner(NamedTuple):
    """Mini-batch estimates of inner functions.

    Attributes:
        index: which rows i they belong to, shape (b,), int64.  A row that the batch says nothing about is absent.
        values: g_i(w; batch), shape (b, k), with graph.
    """

    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index, which nobody needs here
    values: Tensor


class Tracked(NamedTuple):
    """What an estimator returns.

    Attributes:
        rows: the new rows (u_i, or y_i for a dual estimator) to remember, shape (b, k), no graph.
        weights: the outer gradients y_i that multiply the Jacobian of g_i, shape (b, k), no graph.
    """

    rows: Tensor
    weights: Tensor
