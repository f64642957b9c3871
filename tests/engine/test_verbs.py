"""An algorithm for linear models, written with the engine's verbs only, reaches the saddle point found by scipy."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch import nn

from fcco_lightning import Engine, Objective
from fcco_lightning.algorithms import Algorithm
from fcco_lightning.ambiguity import CappedSimplex
from fcco_lightning.engine import Estimate
from fcco_lightning.errors import NonFiniteError
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import WorstCase

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
    return {"x": torch.from_numpy(X)[index], "y": torch.from_numpy(Y)[index], "index": index}


def weights_of(network):
    return network.weight.detach().numpy()[0]


# ----------------------------------------------------------------------------------------------------------- DRAGO

BLOCK = 3
BLOCKS = N // BLOCK
NU, MU = 1.0, 1.0


class WorstSamples(Objective):
    """``max_q sum_i q_i l_i(w)``."""

    outer, dtype = WorstCase(CappedSimplex(1 / N)), torch.float64

    def measure(self, outputs, batch):
        losses = ((outputs[:, 0] - batch["y"]).square() / 2).unsqueeze(1)
        return None, Rows(losses, torch.ones(len(losses), dtype=torch.bool))


class BlockwiseDual(Algorithm):
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
        renewed = self.said(engine, seen, "K")
        block = int(renewed.rows[0]) // BLOCK
        if self.filled < BLOCKS:
            self.fill(engine, renewed, block)
            return
        (term,) = engine.problem.all_terms
        drawn = self.said(engine, seen, "J")
        beta, r = self.growth(self.t), 1 / (1 + self.alpha)
        old = term.state.gather(None)
        ahead = old.index_copy(0, renewed.rows, renewed.g.detach())
        if self.t > 1:
            ahead = ahead.index_add(0, drawn.rows, r * BLOCKS * (drawn.g.detach() - old[drawn.rows]))
        q = ((ahead + beta * NU * (N * self.q).log()) / (NU * (1 + beta))).softmax(0)
        kept, new = self.table[block].clone(), self.gradient(engine, renewed, q)
        ready = self.said(engine, engine.evaluate({"I": batch["I"]}), "I")
        other = int(ready.rows[0]) // BLOCK
        now = self.gradient(engine, ready, q)
        self.write(engine, renewed)
        self.q, self.table[block] = q, new
        correction = r * BLOCKS * (now - (kept if other == block else self.table[other]))
        self.move(engine, self.table.sum(0) + correction)

    def fill(self, engine, renewed, block):
        """One block of the tables at w_0; after the last one the first step."""
        new = self.gradient(engine, renewed, self.q)
        self.write(engine, renewed)
        self.table[block], self.filled = new, self.filled + 1
        if self.filled == BLOCKS:
            self.move(engine, self.table.sum(0))

    def said(self, engine, seen, name):
        """What a part of a batch says of the losses."""
        (reading,) = engine.measure(seen._replace(now={name: seen.now[name]}, columns={name: seen.columns[name]}))[1]
        return reading

    def write(self, engine, renewed):
        estimate = Estimate(None)
        estimate.remember(renewed, renewed.g.detach())
        engine.descend(estimate)
        engine.commit()

    def gradient(self, engine, reading, q):
        """Sum over the rows of a reading of ``q_i grad l_i``."""
        return engine.gradients((q[reading.rows] * reading.g).sum())[0]

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
    algorithm, network = BlockwiseDual(0.1), linear_model()
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


@pytest.mark.slow
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
