"""Which classes of the package a registry must hold."""

import importlib
import inspect
import pkgutil

import fcco_lightning


def concrete_classes(base):
    """All public subclasses of ``base`` in the package that can be instantiated, wherever they are."""
    found = set()
    for module in pkgutil.walk_packages(fcco_lightning.__path__, "fcco_lightning."):
        if not module.name.endswith("__main__"):
            members = vars(importlib.import_module(module.name)).values()
            found |= {m for m in members if inspect.isclass(m) and issubclass(m, base)}
    return found


def unregistered(classes, cases, bases=()):
    """Names of the classes of which ``cases`` hold no object; abstract, private and base classes need none."""
    known = {type(case.make()) for case in cases}
    wanted = {c for c in classes if not inspect.isabstract(c) and not c.__name__.startswith("_") and c not in bases}
    return sorted(c.__name__ for c in wanted - known)
