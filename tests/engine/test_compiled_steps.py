"""A compiled step is one graph without breaks, with the weights, rows and figures of the uncompiled step.

Steps are traced and differentiated as for any compiler, in float64, and then run without code generation, which is
torch's and is tested with the Trainer in tests/training/test_compiled.py.
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
    GlobalContrastive,
    GroupAUCAtLeast,
    GroupSampling,
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
from fcco_lightning.engine import Backend
from fcco_lightning.errors import NonFiniteError, StateIndexError
from tests.state import pool as pools

pool = pools.pool
pytestmark = pytest.mark.filterwarnings("ignore")
N, FEATURES, LABELS = 64, 6, 3


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(FEATURES, 5), nn.Linear(FEATURES, 5)

    def forward(self, x):
        return normalize(self.one(x), dim=1), normalize(self.other(x), dim=1)


class Counting(Engine):
    """Counts how often batches are evaluated outside of a graph."""

    evaluations = 0

    def evaluate(self, *args, **options):
        self.evaluations += 1
        return super().evaluate(*args, **options)


def perceptron():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def without_masks():
    """Nothing that draws random numbers."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def of_labels():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, LABELS))


def groups(kind, *args):
    return lambda: kind(*args, LogisticLoss(), 4)


RATES = [EqualizedOdds, PredictiveParity, lambda: GroupAUCAtLeast(0.9), AUCParity]
CAPS = [lambda: MeanAtMost(LogisticLoss(), 0.1, {"group": 1}), lambda: MeanAtMost(LogisticLoss(), 0.2, {"group": 2})]
# network, objective, algorithm, constraints; whether that is compiled
STEPS = {
    "AUC": (perceptron, AUC, SGD, [], True),
    "AP": (perceptron, AveragePrecision, lambda: SOX(0.3), [], True),
    "AP, MOAP": (perceptron, AveragePrecision, MOAP, [], True),
    "AP, BSGD": (perceptron, AveragePrecision, BSGD, [], True),
    "AP, SONEX": (perceptron, AveragePrecision, lambda: SONEX(0.3, 0.2), [], True),
    "AUC margin": (perceptron, AUCMargin, lambda: SOX(0.3), [], True),
    "mAP": (of_labels, MeanAveragePrecision, lambda: SOX(0.3), [], True),
    "bags": (perceptron, MultiInstanceAUC, lambda: SOX(0.3), [], True),
    "two-way partial AUC": (perceptron, lambda: KLPartialAUC(2.0, 4.0), lambda: SOX(0.3), [], True),
    "partial AUC, own thresholds": (perceptron, lambda: CVaRPartialAUC(0.4, thresholds=0.7), SGD, [], True),
    "two-way partial AUC, own thresholds": (
        perceptron,
        lambda: CVaRPartialAUC(0.5, 0.3, thresholds=0.7),
        lambda: SONX(0.3, 0.0),
        [],
        True,
    ),
    "high true positive rates": (
        perceptron,
        lambda: CVaRPartialAUC(min_tpr=0.3),
        lambda: ALEXR(theta=0, jacobian="old"),
        [],
        True,
    ),
    "high true positive rates, not compiled": (
        perceptron,
        lambda: CVaRPartialAUC(min_tpr=0.3),
        lambda: ALEXR(jacobian="old"),
        [],
        False,
    ),
    "p-norm push": (perceptron, lambda: PNormPush(2.0), lambda: SOX(0.3), [], True),
    "p-norm push, ALEXR": (perceptron, lambda: PNormPush(2.0), lambda: ALEXR(jacobian="old"), [], True),
    "CVaR of groups": (perceptron, groups(CVaRGroupDRO, 0.5), lambda: SONX(0.3, 0.0), [], True),
    "CVaR of groups, smoothed, not compiled": (perceptron, groups(CVaRGroupDRO, 0.5), SONEX, [], False),
    "KL of groups": (perceptron, groups(KLGroupDRO, 0.5), lambda: SOX(0.3), [], True),
    "CVaR of groups, weights q": (perceptron, groups(CVaRGroupDRO, 0.5), lambda: OOA(0.1), [], True),
    "worst group, weights q": (perceptron, groups(WorstGroupDRO), lambda: SMD(0.1), [], True),
    "contrastive, weighted": (Towers, GlobalContrastive, lambda: SOX(0.3), [], True),
    "contrastive": (Towers, GlobalContrastive, lambda: SOX(0.3), [], True),
    "contrastive, learnt": (Towers, lambda: GlobalContrastive(learn="global"), lambda: SOX(0.3), [], True),
    "contrastive, learnt, not compiled": (Towers, lambda: GlobalContrastive(learn="global"), SONEX, [], False),
    "contrastive, of samples": (Towers, lambda: GlobalContrastive(learn="per_sample"), lambda: SOX(0.3), [], True),
    "contrastive, mini-batch": (Towers, InfoNCE, SGD, [], True),
    "ROC": (perceptron, AUC, lambda: SONEX(0.1, 0.9), [ROCFairness], True),
    "ROC, without masks": (without_masks, AUC, lambda: SONEX(0.1, 0.9), [ROCFairness], True),
    "rates": (perceptron, CrossEntropy, lambda: SOX(0.3), RATES, True),
    "caps": (perceptron, CrossEntropy, lambda: SOX(0.3), CAPS, True),
    "MSVR, not compiled": (perceptron, AveragePrecision, lambda: MSVR(0.3, 0.5), [], False),
    "ALEXR2": (perceptron, AUC, lambda: ALEXR2(K=2, jacobian="old"), [ROCFairness], True),
    "ALEXR2, multipliers": (perceptron, CrossEntropy, lambda: ALEXR2(K=2, jacobian="old"), CAPS, True),
    "ALEXR2 on halves, not compiled": (perceptron, AUC, lambda: ALEXR2(K=2, jacobian="halves"), [ROCFairness], False),
}
QUICK = [  # the others are slow; tests below compile "AP", "AP, SONEX" and "caps"
    "CVaR of groups, weights q",
    "contrastive, of samples",
    "MSVR, not compiled",
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


def data(sampling=None, *, two=False, labels=None, bags=False):
    draw = torch.Generator().manual_seed(0)
    columns = {
        "x": torch.randn(N, FEATURES, generator=draw, dtype=torch.float64),
        "y": (torch.randperm(N * (labels or 1), generator=draw).view(-1, *[labels] * bool(labels)) % 4 == 0).long(),
        "group": torch.randperm(N, generator=draw) % (2 if two else 4),
    }
    if bags:
        columns |= {"bag": torch.arange(N) // 4, "y": (torch.arange(N) // 4 % 4 == 0).long()}
    module = TensorDataModule({"train": columns, "test": columns}, batches=sampling or BalancedSampling(16))
    module.setup()
    return module


def engine_of(name, *, compiled, sampling=None, processes=None):
    network, objective, algorithm, constraints, _ = STEPS[name]
    torch.manual_seed(0)
    if (name.startswith("contrastive") and "weighted" not in name) or name in ("mAP", "bags"):
        sampling = UniformSampling(16)
    if name.startswith("worst group"):
        sampling = GroupSampling(4, 4)
    two = ROCFairness in constraints or constraints is RATES
    module = data(sampling, two=two, labels=LABELS if name == "mAP" else None, bags=name == "bags")
    network, objective, algorithm, constraints = network(), objective(), algorithm(), [make() for make in constraints]
    for part in (objective, *constraints):
        part.adapt(module)
    penalty = HingePenalty(1.0) if "ALEXR2" in name and "multipliers" not in name else None
    problem = algorithm.pose(
        objective.double(),
        constraints,
        penalty,
        num_samples=N,
        sampling=module.sampling(),
        processes=processes,
        dtype=torch.float64,
    )
    engine = Counting(network.double(), problem, algorithm, compiled=compiled)
    engine.arrivals.left = 0  # some batches are of another size on purpose
    optimizer = torch.optim.SGD([*network.parameters(), *objective.parameters()], lr=0.02, momentum=0.9)
    return engine, optimizer, module


def stepped(engine, optimizer, batches):
    """The figures of every batch."""
    return [dict(engine.train_batch(batch, optimizer)) for batch in batches]


def both(name, act, **options):
    """What comes of an act with and without compilation: figures, and the engine."""
    runs = []
    for how in (True, False):
        engine, optimizer, module = engine_of(name, compiled=how, **options)
        figures = act(engine, optimizer, list(module.train_dataloader()))
        runs.append((figures, engine))
    return runs


def assert_same(found, expected, tolerance=1e-9):
    assert not counters["graph_break"]
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
    one, other = (
        tensors((engine.functions.state_dict(), engine.problem.state_dict())) for _, engine in (found, expected)
    )
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def tensors(state):
    return [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, torch.Tensor)]


def graphs():
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in STEPS])
def test_one_graph_and_the_same_step(name, compiled):
    made = []

    def two_epochs(engine, optimizer, batches):
        found = stepped(engine, optimizer, [batches[-1], *batches])
        made.append(graphs())
        found += stepped(engine, optimizer, batches)
        assert graphs() == made[-1]  # not once more from step to step
        return found

    found, expected = both(name, two_epochs)
    assert_same(found, expected)
    assert (made[0] > 0) == STEPS[name][-1] == ("not compiled" not in name)
    assert found[1].evaluations == 1 or not STEPS[name][-1]  # the first batch is looked at


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "regions"),
    [
        ("AP, SONEX", 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("ROC, without masks", 1), ("ROC", 2)]),
    ],
)
def test_the_second_pass_is_part_of_the_graph_unless_it_has_to_draw_the_same_masks(name, regions, compiled):
    engine, optimizer, module = engine_of(name, compiled=True)
    batches = list(module.train_dataloader())
    engine.train_batch(batches[0], optimizer)  # at w_{-1} = w_0: there is no second pass
    first = graphs()
    stepped(engine, optimizer, batches)
    assert graphs() - first == regions


