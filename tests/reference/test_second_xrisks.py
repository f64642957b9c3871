"""X-risks in the package against their second implementation: every step, and the mean over all batches."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fcco_lightning import (
    NDCG,
    SGD,
    SONX,
    SOX,
    AUCMargin,
    AveragePrecision,
    CoxPartialLikelihood,
    CVaRPartialAUC,
    Engine,
    KLPartialAUC,
    ListNet,
    MeanAveragePrecision,
    NeighbourhoodComponents,
    Objective,
    PNormPush,
    RecallAtK,
)
from fcco_lightning.algorithms import Algorithm
from fcco_lightning.data.batches import BatchPlan, Drawn, UniformBatches
from tests.plans import BalancedBatches, EventBatches, GroupBatches, LabelBatches, QueryBatches

from . import second_xrisks as second
from .probabilities import Uniform
from .second_thresholds import Margin, PartialAUC
from .second_xrisks import Design, Pairwise, SecondSONX

STEPS, LR = 20, 0.002
CLOSE = {"rtol": 3e-6, "atol": 3e-7}  # weights of samples are float32


class Table:
    """n samples with labels, groups, times and lists; ``n = 30`` to train on, fewer to enumerate."""

    def __init__(self, n: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.x = n, rng.normal(size=(n, 3))
        self.y = (np.arange(n) % 3 == 0).astype(np.int64)  # 2 or 3 of 6 or 7, 10 of 30
        self.group = np.arange(n) // 2 % 3
        self.event = (np.arange(n) % 2 == 0).astype(np.int64)
        self.time = rng.integers(1, 3 + n // 5, n).astype(float)  # ties
        self.query = np.arange(n) * 2 // n if n < 30 else np.arange(n) // 6
        self.grade = rng.integers(0, 3, n) * (rng.random(n) < 0.7)
        self.grade[np.unique(self.query, return_index=True)[1]] = 2
        self.grade[np.unique(self.query, return_index=True)[1] + 1] = 0

    def columns(self, label: str = "y") -> dict[str, Tensor]:
        """As the package has them, with ``label`` as the label."""
        columns = {name: torch.from_numpy(getattr(self, name)) for name in ("x", "event", "time", "query")}
        return columns | {"y": torch.from_numpy(getattr(self, label)), "index": torch.arange(self.n)}


class Way(NamedTuple):
    """A plan of the package and what the second implementation says of it."""

    plan: BatchPlan
    design: Design


def uniform(t: Table) -> Way:
    size = 4 if t.n < 30 else 10
    return Way(UniformBatches(t.n, size), second.one_stratum(t.n, size))


def balanced(t: Table) -> Way:
    size = 4 if t.n < 30 else 10
    y = torch.from_numpy(t.y)
    return Way(BalancedBatches(y, size), second.by_stratum(t.y, [size // 2, size // 2]))


def repeats(t: Table) -> Way:
    """More positives than there are, some of them twice."""
    size = 6 if t.n < 30 else 18
    plan = BalancedBatches(torch.from_numpy(t.y), size, positive_fraction=2 / 3, allow_repeats=True)
    return Way(plan, second.by_stratum(t.y, [size // 3, 2 * size // 3]))


def events(t: Table) -> Way:
    event = torch.from_numpy(t.event)
    return Way(EventBatches(event, 2, 3), second.by_stratum(t.event, [3, 2]))


def groups(t: Table, *, replaced: bool = False) -> Way:
    plan = GroupBatches(torch.from_numpy(t.group), 2, 2, replacement=replaced, prevalence="data")
    return Way(plan, second.some_strata(t.group, 2, 2, replaced=replaced))


def redrawn(t: Table) -> Way:
    return groups(t, replaced=True)


def classes_redrawn(t: Table) -> Way:
    plan = GroupBatches(torch.from_numpy(t.y), 2, 2, replacement=True, prevalence="data")
    return Way(plan, second.by_stratum(t.y, [2, 2], replaced=True))


def copies(t: Table) -> Way:
    way = uniform(t)
    design = second.one_stratum(t.n, int(way.design.drawn[0]), copies=2)
    return Way(way.plan.repeated(2), design)


def queries(t: Table) -> Way:
    """With two relevant items and two others of some lists, where some lists have one only."""
    relevant = t.grade > 0
    stratum = np.unique(2 * t.query + relevant, return_inverse=True)[1]
    block = np.array([t.query[stratum == s][0] for s in range(stratum.max() + 1)])
    plan = QueryBatches(torch.from_numpy(t.query), torch.from_numpy(relevant), 1 + (t.n == 30), 2, 2)
    return Way(plan, Design(stratum, np.full(len(block), 2), block, 1 + (t.n == 30)))


class Case(NamedTuple):
    objective: Callable[[], Objective]
    risk: Callable[[Table], Pairwise]
    ways: tuple[Callable[[Table], Way], ...]
    outputs: int = 1
    label: str = "y"


ANY = (uniform, balanced, repeats, groups, redrawn, classes_redrawn, copies)
CLASSES = (uniform, balanced, repeats)
CASES = {
    "average precision": Case(lambda: AveragePrecision(sigmoid=False), lambda t: second.average_precision(t.y), ANY),
    "recall": Case(lambda: RecallAtK(2, sigmoid=False), lambda t: second.recall_at(2, t.y), ANY),
    "KL partial AUC": Case(
        lambda: KLPartialAUC(0.7, sigmoid=False), lambda t: second.kl_partial_auc(0.7, t.y), CLASSES
    ),
    "push": Case(lambda: PNormPush(1.5), lambda t: second.p_norm_push(1.5, t.y), CLASSES),
    "Cox": Case(CoxPartialLikelihood, lambda t: second.cox(t.time, t.event), (uniform, events)),
    "ListNet": Case(ListNet, lambda t: second.list_net(t.query, t.grade), (uniform, queries), 1, "grade"),
    "NDCG": Case(NDCG, lambda t: second.ndcg(t.query, t.grade), (uniform, queries), 1, "grade"),
    "neighbours": Case(
        NeighbourhoodComponents, lambda t: second.neighbours(t.y), (uniform, balanced, repeats, classes_redrawn), 2
    ),
}
PAIRS = [pytest.param(case, way, id=f"{name}-{way.__name__}") for name, case in CASES.items() for way in case.ways]
ONCE = [pair for pair in PAIRS if pair.values[1] is not repeats]  # there rows weigh by their copies, right on average


class Twin:
    """An objective of the package on a linear network, its engine and the rows."""

    def __init__(
        self,
        objective: Objective,
        columns: dict[str, Tensor],
        plan: BatchPlan,
        algorithm: Algorithm,
        *,
        outputs: int = 1,
        micro_batch: int | None = None,
    ) -> None:
        self.columns = columns | plan.columns()
        self.network = nn.Sequential(nn.Linear(3, outputs, bias=False).double())
        self.start = np.random.default_rng(1).normal(size=(outputs, 3))
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(self.start))
        drawn = {"target": Drawn({k: c for k, c in self.columns.items() if k != "x"}, plan)}
        n = len(columns["index"])
        self.problem = algorithm.pose(objective, num_samples=n, sampling=drawn, dtype=torch.float64)
        self.engine = Engine(self.network, self.problem, algorithm, micro_batch=micro_batch)

    @property
    def weight(self) -> Tensor:
        return self.network[0].weight

    @property
    def rows(self) -> Tensor:
        return self.problem.states[0].rows

    def step(self, batch: np.ndarray, lr: float) -> np.ndarray:
        index = torch.as_tensor(batch)
        optimizer = torch.optim.SGD([self.weight, *self.problem.objective.parameters()], lr=lr)
        self.engine.train_batch({name: column[index] for name, column in self.columns.items()}, optimizer)
        return self.weight.grad.numpy().copy()


def steps(plan: BatchPlan) -> list[np.ndarray]:
    """The first batches of a plan, from as many epochs as it takes."""
    return [b.numpy() for epoch in range(STEPS) for b in plan.batches(epoch)][:STEPS]


def twin(case: Case, table: Table, plan: BatchPlan, algorithm: Algorithm, micro_batch: int | None = None) -> Twin:
    columns = table.columns(case.label)
    return Twin(case.objective(), columns, plan, algorithm, outputs=case.outputs, micro_batch=micro_batch)


def follow(one: Twin, two: SecondSONX, plan: BatchPlan, count: int = STEPS) -> None:
    """Gradients, rows and weights agree after every batch; the weights of both may be of different shapes."""
    for t, batch in enumerate(steps(plan)[:count]):
        found, expected = one.step(batch, LR), two.step(batch)
        np.testing.assert_allclose(found.ravel(), expected.ravel(), **CLOSE, err_msg=f"gradient of step {t}")
        np.testing.assert_allclose(one.rows.numpy(), two.rows, **CLOSE, err_msg=f"rows after step {t}")
    np.testing.assert_allclose(one.weight.detach().numpy().ravel(), two.w.ravel(), **CLOSE)
    assert np.abs(two.w.ravel() - one.start.ravel()).max() > 1e-4
    assert np.isfinite(two.rows).any()


@pytest.mark.parametrize(("case", "way"), ONCE)
def test_every_step(case, way):
    table = Table(30)
    drawn = way(table)
    one = twin(case, table, drawn.plan, SOX(0.4))
    follow(one, SecondSONX(case.risk(table), drawn.design, table.x, one.start, gamma=0.4, lr=LR), drawn.plan)


@pytest.mark.parametrize(("case", "way"), ONCE)
def test_every_step_with_a_correction_in_micro_batches(case, way):
    """A few, with the correction of the theory, with which rows of ratios diverge in the end."""
    table = Table(30)
    drawn = way(table)
    one = twin(case, table, drawn.plan, SONX(0.4, "theory"), micro_batch=4)
    two = SecondSONX(case.risk(table), drawn.design, table.x, one.start, gamma=0.4, lr=LR, ahead="theory")
    follow(one, two, drawn.plan, 6)


@pytest.mark.parametrize(("case", "way"), PAIRS)
def test_the_mean_over_all_batches(case, way):
    """With exact rows: inner values of the batches that have them, and the gradient of all, are exact on average."""
    table = Table(7)
    drawn = way(table)
    one = twin(case, table, drawn.plan, SOX(1.0))
    risk = case.risk(table)
    rows, by_outputs = risk.exact(table.x @ one.start.T)
    values, visits, gradient = np.zeros_like(rows), np.zeros(len(rows)), np.zeros_like(one.start)
    for batch, chance in drawn.design.batches():
        one.rows.copy_(torch.from_numpy(rows))
        gradient += chance * one.step(batch, 0.0)
        present = np.isin(risk.sample, batch)
        values[present] += chance * one.rows.numpy()[present]
        visits += chance * present
    np.testing.assert_allclose(gradient, np.tensordot(by_outputs, table.x, ((0,), (0,))), **CLOSE)
    if not risk.among or way is not uniform:  # else a batch can hold i and be without the other class
        np.testing.assert_allclose(values / visits[:, None], rows, **CLOSE)


THRESHOLDS = {"high scores": (0.4, 0.0), "low positives": (1.0, 0.4), "both": (0.4, 0.4)}


@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("way", [uniform, balanced])
def test_thresholds_of_partial_auc(name, way):
    """Those of every positive and the common one, in batches that may lack a class."""
    (fpr, tpr), table = THRESHOLDS[name], Table(30)
    drawn = way(table)
    risk = second.kl_partial_auc(1.0, table.y)
    chance = float(risk.chance(drawn.design)[0])
    both = 1.0 if way is balanced else Uniform(30, 10).both(*(np.flatnonzero(table.y == label) for label in (0, 1)))
    objective = CVaRPartialAUC(fpr, tpr, threshold=1.5, thresholds=0.8, thresholds_lr=0.3, sigmoid=False)
    one = Twin(objective, table.columns(), drawn.plan, SOX(0.4) if tpr else SGD())
    two = PartialAUC(table.x, table.y, one.start[0], (fpr, tpr), (both, chance), own_lr=0.3)
    two.c, two.s = 1.5, two.s + 0.8 * (fpr < 1)
    for t, batch in enumerate(steps(drawn.plan)):
        one.step(batch, 0.05)
        two.step(batch, 0.4, 0.05)
        np.testing.assert_allclose(one.weight.detach().numpy()[0], two.w, **CLOSE, err_msg=f"weights after step {t}")
        if fpr < 1:
            own = one.problem.row_parameters.state.rows[table.y == 1, 0].nan_to_num(0.8).numpy()
            np.testing.assert_allclose(own, two.s, **CLOSE, err_msg=f"thresholds after step {t}")
        if tpr:
            np.testing.assert_allclose(one.rows[:, 0].numpy(), two.u, **CLOSE, err_msg=f"rows after step {t}")
            assert one.problem.objective.threshold.item() == pytest.approx(two.c, rel=1e-6)


@pytest.mark.parametrize("way", [balanced, classes_redrawn])
def test_the_margin_loss(way):
    table = Table(30)
    drawn = way(table)
    one = Twin(AUCMargin(0.7), table.columns(), drawn.plan, SOX(0.4))
    two = Margin(table.x, table.y, one.start[0], 0.7)
    for t, batch in enumerate(steps(drawn.plan)):
        one.step(batch, 0.05)
        two.step(batch, 0.4, 0.05)
        np.testing.assert_allclose(one.weight.detach().numpy()[0], two.w, **CLOSE, err_msg=f"weights after step {t}")
        np.testing.assert_allclose(one.rows[0].numpy(), two.u, **CLOSE, err_msg=f"rows after step {t}")
    objective = one.problem.objective
    np.testing.assert_allclose([objective.b.item(), objective.a.item()], two.centre, **CLOSE)


class Labels(NamedTuple):
    """Three labels of some samples: one row for every label that is known of a sample."""

    x: np.ndarray
    task: np.ndarray
    y: np.ndarray

    @property
    def apart(self) -> np.ndarray:
        """Features of all labels' scores together: x in the places of the row's own label."""
        return (np.eye(3)[self.task][:, :, None] * self.x[:, None, :]).reshape(len(self.x), 9)


def labels(n: int, *, seed: int = 0) -> Labels:
    rng = np.random.default_rng(seed)
    sample, task = np.repeat(np.arange(n), 3), np.tile(np.arange(3), n)
    y = ((sample + task) % (2 + task) == 0).astype(np.int64)
    known = np.arange(3 * n) % 7 != 5
    return Labels(rng.normal(size=(n, 3))[sample][known], task[known], y[known])


def test_mean_average_precision_of_a_few_labels_at_a_time():
    table = labels(30)
    task, y = torch.from_numpy(table.task), torch.from_numpy(table.y)
    plan = LabelBatches(task, y, 2, 3, 4)
    stratum = 2 * table.task + table.y
    design = Design(stratum, np.tile([4, 3], 3), np.repeat(np.arange(3), 2), 2)
    risk = second.mean_average_precision(table.task, table.y)
    columns = {"x": torch.from_numpy(table.x), "task": task, "y": y, "index": torch.arange(len(y))}
    one = Twin(MeanAveragePrecision(sigmoid=False), columns, plan, SOX(0.4), outputs=3)
    two = SecondSONX(risk, design, table.apart, one.start.reshape(1, 9), gamma=0.4, lr=LR)
    follow(one, two, plan)


def test_mean_average_precision_of_all_labels_at_once():
    """Some of which are unknown; each label is a problem of its own."""
    rng, n = np.random.default_rng(2), 30
    x, y = rng.normal(size=(n, 3)), rng.integers(0, 2, (n, 3))
    y[np.arange(n) % 4 == 1, 1] = -1
    columns = {"x": torch.from_numpy(x), "y": torch.from_numpy(y), "index": torch.arange(n)}
    way = uniform(Table(n))
    one = Twin(MeanAveragePrecision(missing=-1, sigmoid=False), columns, way.plan, SOX(0.4), outputs=3)
    two = []
    for t in range(3):
        risk = second.average_precision(y[:, t])
        part = (y[:, t] >= 0).sum() / n
        table = risk.table * (y[:, t] >= 0)[None, :, None] / part
        risk = replace(risk, own=risk.own / part, table=table, weight=risk.weight / 3)
        two.append(SecondSONX(risk, way.design, x, one.start[t : t + 1], gamma=0.4, lr=LR))
    for t, batch in enumerate(steps(way.plan)):
        found = one.step(batch, LR)
        expected = np.concatenate([each.step(batch) for each in two])
        np.testing.assert_allclose(found, expected, **CLOSE, err_msg=f"gradient of step {t}")
    rows = np.full((n, 3, 2), np.nan)
    for t, each in enumerate(two):
        rows[y[:, t] == 1, t] = each.rows
    np.testing.assert_allclose(one.rows.numpy(), rows[y == 1], **CLOSE)
