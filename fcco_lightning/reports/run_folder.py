"""The files that a run leaves in its folder, by name.  No torch here."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fcco_lightning.errors import DataError

REPORT = "report.json"
METRICS = "metrics.csv"


def read_report(folder: Path) -> Mapping[str, Any] | None:
    """The report of a finished run; None if its folder holds none.

    Raises:
        DataError: if it cannot be read.
    """
    path = folder / REPORT
    if not path.is_file():
        return None
    try:
        report: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is no readable report: {error}. Leave its folder out.") from error
    return report
