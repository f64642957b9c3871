"""Architectures of CLIP models, and how their images and texts are prepared, without building the models."""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, did_you_mean

_TINY: dict[str, Any] = {
    "tokenizer": "bytes",
    "model_cfg": {
        "embed_dim": 64,
        "vision_cfg": {"width": 64, "layers": 3, "head_width": 16},
        "text_cfg": {"context_length": 32, "vocab_size": 258, "width": 64, "heads": 4, "layers": 2},
    },
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
}
_OWN = {"tiny": 16, "tiny-28": 28}  # side of an image in pixels, with 4 x 4 patches


@dataclass(frozen=True)
class CLIPConfig:
    """A CLIP architecture and how its images and texts are prepared.

    Attributes:
        name: the name or path by which it was requested.
        image_size: side of an image in pixels.
        mean: means of the three channels, for values in [0, 1], which are subtracted.
        std: standard deviations of the three channels, which divide.
        interpolation: how images are resized: "bicubic" or "bilinear".
        resize_mode: how images become square: by a centre crop ("shortest"), by changing the aspect ratio ("squash"),
            or by padding ("longest").
        context_length: number of tokens of a text, including padding.
        vocab_size: number of token ids 0..vocab_size-1.
        embed_dim: length d of an embedding.
        model: the architecture as a configuration of open_clip: ``embed_dim``, ``vision_cfg``, ``text_cfg``, ...
        tokenizer: "open_clip" for open_clip's tokenizer of the architecture, "bytes" for :class:`ByteTokenizer`.
    """

    name: str
    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str
    context_length: int
    vocab_size: int
    embed_dim: int
    model: dict[str, Any]
    tokenizer: str = "open_clip"
    resize_mode: str = "shortest"


