"""What trained weights achieve on labelled rows that came later."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor, nn

from fcco_lightning.constraints import Constraint, DecisionRule
from fcco_lightning.constraints.multipliers import follows_decisions
from fcco_lightning.data.columns import is_value, require_columns
from fcco_lightning.data.datamodules.arrays import NamedTensors, counts_of_no_group
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns as TableColumns
from fcco_lightning.data.roles import Roles, TableRows, of_mean_one
from fcco_lightning.data.sources import shown
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.evaluation import Split
from fcco_lightning.evaluation.split import inner_values
from fcco_lightning.inference.networks import part_of
from fcco_lightning.inference.predictor import predictor_of
from fcco_lightning.models.batch import SAMPLE_WEIGHT, Columns
from fcco_lightning.reports.feasible import kappas_of
from fcco_lightning.reports.importances import Features, columns_of_features, importances_of
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.report import figures_of
from fcco_lightning.reports.run import SplitReport
from fcco_lightning.reports.verdict import headline, verdict
from fcco_lightning.state.checkpoint_files import in_words, read_file
from fcco_lightning.training import FCCOModule

_SPLIT = "test"


def report_on(
    path: str | Path,
    table: Any,
    network: nn.Module | None = None,
    *,
    trusted: Sequence[str] = (),
    importances: bool = False,
) -> SplitReport:
    """What the weights of a checkpoint achieve on a labelled table: all that a run reports of a split.

    The table is encoded as the training split was, decisions are those of the checkpoint, and classes and groups are
    those of the training table.  Rows of no group that training knows (an empty cell, another value) are counted, and
    left out of what is about groups.  A constraint for which the table has no rows is left out, with the reason.

    Args:
        path: of a checkpoint that ``fcco fit`` wrote, with a datamodule of tables or texts.
        table: as a datamodule takes it (file, folder, hub id, DataFrame), with the label.
        network: as for :func:`~fcco_lightning.load`.
        trusted: full names of classes of one's own that the checkpoint may name, likewise.
        importances: also measure what shuffling one column of the table costs, see
            :func:`~fcco_lightning.reports.importances.importances_of`.

    Raises:
        CheckpointError: if the file is no checkpoint, or its weights are those of another network.
        ConfigError: if the network or a part is not known, or of a class that is not trusted; or if importances are
            asked for, and the table is one of texts.
        DataError: if the table lacks a column that is needed, or has a label that training does not know.

    Example:
        >>> report_on("last.ckpt", "later.csv").figures["auc"]  # doctest: +SKIP
    """
    content, file = read_file(path, whole=True), f"checkpoint {path}"
    predictor = predictor_of(content, network, trusted=trusted, file=file)
    made_of = columns_of_features(predictor.encoder, "importances=True") if importances else []
    config: Mapping[str, Any] = content["fcco"].get("config") or {}
    with in_words(f"{file}: its objective, constraints and evaluation"):
        module = _module_of(config.get("model") or {}, predictor.network, predictor.rule, trusted, file)
    with in_words(f"{file}: what the columns of its table mean"):
        meaning = _TrainingColumns(content, config, file)
    frame, left_out = predictor.read(table, meaning.texts), LeftOut()
    rows, lost = meaning.read(frame, f"the table {shown(table)}", left_out)
    data = NamedTensors(rows.columns, rows.table, meaning.class_names, meaning.group_names, meaning.groups_by)
    about = {
        "table": shown(table).strip("'"),
        "checkpoint": str(Path(path).absolute()),
        "config": config,
        "clusters": (config.get("feasible") or {}).get("clusters"),
    }
    lost |= counts_of_no_group(rows.table, meaning.groups)
    outputs = predictor.outputs_of(rows.table)
    if not importances:
        return report_of(module, data, outputs, lost, left_out, about)
    assert predictor.encoder is not None  # noqa: S101 - it has columns
    (x,) = predictor.encoder.batches(rows.table, len(rows))
    return report_of(module, data, outputs, lost, left_out, about, Features(x, made_of, lambda x, _: predictor(x)))


def report_of(
    module: FCCOModule,
    data: SplitDataModule,
    outputs: Tensor,
    lost: Mapping[str, int],
    left_out: LeftOut,
    about: Mapping[str, Any],
    features: Features | None = None,
) -> SplitReport:
    """The report of outputs on the samples of a datamodule.

    Args:
        module: with the evaluation, the decisions, and the constraints as they were asked for, which the data adapt.
        data: of n samples, its split "test".
        outputs: of the network, with first dimension n.
        lost: number of samples that something leaves out, by what it is.
        left_out: what has been left out already.
        about: further entries of the report, among them ``clusters``, a column, if samples are not independent.
        features: of the samples, if importances are asked for.

    Raises:
        DataError: if the evaluation has no figures of such samples.
    """
    data.setup()
    split = Split(outputs, data.tables[_SPLIT].columns)
    adapted = partial(_adapted, module=module, data=data, split=split)
    module.constraints = left_out.make_all(
        {f"constraint {k}, {type(c).__name__}": partial(adapted, c) for k, c in enumerate(module.constraints, 1)}
    )
    module.evaluation.take_names(data)  # of the columns, too, by which constraints group
    figures = figures_of(module, _SPLIT, split, left_out, partial(_clusters, data, about.get("clusters")))
    if reason := left_out.get(f"figures ({_SPLIT})"):
        raise DataError(f"there is nothing to report: {reason}")
    if features is not None:
        figure = (about.get("config", {}).get("feasible") or {}).get("figure")
        measure = partial(importances_of, features, split.columns, module.evaluation, figure)
        importances = left_out.make("importances", measure, None)
        figures |= {} if importances is None else {"importances": importances}
    lost_records = [{"what": what, "lost": count, "of": len(outputs)} for what, count in lost.items()]
    report = {_SPLIT: figures, "kappas": kappas_of(module), "decisions": follows_decisions(module.penalty), **about}
    report = {name: value for name, value in {**report, "lost": lost_records}.items() if value}
    bar = module.evaluation.bar
    line = {"verdict": verdict(report, (*bar, "roc_gap")), "headline": headline(report, bar)}
    report |= next(({name: sentence} for name, sentence in line.items() if sentence), {})
    title = " judged by ".join(Path(about[name]).name for name in ("table", "checkpoint") if about.get(name))
    return SplitReport(report, [], module.evaluation, {_SPLIT: split}, left_out, title or "Later samples")


def _adapted(constraint: Constraint, module: FCCOModule, data: SplitDataModule, split: Split) -> Constraint:
    """The constraint, which knows the data; the error that it raises says why it can't be measured on them."""
    constraint.decide_by(module.rule.decisions)
    constraint.adapt(data)
    constraint.subsets(split.columns)
    inner_values(constraint, split.outputs.double(), split.columns)
    return constraint


