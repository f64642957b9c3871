"""Networks that the papers train and no library offers."""

from fcco_lightning.models.mlp import TabularMLP

__all__ = ["TabularMLP"]
