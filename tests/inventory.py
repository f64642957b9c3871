"""The list of what users rely on: names, arguments, commands, options and keys of a report, one per line.

``uv run python -m tests.inventory`` prints the list, ``tests/inventory.txt`` has the stored one, and
``test_inventory.py`` compares them.  If a line disappears, ``tests/inventory_changes.txt`` must say what replaces it.
"""

import contextlib
import inspect
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fcco_lightning
from fcco_lightning.__main__ import main as fcco

COMMANDS = ("fit", "front", "validate", "test", "predict", "export", "compare", "tune", "list", "inspect", "convert")
CONFIGS = Path(__file__).parents[1] / "configs"


def printed(*words: str) -> str:
    """The output of a command."""
    out, given = io.StringIO(), sys.argv
    sys.argv = ["fcco", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            fcco()
    finally:
        sys.argv = given
    return out.getvalue()


def names() -> Iterator[str]:
    """Public names with their arguments."""
    for name in fcco_lightning.__all__:
        found = getattr(fcco_lightning, name)
        if callable(found):
            try:
                arguments = [p for p in inspect.signature(found).parameters if not p.startswith("_")]
            except ValueError:
                arguments = []
            yield f"name {name}"
            yield from (f"argument {name}.{argument}" for argument in arguments)


def options() -> Iterator[str]:
    """Options of all commands."""
    for command in COMMANDS:
        pages = printed(command, "--help", "all")
        if command in ("predict", "test"):  # of a table, and of a split of a datamodule
            pages += printed(command, "--trainer.devices=1", "--help")
        found = sorted(set(re.findall(r"^ +(?:-\w, )?(--[\w.+]+)", pages, re.MULTILINE)))
        yield from (f"option {command} {option}" for option in found)


def listed() -> Iterator[str]:
    """Entries of ``fcco list``."""
    section = ""
    for line in printed("list").splitlines():
        if line and not line.startswith(" "):
            section = line.split(" (")[0]
        elif line.strip():
            yield f"entry {section}: {line.split()[0]}"


def configurations() -> Iterator[str]:
    """Configurations by name."""
    yield from (f"config {path.relative_to(CONFIGS).with_suffix('')}" for path in sorted(CONFIGS.rglob("*.yaml")))


def report() -> Iterator[str]:
    """Keys of ``report.json`` of a small run, and the files that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        config = str(CONFIGS / "roc_fairness" / "synthetic_multipliers.yaml")
        small = {"trainer.max_epochs": 1, "trainer.limit_train_batches": 3, "trainer.default_root_dir": folder}
        with contextlib.redirect_stderr(io.StringIO()):
            printed("fit", "--config", config, *(str(w) for k, v in small.items() for w in (f"--{k}", v)))
        found = next(Path(folder).rglob("report.json"))
        yield from sorted({f"report {re.sub(r'@0.[0-9]', '@', key)}" for key in _keys(json.loads(found.read_text()))})
        yield from sorted(f"file {p.relative_to(found.parent)}" for p in found.parent.rglob("*") if p.is_file())


def _keys(value: object, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inside in value.items():
            yield f"{prefix}{key}"
            yield from _keys(inside, f"{prefix}{key}.")
    elif isinstance(value, list):
        for inside in value:
            yield from _keys(inside, f"{prefix}[].")


def inventory() -> list[str]:
    """All lines."""
    return [*names(), *listed(), *configurations(), *options(), *report()]


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in inventory())
