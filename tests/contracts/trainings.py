"""Small problems on which every algorithm is trained, and a training that can be copied, stopped and corrupted."""

import io
import warnings
from itertools import combinations

import torch
from torch import Tensor, nn

from fcco_lightning import CVaRGroupDRO, Engine, Hinge, Log, MeanAtMost, Objective, SoftRate
from fcco_lightning.data.batches import BatchDraws, Drawn
from fcco_lightning.objectives import RowDomain
from fcco_lightning.objectives.measurable import Rows

N, BATCH = 12, 6
KAPPA = 0.3
Y = torch.tensor([0, 1] * (N // 2))
GROUP = torch.arange(N) % 3
BROKEN = float("nan")


class Margins(Objective):
    """``0.05 mean s^2 + (1/n) sum_i 1.5 [1 - (+-1) s_i - 0.2]_+``."""

    outer = Hinge(1.5, 0.2)

    def measure(self, outputs, batch):
        values = (1 - (2 * batch["y"] - 1) * outputs).unsqueeze(1)
        return 0.05 * outputs.square().mean(), Rows(values, torch.ones_like(outputs, dtype=torch.bool))


class LogMargins(Margins):
    """``0.05 mean s^2 + (1/n) sum_i log exp(1 - (+-1) s_i)``."""

    outer = Log()

    def measure(self, outputs, batch):
        direct, rows = super().measure(outputs, batch)
        return direct, rows._replace(values=rows.values.exp())


class MergedMargins(Margins):
    """Margins that merges repeated samples itself, by a loop; repeated entries get unused rows and are absent."""

    def measure(self, outputs, batch):
        direct, (values, *_) = super().measure(outputs, batch)
        index = batch["index"].tolist()
        means = [values[[p for p, other in enumerate(index) if other == i]].mean(0) for i in index]
        others = iter(set(range(N)) - set(index))
        first = [i not in index[:p] for p, i in enumerate(index)]
        names = torch.tensor([i if own else next(others) for i, own in zip(index, first, strict=True)])
        return direct, Rows(torch.stack(means), torch.tensor(first), index=names)


class OwnedMargins(Margins):
    """Only the positive samples own rows."""

    def row_domain(self, num_samples, columns):
        return RowDomain(num_samples, per_sample=True, owners=columns["y"] == 1)

    def measure(self, outputs, batch):
        return 0.05 * outputs.square().mean(), Rows((1 - outputs).unsqueeze(1), batch["y"] == 1)


class ListedDraws(BatchDraws):
    """A list of equally likely batches; probabilities are counted."""

    def __init__(self, batches: list[tuple[int, ...]], num_samples: int) -> None:
        self.batches = torch.tensor(batches)
        self.num_samples = num_samples

    @property
    def strata(self) -> Tensor:
        return torch.arange(self.num_samples)  # every sample is a stratum of its own

    def absence(self, counts: Tensor, share: float = 1.0) -> float:
        rows = self.batches[:, : int(self.batches.shape[1] * share)]
        return int((~counts.bool()[rows].any(1)).sum()) / len(rows)


class Break(torch.autograd.Function):
    """The identity with a derivative of NaN."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return gradient * BROKEN


class Spoiler(nn.Module):
    """After so many further calls that count, those with graph for a derivative: NaN in one output, or in that."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.left, self.what = 0, 0, ""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.left -= self.what == "value" or torch.is_grad_enabled()
        if self.left or not self.what:
            return x
        return Break.apply(x) if self.what == "gradient" else x + BROKEN * (torch.arange(len(x)) == 1)


def make_network(frozen: bool = False) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0), Spoiler()).double()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    network[0].requires_grad_(not frozen)
    return network


UNIFORM = Drawn({"y": Y, "group": GROUP}, ListedDraws(list(combinations(range(N), BATCH)), N))


def rate() -> MeanAtMost:
    return MeanAtMost(SoftRate(temperature=0.5), kappa=KAPPA, where={"y": 0})


