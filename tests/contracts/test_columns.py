"""Columns and outputs of other shapes or types are read as intended, or refused by name."""

from functools import partial
from itertools import count, cycle, islice

import pytest
import torch

from fcco_lightning import AUC, SGD, SOX, CVaRGroupDRO, Engine
from fcco_lightning.constraints import HingePenalty
from fcco_lightning.engine.batches import as_columns
from fcco_lightning.errors import DataError, FCCOError
from fcco_lightning.evaluation import (
    BinaryEvaluation,
    ClassEvaluation,
    GroupEvaluation,
    NeighbourEvaluation,
    NumberEvaluation,
    RankingEvaluation,
)
from fcco_lightning.models import BatchNetwork
from tests.contracts.registry_constraints import CASES as CONSTRAINTS
from tests.contracts.registry_objectives import CASES as OBJECTIVES
from tests.contracts.sampled import RHO, Bench
from tests.engine.test_compiled_steps import whole

CASES = {
    **{f"objective {k}": v for k, v in OBJECTIVES.items()},
    **{f"constraint {k}": v for k, v in CONSTRAINTS.items()},
}
REAL = {"protected_loss", "old_logits", "reward", "time"}  # columns that whole numbers do not hold
OPTIONAL = {"terminal"}  # without it, or with one that no batch can hold, nothing ends

SAME = {  # another shape or type of the same numbers
    "a second dimension of 1": lambda c: c.unsqueeze(-1),
    "float64": lambda c: c.double(),
    "float64, a second dimension of 1": lambda c: c.double().unsqueeze(-1),
    "a third dimension": lambda c: c.reshape(len(c), 1, 1, *c.shape[1:]),
    "two alike": lambda c: torch.stack([c, c], 1),
    "one row": lambda c: c.unsqueeze(0),
    "a single number": lambda c: c.flatten()[0],
    "complex": lambda c: c.to(torch.complex128),
    "a list": lambda c: c.tolist(),
    "an array": lambda c: c.numpy(),
}
WHOLE = {
    "float32": lambda c: c.float(),
    "bfloat16": lambda c: c.bfloat16(),
    "int32": lambda c: c.int(),
    "int8": lambda c: c.to(torch.int8),
}
OTHER = {  # which must not be read at all
    "texts": lambda c: [str(value) for value in c.tolist()],
    "None": lambda c: None,
}


def trained(bench, columns=(), *, first=True):
    """Weights and parameters after a step on a batch of all samples."""
    batch = bench.batch(range(bench.case.n), weighted=False)
    batch[bench.name] |= dict(columns)
    bench.engine.checked = not first
    bench.engine.train_batch(batch, torch.optim.SGD(bench.engine.params, lr=0.1))
    return torch.cat([parameter.detach().flatten() for parameter in bench.parameters()])


def of_split(case, columns):
    """A bench of which also the training split has these columns."""
    bench = Bench(case)
    known = bench.columns
    bench.columns = {**known, **columns}
    bench.engine = bench.started(bench.algorithm, HingePenalty(RHO))
    bench.columns = known
    return bench


def found(run):
    """What came out, or the error of the package; any other error fails the test."""
    try:
        return run()
    except FCCOError as error:
        return error


