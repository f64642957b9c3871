"""States of the random streams of training, for checkpoints."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree


def random_streams() -> dict[str, Any]:
    """States of the global random streams that user code may use, as tensors and primitive values."""
    _, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state()  # noqa: NPY002
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [list(numbers), gauss],
        "numpy": [legacy[0], torch.from_numpy(legacy[1].astype(np.int64)), *legacy[2:]],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_streams(state: dict[str, Any]) -> None:
    """Restore the states of :func:`random_streams`; the CUDA states only if the number of devices is the same."""
    torch.set_rng_state(state["torch"].cpu())
    numbers, gauss = state["python"]
    random.setstate((3, tuple(numbers), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))  # noqa: NPY002
    if "cuda" in state and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])


def loader_streams(loaders: Iterable[Any]) -> list[Any]:
    """States of the generators that belong to loaders, their samplers and their data sets, in a fixed order."""
    return [_state(generator) for generator in generators_of(loaders)]


def set_loader_streams(loaders: Iterable[Any], states: Sequence[Any]) -> None:
    """Restore the states of :func:`loader_streams`, if these loaders have the same number of generators."""
    generators = generators_of(loaders)
    if len(generators) == len(states):
        for generator, state in zip(generators, states, strict=True):
            _set_state(generator, state)


_Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random


def generators_of(loaders: Iterable[Any]) -> list[_Generator]:
    """The generators that are attributes of loaders, of their samplers or of their data sets, each listed once."""
    todo = list(loaders)
    visited = set[int]()
    owners = []
    while todo:
        owner = todo.pop(0)
        if id(owner) in visited:
            continue
        visited.add(id(owner))
        if isinstance(owner, _Generator):
            owners.append(owner)
            continue
        inside = vars(owner) if hasattr(owner, "__dict__") else {}
        todo += [inside[name] for name in ("batch_sampler", "sampler", "dataset") if name in inside]
        todo += [value for value in inside.values() if isinstance(value, _Generator)]
    return owners


def _state(generator: _Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    state = generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state(False)
    return pytree.tree_map_only(np.ndarray, lambda a: torch.from_numpy(a.astype(np.int64)), state)


def _set_state(generator: _Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        numpy_state = pytree.tree_map_only(torch.Tensor, lambda t: t.cpu().numpy().astype(np.uint64), state)
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = numpy_state
        else:
            generator.set_state(numpy_state)
