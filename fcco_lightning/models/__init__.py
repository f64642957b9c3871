"""Networks: a perceptron for tables, timm's networks for images, transformers for texts, and CLIP models."""

from fcco_lightning.models.base import BatchNetwork, ParameterGroup, copy_of
from fcco_lightning.models.class_vectors import ClassVectorNetwork
from fcco_lightning.models.clip_model import CLIPModel
from fcco_lightning.models.head import HasHead, head_of, renew
from fcco_lightning.models.latent_mixture import LatentMixture
from fcco_lightning.models.mlp import TabularMLP
from fcco_lightning.models.outputs import ClassVectors, Embeddings, LatentVectors
from fcco_lightning.models.perturbed import GaussianPerturbation
from fcco_lightning.models.text_classifier import TextClassifier
from fcco_lightning.models.timm_model import TimmModel
from fcco_lightning.models.two_views import TwoViews

__all__ = [
    "BatchNetwork",
    "CLIPModel",
    "ClassVectorNetwork",
    "ClassVectors",
    "Embeddings",
    "GaussianPerturbation",
    "HasHead",
    "LatentMixture",
    "LatentVectors",
    "ParameterGroup",
    "TabularMLP",
    "TextClassifier",
    "TimmModel",
    "TwoViews",
    "copy_of",
    "head_of",
    "renew",
]
