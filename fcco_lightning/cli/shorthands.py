"""Expansion of the command line: short words, and defaults for options that are left out."""

import contextlib
import inspect
import json
import math
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcco_lightning import recipes
from fcco_lightning.checks import check_file
from fcco_lightning.cli.named_configs import with_files
from fcco_lightning.cli.yaml_files import by_key, load_yaml, read_yaml
from fcco_lightning.data.text_files import require_text
from fcco_lightning.errors import ConfigError, printable_lines

if TYPE_CHECKING:
    import pandas as pd

_CONFIGS = (".yaml", ".yml", ".json")
_CONSTRAINTS, _DECISIONS = "--model.constraints", "--decisions"
_MOST_CLASSES = 20  # labels with more distinct numbers are no classes
_LARGEST = 1e38  # about the largest number in float32
_TEST_FRACTION, _VAL_FRACTION, _EPOCHS, _VALIDATIONS = "0.2", "0.1", "20", 20
_ENOUGH = 100  # rows of every class (of every group) from which on some are held out
_SMALL_GROUP = 0.1  # assumed share of the smallest group, if it is not known
_IN_A_CELL = 8  # smallest number of samples of a class and combination of groups in a batch
_KAPPA = "0.02"  # kappa of the default constraints
_UNIFORM = 128  # default number of samples in a batch
_BY_RECIPE = ("CrossEntropy", "AUC", "AveragePrecision", "CVaRPartialAUC", "KLPartialAUC", "RecallAtK")  # for these
_PIECES = ("--data.encoding.pieces", "--data.encoding.quantiles", "--data.encoding")  # exclude each other
_BATCH_SIZE = "--data.batches.batch_size"
_LABEL, _SENSITIVE = "--data.columns.label", "--data.columns.sensitive"
_PERCEPTRON, _OF_NUMBERS = "TabularMLP", "SquaredError"
_ALIKE = "EqualizedOdds"  # default constraint if groups are named
_NULLS = ("null", "None", "~")
_RECORDS = "columns|groups|splits|encoding|images|transform|noise|texts|tokens|digits|model|classes|pairs"
_FIELD = re.compile(rf"--data\.(?:init_args\.)?({_RECORDS})\.(\w+)")
_CLASS = re.compile(r"(?:\w+\.)*[A-Z]\w*")
_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
SHORT = {  # words for options of `fit`, and for those below them
    **{f"--{name}": f"--data.columns.{name}" for name in ("label", "positive", "sensitive", "favoured")},
    **{f"--{name}": f"--model.{name}" for name in ("objective", "constraints", "network", "algorithm", "optimizer")},
    "--test": "--data.test",
    "--batch_size": "--data.batches.batch_size",
    "--lr": "--model.optimizer.lr",
    "--epochs": "--trainer.max_epochs",
    "--seed": "--seed_everything",
}


def written_out(args: Sequence[str]) -> list[str]:
    """Return the parser's arguments for a command line with short words.

    - ``fit t.csv --label y --seed 3``: a table as the first word, and short words for the most frequent options.
    - Names of configurations become their files.
    - Constraints by name, ``--model.constraints A,B`` and ``--model.constraints+=C``, become a list of classes, and
      ``--model.constraints.ARGUMENT VALUE`` an argument of those that were named last.
    - ``--decisions balanced`` or ``--decisions.share 0.1`` becomes an argument of the model.
    - ``fit`` on a table: options that neither the command line nor a configuration sets get defaults that depend on the
      label, which are printed; none if the datamodule is named.
    - ``test`` and ``validate`` of a checkpoint without configuration or data use those of the run that wrote it.

    Example:
        >>> written_out(["fit", "--model.constraints", "EqualizedOdds", "--model.constraints.kappa", "0.02"])
        ['fit', '--model.constraints=[{"class_path": "EqualizedOdds", "init_args": {"kappa": 0.02}}]']
    """
    for arg in args:
        path = Path(arg.rpartition("=")[2])
        if path.suffix in _CONFIGS and path.is_file():
            require_text(path, str(path))
    arguments = list(_with_nulls(_with_constraints(_with_decisions(with_files(_in_full(args))))))
    table = _options(arguments).get("--data", "")
    if table.endswith(_TABLES):
        way = f"is given by --data.train {table}, from which the datamodule follows."
        if arguments[:1] == ["predict"]:
            way = f"is predicted by fcco predict CKPT {table}."
        raise ConfigError(f"--data {table} names no datamodule: a table {way}")
    return [*_with_assumptions(arguments)] if arguments[:1] == ["fit"] else _with_config_of_run(arguments)


