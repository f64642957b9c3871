"""The records that travel between the parts of a training step.  No logic."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from torch import Tensor

from fcco_lightning.outer import OuterFunction

Columns: TypeAlias = Mapping[str, Tensor]
"""The samples of one part of a batch, as columns with one first dimension B.

``index`` (B,) int64 is the position of a sample in the training split, ``x`` the input of the network.  What else there
is depends on the data: ``y`` (B,) int64 labels (or float targets), ``group`` (B,) int64, ``task`` (B,) int64, ``text``
(B, L) int64, ``query`` (B,) int64, ``bag`` (B,) int64, ``time`` (B,) float32, ``event`` (B,) int64.  ``weight`` (B,)
float32, of mean 1 in expectation, is there where samples are not drawn uniformly: with it the weighted mean over the
batch estimates the mean over the data without bias.  ``stratum`` and ``stratum_size`` (B,) int64 are there where pairs
of samples are not equally likely: a sample's stratum, whose members are drawn alike, and their number; beside them
``strata`` (B,) int64, the number of strata, where a batch holds some that are drawn uniformly; and ``replaced`` (B,)
int64 where members are drawn with replacement, how often the batch holds each draw.  ``here`` (B,) bool, on the CPU, is
there where several processes share a batch: it marks the samples of this one.
"""

Batch: TypeAlias = Mapping[str, Columns]
"""A batch: its parts by name, in order.  A data set with one loader gives one part, ``"target"``."""

HERE = "here"
"""Name of the column that marks the samples of this process."""

TARGET = "target"
"""Name of the part that a single loader gives; with several loaders the first one is the objective's."""


class Embeddings(NamedTuple):
    """What a network of two towers returns for image-text pairs.

    Attributes:
        image: embeddings of the images, shape (B, d), rows of length 1.
        text: embeddings of the texts, likewise.
    """

    image: Tensor
    text: Tensor


class ClassVectors(NamedTuple):
    """What a classifier over very many classes returns in training: logits are products of vectors.

    Attributes:
        vector: features of a sample, or the vector of a class, shape (B, d).
        own: the vector of the sample's own class, or of the class, likewise.
    """

    vector: Tensor
    own: Tensor


class LatentVectors(NamedTuple):
    """What a mixture over a latent variable returns in training: both probabilities come from products of vectors.

    Attributes:
        affinity: e of a sample or of a value of the latent variable, shape (B, d).
        response: a of a sample or of a value, shape (B, d').
    """

    affinity: Tensor
    response: Tensor


class Rows(NamedTuple):
    """What a batch says of the rows of one term, in shapes that follow from the size of the batch alone.

    Attributes:
        values: g_i(w; batch), shape (r, k), with graph; any finite numbers where ``weight`` is 0.
        weight: what each row counts in the mean over all rows, without graph, shape (r,); 0 where the batch says
            nothing of the row.  Of type bool where all rows count alike.
        outer: f of these rows with its known parameters at their present values; None for the term's own.
    """

    values: Tensor
    weight: Tensor
    outer: OuterFunction | None = None


class Tracked(NamedTuple):
    """What an estimator returns.

    Attributes:
        rows: the new rows (u_i, or y_i for a dual estimator) to remember, shape (b, k), no graph.
        weights: the outer gradients y_i that multiply the Jacobian of g_i, shape (b, k), no graph.
        at: the inner values at which the outer gradients are taken, shape (b, k), no graph.  The value of f there is
            what is logged, and what carries the gradient with respect to known parameters of f.
    """

    rows: Tensor
    weights: Tensor
    at: Tensor
