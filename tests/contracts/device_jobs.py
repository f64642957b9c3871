"""Functions that run in processes of their own for test_other_devices.py: steps on another device and on the CPU."""

import warnings
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import cycle, islice, product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning import (
    ALEXR2,
    MSVR,
    OOA,
    SONEX,
    SOX,
    ConfigError,
    Engine,
    HeavyBall,
    MeanAtMost,
    MeanDifferenceAtMost,
    SampleDRO,
    SoftRate,
)
from fcco_lightning.ambiguity import AmbiguitySet
from fcco_lightning.constraints import MeanNear
from fcco_lightning.state import DualState
from fcco_lightning.state import processes as exchanges
from fcco_lightning.state.processes import Processes
from tests import far_device
from tests.contracts.registry_algorithms import ALGORITHMS, Member
from tests.contracts.registry_ambiguity import MEMBERS as WEIGHTS
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES as OBJECTIVES
from tests.contracts.sampled import WAYS, Bench, Case
from tests.contracts.test_evaluations import CASES as EVALUATIONS
from tests.contracts.trainings import Training, make_batches
from tests.engine import test_contrastive_distributed as pairs
from tests.engine import test_engine_distributed as parts

TOGETHER = ("SONEX", "SONEX, multipliers", "ALEXR, old")
PROBLEMS = ("AUC and constraints", "margins and constraints", "temperature", "pairs", "groups")
DISTRIBUTED: dict[str, Callable[[], Any]] = {"SOX": SOX, "SONEX": SONEX, "MSVR": MSVR, "ALEXR2": partial(ALEXR2, K=2)}
PREFERRED = ("balanced", "events", "queries", "bags", "classes", "uniform", "groups", "some bags")


class Steps(NamedTuple):
    """The waits and the errors of steps on the device.

    Attributes:
        waits: operator -> largest number of waits in a step after the first one.
        error: largest difference of weights and rows from those on the CPU.
    """

    waits: dict[str, int]
    error: float


class CUDA(warnings.catch_warnings):
    """Counts the waits for a CUDA device, as :class:`~tests.far_device.FarDevice` does."""

    def __init__(self) -> None:
        super().__init__(record=True)
        self._seen: list[warnings.WarningMessage] = []

    def __enter__(self) -> "CUDA":  # type: ignore[override]
        self._seen = super().__enter__()  # type: ignore[assignment]
        warnings.filterwarnings("ignore")
        warnings.filterwarnings("always", ".*synchronizing CUDA operation")
        torch.cuda.set_sync_debug_mode("warn")
        return self

    def __exit__(self, *args: object) -> None:
        torch.cuda.set_sync_debug_mode("default")
        super().__exit__(*args)

    @property
    def waits(self) -> Counter[str]:
        """The waits by position in the code."""
        found = Counter(f"{w.filename}:{w.lineno}" for w in self._seen)
        self._seen.clear()
        return found


def all_steps(device: str, names: Collection[str]) -> dict[str, list[Steps]]:
    """Steps of the named objectives and constraints with algorithms of all kinds, of algorithms, of ambiguity sets."""
    warnings.simplefilter("ignore")
    _made_known(device)
    cases = zip((OBJECTIVES | CONSTRAINTS).items(), cycle(("SONEX, multipliers", "ALEXR, old")), strict=False)
    make: dict[str, Callable[[], list[Steps]]] = {
        name: partial(_of_case, case, other, device) for (name, case), other in cases
    }
    make |= {
        f"algorithm {name}": partial(_alone, _algorithm_steps, member, device) for name, member in ALGORITHMS.items()
    }
    make |= {f"together, {name}": partial(_alone, _steps_together, ALGORITHMS[name], device) for name in TOGETHER}
    make |= {
        f"{name}, {geometry}": partial(_alone, _algorithm_steps, _ascent(member.make(), geometry), device)
        for name, member in WEIGHTS.items()
        for geometry in ("kl", "euclidean")
    }
    return {name: make[name]() for name in names}


def _alone(steps: Callable[[Any, str], Any], member: Any, device: str) -> list[Steps]:
    return [_compared(steps, member, device)]


def all_figures(device: str) -> dict[str, list[Any]]:
    """Figures and details of every evaluation on the CPU and on the device, with deterministic operators."""
    warnings.simplefilter("ignore")
    _made_known(device)
    torch.use_deterministic_algorithms(device == "cuda")
    found: dict[str, list[Any]] = {}
    for kind, make in EVALUATIONS.items():
        for where in ("cpu", device):
            evaluation, outputs, batch, _ = make()
            with _watched(where):
                moved = pytree.tree_map_only(Tensor, lambda t, to=where: t.to(to), (outputs, dict(batch)))
                figures = evaluation(*moved), evaluation.details(*moved)
                found.setdefault(kind.__name__, []).append(figures)
    return found


