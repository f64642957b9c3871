"""A simulated device for tests of device code without a GPU.

Tensors of the device "far" are tensors of the CPU in a wrapper, so that results are exact.  As on CUDA, an operation
with tensors of both devices is refused, and so are operators without a deterministic implementation.

Reading a number from an accelerator, or making the size of a tensor depend on one, waits until all queued operations
are done.  All operations on "far" pass through one function, which counts those that would wait::

    register()
    with FarDevice() as far:
        network.to("far")
        ...
        far.waits  # by name of the operator

Use it in a process of its own, since torch does not forget the name of a device.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "far"
READS = {  # a number, or a shape that depends on numbers
    "aten._local_scalar_dense.default",
    "aten.equal.default",
    "aten.masked_select.default",
    "aten.nonzero.default",
    "aten.repeat_interleave.Tensor",
    "aten.unique_consecutive.default",
    "aten.unique_dim.default",
    "aten._unique2.default",
}
RANDOM_ORDER = {"aten.histc.default", "aten.put_.default", "aten.median.dim"}
"""Operators that sum in a random order on CUDA, and are refused by deterministic algorithms."""
INDEXING = {"aten.index.Tensor", "aten.index_put.default", "aten.index_put_.default", "aten._index_put_impl_.default"}


class FarTensor(torch.Tensor):
    """A tensor on the device; ``near`` is the CPU tensor with its values."""

    near: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> "FarTensor":
        layout = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, near.size(), **layout, device=torch.device(NAME, 0))
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

    def __reduce_ex__(self, protocol):
        return self.near.__reduce_ex__(protocol)  # it is saved as a CPU tensor

    @property
    def data(self) -> "FarTensor":
        return FarTensor(self.near.detach())

    @data.setter
    def data(self, value: "FarTensor") -> None:
        self.near = value.near


class FarDevice(TorchDispatchMode):
    """Within this context tensors can be made on the device, and waits are counted.

    Attributes:
        waits: by name of the operator.
    """

    current: ClassVar["FarDevice | None"] = None

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self._constants = _Constants()

    def __enter__(self) -> "FarDevice":
        FarDevice.current = self
        self._constants.__enter__()
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self._constants.__exit__(*args)
        FarDevice.current = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class _Constants(TorchFunctionMode):
    """Handles functions that are not operators: ``torch.tensor(..., device="far")``, which waits, and ``tolist``."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.tolist and isinstance(args[0], FarTensor):
            _wait("tolist")
            return args[0].near.tolist()
        if func is torch.Tensor.new_tensor and isinstance(args[0], FarTensor):
            return func(args[0].near, *args[1:], **kwargs).to(NAME)
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and _is_far(kwargs.get("device")):
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


class _Backend(_DummyBackendModule):
    """The functions of a device module that autocast calls."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def current_device(self) -> int:
        return 0

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.uint8)

    def set_rng_state(self, state: Any, device: Any = None) -> None:
        pass


class FarAccelerator(Accelerator):
    """The accelerator of the device for Lightning."""

    def setup_device(self, device: torch.device) -> None:
        pass

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, 0)] * bool(devices)

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {"device": device}


def register() -> None:
    """Register the device with torch and with Lightning: ``Trainer(accelerator="far", strategy="far")``."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    AcceleratorRegistry.register(NAME, FarAccelerator)
    far = {"device": torch.device(NAME, 0), "accelerator": FarAccelerator()}
    StrategyRegistry.register(NAME, SingleDeviceStrategy, **far)


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the CPU tensors, and wrap its results if they belong on the device."""
    name, tensors = str(func), list(_tensors((args, kwargs)))
    far, target, near_kwargs = [t for t in tensors if isinstance(t, FarTensor)], kwargs.get("device"), dict(kwargs)
    if target is not None:
        near_kwargs["device"] = torch.device("cpu")
    if name in ("aten._to_copy.default", "aten.to.dtype_layout"):  # the latter in inference mode
        return _moved(func, args[0], near_kwargs, target)
    if name == "aten.copy_.default" and isinstance(args[0], FarTensor) != isinstance(args[1], FarTensor):
        if isinstance(args[1], FarTensor) or not (len(args) > 2 and args[2]):
            _wait("copy to the host" if isinstance(args[1], FarTensor) else "to the device, blocking")
    elif far:
        _require_possible(name, args, tensors)
    found = func(*_near(args), **_near(near_kwargs))
    if name == "aten.copy_.default":
        return args[0]
    if far and torch.Tag.inplace_view in func.tags:  # also change the shape of the wrapper
        with no_dispatch():
            func(*args, **kwargs)
    known = {id(t.near): t for t in far}  # in-place operators return their argument
    if not far and not _is_far(target):
        return found
    return _changed(found, lambda t: known[id(t)] if id(t) in known else FarTensor(t))


def _moved(func: Any, given: torch.Tensor, kwargs: dict[str, Any], target: Any) -> torch.Tensor:
    was_far = isinstance(given, FarTensor)
    is_far = was_far if target is None else _is_far(target)
    if was_far and not is_far:
        _wait("to the host")
    if is_far and not was_far and not kwargs.get("non_blocking"):
        _wait("to the device, blocking")
    found = func(_near(given), **kwargs)
    return FarTensor(found) if is_far else found


def _require_possible(name: str, args: Any, tensors: list[torch.Tensor]) -> None:
    _refuse_strangers(name, tensors)
    if name in RANDOM_ORDER or (name == "aten.bincount.default" and len(tensors) > 1):
        raise RuntimeError(f"{name} has no deterministic implementation")
    by_mask = name in INDEXING and any(isinstance(i, FarTensor) and i.dtype == torch.bool for i in args[1])
    if by_mask or name in READS:
        _wait(f"{name} by mask" if by_mask else name)


def _refuse_strangers(name: str, tensors: list[torch.Tensor]) -> None:
    strangers = [tuple(t.shape) for t in tensors if not isinstance(t, FarTensor) and t.dim()]
    if strangers:
        raise RuntimeError(f"{name}: tensors of the device meet tensors of the CPU, of shapes {strangers}")


def _wait(name: str) -> None:
    if FarDevice.current is not None:
        FarDevice.current.waits[name] += 1


def _near(tree: Any) -> Any:
    return _changed(tree, lambda t: t.near if isinstance(t, FarTensor) else t)


def _changed(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply ``change`` to every tensor in lists, tuples and dictionaries; pytree is slower than the operators."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _changed(part, change) for key, part in tree.items()}
    return type(tree)([_changed(part, change) for part in tree]) if isinstance(tree, list | tuple) else tree


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple | dict):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(part)


def _is_far(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME
