"""Text networks of the transformers library with a classification head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.checks import at_least, package
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.base import BatchNetwork, ParameterGroup


class TextClassifier(BatchNetwork):
    """An ``AutoModelForSequenceClassification`` of ``transformers`` with a newly initialised head.

    Its input is ``x`` (B, L) int64, the tokens of every text, padded with -1; the scores do not depend on the amount of
    padding.  Biases and normalisations have no weight decay.

    Args:
        name: local folder of a network, or hub id such as "distilbert-base-uncased".
        num_outputs: number of scores per text; with 1 the output has shape (B,), otherwise (B, num_outputs).
        config: instead of a name, the configuration of a network with random weights, with its ``model_type``, such as
            {model_type: bert, vocab_size: 4000, hidden_size: 128, num_hidden_layers: 2}.
        pretrained: whether to load the weights of ``name``, too, not only its configuration.
        **kwargs: changes of the configuration of ``name``, such as ``dropout``.

    Raises:
        ConfigError: unless exactly one of ``name`` and ``config`` is given, if transformers has no such network or is
            not installed, or if the weights cannot be loaded.
    """

    def __init__(
        self,
        name: str | None = None,
        num_outputs: int = 1,
        config: dict[str, Any] | None = None,
        pretrained: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if (name is None) == (config is None):
            raise ConfigError(
                f"Exactly one of name and config must be given, got name={name!r} and config={config!r}. Pass a folder "
                "or hub id such as 'distilbert-base-uncased', or a configuration with its model_type for random "
                "weights."
            )
        settings = {**(config or {}), **kwargs, "num_labels": at_least("num_outputs", num_outputs, 1)}
        self.model = _random(settings) if name is None else _from_name(name, settings, pretrained=pretrained)
        self.model.train()
        self.single = num_outputs == 1
        if self.model.config.pad_token_id is None:  # causal networks score the last token
            end, size = self.model.config.eos_token_id, self.model.config.vocab_size
            # the default end token may lie outside of a small vocabulary
            self.model.config.pad_token_id = end if isinstance(end, int) and end < size else 0

    def forward(self, batch: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Scores of the texts of every part: x (B, L) -> (B,) or (B, num_outputs)."""
        return {name: self._scores(columns["x"]) for name, columns in batch.items()}

    def adapt(self, datamodule: Any) -> None:
        """Check that the datamodule's tokens and lengths of texts are within the network's limits.

        Raises:
            ConfigError: if the datamodule exceeds a limit.
        """
        config = self.model.config
        pairs = {"vocab_size": config.vocab_size, "max_length": getattr(config, "max_position_embeddings", None)}
        for name, limit in pairs.items():
            requested = getattr(datamodule, name, None)
            if requested is not None and limit is not None and requested > limit:
                raise ConfigError(
                    f"the datamodule's {name} is {requested}, but {type(self.model).__name__} allows at most "
                    f"{limit}. Use the tokenizer that belongs to the network, lower data.tokens.max_length, or "
                    "raise the network's own limit if its weights are random (model.network.config)."
                )

    def parameter_groups(self) -> list[ParameterGroup]:
        """Groups of trained parameters with weight decay (matrices) and without (biases, normalisations)."""
        trained = [p for p in self.parameters() if p.requires_grad]
        groups = [ParameterGroup([p for p in trained if (p.ndim > 1) == decay], decay=decay) for decay in (True, False)]
        return [group for group in groups if group.params]

    def head(self) -> nn.Module:
        """All layers after the base network."""
        body = self.model.base_model_prefix
        return nn.ModuleList(part for name, part in self.model.named_children() if name != body)

    def _scores(self, x: Tensor) -> Tensor:
        is_token = x >= 0
        tokens = torch.where(is_token, x, self.model.config.pad_token_id)
        scores: Tensor = self.model(input_ids=tokens, attention_mask=is_token.long()).logits
        return scores.squeeze(1) if self.single else scores


def _random(settings: dict[str, Any]) -> Any:
    transformers = package("transformers", "text", "TextClassifier")
    kind = settings.pop("model_type", None)
    try:
        config = transformers.AutoConfig.for_model(kind, **settings)
        return transformers.AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except (ValueError, TypeError, KeyError) as error:  # each type of network checks its configuration itself
        raise ConfigError(
            f"config={{'model_type': {kind!r}, ...}} does not describe a network that classifies texts "
            f"({_short(error)}). Name a model type that transformers.AutoModelForSequenceClassification supports, "
            "such as bert or distilbert, and arguments of its configuration."
        ) from error


def _from_name(name: str, settings: dict[str, Any], *, pretrained: bool) -> Any:
    transformers = package("transformers", "text", f"name={name!r}")
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, **settings)
        kind = transformers.AutoModelForSequenceClassification
        if not pretrained:
            return kind.from_config(config, trust_remote_code=False)
        return kind.from_pretrained(name, config=config, ignore_mismatched_sizes=True, trust_remote_code=False)
    except Exception as error:  # the hub's client and readers raise errors of many classes
        fault = "its folder holds none" if Path(name).is_dir() else "it is no folder here, and the hub gave none"
        raise ConfigError(
            f"name={name!r}: the network could not be loaded, {fault} (working directory: {Path.cwd()}; "
            f"{_short(error)}). Without a connection, save it on another machine "
            "(AutoModelForSequenceClassification.from_pretrained(NAME).save_pretrained(FOLDER)) and pass that "
            "folder, or pass config=... for random weights."
        ) from error


def _short(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first[:200]}"
