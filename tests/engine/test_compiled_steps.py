"""A compiled step is the step itself, as one graph: no breaks, and the same weights, rows and figures.

Steps are traced and differentiated as for any compiler, and then run as they stand: code generation is torch's, and is
tried with the Trainer in tests/training/test_compiled.py.
"""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.functional import normalize
from torch.utils import _pytree as pytree

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    AUC,
    BSGD,
    MOAP,
    MSVR,
    OOA,
    SGD,
    SMD,
    SOAP,
    SONEX,
    SONX,
    SOX,
    AUCMargin,
    AUCParity,
    AveragePrecision,
    BalancedSampling,
    CrossEntropy,
    CVaRGroupDRO,
    CVaRPartialAUC,
    Engine,
    EqualizedOdds,
    GeometricRho,
    GlobalContrastive,
    GroupAUCAtLeast,
    HingePenalty,
    InfoNCE,
    KLGroupDRO,
    KLPartialAUC,
    LogisticLoss,
    MeanAtMost,
    MeanAveragePrecision,
    MultiInstanceAUC,
    PNormPush,
    PredictiveParity,
    ROCFairness,
    TensorDataModule,
    UniformSampling,
    WorstGroupDRO,
)
from fcco_lightning.engine import PlainBackend
from fcco_lightning.errors import NonFiniteError
from fcco_lightning.objectives.two_steps import in_two_steps
from fcco_lightning.records import Inner
from tests.distributed import pool as pools

pool = pools.pool
pytestmark = pytest.mark.filterwarnings("ignore")
N, FEATURES, LABELS = 64, 6, 3


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(FEATURES, 5), nn.Linear(FEATURES, 5)

    def forward(self, x):
        return normalize(self.one(x), dim=1), normalize(self.other(x), dim=1)


class InOneStep(AveragePrecision):
    """An objective of somebody who knows nothing of two steps."""

    def inner(self, outputs, batch):
        measured = super().inner(outputs, batch)
        return Inner(measured.index, 2 * measured.values, owners=measured.owners)


class Counting(Engine):
    """Counts how often the network is evaluated outside of a graph."""

    evaluations = 0

    def evaluate(self, *args, **options):
        self.evaluations += 1
        return super().evaluate(*args, **options)


def perceptron():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def normalized():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def of_labels():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, LABELS))


def groups(kind, *args):
    return lambda: kind(*args, LogisticLoss(), 4)


