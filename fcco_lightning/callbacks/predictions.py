"""Predictions as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter


class PredictionWriter(BasePredictionWriter):
    """Writes ``predictions.csv``: the sample's index and the network's outputs, one row per sample.

    Args:
        folder: where to write; None for the run's folder.
    """

    def __init__(self, folder: str | None = None) -> None:
        super().__init__(write_interval="epoch")
        self.folder = folder

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],  # noqa: ARG002
    ) -> None:
        """Write the file."""
        folder = Path(self.folder or trainer.log_dir or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        outputs = torch.cat([p["output"] for p in predictions]).float().cpu()
        columns = outputs.reshape(len(outputs), -1).T
        names = ["output"] if len(columns) == 1 else [f"output_{k}" for k in range(len(columns))]
        table = pd.DataFrame({"index": torch.cat([p["index"] for p in predictions]).cpu().numpy()})
        for name, column in zip(names, columns, strict=True):
            table[name] = column.numpy()
        table.to_csv(folder / "predictions.csv", index=False)
        rank_zero_info(f"Predictions: {folder / 'predictions.csv'}")
