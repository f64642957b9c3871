"""Expansion of the command line: short words, names of configurations, constraints by name, defaults for a table."""

import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fcco_lightning.checks import check_file
from fcco_lightning.cli.named_configs import find_config
from fcco_lightning.cli.yaml_files import by_key, load_yaml, read_yaml
from fcco_lightning.data.text_files import require_text
from fcco_lightning.errors import ConfigError, printable_lines

_CONFIGS = (".yaml", ".yml", ".json")
_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_CONSTRAINTS, _DECISIONS, _CONFIG = "--model.constraints", "--decisions", ("--config", "-c")
_NULLS = ("null", "None", "~")
_RECORDS = "columns|groups|splits|encoding|images|transform|noise|texts|tokens|digits|model|classes|pairs"
_FIELD = re.compile(rf"--data\.(?:init_args\.)?({_RECORDS})\.(\w+)")
_CLASS = re.compile(r"(?:\w+\.)*[A-Z]\w*")
SHORT = {  # words for options of `fit`, and for those below them
    **{f"--{name}": f"--data.columns.{name}" for name in ("label", "positive", "sensitive", "favoured")},
    **{f"--{name}": f"--model.{name}" for name in ("objective", "constraints", "network", "algorithm", "optimizer")},
    "--test": "--data.test",
    "--batch_size": "--data.batches.batch_size",
    "--lr": "--model.optimizer.lr",
    "--epochs": "--trainer.max_epochs",
    "--seed": "--seed_everything",
}


class _Option(NamedTuple):
    """An option of the command line: its name, its value (None without one), and whether these are one word."""

    name: str
    value: str | None
    is_one_word: bool = True

    def words(self) -> list[str]:
        """The words of the command line."""
        if self.is_one_word:
            return [f"{self.name}={self.value}"]
        return [self.name] if self.value is None else [self.name, self.value]


def written_out(args: Sequence[str]) -> list[str]:
    """Return the parser's arguments for a command line with short words.

    - ``fit t.csv --label y --seed 3``: a table as the first word, and short words for the most frequent options.
    - Names of configurations become their files.
    - Constraints by name, ``--model.constraints A,B`` and ``--model.constraints+=C``, become a list of classes, and
      ``--model.constraints.ARGUMENT VALUE`` an argument of those that were named last.
    - ``--decisions balanced`` or ``--decisions.share 0.1`` becomes an argument of the model.
    - ``null`` in fields of the data's settings becomes the null of JSON, since the parser would read a text.
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
    command, typed = args[0], list(args[1:])
    fits = command == "fit"
    if fits and typed and typed[0].endswith(_TABLES) and not typed[0].startswith("-"):
        typed.insert(0, "--data.train")
    options = _with_constraints(_expanded(option, short=fits) for option in _options(typed))
    given = _values(options)
    if given.get("--data", "").endswith(_TABLES):
        table = given["--data"]
        way = f"is given by --data.train {table}, from which the datamodule follows."
        if command == "predict":
            way = f"is predicted by fcco predict CKPT {table}."
        raise ConfigError(f"--data {table} names no datamodule: a table {way}")
    if fits:
        options = _with_defaults(options)
    elif command in ("test", "validate"):
        options = _with_config_of_run(options, given)
    return [command, *(word for option in options for word in option.words())]


def _options(args: Iterable[str]) -> list[_Option]:
    """The options of a command line; the value of an option may be the next word, unless that is an option."""
    options: list[_Option] = []
    for arg in args:
        last = options[-1] if options else None
        is_option = arg.startswith("--") or arg.partition("=")[0] in _CONFIG  # a number may be negative
        if last is not None and last.name.startswith("-") and not is_option and _takes_a_word(last):
            options[-1] = last._replace(value=arg)
        else:
            name, equals, value = arg.partition("=") if arg.startswith("-") else (arg, "", "")
            options.append(_Option(name, value if equals else None, bool(equals)))
    return options


def _takes_a_word(option: _Option) -> bool:
    """Whether the next word is the option's value; after ``=`` only classes of constraints and decisions may follow."""
    return option.value is None or (option.value == "" and option.name.startswith((_CONSTRAINTS, _DECISIONS)))


def _values(options: Iterable[_Option]) -> dict[str, str]:
    """The values of the options by name, without the ``+`` of options that extend a list."""
    return {option.name.removesuffix("+"): option.value or "" for option in options}


def _expanded(option: _Option, *, short: bool) -> _Option:
    """The option with its full name, the file of a configuration, and the argument for a purpose of decisions."""
    name, value, _ = option
    word = re.match(r"--\w+", name)
    if short and word is not None and word[0] in SHORT:
        name = SHORT[word[0]] + name[word.end() :]
    option = option._replace(name=name)
    if not value:
        return option
    if name in _CONFIG:
        return option._replace(value=value if Path(value).is_file() else str(find_config(value)))
    if (field := _FIELD.fullmatch(name)) is not None and value in _NULLS:
        return _Option(f"--data.{field[1]}", json.dumps({field[2]: None}))
    if not name.startswith(_DECISIONS):
        return option
    if argument := name.removeprefix(_DECISIONS).removeprefix("."):
        value = json.dumps({argument: load_yaml(value, name)})
    elif not (value in ("balanced", *_NULLS) or _CLASS.fullmatch(value) or Path(value).is_file()) and not isinstance(
        load_yaml(value, _DECISIONS), Mapping
    ):
        raise ConfigError(
            f"{_DECISIONS} {value!r} is no purpose of decisions. Use {_DECISIONS} balanced, or one of "
            f"{_DECISIONS}.costs [1,10], {_DECISIONS}.share 0.1, {_DECISIONS}.tpr 0.8 and {_DECISIONS}.threshold 0.2."
        )
    return _Option("--model.decisions", value)


