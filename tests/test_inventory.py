"""Nothing that users have gets lost unnoticed: `tests/inventory.txt` is the list."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def lines(name):
    return [line for line in (HERE / name).read_text().splitlines() if line]


@pytest.fixture(scope="module")
def found():
    made = subprocess.run(
        [sys.executable, "-m", "tests.inventory"], cwd=HERE.parent, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()


def test_nothing_is_lost(found):
    changed = {line.split("  ->  ")[0] for line in lines("inventory_changes.txt")}
    lost = [line for line in lines("inventory.txt") if line not in set(found) | changed]
    assert not lost, "tell in inventory_changes.txt (`LINE  ->  what took its place`):\n" + "\n".join(lost)


def test_what_is_said_to_have_changed_has_changed(found):
    told = [line.split("  ->  ") for line in lines("inventory_changes.txt")]
    assert all(len(parts) == 2 and parts[1].strip() for parts in told)
    assert not [old for old, _ in told if old in set(found)]
