"""The AUC of bags, and PDSCA, against the second implementation: step by step, and on average over batches."""

from itertools import combinations, product
from math import comb

import numpy as np
import pytest
import torch
from torch import nn

from fcco_lightning import (
    AUC,
    PDSCA,
    SOAP,
    SOX,
    AttentionPooling,
    AUCMargin,
    Engine,
    LogisticPair,
    MultiInstanceAUC,
    SmoothMaxPooling,
    SquaredHingePair,
    SquaredPair,
)
from fcco_lightning.data import Drawn, UniformBatches
from tests.plans import BagBatches, BalancedBatches, GroupBatches

from .bags import ALPHA, BAG, BAG_LABELS, HIDDEN, POSITIVE, ROW_GAMMA, SAMPLE_LABELS, SIZES, TAU, Bags, Composition, X

CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # float64, the same arithmetic in another order
LOOSE = {"rtol": 1e-6, "atol": 1e-8}  # with weights of samples from a plan, which are float32
GAMMA, LR = 0.4, 0.02
LOSSES = {"logistic": LogisticPair(), "hinge": SquaredHingePair(0.5)}
POOLINGS = {"smooth": SmoothMaxPooling(TAU), "attention": AttentionPooling()}


def chance_of_both(absent):
    """P(a batch holds bag i and one of the other class), with the probability that it holds none of some bags."""
    others = [np.flatnonzero(label != POSITIVE) for label in POSITIVE]
    return np.array([1 - absent([i]) - absent(o) + absent([i, *o]) for i, o in enumerate(others)])


COLUMNS = torch.from_numpy(BAG), torch.from_numpy(BAG_LABELS)
PLANS = {  # of 20 batches; with that probability
    "bags": (lambda: BagBatches(*COLUMNS, 2, 2, 3, num_batches=20), np.where(POSITIVE, 2 / 3, 2 / 4)),
    "groups": (
        lambda: GroupBatches(COLUMNS[0], 2, 3, replacement=True, num_batches=20),
        chance_of_both(lambda bags: comb(7 - len(bags), 2) / comb(7, 2)),
    ),
    "instances": (
        lambda: UniformBatches(23, 4).with_num_batches(20),
        chance_of_both(lambda bags: comb(23 - SIZES[bags].sum(), 4) / comb(23, 4)),
    ),
}
SAMPLE_PLANS = {  # the same for single samples of both classes
    "balanced": (lambda size: BalancedBatches(torch.from_numpy(SAMPLE_LABELS), size), 1.0),
    "uniform": (lambda size: UniformBatches(23, size), 1 - (comb(17, 4) + comb(6, 4)) / comb(23, 4)),
}


class Package:
    """The engine on the same numbers."""

    def __init__(self, objective, algorithm, plan, labels, optimizer, k=1):
        torch.manual_seed(1)
        layers = nn.Sequential(nn.Linear(2, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, k)).double()
        y = torch.from_numpy(labels)
        self.columns = {"index": torch.arange(23), "bag": COLUMNS[0], "y": y, **plan.columns()}
        sampling = {"target": Drawn(self.columns, plan)}
        problem = algorithm.pose(objective.double(), num_samples=23, sampling=sampling, dtype=torch.float64)
        self.engine, self.algorithm, self.y = Engine(layers, problem, algorithm), algorithm, None
        self.optimizer, track = optimizer(self.engine.params), algorithm.track

        def noted(estimate, reading):
            values, index = track(estimate, reading), reading.rows
            (y,) = torch.autograd.grad(values.sum(), reading.g, retain_graph=True)
            weighted = reading.weight[:, None] * y
            if reading.rows is not None:  # of the rows of the batch, in their order, each the sum over its entries
                weighted = torch.zeros(reading.term.num_rows, k).double().index_add(0, index, weighted)[index.unique()]
            self.y = weighted.numpy()
            return values

        algorithm.track = noted

    def gradient(self, batch):
        """G of a training step."""
        self.engine.train_batch(self._batch(batch), self.optimizer)
        return flat(p.grad for p in self.engine.params)

    def _batch(self, index):
        if isinstance(index, dict):
            return {part: self._batch(rows) for part, rows in index.items()}
        return {"x": torch.from_numpy(X)[index], **{name: column[index] for name, column in self.columns.items()}}

    @property
    def rows(self):
        return self.engine.problem.states[0].rows


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy().copy()


