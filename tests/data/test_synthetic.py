"""Synthetic problems: their closed forms against sampling."""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import ndcg_score, roc_auc_score

from fcco_lightning.data import EventSampling, GroupSampling, QuerySampling
from fcco_lightning.data.datamodules import SyntheticDataModule, SyntheticTensorDataModule
from fcco_lightning.data.synthetic import (
    BlockDistributions,
    GaussianGroups,
    GradedLists,
    LatentChoice,
    ProportionalHazards,
)
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation.metrics.survival import breslow_log_hazard, concordance

SAMPLES = 1_000_000
AUC_TOLERANCE = 2e-3  # 4 standard errors of an AUC of 0.9 with 240,000 positives are 1.3e-3
GAP_TOLERANCE = 8e-3  # 4 standard errors of a rate measured on the 30,000 positives of group 0, maximum over thresholds

PROBLEMS = [GaussianGroups(dim=2), GaussianGroups(dim=3, deltas=(1.0, 2.5), priors=(0.4, 0.2), favoured_share=0.4)]


@pytest.fixture(scope="module", params=PROBLEMS, ids=["default", "other"])
def scored(request):
    sample = request.param.sample(SAMPLES, torch.Generator().manual_seed(0))
    return request.param, sample, request.param.bayes_score(sample["x"]).numpy()


def test_closed_forms_against_sampling(scored):
    problem, sample, score = scored
    y, group = sample["y"].numpy(), sample["group"].numpy()
    assert problem.bayes_auc() == pytest.approx(roc_auc_score(y, score), abs=AUC_TOLERANCE)
    grid = np.linspace(score.min(), score.max(), 400)
    gaps = []
    for label in (0, 1):
        rates = [
            1 - np.searchsorted(np.sort(score[(y == label) & (group == a)]), grid) / ((y == label) & (group == a)).sum()
            for a in (0, 1)
        ]
        gaps.append(np.abs(rates[0] - rates[1]).max())
    assert problem.bayes_roc_gap() == pytest.approx(max(gaps), abs=GAP_TOLERANCE)


def test_the_score_is_the_log_odds(scored):
    problem, sample, _ = scored
    x, group = sample["x"][:500].double(), sample["group"][:500]
    directions = np.zeros((2, problem.dim))
    directions[0, 0] = 1
    directions[1, :2] = np.cos(problem.angle), np.sin(problem.angle)
    for i in range(0, 500, 25):
        a = int(group[i])
        prior = problem.priors[a]
        up, down = (norm.logpdf(x[i, :-1], loc=sign * problem.deltas[a] / 2 * directions[a]).sum() for sign in (1, -1))
        expected = up - down + np.log(prior / (1 - prior))
        assert problem.bayes_score(x[i : i + 1]).item() == pytest.approx(expected, abs=1e-5)


def test_no_other_score_ranks_better(scored):
    _, sample, score = scored
    best = roc_auc_score(sample["y"][:100_000], score[:100_000])
    for rival in (sample["x"][:100_000, 0], sample["x"][:100_000, :2].sum(dim=1)):
        assert roc_auc_score(sample["y"][:100_000], rival) < best


@pytest.mark.parametrize(
    ("problem", "argument", "value"),
    [
        (GaussianGroups, "dim", 1),
        (GaussianGroups, "deltas", (0.0, 1.0)),
        (GaussianGroups, "priors", (0.1, 1.0)),
        (GaussianGroups, "favoured_share", 0.0),
        (ProportionalHazards, "dim", 2),
        (BlockDistributions, "num_distributions", 2),  # they would overlap twice
    ],
)
def test_rejects(problem, argument, value):
    with pytest.raises(ConfigError, match=argument):
        problem(**{argument: value})


def test_simulated_times_follow_the_model():
    problem = ProportionalHazards(dim=3, tick=0.0)
    sample = problem.sample(20_000, torch.Generator().manual_seed(0))
    risk, event = problem.log_risk(sample["x"]), sample["event"] == 1
    assert 0.5 < event.double().mean() < 0.8
    t = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
    log_hazard = breslow_log_hazard(sample["time"].double(), event, risk)
    assert np.exp(log_hazard(t)).tolist() == pytest.approx(t.tolist(), rel=0.05)  # the baseline hazard is 1
    rows = torch.arange(3000)
    best = concordance(sample["time"][rows], event[rows], risk[rows])
    assert best > concordance(sample["time"][rows], event[rows], sample["x"][rows, 0]) + 0.05
    assert len(ProportionalHazards().sample(4000, torch.Generator().manual_seed(0))["time"].unique()) < 1000  # ties


