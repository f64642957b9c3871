"""What a step of the ranking objectives costs: part ``cost`` of xrisk.py."""

import copy
import functools
import itertools
import time

import libauc_losses
import torch
from libauc_losses import GAMMA, RANKING, RankingLoss, libauc_step, moving_averages, through_engine
from timing import Step, Table, interleaved, momentum, operators_of, plain
from torch import Tensor, nn

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


def written_out(network: nn.Module) -> Step:
    """Average precision by SOX with nothing but its arithmetic: no checks, repeats, own weights or processes."""
    steps, rows = momentum(network.parameters()), torch.full((ROWS, 2), 0.5)

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
            variants[label] = through_engine(copy.deepcopy(network), *made, module, momentum, compiled=how)
        if name == "AP":
            variants["AP, written out"] = written_out(copy.deepcopy(network))
        if others:
            loss = libauc_losses.made(theirs, ROWS, int(module.tables["train"].columns["y"].sum()), labels)
            variants[f"LibAUC {theirs}"] = libauc_step(copy.deepcopy(network), loss, momentum)
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
            row = {"here": operators_of(functools.partial(ours.measure, scores, given))}
            if others:
                loss = libauc_losses.made(theirs, ROWS, int(batch["y"].sum()), labels)
                row["LibAUC"] = operators_of(functools.partial(libauc_losses.value, loss, scores.sigmoid(), batch))
            table[name] = row
    return table


def cost(rounds: int, *, compiled: bool) -> dict[str, Table]:
    """All tables."""
    others = libauc_losses.available()
    return {
        f"MLP 122-256-256-1, batch {BATCH}": steps(rounds, 1, others=others, compiled=compiled),
        f"MLP 122-256-256-{LABELS}, batch {BATCH}": steps(rounds, LABELS, others=others, compiled=compiled),
        f"operators of a loss's forward pass, batch {BATCH}": operators(others=others),
    }