def still(params):
    return torch.optim.SGD(params, 0.0)


OPTIMIZERS = {"momentum": lambda p: torch.optim.SGD(p, LR, momentum=0.8), "adam": lambda p: torch.optim.Adam(p, LR)}


def both_bags(algorithm, pooling, loss, plan, optimizer):
    make, chance = PLANS[plan]
    drawn, gamma, fresh = make(), algorithm.estimator.gamma, isinstance(algorithm, SOAP)
    objective = MultiInstanceAUC(POOLINGS[pooling], LOSSES[loss])
    package = Package(objective, algorithm, drawn, BAG_LABELS, optimizer, k=objective.width)
    reference = Bags(flat(package.engine.params), pooling, loss, chance, gamma=gamma, fresh=fresh)
    return package, reference, drawn


def exact_bags(reference, pooling, loss):
    """Grad F, and the rows from all instances of all bags."""
    everything = Bags(reference.w, pooling, loss, np.ones(7), gamma=1.0, fresh=False)
    return everything.gradient(np.arange(23))[0], torch.from_numpy(everything.u)


def both_compositions(algorithm, plan, margin, optimizer, size=4):
    make, chance = SAMPLE_PLANS[plan]
    drawn, objective = make(size), AUCMargin(0.5) if margin else AUC(SquaredPair(1.2))
    package = Package(objective, algorithm, drawn, SAMPLE_LABELS, optimizer)
    weight = package.columns.get("weight", torch.ones(23)).double().numpy()
    options = {"margin": margin, "gamma": algorithm.gamma, "hessian": algorithm.hessian}
    return package, Composition(flat(package.engine.params), weight, chance, **options), drawn


@pytest.mark.filterwarnings("ignore:MultiInstanceAUC compares:UserWarning")  # of bags with unequal chances
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("algorithm", "loss"), [(SOX, "logistic"), (SOX, "hinge"), (SOAP, "hinge")])
def test_bags_step_by_step(algorithm, loss, pooling, plan):
    """Rows, weighted outer gradients and G agree after every batch: also of one class, or of all of a small bag."""
    package, reference, drawn = both_bags(algorithm(GAMMA), pooling, loss, plan, OPTIMIZERS["momentum"])
    start, silent = reference.w, 0
    for index in drawn.batches(0):
        reference.w = flat(package.engine.params)
        said = reference.gradient(index.numpy())
        if said is None:
            silent += 1
            package.engine.train_batch(package._batch(index), package.optimizer)
        else:
            np.testing.assert_allclose(package.gradient(index), said[0], **CLOSE)
            np.testing.assert_allclose(package.y, said[1], **CLOSE)
        np.testing.assert_allclose(package.rows, reference.u, **CLOSE)  # NaN where never visited, in both
    assert (silent > 0) == (plan != "bags")
    assert abs(reference.w - start).max() > 1e-2


@pytest.mark.parametrize("pooling", POOLINGS)
def test_bags_on_average_over_all_batches(pooling):
    """Given exact rows, the mean of G over all batches of two of seven bags, two instances of each, is grad F."""
    package, reference, _ = both_bags(SOX(1.0), pooling, "logistic", "groups", still)
    package.engine.arrivals.left = 0  # fewer instances than the plan draws, with the same chances of bags
    exact, rows = exact_bags(reference, pooling, "logistic")
    inside = [list(combinations(np.flatnonzero(i == BAG), min(2, size))) for i, size in enumerate(SIZES)]
    total = 0.0
    for one, other in combinations(range(7), 2):
        if POSITIVE[one] != POSITIVE[other]:  # the others say nothing
            drawn = list(product(inside[one], inside[other]))
            for pair in drawn:
                package.rows.copy_(rows)
                total = total + package.gradient(torch.tensor(sum(pair, ()))) / len(drawn) / comb(7, 2)
    np.testing.assert_allclose(total, exact, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["bags", "groups"])
