"""What a step of the ranking objectives costs: part ``cost`` of xrisk.py."""

import copy
import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import libauc_losses
import torch
from libauc_losses import GAMMA, LibAUCStep
from step_cost import Counter
from timing import Step, Table, interleaved
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from xrisk_losses import RANKING, RankingLoss, moving_averages, through_engine

from fcco_lightning import (
    BalancedSampling,
    MeanAveragePrecision,
    TabularMLP,
    TensorDataModule,
    UniformSampling,
)

ROWS, FEATURES, BATCH, LABELS, PREVALENCE = 10_000, 122, 128, 10, 0.1
SEVERAL = {"mAP, ten labels": RankingLoss(MeanAveragePrecision, moving_averages, "mAPLoss")}


def data(labels: int) -> TensorDataModule:
    """A table of noise, every label with a tenth of positives; batches of half positives if there is one label."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, labels) if labels > 1 else (ROWS,)
    columns = {
        "x": torch.randn(ROWS, FEATURES, generator=generator),
        "y": (torch.rand(shape, generator=generator) < PREVALENCE).long(),
    }
    batches = UniformSampling(BATCH) if labels > 1 else BalancedSampling(BATCH)
    module = TensorDataModule({"train": columns, "test": columns}, batches=batches)
    module.setup()
    return module


def optimizer(params: Any) -> torch.optim.Optimizer:
    """The same for everybody."""
    return torch.optim.SGD(params, lr=1e-4, momentum=0.9)


def plain(network: nn.Module) -> Step:
    """Cross-entropy, in a loop that anyone would write."""
    steps = optimizer(network.parameters())

    def step(batch: dict[str, Tensor]) -> None:
        loss = binary_cross_entropy_with_logits(network(batch["x"]), batch["y"].float())
        steps.zero_grad()
        loss.backward()
        steps.step()

    return step


def written_out(network: nn.Module) -> Step:
    """Average precision by SOX with nothing but its arithmetic: no checks, repeats, own weights or processes."""
    steps, rows = optimizer(network.parameters()), torch.full((ROWS, 2), 0.5)

    def step(batch: dict[str, Tensor]) -> None:
        steps.zero_grad()
        scores = network(batch["x"])
        positives = batch["y"].nonzero().squeeze(1)
        losses = (1 - scores[positives].unsqueeze(1) + scores).clamp(min=0).square() * batch["weight"] / len(scores)
        values = torch.stack([losses[:, positives].sum(1), losses.sum(1)], dim=1)
        index = batch["index"][positives]
        u = rows[index] + GAMMA * (values.detach() - rows[index])
        rows[index] = u
        y = torch.stack([-1 / u[:, 1], u[:, 0] / u[:, 1].square()], dim=1)
        ((y * values).sum() / len(index)).backward()
        steps.step()

    return step


def closed_form(network: nn.Module, *, compiled: bool) -> Step:
    """The same with the derivative by the scores in closed form, so that autograd sees the network only."""
    steps, rows = optimizer(network.parameters()), torch.full((ROWS, 2), 0.5)

    def pairs(scores: Tensor, positives: Tensor, shares: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        excess = (1 - scores[positives].unsqueeze(1) + scores).clamp(min=0)
        values = excess.square() @ shares
        u = before + GAMMA * (values - before)
        y = torch.stack([-1 / u[:, 1], u[:, 0] / u[:, 1].square()], dim=1) / len(positives)
        table = y @ shares.T * (2 * excess)
        return table.sum(0).index_add(0, positives, -table.sum(1)), u, (y * values).sum()

    run = torch.compile(pairs, dynamic=True, fullgraph=True) if compiled else pairs

    def step(batch: dict[str, Tensor]) -> None:
        steps.zero_grad()
        index, positives, shares = shared(batch)
        outputs = network(batch["x"])
        gradient, u, value = run(outputs.detach().flatten(), positives, shares, rows[index])
        if not math.isfinite(value.detach()):
            raise FloatingPointError
        rows[index] = u
        outputs.backward(gradient.view_as(outputs))
        steps.step()

    return step


def one_region(network: nn.Module) -> Step:
    """The same with network, losses and rows compiled together."""
    steps, rows = optimizer(network.parameters()), torch.full((ROWS, 2), 0.5)

    @torch.compile(dynamic=True, fullgraph=True)
    def run(x: Tensor, positives: Tensor, shares: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        scores = network(x).flatten()
        values = (1 - scores[positives].unsqueeze(1) + scores).clamp(min=0).square() @ shares
        u = before + GAMMA * (values.detach() - before)
        y = torch.stack([-1 / u[:, 1], u[:, 0] / u[:, 1].square()], dim=1)
        return (y * values).sum() / len(positives), u

    def step(batch: dict[str, Tensor]) -> None:
        steps.zero_grad()
        index, positives, shares = shared(batch)
        value, u = run(batch["x"], positives, shares, rows[index])
        if not math.isfinite(value.detach()):
            raise FloatingPointError
        rows[index] = u
        value.backward()
        steps.step()

    return step


def shared(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and positions of the positives, and the weights of all samples among positives and in all."""
    positives = batch["y"].nonzero().squeeze(1)
    weight = batch["weight"] / len(batch["y"])
    return batch["index"][positives], positives, torch.stack([weight * batch["y"], weight], dim=1)


