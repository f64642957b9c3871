"""Networks that the papers train and no library offers."""

from fcco_lightning.models.mlp import MLP

__all__ = ["MLP"]
