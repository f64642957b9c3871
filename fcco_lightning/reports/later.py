"""Evaluation of trained weights on labelled rows that were collected later."""

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
from fcco_lightning.reports.report import figures_of_split
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
    """Evaluate the weights of a checkpoint on a labelled table, and report all that a run reports for a split.

    The table is encoded like the training split, decisions are those of the checkpoint, and classes and groups are
    those of the training table.  Rows without a group, or with one that does not occur in training, are counted and
    left out of figures and constraints on groups.  A constraint without rows is left out, with the reason.

    Args:
        path: path of a checkpoint that ``fcco fit`` wrote, with a datamodule of tables or texts.
        table: a table, as for a datamodule (file, folder, hub id, DataFrame), with the label.
        network: the network, as for :func:`~fcco_lightning.load`.
        trusted: full names of the user's own classes that the checkpoint may name, as for
            :func:`~fcco_lightning.load`.
        importances: whether to measure permutation importances of the columns, see
            :func:`~fcco_lightning.reports.importances.importances_of`.

    Raises:
        CheckpointError: if the file is no checkpoint, or its weights belong to another network.
        ConfigError: if the network or a part is not known, or of a class that is not trusted; or if importances are
            asked for and the table is one of texts.
        DataError: if the table lacks a required column, or has a label that does not occur in training.

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
    assert predictor.encoder is not None  # noqa: S101 - checkpoints with columns have an encoder
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
    """Make the report of outputs on the samples of a datamodule.

    Args:
        module: a module with the evaluation, the decision rule, and the original constraints, which are adapted to the
            data.
        data: a datamodule whose split "test" has the n samples.
        outputs: outputs of the network, with first dimension n.
        lost: reason -> number of samples that it leaves out.
        left_out: items that have been left out already.
        about: further entries of the report, among them ``clusters``, a column, if samples are not independent.
        features: features of the samples, if importances are asked for.

    Raises:
        DataError: if the evaluation cannot be computed for these samples.
    """
    data.setup()
    split = Split(outputs, data.tables[_SPLIT].columns)
    adapted = partial(_adapted, module=module, data=data, split=split)
    module.constraints = left_out.make_all(
        {f"constraint {k}, {type(c).__name__}": partial(adapted, c) for k, c in enumerate(module.constraints, 1)}
    )
    module.evaluation.take_names(data)  # after the constraints: also names of their groups
    figures = figures_of_split(module, _SPLIT, split, left_out, partial(_clusters, data, about.get("clusters")))
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
    """Return the constraint adapted to the data, or raise an error with the reason why it cannot be evaluated."""
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
    """A module with those parts of a configuration that figures depend on."""
    arguments = {
        name: part_of(model[name], trusted, file) for name in ("objective", "penalty", "evaluation") if model.get(name)
    }
    constraints = [part_of(description, trusted, file) for description in model.get("constraints") or ()]
    module = FCCOModule(network, constraints=constraints, **arguments)
    module.rule = rule
    return module


class _TrainingColumns:
    """Reads labels and groups of a table by the description of the training table in a checkpoint.

    Args:
        content: content of the checkpoint.
        config: configuration of the run that wrote it.
        file: name of the checkpoint in messages.

    Attributes:
        class_names, group_names: names of classes and groups in the run's datamodule.
        groups_by: column -> its values, for columns that define groups for constraints.

    Raises:
        ConfigError: if the run had no table with labels.
    """

    def __init__(self, content: Mapping[str, Any], config: Mapping[str, Any], file: str) -> None:
        arguments = (config.get("data") or {}).get("init_args") or {}
        if not arguments.get("columns"):
            raise ConfigError(
                f"{file} does not name a label column: it was not written by `fcco fit` with a datamodule of tables or "
                "texts. Use `fcco test --config CONFIG --ckpt_path CKPT`, which evaluates the test split of CONFIG."
            )
        columns, groups = TableColumns(**{**arguments["columns"], "drop": []}), arguments.get("groups")
        self._columns, self._groups = columns, Groups(**groups) if groups else None
        state = next(s for s in content.values() if isinstance(s, Mapping) and "train_split" in s)
        self.class_names: list[str] = content["fcco"].get("classes") or []
        self.group_names: list[str] = state["train_split"].get("names of groups", [])
        self.groups_by: dict[str, list[str]] = dict(state.get("groups_by") or {})

    @property
    def groups(self) -> dict[str, list[str]]:
        """Column -> its values that are groups, for columns in which other values belong to no group."""
        sensitive = self._columns.sensitive
        listed = isinstance(sensitive, str) and not (self.group_names and self.group_names[0].startswith("not "))
        return {**({str(sensitive): self.group_names} if listed else {}), **self.groups_by}

    @property
    def texts(self) -> list[str]:
        """The columns of labels and groups that held texts in training."""
        classes = {self._columns.label: self.class_names} if isinstance(self._columns.label, str) else {}
        return [name for name, values in {**classes, **self.groups}.items() if not all(map(is_value, values))]

    def read(self, frame: pd.DataFrame, where: str, left_out: LeftOut) -> tuple[TableRows, dict[str, int]]:
        """The rows with their labels and groups, without those that have no group by ``groups.by``, which are counted.

        Raises:
            DataError: if there is no label, or one that does not occur in training.
        """
        columns, groups = self._columns, self._groups
        if not isinstance(columns.sensitive, str):  # constraints refer to columns of a list themselves
            columns = replace(columns, sensitive=None)
        group_columns = [part.column for part in groups.parts] if groups is not None else columns.sensitive_columns
        has_columns = partial(_has_columns, frame, where=where)
        weights = [columns.weight] if columns.weight else []
        if not left_out.make("weights of samples", partial(has_columns, "weights", weights), False):
            columns = replace(columns, weight=None)
        if not left_out.make("everything about groups", partial(has_columns, "groups", group_columns), False):
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
            raise DataError(
                f"no row of {where} belongs to one of the groups of training, {self.group_names}. Check the columns "
                "that define the groups."
            )
        return rows.take(in_group.nonzero().flatten()), {"rows of no group of training": int((~in_group).sum())}


def _has_columns(frame: pd.DataFrame, role: str, columns: Sequence[str], where: str) -> bool:
    require_columns(frame, {f"the column of {role}": columns}, where)
    return True