def _with_constraints(options: Iterable[_Option]) -> list[_Option]:
    """The options with names of constraints replaced by lists of classes, which take the arguments that follow."""
    replaced: list[tuple[_Option, list[dict[str, Any]]]] = []
    for option in options:
        name, value, _ = option
        named = replaced[-1][1] if replaced else []
        if named and value and name.startswith(f"{_CONSTRAINTS}."):
            argument = name.removeprefix(f"{_CONSTRAINTS}.").removeprefix("init_args.")
            for constraint in named:
                constraint.setdefault("init_args", {})[argument] = load_yaml(value, name)
            continue
        names = [part.strip() for part in (value or "").split(",")]
        by_name = name in (_CONSTRAINTS, f"{_CONSTRAINTS}+") and all(map(_CLASS.fullmatch, names))
        replaced.append((option, [{"class_path": part} for part in names] if by_name else []))
    return [one for option, named in replaced for one in (_listed(option.name, named) if named else [option])]


def _listed(name: str, constraints: Sequence[Any]) -> list[_Option]:
    """The options for a list of constraints: one that sets it, or one for every constraint that is added."""
    values = constraints if name.endswith("+") else [constraints]
    return [_Option(name, json.dumps(value)) for value in values]


def _with_defaults(options: list[_Option]) -> list[_Option]:
    """The options of ``fit``, with defaults for options of a table that they and their configurations leave out."""
    given = {**_values(_options_of_configs(options)), **_values(options)}
    if "--data" in given or "--data.train" not in given:
        return options
    from fcco_lightning.cli.table_defaults import names_in, table_defaults  # noqa: PLC0415 - loads pandas

    defaults = {name: value for name, value in table_defaults(given).items() if name not in given}
    listing = " ".join(f"{name} {shlex.quote(value)}" for name, value in defaults.items())
    sys.stderr.write(printable_lines(f"Defaults for this table, unless you set them: {listing}") + "\n")
    added = _with_constraints(_Option(name, value) for name, value in defaults.items())
    inside = [option for option in added if option.name.startswith("--model.network.")]  # go after their class
    columns = names_in(given.get("--data.columns.sensitive", ""))
    ordered = [*(option for option in added if option not in inside), *options, *inside]
    return ordered if len(columns) < 2 else [one for option in ordered for one in _for_each(columns, option)]


def _for_each(columns: Sequence[str], option: _Option) -> list[_Option]:
    """The option; if it lists constraints, those that compare groups but name no column occur once per column."""
    name, value, _ = option
    if name not in (_CONSTRAINTS, f"{_CONSTRAINTS}+") or not (value or "").startswith(("[{", "{")):
        return [option]
    items = load_yaml(value or "", name)
    expanded = [
        constraint | {"init_args": {"by": column, **constraint.get("init_args", {})}} if column else constraint
        for constraint in (items if isinstance(items, list) else [items])
        for column in (columns if _compares(constraint) else [""])
    ]
    return _listed(name, expanded)


def _compares(constraint: Any) -> bool:
    """Whether a constraint compares groups and names no column of groups."""
    from fcco_lightning import constraints  # noqa: PLC0415 - loads torch

    class_path = str(constraint.get("class_path", "")) if isinstance(constraint, dict) else ""
    cls = getattr(constraints, class_path.rpartition(".")[2], None)
    return cls is not None and "by" in inspect.signature(cls).parameters and "by" not in constraint.get("init_args", {})


def _options_of_configs(options: Iterable[_Option]) -> Iterator[_Option]:
    """The settings in the configurations of a command line as options, such as ``--model.optimizer`` -> SGD."""
    for name, file, _ in options:
        if name in _CONFIG and file:
            for key, value in by_key(read_yaml(Path(file), file) or {}):
                yield _Option(f"--{key}", value if isinstance(value, str) else json.dumps(value, default=str))


def _with_config_of_run(options: list[_Option], given: Mapping[str, str]) -> list[_Option]:
    """The options of ``test`` and ``validate``, with the configuration of the checkpoint's run.

    Raises:
        CheckpointError: if there is no such checkpoint.
    """
    folder = Path(given.get("--ckpt_path", "")).absolute().parent  # a run's FOLDER/checkpoints
    config = folder.parent / "config.yaml"
    if {*_CONFIG, "--data", "--model", "--print_config", "--help", "-h"} & given.keys():
        return options
    if given.get("--ckpt_path") not in (None, "last", "auto"):
        check_file(given["--ckpt_path"])
    if folder.name != "checkpoints" or not config.is_file():
        return options
    sys.stderr.write(f"The configuration, as none is given: --config {config}\n")
    return [_Option("--config", str(config)), *options]
