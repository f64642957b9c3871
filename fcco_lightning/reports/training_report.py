"""What a training has achieved, as an object that a notebook shows."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from fcco_lightning.evaluation import Evaluation
from fcco_lightning.reports.page import report_page
from fcco_lightning.reports.summary_table import split_tables


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
        """The tables of a run, to be printed by ``rich``."""
        return split_tables(self._report)

    def draw(self, folder: str | Path) -> list[Path]:
        """Draw the pictures of the run as PNG files in a folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        return self._evaluation.draw(list(self._history), self._final, Path(folder))

    def __repr__(self) -> str:
        return self.headline

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return report_page("Training", self.headline, self.tables, self.draw(folder), whole=False)
