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
        buffers: one row per process, uint8, at aligned addresses.
        like: tensors of the dtypes and shapes that were packed, up to the first dimension.
        sizes: first dimension of each process.
    """
    even, offsets, whole = len(set(sizes)) == 1, [0] * len(sizes), []
    for t in like:
        lengths = [size * t.dtype.itemsize * t.shape[1:].numel() for size in sizes]
        if even:
            flat = buffers[:, offsets[0] : offsets[0] + lengths[0]].reshape(-1)
        else:
            flat = torch.cat([b[o : o + n] for b, o, n in zip(buffers, offsets, lengths, strict=True)])
        whole.append(flat.view(t.dtype).view(sum(sizes), *t.shape[1:]))
        offsets = [o + _padded(n) for o, n in zip(offsets, lengths, strict=True)]
    return whole


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
