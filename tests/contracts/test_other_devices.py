"""On another device than the CPU every step gives the same numbers, and waits for the device once.

There is no such device here: see tests/far_device.py, which also refuses tensors of two devices in one operator.
"""

import pytest

from tests.contracts.far_jobs import TOGETHER, all_steps
from tests.contracts.registry_algorithms import ALGORITHMS
from tests.contracts.registry_ambiguity import MEMBERS as WEIGHTS
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES as OBJECTIVES
from tests.launch import launch, values

NAMES = [
    *OBJECTIVES,
    *CONSTRAINTS,
    *(f"algorithm {name}" for name in ALGORITHMS),
    *(f"together, {name}" for name in TOGETHER),
]


@pytest.fixture(scope="module")
def steps():
    return values(launch(all_steps, 1))[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_another_device_is_that_of_the_cpu_and_waits_once(steps, name):
    for waits, error in steps[name]:
        assert error == 0
        assert sum(waits.values()) <= 1, waits


@pytest.mark.parametrize("geometry", ["kl", "euclidean"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_projected_on_the_device_or_by_one_copy(steps, name, geometry):
    """As :func:`~fcco_lightning.ambiguity.base.on_host` says; the others are projected by sorting."""
    ((waits, error),) = steps[f"{name}, {geometry}"]
    projection = getattr(WEIGHTS[name].make(), "nearest_kl" if geometry == "kl" else "nearest")
    assert error == 0
    assert sum(waits.values()) == 1 + hasattr(projection, "__wrapped__"), waits