RATES = [EqualizedOdds, PredictiveParity, lambda: GroupAUCAtLeast(0.9), AUCParity]
CAPS = [lambda: MeanAtMost(LogisticLoss(), 0.1, {"group": 1}), lambda: MeanAtMost(LogisticLoss(), 0.2, {"group": 2})]
# network, objective, algorithm, constraints; whether the network is part of the graph, or how often it is not
STEPS = {
    "AUC": (perceptron, AUC, SGD, [], True),
    "AP": (perceptron, AveragePrecision, lambda: SOX(0.3), [], True),
    "AP, MOAP": (perceptron, AveragePrecision, MOAP, [], True),
    "AP, BSGD": (perceptron, AveragePrecision, BSGD, [], True),
    "AP in one step": (perceptron, InOneStep, SOAP, [], False),
    "AP in one step, caps": (perceptron, InOneStep, lambda: SOX(0.3), CAPS, False),
    "AUC margin": (perceptron, AUCMargin, lambda: SOX(0.3), [], True),
    "mAP": (of_labels, MeanAveragePrecision, lambda: SOX(0.3), [], True),
    "two-way partial AUC": (perceptron, lambda: KLPartialAUC(2.0, 4.0), lambda: SOX(0.3), [], True),
    "partial AUC, own thresholds": (perceptron, lambda: CVaRPartialAUC(0.4, thresholds=0.7), SGD, [], True),
    "two-way partial AUC, own thresholds": (
        perceptron,
        lambda: CVaRPartialAUC(0.5, 0.3, thresholds=0.7),
        lambda: SONX(0.3),
        [],
        False,
    ),
    "high true positive rates": (
        perceptron,
        lambda: CVaRPartialAUC(min_tpr=0.3),
        lambda: ALEXR(jacobian="old"),
        [],
        False,
    ),
    "p-norm push": (perceptron, lambda: PNormPush(2.0), lambda: SOX(0.3), [], True),
    "p-norm push, ALEXR": (perceptron, lambda: PNormPush(2.0), lambda: ALEXR(jacobian="old"), [], True),
    "CVaR of groups": (perceptron, groups(CVaRGroupDRO, 0.5), lambda: SONX(0.3), [], False),
    "CVaR of groups, smoothed": (perceptron, groups(CVaRGroupDRO, 0.5), SONEX, [], False),
    "KL of groups": (perceptron, groups(KLGroupDRO, 0.5), lambda: SOX(0.3), [], True),
    "CVaR of groups, weights q": (perceptron, groups(CVaRGroupDRO, 0.5), lambda: OOA(0.1), [], True),
    "worst group, weights q": (perceptron, groups(WorstGroupDRO), lambda: SMD(0.1), [], True),
    "contrastive, weighted": (Towers, GlobalContrastive, lambda: SOX(0.3), [], False),
    "contrastive": (Towers, GlobalContrastive, lambda: SOX(0.3), [], True),
    "contrastive, learnt": (Towers, lambda: GlobalContrastive(learn="global"), SONEX, [], False),
    "contrastive, of samples": (Towers, lambda: GlobalContrastive(learn="per_sample"), lambda: SOX(0.3), [], True),
    "contrastive, mini-batch, not compiled": (Towers, InfoNCE, SGD, [], False),
    "ROC": (perceptron, AUC, lambda: SONEX(0.1, 0.9), [ROCFairness], 2),  # the second batch shows that it has dropout
    "ROC, nothing drawn": (normalized, AUC, lambda: SONEX(0.1, 0.9), [ROCFairness], True),
    "rates": (perceptron, CrossEntropy, lambda: SOX(0.3), RATES, True),
    "caps": (perceptron, CrossEntropy, lambda: SOX(0.3), CAPS, True),
    "MSVR, not compiled": (perceptron, AveragePrecision, lambda: MSVR(0.3, 0.5), [], False),
    "ALEXR2": (perceptron, AUC, lambda: ALEXR2(K=2), [ROCFairness], 2),
    "ALEXR2, multipliers": (perceptron, CrossEntropy, lambda: ALEXR2(K=2), CAPS, 2),
    "ALEXR2 on halves, not compiled": (perceptron, AUC, lambda: ALEXR2(K=2, jacobian="halves"), [ROCFairness], False),
}
QUICK = [
    "AUC",
    "AP",
    "AP in one step, caps",
    "mAP",
    "CVaR of groups",
    "CVaR of groups, weights q",
    "contrastive",
    "contrastive, of samples",
    "partial AUC, own thresholds",
    "two-way partial AUC, own thresholds",
    "ROC",
    "ROC, nothing drawn",
    "ALEXR2",
    "caps",
]
COMPILED = torch.compile


def whole(function, options):
    """Compiled as one graph, without code generation."""
    looked_at = {"guard_filter_fn": options["guard_filter_fn"]}
    return COMPILED(function, backend="aot_eager", fullgraph=True, options=looked_at)


@pytest.fixture
def compiled(monkeypatch):
    """What was compiled, as one graph each, without code generation."""
    made = []

    def compile_whole(function, **options):
        assert options["options"]["fallback_random"]
        made.append(whole(function, **options))
        return made[-1]

    monkeypatch.setattr(torch, "compile", compile_whole)
    counters.clear()
    torch.compiler.reset()
    return made