class Training:
    """A training by a member of the registry; ``parts`` are batches of the two draws that jacobian='part' needs."""

    def __init__(
        self,
        member,
        *,
        objective=None,
        limits=None,
        processes=None,
        layout="auto",
        frozen=False,
        drawn=UNIFORM,
        micro_batch=None,
    ):
        self.network = make_network(frozen)
        self.algorithm = member.make()
        self.two_parts = member.jacobian == "part"
        if objective is None:
            objective = CVaRGroupDRO(0.5, num_groups=3).double() if member.max_form else Margins()
            objective = LogMargins() if member.logarithm else objective
            objective = objective if member.objective is None else member.objective().double()
        self.problem = self.algorithm.pose(
            objective,
            [rate()] if limits is None else limits,
            member.penalty(),
            num_samples=len(drawn.columns["y"]),
            sampling={"target": drawn},
            dtype=torch.float64,
            processes=processes,
            layout=layout,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* began outside")  # of a ball small enough to bind
            self.engine = Engine(self.network, self.problem, self.algorithm, micro_batch=micro_batch)
        self.engine.arrivals.left = 0  # the first batches are looked at more than once
        self.optimizer = member.optimizer(self.engine.params, lr=0.05, beta=0.3)

    def step(self, batch, *, last_batch=False):
        """One iteration on a batch, for two draws with another one, made of the same samples, as the part "dual"."""
        return self.engine.train_batch(self.given(batch), self.optimizer, last_batch=last_batch)

    def given(self, batch):
        if not self.two_parts:
            return batch
        return {"target": batch, "dual": {name: column.flip(0) for name, column in batch.items()}}

    def stored(self) -> dict:
        """What a checkpoint holds."""
        parts = {"network": self.network, "problem": self.problem, "engine": self.engine, "opt": self.optimizer}
        return {name: part.state_dict() for name, part in parts.items()}

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save(self.stored(), file)
        return file.getvalue()

    def load(self, data: bytes) -> None:
        stored = torch.load(io.BytesIO(data), weights_only=True)
        self.network.load_state_dict(stored["network"])
        self.problem.load_state_dict(stored["problem"])
        self.engine.load_state_dict(stored["engine"])
        self.optimizer.load_state_dict(stored["opt"])

    def spoil(self, what: str, call: int) -> None:
        """Let the call-th forward pass from now on give NaN, of those with graph if it is to be in the gradient."""
        spoiler = self.network[-1]
        spoiler.what, spoiler.left = what, call

    @property
    def forwards(self) -> int:
        return self.network[-1].calls


def leaves(value, path=""):
    """Copies of all numbers and tensors in a nested record, by path."""
    if isinstance(value, Tensor):
        return {path: value.detach().clone()}
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in leaves(part, f"{path}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, part in enumerate(value) for k, v in leaves(part, f"{path}/{i}").items()}
    return {path: value}


def assert_same_bits(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for path, a in one.items():
        b = other[path]
        if isinstance(a, Tensor):
            assert a.dtype == b.dtype, path
            assert torch.equal(a.isnan(), b.isnan()), path
            assert torch.equal(a.nan_to_num(), b.nan_to_num()), path
        else:
            assert a == b, path


def make_batch(index, seed: int):
    """The samples' columns; x is drawn afresh around the sample's centre."""
    centres = torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    index = torch.as_tensor(index)
    noise = torch.randn(len(index), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {"x": centres[index] + 0.2 * noise, "y": Y[index], "group": GROUP[index], "index": index}


def make_batches(count: int, seed: int = 1):
    """Batches of 6 of the 12 samples that hold all groups, as SMD needs."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    while len(batches) < count:
        index = torch.randperm(N, generator=generator)[:BATCH]
        if len(GROUP[index].unique()) == 3:
            batches.append(make_batch(index, len(batches)))
    return batches
