"""CLIP models of open_clip: embeddings of image-text pairs, and logits of classes that are described by prompts."""

import difflib
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.weak import WeakIdRef

from fcco_lightning.checks import at_least, fraction, positive
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.base import BatchNetwork, ParameterGroup
from fcco_lightning.models.clip_config import CLIPConfig, clip_config
from fcco_lightning.models.outputs import Embeddings
from fcco_lightning.state.archives import opened
from fcco_lightning.state.checkpoint_files import read_file
from fcco_lightning.state.sharded import is_gathered

_BLOCK = re.compile(r"(?:resblocks|blocks?|layers?)\.?(\d+)\.")  # of transformers, ResNets and Hugging Face's texts
_TOP = re.compile(r"^(?:visual|text)?\.?(?:proj|head|ln_post|ln_final|text_projection|attn_pool\w*|attnpool)\b")
_TEXTS_AT_ONCE = 1024


class CLIPModel(BatchNetwork):
    r"""Image tower E and text tower F of ``open_clip`` (Radford et al., 2021).

    For a pair (x, t) the outputs are the unit embeddings ``E(x) / |E(x)|`` and ``F(t) / |F(t)|``.  For an image without
    a text they are one logit per class: ``<E(x) / |E(x)|, c_k> / temperature``, where ``c_k`` is the normalised mean of
    the unit embeddings of the T prompts of class k.  Outputs are float32 (float64 for a float64 model), whatever
    precision the towers use.

    Args:
        name: architecture, see :func:`~fcco_lightning.models.clip_config.clip_config`.
        pretrained: None for random weights, a tag of open_clip ("openai", "laion2b_s34b_b88k") whose weights are
            downloaded from the hub, or a local file: open_clip's (.safetensors, .pt, .bin), or a checkpoint (.ckpt) of
            ``fcco fit``.  All weights must fit; only position embeddings of another resolution are resized, as in
            open_clip.
        freeze_image: True freezes the image tower, a number n all but its last n blocks and the layers above them.
            Frozen layers stay in evaluation mode.
        freeze_text: the same for the text tower.
        layer_decay: ratio in (0, 1] of the learning rates of a block and the block above it; the top projection has
            the full learning rate.
        grad_checkpointing: whether to store only the inputs of blocks, and compute the rest again in the backward pass.
        class_temperature: divisor of the class logits, > 0; None for ``1 / exp(logit_scale)`` of the weights.

    Attributes:
        model: the model of open_clip.  Its ``logit_scale`` and ``logit_bias`` are not trained: contrastive objectives
            have a temperature of their own.
        config: the architecture, and how images and texts are prepared.

    Raises:
        ConfigError: if there is no such architecture, an argument is out of range, or the weights cannot be loaded or
            do not fit.
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "text")

    def __init__(
        self,
        name: str,
        pretrained: str | None = None,
        *,
        freeze_image: bool | int = False,
        freeze_text: bool | int = False,
        layer_decay: float = 1.0,
        grad_checkpointing: bool = False,
        class_temperature: float | None = None,
    ) -> None:
        super().__init__()
        self.layer_decay = fraction("layer_decay", layer_decay)
        self.class_temperature = None if class_temperature is None else positive("class_temperature", class_temperature)
        if freeze_image is True and freeze_text is True:
            raise ConfigError("freeze_image=True and freeze_text=True freeze the whole network. Leave one of them out.")
        self.freeze_image, self.freeze_text = freeze_image, freeze_text
        self.config = clip_config(name, pretrained)
        self._from_file = pretrained is not None and Path(pretrained).is_file()
        self.model = _created(self.config)
        if pretrained is not None:
            _load(self.model, self.config, pretrained)
        for untrained in (self.model.logit_scale, self.model.logit_bias):
            if isinstance(untrained, nn.Parameter):
                untrained.requires_grad_(False)
        images, texts = _depths(self.model)
        self._depths = {**images, **texts}
        _freeze(self.model, images, "freeze_image", freeze_image)
        _freeze(self.model, texts, "freeze_text", freeze_text)
        self.recomputes = grad_checkpointing
        if grad_checkpointing:
            _checkpoint(self.model, name)
        # no buffer, since averaged copies match buffers by position, and this one may be set after the copy
        self._class_tokens: Tensor | None = None
        self._cached_classes: tuple[Any, Tensor] | None = None  # stamp of the text tower, class embeddings
        self.train()  # sets frozen layers to evaluation mode

    def forward(self, batch: Any) -> Any:
        """Embed image-text pairs, and classify images without texts.

        Args:
            batch: ``x`` (B, 3, H, W), with or without ``text`` (B, L) int64; or a mapping from part to such a
                mapping.  The images of all parts pass through their tower in one call, and so do all texts, including
                class prompts.

        Returns:
            :class:`~fcco_lightning.models.Embeddings` with texts, class logits (B, C) without; for parts a dict
            of these.

        Raises:
            ConfigError: if logits are needed and the datamodule has no classes.
            DataError: if a part has no images.
        """
        if not any(isinstance(part, Mapping) for part in batch.values()):
            return self.forward({"batch": batch})["batch"]
        for name, part in batch.items():
            if "x" not in part:
                raise DataError(f"The part {name!r} of the batch has no images 'x', only {sorted(part)}.")
        images = _in_one_call(self._embed_images, {name: part["x"] for name, part in batch.items()})
        texts = {name: part["text"] for name, part in batch.items() if "text" in part}
        if len(texts) == len(images):
            embedded, classes = _in_one_call(self._embed_texts, texts), None
        else:
            embedded, classes = self._embed_texts_and_classes(texts)
        return {
            name: Embeddings(image, embedded[name]) if name in texts else self._logits(image, classes)
            for name, image in images.items()
        }

    def adapt(self, datamodule: Any) -> None:
        """Set the class prompts ``datamodule.class_tokens``, int64 of shape (C, T, L), if there are any.

        Raises:
            ConfigError: if its images or texts are prepared for another architecture, or the prompts have another
                shape.
        """
        # the preprocessing of weights in a file is not known
        preprocessing = () if self._from_file else ("mean", "std", "interpolation", "resize_mode")
        for name in ("image_size", "context_length", *preprocessing):
            requested, configured = getattr(datamodule, name, None), getattr(self.config, name)
            if requested is not None and requested != configured:
                raise ConfigError(_another(name, requested, self.config))
        if (getattr(datamodule, "vocab_size", None) or 0) > self.config.vocab_size:
            raise ConfigError(_another("vocab_size", datamodule.vocab_size, self.config))
        tokens = getattr(datamodule, "class_tokens", None)
        if tokens is not None and (tokens.ndim != 3 or tokens.dtype != torch.int64 or tokens.numel() == 0):
            raise ConfigError(
                f"class_tokens must be int64 of shape (classes, prompts of each, {self.config.context_length}), none of"
                f" them 0, got {tokens.dtype} of shape {tuple(tokens.shape)}."
            )
        if tokens is not None and tokens.shape[2] != self.config.context_length:
            raise ConfigError(_another("context_length", tokens.shape[2], self.config))
        self._class_tokens = tokens

    def parameter_groups(self) -> list[ParameterGroup]:
        """Groups of trained parameters; biases, norms and position embeddings have no weight decay."""
        exempt = _without_decay(self.model)
        groups: dict[tuple[float, bool], ParameterGroup] = {}
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                continue
            scale, decay = self.layer_decay ** self._depths[name], parameter.ndim > 1 and name not in exempt
            groups.setdefault((scale, decay), ParameterGroup([], scale, decay)).params.append(parameter)
        return list(groups.values())

    def train(self, mode: bool = True) -> "CLIPModel":
        """Switch between training and evaluation mode; frozen layers stay in evaluation mode."""
        super().train(mode)
        self._cached_classes = None  # swaps with averaged weights are not recognised by _stamp
        for module in self.model.modules() if mode else ():
            parameters = list(module.parameters())
            if parameters and not any(p.requires_grad for p in parameters):
                module.eval()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cache, whose weak references cannot be pickled."""
        return {**self.__dict__, "_cached_classes": None}

    def _embed_images(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.freeze_image is not True):
            return _unit(self.model.encode_image(x))

    def _embed_texts(self, text: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.freeze_text is not True):
            return _unit(self.model.encode_text(text))

    def _embed_texts_and_classes(self, texts: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Embed texts (B, L) by part, and the C classes: (C, d)."""
        tokens = self._tokens_on(self.model.logit_scale.device)
        if self.freeze_text is True or not (self.training or torch.is_grad_enabled()):
            return _in_one_call(self._embed_texts, texts), self._kept_classes(tokens)
        prompts = object()  # a key that no part has
        embedded = _in_one_call(self._embed_texts, {**texts, prompts: tokens.flatten(0, 1)})
        return embedded, _class_means(embedded.pop(prompts), tokens)

    def _kept_classes(self, tokens: Tensor) -> Tensor:
        """The class embeddings without graph, which are computed again only if the text tower has changed.

        If weights are sharded over processes, they are computed every time: changes of gathered weights cannot be
        detected, and all processes must take part in gathering them.
        """
        sources = [p for name, p in self.model.named_parameters() if name in self._depths and not _is_image(name)]
        stamp = _stamp([*sources, tokens])
        if self._cached_classes is None or self._cached_classes[0] != stamp or is_gathered(self):
            # no inference tensor, since the image tower may be trained with these
            with torch.inference_mode(False), torch.no_grad():
                rows = [self._embed_texts(some) for some in torch.split(tokens.flatten(0, 1), _TEXTS_AT_ONCE)]
                self._cached_classes = stamp, _class_means(torch.cat(rows), tokens)
        return self._cached_classes[1]

    def _logits(self, images: Tensor, classes: Tensor | None) -> Tensor:
        assert classes is not None  # noqa: S101  (there are classes where a part has no texts)
        with torch.autocast(images.device.type, enabled=False):
            similarities = images @ classes.T
            if self.class_temperature is not None:
                return similarities / self.class_temperature
            scale: Tensor = self.model.logit_scale.detach().to(similarities.dtype)
            return similarities * scale.exp()

    def _tokens_on(self, device: torch.device) -> Tensor:
        if self._class_tokens is None:
            raise ConfigError(
                "class logits are needed (a batch without 'text'), but the datamodule has no class_tokens, the "
                "prompts of the classes. Use a datamodule that describes its classes by prompts, such as "
                "ContinualCLIPDataModule."
            )
        if self._class_tokens.device != device:
            with torch.inference_mode(False):  # usable in training, too
                self._class_tokens = self._class_tokens.to(device)
        return self._class_tokens


def _stamp(sources: list[Tensor]) -> Any:
    """A value that changes if the tensors are replaced, modified or moved, or if the precision changes."""
    kind = sources[0].device.type
    # inference tensors have no version counter and count as changed
    versions = (object() if s.is_inference() else s._version for s in sources)
    tensors = [(WeakIdRef(s), version, s.data_ptr()) for s, version in zip(sources, versions, strict=True)]
    return tensors, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _unit(features: Tensor) -> Tensor:
    return normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)


def _class_means(prompts: Tensor, tokens: Tensor) -> Tensor:
    """Compute the embeddings of C classes from those of C * T prompts."""
    return normalize(prompts.view(*tokens.shape[:2], -1).mean(1), dim=-1)


def _in_one_call(encode: Callable[[Tensor], Tensor], inputs: dict[Any, Tensor]) -> dict[Any, Tensor]:
    if not inputs:
        return {}
    rows = list(inputs.values())
    encoded = encode(rows[0] if len(rows) == 1 else torch.cat(rows))
    return dict(zip(inputs, torch.split(encoded, [len(r) for r in rows]), strict=True))


def _another(name: str, value: Any, config: CLIPConfig) -> str:
    return (
        f"The datamodule's {name} is {value}, that of {config.name!r} is {getattr(config, name)}: they are made for "
        "different architectures, or for other weights. Give data.model.name the same as model.network.name, and "
        "data.model.pretrained the same tag as model.network.pretrained."
    )


def _created(config: CLIPConfig) -> Any:
    import open_clip  # noqa: PLC0415  (slow to import)

    arguments: dict[str, Any] = {**config.model, "text_cfg": dict(config.model["text_cfg"])}
    if "multimodal_cfg" in arguments:
        raise ConfigError(
            f"name={config.name!r} is a CoCa model, whose text decoder is not trained by a contrastive loss. Use a "
            "CLIP model."
        )
    from_hugging_face = "hf_model_name" in arguments["text_cfg"]
    if from_hugging_face:
        arguments["text_cfg"]["hf_model_pretrained"] = False
    kind = open_clip.CustomTextCLIP if arguments.pop("custom_text", False) or from_hugging_face else open_clip.CLIP
    try:
        return kind(**arguments)
    except Exception as error:  # open_clip, timm and transformers raise errors of many classes
        raise ConfigError(
            f"open_clip cannot build name={config.name!r} ({type(error).__name__}: {_short(error)})."
        ) from error


def _load(model: nn.Module, config: CLIPConfig, pretrained: str) -> None:
    import open_clip  # noqa: PLC0415  (slow to import)

    weights = open_clip.get_pretrained_cfg(config.name, pretrained)
    if weights:
        _load_from_hub(model, config, pretrained, weights)
        return
    if not Path(pretrained).is_file():
        tags = open_clip.list_pretrained_tags_by_model(config.name)
        close = difflib.get_close_matches(pretrained, tags, n=3, cutoff=0.5) or tags[:3]
        hint = f" Tags are {', '.join(map(repr, close))}, ..." if close else ""
        if pretrained.endswith(".ckpt"):
            hint = (
                " If a first stage writes it, train that before, in the same folder (digits: --config digits_pretrain)."
            )
        raise ConfigError(
            f"pretrained={pretrained!r} is neither a tag that open_clip has for {config.name!r} nor a file (working "
            f"directory: {Path.cwd()}).{hint}"
        )
    try:
        if pretrained.endswith(".ckpt"):
            model.load_state_dict(_network_of(pretrained))
        else:
            open_clip.load_checkpoint(model, pretrained)
    except Exception as error:  # unpickling, safetensors and load_state_dict raise errors of many classes
        raise ConfigError(
            f"pretrained={pretrained!r} does not hold the weights of {config.name!r}: {_short(error)}"
        ) from error


def _load_from_hub(model: nn.Module, config: CLIPConfig, tag: str, weights: dict[str, Any]) -> None:
    import open_clip  # noqa: PLC0415  (slow to import)

    if weights.get("quick_gelu", False) and not config.model.get("quick_gelu", False):
        raise ConfigError(
            f"pretrained={tag!r}: these weights were trained with the activation QuickGELU, which {config.name!r} "
            f"does not use. Use name='{config.name}-quickgelu'."
        )
    try:
        open_clip.load_checkpoint(model, open_clip.download_pretrained(weights))
    except Exception as error:  # the hub's client raises errors of many classes
        raise ConfigError(
            f"pretrained={tag!r}: the weights of {config.name!r} could not be loaded ({type(error).__name__}: "
            f"{_short(error)}). Without a connection, download the file from "
            f"https://huggingface.co/{weights.get('hf_hub', '').strip('/')} on another machine and pass "
            "pretrained='open_clip_model.safetensors'."
        ) from error


def _network_of(path: str) -> dict[str, Tensor]:
    """The weights of the CLIP network in a checkpoint of ``fcco fit``."""
    content = opened(Path(path))
    state = (read_file(path, whole=True) if "fcco" in content else content)["state_dict"]
    prefix = "network.model."
    weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    if not weights:
        raise ValueError(f"its network is no CLIPModel (no '{prefix}*', but {', '.join(list(state)[:3])}, ...).")
    return weights


def _is_image(name: str) -> bool:
    return name.startswith("visual.")


def _depths(model: Any) -> tuple[dict[str, int], dict[str, int]]:
    """For every parameter its depth below the top of its tower: 0 for the projection, 1 for the last block, ..."""
    names = [name for name, _ in model.named_parameters() if not name.startswith("logit_")]
    images, texts = [n for n in names if _is_image(n)], [n for n in names if not _is_image(n)]
    trunk = getattr(model.visual, "trunk", None)
    if trunk is None:
        return _ranked(images), _ranked(texts)
    from timm.models import group_parameters  # noqa: PLC0415  (slow to import)

    layers = group_parameters(trunk, trunk.group_matcher(), reverse=True)
    top = 1 + max(layers.values())
    return {name: top - layers.get(name.removeprefix("visual.trunk."), top) for name in images}, _ranked(texts)


def _ranked(names: list[str]) -> dict[str, int]:
    blocks = {name: int(match[1]) for name in names if (match := _BLOCK.search(name))}
    order = sorted(set(blocks.values()), reverse=True)
    ranks = {name: 0 if _TOP.match(name) else len(order) + 1 for name in names}
    return ranks | {name: 1 + order.index(block) for name, block in blocks.items()}


def _freeze(model: nn.Module, depths: dict[str, int], argument: str, amount: bool | int) -> None:
    if amount is False:
        return
    trained = -1 if amount is True else at_least(argument, amount, 1)
    if trained >= max(depths.values()):
        raise ConfigError(
            f"{argument}={amount}, but the tower has only {max(depths.values()) - 1} blocks. Leave {argument} out "
            "to train all of them."
        )
    for name, depth in depths.items():
        if depth > trained:
            model.get_parameter(name).requires_grad_(False)


def _checkpoint(model: Any, name: str) -> None:
    from open_clip.modified_resnet import ModifiedResNet  # noqa: PLC0415  (slow to import)

    if isinstance(model.visual, ModifiedResNet):
        raise ConfigError(f"grad_checkpointing=True: open_clip does not offer it for the ResNet of {name!r}.")
    model.set_grad_checkpointing()


def _without_decay(model: Any) -> set[str]:
    names = set(model.no_weight_decay())
    trunk = getattr(model.visual, "trunk", None)
    if trunk is not None and hasattr(trunk, "no_weight_decay"):  # a network of timm
        names |= {f"visual.trunk.{name}" for name in trunk.no_weight_decay()}
    return names


def _short(error: Exception) -> str:
    return textwrap.shorten(str(error), 400, placeholder=" ...")
