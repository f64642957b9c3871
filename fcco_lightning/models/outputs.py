"""Outputs of networks that return more than one tensor."""

from typing import NamedTuple

from torch import Tensor


class Embeddings(NamedTuple):
    """Outputs of a network of two towers for image-text pairs.

    Attributes:
        image: embeddings of the images, shape (B, d), with unit rows.
        text: embeddings of the texts, shape (B, d), with unit rows.
    """

    image: Tensor
    text: Tensor


class ClassVectors(NamedTuple):
    """Outputs of a classifier over many classes in training, whose inner products are logits.

    Attributes:
        vector: features of the samples, or vectors of the classes, shape (B, d).
        own: vectors of the samples' own classes, or of the classes, shape (B, d).
    """

    vector: Tensor
    own: Tensor


class LatentVectors(NamedTuple):
    """Outputs of a mixture over a latent variable in training, see :class:`~fcco_lightning.models.LatentMixture`.

    Attributes:
        affinity: e of samples or of values of the latent variable, shape (B, d).
        response: a of samples or of values of the latent variable, shape (B, d').
    """

    affinity: Tensor
    response: Tensor