def _clusters(data: SplitDataModule, column: str | None, columns: Columns) -> Tensor | None:
    return None if column is None else columns[data.add_clusters(column)]


def _module_of(
    model: Mapping[str, Any], network: nn.Module, rule: DecisionRule, trusted: Sequence[str], file: str
) -> FCCOModule:
    """The model that a configuration describes, as far as figures need it."""
    arguments = {
        name: part_of(model[name], trusted, file) for name in ("objective", "penalty", "evaluation") if model.get(name)
    }
    constraints = [part_of(description, trusted, file) for description in model.get("constraints") or ()]
    module = FCCOModule(network, constraints=constraints, **arguments)
    module.rule = rule
    return module


class _TrainingColumns:
    """The description in a checkpoint of the columns of its training table.

    Args:
        content: of the checkpoint.
        config: of the run that wrote it.
        file: how messages name it.

    Attributes:
        class_names, group_names: as of the datamodule of the run.
        groups_by: column -> its values, where constraints group by it.

    Raises:
        ConfigError: if the run had no table with labels.
    """

    def __init__(self, content: Mapping[str, Any], config: Mapping[str, Any], file: str) -> None:
        arguments = (config.get("data") or {}).get("init_args") or {}
        if not arguments.get("columns"):
            raise ConfigError(
                f"{file} does not say which column is the label: it was not written by `fcco fit` with a datamodule of "
                "tables or texts. Use `fcco test --config CONFIG --ckpt_path CKPT`, which takes its test split."
            )
        columns, groups = TableColumns(**{**arguments["columns"], "drop": []}), arguments.get("groups")
        self._columns, self._groups = columns, Groups(**groups) if groups else None
        state = next(s for s in content.values() if isinstance(s, Mapping) and "train_split" in s)
        self.class_names: list[str] = content["fcco"].get("classes") or []
        self.group_names: list[str] = state["train_split"].get("names of groups", [])
        self.groups_by: dict[str, list[str]] = dict(state.get("groups_by") or {})

    @property
    def groups(self) -> dict[str, list[str]]:
        """Column -> those of its values that are groups, where not any value is of one."""
        sensitive = self._columns.sensitive
        listed = isinstance(sensitive, str) and not (self.group_names and self.group_names[0].startswith("not "))
        return {**({str(sensitive): self.group_names} if listed else {}), **self.groups_by}

    @property
    def texts(self) -> list[str]:
        """The columns of labels and groups that held texts in training."""
        classes = {self._columns.label: self.class_names} if isinstance(self._columns.label, str) else {}
        return [name for name, values in {**classes, **self.groups}.items() if not all(map(is_value, values))]

    def read(self, frame: pd.DataFrame, where: str, left_out: LeftOut) -> tuple[TableRows, dict[str, int]]:
        """The rows with their labels and groups, and how many were of no group by ``groups.by``, which are taken out.

        Raises:
            DataError: if there is no label, or one that training does not know.
        """
        columns, groups = self._columns, self._groups
        if not isinstance(columns.sensitive, str):  # constraints name those of a list themselves
            columns = replace(columns, sensitive=None)
        group_columns = [part.column for part in groups.parts] if groups is not None else columns.sensitive_columns
        has_columns = partial(_has_columns, frame, where=where)
        weights = [columns.weight] if columns.weight else []
        if not left_out.make("weights of samples", partial(has_columns, "weights", weights), False):
            columns = replace(columns, weight=None)
        if not left_out.make("what is about groups", partial(has_columns, "groups", group_columns), False):
            columns, groups = replace(columns, sensitive=None, favoured=None), None
        roles = Roles(columns, groups)
        roles.know(self.class_names, self.group_names)
        values = roles.read(frame, where)
        if SAMPLE_WEIGHT in values:
            values["weight"] = of_mean_one(values.pop(SAMPLE_WEIGHT), where)
        rows = TableRows(frame, values)
        if groups is None:
            return rows, {}
        in_group = rows.columns["group"] >= 0
        if not bool(in_group.any()):
            raise DataError(f"no row of {where} is of a group of training, which are {self.group_names}.")
        return rows.take(in_group.nonzero().flatten()), {"rows of no group of training": int((~in_group).sum())}


def _has_columns(frame: pd.DataFrame, role: str, columns: Sequence[str], where: str) -> bool:
    require_columns(frame, {f"the column of {role}": columns}, where)
    return True
