"""Networks that the papers train: a perceptron for tables, timm's networks for images."""

from fcco_lightning.models.base import BatchNetwork, ParameterGroup
from fcco_lightning.models.mlp import TabularMLP
from fcco_lightning.models.timm_model import TimmModel

__all__ = ["BatchNetwork", "ParameterGroup", "TabularMLP", "TimmModel"]
