"""The parser of the command line, with error messages that name the option and suggest corrections."""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.pytorch import callbacks, loggers
from lightning.pytorch.cli import LightningArgumentParser
from torch import optim
from torch.optim import lr_scheduler

from fcco_lightning import public_names
from fcco_lightning.cli.catalogue import close_to, use_of
from fcco_lightning.cli.options import options
from fcco_lightning.cli.shorthands import SHORT
from fcco_lightning.cli.yaml_files import load_yaml
from fcco_lightning.data.text_files import require_text
from fcco_lightning.errors import ConfigError, did_you_mean, printable_lines

_OF_CLASSES = {"class_path", "init_args", "dict_kwargs"}
_MOST_LISTED = 25  # largest number of options that a message lists

_OF_RUNS = " The folder of the run that wrote a checkpoint has all options of it: add --config FOLDER/config.yaml."
_TO_FIT = (
    " Give a configuration, --config NAME (fcco list configs names some), or a table: fcco fit TABLE --label COLUMN."
)
_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "Sequence": "a list",
    "list": "a list",
    "dict": "a mapping",
    "NoneType": "null",
}
_TYPE = (
    r"typing\.Literal\[([^]]*)\]|"
    r"(?:<class '(?:[\w.]*\.)?|(?:[\w.]+\.)?(?=(?:list|dict|Sequence)\[))(\w+)(?:'>|\[[^]]*\])|([^\s,][^,]*)"
)
_ANY = re.DOTALL | re.MULTILINE

_OPEN: ContextVar[tuple["_OptionReading", ...]] = ContextVar("options that are being read", default=())
"""The option that each parser at work is reading, the outermost first: a class has a parser of its own."""


class ArgumentParser(LightningArgumentParser):
    """A parser that prints an error without a list of all options, and accepts no abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self._file = ""  # the file that is being parsed

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """Parse a command line, or the arguments of a class in an option."""
        with _reading_options(self):
            return super().parse_args(*args, **kwargs)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """Return a configuration as text, without checking it again, which would take as long as parsing."""
        return str(super().dump(*args, **{"skip_validation": True} | kwargs))

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write a configuration to a file, without checking it again."""
        super().save(*args, **{"skip_validation": True} | kwargs)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Read the value of an option on the command line, and record the option."""
        self._reads(action)
        return super()._get_values(action, arg_strings)

    def _check_value_key(self, action: argparse.Action, *args: Any, **kwargs: Any) -> Any:
        """Read the value of an option in a configuration, and record the option."""
        self._reads(action)
        return super()._check_value_key(action, *args, **kwargs)

    def _reads(self, action: argparse.Action) -> None:
        """Record which option is being read, unless it is a default that is read while another parser works."""
        for reading in _OPEN.get()[-1:]:
            if reading.parser is self:
                reading.option = action.dest if hasattr(action, "_typehint") else ""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message and exit with status 2."""
        message = _unrecognized(message, list(self._option_string_actions))
        for explained in (_unknown_class, _no_class_named, _required, _null, _no_mapping, _wrong_type):
            message = explained(message)
        nested = re.search(r"ption '([\w.]+)'( is not accepted)?$", message.strip())
        if nested is not None:
            whole = _below_classes(nested[1])
            message = message.replace(f"'{nested[1]}'", f"'{whole}'").strip()
            question = _suggestions(nested[1], _accepted_options(ex, self)) or _suggestions(whole, list(options()))
            message += f".{question}"
        sys.stderr.write(
            f"fcco: error: {printable_lines(message.rstrip())}\n(--help all lists the options, fcco list the classes)\n"
        )
        sys.exit(2)

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Any:
        """Parse the text of a configuration, without losing keys that are empty."""
        config, refused = None, ""
        try:
            config = load_yaml(content, self._file or "the configuration")
        except ConfigError as error:
            refused = str(error)
        if refused:
            self.error(refused)
        if "path" in kwargs:
            self._require_mapping(config)
        self._require_known(config)
        return super().parse_string(content, *args, **kwargs)

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Parse a file, and record its name for messages."""
        self._file = str(path)
        if Path(path).is_file():
            require_text(Path(path), self._file)
        return super().parse_path(path, *args, **kwargs)

    def _require_mapping(self, config: Any) -> None:
        """Refuse a file that is no mapping, naming the file."""
        if not isinstance(config, dict):
            content = "empty" if config is None else f"{config!r}"
            requirement = "it must have sections, such as `model:` and `data:`"
            self.error(f"{self._file} is not a configuration, but {content}: {requirement}.")

    def parse_object(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments of a class, and refuse unknown keys."""
        with _reading_options(self):
            self._require_known(obj)
            return super().parse_object(obj, *args, **kwargs)

    def _require_known(self, config: Any, parent: str = "") -> None:
        """Refuse unknown keys without values, which jsonargparse would silently ignore."""
        values = config.as_dict() if isinstance(config, Namespace) else config
        if not isinstance(values, dict) or "class_path" in values or self._subcommands_action is not None:
            return
        destinations = {action.dest for action in self._actions}
        for name, value in values.items():
            key = f"{parent}{name}"
            for item in value if isinstance(value, list) else [value]:
                self._require_arguments_below(item, key)
            group = any(other.startswith(f"{key}.") for other in destinations)
            if not (key in destinations or group) and _is_empty(value):
                self.error(f"Option '{key}' is not accepted")
            if group:
                self._require_known(value, f"{key}.")

    def _require_arguments_below(self, value: Any, key: str) -> None:
        """Refuse arguments of a class that are not below ``init_args``."""
        if not isinstance(value, dict) or "class_path" not in value:
            return
        extra = [name for name in value if name not in _OF_CLASSES and not name.startswith("__")]  # not jsonargparse's
        if extra:
            self.error(f"--{key}: {value['class_path']} takes its arguments below init_args, got {extra}.")


