"""Defaults of ``fcco fit`` for a table, which depend on its label, its groups and its size."""

import contextlib
import json
import math
from collections.abc import Mapping

import pandas as pd

from fcco_lightning import recipes
from fcco_lightning.cli.yaml_files import load_yaml
from fcco_lightning.data.columns import holds_texts, is_number, require_columns, text_of, with_commas
from fcco_lightning.data.sources import read_table

_MOST_CLASSES = 20  # labels with more distinct numbers are no classes
_LARGEST = 1e38  # about the largest number in float32
_EPOCHS, _VALIDATIONS = 20, 20
_ENOUGH = 100  # rows of every class (of every group) from which on some are held out
_SMALL_GROUP = 0.1  # assumed share of the smallest group, if it is not known
_IN_A_CELL = 8  # smallest number of samples of a class and combination of groups in a batch
_KAPPA = 0.02  # kappa of the default constraints
_UNIFORM = 128  # default number of samples in a batch
_BY_RECIPE = ("CrossEntropy", "AUC", "AveragePrecision", "CVaRPartialAUC", "KLPartialAUC", "RecallAtK")  # for these
_ALL_FOR_TRAINING = ("CrossEntropy", "AveragePrecision", "RecallAtK", "SquaredError")
"""Objectives that need no calibration, or all of the few positives."""
_ALONE = (".cross_entropy", ".sigmoid")  # arguments that may keep cross-entropy from being added to an objective
_LABEL, _SENSITIVE, _POSITIVE = "--data.columns.label", "--data.columns.sensitive", "--data.columns.positive"


def table_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """Return the default options of a table, including some that are given.

    An argument that is given replaces its default.  A class that is named, or an argument that the default class may
    not have, replaces all defaults of that part.

    Args:
        given: values of the options that the command line or a configuration sets, by name.

    Raises:
        DataError: if the table cannot be read, or lacks the column of a label or of groups.

    Example:
        >>> table_defaults({"--data.train": "t.csv", "--data.columns.label": "y"})  # doctest: +SKIP
        {'--data': 'TabularDataModule', '--data.splits.test_fraction': '0.2', ...}
    """
    return _Defaults(given).options


def names_in(value: str) -> list[str]:
    """The names of columns in an option's value, one or a list."""
    names = load_yaml(value, "columns") if value.startswith("[") else [value] if value else []
    return [str(name) for name in names]


