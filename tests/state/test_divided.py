"""Divided tensors in row files: any number of processes reads what any other number has written."""

import pytest
import torch

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.divided import TABLE, _read_ranges, _share, place_of, put_back, without_values
from fcco_lightning.state.row_files import read_manifest, write_manifest, write_part

SHAPES = [(5, 3), (2, 2, 2), (4, 0), (7,), (1,)]


def written(folder, writers, dtype=torch.float32):
    """Tensors, and a checkpoint without their values, as ``writers`` processes would leave it."""
    generator = torch.Generator().manual_seed(writers)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    a, b, c, v, previous = (torch.empty(shape, dtype=dtype, device="meta") for shape in SHAPES)
    parts, total = [], 0
    for rank in range(writers):
        first, total = place_of(tensors, writers, rank)
        pieces = [t.reshape(-1)[slice(*_share(t.shape, writers, rank))] for t in tensors]
        parts.append(write_part(folder / "id", TABLE, "id", first, torch.cat(pieces).float().unsqueeze(1), total))
    write_manifest(folder / "id", "id", {TABLE: total}, parts)
    checkpoint = {
        "state_dict": {"a": a, "whole": torch.ones(2), "b": b, "c": c},
        "optimizer_states": [{"state": {0: {"v": v, "step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}],
        "fcco": {"save_id": "id", "world_size": writers, "engine": {"previous": [previous, 3]}},
    }
    return tensors, checkpoint


def found(checkpoint):
    of_weights = [checkpoint["state_dict"][name] for name in "abc"]
    return [
        *of_weights,
        checkpoint["optimizer_states"][0]["state"][0]["v"],
        checkpoint["fcco"]["engine"]["previous"][0],
    ]


@pytest.mark.parametrize("writers", [1, 2, 3, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_tensors_come_back(writers, dtype, tmp_path):
    tensors, checkpoint = written(tmp_path, writers, dtype)
    put_back(checkpoint, tmp_path)
    assert not without_values(checkpoint)
    assert all(torch.equal(*pair) for pair in zip(found(checkpoint), tensors, strict=True))
    assert checkpoint["fcco"]["engine"]["previous"][1] == 3


@pytest.mark.parametrize(("writers", "readers"), [(2, 3), (3, 2), (4, 4), (1, 2), (9, 2)])
def test_parts_come_back(writers, readers, tmp_path):
    tensors, checkpoint = written(tmp_path, writers)
    shapes, manifest = without_values(checkpoint), read_manifest(tmp_path / "id", "id")
    for rank in range(readers):
        wanted = [_share(t.shape, readers, rank) for t in shapes]
        for part, tensor, (first, stop) in zip(
            _read_ranges(shapes, wanted, tmp_path / "id", manifest, writers), tensors, wanted, strict=True
        ):
            assert torch.equal(part, tensor.reshape(-1)[first:stop])


def test_a_missing_part_is_named(tmp_path):
    _, checkpoint = written(tmp_path, 3)
    part = sorted((tmp_path / "id").glob("*.rows"))[1]
    part.unlink()
    with pytest.raises(CheckpointError, match=part.name):
        put_back(checkpoint, tmp_path)
