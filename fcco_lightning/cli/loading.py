"""Faster loading of torch and Lightning, without imports that no command needs."""

import gc
import importlib
import inspect
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_OF_LIGHTNING = {
    "Metric": "torchmetrics.metric",
    "MetricCollection": "torchmetrics.collections",
    "__version__": "torchmetrics.__about__",
}


class _LazyPackage(ModuleType):
    """The package torchmetrics, which is imported completely only when a name is used that Lightning does not need.

    It imports torchvision, transformers and scipy.signal, a third of all that a command would load.
    """

    _logger = logging.getLogger("torchmetrics")

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LIGHTNING:
            importlib.import_module("torchmetrics.utilities")  # some modules need it first
            return getattr(importlib.import_module(_OF_LIGHTNING[name]), name)
        if name.startswith("__") or not re.search(rf"\b{name}\b", inspect.getsource(self)):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        object.__setattr__(self, "__class__", ModuleType)  # now an ordinary module
        importlib.reload(self)
        return getattr(self, name)


@contextmanager
def quick_loading() -> Iterator[None]:
    """Within this context, import Lightning without all of torchmetrics.

    Garbage collection is switched off meanwhile, since the many objects of modules stay alive.
    """
    spec = None if "torchmetrics" in sys.modules else find_spec("torchmetrics")
    if spec is not None:
        sys.modules["torchmetrics"] = module = module_from_spec(spec)
        module.__class__ = _LazyPackage
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
