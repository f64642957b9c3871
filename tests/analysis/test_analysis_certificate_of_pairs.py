"""The certificate against autograd, for objectives over pairs and constraints on other data."""

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from fcco_lightning import (
    BatchNetwork,
    ConfigError,
    GlobalContrastive,
    InnerFunctions,
    NonForgetting,
    TwoViews,
    ViewContrastive,
)
from fcco_lightning.analysis import Samples, certificate
from fcco_lightning.models.outputs import Embeddings
from fcco_lightning.objectives import log_means
from tests.analysis.problems import cut

N, M, TAU, RHO, TASKS = 41, 30, 0.3, 2.0, 3


class Towers(BatchNetwork):
    """Embeddings of pairs, and class logits of what comes without a text; with layers that training disturbs."""

    inputs = ("x", "text")

    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))
        self.text = nn.Linear(2, 3)

    def forward(self, batch):
        return {name: self._of(part) for name, part in batch.items()}

    def _of(self, part):
        image = normalize(self.image(part["x"]), dim=1)
        if "text" not in part:
            return 5 * image
        return Embeddings(image, normalize(self.text(part["text"]), dim=1))


@pytest.fixture
def problem():
    """Network, columns of the pairs and of the protected samples, in an order that is not that of ``index``."""
    torch.manual_seed(0)
    network = Towers().double()
    pairs = {"x": torch.randn(N, 4).double(), "text": torch.randn(N, 2).double(), "index": torch.randperm(N)}
    kept = {"x": torch.randn(M, 4).double(), "y": torch.arange(M) % 3, "index": torch.randperm(M)}
    kept |= {"task": torch.arange(M) % 4 - 1, "protected_loss": torch.rand(M).double()}
    network({"target": pairs})  # statistics of BatchNorm
    return network.eval(), pairs, kept


def found(network, objective, pairs, kept, multipliers=None, size=7, **kwargs):
    functions = InnerFunctions(network, objective, [NonForgetting(names=["a", "b", "c"])])
    data = {"target": pairs, "protected": kept}
    with torch.no_grad():
        outputs = {name: network({name: part})[name] for name, part in data.items()}
    batches = {name: cut({k: c.flip(0) for k, c in part.items()}, size) for name, part in data.items()}
    return certificate(functions, Samples(outputs, data), batches, multipliers, **kwargs)


def exact(network, objective, pairs, kept, own_tau=()):
    """Gradients of F and of h_1 .. h_3 and the values of h, by autograd of the whole similarity matrix at once."""
    image, text = network({"target": pairs})["target"]
    tau = TAU if objective.temperature is None else objective.temperature()
    gaps = image @ text.T
    own = gaps.diagonal()
    taus = own_tau[0].unbind(1) if own_tau else (tau, tau)
    terms = []
    for s, t in zip((gaps, gaps.T), taus, strict=True):
        each = t[:, None] if own_tau else t
        terms.append(t * (((s - own[:, None]) / each).exp().mean(1).log() + (RHO if objective.learnt else 0)))
    value = sum(terms).mean()
    change = cross_entropy(network({"p": kept})["p"], kept["y"], reduction="none") - kept["protected_loss"]
    h = [change[kept["task"] == k].mean() for k in range(TASKS)]
    weights = [*network.parameters(), *objective.parameters(), *own_tau]
    rows = [
        torch.cat([
            (torch.zeros_like(w) if d is None else d).flatten()
            for w, d in zip(weights, torch.autograd.grad(v, weights, retain_graph=True, allow_unused=True), strict=True)
        ]).numpy()
        for v in (value, *h)
    ]  # fmt: skip
    return rows[0], np.stack(rows[1:]), np.array([float(v.detach()) for v in h])