@pytest.mark.slow
def test_it_becomes_a_graph_of_its_own_where_dropout_begins_later(compiled):
    engine, optimizer, module = engine_of("ROC", compiled=True)
    batches, dropout = list(module.train_dataloader()), engine.functions.network[3]
    dropout.p = 0.0
    stepped(engine, optimizer, batches)
    dropout.p, first = 0.2, graphs()
    stepped(engine, optimizer, batches[:2])
    assert graphs() - first == 3  # with masks as it was; apart from the step, and the step without it


@pytest.mark.slow
def test_a_module_with_two_names_is_trained_on(compiled, monkeypatch):
    """torch.func.functional_call would leave the previous weights in it."""

    class TwoNames(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8))
            self.head = nn.Sequential(self.body, nn.ReLU(), nn.Linear(8, 1))
            self.tied = nn.Linear(8, 1)
            self.tied.weight = self.head[2].weight

        def forward(self, x):
            return self.head(x) + self.tied(self.body(x))

    def act(engine, optimizer, batches):
        stepped(engine, optimizer, batches)
        assert isinstance(engine.functions.network.body[0].weight, nn.Parameter)
        return []

    monkeypatch.setitem(STEPS, "two names", (TwoNames, AveragePrecision, lambda: SONEX(0.3, 0.2), [], True))
    assert_same(*both("two names", act))


