"""The report of a run as one HTML page, or a part of one, with the tables of the terminal and the pictures."""

import base64
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader
from rich.table import Table
from rich.text import Text

from fcco_lightning.errors import printable, printable_lines
from fcco_lightning.reports.summary_table import VACUOUS_WARNING

_PACKAGES = ("fcco-lightning", "torch", "lightning", "numpy")
_LOOKS = {"red": "broken", "bold red": "warning", "green": "held", "dim": "note"}


def report_page(
    name: str,
    headline: str | None,
    tables: Iterable[Table],
    pictures: Iterable[Path] = (),
    config: Mapping[str, Any] | None = None,
    left_out: Mapping[str, str] | None = None,
    *,
    whole: bool = True,
) -> str:
    """Lay out a run as a self-contained page, without other files, network access or scripts.

    Args:
        name: name of the run.
        headline: the result of the run, a sentence or more.
        tables: tables of ``rich``, as in the terminal; tables without rows are left out.
        pictures: PNG files, which are embedded.
        config: configuration, as in the report.
        left_out: names of tables, pictures and figures that could not be made, with the reasons.
        whole: False for a part of another page, such as a notebook, without configuration and versions.

    Returns:
        HTML in which all names are escaped.
    """
    loader = PackageLoader("fcco_lightning", "reports")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html.jinja" if whole else "run.html.jinja").render(
        name=printable(name),
        headline=None if headline is None else printable_lines(headline),
        tables=[_plain_table(table) for table in tables if table.row_count],
        pictures=[_picture(path) for path in pictures],
        config=_text(config) if config else "",
        left_out=left_out or {},
        versions={package: importlib.metadata.version(package) for package in _PACKAGES}
        | {"Python": platform.python_version()},
    )


def _text(config: Mapping[str, Any]) -> str:
    values = json.loads(json.dumps(config, default=str))  # paths and the like as texts
    return printable_lines(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def _plain_table(table: Table) -> dict[str, Any]:
    columns = [[_cell(cell, column.justify) for cell in column.cells] for column in table.columns]
    notes = str(table.caption or "").splitlines()
    return {
        "title": str(table.title),
        "columns": table.columns,
        "rows": list(zip(*columns, strict=True)),
        "notes": [{"text": line, "look": "warning" if line == VACUOUS_WARNING else "note"} for line in notes],
    }


def _cell(content: object, justify: str) -> dict[str, str]:
    style = str(content.style) if isinstance(content, Text) else ""
    return {"text": str(content), "look": _LOOKS.get(style, "left" if justify == "left" else "")}


def _picture(path: Path) -> dict[str, str]:
    return {"title": path.stem.replace("_", " "), "content": base64.b64encode(path.read_bytes()).decode()}
