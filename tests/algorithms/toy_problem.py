"""A small problem with a compositional objective and two constraints, and a second implementation of it.

The package's version is an ``Engine``; the second one uses explicit formulas, loops and ``torch.autograd`` only.
"""

from functools import cache
from itertools import combinations

import torch
from torch import Tensor, nn

from fcco_lightning import (
    Engine,
    HeavyBall,
    Hinge,
    MeanAtMost,
    Objective,
    ROCFairness,
    SoftRate,
)
from fcco_lightning.constraints import HingePenalty
from fcco_lightning.data.batches import BatchDraws, Drawn
from fcco_lightning.objectives.measurable import Rows

N, BATCH = 12, 6
RHO, KAPPA = 1.5, 0.2  # objective
PENALTY = 3.0
THRESHOLDS, ROC_KAPPA, CAP = (-0.5, 0.5), 0.01, 0.3
SHARES = (1.0, 4 / 5, 1 / 5)  # objective; 4 of 5 constraint rows; 1 of 5
ROWS = (N, 4, 1)

Values = list[dict[int, Tensor]]  # per term: row -> inner value (k,)


class HingeMargin(Objective):
    """``0.05 mean s^2 + (1/n) sum_i rho [1 - (+-1) s_i - kappa]_+``."""

    outer = Hinge(RHO, KAPPA)

    def measure(self, outputs, batch):
        margins = (1 - (2 * batch["y"] - 1) * outputs).unsqueeze(1)
        return 0.05 * outputs.square().mean(), Rows(margins, torch.ones_like(outputs, dtype=torch.bool))


def make_network(seed=0):
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return network


def make_constraints():
    return [
        ROCFairness(THRESHOLDS, kappa=ROC_KAPPA),
        MeanAtMost(SoftRate(temperature=0.5), kappa=CAP, where={"y": 0}),
    ]


class UniformDraws(BatchDraws):
    """Batches of 6 of the 12 samples, with probabilities by enumeration of all 924 batches."""

    def absence(self, counts, share=1.0):
        size = int(BATCH * share)
        every = list(combinations(range(N), size))
        return sum(all(i >= int(counts) for i in batch) for batch in every) / len(every)


