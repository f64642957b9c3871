"""Columns that are on a device and on the host; the shared tests see what they save (test_other_devices.py)."""

import torch

from fcco_lightning.hosted import Hosted, each_column, on_host, to_device, with_column

CPU, META = torch.device("cpu"), torch.device("meta")


def given():
    return {"x": torch.ones(3, 2), "y": torch.tensor([1, 0, 1]), "name": ["a", "b", "c"]}


def test_on_the_host_columns_are_themselves():
    columns = given()
    assert to_device(columns, CPU, columns) is columns
    assert on_host(columns) is columns


def test_on_a_device_the_columns_that_are_read_stay_on_the_host():
    columns = given()
    moved = to_device(columns, META, {"y": columns["y"]})
    assert {name: c.device.type for name, c in moved.items() if name != "name"} == {"x": "meta", "y": "meta"}
    assert on_host(moved) == {"y": columns["y"]}
    assert to_device(moved, META, columns) is moved


def test_what_is_done_to_columns_is_done_to_both():
    columns = to_device(given() | {"name": torch.arange(3)}, META, {"y": torch.tensor([1, 0, 1])})
    first = each_column(columns, lambda column: column[:1])
    assert first["x"].shape == (1, 2)
    assert on_host(first)["y"].tolist() == [1]
    more = with_column(first, "tau", torch.ones(1))
    assert on_host(more)["tau"] is more["tau"]
    more["y"] = torch.tensor([5])  # as a hook of Lightning may
    assert isinstance(more, Hosted)
    assert on_host(more)["y"].tolist() == [5]