def plain_compiled(network: nn.Module) -> Step:
    """Cross-entropy with network and loss compiled together."""
    steps = optimizer(network.parameters())

    @torch.compile(fullgraph=True)
    def run(x: Tensor, y: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(network(x), y)

    def step(batch: dict[str, Tensor]) -> None:
        loss = run(batch["x"], batch["y"].float())
        steps.zero_grad()
        loss.backward()
        steps.step()

    return step


def libauc(network: nn.Module, name: str, module: TensorDataModule, labels: int) -> LibAUCStep:
    """One step on a loss of LibAUC."""
    positives = int(module.tables["train"].columns["y"].sum())
    loss = libauc_losses.made(name, ROWS, positives, labels)
    return LibAUCStep(network, loss, optimizer(libauc_losses.groups(loss, network.parameters())))


def steps(rounds: int, labels: int, *, others: bool, compiled: bool) -> Table:
    """Ratios to cross-entropy on the same batches."""
    module = data(labels)
    torch.manual_seed(0)
    network = TabularMLP([256, 256], labels, FEATURES)
    base = "BCE" if labels == 1 else f"BCE, {labels} labels"
    variants: dict[str, Step] = {base: plain(copy.deepcopy(network))}
    for name, (objective, algorithm, theirs) in (RANKING if labels == 1 else SEVERAL).items():
        for how, label in ((False, name), (True, f"{name}, compiled"))[: 1 + compiled]:
            made = objective(), algorithm()
            variants[label] = through_engine(copy.deepcopy(network), *made, module, optimizer, compiled=how)
        if name == "AP":
            variants["AP, written out"] = written_out(copy.deepcopy(network))
            variants["AP, in closed form"] = closed_form(copy.deepcopy(network), compiled=False)
            if compiled:
                variants["AP, in closed form, compiled"] = closed_form(copy.deepcopy(network), compiled=True)
                variants["AP, compiled in one"] = one_region(copy.deepcopy(network))
                variants["BCE, compiled"] = plain_compiled(copy.deepcopy(network))
        if others:
            variants[f"LibAUC {theirs}"] = libauc(copy.deepcopy(network), theirs, module, labels)
    return interleaved(
        variants,
        list(itertools.islice(module.train_dataloader(), 40)),
        rounds,
        "cpu",
        clock=time.process_time,
        in_a_row=10,
    )


def operators(*, others: bool) -> Table:
    """Operators that the forward pass of a loss dispatches on one batch, from scores to inner values and g_0."""
    table: Table = {}
    for labels, cases in ((1, RANKING), (LABELS, SEVERAL)):
        module = data(labels)
        batch = next(iter(module.train_dataloader()))
        scores = torch.randn(batch["y"].shape, requires_grad=True)
        for name, (objective, algorithm, theirs) in cases.items():
            ours = objective()
            algorithm().pose(ours, num_samples=ROWS, sampling=module.sampling())
            given = batch | {"threshold": torch.zeros(BATCH, 1, requires_grad=True)}
            row = {"here": counted(functools.partial(ours.measure, scores, given))}
            if others:
                loss = libauc_losses.made(theirs, ROWS, int(batch["y"].sum()), labels)
                step = LibAUCStep(nn.Identity(), loss, optimizer([scores]))
                row["LibAUC"] = counted(functools.partial(step.forward, torch.sigmoid(scores), batch))
            table[name] = row
    return table


def counted(forward: Callable[[], object]) -> int:
    """Dispatched operators."""
    with Counter() as counter:
        forward()
    return counter.count


def cost(rounds: int, *, compiled: bool) -> dict[str, Table]:
    """All tables."""
    others = libauc_losses.available()
    return {
        f"MLP 122-256-256-1, batch {BATCH}": steps(rounds, 1, others=others, compiled=compiled),
        f"MLP 122-256-256-{LABELS}, batch {BATCH}": steps(rounds, LABELS, others=others, compiled=compiled),
        f"operators of a loss's forward pass, batch {BATCH}": operators(others=others),
    }
