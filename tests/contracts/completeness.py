"""The classes of the package that a registry must contain."""

import importlib
import inspect
import pkgutil

import fcco_lightning


def concrete_classes(base):
    """All subclasses of ``base`` in the package that can be instantiated."""
    found = set()
    for module in pkgutil.walk_packages(fcco_lightning.__path__, "fcco_lightning."):
        if not module.name.endswith("__main__"):
            members = vars(importlib.import_module(module.name)).values()
            found |= {m for m in members if inspect.isclass(m) and issubclass(m, base) and not inspect.isabstract(m)}
    return found


def unregistered(base, makers, bases=()):
    """Names of the subclasses of ``base`` that no maker instantiates, except private classes and ``bases``."""
    known = {type(make()) for make in makers}
    wanted = {c for c in concrete_classes(base) if not c.__name__.startswith("_") and c not in bases}
    return sorted(c.__name__ for c in wanted - known)