def test_simulated_lists_have_all_grades():
    sample = GradedLists(items=30).sample(50, torch.Generator().manual_seed(0))
    assert sample["y"].unique().tolist() == [0, 1, 2, 3, 4]
    assert torch.bincount(sample["query"]).tolist() == [30] * 50


def test_no_other_score_ranks_lists_better():
    sample = GradedLists().sample(500, torch.Generator().manual_seed(0))
    x, grades = sample["x"], sample["y"].reshape(500, -1)

    def quality(score):
        return ndcg_score(grades, score.reshape(500, -1))

    best = x[:, 0] + x[:, 1] * x[:, 2]
    torch.testing.assert_close(GradedLists.score(x), best)
    for rival in (x[:, 0], x[:, 0] - x[:, 1] * x[:, 2], x[:, 0] + x[:, 1] - x[:, 2], x[:, 0] + x[:, 2] * x[:, 3]):
        assert quality(rival) < quality(best) - 0.03


def test_simulated_problems_become_datamodules():
    times = SyntheticDataModule(300, 100, problem=ProportionalHazards(), batches=EventSampling())
    lists = SyntheticDataModule(20, 10, problem=GradedLists(), val_fraction=0.25, batches=QuerySampling())
    for module, names in ((times, {"time", "event"}), (lists, {"query"})):
        module.setup()
        batch = next(iter(module.train_dataloader()))
        assert names | {"x", "y", "index", "weight", "stratum", "stratum_size"} == set(batch)
        assert module.num_features == 10
    assert len(lists.tables["val"].columns["query"].unique()) == 5


def test_responses_follow_the_mixture_over_latent_values():
    problem = LatentChoice(num_latent=7, dim=3, sharpness=2.0, scale=3.0, seed=4)
    sample = problem.sample(20_000, torch.Generator().manual_seed(0))
    x = sample["x"].double().numpy()
    vectors = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(4)).double().numpy()
    e, a = vectors / np.linalg.norm(vectors, axis=2, keepdims=True)
    share = np.exp(2 * x @ e.T)
    p = (share / share.sum(1, keepdims=True) / (1 + np.exp(-3 * x @ a.T))).sum(1)
    np.testing.assert_allclose(problem.log_odds(sample["x"]), np.log(p / (1 - p)), atol=1e-4)
    error = sample["y"].numpy() - p
    assert abs(error.mean()) < 4 * error.std() / np.sqrt(len(p))
    assert abs((error * (p - p.mean())).mean()) < 4 * (error * p).std() / np.sqrt(len(p))


def test_samples_of_block_distributions_follow_the_definition():
    problem = BlockDistributions(noise=0.0)
    sample = problem.sample(400, torch.Generator().manual_seed(0))
    x, group = sample["x"].double().numpy(), sample["group"].numpy()
    assert x.shape == (2000, 50)
    for i in range(5):
        inside = np.isin(np.arange(50) // 10, [i, (i + 1) % 5])
        own = x[group == i]
        assert len(own) == 400
        assert (own[:, ~inside] == 0).all()
        np.testing.assert_allclose(own[:, inside].mean(), 0, atol=0.03)  # 4 standard errors
        np.testing.assert_allclose((own[:, inside] ** 2).mean(), 1 / 3, atol=0.02)
        assert np.abs(own).max() <= 1
    generator = torch.Generator().manual_seed(2)
    first, second = (2 * torch.rand(*size, generator=generator).double().numpy() - 1 for size in ((10, 50), (10,)))
    score = (1 / (1 + np.exp(-x @ first.T))) @ second
    clear = np.abs(score) > 1e-5
    assert (sample["y"].numpy() == (score > 0))[clear].all()


def test_noise_changes_labels_near_the_boundary_only():
    clean, noisy = (
        BlockDistributions(noise=noise).sample(2000, torch.Generator().manual_seed(0)) for noise in (0.0, 0.1)
    )
    changed = clean["y"] != noisy["y"]
    assert 0 < changed.float().mean() < 0.1
    score = BlockDistributions().score(clean["x"])[changed]
    assert score.abs().max() <= 0.1
    assert 0.3 < (score > 0).float().mean() < 0.7  # it lifts and lowers scores alike


def test_the_distributions_are_the_groups_of_the_datamodule():
    module = SyntheticTensorDataModule(BlockDistributions(), 8, 2, batches=GroupSampling(5, 4))
    module.setup()
    assert module.num_groups == 5
    assert module.num_train == 40
    batch = next(iter(module.train_dataloader()))
    assert batch["group"].bincount().tolist() == [4, 4, 4, 4, 4]