def _in_full(args: Sequence[str]) -> list[str]:
    """The arguments, with options instead of the table as first word and the short words of ``fit``."""
    if args[:1] != ["fit"]:
        return [*args]
    table = ["--data.train"] if len(args) > 1 and args[1].endswith(_TABLES) and not args[1].startswith("-") else []
    return ["fit", *table, *map(_full, args[1:])]


def _full(arg: str) -> str:
    short = re.match(r"--\w+", arg)
    return arg if short is None or short[0] not in SHORT else SHORT[short[0]] + arg[short.end() :]


def _with_nulls(args: Iterable[str]) -> Iterator[str]:
    """The arguments, with ``null`` in fields of the data's settings as null, which the parser would read as a text."""
    arguments: list[str] = []
    for arg in args:
        if arg in _NULLS and arguments and _FIELD.fullmatch(arguments[-1]):
            arguments[-1] += f"={arg}"
        else:
            arguments.append(arg)
    for arg in arguments:
        name, _, value = arg.partition("=")
        field = _FIELD.fullmatch(name) if value in _NULLS else None
        yield arg if field is None else f"--data.{field[1]}={json.dumps({field[2]: None})}"


def _joined(args: Iterable[str], option: str) -> list[str]:
    """The arguments, with every option that begins with ``option`` and its value joined to one word."""
    joined: list[str] = []
    for arg in args:
        waiting = bool(joined) and joined[-1].startswith(option) and "=" not in joined[-1].rstrip("=")
        if waiting and not arg.startswith("--"):
            joined[-1] = f"{joined[-1].rstrip('=')}={arg}"
        else:
            joined.append(arg)
    return joined


def _with_decisions(args: Iterable[str]) -> Iterator[str]:
    """The arguments, with all options on decisions joined to one argument of the model."""
    for arg in _joined(args, _DECISIONS):
        field, equals, value = arg.removeprefix(_DECISIONS).partition("=")
        if not arg.startswith(_DECISIONS) or not equals:
            yield arg
        else:
            name = field.removeprefix(".")
            if not name:
                _require_purpose(value)
            yield f"--model.decisions={json.dumps({name: load_yaml(value, f'{_DECISIONS}.{name}')}) if name else value}"


def _require_purpose(value: str) -> None:
    """Refuse invalid values of ``--decisions`` with a better message than that of the parser about types."""
    if value in ("balanced", *_NULLS) or _CLASS.fullmatch(value) or Path(value).is_file():
        return
    if not isinstance(load_yaml(value, _DECISIONS), Mapping):
        raise ConfigError(
            f"{_DECISIONS} {value!r} is nothing that decisions can be for. Type {_DECISIONS} balanced, or one of "
            f"{_DECISIONS}.costs [1,10], {_DECISIONS}.share 0.1, {_DECISIONS}.tpr 0.8 and {_DECISIONS}.threshold 0.2."
        )