@pytest.fixture
def in_float64():
    """Rounding grows where a small batch is normalized."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def data(sampling=None, *, two=False, labels=None):
    draw = torch.Generator().manual_seed(0)
    columns = {
        "x": torch.randn(N, FEATURES, generator=draw),
        "y": (torch.randperm(N * (labels or 1), generator=draw).view(-1, *[labels] * bool(labels)) % 4 == 0).long(),
        "group": torch.randperm(N, generator=draw) % (2 if two else 4),
    }
    module = TensorDataModule({"train": columns, "test": columns}, batches=sampling or BalancedSampling(16))
    module.setup()
    return module


def engine_of(name, *, compiled, sampling=None, processes=None):
    network, objective, algorithm, constraints, _ = STEPS[name]
    torch.manual_seed(0)
    if name.startswith("contrastive") and "weighted" not in name:
        sampling = UniformSampling(16)
    if name == "mAP":
        sampling = UniformSampling(16)
    two = ROCFairness in constraints or constraints is RATES
    module = data(sampling, two=two, labels=LABELS if name == "mAP" else None)
    network, objective, algorithm, constraints = network(), objective(), algorithm(), [make() for make in constraints]
    for constraint in constraints:
        constraint.adapt(module)
    penalty = HingePenalty(1.0) if "ALEXR2" in name and "multipliers" not in name else None
    problem = algorithm.pose(
        objective, constraints, penalty, num_samples=N, sampling=module.sampling(), processes=processes
    )
    engine = Counting(network, problem, algorithm, compiled=compiled)
    optimizer = torch.optim.SGD([*network.parameters(), *objective.parameters()], lr=0.05, momentum=0.9)
    return engine, optimizer, module


def trained(name, *, compiled, epochs=2, sampling=None):
    engine, optimizer, module = engine_of(name, compiled=compiled, sampling=sampling)
    figures = []
    for _ in range(epochs):
        figures += [dict(engine.train_batch(batch, optimizer)) for batch in module.train_dataloader()]
    return figures, engine


def assert_same(found, expected):
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    one, other = (
        tensors((engine.functions.state_dict(), engine.problem.state_dict())) for _, engine in (found, expected)
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)


def tensors(state):
    return [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in STEPS])
def test_one_graph_and_the_same_step(name, compiled):
    expected = trained(name, compiled=False)
    found = trained(name, compiled=True)
    assert_same(found, expected)
    assert not counters["graph_break"]
    assert ("unique_graphs" in counters["stats"]) == ("not compiled" not in name)
    assert found[1].evaluations == (STEPS[name][-1] or len(found[0]))  # the first batch is not compiled


@pytest.mark.parametrize("name", ["AP", "CVaR of groups", "contrastive"])
def test_repeated_samples_and_batches_of_other_sizes(name, compiled):
    """Batches with a sample twice take the uncompiled way, one of another size or without a positive compiles again."""
    runs = []
    for how in (True, False):
        engine, optimizer, module = engine_of(name, compiled=how, sampling=UniformSampling(16))
        batches = list(module.train_dataloader())
        twice = {key: torch.cat([column[:15], column[:1]]) for key, column in batches[0].items()}
        half = {key: column[:8] for key, column in batches[1].items()}
        lacking = {key: column[batches[2]["y"] == 0] for key, column in batches[2].items()}
        given = [*batches, twice, half, lacking, *batches]
        runs.append(([dict(engine.train_batch(batch, optimizer)) for batch in given], engine))
    assert_same(*runs)


@pytest.mark.parametrize(
    "name", ["ROC", "ROC, nothing drawn", "caps", "AUC", "KL of groups", "CVaR of groups, weights q"]
)
def test_batches_that_lack_something_are_carried_out_as_if_uncompiled(name, compiled, in_float64):
    """Buffers and random numbers go on as in steps that are not compiled."""
    runs = []
    for how in (True, False):
        engine, optimizer, module = engine_of(name, compiled=how, sampling=UniformSampling(16))
        batches = list(module.train_dataloader())
        lacking = [{key: c[b["group"] == 1] for key, c in b.items()} for b in batches]
        lacking += [{key: c[b["y"] == 0] for key, c in b.items()} for b in batches]
        given = [*batches, *lacking, *batches]
        runs.append(([dict(engine.train_batch(batch, optimizer)) for batch in given], engine))
    assert_same(*runs)
    usual = runs[0][1].algorithm._compiled
    assert name == "ROC" or (usual._taken >= 2 and usual._unusual >= 4)  # that one has dropout


def test_where_many_batches_are_unusual_they_are_not_taken_for_usual_ones_any_more(compiled):
    engine, optimizer, module = engine_of("caps", compiled=True)
    (batch, *_) = module.train_dataloader()
    lacking = {key: column[batch["group"] != 1] for key, column in batch.items()}
    for one in [batch] * 4 + [lacking] * 8:
        engine.train_batch(one, optimizer)
    assert engine.evaluations == 9
    for one in [lacking, batch]:
        engine.train_batch(one, optimizer)
    assert engine.evaluations == 9  # arranged on the host, and compiled


def test_a_batch_too_large_for_all_pairs_is_arranged_by_its_positions(compiled):
    runs = []
    for how in (True, False):
        engine, optimizer, module = engine_of("AUC", compiled=how)
        (batch, *_) = module.train_dataloader()
        large = {key: column.repeat(20, *[1] * (column.dim() - 1)) for key, column in batch.items()}
        runs.append(([dict(engine.train_batch(one, optimizer)) for one in (batch, batch, large, batch)], engine))
    assert_same(*runs)


def test_hooks_of_parameters_are_called(compiled):
    runs, called = [], []
    for how in (True, False):
        engine, optimizer, module = engine_of("caps", compiled=how)
        batches = list(module.train_dataloader())
        figures = [dict(engine.train_batch(batch, optimizer)) for batch in batches]
        handle = engine.params[0].register_hook(lambda gradient: called.append(gradient) or 2 * gradient)
        figures += [dict(engine.train_batch(batch, optimizer)) for batch in batches]
        handle.remove()
        runs.append((figures, engine))
    assert_same(*runs)
    assert len(called) == 2 * len(batches)


def test_layers_that_are_frozen_between_steps_stay_as_they_are(compiled):
    runs = []
    for how in (True, False):
        engine, optimizer, module = engine_of("caps", compiled=how)
        batches = list(module.train_dataloader())
        figures = [dict(engine.train_batch(batch, optimizer)) for batch in batches]
        engine.functions.network[0].requires_grad_(False)  # without telling the engine
        figures += [dict(engine.train_batch(batch, optimizer)) for batch in batches]
        runs.append((figures, engine))
        assert engine.params[0].grad is None
    assert_same(*runs)


def test_a_backward_pass_of_ones_own_is_used(compiled):
    class Doubling(PlainBackend):
        def backward(self, surrogate, leaf=None):
            return super().backward(2 * surrogate, leaf)

    runs = []
    for how in (True, False):
        engine, optimizer, module = engine_of("caps", compiled=how)
        engine.backend = Doubling()
        runs.append(([dict(engine.train_batch(batch, optimizer)) for batch in module.train_dataloader()], engine))
    assert_same(*runs)


def test_a_batch_with_a_number_that_is_none_changes_nothing(compiled):
    engine, optimizer, module = engine_of("caps", compiled=True)
    batches = list(module.train_dataloader())
    for batch in batches:
        engine.train_batch(batch, optimizer)
    kept = [*engine.params, *tensors(engine.problem.state_dict())]
    before = [tensor.detach().clone() for tensor in kept]
    with pytest.raises(NonFiniteError, match="not finite; no row and no weight was changed"):
        engine.train_batch({**batches[0], "x": torch.full_like(batches[0]["x"], torch.nan)}, optimizer)
    torch.testing.assert_close(kept, before, rtol=0, atol=0, equal_nan=True)


def on_each_process(processes):
    torch.compile = whole
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch asks tensors with graph for their gradient, and hides the warning
        for how in (True, False):
            engine, optimizer, module = engine_of("caps", compiled=how, processes=processes)
            for batch in module.train_dataloader():
                here = slice(0, 9) if processes.rank == 0 else slice(9, None)
                engine.train_batch({name: column[here] for name, column in batch.items()}, optimizer)
            found[how] = tensors([engine.functions.state_dict(), engine.problem.state_dict()])
    torch.compile = COMPILED
    torch.testing.assert_close(found[True], found[False], rtol=1e-5, atol=1e-6, equal_nan=True)
    return "unique_graphs" in counters["stats"]


@pytest.mark.slow
def test_on_two_processes_what_follows_from_all_outputs_is_compiled(pool):
    assert all(pool.values(on_each_process, 2))


def test_with_a_schedule_of_the_penalty_steps_are_not_compiled():
    algorithm = SONEX(lam=0.1)
    for schedule, expected in ((GeometricRho(), False), (None, True)):
        problem = algorithm.pose(AUC(), [ROCFairness()], HingePenalty(1.0, schedule), num_samples=N)
        assert Engine(perceptron(), problem, algorithm, compiled=True).compilable == expected


def test_graphs_of_one_problem_do_not_count_as_those_of_another(compiled):
    """As in a notebook that trains one model after another: torch keeps eight graphs of a piece of code."""
    module = data()
    for width in range(3, 13):
        network, algorithm = nn.Linear(FEATURES, 1), SOX(0.3)
        problem = algorithm.pose(AveragePrecision(), num_samples=N, sampling=module.sampling())
        if width % 2:
            problem = algorithm.pose(KLPartialAUC(float(width)), num_samples=N, sampling=module.sampling())
        engine = Engine(
            nn.Sequential(*[nn.Linear(FEATURES, FEATURES)] * (width // 2), network), problem, algorithm, compiled=True
        )
        optimizer = torch.optim.SGD(engine.params, lr=0.01)
        for batch in list(module.train_dataloader())[:2]:
            engine.train_batch(batch, optimizer)
        assert copy.deepcopy(algorithm)._compiled is None
    assert counters["stats"]["unique_graphs"] == 10


def test_a_subclass_with_an_inner_of_its_own_is_asked_for_that():
    assert in_two_steps(AveragePrecision())
    assert in_two_steps(AUC(), "arrange_direct", "direct")
    assert not in_two_steps(InOneStep())
    assert not in_two_steps(MultiInstanceAUC())
    replaced = AveragePrecision()
    replaced.inner = lambda outputs, batch: None
    assert not in_two_steps(replaced)
