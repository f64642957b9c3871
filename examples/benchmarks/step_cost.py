"""What a step costs beside a plain training step of the same model on the same batch.

All variants take turns batch by batch in one process, so a drift of the machine hits them alike; a row is the median
over rounds and the ratio is the median of the ratios within a round::

    uv run python examples/benchmarks/step_cost.py                       # CPU, one thread
    uv run python examples/benchmarks/step_cost.py --device cuda --rounds 200
    uv run python examples/benchmarks/step_cost.py --groups              # group DRO, resnet18 at 64x64
    uv run python examples/benchmarks/step_cost.py --constraints         # 1 to 1000 constraints of two kinds
    uv run python examples/benchmarks/step_cost.py --perceptron          # against cross-entropy, also compiled
    uv run python examples/benchmarks/step_cost.py --trainer --rounds 9  # Trainer.fit against plain Lightning

- resnet18 (timm) at 32x32, batch 64: a plain step (logistic loss) against SGD, SOX, SONEX and ALEXR2 on AUC with 14
  ROC-fairness constraints.
- MLP 100-64-64-1, batch 128: the engine against the same arithmetic written out.
- operators that the AUC objective's forward dispatches at batch 128.
"""

import argparse
import copy
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from runs import step_times
from timing import Step, Table, compared, descent, engine_step, interleaved, momentum, operators_of, plain, report
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, StackDataset

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    AUC,
    BSGD,
    OOA,
    SGD,
    SONEX,
    SONX,
    SOX,
    AdamType,
    AdaptivePenalty,
    Algorithm,
    Constraint,
    CVaRGroupDRO,
    Engine,
    Execution,
    FCCOModule,
    HeavyBall,
    HingePenalty,
    LogisticLoss,
    MeanAtMost,
    MeanDifferenceAtMost,
    Objective,
    ROCFairness,
    SquaredHingePenalty,
    TabularMLP,
    TensorDataModule,
    UniformSampling,
)
from fcco_lightning.data import UniformBatches
from fcco_lightning.data.batches import Drawn

KINDS = {"y": 2, "group": 2, "cell": 200, "four": 4}  # of samples, by column
SOX_PARTS = (lambda: SOX(0.8), SquaredHingePenalty(100.0))
SONEX_PARTS = (lambda: SONEX(0.8, 0.1, lam=0.002), HingePenalty(10.0))


def batches(count: int, shape: tuple[int, ...], device: str) -> list[dict[str, Tensor]]:
    """Random batches with both classes and groups in each."""
    generator = torch.Generator().manual_seed(0)
    size = shape[0]
    made = []
    for _ in range(count):
        columns = {
            "x": torch.randn(shape, generator=generator),
            "y": torch.arange(size) % 4 // 3,
            "group": torch.arange(size) % 3 % 2,
            "index": torch.randperm(10_000, generator=generator)[:size],
        }
        made.append({name: column.to(device) for name, column in columns.items()})
    return made


def ours(network: nn.Module, algorithm: Algorithm, penalty: Any, optimizer: Any) -> Step:
    """One batch through the engine."""
    objective, constraints = AUC(), [ROCFairness()]
    problem = algorithm.pose(objective, constraints, penalty, num_samples=10_000)
    return engine_step(Engine(network, problem.to(next(network.parameters()).device), algorithm), optimizer)


