"""Image networks of the timm library with a new head."""

import difflib
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fcco_lightning.checks import at_least, below_one
from fcco_lightning.errors import ConfigError, did_you_mean


class TimmModel(nn.Module):
    """An image network of ``timm`` with a newly initialised head.

    Args:
        name: a name of ``timm.list_models()``, with or without a tag ("resnet18", "resnet18.a1_in1k").
        num_outputs: number of scores per image; with 1 the output has shape (B,), otherwise (B, num_outputs).
        pretrained: whether to download timm's weights from the hub (to its cache folder).
        checkpoint_path: local file of weights with timm's names (.safetensors, .bin, .pth) instead; its head is used
            if it has ``num_outputs`` outputs, and all other weights must fit.
        in_chans: number of channels of an image; pretrained first layers are adapted.
        drop_rate: dropout probability before the head, in [0, 1).
        freeze_backbone: whether to train only the head; the backbone then also keeps its BatchNorm statistics.
        **kwargs: further arguments of ``timm.create_model``.

    Raises:
        ConfigError: if timm has no such model, or the weights cannot be loaded or do not fit.
    """

    def __init__(
        self,
        name: str,
        num_outputs: int = 1,
        pretrained: bool = False,
        checkpoint_path: str | None = None,
        in_chans: int = 3,
        drop_rate: float = 0.0,
        freeze_backbone: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        below_one("drop_rate", drop_rate)
        if pretrained and checkpoint_path is not None:
            raise ConfigError(
                f"pretrained=True and checkpoint_path={checkpoint_path!r} both give weights. Leave pretrained out."
            )
        _require_known(name)
        arguments = {
            "num_classes": at_least("num_outputs", num_outputs, 1),
            "in_chans": at_least("in_chans", in_chans, 1),
            "drop_rate": drop_rate,
            **kwargs,
        }
        if pretrained:
            self.model = _from_hub(name, arguments)
        elif checkpoint_path is not None:
            self.model = _from_file(name, checkpoint_path, arguments)
        else:
            self.model = _create(name, arguments)
        self.single = num_outputs == 1
        self.freeze_backbone = freeze_backbone
        if freeze_backbone:
            self.model.requires_grad_(False)
            self.head().requires_grad_(True)
            self.train()  # else its BatchNorm statistics would change

    @property
    def data_config(self) -> dict[str, Any]:
        """The required preprocessing of images: ``input_size`` (C, H, W), ``mean``, ``std``, ``crop_pct``, ..."""
        from timm.data.config import resolve_model_data_config  # noqa: PLC0415  (slow to import)

        return dict(resolve_model_data_config(self.model))  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the images x, shape (B, in_chans, H, W) -> (B,) or (B, num_outputs)."""
        scores: Tensor = self.model(x)
        return scores.squeeze(1) if self.single else scores

    def train(self, mode: bool = True) -> "TimmModel":
        """Switch between training and evaluation mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.freeze_backbone:
            self.model.eval()
            self.head().train(mode)
        return self

    def head(self) -> nn.Module:
        """The classifier, or classifiers, by timm's ``get_classifier``."""
        classifier = self.model.get_classifier()  # type: ignore[operator]
        return nn.ModuleList(classifier if isinstance(classifier, tuple) else [classifier])


def _require_known(name: str) -> None:
    import timm  # noqa: PLC0415  (slow to import)

    if ":" in name or timm.is_model(name):  # "hf-hub:owner/name" is looked up by timm itself
        return
    close = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
    hint = did_you_mean([repr(other) for other in close])
    raise ConfigError(f"name={name!r} is not a model of timm.{hint} timm.list_models() gives all names.")


def _create(name: str, arguments: dict[str, Any], **weights: Any) -> nn.Module:
    import timm  # noqa: PLC0415  (slow to import)

    try:
        model: nn.Module = timm.create_model(name, **arguments, **weights)
    except TypeError as error:
        raise ConfigError(f"timm.create_model({name!r}) does not take these arguments: {error}.") from error
    return model


def _from_hub(name: str, arguments: dict[str, Any]) -> nn.Module:
    try:
        return _create(name, arguments, pretrained=True)
    except ConfigError:
        raise
    except Exception as error:  # the hub's client raises errors of no common class
        raise ConfigError(
            f"pretrained=True: the weights of {name!r} could not be loaded ({type(error).__name__}: {error}). "
            "Without a connection, download the model's file from https://huggingface.co/timm on another machine "
            "and pass checkpoint_path='model.safetensors', or leave pretrained out."
        ) from error


def _from_file(name: str, path: str, arguments: dict[str, Any]) -> nn.Module:
    from timm.models import load_state_dict  # noqa: PLC0415  (slow to import)

    if not Path(path).is_file():
        raise ConfigError(f"checkpoint_path={path!r}: no such file (working directory: {Path.cwd()}).")
    fresh = _create(name, arguments)
    try:
        state = load_state_dict(path)
        # A head of another task is replaced by the new one; timm then loads strictly, so that a file of another network
        # is refused instead of ignored.
        for key, value in _head_of(fresh).items():
            if key not in state or state[key].shape != value.shape:
                state[key] = value
        overlay = {"state_dict": state, "source": "", "num_classes": arguments["num_classes"], "label_offset": 0}
        model = _create(name, arguments, pretrained=True, pretrained_cfg_overlay=overlay)
    except ConfigError:
        raise
    except Exception as error:  # unpickling, safetensors and load_state_dict each raise their own
        raise ConfigError(
            f"checkpoint_path={path!r} does not hold the weights of {name!r} under timm's names: {error}"
        ) from error
    settings: Any = model.pretrained_cfg
    settings.pop("state_dict", None)  # a second copy of all weights
    return model


def _head_of(model: nn.Module) -> dict[str, Tensor]:
    names = model.pretrained_cfg["classifier"]  # type: ignore[index]
    heads = {names} if isinstance(names, str) else set(names or ())
    return {key: value for key, value in model.state_dict().items() if key.rpartition(".")[0] in heads}
