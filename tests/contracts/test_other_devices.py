"""On another device than the CPU every step gives the same numbers, and waits for the device once.

There is no such device here: see tests/far_device.py, which also refuses tensors of two devices in one operator.
"""

import pytest

from tests.contracts.far_jobs import BATCHES, all_steps
from tests.contracts.registry_algorithms import ALGORITHMS
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES as OBJECTIVES
from tests.launch import launch, values

NAMES = [
    *OBJECTIVES,
    *CONSTRAINTS,
    *(f"algorithm {name}" for name in ALGORITHMS),
    *(f"batches of {kind}" for kind in BATCHES),
]
MORE = {  # waits of steps that decide something by numbers of the device
    "algorithm OOA, Euclidean": 12,  # Newton's method for the projection
    "algorithm PGSMD, Euclidean, in a ball": 12,
    "algorithm PGSMD, best start": 2,  # whether a pass over the data is complete
    "algorithm PGSVRG": 4,
    "algorithm PGSVRG, linearised": 4,
    "algorithm PGSVRG, penalty": 4,
    "algorithm Switching": 3,  # which of the objective and the constraints has its turn
    "batches of another loader": 2,  # that lie on the device: their columns are fetched
}


@pytest.fixture(scope="module")
def steps():
    return values(launch(all_steps, 1))[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_another_device_is_that_of_the_cpu_and_waits_once(steps, name):
    found = steps[name]
    assert found.error == 0
    assert sum(found.waits.values()) <= MORE.get(name, 1), found.waits
