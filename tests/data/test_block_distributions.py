"""Several distributions whose features overlap, against their definition in NumPy."""

import numpy as np
import pytest
import torch

from fcco_lightning import BlockDistributions, GroupSampling, SyntheticTensorDataModule
from fcco_lightning.errors import ConfigError


def test_samples_follow_the_definition():
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


def test_two_distributions_would_overlap_twice():
    with pytest.raises(ConfigError, match="num_distributions must be a whole number >= 3, got 2"):
        BlockDistributions(num_distributions=2)
