"""A network that is trained on perturbed inputs."""

import torch
from torch import Tensor, nn

from fcco_lightning.checks import positive
from fcco_lightning.models.head import head_of


class GaussianPerturbation(nn.Module):
    r"""``network(x + std * z)`` with ``z ~ N(0, I)`` in training, ``network(x)`` in evaluation.

    Every row of x has an independent perturbation, so that the copies of a sample in a batch of
    :meth:`~fcco_lightning.BatchPlan.repeated` are independent draws.  A second forward pass in the same step (at
    previous weights) has the same perturbations.

    Args:
        network: the network, which is called with the perturbed input; it may have lazy layers.
        std: standard deviation of the perturbation, in the unit of x, > 0.

    Raises:
        ConfigError: if ``std`` is not a finite number > 0.
    """

    def __init__(self, network: nn.Module, std: float = 0.1) -> None:
        super().__init__()
        self.network, self.std = network, positive("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs for the (perturbed) x."""
        scores: Tensor = self.network(x + self.std * torch.randn_like(x) if self.training else x)
        return scores

    def head(self) -> nn.Module:
        """The head of the network."""
        return head_of(self.network)
