"""The report at the end of a run: a table in the terminal; report.json, report.html and pictures in its folder."""

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from rich.table import Table
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.analysis import intervals
from fcco_lightning.constraints.multipliers import follows_decisions
from fcco_lightning.engine import Problem
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation import Evaluation, Split, shown_split
from fcco_lightning.evaluation.base import Pictures
from fcco_lightning.evaluation.pictures import plot_multipliers
from fcco_lightning.models.batch import Columns
from fcco_lightning.reports.baseline import Baseline
from fcco_lightning.reports.diagnostics import Diagnostics, diagnosis_tables
from fcco_lightning.reports.feasible import FEASIBLE, BestFeasible, kappas_of
from fcco_lightning.reports.importances import Features, columns_of_features, importances_of
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.page import report_page
from fcco_lightning.reports.run import Run
from fcco_lightning.reports.summary_table import (
    PRINTED_ROWS,
    REPORT,
    as_json,
    last_line,
    print_tables,
    report_pictures,
    table_makers,
    write_report,
)
from fcco_lightning.reports.verdict import chosen_line, headline, ranking_line, reached_line, verdict
from fcco_lightning.training import FCCOModule
from fcco_lightning.training.module import RECOVERED

T = TypeVar("T")


class Report(Callback):
    """Keeps the figures of every validation and reports at the end of ``fit``.

    It writes ``report.json`` (``{"train": {...}, "test": {...}, "seconds", "config"}``) with the figures, and the
    pictures, of the module's :class:`Evaluation`.  The history of figures is part of checkpoints, so that a resumed run
    has all of it.  Further entries are:

    - ``unconstrained``: figures of the model without constraints (:class:`Baseline`), which are also columns of the
      table; its training time is not part of ``seconds``;
    - ``verdict`` (also the last line of the output): whether the constraints hold; or, without constraints,
      ``headline``: figures of the test split;
    - ``lost``: numbers of samples that could not be read; ``selected``: the weights that :class:`BestFeasible` has
      chosen; ``checkpoint``: the file of the weights;
    - ``kappas`` of the constraints by name, and for every split h, a 95% confidence interval and the noise floor of
      each (:func:`fcco_lightning.analysis.intervals`), and the multipliers.  The table has the constraints with the
      largest multipliers, ``multipliers.png`` their history.  The intervals take account of the clusters of
      :class:`BestFeasible` (``clusters``, its column).

    ``report.html`` is one page with all tables and pictures of this run, the results of :class:`Diagnostics`, the
    configuration and the versions.  It is written last, after all other callbacks.

    A figure, table or picture that cannot be made, because the disk is full or a constraint cannot be evaluated on a
    split, does not end the run: it is left out, with a warning and the reason under ``left_out`` in file and page.

    Args:
        enabled: whether to report at the end of ``fit``.
        pictures: whether to write the PNGs.
        table: whether to print the table.
        folder: folder of the files; None for the logger's folder of this run.
        importances: whether to measure permutation importances of the columns on the test split (else the last one),
            for a table, a picture, and ``importances`` in the file, see
            :func:`~fcco_lightning.reports.importances.importances_of`.

    Raises:
        ConfigError: at the start of ``fit``, if the folder cannot be made, or if importances are asked for and the data
            are no table of columns or the evaluation has no figure of merit.
    """

    def __init__(
        self,
        enabled: bool = True,
        pictures: bool = True,
        table: bool = True,
        folder: str | None = None,
        importances: bool = False,
    ) -> None:
        self.enabled, self.pictures, self.table, self.folder = enabled, pictures, table, folder
        self.importances = importances
        self.config: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.report: dict[str, Any] = {}
        self.left_out = LeftOut()
        self._started = self._began = 0.0  # times by a monotonic clock, and by the clock of files
        self._folder: Path | None = None
        self._unseen: set[str] = set()
        self._kappas: dict[str, float] = {}
        self._restored = False  # state from a checkpoint, before the run starts

    @property
    def run(self) -> Run | None:
        """The finished run, for display in a notebook; None before its end and on other processes than the first."""
        return None if self._folder is None else Run(self._folder)

    def state_dict(self) -> dict[str, Any]:
        """The history, and the kappas to which its constraint values refer."""
        return {"history": self.history, "kappas": self._kappas}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history, self._kappas = list(state_dict["history"]), dict(state_dict["kappas"])
        self._restored = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and check early that the folder can be written."""
        if trainer.current_epoch == 0 and not self._restored:  # a new run with the same callback
            self.history, self._unseen = [], set()
        self._restored = False
        if isinstance(pl_module, FCCOModule):
            kappas = kappas_of(pl_module)
            if kappas != self._kappas:  # earlier values refer to other kappas
                self.history = [{k: v for k, v in record.items() if k != "worst_violation"} for record in self.history]
            self._kappas = kappas
        if self.folder is not None and self.enabled:
            try:
                Path(self.folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"report.folder {self.folder!r} cannot be created: {error}. Choose another one."
                ) from error
        if self.importances and self.enabled and isinstance(pl_module, FCCOModule):
            columns_of_features(getattr(trainer.datamodule, "encoder", None), "report.importances")  # type: ignore[attr-defined]
            pl_module.evaluation.figure_of_merit(_choice(trainer).figure)
        self._started, self._began = time.perf_counter(), time.time()
        self._folder, self.left_out = None, LeftOut()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the logged figures of every split to the history."""
        if trainer.sanity_checking or trainer.state.fn != "fit" or not isinstance(pl_module, FCCOModule):
            return
        multipliers = {f"nu/{name}": value for name, value in pl_module.multipliers().items()}
        for split, summary in pl_module.last_summaries.items():
            logged = multipliers if split == "train" else {}
            self.history.append({"epoch": trainer.current_epoch, "split": split, **summary, **logged})

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate every split with the final weights and write the report."""
        loaders = getattr(getattr(trainer, "datamodule", None), "evaluation_loaders", None)
        if not self.enabled or trainer.interrupted or not isinstance(pl_module, FCCOModule) or loaders is None:
            return
        baselines = [baseline for baseline in _callbacks(trainer, Baseline) if baseline.network is not None]
        seconds = time.perf_counter() - self._started - sum(b.seconds for b in baselines)
        choice = _choice(trainer)
        splits = loaders()
        with pl_module.where_trained():
            final = {split: pl_module.evaluate(loader) for split, loader in splits.items()}
            pl_module.fit_rule(final)
            compared = {name: b.split(pl_module, loader) for b in baselines for name, loader in splits.items()}
        self.report = {
            split: figures_of_split(pl_module, split, result, self.left_out, choice.clusters_in)
            for split, result in final.items()
        }
        if self.importances:
            with pl_module.where_trained():
                self._measure_importances(trainer, pl_module, final, choice.figure)
        self.report |= {"seconds": round(seconds, 3), "config": self.config}
        entries = {
            "kappas": kappas_of(pl_module),
            "unconstrained": {name: self._unconstrained(pl_module, name, split) for name, split in compared.items()},
            "clusters": choice.clusters,
            "selected": choice.chosen,
            "decisions": follows_decisions(pl_module.penalty),
        }
        self.report |= {name: value for name, value in entries.items() if value}
        lost = getattr(trainer.datamodule, "lost", None)  # type: ignore[attr-defined]
        self.report |= {} if lost is None else _lost(pl_module.processes.everyone(lost()))
        logs = Path(trainer.log_dir or trainer.default_root_dir)  # log_dir is a collective call
        folder = logs if self.folder is None else Path(self.folder)
        conclude = partial(self._conclude, pl_module, trainer.current_epoch - 1, logs / "config.yaml")
        self.left_out.make("the last line", conclude, None)
        self.report |= _checkpoint(trainer, pl_module, folder, chosen=bool(choice.chosen))
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]  # no folder with fast_dev_run
            self._write(folder, pl_module.evaluation, final)

    def _measure_importances(
        self, trainer: Trainer, module: FCCOModule, final: Mapping[str, Split], figure: str | None
    ) -> None:
        """Add importances to the report of the split that is shown; every process evaluates a part of the samples."""
        name, data = shown_split(final), trainer.datamodule  # type: ignore[attr-defined]
        order = final[name].columns["index"].argsort()  # independent of the number of processes
        columns = {key: column[order] for key, column in final[name].columns.items()}
        inputs = data.tables[name].__getitems__(columns["index"].tolist()) | columns  # computes features, too
        processes, size = module.processes, data.eval_batch_size

        def outputs(x: Tensor, rows: Tensor) -> Any:
            batches = (
                {**{key: column[rows[share]] for key, column in inputs.items()}, "x": x[share], "index": share}
                for share in torch.split(torch.arange(processes.rank, len(rows), processes.size), size)
            )
            evaluated = module.evaluate(batches)
            places = evaluated.columns["index"].argsort()
            return pytree.tree_map(lambda leaf: leaf[places], evaluated.outputs)

        features = Features(inputs["x"], columns_of_features(data.encoder, "report.importances"), outputs)
        measure = partial(importances_of, features, columns, module.evaluation, figure)
        importances = self.left_out.make(f"importances ({name})", measure, None)
        self.report[name] |= {} if importances is None else {"importances": importances}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Write the page, after the other callbacks have finished."""
        if stage != "fit" or self._folder is None:
            return
        tables = self.left_out.make_all(table_makers(self.report))
        for diagnostics in _callbacks(trainer, Diagnostics):
            self.left_out.update(diagnostics.left_out)
            if diagnostics.diagnosis:
                make_tables = partial(diagnosis_tables, diagnostics.diagnosis)
                tables += self.left_out.make("the tables of the diagnostics", make_tables, [])
        self.left_out.make("report.html", partial(self._write_page, self._folder, tables), None)
        if self.left_out:
            self.report["left_out"] = dict(self.left_out)
            self.left_out.make(REPORT, partial(write_report, self.report, self._folder / REPORT), None)

    def _write_page(self, folder: Path, tables: Sequence[Table]) -> None:
        pictures = [p for p in sorted(folder.glob("*.png")) if p.stat().st_mtime >= self._began]
        name = self.config.get("name") or f"Run {folder.name}"
        page = report_page(name, last_line(self.report), tables, pictures, self.config, self.left_out)
        (folder / "report.html").write_text(page, encoding="utf-8", errors="xmlcharrefreplace")

    def _conclude(self, module: FCCOModule, epoch: int, config: Path) -> None:
        """Compose the last line: what the weights achieve, which weights these are, and what could improve them."""
        evaluation, instead = module.evaluation, module.objective.instead
        if (line := verdict(self.report, (*evaluation.bar, "roc_gap"))) is not None:
            selected = self.report.get("selected")
            figure = evaluation.merit or next(iter(evaluation.bar), None)
            histories = {split: self._validations(split, epoch) for split in ("train", "val", "test")}
            validated = next((s for s in ("train", "val") if any(r["split"] == s for r in self.history)), "train")
            enforced = module.problem is None or module.problem.penalty.acts
            reached = reached_line(histories[validated], figure, enforced=enforced)
            description = reached if selected is None else chosen_line(selected)
            histories = {validated: histories[validated], **histories}
            ruined = ranking_line(histories, self.report.get("unconstrained", {}), self._front(config))
            self.report["verdict"] = " ".join(filter(None, (line, description, ruined, instead)))
        elif (line := headline(self.report, evaluation.bar)) is not None:
            self.report["headline"] = " ".join(filter(None, (line, instead)))

    def _validations(self, split: str, epoch: int) -> list[dict[str, Any]]:
        """The figures of a split at every validation, followed by those of the final weights."""
        history = [record for record in self.history if record["split"] == split]
        return [*history, *([{"epoch": epoch, **self.report[split]}] if split in self.report else [])]

    def _front(self, config: Path) -> str:
        """The command that repeats this run with larger kappas; empty if its configuration is not in a file."""
        varied = "--kappas 0.1,0.05,0.02" if 0 in self.report.get("kappas", {}).values() else "--factors 4,2,1"
        return f"fcco front --config {shlex.quote(str(config))} {varied}" if config.is_file() else ""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn of constraints for which no batch has had samples so far."""
        if not isinstance(pl_module, FCCOModule) or pl_module.problem is None:
            return
        for name in unseen_rows(pl_module.problem):
            if name not in self._unseen:
                self._unseen.add(name)
                rank_zero_warn(
                    f"the constraint {name!r} is not enforced: no batch of {trainer.current_epoch + 1} epoch(s) has "
                    "contained samples of its subset. They are too few, or the loader leaves them out. Draw them more "
                    "often (`batches: GroupSampling`), or use larger batches."
                )

    def _unconstrained(self, module: FCCOModule, name: str, split: Split) -> dict[str, Any]:
        nothing: dict[str, Any] = {}
        item = f"unconstrained figures ({name})"
        return self.left_out.make(item, lambda: _with_tables(module.figures(split)[0]), nothing)

    def _write(self, folder: Path, evaluation: Evaluation, final: dict[str, Split]) -> None:
        self._folder = folder
        self.left_out.make(REPORT, partial(write_report, self.report, folder / REPORT), None)
        if self.pictures:
            nothing: Pictures = {}
            pictures = self.left_out.make("pictures", partial(evaluation.pictures, self.history, final), nothing)
            pictures |= {
                "multipliers.png": partial(plot_multipliers, self.history),
                **report_pictures(self.report),
            }
            self.left_out.make_all({name: partial(picture, folder / name) for name, picture in pictures.items()})
        if self.table:
            tables = self.left_out.make_all(table_makers(self.report, PRINTED_ROWS))
            printed = partial(print_tables, tables, self.report.get("verdict"))
            self.left_out.make("the printed report", printed, None)
        rank_zero_info(f"Report and pictures: {folder} (report.html shows all)")
        saved = self.report.get("checkpoint")
        if saved is not None and Path(saved).name in (FEASIBLE, RECOVERED):
            path = os.path.normpath(folder / saved)
            rank_zero_info(f"Checkpoint of the reported weights, for predictions: {path} (to resume, use last.ckpt)")


def figures_of_split(
    module: FCCOModule,
    name: str,
    split: Split,
    left_out: LeftOut,
    clusters_in: Callable[[Columns], Tensor | None] = lambda _: None,
) -> dict[str, Any]:
    """The entries of a split in a report: figures, details, multipliers and intervals, if they can be computed.

    Args:
        module: the module whose outputs are evaluated.
        name: name of the split.
        split: the result of :meth:`FCCOModule.evaluate`.
        left_out: records entries that cannot be computed.
        clusters_in: function from columns to the clusters of the samples, shape (n,), for the intervals; or to None if
            all samples are independent.
    """

    def bounds() -> dict[str, Any]:
        by_name = intervals(
            module.constraints,
            split.outputs,
            split.columns,
            clusters=clusters_in(split.columns),
            decisions=follows_decisions(module.penalty),
        )
        return {constraint: interval._asdict() for constraint, interval in by_name.items()}

    def details() -> dict[str, Any]:
        return as_json(module.details(split))

    make, nothing = left_out.make, dict[str, Any]()
    summary = make(f"figures ({name})", lambda: _with_tables(module.summarise(name, split)), nothing)
    described = make(f"details ({name})", details, nothing)
    parts = {
        "multipliers": module.multipliers(),
        "intervals": make(f"intervals ({name})", bounds, nothing),
        "vacuous_because": module.vacuous_because.get(name),
    }
    return {**summary, **described, **{part: value for part, value in parts.items() if value}}


def _callbacks(trainer: Trainer, kind: type[T]) -> list[T]:
    return [callback for callback in trainer.callbacks if isinstance(callback, kind)]  # type: ignore[attr-defined]


def _choice(trainer: Trainer) -> BestFeasible:
    return next(iter(_callbacks(trainer, BestFeasible)), BestFeasible())


def unseen_rows(problem: Problem) -> list[str]:
    """The names of the rows of constraints that have a running estimate but no batch so far."""
    terms = problem.all_terms[len(problem.all_terms) - len(problem.constraints) :]
    return [
        constraint.names[i]
        for constraint, term in zip(problem.constraints, terms, strict=True)
        if term.state is not None and not term.state.partial
        for i in (~term.state.seen).nonzero().flatten().tolist()
    ]


def _lost(records: Sequence[Mapping[str, tuple[list[int], int]]]) -> dict[str, Any]:
    """Merge the records of all processes about data that could not be read."""
    sizes = {column: size for process in records for column, (_, size) in process.items()}
    rows = {column: {row for process in records for row in process.get(column, ([], 0))[0]} for column in sizes}
    lost = [{"what": column, "lost": len(rows[column]), "of": size} for column, size in sizes.items()]
    return {"lost": lost} if lost else {}


def _checkpoint(trainer: Trainer, module: FCCOModule, folder: Path, *, chosen: bool) -> dict[str, Any]:
    """The file of the report's weights, relative to its folder, so that both can be moved together."""
    saver = trainer.checkpoint_callback
    if not isinstance(saver, ModelCheckpoint) or not saver.dirpath:
        return {}
    special = FEASIBLE if chosen else RECOVERED if getattr(module.algorithm, "recovery_steps", 0) else None
    last_path = saver.last_model_path
    if not last_path and saver._last_global_step_saved == trainer.global_step:
        last_path = saver._last_checkpoint_saved
    saved = Path(last_path) if special is None else Path(saver.dirpath) / special
    return {"checkpoint": os.path.relpath(saved, folder)} if saved.is_file() else {}


def _with_tables(summary: dict[str, float]) -> dict[str, Any]:
    """Make ``vacuous`` a bool, and move constraint values to ``constraints``, those on decisions to ``decided``."""
    figures: dict[str, Any] = {k: v for k, v in summary.items() if not k.startswith(("h/", "decided/"))}
    if "vacuous" in figures:
        figures["vacuous"] = bool(figures["vacuous"])
    for prefix, name in (("h/", "constraints"), ("decided/", "decided")):
        if table := {k.removeprefix(prefix): v for k, v in summary.items() if k.startswith(prefix)}:
            figures[name] = table
    return figures
