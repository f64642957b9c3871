"""Predictions as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.evaluation import Split, concatenate
from fcco_lightning.inference import prediction_table, write_table
from fcco_lightning.training import FCCOModule


class PredictionWriter(BasePredictionWriter):
    """Writes ``predictions.csv``: the sample's index and the network's scores, one row per sample.

    Args:
        folder: folder of the file; None for the run's folder.
        out: path of a file to write instead, CSV or Parquet by its suffix.

    Raises:
        DataError: while predicting, if the network's outputs are several tensors, such as embeddings of pairs.
    """

    def __init__(self, folder: str | None = None, out: str | None = None) -> None:
        super().__init__(write_interval="epoch")
        self.folder, self.out = folder, out

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],  # noqa: ARG002
    ) -> None:
        if not isinstance(pl_module, FCCOModule):
            return
        parts = [Split(p["output"], {"index": p["index"]}) for p in predictions]
        everything, columns_of = concatenate(parts, pl_module.processes)
        if not isinstance(everything, Tensor):
            raise DataError(
                f"a table of predictions needs one tensor of scores with a row for every sample, and the network "
                f"returned several ({type(everything).__name__}). Use trainer.predict(module, data) in Python."
            )
        folder = Path(self.folder or trainer.log_dir or trainer.default_root_dir)  # log_dir is a collective call
        if not trainer.is_global_zero:
            return
        table = prediction_table(everything, {"index": columns_of["index"].cpu().numpy()})
        path = folder / "predictions.csv" if self.out is None else Path(self.out)
        write_table(table, path)
        rank_zero_info(f"Predictions: {path}")
