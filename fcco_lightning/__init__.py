"""Finite-sum coupled compositional optimization and constrained training on PyTorch Lightning.

The public names are those of the folders below.  They are imported on first use, so that ``import fcco_lightning``
costs nothing.
"""

import importlib
from typing import Any

from fcco_lightning.catalogue import public_names

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *sorted(public_names())]
    if not name.startswith("_") and name in public_names():
        return getattr(importlib.import_module(public_names()[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*public_names()]
