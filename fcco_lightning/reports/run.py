"""A run, or a training without a folder, as an object to be looked at in a notebook or a script."""

import functools
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from torch import Tensor, nn

from fcco_lightning.errors import CheckpointError, DataError
from fcco_lightning.evaluation import Evaluation
from fcco_lightning.inference import Predictor, load
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.page import report_page
from fcco_lightning.reports.summary_table import METRICS, PRINTED_ROWS, read_report, split_tables, table_makers
from fcco_lightning.training.resuming import by_age


class Run:
    """A run of ``fit``, read from the folder that it left.

    As the last line of a notebook's cell it shows what was achieved, the tables of the report and the pictures.  A run
    that was interrupted has no report, but its log and the checkpoint from which it goes on.

    Args:
        folder: of the run, as :class:`~fcco_lightning.reports.Report` names it at the end of ``fit``.

    Attributes:
        folder: as given.
        name: of the job if it has one, else of the folder.
        report: what ``report.json`` holds: figures by split, ``seconds``, ``config`` and others; empty without.

    Raises:
        DataError: if a run has left nothing there, or its report cannot be read.

    Example:
        >>> run = load_run("runs/version_0")  # doctest: +SKIP
        >>> run.report["test"]["auc"], run.metrics["train_objective"].min()  # doctest: +SKIP
        >>> run.load().predict("new.csv")  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        report = read_report(self.folder)
        if report is None and not (self.folder / METRICS).is_file() and not any(by_age([self.folder])):
            raise DataError(
                f"{self.folder} holds no run: no report.json, no {METRICS} and no checkpoint. Name the folder that fit "
                "has printed at its end, such as runs/version_0."
            )
        self.report: Mapping[str, Any] = report or {}
        self.name = str(self.config.get("name") or self.folder.resolve().name)

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of ``fcco fit``; empty for a run of a Trainer in Python."""
        config: Mapping[str, Any] = self.report.get("config", {})
        return config

    @property
    def headline(self) -> str:
        """What the run has achieved, in a sentence or more."""
        if self.report:
            return str(self.report.get("verdict") or self.report.get("headline") or "")
        going_on = f" Continue from {self.checkpoint}." if self.checkpoint else ""
        return f"This run has not ended.{going_on}"

    @functools.cached_property
    def metrics(self) -> pd.DataFrame:
        """What was logged: a row for each time, a column for each figure, NaN where it was not among them.

        Empty if the Trainer had no CSV log.
        """
        path = self.folder / METRICS
        return pd.read_csv(path) if path.is_file() else pd.DataFrame()

    @property
    def pictures(self) -> list[Path]:
        """The PNG files of the run."""
        return sorted(self.folder.glob("*.png"))

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint of the weights that the report describes; before there is one, the last that was written.

        These are the best feasible weights where they were asked for (``--feasible.enabled true``), else the last ones.
        None if they were not saved.
        """
        if self.report:
            named = self.report.get("checkpoint")
            return self.folder / named if named and (self.folder / named).is_file() else None
        return next(by_age([self.folder]), None)

    def load(self, network: nn.Module | None = None) -> Predictor:
        """The trained network, ready for inference, as :func:`fcco_lightning.load` gives it.

        Args:
            network: of the architecture that was trained; not needed for a run of ``fcco fit``.

        Raises:
            CheckpointError: if the run has saved no weights.
            ConfigError: if the network is not known.
        """
        if self.checkpoint is None:
            raise CheckpointError(
                f"the run {self.folder} has left no checkpoint of the weights that its report describes. Save the last "
                "ones (--checkpoint.save_last true), or name another checkpoint: fcco_lightning.load(PATH)."
            )
        return load(self.checkpoint, network)

    def __repr__(self) -> str:
        pictures = [f"{len(self.pictures)} pictures"] if self.pictures else []
        files = [name for name in ("report.html", METRICS) if (self.folder / name).is_file()]
        saved = [f"checkpoint {self.checkpoint.name}"] if self.checkpoint else []
        lines = [f"Run {self.name}", self.headline, f"{self.folder}: {', '.join([*files, *pictures, *saved])}"]
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        left_out = LeftOut(self.report.get("left_out", {}))
        tables = left_out.make_all(table_makers(self.report, PRINTED_ROWS)) if self.report else []
        return report_page(self.name, self.headline, tables, self.pictures, left_out=left_out, whole=False)


load_run = Run
"""Reads what a run of ``fcco fit``, or of a Trainer with a ``Report``, has left in its folder."""


class TrainingReport:
    """What a training has achieved, for a notebook or a program.

    Attributes:
        figures: of the training split, as ``report.json`` of a run has them under ``train``.
        headline: a sentence or more.
    """

    def __init__(
        self,
        report: Mapping[str, Any],
        history: Sequence[dict[str, Any]],
        evaluation: Evaluation,
        final: Mapping[str, tuple[Tensor, Mapping[str, Tensor]]],
    ) -> None:
        self.figures: Mapping[str, Any] = report["train"]
        self.headline = str(report.get("verdict") or report.get("headline") or "")
        self._report, self._history, self._evaluation, self._final = report, history, evaluation, final

    @property
    def tables(self) -> list[Table]:
        """The tables of a run, which ``print`` and ``rich`` show."""
        return split_tables(self._report)

    def draw(self, folder: str | Path) -> list[Path]:
        """Draw the pictures of the run as PNG files in a folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        return self._evaluation.draw(list(self._history), self._final, Path(folder))

    def __repr__(self) -> str:
        return self.headline

    def _repr_html_(self) -> str:
        left_out = LeftOut()
        with tempfile.TemporaryDirectory() as folder:
            pictures = self._evaluation.pictures(list(self._history), self._final)
            drawn = left_out.make_all({name: partial(draw, Path(folder, name)) for name, draw in pictures.items()})
            tables = left_out.make_all(table_makers(self._report))
            return report_page("Training", self.headline, tables, drawn, left_out=left_out, whole=False)