@pytest.mark.slow  # of layers that are frozen in turn, one test below is quick
def test_other_layers_of_the_same_number_are_trained(compiled, monkeypatch):
    def network():
        return nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(2)), nn.Linear(FEATURES, 1))

    def act(engine, optimizer, batches):
        for chosen in ((0, 1), (1, 2)):
            for number, layer in enumerate(engine.functions.network):
                layer.requires_grad_(number in chosen)
            engine.follow_parameters()
            stepped(engine, optimizer, batches)
        return []

    monkeypatch.setitem(STEPS, "in turn", (network, AveragePrecision, lambda: SONEX(0.3, 0.2), [], True))
    assert_same(*both("in turn", act))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AP", pytest.param("contrastive", marks=pytest.mark.slow)])
def test_repeated_samples_and_batches_of_other_sizes(name, compiled):
    def act(engine, optimizer, batches):
        twice = {key: torch.cat([column[:15], column[:1]]) for key, column in batches[0].items()}
        half = {key: column[:8] for key, column in batches[1].items()}
        found = stepped(engine, optimizer, [*batches, twice, half, half])
        made = graphs()
        found += stepped(engine, optimizer, [*batches, twice, half])
        assert graphs() == made
        return found

    assert_same(*both(name, act, sampling=UniformSampling(16)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("caps", False),
        *(pytest.param(n, True, marks=pytest.mark.slow) for n in ("caps", "AP", "ROC", "AUC", "KL of groups")),
    ],
)
def test_batches_that_lack_something(name, sizes, compiled):
    """Batches of one size, and of others, for which a graph is made as in the test above."""

    def act(engine, optimizer, batches):
        lacking = [{key: c[b[of] == v] for key, c in b.items()} for of, v in (("group", 1), ("y", 0)) for b in batches]
        of_one_size = [{key: torch.cat([c] * 16)[:16] for key, c in b.items()} for b in lacking]
        return stepped(engine, optimizer, [*batches, *of_one_size, *lacking * sizes, *batches])

    assert_same(*both(name, act, sampling=UniformSampling(16)))


rows_or_constraints = pytest.mark.parametrize("name", ["AP", pytest.param("caps", marks=pytest.mark.slow)])
alone_or_rows = pytest.mark.parametrize(
    "name", ["AUC", *(pytest.param(n, marks=pytest.mark.slow) for n in ("AP", "caps"))]
)


