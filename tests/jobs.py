"""Functions that the processes of a job run, for tests of several processes under a Trainer."""

import errno
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    AUC,
    BSGD,
    MOAP,
    MSVR,
    OOA,
    PDSCA,
    PGSMD,
    SGD,
    SMD,
    SOAP,
    SONEX,
    SONX,
    SOX,
    CLIPModel,
    Columns,
    ContinualCLIPDataModule,
    CVaRGroupDRO,
    DigitImages,
    DigitsCLIPDataModule,
    EqualStages,
    Execution,
    FCCOModule,
    GlobalContrastive,
    GroupedTextDataModule,
    Groups,
    GroupSampling,
    HeavyBall,
    HingePenalty,
    ImageSplits,
    InfoNCE,
    LabelledTexts,
    NonForgetting,
    ROCFairness,
    Schedule,
    SOXBoost,
    Splits,
    SquaredHingePenalty,
    Switching,
    TabularDataModule,
    TabularMLP,
    TextClassifier,
    TextTokens,
    UniformSampling,
)
from fcco_lightning.data import TensorTable
from fcco_lightning.objectives import Objective, binary_scores
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import Log
from fcco_lightning.state.sharded import is_sharded
from fcco_lightning.training import Preemption
from tests.conftest import QUIET
from tests.tables import make_data, make_frame
from tests.texts import TINY, make_texts


class SoftRank(Objective):
    """Mean over the positives of ``log(1/2 + mean over negatives of squared hinge)``: one row per positive sample."""

    outer = Log()

    def measure(self, outputs, batch):
        scores, positive = binary_scores(outputs), batch["y"] == 1
        negative = (~positive).to(scores.dtype)
        losses = (1 - scores.unsqueeze(1) + scores).clamp(min=0).square()
        means = losses @ negative / negative.sum().clamp(min=1)
        return None, Rows(0.5 + means.unsqueeze(1), positive & (negative.sum() > 0))


ALGORITHMS: dict[str, Callable[[], Any]] = {
    "SONEX": lambda: SONEX(0.5, 0.1, lam=0.01),
    "SONX": lambda: SONX(0.5, 0.1),
    "SOX": lambda: SOX(0.5),
    "SOAP": lambda: SOAP(0.5),
    "MOAP": lambda: MOAP(0.5),
    "BSGD": BSGD,
    "SGD": SGD,
    "Switching": lambda: Switching(0.5),
    "MSVR": lambda: MSVR(gamma=0.5, gamma_prime=0.3),
    "ALEXR": lambda: ALEXR(1.0, 0.5),
    "ALEXR2": lambda: ALEXR2(K=4, gamma=0.5),
    "SOXBoost": partial(SOXBoost, first_stage=3),
    "PDSCA": lambda: PDSCA(0.3, 0.5),
}


GROUP_ALGORITHMS: dict[str, Callable[[], Any]] = {
    "SONEX": lambda: SONEX(0.5, 0.1, lam=0.1),
    "ALEXR": lambda: ALEXR(1.0, 0.5),
    "ALEXR2": lambda: ALEXR2(K=4, eta=0.05, nu=1.0, gamma=0.5),
    "MSVR": lambda: MSVR(gamma=0.5, gamma_prime=0.3),
    "SOXBoost": partial(SOXBoost, first_stage=7),
    "OOA": lambda: OOA(0.1),
    "PGSMD": lambda: PGSMD(1.0, EqualStages(4, 0.1, 0.1)),
    "SMD": lambda: SMD(0.1),
}

PAIR_ALGORITHMS: dict[str, Callable[[], Any]] = {
    "SGD": SGD,
    "SOX": lambda: SOX(0.5),
    "SONX": lambda: SONX(0.8, 0.1),
    "SONEX": lambda: SONEX(0.8, 0.1, lam=0.05),
    "ALEXR2": lambda: ALEXR2(K=3, eta=0.05, nu=1.0, lam=0.05, objective_gamma=0.8),
    "MSVR": lambda: MSVR(gamma=0.5, gamma_prime=0.3),
}


