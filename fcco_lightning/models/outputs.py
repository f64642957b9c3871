"""What networks return that give more than one tensor."""

from typing import NamedTuple

from torch import Tensor


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
