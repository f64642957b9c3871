"""On a device other than the CPU every step gives the same numbers, and waits for the device once.

Without CUDA a simulated device is used: see tests/far_device.py, which also refuses operators with tensors of two
devices.
"""

import pytest
import torch

from tests.combinations import every_nth
from tests.contracts.device_jobs import TOGETHER, all_figures, all_steps, steps_of_all_processes
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


without_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["far", pytest.param("cuda", marks=without_cuda)]
MOST = {"far": 0, "cuda": 1e-9}  # another order of sums


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(scope="module")
def steps(device, request):
    """Of the cases that are looked at."""
    here = [i for i in request.session.items if i.path == request.path and "steps" in i.fixturenames]
    cases = [i.callspec.params for i in here]
    names = {f"{c['name']}, {c['geometry']}" if "geometry" in c else c["name"] for c in cases}
    return values(launch(all_steps, 1, device, names, limit=300))[0]


@pytest.fixture(scope="module", params=[3, pytest.param(1, marks=pytest.mark.slow)], ids=["a third", "all"])
def errors(device, request):
    """Of every third case, which is every algorithm, problem and layout, or of all."""
    found = values(launch(steps_of_all_processes, 2, device, request.param, limit=300))
    assert [len(of_process) for of_process in found] == [10 if request.param == 3 else 29] * 2
    return found


@pytest.mark.parametrize("name", every_nth(3, NAMES))
def test_a_step_on_another_device_is_that_of_the_cpu_and_waits_once(steps, device, name):
    for waits, error in steps[name]:
        assert error <= MOST[device]
        assert sum(waits.values()) <= 1, waits


def test_processes_with_devices_do_what_they_do_on_the_cpu(errors, device):
    for of_process in errors:
        assert max(of_process.values()) <= MOST[device], of_process


@pytest.mark.parametrize("geometry", ["kl", "euclidean"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_projected_on_the_device_or_by_one_copy(steps, device, name, geometry):
    """As :func:`~fcco_lightning.ambiguity.base.on_host` says; the others are projected by sorting."""
    ((waits, error),) = steps[f"{name}, {geometry}"]
    projection = getattr(WEIGHTS[name].make(), "project_kl" if geometry == "kl" else "project")
    assert error <= MOST[device]
    assert sum(waits.values()) == 1 + hasattr(projection, "__wrapped__"), waits


def test_evaluations_give_the_same_figures(device):
    for name, (expected, found) in values(launch(all_figures, 1, device))[0].items():
        assert found[0] == pytest.approx(expected[0], rel=1e-6, nan_ok=True), name
        if device == "far":  # to the last bit, details too
            assert str(found[1]) == str(expected[1]), name
