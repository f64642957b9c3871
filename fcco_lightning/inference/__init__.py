"""Inference: loading trained networks, predicting new samples, and exporting networks."""

from fcco_lightning.inference.exporting import export
from fcco_lightning.inference.predictor import Predictor, load
from fcco_lightning.inference.tables import prediction_table, write_table

__all__ = ["Predictor", "export", "load", "prediction_table", "write_table"]