class _Defaults:
    """The default ``options`` by name, from the given ones, the table ``frame`` and its columns of a label and groups.

    ``labels`` is None for several labels or empty ones; ``groups`` are combinations if of several columns, or None.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given, self.frame = given, read_table(given["--data.train"], "data.train")
        label, columns = given.get(_LABEL, ""), names_in(given.get(_SENSITIVE, ""))
        required = {"columns.label": names_in(label), "columns.sensitive": columns}
        require_columns(self.frame, required, "the train table")
        labels = self.frame[label].dropna() if label in self.frame else None
        self.labels = None if labels is None or labels.empty else labels  # the data module refuses an empty column
        self.columns, filled = columns, self.frame[columns].dropna()
        self.groups: pd.Series | None = None
        if columns and len(filled):
            self.groups = filled[columns[0]] if len(columns) == 1 else filled.astype(str).agg(" ".join, axis=1)
        self.objective = given.get("--model.objective")
        self.perceptron = given.get("--model.network", "TabularMLP") == "TabularMLP"
        self.numbers = self.labels is not None and self._are_numbers(self.labels)

        self.options = {"--data": "TabularDataModule"}
        if "--data.test" not in given and "--data.splits" not in given:
            self.options["--data.splits.test_fraction"] = "0.2"
        self.options["--model.network"] = "TabularMLP"
        self._set_objective(label)
        self._set_validation()
        if {"--model.network", "--data.encoding.quantiles", "--data.encoding"}.isdisjoint(given):
            self.options["--data.encoding.pieces"] = "auto"  # a perceptron learns steps badly from a number alone
        self._set_training()
        if "--data.encoding" not in given and self._has_gaps():
            self.options["--data.encoding.missing"] = "impute"
        if self.groups is not None and len(columns) == 1 and self.groups.nunique() == 2:
            self.options["--data.columns.favoured"] = str(self.groups.value_counts().index[0])  # the larger one

    def _is_free(self, part: str, *arguments: str) -> bool:
        """Whether no option of a part is given except some of these arguments."""
        allowed = {f"{part}.{argument}" for argument in arguments}
        return not any(o == part or o.startswith(f"{part}.") for o in self.given.keys() - allowed)

    def _positive_number(self, name: str, usual: float) -> float:
        """The positive number of an option, or the default; other values are left to the parser to refuse."""
        with contextlib.suppress(ValueError):
            if 0 < (number := float(self.given.get(name, usual))) < math.inf:
                return number
        return usual

    def _are_numbers(self, labels: pd.Series) -> bool:
        """Whether labels are numbers to be predicted: by option, or because they are not whole or too many."""
        target = self.given.get("--data.columns.target")
        if target is not None or self.objective is not None:
            return target == "number" or (target is None and self.objective == "SquaredError")
        if labels.nunique() <= 2:
            return False
        if with_commas(labels):
            return True  # the data module refuses them with advice
        return is_number(labels.dtype) and (labels.nunique() > _MOST_CLASSES or bool((labels % 1 != 0).any()))

    def _has_gaps(self) -> bool:
        """Whether a column that may be a feature has missing cells."""
        uses_groups = self.given.get("--data.columns.use_sensitive") == "true"
        roles = [_LABEL, "--data.columns.drop", "--data.columns.weight", *([] if uses_groups else [_SENSITIVE])]
        others = {name for role in roles for name in names_in(self.given.get(role, ""))}
        return bool(self.frame[self.frame.columns.difference([*others])].isna().any(axis=None))

    def _set_objective(self, label: str) -> None:
        """Set the objective, and the arguments of data and network that depend on the label."""
        options, labels = self.options, self.labels
        classes = 0 if labels is None or _POSITIVE in self.given else labels.nunique()  # 0: not to be counted
        if label.startswith("["):
            options["--model.objective"] = "MeanAveragePrecision"
            if "--data.columns.missing" in self.given and self.objective is None:
                options["--model.objective.missing"] = "-1"
            if self.perceptron:
                options["--model.network.out_features"] = str(label.count(",") + 1)
        elif labels is None or not classes:
            self._set_objective_of_two_classes()
        elif self.numbers:
            options |= {"--data.columns.target": "number", "--model.objective": "SquaredError"}
            if self.perceptron and is_number(labels.dtype):  # else the data module refuses the label
                self._set_mean_and_deviation(labels)
        elif classes > 2 and self.objective in (None, "CrossEntropy"):
            options |= {"--model.objective": "CrossEntropy", "--model.evaluation": "ClassEvaluation"}
            if self.perceptron:
                options["--model.network.out_features"] = str(classes)
        else:
            if classes == 2 and holds_texts(labels):
                options[_POSITIVE] = max(text_of(labels).unique())
            self._set_objective_of_two_classes()

    def _set_mean_and_deviation(self, labels: pd.Series) -> None:
        """Set the network's offset and scale to the mean and the standard deviation of numbers, rounded."""
        deviation = float(f"{labels.std():.3g}") if len(labels) > 1 and labels.abs().max() < _LARGEST else 0.0
        if deviation > 0:
            digits = 2 - math.floor(math.log10(deviation))
            self.options["--model.network.offset"] = f"{round(float(labels.mean()), digits):.15g}"
            self.options["--model.network.scale"] = f"{deviation:g}"

    def _set_objective_of_two_classes(self) -> None:
        """Set the objective; with groups also constraints, unless these or an objective that ranks are given."""
        constrained = not self._is_free("--model.constraints")
        if not constrained and self.columns and self.objective in (None, "CrossEntropy"):
            constrained = True
            parities = [
                {"class_path": "EqualizedOdds", "init_args": {"by": column, "kappa": _KAPPA}} for column in self.columns
            ]
            if len(parities) > 1:
                self.options["--model.constraints"] = json.dumps(parities)
            else:
                self.options |= {"--model.constraints": "EqualizedOdds", "--model.constraints.kappa": str(_KAPPA)}
        # constraints are on decisions, which the AUC does not train
        decided = constrained or not self._is_free("--model.decisions")
        self.options["--model.objective"] = "CrossEntropy" if decided else "AUC"
        if self.perceptron and not constrained and self.objective in (None, *_BY_RECIPE):
            self._set_log_odds()

    def _set_log_odds(self) -> None:
        """Set the network's offset, where batches count samples as the table does and costs, if any, are known."""
        decisions = self.given.get("--model.decisions", "{}")
        counted = self._is_free("--data.batches", "batch_size") and self._is_free("--data.columns.weight")
        changed = {"--data.splits.remove_positives", "--data.splits", "--model.decisions.costs"} & self.given.keys()
        if self.labels is None or self.labels.nunique() != 2 or not counted or changed or decisions[:1] != "{":
            return
        texts = text_of(self.labels)
        positives = int((texts == self.given.get(_POSITIVE, max(texts.unique()))).sum())
        with contextlib.suppress(ValueError, TypeError, ZeroDivisionError):  # the parser refuses costs that are none
            costs = json.loads(decisions).get("costs", (1, 1))
            odds = float(f"{recipes.log_odds([len(texts) - positives, positives], costs):.3g}")
            if 0 < abs(odds) < math.inf:
                self.options["--model.network.offset"] = f"{odds:g}"

    def _set_validation(self) -> None:
        """Hold out rows to calibrate scores of two classes, if every class (of every group) has enough of them."""
        splits = ("--data.groups", *(f"--data.splits.{key}" for key in ("val_fraction", "whole", "remove_positives")))
        given = "--data.splits" in self.given or not all(map(self._is_free, splits))
        objective = self.objective or self.options["--model.objective"]
        # cross-entropy beside an objective makes its scores log-odds
        beside = self._is_free("--model.pretrain") and not any(name.endswith(_ALONE) for name in self.given)
        if objective in _ALL_FOR_TRAINING or (beside and objective in _BY_RECIPE):
            return
        if self.labels is None or self.labels.nunique() != 2 or given:
            return
        if self._cells(self.labels).min() >= _ENOUGH:
            self.options["--data.splits.val_fraction"] = "0.1"

    def _cells(self, labels: pd.Series) -> pd.Series:
        """Number of rows of every label or, with groups, of every existing combination of label and group."""
        if self.groups is None:
            return labels.value_counts()
        return labels.to_frame("label").join(self.groups.rename("group"), how="inner").value_counts()

    def _set_training(self) -> None:
        """Set batches, optimizer, schedule and epochs: for a perceptron that classifies or ranks, by the recipes."""
        labels, options = self.labels, self.options
        epochs = all(self._is_free(f"--trainer.{name}") for name in ("max_epochs", "max_steps", "max_time"))
        usual = self.perceptron and self.objective in (None, *_BY_RECIPE) and "--model.algorithm" not in self.given
        if labels is None or self.numbers or not usual:
            if labels is not None and len(labels) < 2 * _UNIFORM and self._is_free("--data.batches"):
                options["--data.batches"] = "UniformSampling"
                options["--data.batches.batch_size"] = str(max(1, len(labels) // 4))
            if epochs:
                options["--trainer.max_epochs"] = str(_EPOCHS)
            return
        n, constrained = self._training_rows(len(labels)), self.groups is not None
        constrained |= not self._is_free("--model.constraints")
        usual_size = min(recipes.BATCH_SIZE, max(1, n // 4))
        size = int(self._positive_number("--data.batches.batch_size", usual_size))
        if self._is_free("--data.batches", "batch_size"):
            self._set_batches(labels, size, constrained=constrained)
        steps = self._is_free("--model.optimizer", "lr", "weight_decay")
        if steps and "--model.schedule" not in self.given and self._is_free("--model.schedule.scheduler", "warm_up"):
            self._set_steps(labels.value_counts().tolist(), n / len(labels), constrained=constrained)
        if constrained and self._is_free("--model.penalty", "rate", "decisions"):
            options["--model.penalty"] = "AdaptivePenalty"
            options["--model.penalty.rate"] = f"{recipes.MULTIPLIER_RATE:g}"
            options["--model.penalty.decisions"] = "true"
            if self._is_free("--model.margin"):
                options["--model.margin"] = "auto"
        if epochs:
            count = recipes.epochs(n // size)
            options["--trainer.max_epochs"] = str(count)
            if count > _VALIDATIONS:
                options["--trainer.check_val_every_n_epoch"] = str(-(-count // _VALIDATIONS))

    def _training_rows(self, rows: int) -> int:
        """The number of rows of the table in the training split."""
        remaining = float(rows)
        for name in ("--data.splits.test_fraction", "--data.splits.val_fraction"):
            with contextlib.suppress(ValueError):  # the parser refuses other texts
                remaining *= 1 - float({**self.options, **self.given}.get(name, 0))
        return max(1, int(remaining))

    def _set_batches(self, labels: pd.Series, size: int, *, constrained: bool) -> None:
        """Set batches of ``size`` samples, drawn by class and group if uniform ones would have few of one of these.

        Several columns of groups are all combined, unless a batch then has too few samples of each combination.
        """
        cells = self._cells(labels)
        share = (cells.min() if len(cells) else 0) / len(labels) * (_SMALL_GROUP if self.groups is None else 1)
        is_rare = constrained and recipes.rare(share, size)
        self.options["--data.batches"] = "CellSampling" if is_rare else "UniformSampling"
        self.options["--data.batches.batch_size"] = str(size)
        if is_rare and self.groups is not None and len(self.columns) > 1 and len(cells) * _IN_A_CELL <= size:
            self.options["--data.batches.columns"] = json.dumps(["y", *self.columns])

    def _set_steps(self, sizes: list[int], share: float, *, constrained: bool) -> None:
        """Set optimizer and schedule for classes of these sizes, a share of which is used for training."""
        alike = self.given.get("--model.decisions") != "balanced"
        effective = share * recipes.effective_size(sizes, [1.0 if alike else 1 / size for size in sizes])
        decay = recipes.weight_decay(effective, costed=constrained and not alike)
        lr = self._positive_number("--model.optimizer.lr", recipes.LEARNING_RATE)
        self.options |= {
            "--model.optimizer": "AdamW",
            "--model.optimizer.lr": f"{lr:g}",
            "--model.optimizer.weight_decay": f"{decay / lr:.3g}",
            "--model.schedule.scheduler": "LinearWarmUp",
            "--model.schedule.scheduler.warm_up": "0",
            "--model.schedule.interval": "step",
        }
        if constrained and not alike:
            self.options["--model.schedule.decay_spread"] = f"{recipes.DECAY_SPREAD:g}"
