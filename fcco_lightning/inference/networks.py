"""Networks and other parts made from their descriptions in a checkpoint, by listed (trusted) classes only."""

import functools
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pkgutil import walk_packages
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fcco_lightning import constraints, evaluation, objectives, outer
from fcco_lightning.checks import list_of
from fcco_lightning.errors import CheckpointError, ConfigError, FCCOError
from fcco_lightning.models import (
    ClassVectorNetwork,
    CLIPModel,
    GaussianPerturbation,
    LatentMixture,
    TabularMLP,
    TextClassifier,
    TimmModel,
    TwoViews,
)

NETWORKS: tuple[type[nn.Module], ...] = (
    ClassVectorNetwork, CLIPModel, GaussianPerturbation, LatentMixture, TabularMLP, TextClassifier, TimmModel, TwoViews,
)  # fmt: skip
"""The package's networks: what a file may name without being trusted, beside :data:`LAYERS`."""
LAYERS: tuple[type[nn.Module], ...] = (
    nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Dropout,
    nn.ELU, nn.Embedding, nn.Flatten, nn.GELU, nn.GRU, nn.Identity, nn.LayerNorm, nn.LazyConv2d, nn.LazyLinear,
    nn.LeakyReLU, nn.Linear, nn.LSTM, nn.MaxPool2d, nn.MultiheadAttention, nn.ReLU, nn.RNN, nn.Sigmoid, nn.SiLU,
    nn.Softmax, nn.Softplus, nn.Tanh, nn.TransformerEncoder, nn.TransformerEncoderLayer,
)  # fmt: skip
"""Layers of ``torch.nn`` that are made of plain numbers and words."""
_OF_PARTS = (constraints, evaluation, objectives, outer)
_KINDS = (
    nn.Module, constraints.Constraint, constraints.ScoreScale, evaluation.Evaluation, objectives.Objective,
    objectives.PairLoss, objectives.Quantity, outer.OuterFunction,
)  # fmt: skip
_WITHOUT_WEIGHTS: dict[type[nn.Module], dict[str, Any]] = {  # the checkpoint has them
    CLIPModel: {"pretrained": None},
    TextClassifier: {"pretrained": False},
    TimmModel: {"pretrained": False, "checkpoint_path": None},
}
_REFERENCE = re.compile(r"[/\\:]|[^\W\d]\w*\.\w")  # matches paths, addresses and dotted names
_MAKERS = frozenset({"empty", "full", "ones", "rand", "randint", "randn", "zeros"})  # take a shape
_SPARE = 1 << 22  # values that a network may need in addition to its weights
_OF_A_TENSOR = 512  # smallest size that is counted for a tensor, since making it takes time, too


def network_of(
    described: Mapping[str, Any], weights: Mapping[str, Tensor], trusted: Sequence[str], file: str
) -> nn.Module:
    """Make a network from its description in a checkpoint.

    The class of every part, at every depth, must be in a list: the networks of this package, :data:`LAYERS`, and
    the classes that the user trusts.  Arguments are numbers and texts only.  Weights are neither downloaded nor read
    from other files, since those of the checkpoint replace them; TextClassifier and CLIPModel load the configuration of
    the architecture ``name``, as JSON.

    Args:
        described: ``class_path``, ``init_args`` and ``dict_kwargs``, as written by ``fcco fit``.
        weights: weights of the checkpoint by name; a network that is much larger is refused.
        trusted: full names of further classes, each a subclass of ``torch.nn.Module``.
        file: name of the checkpoint in messages.

    Raises:
        ConfigError: if a class is not in the list, or a trusted one is no class of networks.
        CheckpointError: if the description is invalid, or its network is larger than the weights.
    """
    classes = _names(NETWORKS, "fcco_lightning", "fcco_lightning.models") | _names(LAYERS, "torch.nn")
    classes |= {name: cls for path in list_of("trusted", trusted) for name, cls in _trusted(path).items()}
    size = 4 * sum(weight.numel() for weight in weights.values()) + _SPARE
    way_out = "Pass network=..., of the architecture that was trained."
    network: nn.Module = _limited(
        lambda: _instantiate(described, classes, set(trusted), file), size, file, "a network", way_out
    )
    return network


@functools.cache
def parts() -> tuple[type, ...]:
    """The classes of objectives, of constraints with their arguments, and of evaluations in this package.

    A file may name all of these classes, since they only compute and open no other file.
    """
    names = (
        name
        for package in _OF_PARTS
        for _, name, is_package in walk_packages(package.__path__, f"{package.__name__}.")
        if not is_package
    )
    return tuple(
        cls
        for module in map(importlib.import_module, names)
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == module.__name__
    )


