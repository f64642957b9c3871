"""The perceptron for tables: activations, and layers without biases."""

import numpy as np
import pytest
import torch

from fcco_lightning import ConfigError, TabularMLP


def test_a_sigmoid_layer_without_constants_by_hand():
    network, x = TabularMLP([3], in_features=2, activation="sigmoid", bias=False), torch.randn(5, 2)
    first, second = (p.detach().double().numpy() for p in network.parameters())
    expected = (1 / (1 + np.exp(-x.double().numpy() @ first.T))) @ second.T
    np.testing.assert_allclose(network(x).detach().numpy(), expected[:, 0], rtol=1e-5)


def test_outputs_of_the_size_of_a_label():
    torch.manual_seed(0)
    plain = TabularMLP([3], in_features=2)
    torch.manual_seed(0)
    scaled, x = TabularMLP([3], in_features=2, offset=50.0, scale=4.0), torch.randn(5, 2)
    torch.testing.assert_close(scaled(x), 50 + 4 * plain(x))
    with pytest.raises(ConfigError, match="scale must be"):
        TabularMLP(scale=0.0)


def test_an_activation_that_is_not_known():
    with pytest.raises(ConfigError, match="activation must be one of 'relu', 'sigmoid', 'tanh', got 'gelu'"):
        TabularMLP(activation="gelu")


def test_a_number_in_place_of_the_layers():
    with pytest.raises(
        ConfigError, match=r"hidden must hold the number of units of every hidden layer, got 32. Use \[32\]"
    ):
        TabularMLP(32)