@pytest.mark.slow
@alone_or_rows
def test_hooks_of_parameters_are_called(name, compiled):
    called = []

    def act(engine, optimizer, batches):
        figures = stepped(engine, optimizer, batches)
        handle = engine.params[0].register_hook(lambda gradient: called.append(gradient) or 2 * gradient)
        figures += stepped(engine, optimizer, batches)
        handle.remove()
        assert len(called) % len(batches) == 0
        return figures

    assert_same(*both(name, act))
    assert len(called) == 2 * len(called[: len(called) // 2]) > 0


@pytest.mark.slow
@rows_or_constraints
def test_layers_that_are_frozen_between_steps_stay_as_they_are(name, compiled):
    def act(engine, optimizer, batches):
        figures = stepped(engine, optimizer, batches)
        engine.functions.network[0].requires_grad_(False)  # without telling the engine
        figures += stepped(engine, optimizer, batches)
        assert engine.params[0].grad is None
        return figures

    assert_same(*both(name, act))


@alone_or_rows
def test_a_backward_pass_of_ones_own_is_used(name, compiled):
    class Doubling(Backend):
        def backward(self, value, leaves, gradients=None):
            super().backward(2 * value, leaves, gradients)

    def act(engine, optimizer, batches):
        engine.backend = Doubling()
        return stepped(engine, optimizer, batches)

    assert_same(*both(name, act))


@rows_or_constraints
def test_a_batch_that_is_refused_changes_nothing(name, compiled):
    """For a number that is none, and where there are rows of samples for an index that names none."""

    def act(engine, optimizer, batches):
        stepped(engine, optimizer, batches)
        kept = [*engine.params, *engine.functions.buffers(), *tensors(engine.problem.state_dict())]
        statistics = len(engine.params) + len(list(engine.functions.buffers()))
        before = [tensor.detach().clone() for tensor in kept]
        with pytest.raises(NonFiniteError, match="not finite; no row and no weight was changed") as refused:
            engine.train_batch({**batches[0], "x": torch.full_like(batches[0]["x"], torch.nan)}, optimizer)
        rest = [*range(len(engine.params)), *range(statistics, len(kept))]  # BatchNorm has seen the batch
        for k in rest:
            torch.testing.assert_close(kept[k], before[k], rtol=0, atol=0, equal_nan=True)
        if name != "caps":
            a_wrong_index_changes_nothing(engine, optimizer, batches)
        return [{"text": torch.tensor([*str(refused.value).encode()])}]

    found, expected = both(name, act)
    torch.testing.assert_close(found[0], expected[0])  # in the same words


def a_wrong_index_changes_nothing(engine, optimizer, batches, wrong=N):
    kept = [*engine.params, *tensors(engine.problem.state_dict())]
    before = [tensor.detach().clone() for tensor in kept]
    index = batches[0]["index"].clone()
    index[3] = wrong
    with pytest.raises(StateIndexError, match=f"got index {wrong} at batch position 3"):
        engine.train_batch({**batches[0], "index": index}, optimizer)
    torch.testing.assert_close(kept, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
def test_an_index_that_names_no_row_of_parameters_changes_nothing(compiled):
    def act(engine, optimizer, batches):
        stepped(engine, optimizer, batches)
        a_wrong_index_changes_nothing(engine, optimizer, batches)
        return stepped(engine, optimizer, batches)

    both("contrastive, of samples", act)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [N, -1])
def test_generated_code_refuses_such_an_index_in_the_same_words(wrong):
    """It raises another kind of error, and takes -1 for the last row until that is written."""
    engine, optimizer, module = engine_of("AP", compiled=True)
    batches = list(module.train_dataloader())
    stepped(engine, optimizer, batches)
    a_wrong_index_changes_nothing(engine, optimizer, batches, wrong)


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
    torch.testing.assert_close(found[True], found[False], rtol=1e-9, atol=1e-9, equal_nan=True)
    return "unique_graphs" in counters["stats"]


@pytest.mark.slow
def test_on_two_processes_what_follows_from_all_outputs_is_compiled(pool):
    assert all(pool.values(on_each_process, 2))


@pytest.mark.slow
@torch._dynamo.config.patch(recompile_limit=2)
def test_graphs_of_one_problem_do_not_count_as_those_of_another(compiled):
    """As in a notebook that trains one model after another: torch keeps a few graphs of a piece of code, here two."""
    module = data()
    for width in range(3, 6):
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
        assert copy.deepcopy(engine).compiled is None
    assert graphs() == 3