class Transformer(nn.Module):
    """A transformer of two layers with the columns of a table as tokens; one of its parameters is a scalar."""

    def __init__(self, columns: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Parameter(0.3 * torch.randn(columns, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.scale = nn.Linear(8, 1), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.blocks(x.unsqueeze(2) * self.embedding)
        return self.scale * self.head(tokens.mean(1)).squeeze(1)


class At(Callback):
    """Calls a function after a given batch."""

    def __init__(self, epoch: int, batch: int, act: Callable[[Trainer], None]) -> None:
        self.epoch, self.batch, self.act = epoch, batch, act

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            self.act(trainer)


def save_at(epoch: int, batch: int, path: Any) -> At:
    """Saves a checkpoint after a batch, before all hooks that follow the batch."""
    return At(epoch, batch, lambda trainer: trainer.save_checkpoint(path))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def trained(job: Mapping[str, Any], module: FCCOModule, data: Any) -> Trainer:
    """Fit ``module`` with the settings of ``job``, whose keys all have defaults, and return the Trainer."""
    strategy: Any = "ddp" if world_size() > 1 else "auto"
    where = {"accelerator": "cpu", "devices": world_size() // job.get("nodes", 1)}
    if job.get("cuda") and world_size() == 1:
        where = {"accelerator": "gpu", "devices": 1}
    elif job.get("cuda"):  # all processes on one device, which NCCL refuses
        where, devices = {}, [torch.device("cuda", 0)] * world_size()
        strategy = DDPStrategy(parallel_devices=devices, process_group_backend="gloo")
    callbacks: list[Callback] = list(job.get("callbacks", ()))
    if "save" in job:
        callbacks.append(save_at(*job["save"]))
    trainer = Trainer(
        max_epochs=job.get("epochs", 2),
        num_nodes=job.get("nodes", 1),
        strategy=ModelParallelStrategy() if job.get("divided") else strategy,
        callbacks=callbacks,
        default_root_dir=job.get("folder"),
        **where,
        **{**QUIET, **job.get("trainer", {})},
    )
    trainer.fit(module, data, ckpt_path=job.get("resume"))
    for command in job.get("then", ()):
        getattr(trainer, command)(module, data)
    return trainer


def fit(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train with the settings of ``job``, whose keys all have defaults, and return the outcome."""
    seed_everything(job.get("seed", 0), verbose=False)
    objective = SoftRank() if job.get("objective") == "rank" else AUC()
    data = make_data(
        **{
            "train": make_frame(job.get("rows", 200), 0),
            "batches": UniformSampling(job.get("union", 24) // world_size(), **job.get("batches", {})),
            **job.get("data", {}),
        }
    )
    data.setup()
    name = job.get("algorithm", "SONEX")
    smooth = name in ("SOX", "SOAP", "MOAP", "BSGD", "MSVR", "SOXBoost")
    penalty = None if name == "Switching" else SquaredHingePenalty(4.0) if smooth else HingePenalty(4.0)
    network: nn.Module = TabularMLP([8], in_features=data.num_features, batch_norm=job.get("batch_norm", False))
    module = FCCOModule(
        Transformer(data.num_features, job.get("dropout", 0.1)).to(job.get("dtype", torch.float32))
        if job.get("transformer")
        else network,
        objective,
        constraints=[ROCFairness(thresholds=[-1, 0, 1])],
        penalty=penalty,
        algorithm=ALGORITHMS[name](),
        **{"optimizer": lambda p: HeavyBall(p, lr=0.05, beta=0.5), **job.get("module", {})},
    )
    if "before" in job:
        job["before"](module, data)
    return outcome(trained(job, module, data), module)


class Parts(IterableDataset[dict[str, Tensor]]):
    """The first samples of a table, repeated."""

    def __init__(self, table: TensorTable, size: int) -> None:
        self.table, self.size = table, size

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self.table[k % len(self.table)] for k in range(self.size))


def fit_own_loader(job: Mapping[str, Any]) -> int:
    """Train on loaders that do not use this package, with ``batches`` of 4 samples in each process."""
    x = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    table, size = (
        TensorTable({"x": x, "y": (x[:, 0] > 0).long(), "group": (x[:, 1] > 0).long()}),
        4 * job["batches"][rank()],
    )
    loader = DataLoader(table, 4, sampler=range(size)) if job["known"] else DataLoader(Parts(table, size), 4)
    module = FCCOModule(TabularMLP([8], in_features=7), AUC(), algorithm=SGD(), execution=Execution(num_samples=40))
    return trained({"trainer": {"use_distributed_sampler": False}}, module, loader).global_step


def group_texts(dropout: float) -> tuple[Any, nn.Module, float]:
    """Texts in 4 groups, a transformer, and the share alpha of the groups."""
    data = GroupedTextDataModule(
        LabelledTexts(make_texts(96)),
        columns=Columns("spam", positive="spam"),
        groups=Groups(["spam", "list"]),
        tokens=TextTokens(vocabulary=120),
        splits=ImageSplits("fractions", [0.8, 0, 0.2]),
        batches=GroupSampling(2, 6 // world_size()),
        eval_train=True,
        seed=1,
    )
    return data, TextClassifier(config=TINY | {"hidden_dropout_prob": dropout}), 0.5


def group_table(dropout: float, name: str) -> tuple[Any, nn.Module, float]:
    """A table with 8 groups, a perceptron, and the share alpha of the groups."""
    data = TabularDataModule(
        make_frame(400, 0).assign(far=lambda f: (f["b"] > 0).map({True: "far", False: "near"})),
        columns=Columns("label", positive="yes"),
        groups=Groups(["label", "sex", "far"]),
        splits=Splits(0.2),
        batches=GroupSampling(8 if name == "SMD" else 4, 6 // world_size()),
        seed=1,
    )
    data.setup()
    layers = [nn.Linear(data.num_features, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)]
    return data, nn.Sequential(*layers), 0.3


def fit_groups(job: Mapping[str, Any]) -> dict[str, Any]:
    """Group DRO on a small table or on texts; every key of ``job`` has a default."""
    seed_everything(job.get("seed", 0), verbose=False)
    name, dropout = job.get("algorithm", "SONEX"), job.get("dropout", 0.0)
    data, network, alpha = group_texts(dropout) if job.get("texts") else group_table(dropout, name)
    module = FCCOModule(
        network,
        CVaRGroupDRO(alpha),
        algorithm=GROUP_ALGORITHMS[name](),
        optimizer=lambda p: HeavyBall(p, lr=0.05, beta=0.5, weight_decay=0.1),
        schedule=Schedule(objective_lr=0.01),
        **job.get("module", {}),
    )
    return outcome(trained(job, module, data), module)


SMALL_DIGITS: dict[str, Any] = {
    "target": [8],
    "protected": [3, 5, 9],
    "digits": DigitImages(200, 60),
    "batches": UniformSampling(16, num_batches=4),
    "task_batches": GroupSampling(None, 4),
    "eval_batch_size": 64,
}


def pairs_module(algorithm: str = "SONEX", learn: str = "no", **changes: Any) -> FCCOModule:
    """The module of a small CLIP model that learns pairs and must not forget protected tasks."""
    smooth = algorithm in ("SGD", "SOX", "MSVR")
    objective = InfoNCE(0.1) if algorithm == "SGD" else GlobalContrastive(0.1, learn, rho=2.0, tau_lr=1e-3)  # type: ignore[arg-type]
    parts: dict[str, Any] = {
        "network": CLIPModel("tiny"),
        "objective": objective,
        "constraints": [NonForgetting()],
        "penalty": SquaredHingePenalty(20.0) if smooth else HingePenalty(5.0),
        "algorithm": PAIR_ALGORITHMS[algorithm](),
        "optimizer": lambda p: HeavyBall(p, lr=0.02, beta=0.5, weight_decay=0.01),
    }
    return FCCOModule(**(parts | changes))


def pairs_data(job: Mapping[str, Any]) -> ContinualCLIPDataModule:
    """Digits, or the labelled images of a folder; batches are divided among the processes."""
    make = ContinualCLIPDataModule if "images" in job.get("data", {}) else DigitsCLIPDataModule
    settings = ({} if make is ContinualCLIPDataModule else SMALL_DIGITS) | job.get("data", {})
    pairs, tasks = settings["batches"], settings["task_batches"]
    settings |= {"batches": replace(pairs, batch_size=pairs.batch_size // world_size())}
    settings |= {"task_batches": replace(tasks, samples_per_group=tasks.samples_per_group // world_size())}
    return make(**settings)


def fit_pairs(job: Mapping[str, Any]) -> dict[str, Any]:
    """Continual learning of a small CLIP model; every key of ``job`` has a default."""
    seed_everything(job.get("seed", 0), verbose=False)
    data = pairs_data(job)
    module = pairs_module(**job.get("module", {}))
    trainer = trained(job, module, data)
    found = outcome(trainer, module)
    found["old"] = {
        split: {n: c.cpu().clone() for n, c in table.columns.items() if n.startswith(("old_", "protected_"))}
        for split, table in data.tables.items()
    }
    found["processes"] = trainer.world_size
    found["skipped"] = {split: table.num_corrupt for split, table in data.tables.items()}
    return found


def fit_all_pairs(several: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Run several jobs one after the other in the same processes, which import open_clip only once."""
    environment, found = dict(os.environ), {}
    with torch.random.fork_rng():
        for name, job in several.items():
            os.environ.update(environment)  # a Trainer that has ended takes WORLD_SIZE with it
            found[name] = fit_pairs(job)
    return found


def whole(tensor: Any) -> Tensor:
    """A tensor with the parts of all processes; a collective call."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def outcome(trainer: Trainer, module: FCCOModule) -> dict[str, Any]:
    """Weights, including those of the objective, the rows of this process, and counters."""
    weights = {name: whole(p.detach()).cpu().clone() for name, p in module.network.state_dict().items()}
    weights |= {name: p.detach().cpu().clone() for name, p in module.objective.named_parameters()}
    rows = {name: (s.first, s.num_rows, s.rows.cpu().clone()) for name, s in module.dual_states().items()}
    logged = {name: float(v) for name, v in trainer.callback_metrics.items()}
    return {"weights": weights, "rows": rows, "global_step": trainer.global_step, "logged": logged}


def assert_same_run(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Assert that two outcomes have the same weights, figures and rows, bit for bit; unwritten rows are NaN in both."""
    torch.testing.assert_close(a["weights"], b["weights"], rtol=0, atol=0)
    assert a["logged"] == b["logged"]
    for (_, _, left), (_, _, right) in zip(a["rows"].values(), b["rows"].values(), strict=True):
        assert torch.equal(left.view(torch.int32), right.view(torch.int32))


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """All tensors and numbers that training changes, by name."""
    module: Any = trainer.lightning_module
    tensors = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    todo = [("optimizer", trainer.optimizers[0].state_dict()), ("engine", module.engine.state_dict())]
    while todo:
        name, value = todo.pop()
        if isinstance(value, dict):
            todo += [(f"{name}.{k}", v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            todo += [(f"{name}.{k}", v) for k, v in enumerate(value)]
        elif isinstance(value, int | float | Tensor):
            tensors[name] = torch.as_tensor(value)
    return tensors


def require_same(found: Trainer, expected: Trainer) -> None:
    """Assert that two runs have the same final state, bit for bit."""
    assert found.global_step == expected.global_step
    torch.testing.assert_close(everything(found), everything(expected), rtol=0, atol=0, equal_nan=True)


def whole_rows(outcomes: list[dict[str, Any]]) -> dict[str, Tensor]:
    """All rows of every state, assembled from all processes; replicas must be equal."""
    tables = {}
    for name, (_, num_rows, part) in outcomes[0]["rows"].items():
        table = torch.full((num_rows, part.shape[1]), float("nan"), dtype=part.dtype)
        for one in outcomes:
            first, _, own = one["rows"][name]
            there = table[first : first + len(own)]
            written = ~there.isnan()
            assert torch.equal(there[written], own[written])
            table[first : first + len(own)] = own
        tables[name] = table
    return tables


class Sabotage(nn.Module):
    """A network that fails on one rank at one call."""

    def __init__(self, inside: nn.Module, bad_rank: int, call: int, how: str) -> None:
        super().__init__()
        self.inside, self.bad_rank, self.call, self.how, self.calls = inside, bad_rank, call, how, 0

    def forward(self, x):
        out = self.inside(x)
        if self.training and torch.is_grad_enabled():
            self.calls += 1
            if self.calls == self.call and rank() == self.bad_rank:
                if self.how == "raise":
                    raise ValueError("the network does not like this batch")
                out = out * float("nan")
        return out


def sabotage_network(bad_rank, call, how, module, data):
    module.network = Sabotage(module.network, bad_rank, call, how)


def spoil_a_gradient(module, data):
    """Put a bad value into a gradient, in the part of a weight that the last process holds."""

    def spoil(parameter):
        part = parameter.grad.to_local()
        if rank() and len(part):
            part[-1] = float("nan")

    start = module.on_train_start

    def on_train_start():
        start()
        for parameter in module.network.parameters():
            if is_sharded(parameter):
                parameter.register_post_accumulate_grad_hook(spoil)

    module.on_train_start = on_train_start


def die_while_writing(which, module, data):
    """Kill a process when it has written its part of a checkpoint but not yet closed it."""
    if rank() == which:

        def fsync(descriptor):
            os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = fsync


class BadTable:
    def __init__(self, table, bad_rank):
        self.table, self.bad_rank, self.asked = table, bad_rank, 0

    def __len__(self):
        return len(self.table)

    def __getattr__(self, name):
        return getattr(self.table, name)

    def __getitems__(self, rows):
        self.asked += 1
        if rank() == self.bad_rank and self.asked == 3:
            raise OSError("the disk with the samples is gone")
        return self.table.__getitems__(rows)


def sabotage_data(bad_rank, module, data):
    data.tables["train"] = BadTable(data.tables["train"], bad_rank)


def other_configuration(module, data):
    if rank() == 1:
        module.penalty = HingePenalty(5.0)


def other_data(module, data):
    if rank() == 1:
        data.tables["train"].columns["y"][3] ^= 1


def terminate(which, trainer):
    if rank() == which:
        os.kill(os.getpid(), signal.SIGTERM)


def fit_and_be_told_to_end(job: Mapping[str, Any], which: int, epoch: int, batch: int) -> Any:
    """Train; one rank gets SIGTERM after a batch."""
    return fit({**job, "callbacks": [At(epoch, batch, partial(terminate, which)), Preemption(folder=job["folder"])]})


def place_of_weights(path: Path) -> int:
    """Where the first weights are in a checkpoint's file, in bytes; between its members there is padding."""
    weights = next(v for k, v in torch.load(path, weights_only=True)["state_dict"].items() if k.startswith("network."))
    return path.read_bytes().index(weights.numpy().tobytes())


def rows_files(path: str) -> list[Path]:
    return sorted(Path(f"{path}.rows").rglob("*.part"))


def fill_the_disk(module, data):
    """Make all further writes on rank 1 fail."""
    if rank() == 1:

        def fsync(descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        os.fsync = fsync
