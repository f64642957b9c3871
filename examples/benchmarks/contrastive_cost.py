"""What a step of contrastive training costs beside the plain loop that anyone would write.

All variants make one step per round, on the same batch and in an order drawn anew; times are medians over rounds, a
ratio is the median (with quartiles) of the ratios within a round.  The optimizer is AdamW everywhere::

    uv run python examples/benchmarks/contrastive_cost.py            # CPU, one thread; --compiled compiles, too
    uv run python examples/benchmarks/contrastive_cost.py --gpu      # ViT-B-16, needs CUDA

- Objectives: two towers 512-512-128, batch 256.  The plain loop is CLIP's mini-batch loss (two cross-entropies); beside
  it SOX (SogCLR) written out in one function, and InfoNCE, SOX (also with trained temperatures) and SONEX through the
  engine.
- Protected tasks: ``CLIPModel("tiny")``, 256 pairs with 5 x 16 protected images, against the objective alone with 336
  pairs.  Equal are the images (256 + 80 = 336) and the texts (256 captions + 10 classes x 8 prompts = 336) that go
  through the towers, forward and backward, their size, the calls of each tower (one), the optimizer and the rows of the
  data set.  Not equal is what comes behind the towers: 336 x 336 similarities on one side, 256 x 256 and 80 x 10, class
  means, losses and 5 rows more on the other.
- ``--gpu``: ViT-B-16 with random weights, batch 256, autocast to bfloat16: the variants of the first part once more,
  with the peak memory of each alone.
"""

import argparse
import copy
import gc
import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from timing import Step, Table, descent, interleaved, report
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from fcco_lightning import (
    SGD,
    SONEX,
    SOX,
    Algorithm,
    BatchNetwork,
    CLIPModel,
    Engine,
    GlobalContrastive,
    HingePenalty,
    InfoNCE,
    NonForgetting,
    Objective,
    Penalty,
    SquaredHingePenalty,
)
from fcco_lightning.models.outputs import Embeddings

TAU = 0.05
GAMMA = 0.8
SAMPLES = 10_240  # 40 batches of 256
TASKS, IMAGES_PER_TASK, CLASSES, TEMPLATES = 5, 16, 10, 8

Autocast = Callable[[], AbstractContextManager[Any]]


class TwoTowers(BatchNetwork):
    """A perceptron for vectors that stand for images, another for those that stand for texts."""

    inputs = ("x", "text")

    def __init__(self, sizes: Sequence[int] = (512, 512, 128)) -> None:
        super().__init__()
        a, b, c = sizes
        self.image, self.text = (nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c)) for _ in range(2))

    def forward(self, batch: Any) -> Any:
        """Unit rows; the engine gives parts by name, the loops written out give columns."""
        if "x" not in batch:
            return {name: self(part) for name, part in batch.items()}
        image, text = self.image(batch["x"]), self.text(batch["text"])
        return Embeddings(normalize(image, dim=-1), normalize(text, dim=-1))


def adamw(network: nn.Module) -> torch.optim.AdamW:
    """The optimizer of all variants."""
    return torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-4)


def plain(network: nn.Module, autocast: Autocast = nullcontext) -> Step:
    """CLIP's loss of a mini-batch, as anyone would write it; times tau, as the global loss is."""

    def loss(batch: dict[str, Tensor]) -> Tensor:
        with autocast():
            image, text = network(batch)
            logits = image @ text.T / TAU
            pairs = torch.arange(len(logits), device=logits.device)
            return TAU * (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs))

    return descent(loss, adamw(network))


def written_out(network: nn.Module, autocast: Autocast = nullcontext) -> Step:
    """SOX on the global contrastive loss in one function, without logarithms: float32 holds exp(2 / tau) here."""
    rows = torch.full((SAMPLES, 2), float("nan"), device=next(network.parameters()).device)

    def loss(batch: dict[str, Tensor]) -> Tensor:
        with autocast():
            image, text = network(batch)
        similarity = image @ text.T
        own = similarity.diagonal()
        others = (1 - 1 / SAMPLES) / (len(own) - 1)
        sums = [((s - own.unsqueeze(1)) / TAU).exp().sum(1) for s in (similarity, similarity.T)]
        inner = 1 / SAMPLES + others * (torch.stack(sums, 1) - 1)
        with torch.no_grad():
            old = rows[batch["index"]]
            old = torch.where(old.isnan(), inner, old)
            rows[batch["index"]] = torch.lerp(old, inner, GAMMA)
        return (TAU / old * inner).sum(1).mean()

    return descent(loss, adamw(network))


