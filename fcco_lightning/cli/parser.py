"""The parser of the command line, which says what is wrong with an option and what may have been meant."""

import argparse
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fcco_lightning import MERGED
from fcco_lightning.cli.catalogue import close_to, use_of
from fcco_lightning.cli.options import options
from fcco_lightning.data.datamodules import clip_parts
from fcco_lightning.errors import did_you_mean
from fcco_lightning.training.execution import in_place_of

_OF_CLASSES = {"class_path", "init_args", "dict_kwargs"}
_MOST_LISTED = 25  # options of a class that a message names

_ANY = re.DOTALL | re.MULTILINE


class ArgumentParser(LightningArgumentParser):
    """Says what is wrong, without the list of all options in front of it; knows no abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message and exit with status 2."""
        class_of = re.search(r'Parser key "([\w.]+)".*Expected a dot import path string: (\w+)$', message, _ANY)
        if class_of is not None:
            key, name = _below_classes(class_of[1]), class_of[2]
            near = close_to(name)
            message = f"--{key}: there is no class {name}.{did_you_mean(near)}"
            if name in near:
                message = (
                    f"--{key}: {name} is a class of this package, but not of the kind that goes here{use_of(name)}."
                )
            if name in MERGED:
                message = f"--{key}: {name} is {MERGED[name]} now."
        of_none = re.search(r'Parser key "([\w.]+)".* is abstract.*NestedArg\(key=\'([\w.]+)\'', message, _ANY)
        if of_none is not None:
            key = _below_classes(of_none[1])
            message = f"--{key}.{of_none[2]}: no class is named that has this argument. Put --{key} CLASS before it."
        option = re.search(r"unrecognized arguments: (--[\w.]+)", message)
        if option is not None:
            near = get_close_matches(option[1], list(self._option_string_actions), cutoff=0.75)
            message += f".{did_you_mean([_whole(name) for name in near if not name.endswith('.help')])}"
        earlier = re.search(r"(?:--model\.|\bmodel\.|Group 'model' .*')(\w+)", message)
        if earlier is not None and (now := in_place_of(earlier[1])) is not None:
            message = f"--model.{earlier[1]} {now}"
        refused = re.search(r"(?:ption '|Parser key \")([\w.]+)", message)
        if refused is not None and (now := clip_parts.in_place_of(_below_classes(refused[1]))) is not None:
            message = f"--{now}"
        if re.search("arguments are required: (test|validate)", message):
            message += ". The folder of the run that wrote the checkpoint has them: add --config FOLDER/config.yaml."
        nested = re.search(r"ption '([\w.]+)'( is not accepted)?$", message.strip())
        if nested is not None:
            message = message.replace(f"'{nested[1]}'", f"'{_below_classes(nested[1])}'").strip()
            message += f".{_near(nested[1], _accepted_options(ex, self))}"
        sys.stderr.write(f"fcco: error: {message.rstrip()}\n(--help lists every option, fcco list every class)\n")
        sys.exit(2)

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Any:
        """Parse the text of a configuration, of which no key may be lost for being empty."""
        with suppress(yaml.YAMLError):  # the parser says what is wrong with it
            self._require_known(yaml.safe_load(content))
        return super().parse_string(content, *args, **kwargs)

    def parse_object(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments of a class, likewise."""
        self._require_known(obj)
        return super().parse_object(obj, *args, **kwargs)

    def _require_known(self, config: Any, parent: str = "") -> None:
        """Refuse unknown keys without a value below them, which jsonargparse would pass over in silence."""
        values = config.as_dict() if isinstance(config, Namespace) else config
        if not isinstance(values, dict) or "class_path" in values or self._subcommands_action is not None:
            return
        known = {action.dest for action in self._actions}
        for name, value in values.items():
            key = f"{parent}{name}"
            for one in value if isinstance(value, list) else [value]:
                self._require_arguments_below(one, key)
            group = any(other.startswith(f"{key}.") for other in known)
            if not (key in known or group) and _is_empty(value):
                self.error(f"Option '{key}' is not accepted")
            if group:
                self._require_known(value, f"{key}.")

    def _require_arguments_below(self, value: Any, key: str) -> None:
        """Refuse what stands beside the name of a class."""
        if not isinstance(value, dict) or "class_path" not in value:
            return
        wrong = [name for name in value if name not in _OF_CLASSES and not name.startswith("__")]  # jsonargparse's own
        if wrong:
            self.error(f"--{key}: {value['class_path']} takes its arguments below init_args, got {wrong}.")


def _is_empty(value: Any) -> bool:
    """Whether it is a mapping of nothing, or of such mappings only."""
    return isinstance(value, dict) and all(map(_is_empty, value.values()))


def _whole(option: str) -> str:
    """An option as it is typed, where the parser of a class knows only its end."""
    paths = [path for path in options() if f"--{path}" == option or path.endswith(f".{option.removeprefix('--')}")]
    return f"--{min(paths, key=lambda path: path.count('.'))}" if paths else option


def _near(option: str, accepted: Sequence[str]) -> str:
    """What a misspelt option may have meant, and all that its class takes, if these are few."""
    question = did_you_mean(get_close_matches(option, accepted, cutoff=0.6))
    of_class = accepted and "." not in option and len(accepted) <= _MOST_LISTED
    return f"{question} It takes: {', '.join(accepted)}." if of_class else question


def _below_classes(option: str) -> str:
    """The whole path of an option that was refused by the parser of a class, which knows only its end.

    The actions at work name the options whose values they read, each below that of the one before.
    """
    frames = [frame for frame, _ in traceback.walk_stack(None) if frame.f_code.co_name == "_check_type_"]
    actions = [frame.f_locals.get("self") for frame in frames[::-1]]
    return ".".join([*(action.dest for action in actions if isinstance(action, argparse.Action)), option])


def _accepted_options(error: BaseException | None, parser: Any) -> list[str]:
    """The options of the innermost parser that has refused one: of the class whose argument it is.

    Args:
        error: that led to the refusal, if there is one.
        parser: that reports it.
    """
    cause = error
    while cause is not None:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            own = frame.f_locals.get("self")
            parser = own if isinstance(own, argparse.ArgumentParser) else parser
        parser = getattr(cause, "subcommand_parser", parser)
        cause = cause.__cause__ or cause.__context__
    names = [o.removeprefix("--").removesuffix("+") for o in parser._option_string_actions if o.startswith("--")]
    return [name for name in dict.fromkeys(names) if name not in ("help", "print_shtab") and not name.endswith(".help")]