def _with_constraints(args: Iterable[str]) -> Iterator[str]:
    """The arguments, with names of constraints replaced by lists of classes."""
    pending: list[dict[str, Any]] = []
    option, joined = "", _joined(args, _CONSTRAINTS)
    for position, arg in enumerate([*joined, ""]):
        name, equals, value = arg.partition("=")
        if pending and equals and name.startswith(f"{_CONSTRAINTS}."):
            argument = name.removeprefix(f"{_CONSTRAINTS}.").removeprefix("init_args.")
            for constraint in pending:
                constraint.setdefault("init_args", {})[argument] = load_yaml(value, name)
            continue
        if pending:
            yield f"{option}={json.dumps(pending[0] if option.endswith('+') else pending)}"
            pending = []
        if name in (_CONSTRAINTS, f"{_CONSTRAINTS}+") and (classes := _classes(value)):
            option, pending = name, classes
        elif position < len(joined):  # a value, which may be empty
            yield arg


def _classes(value: str) -> list[dict[str, Any]]:
    """Class descriptions for names separated by commas; empty if the value is a file or a list."""
    names = [name.strip() for name in value.split(",")]
    return [{"class_path": name} for name in names] if all(map(_CLASS.fullmatch, names)) else []


def _with_assumptions(args: Sequence[str]) -> Iterator[str]:
    """The arguments of ``fit``, with defaults for options of a table that they and their configurations leave out."""
    options = {**_options_of_configs(args), **_options(args)}
    if "--data" in options or "--data.train" not in options:
        yield from args
        return
    assumed = {name: value for name, value in _assumed(options) if name not in options}
    assumptions = [f"{name} {shlex.quote(value)}" for name, value in assumed.items()]
    print(printable_lines(f"Defaults for this table, unless you set them: {' '.join(assumptions)}"), file=sys.stderr)  # noqa: T201 - the program's output
    arguments = [*_with_constraints(f"{name}={value}" for name, value in assumed.items())]
    args = list(_expanded_by_column(args, _column_names(options.get(_SENSITIVE, ""))))
    inside = [arg for arg in arguments if arg.startswith("--model.network.")]  # go after their class
    yield from [args[0], *(arg for arg in arguments if arg not in inside), *args[1:], *inside]


def _with_config_of_run(args: list[str]) -> list[str]:
    """The arguments of ``test`` and ``validate``, with the configuration of the checkpoint's run.

    Raises:
        CheckpointError: if there is no such checkpoint.
    """
    options = _options(args)
    folder = Path(options.get("--ckpt_path", "")).absolute().parent  # a run's FOLDER/checkpoints
    config = folder.parent / "config.yaml"
    explicit = {"--config", "-c", "--data", "--model", "--print_config", "--help", "-h"} & options.keys()
    if args[:1] not in (["test"], ["validate"]) or explicit:
        return args
    if options.get("--ckpt_path") not in (None, "last", "auto"):
        check_file(options["--ckpt_path"])
    if folder.name != "checkpoints" or not config.is_file():
        return args
    print(f"The configuration, as none is given: --config {config}", file=sys.stderr)  # noqa: T201
    return [args[0], f"--config={config}", *args[1:]]


def _options(args: Sequence[str]) -> dict[str, str]:
    """The options by name, with their values as typed; empty for options without a value."""
    values = {}
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        if arg.startswith("-"):
            name, equals, value = arg.partition("=")
            values[name] = value if equals else "" if following.startswith("--") else following
    return values


