"""Packing tensors of all processes into one buffer."""

import pytest
import torch

from fcco_lightning.state.processes import pack, packed_size, unpack

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(), (3,), (2, 2), (1,), (0,)]  # behind the first dimension


def random_tensors(sizes, seed, dtypes=DTYPES):
    """For every process the same kinds of tensors, with its number of rows."""
    generator = torch.Generator().manual_seed(seed)
    kinds = [(dtype, shape) for dtype in dtypes for shape in SHAPES]
    order = torch.randperm(len(kinds), generator=generator).tolist()
    return [
        [
            torch.randint(0, 256, (b, *kinds[k][1]), generator=generator).to(kinds[k][0])
            for k in order[: 2 + seed % len(kinds)]
        ]
        for b in sizes
    ]


def sent(processes, spare=0):
    """Buffers as they arrive: one row per process, behind some bytes that are not theirs, with garbage at the end."""
    capacity = max(packed_size(tensors) for tensors in processes) + spare
    everything = torch.full((len(processes), 48 + capacity), 0xAB, dtype=torch.uint8)
    for row, tensors in zip(everything, processes, strict=True):
        pack(tensors, row[48:])
    return everything[:, 48:]


@pytest.mark.parametrize("sizes", [(3, 3), (1, 1, 1), (2, 5), (0, 4), (3, 0, 1), (0, 0), (1, 2, 3, 4), (7,)], ids=str)
@pytest.mark.parametrize("spare", [0, 32])
def test_what_was_packed_comes_out_in_the_order_of_processes(sizes, spare):
    for seed in range(20):
        processes = random_tensors(sizes, seed)
        for own in processes:
            whole = unpack(sent(processes, spare), own, sizes)
            for position, tensor in enumerate(whole):
                expected = torch.cat([tensors[position] for tensors in processes])
                assert tensor.dtype == expected.dtype
                assert torch.equal(tensor, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_bits_survive(dtype):
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    bits = torch.randint(torch.iinfo(integers).min, torch.iinfo(integers).max, (2, 50), dtype=integers)
    processes = [[row.view(dtype)] for row in bits]
    (whole,) = unpack(sent(processes), processes[0], (50, 50))
    assert torch.equal(whole.view(integers), bits.flatten())


def test_the_size_of_a_buffer_is_what_packing_fills():
    (tensors,) = random_tensors((5,), seed=33)
    size = packed_size(tensors)
    assert sum(t.nbytes for t in tensors) <= size < sum(t.nbytes for t in tensors) + 16 * len(tensors)
    pack(tensors, torch.empty(size, dtype=torch.uint8))
    with pytest.raises(RuntimeError):
        pack(tensors, torch.empty(size - 16, dtype=torch.uint8))
    assert packed_size([]) == 0


def test_odd_lengths_leave_what_follows_aligned():
    processes = [[torch.ones(b, dtype=torch.bool), torch.arange(b, dtype=torch.float64)] for b in (1, 3)]
    for whole in (unpack(sent(processes), processes[0], (1, 3)), unpack(sent(processes[:1]), processes[0], (1,))):
        assert whole[1].data_ptr() % 8 == 0
        assert whole[1].tolist() == [0.0, 0.0, 1.0, 2.0][: len(whole[1])]