def test_bags_on_average_over_the_batches_of_a_plan(plan):
    """The mean of G over 12,000 batches is within 4 standard errors of grad F; the epochs are independent."""
    package, reference, drawn = both_bags(SOX(1.0), "smooth", "logistic", plan, still)
    exact, rows = exact_bags(reference, "smooth", "logistic")
    epochs = np.zeros((600, len(exact)))
    for epoch in range(len(epochs)):
        for index in drawn.batches(epoch):
            package.rows.copy_(rows)
            package.engine.train_batch(package._batch(index), package.optimizer)
            if package.engine.params[0].grad is not None:  # both classes
                epochs[epoch] += flat(p.grad for p in package.engine.params) / 20
    error = epochs.std(0, ddof=1) / np.sqrt(len(epochs))
    assert (abs(epochs.mean(0) - exact) < 4 * error + 1e-12).all()


@pytest.mark.parametrize("plan", SAMPLE_PLANS)
@pytest.mark.parametrize(("optimizer", "hessian"), [("momentum", True), ("adam", True), ("adam", False)])
@pytest.mark.parametrize("margin", [True, False])
def test_composition_step_by_step(margin, hessian, optimizer, plan):
    """The point u, the row of F there and G agree after every batch, also of one class."""
    algorithm = PDSCA(ALPHA, GAMMA, hessian=hessian, row_gamma=ROW_GAMMA)
    package, reference, drawn = both_compositions(algorithm, plan, margin, OPTIMIZERS[optimizer])
    start, silent = reference.w, 0
    for index in (index for epoch in range(4) for index in drawn.batches(epoch)):
        reference.w = flat(package.engine.params)
        g = reference.gradient(index.numpy())
        np.testing.assert_allclose(package.gradient(index), g, **CLOSE)
        np.testing.assert_allclose(flat(algorithm.state_dict()["u"]), reference.u, **CLOSE)
        if margin and reference.row is not None:
            np.testing.assert_allclose(package.rows[0], reference.row, **CLOSE)
        silent += not g.any()
    assert (silent > 0) == (plan == "uniform")
    assert abs(reference.w - start).max() > 1e-2


def test_composition_on_average_over_all_batches():
    """Given the exact u, G is right on average over the batches for F, and over those for L, which are another part."""
    package, reference, _ = both_compositions(PDSCA(ALPHA, 1e-15, part="dual"), "balanced", False, still, size=2)
    weight, everything = reference.weight, np.arange(23)
    pairs = torch.tensor(list(product(np.flatnonzero(SAMPLE_LABELS), np.flatnonzero(SAMPLE_LABELS == 0))))
    reference.weight = np.ones(23)
    u = reference.w - ALPHA * reference.inner(reference.w, everything)
    y, y_of_pair = reference.outer(u, everything), reference.outer(u, pairs[5].numpy())
    through_all = reference.through(y_of_pair, everything)
    reference.weight = weight
    sizes = [p.numel() for p in package.engine.params]

    def average(**parts):
        total = 0.0
        for pair in pairs:
            cut = torch.from_numpy(u).split(sizes)
            package.algorithm._u = [one.view_as(p) for one, p in zip(cut, package.engine.params, strict=True)]
            batch = {"target": parts.get("target", pair), "dual": parts.get("dual", pair)}
            total = total + package.gradient(batch) / len(pairs)
        return total

    np.testing.assert_allclose(average(target=pairs[5]), through_all, **LOOSE)
    np.testing.assert_allclose(average(dual=pairs[7]), reference.through(y, pairs[7].numpy()), **LOOSE)