@pytest.mark.parametrize("block", [2**22, 64], ids=["at once", "by blocks"])
@pytest.mark.parametrize("learn", ["no", "global"])
def test_against_autograd_of_the_whole_similarity_matrix(problem, learn, block, monkeypatch):
    monkeypatch.setattr(log_means, "BLOCK", block)
    network, pairs, kept = problem
    objective = GlobalContrastive(TAU, learn, rho=RHO).double()
    if learn == "global":
        with torch.no_grad():
            objective.temperature.theta.fill_(0.1)
    gradient, rows, h = exact(*problem[:1], objective, pairs, kept)
    nu = np.array([0.4, 0.0, 1.3])
    own = found(network, objective, pairs, kept, nu, max_values=500)  # fewer than N^2: blocks are not counted
    assert own.gradient == pytest.approx(np.linalg.norm(gradient), rel=1e-10)
    assert own.stationarity == pytest.approx(np.linalg.norm(gradient + nu @ rows), rel=1e-10)
    assert own.complementarity == pytest.approx(np.abs(nu * h).max(), rel=1e-10)
    assert own.values == pytest.approx(h, rel=1e-10)
    best = found(network, objective, pairs, kept, size=N)
    expected, _ = nnls(np.vstack([rows.T, np.diag(h)]), np.concatenate([-gradient, np.zeros(TASKS)]))
    assert best.multipliers == pytest.approx(expected, abs=1e-8)
    assert best.stationarity == pytest.approx(np.linalg.norm(gradient + expected @ rows), rel=1e-8)


def test_temperatures_of_single_pairs_are_trained_parameters_in_an_interval(problem):
    """At an end of it only what points inwards counts: rows 0 to 9 are at the upper one, .9, the next at the lower."""
    network, pairs, kept = problem
    objective = GlobalContrastive(TAU, "per_sample", rho=RHO, tau_min=0.1, tau_max=0.9).double()
    with pytest.raises(ConfigError, match="needs as the column 'tau' of the samples"):
        found(network, objective, pairs, kept)
    tau = 0.2 + 0.6 * torch.rand(N, 2, dtype=torch.float64)
    tau[:10], tau[10:20] = 0.9, 0.1
    gradient, rows, _ = exact(network, objective, pairs, kept, [tau.clone().requires_grad_()])
    slope, flat = gradient[-2 * N :], tau.flatten().numpy()
    outwards = ((flat == 0.9) & (slope < 0)) | ((flat == 0.1) & (slope > 0))
    assert 0 < outwards.sum() < 40
    slope[outwards] = 0
    nu = np.array([0.4, 0.0, 1.3])
    own = found(network, objective, pairs | {"tau": tau}, kept, nu)
    assert own.gradient == pytest.approx(np.linalg.norm(gradient), rel=1e-10)
    assert own.stationarity == pytest.approx(np.linalg.norm(gradient + nu @ rows), rel=1e-10)


class Views(BatchNetwork):
    """Embeddings of two given views, in evaluation, too."""

    inputs = ("x", "x2")

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 3)

    def forward(self, batch):
        return {k: Embeddings(*(normalize(self.one(part[x]), dim=1) for x in self.inputs)) for k, part in batch.items()}


def test_views_that_stay_have_a_certificate_and_random_ones_do_not(problem):
    _, pairs, _ = problem
    network = Views().double()
    columns = {"x": pairs["x"], "x2": pairs["x"].roll(1, 1), "index": pairs["index"]}
    functions = InnerFunctions(network, ViewContrastive(TAU), [])
    with torch.no_grad():
        samples = Samples(network({"target": columns}), {"target": columns})
    one = certificate(functions, samples, {"target": cut(columns, 7)})
    views = torch.cat(network({"target": columns})["target"])
    gaps = (views @ views.T - (views * views.roll(N, 0)).sum(1, keepdim=True)) / TAU
    value = 2 * TAU * gaps.masked_fill(torch.eye(2 * N, dtype=torch.bool), -torch.inf).logsumexp(1).mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(network.parameters()))])
    assert one.stationarity == pytest.approx(expected.norm().item(), rel=1e-10)
    random = InnerFunctions(TwoViews(network.one, std=0.1), ViewContrastive(TAU), [])
    with pytest.raises(ConfigError, match="ViewContrastive is an expectation over random views"):
        certificate(random, samples, {"target": [columns]})
