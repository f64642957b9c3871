"""Multi-layer perceptron."""

from collections.abc import Sequence

from torch import Tensor, nn

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError


class TabularMLP(nn.Module):
    r"""``x -> Linear -> ReLU -> ... -> Linear``.

    Args:
        hidden: widths of the hidden layers; empty for a linear model.
        out_features: scores per sample; with 1 the output has shape (B,), otherwise (B, out_features).
        in_features: columns of x; None takes them from the first batch.
        dropout: probability after every hidden layer, in [0, 1).
        batch_norm: normalise every hidden layer.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (64, 64),
        out_features: int = 1,
        in_features: int | None = None,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), got {dropout!r}.")
        widths = [*(at_least("hidden", h, 1) for h in hidden), at_least("out_features", out_features, 1)]
        layers: list[nn.Module] = []
        for i, width in enumerate(widths):
            before = widths[i - 1] if i else in_features
            layers.append(nn.LazyLinear(width) if before is None else nn.Linear(before, width))
            if i < len(widths) - 1:
                layers += [nn.BatchNorm1d(width)] if batch_norm else []
                layers += [nn.ReLU()]
                layers += [nn.Dropout(dropout)] if dropout else []
        self.layers = nn.Sequential(*layers)
        self.single = out_features == 1

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the rows of x, shape (B, in_features) -> (B,) or (B, out_features)."""
        scores: Tensor = self.layers(x)
        return scores.squeeze(1) if self.single else scores

    def head(self) -> nn.Module:
        """The last layer."""
        return self.layers[-1]
