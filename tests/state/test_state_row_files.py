"""Row files: every bit is restored, by any number of processes, and damage is noticed."""

import ctypes
import errno
import json
import os
import re
import resource
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state import row_files
from fcco_lightning.state.row_files import RowPart, checksum, read_manifest, read_rows, write_manifest, write_part

INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
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


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK_BYTES", 64)


def random_rows(num_rows, width=1, dtype=torch.float32, seed=0):
    """Rows of random bits, so NaNs of all kinds are among them; the first hold the special values."""
    unsigned = np.dtype(f"u{dtype.itemsize}")
    words = np.random.default_rng(seed).integers(0, np.iinfo(unsigned).max, num_rows * width, unsigned, endpoint=True)
    words[: len(SPECIAL[dtype])] = SPECIAL[dtype][: len(words)]
    return torch.from_numpy(words.view(f"i{dtype.itemsize}")).view(dtype).reshape(num_rows, width)


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(one.view(INTEGERS[one.dtype]), other.view(INTEGERS[one.dtype]))


def shards(num_rows, processes):
    """(first, count) of every process, as torch.chunk divides rows; the last may have none."""
    size = -(-num_rows // processes)
    return [(rank * size, max(0, min(size, num_rows - rank * size))) for rank in range(processes)]


def save(folder, tables, processes=1, save_id="s"):
    parts = [
        write_part(folder, name, save_id, first, rows[first : first + count], len(rows))
        for name, rows in tables.items()
        for first, count in shards(len(rows), processes)
    ]
    sent = json.loads(json.dumps([asdict(part) for part in parts]))  # as the processes send them to process 0
    write_manifest(
        folder, save_id, {name: len(rows) for name, rows in tables.items()}, [RowPart(**part) for part in sent]
    )
    return parts


def load(folder, like, processes=1, save_id="s"):
    """All rows of all tables, read shard by shard."""
    manifest = read_manifest(folder, save_id)
    tables = {name: torch.zeros_like(rows) for name, rows in like.items()}
    for name, rows in tables.items():
        for first, count in shards(len(rows), processes):
            read_rows(folder, manifest, name, first, rows[first : first + count], num_rows=len(rows))
    return tables


def row_file_paths(folder):
    return sorted(path for path in folder.iterdir() if path.suffix == ".rows")


# ---- what comes back


@pytest.mark.parametrize("num_rows", [1, 16, 57])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_bit_comes_back(tmp_path, num_rows, width, dtype):
    rows = random_rows(num_rows, width, dtype)
    before = rows.clone()
    save(tmp_path, {"u": rows})
    assert same_bits(rows, before)
    assert same_bits(load(tmp_path, {"u": rows})["u"], rows)


@pytest.mark.parametrize("num_rows", [100, 3, 1])
@pytest.mark.parametrize(("writers", "readers"), [(1, 2), (2, 1), (2, 3), (4, 2), (3, 7), (7, 5)])
def test_any_number_of_processes_reads_what_any_number_wrote(tmp_path, num_rows, writers, readers):
    tables = {"u": random_rows(num_rows, 3), "a/table: ü": random_rows(num_rows + 1, 1, torch.float64, seed=1)}
    save(tmp_path, tables, writers)
    for name, rows in load(tmp_path, tables, readers).items():
        assert same_bits(rows, tables[name])
    with_rows = sum(count > 0 for rows in tables.values() for _, count in shards(len(rows), writers))
    assert len(row_file_paths(tmp_path)) == with_rows


def test_any_range_comes_back_and_nothing_else_is_touched(tmp_path):
    rows = random_rows(50)
    save(tmp_path, {"u": rows}, processes=3)
    manifest = read_manifest(tmp_path)
    for first in range(0, 50, 3):
        for count in (0, 1, 15, 16, 17, 50 - first):
            count = min(count, 50 - first)  # noqa: PLW2901
            around = torch.full((count + 2, 1), 7.0)
            read_rows(tmp_path, manifest, "u", first, around[1 : count + 1])
            assert same_bits(around[1 : count + 1].contiguous(), rows[first : first + count])
            assert around[0] == around[-1] == 7


def test_memory_layout_does_not_matter(tmp_path):
    rows = random_rows(40, 3)
    save(tmp_path, {"u": rows.t().contiguous().t()}, processes=2)
    into = torch.full((3, 40), 7.0).t()
    read_rows(tmp_path, read_manifest(tmp_path), "u", 0, into)
    assert same_bits(into.contiguous(), rows)
    assert checksum(rows.t().contiguous().t(), 5) == checksum(rows, 5)


def test_large_chunks_and_many_periods(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK_BYTES", 4 << 20)
    rows = torch.randn(1_500_000, 1)
    parts = save(tmp_path, {"u": rows}, processes=2)
    assert same_bits(load(tmp_path, {"u": rows}, 3)["u"], rows)
    ends = [(part.first, part.first + part.count) for part in parts]
    assert [part.checksum for part in parts] == [checksum(rows[low:high], low) for low, high in ends]
    assert [(tmp_path / part.file).stat().st_size for part in parts] == [4 * part.count for part in parts]


# ---- checksum


def splitmix64(state, number):
    state = (state + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


def slow_checksum(rows, first):
    """Of one chunk, with whole numbers of any size."""
    words = rows.contiguous().view(torch.int32).flatten().tolist()
    words += [0] * (-len(words) % 1024)
    numbers = [low % 2**32 + (high % 2**32 << 32) for low, high in zip(words[::2], words[1::2], strict=True)]
    matrix = [numbers[i : i + 512] for i in range(0, len(numbers), 512)]
    if len(matrix) * 1024 == rows.nbytes // 4:
        matrix.append([0] * 512)  # the last row of the matrix is never full
    sums = [sum(column) % 2**64 for column in zip(*matrix, strict=True)] + [sum(row) % 2**64 for row in matrix]
    total = 0
    for i, s in enumerate(sums):
        total += s % 2**32 * splitmix64(0, (1 << 62) + i) + (s >> 32) * splitmix64(0, (2 << 62) + i)
    return total * (splitmix64(0, first * rows.shape[1] * rows.dtype.itemsize // 4) | 1) % 2**64


@pytest.mark.parametrize("first", [0, 1, 2**14 - 5, 10**8])
@pytest.mark.parametrize("count", [1, 40, 1024, 1500])
@pytest.mark.parametrize(("width", "dtype"), [(1, torch.float32), (3, torch.float32), (3, torch.float64)])
def test_checksum_is_what_the_formula_says(first, count, width, dtype, monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK_BYTES", 4 << 20)
    rows = random_rows(count, width, dtype)
    assert checksum(rows, first) == slow_checksum(rows, first)


@pytest.mark.parametrize(("width", "dtype"), [(1, torch.float32), (3, torch.float64)])
def test_checksum_adds_up_over_chunks(width, dtype, monkeypatch):
    row = width * dtype.itemsize
    monkeypatch.setattr(row_files, "CHUNK_BYTES", 1000 * row)
    rows = random_rows(5_300, width, dtype)
    for cut in (1000, 3000, 5000):
        assert (checksum(rows[:cut], 7) + checksum(rows[cut:], 7 + cut)) % 2**64 == checksum(rows, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_checksum_changes_with_every_bit(dtype):
    rows, bits = random_rows(20, 1, dtype), 8 * dtype.itemsize
    whole = checksum(rows, 2**14 - 10)
    for row in range(20):
        for bit in range(bits):
            flipped = rows.clone()
            flipped.view(INTEGERS[dtype])[row] ^= (1 << bit) - (bit == bits - 1) * (1 << bits)
            assert checksum(flipped, 2**14 - 10) != whole


@pytest.mark.parametrize("values", [(0.0, -0.0), (1.0, 2.0), (float("nan"), 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_checksum_changes_with_swapped_rows(values, dtype, monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK_BYTES", 4 << 20)
    rows = torch.zeros(2**14 + 300, 1, dtype=dtype)
    seen = set()
    for row in [*range(100), *range(2**13, 2**13 + 100), *range(2**14, 2**14 + 100)]:
        rows[:] = values[0]
        rows[row] = values[1]
        seen.add(checksum(rows, 0))
    assert len(seen) == 300


# ---- damage


@pytest.fixture
def saved(tmp_path):
    tables = {"u": random_rows(50, 1), "y": random_rows(20, 3, torch.float64, seed=1)}
    folder = tmp_path / "save"
    save(folder, tables, processes=2)
    assert same_bits(load(folder, tables)["u"], tables["u"])
    return folder, tables


def assert_refused(saved, match=None):
    folder, tables = saved
    with pytest.raises(CheckpointError, match=match):
        load(folder, tables, 3)


@pytest.mark.parametrize("trials", [60, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", ["rows", "manifest"])
def test_a_flipped_bit_is_found(saved, part, trials):
    folder, _ = saved
    draws = np.random.default_rng(len(part))
    for _ in range(trials):
        path = folder / "manifest.json" if part == "manifest" else Path(draws.choice(row_file_paths(folder)))
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[draws.integers(len(whole))] ^= 1 << int(draws.integers(8))
        path.write_bytes(damaged)
        assert_refused(saved)
        path.write_bytes(whole)
    load(*saved)


def test_a_file_that_is_too_short_or_too_long_is_found(saved):
    folder, _ = saved
    draws = np.random.default_rng(0)
    for path in [*row_file_paths(folder), folder / "manifest.json"]:
        whole = path.read_bytes()
        cuts = [0, 1, 8, len(whole) - 8, len(whole) - 1, *draws.integers(len(whole), size=15)]
        for damaged in [*(whole[:cut] for cut in cuts), whole + b"\0", whole + whole[-8:], b"\0" + whole]:
            path.write_bytes(damaged)
            assert_refused(saved)
        path.write_bytes(whole)
    load(*saved)


def test_bytes_behind_the_rows_are_found(saved):
    path = row_file_paths(saved[0])[0]
    whole = path.read_bytes()
    path.write_bytes(whole + b"12345678")
    assert_refused(saved, f"it has {len(whole) + 8} bytes, must have {len(whole)}")


def test_the_whole_chunk_is_verified_and_other_chunks_are_not_read(saved):
    folder, _ = saved  # file 0 of u: rows 0..24 in chunks of 16
    path, manifest = row_file_paths(folder)[0], read_manifest(folder)
    damaged = bytearray(path.read_bytes())
    damaged[4 * 3] ^= 1  # row 3
    path.write_bytes(damaged)
    read_rows(folder, manifest, "u", 16, torch.empty(34, 1))
    for first, count in [(0, 1), (5, 2), (15, 30), (0, 16)]:
        with pytest.raises(CheckpointError, match=r"rows 0\.\.15 do not match"):
            read_rows(folder, manifest, "u", first, torch.empty(count, 1))


def test_a_missing_part_is_named(saved):
    path = row_file_paths(saved[0])[1]
    path.unlink()
    assert_refused(saved, f"{re.escape(str(path))}.*No such file")


def test_a_part_that_cannot_be_read_is_named(saved):
    path = row_file_paths(saved[0])[1]
    path.unlink()
    path.mkdir()
    assert_refused(saved, re.escape(str(path)))


def test_swapped_parts_are_found(saved):
    one, other = row_file_paths(saved[0])[:2]
    one_bytes, other_bytes = one.read_bytes(), other.read_bytes()
    assert len(one_bytes) == len(other_bytes)
    one.write_bytes(other_bytes)
    other.write_bytes(one_bytes)
    assert_refused(saved, r"rows 0\.\.15 do not match")


def test_a_part_of_another_save_is_found(saved, tmp_path):
    folder, tables = saved
    other = {name: random_rows(*rows.shape, rows.dtype, seed=5) for name, rows in tables.items()}
    save(tmp_path / "other", other, processes=2, save_id="t")
    for here, there in zip(row_file_paths(folder), row_file_paths(tmp_path / "other"), strict=True):
        whole = here.read_bytes()
        here.write_bytes(there.read_bytes())
        assert_refused(saved, f"{re.escape(str(here))}` is damaged or belongs to another save: rows .* do not match")
        here.write_bytes(whole)
    load(*saved)


# ---- manifest


def test_without_manifest_the_save_was_interrupted(saved):
    (saved[0] / "manifest.json").unlink()
    assert_refused(saved, "manifest.json` is missing: the save was interrupted")


THIS_FORMAT = {"version": row_files.FORMAT_VERSION, "byte_order": sys.byteorder, "chunk_bytes": 64}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "\xff", '{"format": 1}', '{"version": 1}', "null", json.dumps({"format": THIS_FORMAT})]
)
def test_what_is_no_manifest_is_refused(saved, text):
    (saved[0] / "manifest.json").write_bytes(text.encode("latin-1"))
    assert_refused(saved, "(cannot read `.*manifest.json`: |manifest.json` (is damaged|has format))")


def test_another_format_version_is_refused(saved, monkeypatch):
    monkeypatch.setattr(row_files, "FORMAT_VERSION", 3)
    assert_refused(saved, "has format {'version': 2, .*}, this installation reads {'version': 3, .*}.*version of fcco_")


def test_a_manifest_of_another_save_is_refused(saved):
    assert read_manifest(saved[0]).save_id == "s"
    with pytest.raises(CheckpointError, match="of save 's', the checkpoint of save 't'"):
        read_manifest(saved[0], "t")


def test_a_manifest_that_cannot_be_read_is_named(saved):
    path = saved[0] / "manifest.json"
    path.unlink()
    path.mkdir()
    assert_refused(saved, "cannot read .*manifest.json")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda parts: parts[1:], "after row -1 comes row 4"),
        (lambda parts: parts[:-1], "after row 7 comes row 10"),
        (lambda parts: [parts[0], parts[2]], "after row 3 comes row 8"),
        (lambda parts: [*parts, parts[1]], "after row 7 comes row 4"),
        (lambda parts: [*parts, replace(parts[2], first=10)], "after row 11 comes row 10"),
        (lambda parts: [*parts[:2], replace(parts[2], dtype="float64")], "one .width, dtype."),
        (lambda parts: [*parts[:2], replace(parts[2], width=2)], "one .width, dtype."),
        (lambda parts: [*parts, replace(parts[0], table="v")], r"parts of \['v'\]"),
        (lambda parts: [], "after row -1 comes row 10"),
    ],
)
def test_parts_must_hold_every_row_once(tmp_path, change, match):
    parts = [
        write_part(tmp_path, "u", "s", first, torch.ones(count, 1), 10) for first, count in [(0, 4), (4, 4), (8, 2)]
    ]
    with pytest.raises(CheckpointError, match=match):
        write_manifest(tmp_path, "s", {"u": 10}, change(parts))
    assert not (tmp_path / "manifest.json").exists()
    write_manifest(tmp_path, "s", {"u": 10}, parts[::-1])
    assert read_manifest(tmp_path).parts == tuple(parts)


# ---- another problem


@pytest.mark.parametrize(
    ("into", "num_rows", "match"),
    [
        (torch.empty(50, 1), 51, r"\(50, 1, 'float32'\).*needs \(51, 1, 'float32'\)"),
        (torch.empty(40, 1), 40, r"\(50, 1, 'float32'\).*needs \(40, 1, 'float32'\)"),
        (torch.empty(50, 2), 50, r"\(50, 1, 'float32'\).*needs \(50, 2, 'float32'\)"),
        (torch.empty(50, 1, dtype=torch.float64), None, r"\(50, 1, 'float32'\).*needs \(50, 1, 'float64'\)"),
        (torch.empty(0, 2), 50, r"\(50, 1, 'float32'\).*needs \(50, 2, 'float32'\)"),
        (torch.empty(50, 1, dtype=torch.float16), 50, "float16"),
        (torch.empty(50), 50, r"\(50,\)"),
    ],
)
def test_another_shape_or_dtype_is_refused(saved, into, num_rows, match):
    with pytest.raises(CheckpointError, match=match):
        read_rows(saved[0], read_manifest(saved[0]), "u", 0, into, num_rows)


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (50, 1), (0, 51), (49, 2), (26, 26)])
def test_rows_out_of_range_are_refused(saved, tmp_path, first, count):
    match = re.escape(f"rows 0..49, got rows {first}..{first + count - 1}")
    with pytest.raises(CheckpointError, match=match):
        read_rows(saved[0], read_manifest(saved[0]), "u", first, torch.empty(count, 1))
    with pytest.raises(CheckpointError, match=match):
        write_part(tmp_path / "new", "u", "s", first, torch.empty(count, 1), 50)
    assert not (tmp_path / "new").exists()


def test_a_table_that_was_not_saved_is_refused(saved):
    with pytest.raises(CheckpointError, match=r"no table 'v', only \['u', 'y'\]"):
        read_rows(saved[0], read_manifest(saved[0]), "v", 0, torch.empty(1, 1))


def test_files_of_another_chunk_size_are_refused(saved, monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK_BYTES", 128)
    assert_refused(saved, "'chunk_bytes': 64}, this installation reads .*'chunk_bytes': 128}")


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
    with pytest.raises(CheckpointError, match=f"cannot write `{tmp_path}/u.*rows`: {os.strerror(errno.EFBIG)}"):
        write_part(tmp_path, "u", "s", 0, torch.ones(num_rows, 1), num_rows)
    assert list(tmp_path.iterdir()) == []


def full_disk(number):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_earlier_save_whole(saved, monkeypatch):
    folder, tables = saved
    before = sorted(folder.iterdir())
    part = write_part(folder, "u", "new", 0, torch.ones(1, 1), 1)
    monkeypatch.setattr(row_files.os, "fsync", full_disk)
    with pytest.raises(CheckpointError, match=r"cannot write .*manifest.json`: No space left on device"):
        write_manifest(folder, "new", {"u": 1}, [part])
    with pytest.raises(CheckpointError, match=r"cannot write .*rows`: No space left on device"):
        write_part(folder, "u", "newer", 0, tables["u"], 50)
    assert sorted(folder.iterdir()) == sorted([*before, folder / part.file])
    assert same_bits(load(folder, tables)["u"], tables["u"])


def test_the_manifest_is_replaced_at_once(saved, monkeypatch):
    folder, _ = saved
    whole = (folder / "manifest.json").read_bytes()
    part = write_part(folder, "u", "new", 0, torch.ones(1, 1), 1)
    contents = []
    monkeypatch.setattr(row_files.os, "fsync", lambda number: contents.append((folder / "manifest.json").read_bytes()))
    write_manifest(folder, "new", {"u": 1}, [part])
    assert contents == [whole, (folder / "manifest.json").read_bytes()]  # file, then folder
    assert read_manifest(folder).save_id == "new"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"cannot write `{tmp_path}/file/u.*: {os.strerror(errno.EEXIST)}"):
        write_part(tmp_path / "file", "u", "s", 0, torch.ones(1, 1), 1)


@pytest.mark.parametrize("rows", [torch.ones(3), torch.ones(3, 0), torch.ones(3, 1, dtype=torch.float16)])
def test_what_are_no_rows_is_refused(tmp_path, rows):
    with pytest.raises(CheckpointError, match="rows must be"):
        write_part(tmp_path, "u", "s", 0, rows, 3)


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
def test_extra_memory_is_a_few_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "CHUNK_BYTES", 4 << 20)
    rows, into = torch.ones(13_000_000, 1), torch.zeros(13_000_000, 1)
    strided = torch.zeros(2, 13_000_000).t()[:, :1].expand(-1, 1)
    assert extra_memory(rows.clone) > 48 << 20  # it can be seen
    assert extra_memory(lambda: save(tmp_path, {"u": rows})) < 16 << 20
    manifest = read_manifest(tmp_path)
    assert extra_memory(lambda: read_rows(tmp_path, manifest, "u", 0, into)) < 16 << 20
    assert extra_memory(lambda: read_rows(tmp_path, manifest, "u", 0, strided)) < 16 << 20
    assert torch.equal(into, rows)
