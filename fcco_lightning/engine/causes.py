"""What may lie behind a value that is not finite, in sentences for the error that says so."""

import torch
from torch import Tensor, nn

from fcco_lightning.records import Batch, Columns

_MOST_NAMED = 10


def causes(batch: Batch, network: nn.Module) -> str:
    """Samples whose input ``x`` is not finite, and weights of type float16, each a sentence behind a blank.

    Args:
        batch: that was trained on.
        network: with its present weights.
    """
    return "".join(_bad_inputs(columns) for columns in batch.values()) + narrow_weights(network)


def narrow_weights(network: nn.Module) -> str:
    """A sentence behind a blank on what float16 does not hold, if a weight is of that type; else nothing."""
    if all(p.dtype != torch.float16 for p in network.parameters()):
        return ""
    return (
        " The weights are float16 (precision 16-true), which holds nothing above 65504 or below 6e-8: use "
        "--trainer.precision bf16-mixed or 32-true."
    )


def named_samples(bad: Tensor, columns: Columns) -> str:
    """The samples that a mask (B,) marks, by their ``index``, or by their position where there is none."""
    at = bad.nonzero()[:, 0]
    numbers = columns["index"].to(at.device)[at].flatten() if "index" in columns else at
    more = f" and {len(at) - _MOST_NAMED} more" if len(at) > _MOST_NAMED else ""
    what = "index" if "index" in columns else "position"
    return f"the samples with {what} {', '.join(str(i) for i in numbers[:_MOST_NAMED].tolist())}{more}"


def _bad_inputs(columns: Columns) -> str:
    x = columns.get("x")
    if not isinstance(x, Tensor) or x.layout != torch.strided:
        return ""
    bad = ~torch.isfinite(x).reshape(len(x), -1).all(1)
    return f" `x` of {named_samples(bad, columns)} is NaN or infinite." if bool(bad.any()) else ""