def ours(
    network: nn.Module,
    objective: Objective,
    algorithm: Algorithm,
    penalty: Penalty | None = None,
    autocast: Autocast = nullcontext,
    *,
    compiled: bool = False,
) -> Step:
    """One batch through the engine, under autocast as a whole as in ``Trainer.fit``; protected tasks with a penalty."""
    constraints = [] if penalty is None else [NonForgetting(names=[str(k) for k in range(TASKS)])]
    problem = algorithm.pose(objective, constraints, penalty, num_samples=SAMPLES)
    engine = Engine(network, problem.to(next(network.parameters()).device), algorithm, compiled=compiled)
    optimizer = adamw(nn.ModuleList([network, objective]))

    def step(batch: dict[str, Any]) -> None:
        with autocast():
            engine.train_batch(batch, optimizer)

    return step


def variants(
    make: Callable[[], nn.Module], autocast: Autocast = nullcontext, *, compiled: bool = False
) -> dict[str, Callable[[], Step]]:
    """The objectives by name, the plain loop first, also compiled if asked for; each makes a network when called."""
    cases: dict[str, Callable[[], tuple[Objective, Algorithm]]] = {
        "InfoNCE": lambda: (InfoNCE(TAU), SGD()),
        "SOX": lambda: (GlobalContrastive(TAU), SOX(GAMMA)),
        "SOX, learnt temperature": lambda: (GlobalContrastive(TAU, learn="global"), SOX(GAMMA)),
        "SOX, temperatures of samples": lambda: (GlobalContrastive(TAU, learn="per_sample"), SOX(GAMMA)),
        "SONEX": lambda: (GlobalContrastive(TAU), SONEX(GAMMA, 0.1)),
    }
    made = {
        "plain loop, InfoNCE": lambda: plain(make(), autocast),
        "SOX written out": lambda: written_out(make(), autocast),
    }
    for (name, parts), also in itertools.product(cases.items(), (False, True) if compiled else (False,)):
        made[name + ", compiled" * also] = lambda p=parts, how=also: ours(  # type: ignore[misc]
            make(), *p(), autocast=autocast, compiled=how
        )
    return made


def objectives(rounds: int, *, compiled: bool = False) -> Table:
    """Two perceptrons, every sample once in 40 batches."""
    torch.manual_seed(0)
    model = TwoTowers()
    index = torch.randperm(SAMPLES).split(256)
    data = [{"x": torch.randn(len(i), 512), "text": torch.randn(len(i), 512), "index": i} for i in index]
    steps = {name: make() for name, make in variants(partial(copy.deepcopy, model), compiled=compiled).items()}
    return interleaved(steps, data, rounds, "cpu", warm_up=len(data))  # from then on every row was seen


def clip_pairs(model: CLIPModel, index: Tensor) -> dict[str, Tensor]:
    """Random images and texts."""
    size, config = len(index), model.config
    return {
        "x": torch.randn(size, 3, config.image_size, config.image_size),
        "text": torch.randint(1, config.vocab_size, (size, config.context_length)),
        "index": index,
    }


def protected_images(model: CLIPModel) -> dict[str, Tensor]:
    """Random images of all tasks, and the loss of ``model`` on them."""
    y = torch.arange(TASKS * IMAGES_PER_TASK) // IMAGES_PER_TASK
    part = {"x": clip_pairs(model, y)["x"], "y": y, "task": y}
    with torch.no_grad():
        return part | NonForgetting(names=["all"]).reference(model(part), part)


