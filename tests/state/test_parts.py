"""Part files: every bit is restored, by any number of processes, and damage is noticed."""

import ctypes
import errno
import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state import new_file, shard_of
from fcco_lightning.state.parts import FOLDER, put_back, read_parts, without_values, write_part

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}
SPECIAL = {
    torch.float32: [0x7FC00001, 0x7F800001, 0xFFC12345, 0xFFFFFFFF, 0x80000000, 0x00000001, 0x7FC00000],
    torch.float64: [
        0x7FF8000000000001,
        0x7FF0000000000001,
        0xFFF8123456789ABC,
        (1 << 64) - 1,
        1 << 63,
        1,
        0x7FF8 << 48,
    ],
}


def random_rows(num_rows, width=1, dtype=torch.float32, seed=0):
    """Rows of random bits, so NaNs of all kinds are among them; the first hold the special values."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    words = np.random.default_rng(seed).integers(0, np.iinfo(unsigned).max, num_rows * width, unsigned, endpoint=True)
    words[: len(SPECIAL[dtype])] = SPECIAL[dtype][: len(words)]
    return torch.from_numpy(words.view(f"i{dtype.itemsize}")).view(dtype).reshape(num_rows, width)


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(one.view(INTEGERS[one.dtype]), other.view(INTEGERS[one.dtype]))


def save(folder, tables, writers=1, save_id="s"):
    """The checkpoint without values that belongs to the part files of some processes."""
    for rank in range(writers):
        shards = {name: shard_of(len(rows), rank, writers) for name, rows in tables.items()}
        parts = {f"state_dict.{name}.rows": tables[name][a : a + n] for name, (a, n) in shards.items()}
        write_part(folder / save_id, rank, parts)
    meta = {f"{name}.rows": torch.empty_like(rows, device="meta") for name, rows in tables.items()}
    header = {"states": [*tables], "save_id": save_id, "world_size": writers, FOLDER: str(folder)}
    return {"state_dict": meta, "fcco": header}


def load(checkpoint, readers=1):
    """All rows of all tables, read shard by shard."""
    stored = checkpoint["state_dict"]
    shards = [
        read_parts(checkpoint, {f"state_dict.{k}": shard_of(len(v), r, readers) for k, v in stored.items()})
        for r in range(readers)
    ]
    places = {name: f"state_dict.{name}.rows" for name in checkpoint["fcco"]["states"]}
    return {name: torch.cat([shard[place] for shard in shards]) for name, place in places.items()}


# ---- what comes back


@pytest.mark.parametrize("num_rows", [100, 3, 1])
@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (1, 2), (2, 1), (2, 3), (4, 2), (3, 7), (7, 5)])
def test_any_number_of_processes_reads_every_bit_that_any_number_wrote(tmp_path, num_rows, writers, readers):
    tables = {"u": random_rows(num_rows, 3), "a/table: ü": random_rows(num_rows + 1, 1, torch.float64, seed=1)}
    before = {name: rows.clone() for name, rows in tables.items()}
    found = load(save(tmp_path, tables, writers), readers)
    assert all(same_bits(found[name], rows) and same_bits(tables[name], rows) for name, rows in before.items())
    assert len(list((tmp_path / "s").iterdir())) == writers


def test_any_range_comes_back(tmp_path):
    rows = random_rows(50)
    checkpoint = save(tmp_path, {"u": rows}, 3)
    for first in range(0, 50, 3):
        for count in (0, 1, 16, 17, 50 - first):
            count = min(count, 50 - first)  # noqa: PLW2901
            found = read_parts(checkpoint, {"state_dict.u.rows": (first, count)})["state_dict.u.rows"]
            assert same_bits(found, rows[first : first + count])


def test_rows_in_the_checkpoint_itself_are_read_alike(tmp_path):
    rows = random_rows(9)
    checkpoint = {"state_dict": {"u.rows": rows}, "fcco": {"states": ["u"], FOLDER: str(tmp_path)}}
    assert same_bits(load(checkpoint, 2)["u"], rows)


SHAPES = [(5, 3), (2, 2, 2), (4, 0), (7,), (1,)]


@pytest.mark.parametrize("writers", [1, 2, 3, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_put_back_and_rows_are_left(writers, dtype, tmp_path):
    generator = torch.Generator().manual_seed(writers)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    a, b, c, v, previous = (torch.empty(shape, dtype=dtype, device="meta") for shape in SHAPES)
    places = [f"state_dict.{name}" for name in "abc"]
    places += ["optimizer_states.0.state.0.v", "fcco.engine.previous.0"]
    for rank in range(writers):
        shards = [slice(first, first + n) for first, n in (shard_of(len(t), rank, writers) for t in tensors)]
        write_part(tmp_path / "s", rank, {p: t[s] for p, t, s in zip(places, tensors, shards, strict=True)})
    rows = torch.empty(3, 1, device="meta")
    checkpoint = {
        "state_dict": {"a": a, "whole": torch.ones(2), "b": b, "c": c, "u.rows": rows},
        "optimizer_states": [{"state": {0: {"v": v, "step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}],
        "fcco": {"states": ["u"], "save_id": "s", "world_size": writers, "engine": {"previous": [previous, 3]}},
    }
    checkpoint["fcco"][FOLDER] = str(tmp_path)
    assert [*without_values(checkpoint)] == places
    put_back(checkpoint)
    assert not without_values(checkpoint)
    found = [checkpoint["state_dict"][name] for name in "abc"]
    found += [checkpoint["optimizer_states"][0]["state"][0]["v"], checkpoint["fcco"]["engine"]["previous"][0]]
    assert all(torch.equal(*pair) for pair in zip(found, tensors, strict=True))
    assert (checkpoint["fcco"]["engine"]["previous"][1], checkpoint["state_dict"]["u.rows"]) == (3, rows)


# ---- damage


@pytest.fixture
def saved(tmp_path):
    tables = {"u": random_rows(50, 1), "y": random_rows(20, 3, torch.float64, seed=1)}
    checkpoint = save(tmp_path, tables, 2)
    assert same_bits(load(checkpoint)["u"], tables["u"])
    return checkpoint, [tmp_path / "s" / f"{rank}.part" for rank in range(2)]


def assert_refused(saved, match=None):
    with pytest.raises(CheckpointError, match=match):
        load(saved[0], 3)


@pytest.mark.parametrize("trials", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found_or_does_not_matter(saved, trials):
    draws, found, whole = np.random.default_rng(4), 0, load(saved[0])
    for _ in range(trials):
        path = saved[1][draws.integers(2)]
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[draws.integers(len(content))] ^= 1 << int(draws.integers(8))
        path.write_bytes(damaged)
        try:
            assert all(same_bits(rows, whole[name]) for name, rows in load(saved[0], 3).items())
        except CheckpointError:
            found += 1
        path.write_bytes(content)
    assert found > 0.4 * trials  # the rest is padding, and dates and the like of the archive


def test_every_bit_of_the_rows_is_checked(saved):
    path, rows = saved[1][0], load(saved[0])["u"][:25].numpy().tobytes()
    content = path.read_bytes()
    start = content.index(rows)
    for byte in range(start, start + len(rows), 7):
        path.write_bytes(content[:byte] + bytes([content[byte] ^ 1 << byte % 8]) + content[byte + 1 :])
        assert_refused(saved, f"{re.escape(str(path))}: the file is damaged")


def test_a_file_that_is_too_short_or_too_long_is_found(saved):
    draws = np.random.default_rng(0)
    for path in saved[1]:
        whole = path.read_bytes()
        cuts = [0, 1, 8, len(whole) - 8, len(whole) - 1, *draws.integers(len(whole), size=9)]
        for damaged in [*(whole[:cut] for cut in cuts), whole + b"\0", whole + whole[-8:], b"\0" + whole]:
            path.write_bytes(damaged)
            assert_refused(saved, re.escape(str(path)))
        path.write_bytes(whole)
    load(*saved[:1])


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_part_and_one_that_cannot_be_read_are_named(saved, which):
    path = saved[1][which]
    path.unlink()
    assert_refused(saved, re.escape(str(path)))
    path.mkdir()
    assert_refused(saved, re.escape(str(path)))


def test_swapped_parts_are_found(saved):
    one, other = saved[1]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert_refused(saved, "0.part` is damaged or belongs to another save: it is of process 1 in save 's'. Copy the")


def test_a_part_of_another_save_is_found(saved, tmp_path):
    save(tmp_path, load(saved[0]), 2, "t")
    for path in saved[1]:
        whole = path.read_bytes()
        path.write_bytes((tmp_path / "t" / path.name).read_bytes())
        assert_refused(saved, f"{re.escape(str(path))}` is damaged or belongs to another save: .* in save 't'")
        path.write_bytes(whole)
    load(saved[0])


@pytest.mark.parametrize("size", [1, 3, 0, -1, 10**15])
def test_another_number_of_processes_is_refused(saved, size):
    saved[0]["fcco"]["world_size"] = size
    assert_refused(saved, "part`")


@pytest.mark.parametrize("size", [0, -1, 10**15])
def test_numbers_of_processes_for_which_there_is_a_last_part_only_are_refused(saved, size):
    saved[0]["fcco"]["world_size"] = size
    (saved[1][0].parent / f"{size - 1}.part").touch()
    assert_refused(saved, f"has 3 of the {size} parts")


@pytest.mark.parametrize(
    "other",
    [
        torch.empty(51, 1, device="meta"),
        torch.empty(50, 2, device="meta"),
        torch.empty(50, 1, device="meta", dtype=torch.float64),
        torch.empty(10**15, 1, device="meta"),  # for which there is no memory
    ],
)
def test_parts_of_another_shape_or_type_are_refused(saved, other):
    saved[0]["state_dict"]["u.rows"] = other
    assert_refused(saved, "0.part` is damaged or belongs to another save: it has no state_dict.u.rows of shape")


@pytest.mark.parametrize(
    "content", [[1], {}, {"save_id": "s", "rank": 0}, {"save_id": "s", "rank": 0, "parts": {"state_dict.u.rows": 1}}]
)
def test_what_is_no_part_file_is_refused(saved, content):
    torch.save(content, saved[1][0])
    assert_refused(saved, re.escape(str(saved[1][0])))


def test_tensors_without_values_and_without_files_are_refused(saved):
    del saved[0]["fcco"]["save_id"]
    assert_refused(saved, "names no files that have them")


# ---- a disk that fails


@pytest.fixture
def file_limit():
    """No file of this process may grow beyond 10 000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("file_limit")
