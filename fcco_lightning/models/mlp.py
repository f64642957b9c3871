"""The multi-layer perceptron."""

from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor, nn

from fcco_lightning.checks import at_least, below_one, finite, one_of, positive
from fcco_lightning.errors import ConfigError

Activation = Literal["relu", "sigmoid", "tanh"]
_ACTIVATIONS: dict[Activation, type[nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


class TabularMLP(nn.Module):
    r"""A perceptron ``x -> Linear -> ReLU -> ... -> Linear``, or with another activation instead of ReLU.

    Args:
        hidden: widths of the hidden layers; empty for a linear model.
        out_features: number of scores per sample; with 1 the output has shape (B,), otherwise (B, out_features).
        in_features: number of columns of x; None takes it from the first batch.
        dropout: dropout probability after every hidden layer, in [0, 1).
        batch_norm: whether every hidden layer has a BatchNorm.
        activation: "relu", "sigmoid" or "tanh".
        bias: whether layers have a bias.
        flatten: whether all numbers of a sample, such as an image, are flattened to one row of features.
        offset: constant that is added to the outputs, about the mean of a label in regression, or the log-odds of a
            rare class.
        scale: factor > 0 on the last layer's outputs; in regression, about the standard deviation of the label, so that
            updates have the right size.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (64, 64),
        out_features: int = 1,
        in_features: int | None = None,
        dropout: float = 0.0,
        batch_norm: bool = False,
        activation: Activation = "relu",
        bias: bool = True,
        flatten: bool = False,
        offset: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        below_one("dropout", dropout)
        one_of("activation", activation, get_args(Activation))
        if isinstance(hidden, int):
            raise ConfigError(
                f"hidden must hold the number of units of every hidden layer, got {hidden}. Use [{hidden}]."
            )
        widths = [*(at_least("hidden", h, 1) for h in hidden), at_least("out_features", out_features, 1)]
        layers: list[nn.Module] = [nn.Flatten()] if flatten else []
        for i, width in enumerate(widths):
            before = widths[i - 1] if i else in_features
            layers.append(nn.LazyLinear(width, bias) if before is None else nn.Linear(before, width, bias))
            if i < len(widths) - 1:
                layers += [nn.BatchNorm1d(width)] if batch_norm else []
                layers += [_ACTIVATIONS[activation]()]
                layers += [nn.Dropout(dropout)] if dropout else []
        self.layers = nn.Sequential(*layers)
        self.single = out_features == 1
        self.offset, self.scale = finite("offset", offset), positive("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (B,) or (B, out_features) of x (B, in_features), or (B, ...) with ``flatten``."""
        scores: Tensor = self.layers(x)
        if (self.offset, self.scale) != (0.0, 1.0):
            scores = self.offset + self.scale * scores
        return scores.squeeze(1) if self.single else scores

    def head(self) -> nn.Module:
        """The last layer."""
        return self.layers[-1]