def _unknown_class(message: str) -> str:
    """The message for a name that is no class of the right kind, with similar names."""
    match = re.search(r'Parser key "([\w.]+)".*Expected a dot import path string: (\w+)$', message, _ANY)
    if match is None:
        return message
    if "<class 'float'>" in message:  # a number goes there, or a tensor, as the lr of torch's optimizers
        return f"--{_below_classes(match[1])} must be a number, got {match[2]!r}."
    key, name = _below_classes(match[1]), match[2]
    elsewhere = [other for module in (optim, lr_scheduler, callbacks, loggers) for other in module.__all__]
    if name in public_names():
        return f"--{key}: {name} is a class of this package, but not of the kind that goes here{use_of(name)}."
    return f"--{key}: there is no class {name}.{did_you_mean(close_to(name, elsewhere))}"


def _no_class_named(message: str) -> str:
    """The message for an argument whose class is not chosen yet."""
    match = re.search(r'Parser key "([\w.]+)".* (\S+) is abstract(?:.*NestedArg\(key=\'([\w.]+)\')?', message, _ANY)
    if match is None:
        return message
    key = _below_classes(match[1])
    if match[3] is None:
        return f"--{key} needs the name of a class ({match[2]} is abstract). Put --{key} CLASS before its arguments."
    return f"--{key}.{match[3]}: this argument needs the name of a class. Put --{key} CLASS before it."


def _unrecognized(message: str, options: Sequence[str]) -> str:
    """The message for an unknown option, with its full name and similar options."""
    match = re.search(r"unrecognized arguments: (--[\w.]+)", message)
    if match is None:
        return message
    parent = match[1].rpartition(".")[0]  # the option of the class, which may be misspelt
    candidates = options if "." in match[1] else [*SHORT, *options]
    matches = get_close_matches(match[1], candidates, cutoff=0.75) or get_close_matches(parent, options, cutoff=0.75)
    matches = [name if name in SHORT else _full_option(name) for name in matches if not name.endswith((".help", "+"))]
    full = f"--{_below_classes(match[1].removeprefix('--'))}"
    if full == match[1] != _full_option(full):  # an option without its sections
        matches = list(dict.fromkeys([_full_option(full), *matches]))
    return message.replace(match[1], full, 1) + f".{did_you_mean(matches)}"