@pytest.mark.parametrize("num_rows", [3000, 30_000])
def test_a_write_that_fails_is_named_and_leaves_no_file(tmp_path, num_rows):
    with pytest.raises(CheckpointError, match=f"cannot write `{tmp_path}/0.part`: "):
        write_part(tmp_path, 0, {"u": torch.ones(num_rows, 1)})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_earlier_file_whole(saved, monkeypatch):
    def full_disk(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = saved[1][0]
    before = path.read_bytes()
    monkeypatch.setattr(new_file.os, "fsync", full_disk)
    with pytest.raises(CheckpointError, match=r"cannot write .*0.part`: No space left on device"):
        write_part(path.parent, 0, {"u": torch.ones(3, 1)})
    assert (sorted(path.parent.iterdir()), path.read_bytes()) == (saved[1], before)


def test_a_file_is_replaced_at_once(saved, monkeypatch):
    path = saved[1][0]
    before, contents = path.read_bytes(), []
    monkeypatch.setattr(new_file.os, "fsync", lambda number: contents.append(path.read_bytes()))
    write_part(path.parent, 0, {"u": torch.ones(3, 1)})
    assert contents == [before, path.read_bytes()] != [before, before]  # file, then folder


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"cannot write `{tmp_path}/file/0.part`: {os.strerror(errno.EEXIST)}"):
        write_part(tmp_path / "file", 0, {"u": torch.ones(1, 1)})


# ---- memory


def memory(name):
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def extra_memory(work):
    """Peak resident memory during ``work``, above what was resident before."""
    ctypes.CDLL(None).malloc_trim(0)  # else what earlier tests have freed is taken again, and no growth is seen
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peak memory is read from /proc")
def test_no_copy_is_made(tmp_path):
    rows, checkpoint = torch.ones(13_000_000, 1), {}
    assert extra_memory(rows.clone) > 48 << 20  # it can be seen
    assert extra_memory(lambda: checkpoint.update(save(tmp_path, {"u": rows}))) < 16 << 20
    found = {}
    assert extra_memory(lambda: found.update(load_mapped(checkpoint))) < 16 << 20
    assert torch.equal(found["state_dict.u.rows"], rows)


def load_mapped(checkpoint):
    return read_parts(checkpoint, {"state_dict.u.rows": (0, 13_000_000)})