def written_out(network: nn.Module, *, sonex: bool) -> Step:
    """SOX with squared hinge, or SONEX, in one function: the same arithmetic without any framework."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, betas=(0.9, 0.999))
    names = [name for name, _ in network.named_parameters()]
    params = list(network.parameters())
    thresholds, cells = torch.arange(-3.0, 4.0), torch.arange(4).unsqueeze(1)
    rows = torch.zeros(14, 2)
    memory: dict[str, Any] = {"previous": None, "seen": False}

    def rates(scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
        member = (cells == 2 * batch["y"] + batch["group"]).float()
        mean = member @ torch.sigmoid(scores.unsqueeze(1) - thresholds) / member.sum(1, keepdim=True)
        return torch.cat([mean[[3, 2]].T, mean[[1, 0]].T])

    def outer_gradient(u: Tensor) -> Tensor:
        d = u[:, :1] - u[:, 1:]
        excess = d.abs() - 0.005
        a = (excess / (2 * 0.002)).clamp(0, 10) if sonex else 100 * excess.clamp(min=0)
        return torch.cat([d.sign() * a, -d.sign() * a], 1)

    def step(batch: dict[str, Tensor]) -> None:
        scores, positive = network(batch["x"]), batch["y"] == 1
        loss = torch.sigmoid(scores[~positive] - scores[positive].unsqueeze(1)).mean()
        inner = rates(scores, batch)
        with torch.no_grad():
            fresh = inner.detach()
            old = rows if memory["seen"] else fresh
            new = torch.lerp(old, fresh, 0.8)
            if sonex and memory["previous"] is not None:
                shadow = dict(zip(names, memory["previous"], strict=True))
                new = new + 0.1 * (fresh - rates(functional_call(network, shadow, (batch["x"],)), batch))
            weights = outer_gradient(old)
            if not torch.isfinite(loss):
                raise FloatingPointError
            rows.copy_(new)
            memory["seen"] = True
        loss = loss + (weights * inner).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        if sonex and memory["previous"] is not None:
            torch._foreach_copy_(memory["previous"], [p.data for p in params])
        elif sonex:
            memory["previous"] = [p.detach().clone() for p in params]
        optimizer.step()

    return step


def resnet(rounds: int, device: str) -> dict[str, Any]:
    """Resnet18 of timm at 32x32, batch 64."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=1).to(device).train()
    variants: dict[str, Step] = {"plain step": plain(copy.deepcopy(model))}
    methods = {
        "SGD (AUC)": (SGD, None),
        "SOX + squared hinge": SOX_PARTS,
        "SONEX + hinge": SONEX_PARTS,
        "ALEXR2 + hinge": (lambda: ALEXR2(K=5), HingePenalty(10.0)),
    }
    for name, (algorithm, penalty) in methods.items():
        network = copy.deepcopy(model)
        variants[name] = ours(network, algorithm(), penalty, HeavyBall(network.parameters(), lr=1e-4))
    return interleaved(variants, batches(4, (64, 3, 32, 32), device), rounds, device)


