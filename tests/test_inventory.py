"""Nothing that users rely on disappears unnoticed: `tests/inventory.txt` is the list."""

from pathlib import Path

import pytest

from tests.inventory import inventory

HERE = Path(__file__).parent


def lines(name):
    return [line for line in (HERE / name).read_text().splitlines() if line]


@pytest.fixture(scope="module")
def found():
    return inventory()


def test_nothing_is_lost(found):
    changed = {line.split("  ->  ")[0] for line in lines("inventory_changes.txt")}
    lost = [line for line in lines("inventory.txt") if line not in set(found) | changed]
    assert not lost, "tell in inventory_changes.txt (`LINE  ->  what took its place`):\n" + "\n".join(lost)


def test_what_is_said_to_have_changed_has_changed(found):
    told = [line.split("  ->  ") for line in lines("inventory_changes.txt")]
    assert all(len(parts) == 2 and parts[1].strip() for parts in told)
    assert not [old for old, _ in told if old in set(found)]
