"""What a process of its own does for test_other_devices.py: steps on a device that is not there, and on the CPU."""

import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from typing import Any, NamedTuple

import torch

from fcco_lightning import OOA, ConfigError, Engine, MeanAtMost, MeanDifferenceAtMost, SampleDRO, SoftRate
from fcco_lightning.ambiguity import AmbiguitySet
from fcco_lightning.constraints import MeanNear
from fcco_lightning.state import DualState
from tests import far_device
from tests.contracts.registry_algorithms import ALGORITHMS, Member
from tests.contracts.registry_ambiguity import MEMBERS as WEIGHTS
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES as OBJECTIVES
from tests.contracts.sampled import WAYS, Bench, Case
from tests.contracts.trainings import Training, make_batches

TOGETHER = ("SONEX", "SONEX, multipliers", "ALEXR, old")
PREFERRED = ("balanced", "events", "queries", "bags", "classes", "uniform", "groups", "some bags")


class Steps(NamedTuple):
    """What steps on the far device did.

    Attributes:
        waits: of the steps behind the first one, by operator, the most of any step.
        error: largest difference of weights and rows from those of the CPU.
    """

    waits: dict[str, int]
    error: float


def all_steps() -> dict[str, list[Steps]]:
    """Of every objective and constraint with algorithms of all kinds, of every algorithm, of every set of weights."""
    warnings.simplefilter("ignore")
    far_device.register()
    found = {name: _of_case(case) for name, case in (OBJECTIVES | CONSTRAINTS).items()}
    found |= {f"algorithm {name}": [_compared(_algorithm_steps, member)] for name, member in ALGORITHMS.items()}
    found |= {f"together, {name}": [_compared(_steps_together, ALGORITHMS[name])] for name in TOGETHER}
    return found | {
        f"{name}, {geometry}": [_compared(_algorithm_steps, _ascent(member.make(), geometry))]
        for name, member in WEIGHTS.items()
        for geometry in ("kl", "euclidean")
    }


def _of_case(case: Case) -> list[Steps]:
    """With SOX or its like, and what takes the problem of algorithms that smooth and that take dual steps."""
    found = [_compared(_case_steps, (case, None))]
    for name in ("SONEX, multipliers", "ALEXR, old"):
        with suppress(ConfigError):
            found.append(_compared(_case_steps, (case, ALGORITHMS[name])))
    return found


def _ascent(ambiguity: AmbiguitySet, geometry: Any) -> Member:
    return ALGORITHMS["OOA"]._replace(make=lambda: OOA(0.1, geometry), objective=lambda: SampleDRO(ambiguity))


def _compared(steps: Any, given: Any) -> Steps:
    near, far = steps(given, "cpu"), steps(given, far_device.NAME)
    errors = [(a.double() - b.double()).nan_to_num().abs().max() for a, b in zip(near[1], far[1], strict=True)]
    most = max(far[0][1:], key=lambda waits: sum(waits.values()))
    return Steps(most, float(torch.stack(errors).max()))


def _case_steps(given: tuple[Case, Member | None], device: str) -> Any:
    torch.manual_seed(0)
    case, member = given
    way = WAYS[next(w for w in (*PREFERRED, *case.unbiased, "uniform") if w in case.unbiased or w == "uniform")]()
    bench = Bench(case, way)
    batches = [bench.batch(list(batch)) for batch, _ in islice(way.sampler.batches(), 0, 20, 10)]
    posed = bench.engine if member is None else bench.started(member.make(), member.penalty())
    with _watched(device) as far:
        engine = _moved(bench.network, posed.problem, posed.algorithm, device)
        optimizer = torch.optim.SGD(engine.params, lr=0.01, momentum=0.9)
        waits = [_waits(far, lambda batch=batch: engine.train_batch(batch, optimizer)) for batch in batches]
        return waits, _result(engine)


def _steps_together(member: Member, device: str) -> Any:
    """With constraints that are kept as one term, each with a kappa, and a target, of its own."""
    rate, groups = SoftRate(temperature=0.5), [{"group": g} for g in range(3)]
    limits = [MeanAtMost(rate, 0.1 * (g + 3), groups[g]) for g in range(3)]
    limits += [MeanNear(rate, 0.1 * (g + 3), 0.1 * g, groups[g]) for g in range(3)]
    limits += [MeanDifferenceAtMost(rate, 0.1 * g, groups[0], groups[g]) for g in (1, 2)]
    return _algorithm_steps(member, device, limits)


def _algorithm_steps(member: Member, device: str, limits: Any = None) -> Any:
    torch.manual_seed(0)
    training = Training(member, limits=limits)
    with _watched(device) as far:
        training.engine = engine = _moved(training.network, training.problem, training.algorithm, device)
        training.optimizer = member.optimizer(engine.params, lr=0.05, beta=0.3)
        batches = make_batches(4)
        batches[2] = {name: column.to(device) for name, column in batches[2].items()}  # as some loaders give them
        waits = [_waits(far, lambda batch=batch: training.step(batch)) for batch in batches]
        return waits, _result(engine)


def _watched(device: str) -> AbstractContextManager[far_device.FarDevice]:
    """The far device; on the CPU, one that sees nothing."""
    far = far_device.FarDevice()
    return far if device == far_device.NAME else nullcontext(far)


def _moved(network: Any, problem: Any, algorithm: Any, device: str) -> Engine:
    network.to(device), problem.to(device), problem.objective.to(device)
    return Engine(network, problem, algorithm)


def _waits(far: far_device.FarDevice, step: Any) -> dict[str, int]:
    far.waits.clear()
    step()
    return dict(far.waits)


def _result(engine: Engine) -> list[torch.Tensor]:
    states = [module for module in engine.problem.modules() if isinstance(module, DualState)]
    return [p.detach().cpu() for p in engine.params] + [state.rows.cpu() for state in states]
