r"""Weakly convex min-max problems of the PG-SMD paper: PG-SMD, PG-SVRG, their proximal linear relatives, and Alter-SGD.

Part ``distributions`` learns from five distributions for the worst one of them, from batches of 20 fresh samples (Fig.
6 there); part ``samples`` from imbalanced samples under a KL penalty, theta = 10, in batches of 100 (Fig. 5 there, on
samples of two Gaussian groups instead of covtype and connect-4).  The network has 10 sigmoid units and no constants,
the loss is the hinge loss.  Part ``smooth`` is ``samples`` with the logistic loss, for the methods that need a smooth
one (Fig. 1 there, with this network instead of a truncated loss of a linear model).

Alter-SGD is :class:`OOA`; the average is the same with weights that stay uniform.  As the stages of PG-SMD average
their points and shorten their steps, both also run with steps in w that fall to 0 in a line.

Every method's parameters are searched from a grid of five to nine points, which grows until the best does not lie on
its edge, by the objective at the end of a run with a seed of its own; then the pick runs with the other seeds.
"""

import functools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from runs import Axes, Job, arguments, band, run_all, run_searches, seconds, table
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning import (
    OOA,
    PGSMD,
    PGSVRG,
    Algorithm,
    BlockDistributions,
    ConcaveStages,
    Engine,
    GaussianGroups,
    GroupMaxForm,
    HingeLoss,
    KLPenalty,
    LogisticLoss,
    ProximalSGD,
    SampleDRO,
    TabularMLP,
)
from fcco_lightning.evaluation.pictures import new_figure, quiet_frame, row_of_axes, save
from fcco_lightning.objectives import Quantity

RADIUS, THETA, LOOKS = 50.0, 10.0, 60
FIGURES = ("test.psi", "test.error", "test.f_score")
Columns = dict[str, Tensor]
Method = Callable[[nn.Module, dict[str, Any]], tuple[Algorithm, Optimizer]]


class Task(NamedTuple):
    """A problem: what is minimised, the batches, where psi is measured, and where error and F-score are."""

    objective: Callable[[], GroupMaxForm | SampleDRO]
    batches: Iterator[Columns]
    known: Columns
    test: Columns
    num_samples: int


def distributions(seed: int, steps: int) -> Task:
    """Five distributions, 4 fresh samples of each in a batch; 5000 others of each to measure on."""
    problem, generator = BlockDistributions(), torch.Generator().manual_seed(seed)
    measured, fresh = problem.sample(5000, generator), problem.sample(4 * steps, generator)
    index = torch.arange(20 * steps).view(5, steps, 4)

    def batches() -> Iterator[Columns]:
        for t in range(steps):
            rows = index[:, t].flatten()
            yield {"index": rows, **{name: column[rows] for name, column in fresh.items()}}

    return Task(lambda: GroupMaxForm(None, HingeLoss(), 5), batches(), measured, measured, 20 * steps)


