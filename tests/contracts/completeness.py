"""Which classes of the package are members of a seam, so that a registry can be asked whether it names them all."""

import importlib
import inspect
import pkgutil
from types import ModuleType


def members(base: type, package: ModuleType) -> set[type]:
    """All public classes of fcco_lightning below ``base`` that can be instantiated; the package is imported whole."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    found, waiting = set(), [base]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            own = kind.__module__.split(".")[0] == "fcco_lightning"
            if own and not kind.__name__.startswith("_") and not inspect.isabstract(kind):
                found.add(kind)
    return found
