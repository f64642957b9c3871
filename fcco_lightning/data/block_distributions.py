"""Several distributions of features that overlap in part, with one labelling for all of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, non_negative


@dataclass(frozen=True)
class BlockDistributions:
    r"""m distributions of features, each in two neighbouring blocks, and labels by one network for all of them.

    The features are m blocks of ``block_size``.  Under P_i the blocks i and i + 1 (of the last distribution the last
    and the first one) are independent and uniform on [-1, 1], the others are 0.  The label is 1 where

    .. math:: \sigma(X_1 x)^\top x_2 + z > 0, \quad z \sim U[-\text{noise}, \text{noise}],

    with the sigmoid :math:`\sigma` and the entries of X_1 (hidden, m block_size) and x_2 (hidden,) uniform on [-1, 1].

    Args:
        num_distributions: m, >= 3.
        block_size: features of a block, >= 1.
        hidden: width of the labelling network, >= 1.
        noise: >= 0.
        seed: of the labelling network.  Of many seeds nearly all labels are the same; of seed 2 two thirds are 1.
    Source: PG-SMD paper, section 5.3.
    """

    num_distributions: int = 5
    block_size: int = 10
    hidden: int = 10
    noise: float = 0.01
    seed: int = 2

    def __post_init__(self) -> None:
        at_least("num_distributions", self.num_distributions, 3)
        at_least("block_size", self.block_size, 1)
        at_least("hidden", self.hidden, 1)
        non_negative("noise", self.noise)

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.num_distributions * self.block_size

    def sample(self, size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw ``size`` samples of every distribution, n in all.

        Returns:
            ``x`` (n, dim) float32, ``y`` (n,) int64 in {0, 1} and ``group`` (n,) int64, the number of the distribution.
        """
        group = torch.arange(self.num_distributions).repeat_interleave(size)
        x = 2 * torch.rand(len(group), self.dim, generator=generator) - 1
        block = torch.arange(self.dim) // self.block_size
        after = (block - group.unsqueeze(1)) % self.num_distributions
        x = torch.where(after <= 1, x, 0.0)
        z = self.noise * (2 * torch.rand(len(group), generator=generator) - 1)
        return {"x": x, "y": (self.score(x) + z > 0).long(), "group": group}

    def score(self, x: Tensor) -> Tensor:
        """The labelling network's score of ``x`` (n, dim), shape (n,): but for the noise its sign is the label."""
        generator = torch.Generator().manual_seed(self.seed)
        first = 2 * torch.rand(self.hidden, self.dim, generator=generator) - 1
        second = 2 * torch.rand(self.hidden, generator=generator) - 1
        return torch.sigmoid(x @ first.T.to(x)) @ second.to(x)