def _required(message: str) -> str:
    """The message for a missing option, with its full name and the place of a finished run's options."""
    match = re.search(r"arguments are required: ([\w.]+)", message)
    if match is None:
        return message
    if match[1].split(".")[0] in ("test", "validate"):
        return f"{message}.{_OF_RUNS}"
    if match[1].startswith("fit."):
        return f"{message}.{_TO_FIT}"
    full = _below_classes(match[1])
    return message if full == match[1] else f"the option --{full} is required"


def _null(message: str) -> str:
    """The message for ``null`` where a list is needed."""
    match = re.search(r'Parser key "([\w.]+)":.*Sequence.*Got value: None$', message, _ANY)
    return (
        message
        if match is None
        else f"--{_below_classes(match[1])}: must be a list, got null. Leave it out, or give []."
    )


def _no_mapping(message: str) -> str:
    """The message for a mapping that was read as a text, such as one without a blank after the colon."""
    match = re.search(r"(?:Given value: |Unable to load config ['\"])(\{\w+:\S.*?\})", message)
    key = re.search(r'Parser key "([\w.]+)"', message)
    if match is None or key is None:
        return message
    return f"--{_below_classes(key[1])}: {match[1]} is not a mapping. Put a space after each colon, as in '{{a: b}}'."


def _wrong_type(message: str) -> str:
    """The message for a value of a wrong type, with the allowed values in words."""
    match = re.search(
        r'Parser key "([\w.]+)":\s+(?:Expected a|.*Subtypes:) (.*?)\.?\s+(?:Errors:.*Given|Got) value: (.*)$',
        message,
        _ANY,
    )
    types = [] if match is None else re.findall(_TYPE, match[2].removeprefix("[").removesuffix("]"))
    if match is None or not types or not all(values or name in _IN_WORDS for values, name, _ in types):
        return message
    names = [kind for values, name, _ in types for kind in (values.split(", ") if values else [_IN_WORDS[name]])]
    *others, last = dict.fromkeys(names)
    listing = f"{', '.join(others)} or {last}" if others else last
    in_brackets = " Write a list in brackets, without spaces: [a,b]." if "a list" in names else ""
    return f"--{_below_classes(match[1])} must be {listing}, got {match[3].strip()!r}.{in_brackets}"


def _is_empty(value: Any) -> bool:
    """Whether the value is an empty mapping, or a mapping of empty mappings."""
    return isinstance(value, dict) and all(map(_is_empty, value.values()))


def _full_option(option: str) -> str:
    """The full name of an option, of which the parser of a class knows only the end."""
    paths = [path for path in options() if f"--{path}" == option or path.endswith(f".{option.removeprefix('--')}")]
    return f"--{min(paths, key=lambda path: path.count('.'))}" if paths else option


def _suggestions(option: str, accepted: Sequence[str]) -> str:
    """Similar options for a misspelt one, and all options of its class, if these are few."""
    question = did_you_mean(get_close_matches(option, accepted, cutoff=0.6))
    lists_all = accepted and "." not in option and len(accepted) <= _MOST_LISTED
    return f"{question} It takes: {', '.join(accepted)}." if lists_all else question


@dataclass
class _OptionReading:
    """Records which option a parser is reading, if its value may be a class; else an empty text."""

    parser: argparse.ArgumentParser
    option: str = ""


@contextmanager
def _reading_options(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Within this context a parser reads options."""
    before = _OPEN.set((*_OPEN.get(), _OptionReading(parser)))
    try:
        yield
    finally:
        _OPEN.reset(before)


def _below_classes(option: str) -> str:
    """The full name of an option that was refused by the parser of a class, which knows only its end."""
    outer = [reading.option for reading in _OPEN.get()[:-1] if reading.option]
    return ".".join([*outer, option])


def _accepted_options(error: BaseException | None, parser: Any) -> list[str]:
    """The options of the parser that has refused one: that of the command, or of the class of the argument.

    Args:
        error: the error that caused the refusal, if there is one.
        parser: the parser that reports it.
    """
    cause = error
    while cause is not None:
        parser = getattr(cause, "subcommand_parser", parser)
        cause = cause.__cause__ or cause.__context__
    names = [o.removeprefix("--").removesuffix("+") for o in parser._option_string_actions if o.startswith("--")]
    return [name for name in dict.fromkeys(names) if name not in ("help", "print_shtab") and not name.endswith(".help")]
