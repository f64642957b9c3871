"""Two algorithms of the papers, written with the engine's verbs only, reach the optima that scipy finds."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch import nn

from fcco_lightning import Engine, Objective, WorstGroupDRO
from fcco_lightning.algorithms import Algorithm
from fcco_lightning.ambiguity import CappedSimplex
from fcco_lightning.engine import Surrogate
from fcco_lightning.errors import NonFiniteError
from fcco_lightning.estimators import fill
from fcco_lightning.objectives import Quantity
from fcco_lightning.outer import WorstCase
from fcco_lightning.records import Inner
from fcco_lightning.steps import PreviousWeights, ProximalDescent

N = 12
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 2))
Y = X @ np.array([1.0, -0.5]) + 0.5 * RANDOM.normal(size=N)


def losses(w):
    return (X @ w - Y) ** 2 / 2


def linear_model():
    network = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(network.weight)
    return network


def samples(index):
    index = torch.as_tensor(index)
    return {"x": torch.from_numpy(X)[index], "y": torch.from_numpy(Y)[index], "index": index, "group": index // 2}


def weights_of(network):
    return network.weight.detach().numpy()[0]


# ----------------------------------------------------------------------------------------------------------- DRAGO

BLOCK = 3
BLOCKS = N // BLOCK
NU, MU = 1.0, 1.0


class WorstSamples(Objective):
    """``max_q sum_i q_i l_i(w)``."""

    outer, dtype = WorstCase(CappedSimplex(1 / N)), torch.float64

    def inner(self, outputs, batch):
        return Inner(batch["index"], ((outputs[:, 0] - batch["y"]).square() / 2).unsqueeze(1))


class DRAGO(Algorithm):
    r"""``min_w max_q <q, l(w)> - nu KL(q, 1/n) + mu/2 |w|^2`` by blocks (DRAGO paper, Alg. 1; errata DRAGO-6 to 10).

    Rows are l-hat.  A batch has the part ``K``, the block whose tables are renewed, and the blocks ``J`` and ``I``,
    drawn at random, that correct the dual and the next primal step.  The tables of gradients times q need one vector a
    block.  Before w moves, the blocks pass once to fill the tables.
    """

    def __init__(self, alpha):
        self.alpha, self.filled, self.t = alpha, 0, 0

    def prepare(self, problem):
        problem.all_terms[0].remember()

    def start(self, engine):
        (w,) = engine.params
        self.q = w.new_full((N, 1), 1 / N)
        self.table = w.new_zeros(BLOCKS, *w.shape)  # sum over a block of q_i grad l_i
        self.path = [w.detach().clone()] * (BLOCKS + 1)

    def iteration(self, engine, batch):
        seen = engine.evaluate({"K": batch["K"], "J": batch["J"]})
        (renewed,) = engine.inner(seen.part("K")).readings
        block = int(renewed.index[0]) // BLOCK
        if self.filled < BLOCKS:
            self.fill(engine, renewed, block)
            return
        (term,) = engine.problem.all_terms
        (drawn,) = engine.inner(seen.part("J")).readings
        beta, r = self.growth(self.t), 1 / (1 + self.alpha)
        old, _ = engine.all_rows(term)
        ahead = old.index_copy(0, renewed.index, renewed.values.detach())
        if self.t > 1:
            ahead = ahead.index_add(0, drawn.index, r * BLOCKS * (drawn.values.detach() - old[drawn.index]))
        q = ((ahead + beta * NU * (N * self.q).log()) / (NU * (1 + beta))).softmax(0)
        kept, new = self.table[block].clone(), self.gradient(engine, renewed, q)
        (ready,) = engine.measure({"I": batch["I"]}).readings
        other = int(ready.index[0]) // BLOCK
        now = self.gradient(engine, ready, q)
        engine.propose(renewed, renewed.values.detach())
        engine.commit()
        self.q, self.table[block] = q, new
        correction = r * BLOCKS * (now - (kept if other == block else self.table[other]))
        self.move(engine, self.table.sum(0) + correction)

    def fill(self, engine, renewed, block):
        """One block of the tables at w_0; after the last one the first step."""
        new = self.gradient(engine, renewed, self.q)
        engine.propose(renewed, renewed.values.detach())
        engine.commit()
        self.table[block], self.filled = new, self.filled + 1
        if self.filled == BLOCKS:
            self.move(engine, self.table.sum(0))

    def gradient(self, engine, reading, q):
        """Sum over the rows of a reading of ``q_i grad l_i``."""
        surrogate = Surrogate(None)
        surrogate.add(reading, q[reading.index] / reading.weight)
        return engine.gradients(surrogate, engine.params)[0]

    def growth(self, t):
        return (1 - (1 + self.alpha) ** (1 - t)) / self.alpha

    def move(self, engine, v):
        self.t += 1
        beta = self.growth(self.t)
        c = min(1 / (16 * self.alpha * (1 + self.alpha) * (BLOCKS - 1) ** 2), beta / (BLOCKS - 1))
        w, window = self.path[-1], sum(self.path[-BLOCKS:-1])
        new = ((beta - c * (BLOCKS - 1)) * w + c * window - v / MU) / (1 + beta)
        engine.update([w - new])  # the user's optimizer is plain gradient descent with step 1
        self.path = [*self.path[1:], new]


def train_drago(steps, spoil=None):
    algorithm, network = DRAGO(0.1), linear_model()
    problem = algorithm.pose(WorstSamples(), num_samples=N, dtype=torch.float64)
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.SGD(engine.params, lr=1.0)
    draw = np.random.default_rng(1)
    for t in range(steps):
        blocks = {"K": t % BLOCKS, "J": draw.integers(BLOCKS), "I": draw.integers(BLOCKS)}
        batch = {name: samples(range(k * BLOCK, (k + 1) * BLOCK)) for name, k in blocks.items()}
        if t == spoil:
            bad = {**batch, "I": {**batch["I"], "x": torch.full_like(batch["I"]["x"], torch.nan)}}
            before = problem.states[0].rows.clone(), network.weight.clone(), algorithm.q, algorithm.table.clone()
            with pytest.raises(NonFiniteError):
                engine.train_batch(bad, optimizer)
            after = problem.states[0].rows, network.weight, algorithm.q, algorithm.table
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        engine.train_batch(batch, optimizer)
    return network, algorithm, problem


def test_drago_reaches_the_saddle_point():
    best = minimize(lambda w: NU * (logsumexp(losses(w) / NU) - np.log(N)) + MU / 2 * w @ w, np.zeros(2), tol=1e-12).x
    network, algorithm, problem = train_drago(600)
    assert np.abs(best).max() > 0.1
    np.testing.assert_allclose(weights_of(network), best, atol=1e-6)
    np.testing.assert_allclose(
        algorithm.q.numpy()[:, 0], np.exp(losses(best) / NU - logsumexp(losses(best) / NU)), atol=1e-6
    )
    np.testing.assert_allclose(problem.states[0].rows.numpy()[:, 0], losses(best), atol=1e-6)
    alone, *_ = train_drago(40)
    spoilt, *_ = train_drago(40, spoil=20)
    assert torch.equal(alone.weight, spoilt.weight)


# --------------------------------------------------------------------------------------------------------- PG-SVRG

GROUPS, THETA = N // 2, 0.5


class Squares(Quantity):
    """Half the squared error."""

    def __call__(self, outputs, batch):
        return (outputs[:, 0] - batch["y"]).square() / 2


class PGSVRG(Algorithm):
    r"""``min_w max_q sum_i q_i R_i(w) - theta KL(q, 1/n)`` around a centre, with snapshots.

    Source: PG-SMD paper, Alg. 3 and 4.

    Epochs alternate: one passes through the data and sums up the gradient at the snapshot, the next makes inner steps
    with ``g = g_full - g_B(snapshot) + g_B(now)``, of w around the centre and of q.  After ``epochs`` of the latter the
    last iterate becomes the centre, which is the user's update of w.
    """

    def __init__(self, eta, eta_dual, gamma, epochs):
        self.eta, self.eta_dual, self.gamma, self.epochs = eta, eta_dual, gamma, epochs

    def posed(self, objective, constraints):
        return objective.max_form(), ()

    def prepare(self, problem):
        problem.all_terms[0].remember()

    def start(self, engine):
        self.descent = ProximalDescent(engine.params, self.eta, self.gamma)
        self.descent.centre = [p.detach().clone() for p in engine.params]
        self.snapshot = PreviousWeights()
        self.begin(engine)
        self.done, self.passing = 0, True

    def begin(self, engine):
        """An empty sum, at the present weights."""
        self.snapshot.remember(engine.params)
        self.full = [torch.zeros_like(p) for p in engine.params]
        self.risks = self.full[0].new_zeros(GROUPS)

    def iteration(self, engine, batch):
        (term,) = engine.problem.all_terms
        rows, seen = engine.all_rows(term)
        q = fill(rows, seen, torch.full_like(rows, 1 / GROUPS))
        if self.passing:
            self.add(engine, batch, q)
        else:
            self.step(engine, batch, q)
        if engine.last_batch:
            self.turn(engine)

    def add(self, engine, batch, q):
        """Part of the gradients in w and q at the snapshot, where the parameters are."""
        (risks,) = engine.measure(batch).readings
        gradient = engine.gradients(self.weighted(risks, q, 1 / risks.inverse), engine.params)
        engine.commit()
        self.full = [a + g for a, g in zip(self.full, gradient, strict=True)]
        self.risks[risks.index] = risks.values.detach()[:, 0]
        self.q = q

    def step(self, engine, batch, q):
        """An inner step; the estimates of a batch are unbiased, and vary less the nearer the snapshot is."""
        before = [w.detach().requires_grad_() for w in self.snapshot.tensors]
        (risks,) = engine.inner(engine.evaluate(batch, before, graph=True)).readings
        difference = (risks.values - risks.previous).detach()
        h = self.risks.unsqueeze(1).index_add(0, risks.index, risks.inverse * difference)
        engine.descend(self.weighted(risks, q))
        at_snapshot = engine.gradients(self.weighted(risks.at_previous(), self.q), before)
        engine.propose_all(risks.term, ((h + q.log() / self.eta_dual) / (THETA + 1 / self.eta_dual)).softmax(0))
        engine.commit(self.descent)
        together = zip(engine.params, at_snapshot, self.full, strict=True)
        engine.replace_gradient([p.grad - old + full for p, old, full in together])
        engine.inner_step(self.descent)

    def weighted(self, risks, q, share=1.0):
        """Surrogate of ``share * sum_i q_i R_i / p_i``."""
        surrogate = Surrogate(None)
        surrogate.add(risks, share * GROUPS * q[risks.index])
        return surrogate

    def turn(self, engine):
        """From passing to stepping and back; the centre follows at the end of a stage."""
        self.passing = not self.passing
        if not self.passing:
            return
        self.done += 1
        if self.done % self.epochs == 0:
            iterate = [p.detach().clone() for p in engine.params]
            for p, c in zip(engine.params, self.descent.centre, strict=True):
                p.data.copy_(c)
            engine.update([c - z for c, z in zip(self.descent.centre, iterate, strict=True)])
            self.descent.centre = [p.detach().clone() for p in engine.params]
        self.begin(engine)


class GroupPlan:
    """Two of the groups, with all of their samples."""

    strata = None

    def __init__(self, groups):
        self.groups = groups

    def absence(self, counts, share=1.0):
        missing = int(counts) // 2  # groups have two samples each
        return float(np.prod([(GROUPS - missing - i) / (GROUPS - i) for i in range(self.groups)]))


class Drawn:
    columns = {"group": torch.arange(N) // 2}  # noqa: RUF012
    plan = GroupPlan(2)


def test_pg_svrg_reaches_the_saddle_point():
    def value(w):
        risks = losses(w).reshape(GROUPS, 2).mean(1)
        return THETA * (logsumexp(risks / THETA) - np.log(GROUPS))

    best = minimize(value, np.zeros(2), tol=1e-12).x
    algorithm, network = PGSVRG(eta=0.2, eta_dual=0.5, gamma=2.0, epochs=3), linear_model()
    objective = WorstGroupDRO(Squares(), GROUPS)
    problem = algorithm.pose(objective, num_samples=N, sampling={"target": Drawn()}, dtype=torch.float64)
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.SGD(engine.params, lr=1.0)
    draw = np.random.default_rng(0)
    for epoch in range(120):
        order = draw.permutation(GROUPS).reshape(-1, 2)
        groups = order if epoch % 2 == 0 else [draw.permutation(GROUPS)[:2] for _ in range(10)]
        for t, pair in enumerate(groups):
            index = np.concatenate([[2 * g, 2 * g + 1] for g in pair])
            engine.train_batch(samples(index), optimizer, last_batch=t == len(groups) - 1)
        if epoch % 2 == 0:  # the sum of the pass is the exact gradient at the snapshot
            w, q = weights_of(network), algorithm.q.numpy()[:, 0]
            expected = (np.repeat(q / 2, 2) * (X @ w - Y)) @ X
            np.testing.assert_allclose(algorithm.full[0].numpy()[0], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(weights_of(network), best, atol=1e-5)
    risks = losses(best).reshape(GROUPS, 2).mean(1) / THETA
    np.testing.assert_allclose(problem.states[0].rows.numpy()[:, 0], np.exp(risks - logsumexp(risks)), atol=1e-5)
