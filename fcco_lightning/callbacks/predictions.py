"""Predictions as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from fcco_lightning.evaluation import concatenate
from fcco_lightning.training import FCCOModule


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
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],  # noqa: ARG002
    ) -> None:
        """Write the file."""
        if not isinstance(pl_module, FCCOModule):
            return
        parts = [(p["output"], {"index": p["index"]}) for p in predictions]
        everything, columns_of = concatenate(parts, pl_module.processes)
        folder = Path(self.folder or trainer.log_dir or trainer.default_root_dir)  # log_dir asks all processes
        if not trainer.is_global_zero:
            return
        folder.mkdir(parents=True, exist_ok=True)
        outputs = everything.float().cpu()
        columns = outputs.reshape(len(outputs), -1).T
        names = ["output"] if len(columns) == 1 else [f"output_{k}" for k in range(len(columns))]
        table = pd.DataFrame({"index": columns_of["index"].cpu().numpy()})
        for name, column in zip(names, columns, strict=True):
            table[name] = column.numpy()
        table.to_csv(folder / "predictions.csv", index=False)
        rank_zero_info(f"Predictions: {folder / 'predictions.csv'}")
