"""PG-SMD and PG-SVRG of the package against their NumPy version, step by step, with rows of groups and of samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fcco_lightning import (
    PGSMD,
    PGSVRG,
    CappedSimplex,
    ConcaveStages,
    Engine,
    EqualStages,
    GroupMaxForm,
    KLPenalty,
    LogisticLoss,
    SampleDRO,
    StronglyConcaveStages,
)

from . import proximally_guided as boxes
from .cases import presences
from .networks import Tanh, make_data
from .outer import Hinge
from .probabilities import Groups, Uniform
from .proximally_guided import Steps
from .test_package import Drawn, Draws
from .toy import GroupRisks, Part, Problem

GAMMA, THETA, ALPHA, LIPSCHITZ = 0.8, 0.5, 0.4, 0.4
CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # the same arithmetic in another order, float64


class Job:
    """Logistic losses of a small network, whose rows are 4 groups, 3 of them in a batch, or each of 40 samples."""

    def __init__(self, *, samples: bool) -> None:
        data = make_data((25, 12, 3) if samples else (120, 60, 17, 3))
        if samples:
            data = replace(data, groups=np.arange(len(data)))
        self.sampler = Uniform(len(data), 8) if samples else Groups(data.groups, 3, 8, replace=True)
        term, reference = GroupRisks(data, Hinge(1.0, 0.0, 0.0), None), Tanh(data)
        part = Part(term, presences(self.sampler, term, data))
        self.problem, self.n = Problem(reference, len(data), (part,)), term.n_rows
        self.w = np.random.default_rng(5).normal(size=reference.size) * 0.5
        self.columns = {
            "y": torch.from_numpy(data.labels),
            "group": torch.from_numpy(data.groups),
            "index": torch.arange(len(data)),
            "x": torch.from_numpy(data.x),
        }
        self.network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()
        nn.utils.vector_to_parameters(torch.tensor(self.w), self.network.parameters())
        self.samples = samples

    def engine(self, algorithm, ambiguity, penalty):
        if self.samples:
            objective = SampleDRO(ambiguity, penalty, LogisticLoss())
        else:
            objective = GroupMaxForm(ambiguity, LogisticLoss(), self.n, penalty)
        known = {name: c for name, c in self.columns.items() if name != "x"}
        n = len(known["y"])
        drawn = Drawn(known, Draws(self.sampler, n))
        problem = algorithm.pose(objective, num_samples=n, sampling={"target": drawn}, dtype=torch.float64)
        return Engine(self.network, problem, algorithm)


def compare(job, algorithm, box, *, penalty=None, ambiguity=None, steps=60):
    """Train both on the same batches: the centre, the weights of rows and the inner point agree after every one."""
    engine, rng = job.engine(algorithm, ambiguity, penalty), np.random.default_rng(3)
    optimizer, stages = torch.optim.SGD(engine.params, lr=1.0), 0
    for t in range(steps):
        index = np.asarray(job.sampler.draw(rng)).reshape(-1)
        engine.train_batch({name: c[torch.from_numpy(index)] for name, c in job.columns.items()}, optimizer)
        box.step(index)
        found = nn.utils.parameters_to_vector(engine.params).detach().numpy()
        np.testing.assert_allclose(found, box.w, **CLOSE, err_msg=f"centre after step {t}")
        if algorithm.begun and box.j:
            q = engine.problem.states[0].rows[:, 0].numpy()
            np.testing.assert_allclose(q, box.y, **CLOSE, err_msg=f"weights after step {t}")
            z = nn.utils.parameters_to_vector(algorithm.state_dict()["iterate"]).numpy()
            np.testing.assert_allclose(z, box.x, **CLOSE, err_msg=f"inner point after step {t}")
        stages = max(stages, box.t)
    assert stages >= 2
    assert np.abs(box.w - job.w).max() > 1e-2  # something happened


def concave(t):
    J = (t + 3) ** 2
    return Steps(J, 0.5 / np.sqrt(J), 0.4 / np.sqrt(J))


def strongly_concave(t):
    return Steps(t + 32, 60 * GAMMA / (t + 2), 8 * LIPSCHITZ**2 * GAMMA / (THETA**2 * (t + 32)))


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("theta", [0.0, THETA])
def test_pg_smd_in_case_d1(theta, samples):
    job = Job(samples=samples)
    algorithm = PGSMD(GAMMA, ConcaveStages(0.5, 0.4))
    compare(
        job, algorithm, boxes.PGSMD(job.problem, job.w, concave, gamma=GAMMA, theta=theta), penalty=KLPenalty(theta)
    )


@pytest.mark.parametrize("samples", [False, True])
def test_pg_smd_in_case_d2(samples):
    job = Job(samples=samples)
    box = boxes.PGSMD(job.problem, job.w, strongly_concave, gamma=GAMMA, theta=THETA, best_start=True)
    compare(job, PGSMD(GAMMA, StronglyConcaveStages(LIPSCHITZ)), box, penalty=KLPenalty(THETA), steps=130)


@pytest.mark.parametrize("samples", [False, True])
def test_pg_smd_under_a_cap(samples):
    job = Job(samples=samples)
    options = {"gamma": GAMMA, "cap": 1 / (ALPHA * job.n)}
    box = boxes.PGSMD(job.problem, job.w, lambda t: Steps(5, 0.3, 0.4), **options)
    compare(job, PGSMD(GAMMA, EqualStages(5, 0.3, 0.4)), box, ambiguity=CappedSimplex(ALPHA))


@pytest.mark.parametrize("samples", [False, True])
def test_pl_smd(samples):
    job = Job(samples=samples)
    box = boxes.PGSMD(job.problem, job.w, lambda t: Steps(7, 0.4, 0.3), gamma=GAMMA, theta=THETA, linearised=True)
    algorithm = PGSMD(GAMMA, EqualStages(7, 0.4, 0.3), linearised=True)
    compare(job, algorithm, box, penalty=KLPenalty(THETA))


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize(("theta", "linearised"), [(0.0, False), (THETA, False), (THETA, True)])
def test_svrg(theta, linearised, samples):
    job, options = Job(samples=samples), {"gamma": GAMMA, "theta": theta, "linearised": linearised}
    box = boxes.PGSVRG(job.problem, job.w, lambda t: Steps(6, 0.3, 0.2), lambda t: 3, **options)
    algorithm = PGSVRG(GAMMA, 0.3, 0.2, J=6, K=3, linearised=linearised)
    compare(job, algorithm, box, penalty=KLPenalty(theta), steps=100)