def grouped(rounds: int, device: str, size: int = 64) -> dict[str, Any]:
    """Group DRO, 4 groups x 16 images, resnet18 of timm: against SGD on the same batches."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=1).to(device).train()
    variants: dict[str, Step] = {"SGD, groups sampled": plain(copy.deepcopy(model))}
    for algorithm in (BSGD(), SOX(0.8), OOA(0.01), ALEXR(1.0, 0.1), SONEX(0.8, 0.1, lam=0.1), SONX(0.8, 0.1)):
        objective: Objective = CVaRGroupDRO(0.15, num_groups=16).to(device)
        engine = Engine(copy.deepcopy(model), algorithm.pose(objective, num_samples=10_000).to(device), algorithm)
        variants[algorithm.name] = engine_step(engine, momentum(engine.params))
    data = batches(4, (64, 3, size, size), device)
    for k, batch in enumerate(data):
        batch["group"] = (torch.arange(64, device=device) % 4 + 4 * k) % 16
    return interleaved(variants, data, rounds, device)


def caps(count: int, column: str = "group") -> list[Constraint]:
    """On the losses of groups."""
    return [MeanAtMost(LogisticLoss(), 0.5, {column: k}, name=f"group {k}") for k in range(count)]


def differences(count: int) -> list[Constraint]:
    """Of the losses of groups from that of the positives."""
    return [MeanDifferenceAtMost(LogisticLoss(), 0.1, {"group": k}, {"y": 1}, name=f"group {k}") for k in range(count)]


CONSTRAINTS = {"caps": caps, "differences": differences}


def constrained(rounds: int) -> dict[str, Any]:
    """MLP 122-256-256-1, batch 128, with separate constraints on the losses of groups: ratios to the step with 14."""
    torch.manual_seed(0)
    model = TabularMLP([256, 256], 1, 122)
    variants: dict[str, Step] = {}
    for name, penalty in {"penalty": HingePenalty(10.0), "multipliers": AdaptivePenalty()}.items():
        for count, kind in itertools.product((14, 1, 100, 1000), CONSTRAINTS):
            rows = CONSTRAINTS[kind](count)
            network, algorithm = copy.deepcopy(model), SOX(0.1)
            engine = Engine(network, algorithm.pose(AUC(), rows, penalty, num_samples=10_000), algorithm)
            optimizer = momentum(network.parameters())

            def step(batch: dict[str, Tensor], e: Engine = engine, o: Any = optimizer, m: int = count) -> None:
                e.train_batch(batch | {"group": batch["group"] % m}, o)

            variants[f"{count} {kind}, {name}"] = step
    data = batches(8, (128, 122), "cpu")
    generator = torch.Generator().manual_seed(1)
    for batch in data:
        batch["group"] = torch.randint(1000, (128,), generator=generator)
    bases = {name: f"14 {name.partition(' ')[2]}" for name in variants}
    return interleaved(variants, data, rounds, "cpu", bases, clock=time.process_time)


def mlp(rounds: int, *, sonex: bool) -> dict[str, Any]:
    """The job of the README, one batch: written out, and through the engine."""
    torch.manual_seed(0)
    model = TabularMLP(hidden=[64, 64], in_features=100)
    algorithm, penalty = SONEX_PARTS if sonex else SOX_PARTS
    network = copy.deepcopy(model)
    variants: dict[str, Step] = {
        "written out": written_out(copy.deepcopy(model), sonex=sonex),
        "engine": ours(network, algorithm(), penalty, AdamType(network.parameters(), lr=1e-4)),
    }
    return interleaved(variants, batches(8, (128, 100), "cpu"), rounds, "cpu")


def worst_group(network: nn.Module, groups: int) -> Step:
    """Group DRO as Sagawa et al. do it, in one function: weights of the groups by their losses, no framework."""
    device = next(network.parameters()).device
    q, numbers = torch.full((groups,), 1 / groups, device=device), torch.arange(groups, device=device).unsqueeze(1)

    def loss(batch: dict[str, Tensor]) -> Tensor:
        losses = binary_cross_entropy_with_logits(network(batch["x"]), batch["y"].float(), reduction="none")
        member = (batch["four"] == numbers).float()
        count = member.sum(1)
        risks = member @ losses / (count + (count == 0))
        q.mul_(torch.exp(0.01 * risks.detach())).div_(q.sum())
        return q @ risks

    return descent(loss, momentum(network.parameters()))


def perceptron(rounds: int, device: str) -> Table:
    """MLP 122-256-256-1, batch 128, SGD: the engine, also compiled, against cross-entropy, ten steps in a row.

    How batches are drawn is known, as with every datamodule, and with it the probabilities of rows; but in the last
    case, where they are estimated by counts.
    """
    torch.manual_seed(0)
    model, samples = TabularMLP([256, 256], 1, 122).to(device), 10_000
    cvar = partial(CVaRGroupDRO, 0.5, num_groups=4)
    cases: dict[str, tuple[Any, Any, list[Constraint], Any]] = {
        "AUC": (AUC, SGD, [], None),
        "AUC, 14 ROC constraints, SOX": (AUC, SOX_PARTS[0], [ROCFairness()], SOX_PARTS[1]),
        "AUC, 14 ROC constraints, SONEX": (AUC, SONEX_PARTS[0], [ROCFairness()], SONEX_PARTS[1]),
        "AUC, 200 caps, SOX": (AUC, SOX_PARTS[0], caps(200, "cell"), SOX_PARTS[1]),
        "CVaR of 4 groups, SOX": (cvar, SOX_PARTS[0], [], None),
        "CVaR of 4 groups, OOA": (cvar, lambda: OOA(0.01), [], None),
        "CVaR of 4 groups, SOX, unknown batches": (cvar, SOX_PARTS[0], [], None),
    }
    draw = torch.Generator().manual_seed(1)
    columns = {name: torch.randint(kinds, (samples,), generator=draw) for name, kinds in KINDS.items()}
    columns["index"], x = torch.arange(samples), torch.randn(samples, 122, generator=draw)
    variants: dict[str, Step] = {"BCE": plain(copy.deepcopy(model)), "worst of 4 groups": worst_group(model, 4)}
    for (name, (objective, make, constraints, penalty)), compiled in itertools.product(cases.items(), (False, True)):
        algorithm, network, measured = make(), copy.deepcopy(model), objective()
        column = "four" if "4 groups" in name else "group"
        drawn = Drawn(columns | {"group": columns[column]}, UniformBatches(samples, 128, 0))
        problem = algorithm.pose(
            measured,
            copy.deepcopy(constraints),
            penalty,
            num_samples=samples,
            sampling=None if "unknown" in name else {"target": drawn},
        )
        engine = Engine(network, problem.to(device), algorithm, compiled=compiled)
        optimizer = momentum([*network.parameters(), *problem.objective.parameters()])

        def step(batch: dict[str, Tensor], e: Engine = engine, o: Any = optimizer, c: str = column) -> None:
            e.train_batch(batch | {"group": batch[c]}, o)

        variants[name + ", compiled" * compiled] = step
    chosen = [torch.randperm(samples, generator=draw)[:128] for _ in range(40)]
    data = [{n: column[i].to(device) for n, column in (columns | {"x": x}).items()} for i in chosen]
    clock = time.process_time if device == "cpu" else time.perf_counter
    return interleaved(variants, data, rounds, device, clock=clock, in_a_row=10)


class Plain(LightningModule):
    """Cross-entropy by automatic optimization, as anyone would write it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        """The loss."""
        return binary_cross_entropy_with_logits(self.network(batch["x"]), batch["y"].float())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As for the others."""
        return momentum(self.parameters())


def fitted(module: LightningModule, data: Any, steps: int) -> float:
    """Median seconds of the processor per step of ``Trainer.fit``, its loader included."""
    return statistics.median(step_times(module, data, steps, time.process_time)[steps // 4 :])


def under_trainer(rounds: int, steps: int = 160) -> Table:
    """MLP 122-256-256-1, batch 128: fits that take turns, against plain Lightning with the same loader."""
    torch.manual_seed(0)
    model, rows = TabularMLP([256, 256], 1, 122), 128 * (steps + 1)
    columns = {"x": torch.randn(rows, 122), "y": (torch.rand(rows) < 0.25).long(), "group": torch.arange(rows) % 2}

    def module(algorithm: Algorithm, constraints: list[Constraint], penalty: Any, *, compiled: bool) -> FCCOModule:
        return FCCOModule(
            copy.deepcopy(model),
            AUC(cross_entropy=0),
            constraints=constraints,
            penalty=penalty,
            algorithm=algorithm,
            optimizer=momentum,
            execution=Execution(num_samples=rows, compiled=compiled),
        )

    cases: dict[str, tuple[Any, list[Constraint], Any]] = {
        "AUC": (SGD, [], None),
        "AUC, 14 constraints, SOX": (SOX_PARTS[0], [ROCFairness()], SOX_PARTS[1]),
        "AUC, 14 constraints, SONEX": (SONEX_PARTS[0], [ROCFairness()], SONEX_PARTS[1]),
    }
    modules: dict[str, Callable[[], LightningModule]] = {"plain Lightning": lambda: Plain(copy.deepcopy(model))}
    for (name, (make, constraints, penalty)), compiled in itertools.product(cases.items(), (False, True)):
        modules[name + ", compiled" * compiled] = lambda m=make, c=constraints, p=penalty, how=compiled: module(  # type: ignore[misc]
            m(), copy.deepcopy(c), p, compiled=how
        )
    table = {name: column[:256] for name, column in columns.items()}
    samples = StackDataset(index=range(rows), **columns)
    loaders: dict[str, Callable[[], Any]] = {
        "torch's loader": lambda: DataLoader(samples, batch_size=128, shuffle=True, drop_last=True),
        "own loader": lambda: TensorDataModule({"train": columns, "test": table}, batches=UniformSampling(128)),
    }
    result: Table = {}
    for loader, data in loaders.items():
        times: dict[str, list[float]] = {name: [] for name in modules}
        for _ in range(rounds):
            for name, make in modules.items():
                times[name].append(fitted(make(), data(), steps))
        result |= {f"{name}, {loader}": compared(own, times["plain Lightning"]) for name, own in times.items()}
    return result


def operators() -> int:
    """Operators of AUC's forward at batch 128."""
    (batch,) = batches(1, (128, 4), "cpu")
    return operators_of(lambda: AUC().measure(torch.randn(128, requires_grad=True), batch))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=60, help="rounds for resnet18; the MLP takes 20 times as many")
    parser.add_argument("--groups", action="store_true", help="group DRO, resnet18 at 64x64")
    parser.add_argument("--constraints", action="store_true", help="1 to 1000 caps, and differences, perceptron")
    parser.add_argument("--perceptron", action="store_true", help="against cross-entropy, also compiled")
    parser.add_argument("--trainer", action="store_true", help="Trainer.fit against plain Lightning, fits of 160 steps")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    title, images = "MLP 122-256-256-1, batch 128", f"resnet18 64x64 batch 64 = 4 groups x 16 ({given.device})"
    parts: dict[str, Callable[[], dict[str, Table]]] = {
        "groups": lambda: {images: grouped(given.rounds, given.device)},
        "constraints": lambda: {title: constrained(5 * given.rounds)},
        "perceptron": lambda: {f"{title} ({given.device})": perceptron(given.rounds, given.device)},
        "trainer": lambda: {f"Trainer.fit, {title}": under_trainer(given.rounds)},
    }
    for part, measured in parts.items():
        if getattr(given, part):
            report(measured(), given.out / f"step_cost_{part}.json")
            return
    results = {
        f"resnet18 32x32 batch 64 ({given.device})": resnet(given.rounds, given.device),
        "MLP batch 128, SOX (cpu)": mlp(20 * given.rounds, sonex=False),
        "MLP batch 128, SONEX (cpu)": mlp(20 * given.rounds, sonex=True),
    }
    report(results, given.out / "step_cost.json")
    print(f"\noperators dispatched by AUC's forward at batch 128: {operators()}")


if __name__ == "__main__":
    main()