def sampling():
    return {"target": Drawn({"y": torch.arange(N) % 2, "group": torch.arange(N) // 2 % 2}, UniformDraws())}


def make_engine(algorithm, network, objective=None, constraints=None):
    objective = objective or HingeMargin()
    constraints = make_constraints() if constraints is None else constraints
    problem = algorithm.pose(
        objective,
        constraints,
        HingePenalty(PENALTY),
        num_samples=N,
        sampling=sampling(),
        dtype=torch.float64,
    )
    return Engine(network, problem, algorithm)


def make_batches(count, size=BATCH, seed=1):
    """Random batches without repeated samples; x is drawn anew around the centre of the sample."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    y, group = torch.arange(N) % 2, torch.arange(N) // 2 % 2
    batches = []
    for _ in range(count):
        i = torch.randperm(N, generator=generator)[:size]
        x = centres[i] + 0.2 * torch.randn(size, 3, generator=generator, dtype=torch.float64)
        batches.append({"x": x, "y": y[i], "group": group[i], "index": i})
    return batches


def train(algorithm, batches, *, lr=0.05, beta=0.3, closing=(), network=None):
    """The package's weights (flat) and rows (per term) after the batches; ``closing`` are the ends of epochs."""
    network = network or make_network()
    engine = make_engine(algorithm, network)
    optimizer = HeavyBall(network.parameters(), lr=lr, beta=beta)
    for t, batch in enumerate(batches):
        engine.train_batch(batch, optimizer, last_batch=t in closing)
    return flat(network.parameters()), [s.rows.clone() for s in engine.problem.states]


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


# ------------------------------------------------------------------------------------------------ the hand-written one


def scores(w: Tensor, x: Tensor) -> Tensor:
    first, bias, second, last = w[:12].reshape(4, 3), w[12:16], w[16:20], w[20]
    return torch.tanh(x @ first.T + bias) @ second + last


def measure(w: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, Values]:
    s, y, group = scores(w, batch["x"]), batch["y"], batch["group"]
    margins = {i: (1 - (2 * yi - 1) * si).reshape(1) for i, yi, si in zip(batch["index"].tolist(), y, s, strict=True)}
    rates = {}
    for block, label in enumerate((1, 0)):
        favoured, other = s[(y == label) & (group == 1)], s[(y == label) & (group == 0)]
        if len(favoured) and len(other):
            for t, tau in enumerate(THRESHOLDS):
                pair = [torch.sigmoid(favoured - tau).mean(), torch.sigmoid(other - tau).mean()]
                rates[block * len(THRESHOLDS) + t] = torch.stack(pair)
    negatives = s[y == 0]
    cap = {0: torch.sigmoid(negatives / 0.5).mean().reshape(1)} if len(negatives) else {}
    return 0.05 * (s**2).mean(), [margins, rates, cap]


@cache
def weight(term: int, row: int, present: int) -> float:
    """The weight of a row in the mean over all rows of its term: 1/(n p) for constraints, p by enumeration."""
    if term == 0:
        return 1 / present
    label, groups = (1 - row // 2, (0, 1)) if term == 1 else (0, (None,))
    cells = [{i for i in range(N) if i % 2 == label and g in (None, i // 2 % 2)} for g in groups]
    every = list(combinations(range(N), BATCH))
    return len(every) / (ROWS[term] * sum(all(set(batch) & cell for cell in cells) for batch in every))


def gradient(w: Tensor, batch: dict[str, Tensor], weights: Values | None) -> Tensor:
    """Gradient at w of g_0 + sum of share * mean_i <y_i, g_i>."""
    w = w.detach().requires_grad_()
    total, values = measure(w, batch)
    for term, (share, y, g) in enumerate(zip(SHARES, weights or (), values, strict=False)):
        if g:
            total = total + share * sum(weight(term, i, len(g)) * (y[i] * g[i]).sum() for i in g)
    return torch.autograd.grad(total, w)[0]


def slope(term: int, u: Tensor, lam: float) -> Tensor:
    """The gradient of the term's outer function, smoothed if lam > 0, by its closed form."""
    if term == 1:
        d, excess = u[0] - u[1], (u[0] - u[1]).abs() - ROC_KAPPA
        a = d.sign() * (PENALTY * (excess > 0) if lam == 0 else (excess / (2 * lam)).clamp(0, PENALTY))
        return torch.stack([a, -a])
    rho, kappa = (RHO, KAPPA) if term == 0 else (PENALTY, CAP)
    return rho * (u > kappa).double() if lam == 0 else ((u - kappa) / lam).clamp(0, rho)


class Average:
    """u_i <- (1 - gamma) u_i + gamma g_i + correction (g_i - g_i^previous); a first visit takes g_i."""

    def __init__(self, gamma, correction=0.0, *, fresh=False, lam=0.0):
        self.gamma, self.correction, self.fresh, self.lam = gamma, correction, fresh, lam
        self.rows: Values = [{}, {}, {}]

    def amount(self, inverse: float) -> float:
        """The factor of the correction for a row with inclusion probability 1/inverse."""
        if self.correction == "theory":
            return 1 - self.gamma + (inverse - 1) / (1 - self.gamma)
        return self.correction

    def weights(self, now: Values, before: Values | None) -> Values:
        out: Values = [{}, {}, {}]
        for term, values in enumerate(now):
            for i, value in values.items():
                g = value.detach()
                u = self.rows[term].get(i)
                new = g
                if u is not None:
                    back = g if before is None else before[term][i].detach()
                    amount = self.amount(ROWS[term] * weight(term, i, len(values)))
                    new = (1 - self.gamma) * u + self.gamma * g + amount * (g - back)
                old = g if u is None else u
                out[term][i] = slope(term, new if self.fresh else old, self.lam)
                self.rows[term][i] = new
        return out


def table(rows: Values) -> list[Tensor]:
    """The rows in the form in which the package stores them."""
    out = [torch.zeros(n, k, dtype=torch.float64) for n, k in zip(ROWS, (1, 2, 1), strict=True)]
    for term, known in enumerate(rows):
        for i, u in known.items():
            out[term][i] = u
    return out


def hand_single_loop(tracker, batches, *, lr=0.05, beta=0.3):
    w = flat(make_network().parameters())
    previous, v = None, None
    for batch in batches:
        now = measure(w, batch)[1]
        before = None if previous is None else measure(previous, batch)[1]
        g = gradient(w, batch, tracker.weights(now, before))
        v = g if v is None else (1 - beta) * v + beta * g
        previous, w = w, w - lr * v
    return w, table(tracker.rows)


def hand_double_loop(tracker, batches, *, inner, eta, nu, closing, lr=0.05, beta=0.3):
    w = flat(make_network().parameters())
    z, back, v, k = w, None, None, 0
    for t, batch in enumerate(batches):
        now = measure(z, batch)[1]
        before = None if back is None else measure(back, batch)[1]
        g = gradient(z, batch, tracker.weights(now, before))
        back, z, k = z, (nu * z + eta * w - eta * nu * g) / (eta + nu), k + 1
        if k == inner or t in closing:
            outer = (w - z) / nu
            v = outer if v is None else (1 - beta) * v + beta * outer
            w = w - lr * v
            z, back, k = w, None, 0
    return w, table(tracker.rows)
