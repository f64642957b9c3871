"""Objects that show a run, or a report without a folder, in a notebook or a script."""

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
from fcco_lightning.evaluation.base import Pictures
from fcco_lightning.inference import Predictor, load
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.page import report_page
from fcco_lightning.reports.summary_table import (
    METRICS,
    PRINTED_ROWS,
    REPORT,
    last_line,
    print_tables,
    read_metrics,
    read_report,
    report_pictures,
    table_makers,
    write_report,
)
from fcco_lightning.training.resuming.finding import by_age


class Run:
    """A run of ``fit``, read from its folder.

    As the last line of a notebook's cell it shows the result, the tables of the report and the pictures.  A run
    that was interrupted has no report, but a log and the checkpoint from which it can be resumed.

    Args:
        folder: the run's folder, which :class:`~fcco_lightning.reports.Report` prints at the end of ``fit``.

    Attributes:
        folder: the run's folder.
        name: name of the job if it has one, else of the folder.
        report: content of ``report.json``: figures by split, ``seconds``, ``config`` and others; empty if absent.

    Raises:
        DataError: if the folder has no files of a run, or its report cannot be read.

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
        """The result of the run, in a sentence or more."""
        if self.report:
            return last_line(self.report)
        going_on = f" Continue from {self.checkpoint}." if self.checkpoint else ""
        return f"This run has not ended.{going_on}"

    @functools.cached_property
    def metrics(self) -> pd.DataFrame:
        """The logged figures: a row for each time of logging, a column for each figure, NaN where it was not logged.

        It is empty if the Trainer had no CSV logger.
        """
        return read_metrics(self.folder)

    @property
    def pictures(self) -> list[Path]:
        """The PNG files of the run."""
        return sorted(self.folder.glob("*.png"))

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint of the weights in the report; without a report, the last checkpoint.

        These are the best feasible weights if requested (``--feasible.enabled true``), else the last ones.
        None if they were not saved.
        """
        if self.report:
            file_name = self.report.get("checkpoint")
            return self.folder / file_name if file_name and (self.folder / file_name).is_file() else None
        return next(by_age([self.folder]), None)

    def load(self, network: nn.Module | None = None) -> Predictor:
        """The trained network, ready for inference, see :func:`fcco_lightning.load`.

        Args:
            network: a network of the trained architecture; not needed for a run of ``fcco fit``.

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
        """The HTML that a notebook shows."""
        left_out = LeftOut(self.report.get("left_out", {}))
        tables = left_out.make_all(table_makers(self.report, PRINTED_ROWS)) if self.report else []
        return report_page(self.name, self.headline, tables, self.pictures, left_out=left_out, whole=False)


load_run = Run
"""Reads what a run of ``fcco fit``, or of a Trainer with a ``Report``, has left in its folder."""


class SplitReport:
    """The report of one split, for a notebook or a program.

    Args:
        report: a report like ``report.json`` of a run, with one split.
        history: figures of the validations during training, if there was one.
        evaluation: the evaluation, which draws the pictures.
        final: name of the split -> its outputs and columns.
        left_out: items that could not be made, with the reasons.
        title: title of the report.

    Attributes:
        figures: figures of the split, like the entry with its name in ``report.json``.
        headline: the result, in a sentence or more.
    """

    def __init__(
        self,
        report: Mapping[str, Any],
        history: Sequence[dict[str, Any]],
        evaluation: Evaluation,
        final: Mapping[str, tuple[Tensor, Mapping[str, Tensor]]],
        left_out: Mapping[str, str] | None = None,
        title: str = "Training",
    ) -> None:
        (split,) = final
        self.figures: Mapping[str, Any] = report[split]
        self.headline = last_line(report)
        self._report, self._history, self._evaluation, self._final = report, history, evaluation, final
        self._left_out, self._title = dict(left_out or {}), title

    @property
    def tables(self) -> list[Table]:
        """The tables of the report, which ``print`` and ``rich`` can show."""
        return LeftOut().make_all(table_makers(self._report))

    def draw(self, folder: str | Path) -> list[Path]:
        """Draw the pictures as PNG files in a folder."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        paths = [draw(Path(folder, name)) for name, draw in self._pictures().items()]
        return [path for path in paths if path is not None]

    def _pictures(self) -> Pictures:
        return {**self._evaluation.pictures(list(self._history), self._final), **report_pictures(self._report)}

    def write(self, folder: str | Path) -> Path:
        """Write ``report.json``, ``report.html`` and the pictures into a folder, and return it."""
        folder = Path(folder)
        page, left_out = self._page(folder, whole=True)
        report = {**self._report, **({"left_out": left_out} if left_out else {})}
        write_report(report, folder / REPORT)
        (folder / "report.html").write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
        return folder

    def show(self) -> None:
        """Print the tables and the headline in the width of the terminal."""
        print_tables(LeftOut().make_all(table_makers(self._report, PRINTED_ROWS)), self.headline)

    def __repr__(self) -> str:
        return self.headline

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return self._page(Path(folder), whole=False)[0]

    def _page(self, folder: Path, *, whole: bool) -> tuple[str, LeftOut]:
        """The page, with pictures that are drawn into a folder, and the items that are left out."""
        left_out = LeftOut(self._left_out)
        folder.mkdir(parents=True, exist_ok=True)
        pictures = left_out.make_all({name: partial(draw, folder / name) for name, draw in self._pictures().items()})
        tables = left_out.make_all(table_makers(self._report))
        config = self._report.get("config")
        return report_page(self._title, self.headline, tables, pictures, config, left_out, whole=whole), left_out