RUNS = {
    "first batch": lambda case, changed: trained(Bench(case), changed),
    "later batch": lambda case, changed: trained(Bench(case), changed, first=False),
    "split and batch": lambda case, changed: trained(of_split(case, changed), changed),
}
everywhere = pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.slow)])
"""Every kind is tried at every place; or every fourth one, beginning elsewhere for every case, at one of the places."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
@everywhere
def test_columns_are_read_as_they_were_meant_or_refused(name, everywhere):
    first = [*CASES].index(name)
    case, in_turn, numbers = CASES[name], islice(cycle(RUNS), first // 3, None), count(first)
    expected = trained(Bench(case))
    for column, values in case.columns.items():
        kinds = {**SAME, "a list": SAME["an array"], **OTHER} if column in REAL else {**SAME, **WHOLE, **OTHER}
        number = next(numbers)
        for kind, make in kinds.items() if everywhere else [*kinds.items()][number % 4 :: 4]:
            for where in RUNS if everywhere else [next(in_turn)]:
                result = found(partial(RUNS[where], case, {column: make(values)}))
                if isinstance(result, FCCOError):
                    assert column in str(result), (column, kind, where)
                elif column not in OPTIONAL or kind not in OTHER:
                    assert torch.equal(result, expected), (column, kind, where)


OUTPUTS = {
    "dict": lambda o: {"logits": o},
    "tuple": lambda o: (o, o),
    "tuple of one": lambda o: (o,),
    "list": lambda o: [o],
    "None": lambda o: None,
    "number": lambda o: 3.0,
}
TENSORS = {
    "a further dimension of 1": lambda o: o.unsqueeze(-1),
    "two further dimensions": lambda o: o.unsqueeze(-1).unsqueeze(-1),
    "one sample less": lambda o: o[:-1],
    "a single number": lambda o: o.sum(),
    "one row": lambda o: o.unsqueeze(0),
    "int64": lambda o: o.long(),
    "complex": lambda o: o.to(torch.complex128),
    "bool": lambda o: o > 0,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
@everywhere
def test_outputs_are_read_as_they_were_meant_or_refused(name, everywhere):
    case, in_turn = CASES[name], islice(cycle([True, False]), [*CASES].index(name) // 2, None)
    expected = trained(Bench(case))
    kinds = {**OUTPUTS, **TENSORS} if isinstance(case.wrap(case.outputs), torch.Tensor) else OUTPUTS
    some = slice(None) if everywhere else slice([*CASES].index(name) % 3, None, 3)
    for kind, make in [*kinds.items()][some]:
        for first in (True, False) if everywhere else [next(in_turn)]:

            def run(make=make, first=first):
                bench = Bench(case)
                bench.network.wrap = lambda table: make(case.wrap(table))
                return trained(bench, first=first)

            result = found(run)
            assert isinstance(result, FCCOError) or torch.equal(result, expected), (kind, first)


class ByPart(BatchNetwork):
    """Returns what it is told to."""

    def __init__(self, make):
        super().__init__()
        self.layer, self.make = torch.nn.Linear(3, 1), make

    def forward(self, batch):
        return self.make(self.layer(batch["target"]["x"]))


def stepped(objective, network, batch, algorithm=None):
    """The weights of a network after a step."""
    algorithm = algorithm or SGD()
    torch.manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    objective.adapt(None)
    engine = Engine(network, algorithm.pose(objective, num_samples=len(batch["x"])), algorithm)
    engine.train_batch(batch, torch.optim.SGD(engine.params, lr=0.1))
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


BATCH = {
    "x": torch.linspace(-1, 1, 18).reshape(6, 3), "y": torch.tensor([0, 1, 0, 1, 1, 0]),
    "group": torch.tensor([0, 1, 0, 1, 1, 0]), "index": torch.arange(6),
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda out: out, r"ByPart must return a mapping from the parts of a batch, \['target'\], .* a tensor"),
        (lambda out: {"other": out}, r"outputs for the parts \['other'\] of a batch only, and not for 'target'"),
        (
            lambda out: {"target": {"logits": out}},
            r"with the keys \['logits'\] .* super\(\).forward\(x\)\['logits'\]",
        ),
        (lambda out: {"target": out.mean()}, r"a tensor of torch.float32 and shape \(\) for 6 samples"),
    ],
)
def test_a_network_is_told_what_to_return(make, text):
    with pytest.raises(DataError, match=text):
        stepped(AUC(), ByPart(make), BATCH)


def test_the_network_around_another_one_does_what_the_message_says():
    class Logits(torch.nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x)}

    class Scores(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x)["logits"]

    expected = stepped(AUC(), torch.nn.Linear(3, 1), BATCH)
    assert torch.equal(stepped(AUC(), Scores(Logits(3, 1)), BATCH), expected)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_columns_are_read_alike_in_compiled_steps(compiled, monkeypatch):
    monkeypatch.setattr(torch, "compile", whole)
    changed = BATCH | {"y": BATCH["y"].unsqueeze(1), "group": BATCH["group"].float().unsqueeze(1)}
    weights = []
    for batch in (BATCH, changed):
        torch.manual_seed(0)
        network, algorithm, objective = torch.nn.Linear(3, 1), SOX(), CVaRGroupDRO(0.5, num_groups=2)
        engine = Engine(network, algorithm.pose(objective, num_samples=6), algorithm, compiled=compiled)
        for _ in range(2):
            engine.train_batch(batch, torch.optim.SGD(engine.params, lr=0.1))
        weights.append(network.weight.detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize("name", ["group", "task", "query", "bag", "event"])
@pytest.mark.parametrize("wrong", [0.5, float("nan"), float("inf")])
def test_a_number_that_must_be_whole_is_named_with_its_position(name, wrong):
    column = torch.tensor([3.0, 1.0, wrong, 0.0])
    with pytest.raises(DataError, match=rf"`{name}` of a batch must hold whole numbers, got {wrong} at position 2"):
        as_columns({name: column})


def test_columns_of_a_batch_stay_what_they_are_where_nothing_is_to_be_changed():
    given = {"x": torch.rand(4, 1), "y": torch.rand(4, 1), "group": torch.arange(4)}
    assert as_columns(given) is given
    read = as_columns(given | {"group": torch.arange(4.0), "time": torch.rand(4, 1)})
    assert read["x"].shape == read["y"].shape == (4, 1)
    assert (read["group"].dtype, read["group"].tolist()) == (torch.int64, [0, 1, 2, 3])
    assert (read["time"].dtype, read["time"].shape) == (torch.float32, (4,))


CLASSES = torch.tensor([0, 2, 1, 1, 0, 2, 2, 0])
EVALUATIONS = [
    (BinaryEvaluation(), (8,), CLASSES % 2),
    (GroupEvaluation(), (8, 3), CLASSES),
    (ClassEvaluation(), (8, 7), CLASSES),
    (NeighbourEvaluation(), (8, 2), CLASSES),
    (RankingEvaluation(), (8,), CLASSES % 2),
    (NumberEvaluation(), (8,), CLASSES.double()),
]


@pytest.mark.parametrize(("evaluation", "shape", "y"), EVALUATIONS)
def test_evaluations_read_labels_as_objectives_do(evaluation, shape, y):
    outputs = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    batch = {"y": y, "group": CLASSES // 2}
    expected = evaluation(outputs, batch)
    assert evaluation(outputs, batch | {"y": y.unsqueeze(1)}) == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert evaluation(outputs, batch | {"y": y.double()}) == pytest.approx(expected, rel=1e-12, nan_ok=True)
    with pytest.raises(FCCOError, match=r"one tensor|outputs"):
        evaluation({"logits": outputs}, batch)
