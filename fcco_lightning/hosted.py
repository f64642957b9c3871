"""Columns on the network's device that keep their copies on the host, where nothing waits for a number.

An accelerator works behind the Python that queues its kernels: to read one number from it is to wait until it has done
all that was queued.  Which rows a batch speaks of, and what they weigh, follows from its columns alone, and these come
from the host.  So it is computed there, and sent to the device behind what is already queued.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from fcco_lightning.distributed.packing import pack, packed_size, unpack
from fcco_lightning.numerics import moved
from fcco_lightning.records import Columns

T = TypeVar("T")


class Hosted(dict[str, Tensor]):
    """Columns on the device of the network.

    Args:
        columns: on the device.
        host: those that objectives and constraints read, on the host.
    """

    def __init__(self, columns: Mapping[str, Tensor], host: Mapping[str, Tensor]) -> None:
        super().__init__(columns)
        self.host = dict(host)

    def __setitem__(self, name: str, column: Tensor) -> None:
        super().__setitem__(name, column)
        self.host.update(fetched({name: column}))


def on_host(columns: Columns) -> Columns:
    """The columns on the host: as they came from there, or else fetched, which waits for the device once."""
    return columns.host if isinstance(columns, Hosted) else fetched(columns)


def to_device(columns: Columns, device: torch.device, read: Columns) -> Columns:
    """The columns on a device, which is not waited for, beside those on the host.

    Args:
        columns: on the host or there.
        device: of the network.
        read: those of them that objectives and constraints read.

    Returns: the same columns where the device is the host.
    """
    if device.type == "cpu" or isinstance(columns, Hosted):
        return columns
    there = {name: moved(c, device) if isinstance(c, Tensor) else c for name, c in columns.items()}
    return Hosted(there, fetched(read))


def fetched(columns: Columns) -> Columns:
    """The columns with those that lie elsewhere brought to the host in one piece; those with a graph stay."""
    far = {n: c for n, c in columns.items() if isinstance(c, Tensor) and c.device.type != "cpu" and not c.requires_grad}
    if not far:
        return columns
    like = [column.contiguous() for column in far.values()]
    buffer = torch.empty(packed_size(like), dtype=torch.uint8, device=like[0].device)
    pack(like, buffer)
    near = unpack(buffer.cpu().view(1, -1), like, [len(like[0])])
    return {**columns, **dict(zip(far, near, strict=True))}


def each_column(columns: Columns, function: Callable[[Tensor], Tensor]) -> Columns:
    """A function of every column, on the device and on the host."""
    changed = {name: function(column) for name, column in columns.items()}
    return Hosted(changed, each_column(columns.host, function)) if isinstance(columns, Hosted) else changed


def with_column(columns: Columns, name: str, values: Tensor) -> Columns:
    """The columns and one more, which the host shares."""
    more = {**columns, name: values}
    return Hosted(more, {**columns.host, name: values}) if isinstance(columns, Hosted) else more


class SameAgain(Generic[T]):
    """What followed from columns of the last batch, for a batch that has the same ones.

    Class-balanced batches hold their classes at the same places.  Then nothing is computed, or sent to a device, twice.
    """

    def __init__(self) -> None:
        self._columns: list[Tensor | None] = []
        self._beside: Hashable = None
        self._found: T | None = None

    def __call__(self, columns: Sequence[Tensor | None], beside: Hashable, find: Callable[[], T]) -> T:
        """The result of ``find``, or the last one.

        Args:
            columns: on the host, from which the result follows; None for one that the batch lacks.
            beside: what else it follows from.
            find: called where something is not as it was.
        """
        if torch.is_inference_mode_enabled() or any(c is not None and c.requires_grad for c in columns):
            return find()
        if self._found is None or beside != self._beside or not all(map(_equal, columns, self._columns)):
            self._found = None
            found = find()
            self._columns = [None if c is None else c.clone() for c in columns]  # loaders may reuse their memory
            self._beside, self._found = beside, found
        return self._found


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)
