"""Counts where a program reads a number or lets a shape depend on one, and so would wait for an accelerator."""

from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

OF_NUMBERS = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::argwhere",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
BY_MASK = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
TO_HOST = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.cpu}


class _Operators(TorchDispatchMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        by_mask = name in BY_MASK and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        by_counts = name == "aten::repeat_interleave" and (kwargs or {}).get("output_size") is None
        if name in OF_NUMBERS or by_mask or (by_counts and func._overloadname.startswith("Tensor")):
            self.found.append(f"{name} by mask" if by_mask else name)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    """Finds methods that are not operators for CPU tensors."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TO_HOST:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Looks(ExitStack):
    """A context that records all reads of numbers.

    Attributes:
        found: names of the operators and methods that read numbers, in order.

    Example:
        >>> with Looks() as looks:
        ...     _ = torch.ones(3)[torch.ones(3) > 0], float(torch.ones(())), torch.ones(2).tolist()
        >>> looks.found
        ['aten::index by mask', 'aten::_local_scalar_dense', 'tolist']
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __enter__(self) -> "Looks":
        super().__enter__()
        self.enter_context(_Methods(self.found))
        self.enter_context(_Operators(self.found))
        return self