def steps_of_all_processes(device: str, every: int) -> dict[str, float]:
    """Largest differences from the CPU of one in ``every`` cases, if processes share the device, by name and layout.

    As with NCCL, processes cannot exchange CPU tensors.
    """
    _made_known(device)
    dist.init_process_group("gloo")
    layouts = cycle(("replicated", "sharded"))
    cases: list[Any] = [  # an odd number of problems: every algorithm and problem in both layouts
        (_samples_of_processes, (problem, algorithm, next(layouts)))
        for algorithm, problem in product(DISTRIBUTED, PROBLEMS)
    ]
    cases += [(_pairs_of_processes, (case, next(layouts))) for case in pairs.CASES]
    cases += [(_numbers_of_processes, ("numbers of the CPU",))]
    return {
        ", ".join(case): _difference(*(_exchanging(steps, case, d) for d in ("cpu", device)))
        for steps, case in cases[::-every]
    }


def _made_known(device: str) -> None:
    if device == far_device.NAME:
        far_device.register()


def _of_case(case: Case, other: str, device: str) -> list[Steps]:
    """Steps with SOX or a similar algorithm, and if the problem allows with one that smooths or takes dual steps."""
    found = [_compared(_case_steps, (case, None), device)]
    with suppress(ConfigError):
        found.append(_compared(_case_steps, (case, ALGORITHMS[other]), device))
    return found


def _ascent(ambiguity: AmbiguitySet, geometry: Any) -> Member:
    return ALGORITHMS["OOA"]._replace(make=lambda: OOA(0.1, geometry), objective=lambda: SampleDRO(ambiguity))


def _compared(steps: Any, given: Any, device: str) -> Steps:
    near, far = steps(given, "cpu"), steps(given, device)
    most = max(far[0][1:], key=lambda waits: sum(waits.values()))
    return Steps(most, _difference(near[1], far[1]))


def _difference(near: list[Tensor], far: list[Tensor]) -> float:
    """The largest difference, relative to the largest entry of its tensor if this exceeds 1."""
    pairs = [(a.double(), b.double()) for a, b in zip(near, far, strict=True)]
    assert all(torch.equal(a.isnan(), b.isnan()) for a, b in pairs)
    pairs = [(a.nan_to_num(), b.nan_to_num()) for a, b in pairs if a.numel()]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1)) for a, b in pairs)


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
    """Steps with constraints that are measured as one term, with different kappas and targets."""
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


class _Strict:
    """A ``torch.distributed`` that exchanges tensors of the device only."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        found = getattr(dist, name)
        return self._checked(found) if name.startswith(("all_reduce", "all_gather_", "broadcast")) else found

    def _checked(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            for tensor in (a for a in args if isinstance(a, Tensor)):
                assert tensor.device.type == self._device, f"{collective.__name__} of a tensor on {tensor.device}"
            return collective(*args, **kwargs)

        return collective if "object" in collective.__name__ else called


def _exchanging(steps: Callable[..., list[Tensor]], case: tuple[str, ...], device: str) -> list[Tensor]:
    """The results of steps that all processes take together."""
    torch.manual_seed(0)
    with _watched(device):
        processes: Any = Processes()
        if device != "cpu":
            processes._device, exchanges.dist = torch.device(device), _Strict(device)  # type: ignore[attr-defined]
        try:
            return steps(processes, *case, device)
        finally:
            exchanges.dist = dist  # type: ignore[attr-defined]


def _samples_of_processes(processes: Processes, problem: str, algorithm: str, layout: str, device: str) -> list[Tensor]:
    training = parts.Training(processes, problem, DISTRIBUTED[algorithm], layout)
    training.engine = _moved(training.engine.functions.network, training.problem, training.engine.algorithm, device)
    training.optimizer = HeavyBall(training.engine.params, lr=0.05, beta=0.3)
    for t, (batch, sizes) in enumerate(parts.make_epoch(processes.size)):
        training.step(parts.part_of(batch, sizes, processes.rank), last_batch=t == 4)
    return _result(training.engine)


def _pairs_of_processes(processes: Processes, case: str, layout: str, device: str) -> list[Tensor]:
    gradients, rows, _ = pairs.train(processes, *pairs.CASES[case], layout, torch.float64, False, device)
    return [tensor.cpu() for tensor in (*gradients, *(held for held, _ in rows))]


def _numbers_of_processes(processes: Processes, _: str, device: str) -> list[Tensor]:
    """Numbers exchanged as in evaluations, in which a process may have had no samples."""
    own = torch.arange(3.0) + processes.rank
    total, mean, first = own.clone(), own.clone(), own.clone()
    processes.sum_(total), processes.average_([mean]), processes.copy_first_([first])
    together = processes.gather([own]).tensors
    assert all(tensor.device.type == "cpu" for tensor in (total, mean, first, *together))
    return [total, mean, first, *together, torch.tensor(float(processes.largest(processes.rank)))]


def _watched(device: str) -> AbstractContextManager[Any]:
    """A context that counts waits for the device; on the CPU it counts nothing."""
    far = CUDA() if device == "cuda" else far_device.FarDevice()
    return nullcontext(far) if device == "cpu" else far


def _moved(network: Any, problem: Any, algorithm: Any, device: str) -> Engine:
    network.to(device), problem.to(device)
    return Engine(network, problem, algorithm)


def _waits(far: CUDA | far_device.FarDevice, step: Any) -> dict[str, int]:
    far.waits.clear()
    step()
    return dict(far.waits)


def _result(engine: Engine) -> list[torch.Tensor]:
    states = [module for module in engine.problem.modules() if isinstance(module, DualState)]
    return [p.detach().cpu() for p in engine.params] + [state.rows.cpu() for state in states]
