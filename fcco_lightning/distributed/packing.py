"""Several tensors in one buffer of bytes, so that one collective sends them all."""

from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; every dtype can be viewed at such an offset


def packed_size(tensors: Sequence[Tensor]) -> int:
    """Bytes that ``tensors`` need in a buffer."""
    return sum(_padded(t.nbytes) for t in tensors)


def pack(tensors: Sequence[Tensor], buffer: Tensor) -> None:
    """Copy contiguous ``tensors`` into ``buffer`` (uint8, at least :func:`packed_size` long)."""
    offset = 0
    for t in tensors:
        if t.numel():
            buffer[offset : offset + t.nbytes].copy_(t.view(-1).view(torch.uint8))
        offset += _padded(t.nbytes)


def unpack(buffers: Tensor, like: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """The tensors of all processes, concatenated along the first dimension.

    Args:
        buffers: one row per process, uint8.
        like: tensors of the dtypes and shapes that were packed, up to the first dimension.
        sizes: first dimension of each process.
    """
    even = len(set(sizes)) == 1
    offsets, whole = [0] * len(sizes), []
    for t in like:
        row = t.dtype.itemsize * t.shape[1:].numel()
        spans = [(o, o + b * row) for o, b in zip(offsets, sizes, strict=True)]
        if even:
            parts = [buffers[:, slice(*spans[0])].reshape(-1)]
        else:
            parts = [buffer[slice(*span)] for buffer, span in zip(buffers, spans, strict=True)]
        flat = parts[0] if even else torch.cat(parts)
        # a copy at an aligned address, whatever the offset was
        flat = flat.contiguous() if flat.storage_offset() % t.dtype.itemsize == 0 else flat.clone()
        whole.append(flat.view(t.dtype).view(sum(sizes), *t.shape[1:]))
        offsets = [o + _padded(b * row) for o, b in zip(offsets, sizes, strict=True)]
    return whole


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
