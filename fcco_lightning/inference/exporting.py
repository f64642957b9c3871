"""Export of a trained network to files for other programs."""

import importlib.util
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.checks import at_least, list_of
from fcco_lightning.data.encoding import TabularEncoder
from fcco_lightning.errors import ConfigError
from fcco_lightning.inference.predictor import Predictor, load
from fcco_lightning.models import BatchNetwork, CLIPModel, TextClassifier, TimmModel
from fcco_lightning.state.new_file import new_file

LOADER = Path(__file__).with_name("fcco_loader.py")
"""What runs an exported network without this package; a copy of it is written beside every one."""
_OF_LIBRARIES = (CLIPModel, TextClassifier, TimmModel)
"""Networks around the ``model`` of another library, which reads state dicts under its own names."""


def export(
    path: str | Path,
    out: str | Path,
    *,
    shape: Sequence[int] | None = None,
    network: nn.Module | None = None,
    trusted: Sequence[str] = (),
) -> Path:
    """Write the network of a checkpoint, with a variable batch size B.

    - ``.pt``, ``.pth``: the plain state dict, for ``network.load_state_dict(torch.load(out, weights_only=True))``; that
      of a CLIPModel, TimmModel or TextClassifier has the names of its library, for ``open_clip.create_model(name,
      pretrained=out)``, ``timm.create_model(name, checkpoint_path=out)`` or a network of transformers;
    - ``.pt2``: the network itself, for ``torch.export.load(out).module()`` in programs without its class;
    - ``.onnx``: the network for other runtimes; needs the packages onnx and onnxscript.

    A ``.pt2`` or ``.onnx`` takes features.  ``OUT.json`` describes how these are computed from the columns of a table,
    and the meaning of the scores: ``encoding`` (the state of the encoder; null if inputs do not come from a table),
    ``kind`` and ``names`` (see :func:`~fcco_lightning.inference.prediction_table`) and ``decisions`` (the state of the
    DecisionRule).  ``fcco_loader.py`` in the same folder predicts with these files like :meth:`Predictor.predict`,
    without this package.

    Args:
        path: path of the checkpoint.
        out: path of the file to write.
        shape: shape of one input without B, for .pt2 and .onnx; None takes the number of features of a table.
        network: as for :func:`load`.
        trusted: as for :func:`load`.

    Returns: ``out``.

    Raises:
        ConfigError: if ``out`` has another suffix, a package is missing, or the shape of an input is not known.
        CheckpointError: if the checkpoint cannot be read, or ``out`` cannot be written.
    """
    out = Path(out)
    if out.suffix not in (".pt", ".pth", ".pt2", ".onnx"):
        raise ConfigError(f"OUT {out}: cannot export to {out.suffix!r}. Choose .pt, .pt2 or .onnx.")
    if out.suffix == ".onnx" and not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        raise ConfigError(
            f"OUT {out}: ONNX needs the packages onnx and onnxscript. Install them (pip install "
            "'fcco-lightning[onnx]'), or choose .pt2."
        )
    model = load(path, network, trusted=trusted)
    if out.suffix in (".pt", ".pth"):
        module = model.network.model if isinstance(model.network, _OF_LIBRARIES) else model.network
        with new_file(out) as file:
            torch.save(module.state_dict(), file)
    else:
        example = _example(model, shape)
        _write_graph(model, out, example)
        with new_file(Path(f"{out}.json")) as file:
            file.write(json.dumps(_interface(model, example), indent=1, allow_nan=False).encode())
        with new_file(out.with_name(LOADER.name)) as file:
            file.write(LOADER.read_bytes())
    return out


def _interface(model: Predictor, example: Tensor) -> dict[str, Any]:
    """The description of a network's inputs and outputs that a program needs beside its graph."""
    for remark in model.decided_elsewhere:
        warnings.warn(remark, stacklevel=3)
    kind, names = model.scores_of(model(example))
    encoder = model.encoder
    encoding = encoder.state_dict() | {"texts": encoder.texts} if isinstance(encoder, TabularEncoder) else None
    return {"encoding": encoding, "kind": kind, "names": list(names), "decisions": model.rule.state()}


def _write_graph(model: Predictor, out: Path, example: Tensor) -> None:
    free = {0: torch.export.Dim("batch")}
    if out.suffix == ".pt2":
        graph = torch.export.export(model.network, (example,), dynamic_shapes=(free,))
        with new_file(out) as file:
            torch.export.save(graph, file)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own internals
        torch.onnx.export(
            model.network, (example,), out, dynamo=True, dynamic_shapes=(free,), external_data=False, verbose=False
        )


def _example(model: Predictor, shape: Sequence[int] | None) -> Tensor:
    """A batch of two inputs for the network."""
    if isinstance(model.network, BatchNetwork):
        raise ConfigError(
            f"{type(model.network).__name__} reads several columns of a batch and has no single input. Export its "
            "state dict (.pt)."
        )
    if shape is None and model.encoder is None:
        raise ConfigError("the shape of an input is not known: pass --shape, for example --shape 3 224 224.")
    width = [len(model.encoder.feature_names)] if isinstance(model.encoder, TabularEncoder) else []
    shape = None if shape is None else [at_least("shape", size, 1) for size in list_of("shape", shape)]
    if width and shape is not None and shape != width:
        raise ConfigError(f"shape must be that of the table's features, {width}, got {shape}. Leave it out.")
    example = torch.zeros(2, *(width or shape or []))
    try:
        with torch.no_grad():
            model.network(example)
    except Exception as error:  # layers raise errors of many classes
        raise ConfigError(
            f"shape={list(example.shape[1:])}: {type(model.network).__name__} cannot be called with such an input "
            f"({error}). Give the shape that one sample has in batches, as --shape 3 224 224."
        ) from error
    return example
