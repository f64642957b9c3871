"""On another device than the CPU every step gives the same numbers, and waits for the device once.

There is no such device here: see tests/far_device.py, which also refuses tensors of two devices in one operator.
"""

import pytest

from tests.contracts.far_jobs import all_steps
from tests.contracts.registry_algorithms import ALGORITHMS
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES as OBJECTIVES
from tests.launch import launch, values

NAMES = [*OBJECTIVES, *CONSTRAINTS, *(f"algorithm {name}" for name in ALGORITHMS)]


@pytest.fixture(scope="module")
def steps():
    return values(launch(all_steps, 1))[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_another_device_is_that_of_the_cpu_and_waits_once(steps, name):
    found = steps[name]
    assert found.error == 0
    assert sum(found.waits.values()) <= 1, found.waits