def part_of(described: Mapping[str, Any] | str, trusted: Sequence[str], file: str) -> Any:
    """Make an objective, a constraint, a penalty or an evaluation from its description in a checkpoint.

    As for networks, the class of every part must be in a list: :func:`parts`, and the classes that the user trusts.

    Args:
        described: the description, as written by ``fcco fit``.
        trusted: full names of further classes.
        file: name of the checkpoint in messages.

    Raises:
        ConfigError: if a class is not in the list, or a trusted one is of another kind.
        CheckpointError: if the description is invalid.
    """
    described = {"class_path": described} if isinstance(described, str) else described
    classes = _names(parts(), "fcco_lightning", *(package.__name__ for package in _OF_PARTS))
    classes |= {name: cls for path in list_of("trusted", trusted) for name, cls in _trusted(path).items()}
    way_out = "Use the version of this package that wrote it."
    return _limited(lambda: _instantiate(described, classes, set(trusted), file), _SPARE, file, "a part", way_out)


def _limited(make: Callable[[], Any], values: int, file: str, noun: str, way_out: str) -> Any:
    """Return ``make()`` with a limit on the number of values; errors of classes for bad arguments are explained."""
    try:
        with _MemoryLimit(values, file):
            return make()
    except FCCOError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{file} describes {noun} that cannot be made ({type(error).__name__}: {error}). {way_out}"
        ) from error


def _names(classes: Sequence[type], *homes: str) -> dict[str, type]:
    return {f"{home}.{cls.__name__}": cls for cls in classes for home in (cls.__module__, *homes)}


def _trusted(name: str) -> dict[str, type]:
    """The class of that name, by this name and by that of its defining module."""
    module, _, last = name.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), last, None) if module else None
    except ImportError:
        cls = None
    if not (isinstance(cls, type) and issubclass(cls, _KINDS)):
        raise ConfigError(
            f"trusted={name!r} must be the full name of a class of networks, objectives or constraints that can be "
            "imported here, such as my_package.MyNetwork; a package, a function or another class makes none."
        )
    return {name: cls, f"{cls.__module__}.{cls.__qualname__}": cls}


def _instantiate(described: Mapping[str, Any], classes: Mapping[str, type], trusted: set[str], file: str) -> Any:
    name = described["class_path"]
    if not isinstance(name, str) or name not in classes:
        raise ConfigError(
            f"{file} names the class {name!r}, which is not one of this package's networks, layers and parts that a "
            f"file may name. If it is a class of yours, pass trusted=[{name!r}] (--trusted {name}); of a network "
            "also network=..., of the architecture that was trained."
        )
    kind, arguments = classes[name], {**(described.get("init_args") or {}), **(described.get("dict_kwargs") or {})}
    listed = kind in NETWORKS + LAYERS and name not in trusted

    def value_of(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            if "class_path" in value:
                return _instantiate(value, classes, trusted, file)
            return {k: value_of(v, f"{key}.{k}") for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [value_of(member, key) for member in value]
        if listed and isinstance(value, str) and key != "name" and _REFERENCE.search(value):
            raise ConfigError(
                f"{file} gives {name} the argument {key}={value!r}, which refers to something outside the file. If you "
                f"trust it, pass trusted=[{name!r}] (--trusted {name})."
            )
        return value

    arguments |= _WITHOUT_WEIGHTS.get(kind, {})
    return kind(**{key: value_of(value, key) for key, value in arguments.items()})


class _MemoryLimit(TorchFunctionMode):
    """Refuses to allocate more values than the network of a checkpoint can have."""

    def __init__(self, values: int, file: str) -> None:
        super().__init__()
        self._remaining, self._file = values, file

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _MAKERS:
            shapes = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, list | tuple)]
            numbers = [arg for arg in args if isinstance(arg, int)]
            self._remaining -= max(_OF_A_TENSOR, *map(math.prod, shapes or [numbers]))
        elif name == "clone":  # stacks of layers are made by copies
            self._remaining -= max(_OF_A_TENSOR, args[0].numel())
        elif name == "arange":
            self._remaining -= max(
                (int(arg) for arg in (*args, *kwargs.values()) if type(arg) in (int, float)), default=0
            )
        if self._remaining < 0:
            raise CheckpointError(f"{self._file} describes a network that is much larger than its weights.")
        return func(*args, **kwargs)