def _options_of_configs(args: Sequence[str]) -> dict[str, str]:
    """The settings in the configurations of a command line as options, such as ``--model.optimizer`` -> SGD."""
    values: dict[str, str] = {}
    for arg in _joined(_joined(args, "--config"), "-c"):
        option, _, file = arg.partition("=")
        if option in ("--config", "-c") and file:
            for key, value in by_key(read_yaml(Path(file), file) or {}):
                values[f"--{key}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return values


def _assumed(options: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the default options of a table, including some that are given in ``options``."""
    yield "--data", "TabularDataModule"
    if not {"--data.test", "--data.splits", "--data.splits.test_fraction"} & options.keys():
        yield "--data.splits.test_fraction", _TEST_FRACTION
    yield "--model.network", _PERCEPTRON
    frame = _table(options)
    label = options.get(_LABEL, "")
    labels, groups = frame[label].dropna() if label in frame else None, _groups(frame, options)
    if labels is not None and labels.empty:  # the data module refuses it
        labels = None
    label_options = (
        _several_labels_options(label.count(",") + 1, options)
        if label.startswith("[")
        else _single_label_options(labels, options)
    )
    held_out = {}
    for name, value in label_options:
        yield name, value
        if name == "--model.objective" and _is_to_be_calibrated(options.get(name, value), labels, groups, options):
            held_out = {"--data.splits.val_fraction": _VAL_FRACTION}
    yield from held_out.items()
    if not {"--model.network", *_PIECES} & options.keys():
        yield _PIECES[0], "auto"  # a perceptron learns steps and bends badly from a number alone
    yield from _training_options(labels, groups, {**options, **held_out})
    if not {"--data.encoding.missing", "--data.encoding"} & options.keys() and _has_gaps(frame, options):
        yield "--data.encoding.missing", "impute"
    if groups is not None and groups.name and groups.nunique() == 2 and "--data.columns.favoured" not in options:
        yield "--data.columns.favoured", str(groups.value_counts().index[0])  # the larger one


def _single_label_options(labels: "pd.Series | None", options: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the objective for a label, and the arguments of the network that depend on it."""
    from fcco_lightning.data.columns import holds_texts, is_number, text_of  # noqa: PLC0415 - loads pandas

    perceptron = options.get("--model.network", _PERCEPTRON) == _PERCEPTRON
    objective, positive = options.get("--model.objective"), "--data.columns.positive" in options
    if labels is not None and not positive and _are_numbers(labels, options):
        yield "--data.columns.target", "number"
        yield "--model.objective", _OF_NUMBERS
        # else the data module refuses the label
        if perceptron and is_number(labels.dtype) and len(labels) > 1 and float(labels.abs().max()) < _LARGEST:
            mean, deviation = float(labels.mean()), float(f"{labels.std():.3g}")
            if deviation > 0:
                digits = 2 - math.floor(math.log10(deviation))
                yield "--model.network.offset", f"{round(mean, digits):.15g}"
                yield "--model.network.scale", f"{deviation:g}"
    elif labels is not None and labels.nunique() > 2 and not positive and objective in (None, "CrossEntropy"):
        yield "--model.objective", "CrossEntropy"
        yield "--model.evaluation", "ClassEvaluation"
        if perceptron:
            yield "--model.network.out_features", str(labels.nunique())
    else:
        if labels is not None and not positive and labels.nunique() == 2 and holds_texts(labels):
            yield "--data.columns.positive", max(text_of(labels).unique())
        # constraints are on decisions, which the AUC does not train
        constrained = any(name.startswith(_CONSTRAINTS) for name in options)
        columns = _column_names(options.get(_SENSITIVE, ""))
        if not constrained and columns and objective in (None, "CrossEntropy"):
            if len(columns) > 1:
                parities = [
                    {"class_path": _ALIKE, "init_args": {"by": name, "kappa": float(_KAPPA)}} for name in columns
                ]
                yield _CONSTRAINTS, json.dumps(parities)
            else:
                yield _CONSTRAINTS, _ALIKE
                yield f"{_CONSTRAINTS}.kappa", _KAPPA
            constrained = True
        decided = constrained or _is_given(options, "--model.decisions")
        yield "--model.objective", "CrossEntropy" if decided else "AUC"
        if perceptron and not constrained and objective in (None, *_BY_RECIPE):
            yield from _offset_options(labels, options)


def _offset_options(labels: "pd.Series | None", options: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The log-odds of the positives, where batches count samples as the table does and costs, if any, are known."""
    from fcco_lightning.data.columns import text_of  # noqa: PLC0415 - loads pandas

    decisions = options.get("--model.decisions", "{}")
    counted = _only(options, "--data.batches", "batch_size") and not _is_given(options, "--data.columns.weight")
    changed = {"--data.splits.remove_positives", "--data.splits", "--model.decisions.costs"} & options.keys()
    if labels is None or labels.nunique() != 2 or not counted or changed or not decisions.startswith("{"):
        return
    texts = text_of(labels)
    positives = int((texts == options.get("--data.columns.positive", max(texts.unique()))).sum())
    with contextlib.suppress(ValueError, TypeError, ZeroDivisionError):  # the parser refuses costs that are none
        costs = json.loads(decisions).get("costs", (1, 1))
        odds = float(f"{recipes.log_odds([len(texts) - positives, positives], costs):.3g}")
        if 0 < abs(odds) < math.inf:
            yield "--model.network.offset", f"{odds:g}"


def _training_options(
    labels: "pd.Series | None", groups: "pd.Series | None", options: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield batches, optimizer, schedule and epochs: for a perceptron that classifies or ranks, those of the recipes.

    An argument that is typed replaces its default.  A class that is named, or an argument that the default class may
    not have, replaces all defaults of that part.
    """
    epochs = not _is_given(options, "--trainer.max_epochs", "--trainer.max_steps", "--trainer.max_time")
    others = {"--model.network": _PERCEPTRON, "--model.objective": None, "--model.algorithm": None}
    usual = all(options.get(name, default) in (default, *_BY_RECIPE) for name, default in others.items())
    if labels is None or not usual or _are_numbers(labels, options):
        if labels is not None and len(labels) < 2 * _UNIFORM and not _is_given(options, "--data.batches"):
            yield "--data.batches", "UniformSampling"
            yield "--data.batches.batch_size", str(max(1, len(labels) // 4))
        if epochs:
            yield "--trainer.max_epochs", _EPOCHS
        return
    n, constrained = _training_rows(len(labels), options), groups is not None or _is_given(options, _CONSTRAINTS)
    size = int(_number(options, _BATCH_SIZE, min(recipes.BATCH_SIZE, max(1, n // 4))))
    if _only(options, "--data.batches", "batch_size"):
        yield from _batch_options(labels, groups, size, constrained, options)
    steps = _only(options, "--model.optimizer", "lr", "weight_decay")
    if steps and "--model.schedule" not in options and _only(options, "--model.schedule.scheduler", "warm_up"):
        yield from _step_options(labels.value_counts().tolist(), n / len(labels), options, constrained=constrained)
    if constrained and _only(options, "--model.penalty", "rate", "decisions"):
        yield "--model.penalty", "AdaptivePenalty"
        yield "--model.penalty.rate", f"{recipes.MULTIPLIER_RATE:g}"
        yield "--model.penalty.decisions", "true"
        if not _is_given(options, "--model.margin"):
            yield "--model.margin", "auto"
    if epochs:
        count = recipes.epochs(n // size)
        yield "--trainer.max_epochs", str(count)
        if count > _VALIDATIONS and not _is_given(options, "--trainer.check_val_every_n_epoch"):
            yield "--trainer.check_val_every_n_epoch", str(-(-count // _VALIDATIONS))


def _batch_options(
    labels: "pd.Series", groups: "pd.Series | None", size: int, constrained: bool, options: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield batches of ``size`` samples, drawn by class and group if uniform ones would have few of one of these.

    Several columns of groups are all combined, unless a batch then has too few samples of each combination.
    """
    share = _rarest(labels, groups) / len(labels) * (_SMALL_GROUP if groups is None else 1)
    is_rare = constrained and recipes.rare(share, size)
    yield "--data.batches", "CellSampling" if is_rare else "UniformSampling"
    yield "--data.batches.batch_size", str(size)
    columns = _column_names(options.get(_SENSITIVE, ""))
    if is_rare and groups is not None and len(columns) > 1 and len(_cells(labels, groups)) * _IN_A_CELL <= size:
        yield "--data.batches.columns", json.dumps(["y", *columns])


def _step_options(
    sizes: list[int], share: float, options: dict[str, str], *, constrained: bool
) -> Iterator[tuple[str, str]]:
    """Yield optimizer and schedule for classes of these sizes, a share of which is used for training."""
    alike = options.get("--model.decisions") != "balanced"
    effective = share * recipes.effective_size(sizes, [1.0 if alike else 1 / size for size in sizes])
    decay = recipes.weight_decay(effective, costed=constrained and not alike)
    lr = _number(options, "--model.optimizer.lr", recipes.LEARNING_RATE)
    yield "--model.optimizer", "AdamW"
    yield "--model.optimizer.lr", f"{lr:g}"
    yield "--model.optimizer.weight_decay", f"{decay / lr:.3g}"
    yield "--model.schedule.scheduler", "LinearWarmUp"
    yield "--model.schedule.scheduler.warm_up", "0"
    yield "--model.schedule.interval", "step"
    if constrained and not alike:
        yield "--model.schedule.decay_spread", f"{recipes.DECAY_SPREAD:g}"


def _rarest(labels: "pd.Series", groups: "pd.Series | None") -> int:
    """Number of rows of the rarest label or, with groups, of the rarest combination of label and group."""
    return int(min(_cells(labels, groups), default=0))


def _cells(labels: "pd.Series", groups: "pd.Series | None") -> "pd.Series":
    """Number of rows of every label or, with groups, of every existing combination of label and group."""
    cells = labels if groups is None else labels.to_frame("label").join(groups.rename("group"), how="inner")
    return cells.value_counts()


def _is_given(options: Iterable[str], *names: str) -> bool:
    """Whether one of ``names``, or an argument of it, is among the given options."""
    return any(option == name or option.startswith(f"{name}.") for option in options for name in names)


def _only(options: dict[str, str], part: str, *arguments: str) -> bool:
    """Whether no option of a part is given except some of these arguments."""
    return not _is_given(options.keys() - {f"{part}.{argument}" for argument in arguments}, part)


def _number(options: dict[str, str], name: str, usual: float) -> float:
    """The positive number of an option, or the default; other values are left to the parser to refuse."""
    with contextlib.suppress(ValueError):
        if 0 < (number := float(options.get(name, usual))) < math.inf:
            return number
    return usual


def _training_rows(rows: int, options: dict[str, str]) -> int:
    """The number of rows of the table in the training split."""
    remaining = float(rows)
    for name, usual in (("test_fraction", "0" if "--data.test" in options else _TEST_FRACTION), ("val_fraction", "0")):
        with contextlib.suppress(ValueError):  # the parser refuses other texts
            remaining *= 1 - float(options.get(f"--data.splits.{name}", usual))
    return max(1, int(remaining))


def _is_to_be_calibrated(
    objective: str, labels: "pd.Series | None", groups: "pd.Series | None", options: dict[str, str]
) -> bool:
    """Whether scores of two classes need held-out rows to be calibrated, and there are enough rows."""
    splits = {"--data.groups", *(f"--data.splits{key}" for key in ("", ".val_fraction", ".whole", ".remove_positives"))}
    # few positives are all needed for training
    none_held_out = objective in ("CrossEntropy", "AveragePrecision", "RecallAtK", _OF_NUMBERS)
    if labels is None or labels.nunique() != 2 or none_held_out or splits & options.keys():
        return False
    return _rarest(labels, groups) >= _ENOUGH


def _several_labels_options(count: int, options: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the objective for several binary labels."""
    yield "--model.objective", "MeanAveragePrecision"
    if "--data.columns.missing" in options and "--model.objective" not in options:
        yield "--model.objective.missing", "-1"
    if options.get("--model.network", _PERCEPTRON) == _PERCEPTRON:
        yield "--model.network.out_features", str(count)


def _are_numbers(labels: "pd.Series", options: dict[str, str]) -> bool:
    """Whether labels are numbers to be predicted: by option, or because they are not whole or too many for classes."""
    from fcco_lightning.data.columns import is_number, with_commas  # noqa: PLC0415 - loads pandas

    target, objective = options.get("--data.columns.target"), options.get("--model.objective")
    if target is not None or objective is not None:
        return target == "number" or (target is None and objective == _OF_NUMBERS)
    if labels.nunique() > 2 and with_commas(labels):
        return True  # the data module refuses them with advice
    if not is_number(labels.dtype) or labels.nunique() <= 2:
        return False
    return labels.nunique() > _MOST_CLASSES or bool((labels % 1 != 0).any())


def _groups(frame: "pd.DataFrame", options: dict[str, str]) -> "pd.Series | None":
    """The filled cells of the column of groups, or the combinations of several columns; None without."""
    columns = _column_names(options.get(_SENSITIVE, ""))
    filled = frame[columns].dropna()
    if not columns or not len(filled):
        return None
    group_cells: pd.Series = filled[columns[0]] if len(columns) == 1 else filled.astype(str).agg(" ".join, axis=1)
    return group_cells


def _has_gaps(frame: "pd.DataFrame", options: dict[str, str]) -> bool:
    """Whether a column that may be a feature has missing cells."""
    others = [_LABEL, "--data.columns.drop", "--data.columns.weight"]
    if options.get("--data.columns.use_sensitive") != "true":
        others.append(_SENSITIVE)
    unused = {name for option in others for name in _column_names(options.get(option, ""))}
    return bool(frame[frame.columns[~frame.columns.isin(unused)]].isna().any(axis=None))


def _column_names(value: str) -> list[str]:
    """The names in an option's value, one or a list."""
    names = load_yaml(value, "columns") if value.startswith("[") else [value] if value else []
    return [str(name) for name in names]


def _expanded_by_column(args: Iterable[str], columns: Sequence[str]) -> Iterator[str]:
    """The arguments, where constraints that compare groups without naming a column are repeated for every column."""
    for arg in args:
        name, _, value = arg.partition("=")
        if len(columns) < 2 or name not in (_CONSTRAINTS, f"{_CONSTRAINTS}+") or not value.startswith(("[{", "{")):
            yield arg
            continue
        items = load_yaml(value, name)
        expanded = [
            constraint | {"init_args": {**constraint.get("init_args", {}), "by": column}} if column else constraint
            for constraint in (items if isinstance(items, list) else [items])
            for column in (columns if _compares(constraint) else [""])
        ]
        yield from (
            [f"{name}={json.dumps(expanded)}"]
            if name == _CONSTRAINTS
            else (f"{name}={json.dumps(c)}" for c in expanded)
        )


def _compares(constraint: Any) -> bool:
    """Whether a constraint compares groups and names no column of groups."""
    from fcco_lightning import constraints  # noqa: PLC0415 - loads torch

    class_path = str(constraint.get("class_path", "")) if isinstance(constraint, dict) else ""
    cls = getattr(constraints, class_path.rpartition(".")[2], None)
    return cls is not None and "by" in inspect.signature(cls).parameters and "by" not in constraint.get("init_args", {})


def _table(options: dict[str, str]) -> "pd.DataFrame":
    """The training table.

    Raises:
        DataError: if it cannot be read, or lacks the column of a label or of groups.
    """
    from fcco_lightning.data.columns import require_columns  # noqa: PLC0415 - loads pandas
    from fcco_lightning.data.sources import read_table  # noqa: PLC0415 - loads pandas

    frame = read_table(options["--data.train"], "data.train")
    roles = {"columns.label": _LABEL, "columns.sensitive": _SENSITIVE}
    columns = {name: _column_names(options.get(option, "")) for name, option in roles.items()}
    require_columns(frame, columns, "the train table")
    return frame
