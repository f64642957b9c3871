"""The processes of a job, with the only collectives that a training step needs."""

import gc
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fcco_lightning.errors import ConfigError, PeerError
from fcco_lightning.state.sharded import is_sharded
from fcco_lightning.state.watch import Watch, is_lost

_HEADER = 6  # int64: failed, bytes needed, rows, layout of the tensors, marks, unused
_HEADER_BYTES = 8 * _HEADER
_ALIGNMENT = 16  # bytes; at such offsets a buffer can be viewed as any dtype
_ALONE: AbstractContextManager[None] = nullcontext()


class Gathered(NamedTuple):
    """The result of :meth:`Processes.gather`.

    Attributes:
        tensors: the tensors of all processes, concatenated in the order of ranks.
        sizes: number of rows of each process.
        marks: the mark of each process.
    """

    tensors: list[Tensor]
    sizes: list[int]
    marks: list[int]

    def any_mark(self, mark: int) -> bool:
        """Whether some process has set this bit."""
        return any(m & mark for m in self.marks)


class Processes:
    """The processes of a ``torch.distributed`` group; without a group this process alone, at no cost.

    All processes of the group must call a method together.  A process that fails before that calls :meth:`fail`
    instead, and then all of them raise.

    Args:
        group: the group; None for all processes.
        alone: whether to use this process alone, although there is a group.

    Attributes:
        size: P, the number of processes.
        rank: rank of this process, in 0..P-1.
        bytes: number of bytes sent by this process so far.
        patience: seconds that a failing process waits until the others know of it; None for the timeout of the group.
            (In the evaluation of a sharded network the others may wait for this process instead.)
        watch: learns of failures of others at any time; None without.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, alone: bool = False) -> None:
        running = dist.is_available() and dist.is_initialized() and not alone
        self.group = group
        self.size = dist.get_world_size(group) if running else 1
        self.rank = dist.get_rank(group) if running else 0
        self.bytes, self._capacity = 0, 0
        self.patience: float | None = None
        # device that the backend needs; None for any
        self._device = torch.device("cuda") if running and "gloo" not in dist.get_backend(group) else None
        self._announced: BaseException | None = None  # the failure of this process that the others know
        self.watch: Watch | None = None

    @classmethod
    def apart(cls) -> "Processes":
        """All processes in a new group with a watch; other communication cannot interfere with it."""
        watch = Watch()  # before any other process can fail
        processes = cls(dist.new_group())  # type: ignore[arg-type]
        processes.watch = watch
        return processes

    def __deepcopy__(self, memo: dict[int, Any]) -> "Processes":
        """Return this object: copies of objects that refer to it share it."""
        return self

    def gather(self, tensors: Sequence[Tensor], mark: int = 0) -> Gathered:
        """Concatenate the tensors of all processes along the first dimension, differentiably.

        This takes one collective for any number of tensors, and a second one only if more bytes are sent than ever
        before.  Processes may contribute different numbers of rows, also none.  The backward pass gives this process P
        times its part of the gradient, so that averaging over processes (as in DistributedDataParallel) gives the
        gradient of a function of the concatenated tensors that every process computes.

        Args:
            tensors: tensors of shapes (b, ...) with the same b; other dimensions and dtypes are the same on all
                processes.
            mark: bits that are sent to every process.

        Raises:
            ConfigError: if the tensors have different numbers of rows.
            PeerError: if another process has failed, or has sent tensors of other shapes.
        """
        if self.size == 1:
            return Gathered(list(tensors), [tensors[0].shape[0] if tensors else 0], [mark])
        with self.guard():
            rows = _first_dimension(tensors)
        contents = [t.detach().to(self._device or t.device).contiguous() for t in tensors]
        kinds = [f"{str(t.dtype)[6:]} (b, {', '.join(map(str, t.shape[1:]))})" for t in contents]
        layout = zlib.crc32(repr(kinds).encode())
        headers, everything = self._exchange(contents, [0, packed_size(contents), rows, layout, mark, 0])
        if any(h[3] != layout for h in headers):
            details = "; ".join(f"process {r} has {kind}" for r, kind in enumerate(self._everyone(kinds)))
            raise PeerError(
                f"the processes do not exchange the same tensors: {details}. Give every process the same configuration "
                "and data."
            )
        sizes = [h[2] for h in headers]
        start, union = sum(sizes[: self.rank]), list[Tensor]()
        for t, u in zip(tensors, unpack(everything[:, _HEADER_BYTES:], contents, sizes), strict=True):
            with_graph = t.requires_grad and torch.is_grad_enabled()
            union.append(_Union.apply(t, u.to(t.device), start, self.size) if with_graph else u.to(t.device))
        return Gathered(union, sizes, [h[4] for h in headers])

    def fail(self, error: BaseException, timeout: float | None = None) -> None:
        """Tell the others, which are or will be in :meth:`gather` or :meth:`agree`, why this process fails.

        It waits for them for ``timeout`` seconds; :attr:`patience` if it is None.
        """
        timeout = self.patience if timeout is None else timeout
        announced = (e is self._announced or isinstance(e, PeerError) or is_lost(e) for e in _causes(error))
        if self.size == 1 or any(announced):
            return
        self._announced = error
        if self.watch is not None:
            self.watch.tell(error)
        # if the others are gone, only this process's own error matters
        with suppress(Exception):
            self._exchange([], [1, 0, 0, 0, 0, 0], timeout)
            self._everyone(f"{type(error).__name__}: {error}")

    def guard(self) -> AbstractContextManager[None]:
        """A context for code without communication; if it raises here, the others raise at their next exchange."""
        return self._announcing_failure() if self.size > 1 else _ALONE

    @contextmanager
    def _announcing_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context that all processes complete, or all raise; the body itself must not communicate.

        Raises:
            PeerError: if another process has failed in its body.
        """
        with self.guard():
            yield
        self.agree()

    def agree(self) -> None:
        """Wait for all processes, and raise if one of them has failed.

        Raises:
            PeerError: naming the process and its error.
        """
        if self.size > 1:
            self._exchange([], [0] * _HEADER)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            buffer = tensor.to(self._device or tensor.device)
            dist.all_reduce(buffer, group=self.group)
            if buffer is not tensor:
                tensor.copy_(buffer)
            self.bytes += tensor.nbytes
        return tensor

    def largest(self, number: int) -> int:
        """The largest of the numbers of all processes; one collective."""
        if self.size == 1:
            return number
        maximum = torch.tensor(number, device=self._device)
        dist.all_reduce(maximum, dist.ReduceOp.MAX, group=self.group)
        return int(maximum)

    @torch.no_grad()
    def copy_first_(self, tensors: Sequence[Tensor]) -> None:
        """Set every tensor to its values on the first process; one collective for each."""
        for tensor in tensors if self.size > 1 else ():
            buffer = tensor.to(self._device or tensor.device).contiguous()
            dist.broadcast(buffer, group_src=0, group=self.group)
            tensor.copy_(buffer)

    @torch.no_grad()
    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its mean over all processes; one collective per dtype.

        Sharded tensors (DTensor) are unchanged.
        """
        if self.size == 1:
            return
        tensors = [t for t in tensors if not is_sharded(t)]
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            same_dtype = [t for t in tensors if t.dtype == dtype]
            flat = self.sum_(torch.cat([t.reshape(-1) for t in same_dtype])).div_(self.size)
            for t, mean in zip(same_dtype, torch.split(flat, [t.numel() for t in same_dtype]), strict=True):
                t.copy_(mean.view_as(t))

    def everyone(self, value: Any) -> list[Any]:
        """The values of all processes by rank, for any picklable value; slow, for set-up.

        Raises:
            PeerError: if another process has failed.
        """
        self.agree()
        return self._everyone(value)

    def _everyone(self, value: Any) -> list[Any]:
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def _exchange(
        self, contents: Sequence[Tensor], header: list[int], timeout: float | None = None
    ) -> tuple[list[list[int]], Tensor]:
        """Exchange headers and buffers; the size of a buffer is the same on all processes, without communication."""
        device = contents[0].device if contents else self._device or torch.device("cpu")
        while True:
            buffer = torch.empty(_HEADER_BYTES + self._capacity, dtype=torch.uint8, device=device)
            buffer[:_HEADER_BYTES].view(torch.int64).copy_(torch.tensor(header))
            if header[1] <= self._capacity:
                pack(contents, buffer[_HEADER_BYTES:])
            everything = buffer.new_empty(self.size, len(buffer))
            self._gather_bytes(everything.view(-1), buffer, timeout)
            self.bytes += len(buffer)
            headers = everything[:, :_HEADER_BYTES].contiguous().view(torch.int64).tolist()
            failed, largest = [rank for rank, h in enumerate(headers) if h[0]], max(h[1] for h in headers)
            if failed and not header[0]:
                reasons = self._everyone(None)
                failures = "; ".join(f"process {rank} failed with {reasons[rank]}" for rank in failed)
                raise PeerError(f"{failures}. So this process stops too.")
            if failed or largest <= self._capacity:
                return headers, everything
            self._capacity = largest

    def _gather_bytes(self, everything: Tensor, buffer: Tensor, timeout: float | None) -> None:
        if timeout is not None and self._device is None:  # gloo's thread must time out, or the process cannot end
            options = dist.distributed_c10d.AllgatherOptions()  # type: ignore[attr-defined]
            options.timeout = timedelta(seconds=timeout)
            group = dist.group.WORLD if self.group is None else self.group
            group._allgather_base(everything, buffer, options).wait()  # type: ignore[union-attr]
            return
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name
        work = gather(everything, buffer, group=self.group, async_op=True)
        if work is not None:
            work.wait() if timeout is None else work.wait(timedelta(seconds=timeout))


def packed_size(tensors: Sequence[Tensor]) -> int:
    """Number of bytes that ``tensors`` need in a buffer."""
    return sum(_padded(t.nbytes) for t in tensors)


def pack(tensors: Sequence[Tensor], buffer: Tensor) -> None:
    """Copy contiguous ``tensors`` into ``buffer`` (uint8, at least :func:`packed_size` long)."""
    offset = 0
    for t in tensors:
        if t.numel():
            buffer[offset : offset + t.nbytes].copy_(t.view(-1).view(torch.uint8))
        offset += _padded(t.nbytes)


def unpack(buffers: Tensor, templates: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """The tensors of all processes, concatenated along the first dimension.

    Args:
        buffers: one row per process, uint8, at aligned addresses.
        templates: tensors with the dtypes and shapes of the packed ones, up to the first dimension.
        sizes: first dimension of the tensors of each process.
    """
    even = len(set(sizes)) == 1
    offsets = [0] * len(sizes)
    tensors = []
    for t in templates:
        lengths = [size * t.dtype.itemsize * t.shape[1:].numel() for size in sizes]
        if even:
            flat = buffers[:, offsets[0] : offsets[0] + lengths[0]].reshape(-1)
        else:
            flat = torch.cat([b[o : o + n] for b, o, n in zip(buffers, offsets, lengths, strict=True)])
        tensors.append(flat.view(t.dtype).view(sum(sizes), *t.shape[1:]))
        offsets = [o + _padded(n) for o, n in zip(offsets, lengths, strict=True)]
    return tensors


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class _Union(torch.autograd.Function):
    """The gathered tensor, with the graph of this process's rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, union: Tensor, start: int, size: int) -> Tensor:
        ctx.rows, ctx.size = slice(start, start + local.shape[0]), size
        return union.view_as(union)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[0][ctx.rows] * ctx.size, None, None, None


def _first_dimension(tensors: Sequence[Tensor]) -> int:
    lengths = {t.shape[:1] for t in tensors} or {torch.Size([0])}
    if () in lengths or len(lengths) > 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ConfigError(f"`tensors` have the shapes {shapes}; the first dimension, one row per sample, must agree.")
    return lengths.pop()[0]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its chain of causes and contexts."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def end_processes() -> None:
    """Destroy the process group at the end of a job that all processes have completed.

    Otherwise the threads of gloo's groups would run during the exit of the process, which can end with SIGABRT
    ("terminate called without an active exception").  Objects with groups of their own must be deleted before.
    """
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def require_same_everywhere(processes: Processes, description: Mapping[str, str]) -> None:
    """Refuse a description that differs between processes.

    Raises:
        ConfigError: naming the first entry that differs, with the value of every process.
    """
    everyone = processes.everyone(dict(description))
    for name in dict.fromkeys(name for d in everyone for name in d):
        values = [d.get(name) for d in everyone]
        if len(set(values)) > 1:
            listing = "; ".join(f"process {r}: {v}" for r, v in enumerate(values))
            raise ConfigError(
                f"the processes do not agree on `{name}`. {listing}. Give all of them the same configuration and data."
            )
