"""PDSCA against a loop that differentiates the composition with torch.func, and against finite differences."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from fcco_lightning import AUC, PDSCA, SGD, AUCMargin, CVaRPartialAUC, Engine, LogisticLoss, SquaredPair
from fcco_lightning.engine import Backend
from fcco_lightning.errors import ConfigError
from tests.algorithms.toy_problem import flat, make_batches, make_network

N, LR = 12, 0.1
SAME = {"rtol": 1e-9, "atol": 1e-11}  # float64, another order of the same arithmetic


class Net:
    """Scores of a tiny network and the objective's own parameters as functions of a dict of tensors."""

    def __init__(self, objective):
        self.network, self.objective = make_network(), objective.double()
        named = [*self.network.named_parameters(), *self.objective.named_parameters()]
        self.w = {name: p.detach().clone() for name, p in named}

    def scores(self, w, x):
        return functional_call(self.network, {k: v for k, v in w.items() if "." in k}, x)

    def engine(self, algorithm):
        problem = algorithm.pose(self.objective, num_samples=N, dtype=torch.float64)
        return Engine(self.network, problem, algorithm)


def train(net, algorithm, batches):
    engine = net.engine(algorithm)
    optimizer = torch.optim.SGD(engine.params, lr=LR)
    for batch in batches:
        engine.train_batch(batch, optimizer)
    problem = engine.problem
    states = problem.states if problem.row_parameters is None else [problem.row_parameters.state]
    return flat(engine.params), [s.rows.clone() for s in states]


def combined(one, other, a, b):
    return {k: a * one[k] + b * other[k] for k in one}


def hand(net, outer, batches, *, alpha, gamma, hessian=True, of_loss=lambda batch: batch):
    """The loop; ``outer(u, batch)`` is the surrogate of F at u, and may remember rows."""
    w, u = net.w, None
    for given in batches:
        drawn, batch = of_loss(given), given.get("target", given)

        def loss(v, drawn=drawn):
            return cross_entropy(net.scores(v, drawn["x"]), drawn["y"].double())

        new = combined(w, grad(loss)(w), 1.0, -alpha)
        u = new if u is None else combined(u, new, 1 - gamma, gamma)
        y = grad(outer)(u, batch)
        along_y = grad(lambda v, y=y, loss=loss: sum((y[k] * g).sum() for k, g in grad(loss)(v).items()))  # hess L y
        g = combined(y, along_y(w), 1.0, -alpha) if hessian else y
        w = combined(w, g, 1.0, -LR)
    return flat(w.values())


def squared_pairs(net):
    def outer(u, batch):
        s = net.scores(u, batch["x"])
        return (1 - (s[batch["y"] == 1].unsqueeze(1) - s[batch["y"] == 0])).square().mean()

    return outer


@pytest.mark.parametrize("hessian", [True, False])
def test_an_objective_without_rows(hessian):
    net, batches = Net(AUC(SquaredPair())), make_batches(8)
    expected = hand(net, squared_pairs(net), batches, alpha=0.4, gamma=0.6, hessian=hessian)
    start = flat(net.w.values())
    found, _ = train(net, PDSCA(0.4, 0.6, hessian=hessian), batches)
    torch.testing.assert_close(found, expected, **SAME)
    assert (found - start).norm() > 0.1
    net = Net(AUC(SquaredPair()))
    other, _ = train(net, PDSCA(0.4, 0.6, hessian=not hessian), batches)
    assert (other - expected).norm() > 1e-3


def test_an_objective_with_rows_and_parameters_of_its_own():
    """The margin loss: its row is tracked at u, its a and b are part of u."""
    net, batches, rows = Net(AUCMargin(1.0)), make_batches(8), []

    def outer(u, batch):
        s, is_positive = net.scores(u, batch["x"]), batch["y"] == 1
        low, high = s[~is_positive].mean(), s[is_positive].mean()
        means = torch.stack([low, high]).detach()
        old = rows[-1] if rows else means
        rows.append(0.7 * old + 0.3 * means)
        slope = 2 * (1 + old[0] - old[1]).clamp(min=0)
        spread = (s[is_positive] - u["a"]).square().mean() + (s[~is_positive] - u["b"]).square().mean()
        return spread + slope.detach() * (low - high)

    expected = hand(net, outer, batches, alpha=0.4, gamma=0.6)
    found, (row,) = train(net, PDSCA(0.4, 0.6, row_gamma=0.3), batches)
    torch.testing.assert_close(found, expected, **SAME)
    torch.testing.assert_close(row[0], rows[-1], **SAME)


def test_the_loss_on_another_part_of_the_batch():
    one, other = make_batches(8), make_batches(8, seed=2)
    batches = [{"target": a, "dual": b} for a, b in zip(one, other, strict=True)]
    net = Net(AUC(SquaredPair()))
    expected = hand(net, squared_pairs(net), batches, alpha=0.4, gamma=0.6, of_loss=lambda batch: batch["dual"])
    found, _ = train(net, PDSCA(0.4, 0.6, LogisticLoss(), part="dual"), batches)
    torch.testing.assert_close(found, expected, **SAME)


def test_with_the_whole_data_and_gamma_one_it_is_the_gradient_of_the_composition():
    (batch,), alpha, step = make_batches(1, size=N), 0.4, 1e-5
    net = Net(AUC(SquaredPair()))
    outer, names = squared_pairs(net), list(net.w)

    def composition(w):
        g = grad(lambda v: cross_entropy(net.scores(v, batch["x"]), batch["y"].double()))(w)
        return float(outer(combined(w, g, 1.0, -alpha), batch))

    slopes = []
    for name in names:
        for i in range(net.w[name].numel()):
            sides = []
            for sign in (1, -1):
                w = {k: v.clone() for k, v in net.w.items()}
                w[name].view(-1)[i] += sign * step
                sides.append(composition(w))
            slopes.append((sides[0] - sides[1]) / (2 * step))
    start = flat(net.w.values())
    found, _ = train(net, PDSCA(alpha, 1.0), [batch])
    np.testing.assert_allclose(((start - found) / LR).numpy(), slopes, rtol=1e-6, atol=1e-8)


def test_parameters_of_single_samples_are_trained():
    """With alpha near 0 they move, and the weights with them, as without the inner step."""
    (end, (thresholds,)), (other, (expected,)) = (
        train(Net(CVaRPartialAUC(0.5, thresholds=0.1)), algorithm, make_batches(8))
        for algorithm in (PDSCA(1e-13, 1.0), SGD())
    )
    torch.testing.assert_close(end, other, **SAME)
    torch.testing.assert_close(thresholds, expected, **SAME)
    assert len(thresholds.unique()) > 2


def test_a_part_that_the_loaders_do_not_give():
    with pytest.raises(ConfigError, match="the part 'dual' of a batch, but the loaders give the parts"):
        train(Net(AUC()), PDSCA(part="dual"), make_batches(1))


def test_loss_scaling_is_refused():
    class Scaling(Backend):
        scaler = torch.amp.GradScaler(enabled=False)

    net, algorithm = Net(AUC()), PDSCA()
    with pytest.raises(ConfigError, match=r"Use --trainer\.precision bf16-mixed or 32"):
        Engine(net.network, algorithm.pose(net.objective, num_samples=N), algorithm, Scaling())