class ByteTokenizer:
    """A tokenizer without vocabulary or files: the tokens of a text are the bytes of its lower-case UTF-8 encoding.

    A text becomes ``256, bytes..., 257`` and zeros up to ``context_length``; longer texts are truncated to
    ``context_length - 2`` bytes.  The end marker 257 is the largest id, since open_clip's "argmax" pooling requires it.

    Args:
        context_length: number of tokens of a text, at least 3.

    Example:
        >>> ByteTokenizer(6)(["Hi", "a long text"])
        tensor([[256, 104, 105, 257,   0,   0],
                [256,  97,  32, 108, 111, 257]])
    """

    vocab_size = 258

    def __init__(self, context_length: int) -> None:
        if context_length < 3:
            raise ConfigError(f"context_length must be at least 3 (start, a byte, end), got {context_length}.")
        self.context_length = context_length

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return the ids of n texts, shape (n, context_length), int64."""
        ids = torch.zeros(len(texts), self.context_length, dtype=torch.int64)
        for row, text in zip(ids, texts, strict=True):
            content = text.lower().encode()[: self.context_length - 2]
            row[: len(content) + 2] = torch.tensor([256, *content, 257])
        return ids


def clip_config(name: str, pretrained: str | None = None) -> CLIPConfig:
    """Return the architecture ``name`` and how its images and texts are prepared.

    Args:
        name: a name of ``open_clip.list_models()`` ("ViT-B-16", "ViT-B-32-quickgelu"), "tiny" (280 thousand
            parameters, images of 16 x 16 pixels, texts as bytes: for tests and demonstrations), "tiny-28" (the same for
            images of 28 x 28), or the path of a .json file in open_clip's format: the architecture alone, or as on the
            hub with ``model_cfg`` and ``preprocess_cfg``.  ``"tokenizer": "bytes"`` at the top level of a file selects
            :class:`ByteTokenizer`.
        pretrained: a tag of open_clip ("openai"), whose weights determine the normalisation of images.  Any other text
            is the path of a file; images are then normalised as with None.

    Raises:
        ConfigError: if there is no such architecture, or the file is not one.
    """
    content = _tiny(name) if name in _OWN else _from_file(name) if name.endswith(".json") else _from_open_clip(name)
    model: dict[str, Any] = dict(content.get("model_cfg", content))
    kind = str(content.get("tokenizer", model.pop("tokenizer", "open_clip")))
    preprocess = {**_preprocess(name, pretrained), **content.get("preprocess_cfg", {})}
    if kind not in ("open_clip", "bytes"):
        raise ConfigError(f'name={name!r}: "tokenizer" must be "bytes" or left out, got {kind!r}.')
    try:
        vision, text = model["vision_cfg"], model["text_cfg"]
        config = CLIPConfig(
            name=name,
            image_size=_side(vision.get("image_size", 224)),
            mean=_three(preprocess["mean"]),
            std=_three(preprocess["std"]),
            interpolation=preprocess["interpolation"],
            context_length=int(text.get("context_length", 77)),  # open_clip's own defaults
            vocab_size=int(text.get("vocab_size", 49408)),
            embed_dim=int(model["embed_dim"]),
            model=json.loads(json.dumps(model)),  # a deep copy
            tokenizer=kind,
            resize_mode=preprocess["resize_mode"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"name={name!r} is not an architecture in open_clip's form ({type(error).__name__}: {error}). It must give "
            "embed_dim, vision_cfg and text_cfg, with square images and three numbers for mean and std."
        ) from error
    if kind == "bytes" and config.vocab_size < ByteTokenizer.vocab_size:
        raise ConfigError(
            f"name={name!r}: the byte tokenizer needs text_cfg.vocab_size >= {ByteTokenizer.vocab_size}, "
            f"got {config.vocab_size}."
        )
    return config


def tokenizer(config: CLIPConfig) -> Callable[[list[str]], Tensor]:
    """Return the function from n texts to token ids (n, context_length), int64; it can be pickled.

    Raises:
        ConfigError: if the tokenizer's files cannot be loaded, its package is not installed, or it has more ids than
            the architecture.
    """
    if config.tokenizer == "bytes":
        return ByteTokenizer(config.context_length)
    from open_clip.tokenizer import HFTokenizer, SimpleTokenizer  # noqa: PLC0415  (slow to import)

    text = config.model["text_cfg"]
    try:
        if text.get("hf_tokenizer_name"):
            encode = HFTokenizer(
                text["hf_tokenizer_name"],
                context_length=config.context_length,
                tokenizer_mode=text.get("tokenizer_mode"),
                **text.get("tokenizer_kwargs", {}),
            )
        else:
            encode = SimpleTokenizer(context_length=config.context_length, **text.get("tokenizer_kwargs", {}))
    except Exception as error:  # the hub's client and missing packages raise errors of many classes
        raise ConfigError(
            f"the tokenizer of {config.name!r} could not be loaded ({type(error).__name__}: {error}). Tokenizers of "
            "the Hugging Face hub need a connection and the package transformers; OpenAI's architectures, such as "
            "'ViT-B-16', need neither."
        ) from error
    size = getattr(encode, "vocab_size", 0)
    if size > config.vocab_size:
        raise ConfigError(
            f"{config.name!r}: its tokenizer has {size} ids, but text_cfg.vocab_size is {config.vocab_size}. Raise "
            'text_cfg.vocab_size, or write "tokenizer": "bytes" at the top level of the file.'
        )
    return encode  # type: ignore[no-any-return]


def _tiny(name: str) -> Mapping[str, Any]:
    """One of the small architectures."""
    model = _TINY["model_cfg"]
    vision = {**model["vision_cfg"], "image_size": _OWN[name], "patch_size": _OWN[name] // 4}
    return {**_TINY, "model_cfg": {**model, "vision_cfg": vision}}


def _from_open_clip(name: str) -> Mapping[str, Any]:
    import open_clip  # noqa: PLC0415  (slow to import)

    names = open_clip.list_models()
    if name in names:
        return open_clip.get_model_config(name)  # type: ignore[no-any-return]
    close = difflib.get_close_matches(name, [*names, *_OWN], n=3, cutoff=0.5)
    hint = did_you_mean([repr(other) for other in close])
    raise ConfigError(
        f"name={name!r} is neither a model of open_clip, nor 'tiny', nor the path of a .json file.{hint} "
        "open_clip.list_models() gives all names."
    )


def _from_file(path: str) -> Mapping[str, Any]:
    if not Path(path).is_file():
        raise ConfigError(f"name={path!r}: no such file (working directory: {Path.cwd()}).")
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"name={path!r} cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"name={path!r} holds a {type(content).__name__}; an architecture is a JSON object.")
    return content


def _preprocess(name: str, pretrained: str | None) -> dict[str, Any]:
    """The preprocessing of images for the weights of the tag, else for the first tag in open_clip's list."""
    default = {
        "interpolation": "bicubic",
        "resize_mode": "shortest",
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
    }
    if name in _OWN or name.endswith(".json"):
        return default
    from open_clip import get_pretrained_cfg, list_pretrained_tags_by_model  # noqa: PLC0415  (slow to import)

    tag_configs = [get_pretrained_cfg(name, tag) for tag in (pretrained or "", *list_pretrained_tags_by_model(name))]
    return {**default, **next(filter(None, tag_configs), {})}


def _side(size: Any) -> int:
    sides = {int(s) for s in size} if isinstance(size, (list, tuple)) else {int(size)}
    if len(sides) != 1:
        raise ValueError(f"image_size {size}")
    return sides.pop()


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(v) for v in values)
    return red, green, blue