def protected_tasks(rounds: int, count: int = 20) -> Table:
    """Tiny CLIP, ``count`` batches."""
    torch.manual_seed(0)
    model, more = CLIPModel("tiny"), TASKS * IMAGES_PER_TASK
    prompts = clip_pairs(model, torch.arange(CLASSES * TEMPLATES))["text"]
    model.adapt(SimpleNamespace(class_tokens=prompts.view(CLASSES, TEMPLATES, -1)))
    data = []
    for _ in range(count):
        pairs = clip_pairs(model, torch.randperm(SAMPLES)[: 256 + more])
        target = {name: column[:256] for name, column in pairs.items()}
        data.append({"alone": pairs, "tasks": {"target": target, "protected": protected_images(model)}})

    def of(key: str, *parts: Any) -> Step:
        network = copy.deepcopy(model)
        step = plain(network) if not parts else ours(network, GlobalContrastive(TAU), *parts)
        return lambda batch: step(batch[key])

    alone, alone_sonex = "objective alone, SOX", "objective alone, SONEX"
    steps = {
        alone: of("alone", SOX(GAMMA)),
        "plain loop, InfoNCE": of("alone"),
        "5 tasks, SOX, squared hinge": of("tasks", SOX(GAMMA), SquaredHingePenalty()),
        "5 tasks, SONEX without gamma', hinge": of("tasks", SONEX(GAMMA, 0.0), HingePenalty()),
        alone_sonex: of("alone", SONEX(GAMMA, 0.1)),
        "5 tasks, SONEX, hinge": of("tasks", SONEX(GAMMA, 0.1), HingePenalty()),
    }
    return interleaved(steps, data, rounds, "cpu", {"5 tasks, SONEX, hinge": alone_sonex}, warm_up=count)


def large(rounds: int, name: str = "ViT-B-16", size: int = 256, device: str = "cuda") -> dict[str, Table]:
    """A CLIP model under autocast to bfloat16: times in turn, and the peak memory of each variant alone."""
    torch.manual_seed(0)
    model = CLIPModel(name)
    data = [clip_pairs(model, index) for index in torch.randperm(SAMPLES)[: 4 * size].split(size)]
    data = [{column: c.to(device) for column, c in batch.items()} for batch in data]
    autocast = partial(torch.autocast, device, torch.bfloat16)
    makers = variants(lambda: copy.deepcopy(model).to(device), autocast)
    peaks = {name: peak(make, data) for name, make in makers.items()} if device == "cuda" else {}
    table = interleaved({name: make() for name, make in makers.items()}, data, rounds, device)
    for variant, mebibytes in peaks.items():
        table[variant]["peak, MiB"] = mebibytes
    weights = sum(p.nbytes for p in model.parameters() if p.requires_grad) / 2**20
    hardware = torch.cuda.get_device_name() if device == "cuda" else device
    return {f"{name}, batch {size}, bf16 ({hardware}); trained weights: {weights:.0f} MiB, {rounds} rounds": table}


def peak(make: Callable[[], Step], data: list[dict[str, Tensor]]) -> float:
    """MiB that a variant needs beyond the data, network and optimizer included, from its third step on."""
    with torch.autocast("cuda", torch.bfloat16):
        torch.zeros(64, 64, device="cuda") @ torch.zeros(64, 64, device="cuda")  # the workspace that all share
    gc.collect()
    before = torch.cuda.memory_allocated()
    step = make()
    for batch in data[:2]:
        step(batch)
    torch.cuda.reset_peak_memory_stats()
    for batch in data:
        step(batch)
    most = torch.cuda.max_memory_allocated() - before
    del step
    gc.collect()
    return most / 2**20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="ViT-B-16 on CUDA instead of the parts for the CPU")
    parser.add_argument("--compiled", action="store_true", help="the two towers' steps also compiled by torch.compile")
    parser.add_argument("--rounds", type=int, default=400, help="of the two towers and on the GPU; tiny CLIP an eighth")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.gpu and not torch.cuda.is_available():
        sys.exit("--gpu measures ViT-B-16 on a CUDA device, and torch finds none here. Leave it out for the CPU.")
    if given.gpu:
        report(large(given.rounds), given.out / "contrastive_cost_gpu.json")
        return
    rounds, fewer = given.rounds, max(2, given.rounds // 8)
    results = {
        f"two towers 512-512-128, batch 256 ({rounds} rounds)": objectives(rounds, compiled=given.compiled),
        f"CLIP tiny, 336 images and 336 texts ({fewer} rounds)": protected_tasks(fewer),
    }
    report(results, given.out / "contrastive_cost.json")


if __name__ == "__main__":
    main()