def samples(seed: int, steps: int, loss: Quantity = HingeLoss()) -> Task:  # noqa: B008 - frozen
    """4000 samples, a quarter of them positive; 20,000 others to test on, as many of either class."""
    problem, generator = GaussianGroups(), torch.Generator().manual_seed(seed)
    train, others = problem.sample(4000, generator), problem.sample(60_000, generator)
    classes = [(others["y"] == label).nonzero().flatten()[:10_000] for label in (0, 1)]
    test = {name: column[torch.cat(classes)] for name, column in others.items()}

    def batches() -> Iterator[Columns]:
        for _ in range(-(-steps // 40)):
            for index in torch.randperm(4000, generator=generator).split(100):
                yield {"index": index, **{name: column[index] for name, column in train.items()}}

    return Task(lambda: SampleDRO(None, KLPenalty(THETA), loss), batches(), train, test, 4000)


TASKS = {
    "distributions": distributions,
    "samples": samples,
    "smooth": functools.partial(samples, loss=LogisticLoss()),
}


def each_in_its_ball(network: nn.Module, lr: float) -> Optimizer:
    """Projected descent, every tensor in a ball of its own."""
    return ProximalSGD([{"params": [p]} for p in network.parameters()], lr=lr, radius=RADIUS)


def pg_smd(network: nn.Module, given: dict[str, Any], *, linearised: bool = False) -> tuple[Algorithm, Optimizer]:
    """Case D1 of the paper."""
    stages = ConcaveStages(given["eta"], given["eta_dual"])
    algorithm = PGSMD(given["gamma"], stages, radius=RADIUS, linearised=linearised)
    return algorithm, torch.optim.SGD(network.parameters(), lr=1.0)


def pg_svrg(network: nn.Module, given: dict[str, Any], *, linearised: bool = False) -> tuple[Algorithm, Optimizer]:
    """A pass over 40 batches, then two epochs of steps, then the next centre."""
    steps = given["gamma"], given["eta"], given["eta_dual"]
    algorithm = PGSVRG(*steps, J=81, K=2, radius=RADIUS, linearised=linearised)
    return algorithm, torch.optim.SGD(network.parameters(), lr=1.0)


def alter_sgd(network: nn.Module, given: dict[str, Any]) -> tuple[Algorithm, Optimizer]:
    """Steps in q and w in turn."""
    return OOA(given["eta_dual"]), each_in_its_ball(network, given["eta"])


def erm(network: nn.Module, given: dict[str, Any]) -> tuple[Algorithm, Optimizer]:
    """The average: weights that hardly move."""
    return OOA(1e-9), each_in_its_ball(network, given["eta"])


METHODS: dict[str, Method] = {
    "PG-SMD": pg_smd,
    "PG-SVRG": pg_svrg,
    "PL-SMD": functools.partial(pg_smd, linearised=True),
    "PL-SVRG": functools.partial(pg_svrg, linearised=True),
    "Alter-SGD": alter_sgd,
    "SGD (average)": erm,
}
AVERAGE: Axes = {"eta": [0.03, 0.1, 0.3, 1.0, 3.0]}
STAGES: Axes = {"gamma": [10.0, 100.0], "eta": [3.0, 10.0]}
SNAPSHOTS: Axes = {"gamma": [10.0, 100.0], "eta": [0.3, 1.0], "eta_dual": [1e-5, 1e-4]}


def against_constant_steps(stages: Axes, alternating: Axes) -> dict[str, Axes]:
    """The methods for losses with kinks; those with steps of one length also with falling ones."""
    plain = {"Alter-SGD": alternating, "SGD (average)": AVERAGE}
    return {"PG-SMD": stages} | plain | {f"{method}, falling steps": axes for method, axes in plain.items()}


AXES: dict[str, dict[str, Axes]] = {
    "distributions": against_constant_steps(
        STAGES | {"eta_dual": [0.3, 1.0]}, {"eta": [0.1, 0.3, 1.0], "eta_dual": [0.003, 0.01, 0.03]}
    ),
    "samples": against_constant_steps(
        STAGES | {"eta_dual": [1e-4, 1e-3]}, {"eta": [0.1, 0.3, 1.0], "eta_dual": [1e-5, 1e-4, 1e-3]}
    ),
    "smooth": {
        "PG-SMD": STAGES | {"eta_dual": [1e-4, 1e-3]},
        "PG-SVRG": SNAPSHOTS,
        "PL-SMD": STAGES | {"eta_dual": [1e-4, 1e-3]},
        "PL-SVRG": SNAPSHOTS,
    },
}


@torch.no_grad()
def figures(task: Task, network: nn.Module) -> dict[str, float]:
    """Psi, and error and F-score of class 1 in percent."""
    objective = task.objective()
    losses = objective.loss(network(task.known["x"]), task.known)
    if isinstance(objective, GroupMaxForm):
        psi = torch.stack([losses[task.known["group"] == g].mean() for g in range(5)]).max()
    else:
        psi = THETA * (losses.double() / THETA).exp().mean().log()
    found, y = network(task.test["x"]) > 0, task.test["y"] == 1
    f_score = 2 * (found & y).sum() / (found.sum() + y.sum()).clamp(min=1)
    return {"psi": float(psi), "error": 100 * float((found != y).float().mean()), "f_score": 100 * float(f_score)}


def run(job: Job) -> Job:
    """One training; figures at the end, and psi, error and F-score along the way."""
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    task: Task = TASKS[job["task"]](job["seed"], job["steps"])
    network = TabularMLP([10], in_features=task.known["x"].shape[1], activation="sigmoid", bias=False)
    algorithm, optimizer = METHODS[job["label"].partition(", ")[0]](network, job["overrides"])
    problem = algorithm.pose(task.objective(), num_samples=task.num_samples)
    engine, curves, start = Engine(network, problem, algorithm), [figures(task, network)], time.perf_counter()
    falling = "falling" in job["label"]
    for t, batch in zip(range(1, job["steps"] + 1), task.batches, strict=False):
        for group in optimizer.param_groups if falling else ():
            group["lr"] = job["overrides"]["eta"] * (1 - (t - 1) / job["steps"])
        engine.train_batch(batch, optimizer)
        if t % max(1, job["steps"] // LOOKS) == 0:
            curves.append(figures(task, network))
    spent, norms = time.perf_counter() - start, [float(p.detach().norm()) for p in network.parameters()]
    own = {"seconds": round(spent, 1), "norms": norms, "curves": curves}
    return {**job, "train": {}, "test": figures(task, network), **own}


def picture(results: list[Job], path: Path) -> None:
    """Psi, error and F-score against samples seen: the mean over seeds, and their range."""
    figure = new_figure(12, 3.6)
    names = {"psi": "objective", "error": "test error [%]", "f_score": "F-score [%]"}
    for axes, (name, written) in zip(row_of_axes(figure, 3), names.items(), strict=True):
        for label in dict.fromkeys(r["label"] for r in results):
            runs = [r for r in results if r["label"] == label]
            curves = [[look[name] for look in r["curves"]] for r in runs]
            band(axes, torch.linspace(0, runs[0]["steps"], len(curves[0])).tolist(), curves, label)
        axes.set(xlabel="batches", ylabel=written, yscale="linear" if name == "f_score" else "log")
        quiet_frame(axes)
    axes.legend()
    save(figure, path)


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments(__doc__, jobs=2)
    parser.add_argument("--part", choices=sorted(TASKS), default="distributions")
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    def job(method: str, overrides: dict[str, Any], seed: int) -> Job:
        return {"label": method, "task": given.part, "steps": given.steps, "seed": seed, "overrides": overrides}

    picks = run_searches(
        AXES[given.part], job, lambda run: -run["test"]["psi"], given.jobs, ["test.psi"], run, seeds=(100,)
    )
    jobs = [job(method, pick["picked"], seed) for method, pick in picks.items() for seed in range(given.seeds)]
    results = run_all(jobs, given.jobs, FIGURES, run)
    name = f"weakly_convex_dro_{given.part}"
    (given.out / f"{name}.json").write_text(json.dumps({"picks": picks, "results": results}, indent=1))
    print("\n" + table(results, FIGURES, {"seconds": seconds}))
    print(f"largest norm of a tensor of weights: {max(n for r in results for n in r['norms']):.1f} of {RADIUS:g}")
    picture(results, given.out / f"{name}.png")
    print(f"\n{given.out / name}.json, .png")


if __name__ == "__main__":
    main()
