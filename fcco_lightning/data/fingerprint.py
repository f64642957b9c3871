"""What identifies a training split, so that a checkpoint is never continued on other rows."""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fcco_lightning.errors import DataError


def fingerprint(columns: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, int | str]:
    """Return the number of rows, and a digest of names and of the order of all labels, groups and further columns.

    Args:
        columns: columns of the training split without features, each of n rows.
        names: names of features, classes and groups.
    """
    made = hashlib.sha256("\n".join(names).encode())
    # Labels and groups, not features: integers hash the same on every platform, standardised floats may not.
    for name in sorted(columns.keys() - {"index"}):
        column = columns[name].contiguous()
        kind, order = (torch.float32, "<f4") if column.is_floating_point() else (torch.int64, "<i8")
        made.update(name.encode() + column.to(kind).numpy().astype(order).tobytes())
    return {"rows": len(columns["index"]), "digest": made.hexdigest()[:16]}


def require_same(stored: Mapping[str, int | str], here: Mapping[str, int | str], identifying: str) -> None:
    """Raise :class:`DataError` naming both fingerprints, and the arguments that identify a split, if they differ."""
    if dict(stored) != dict(here):
        raise DataError(
            f"The checkpoint was trained on another training split: {dict(stored)} there, {dict(here)} here. Pass the "
            f"same {identifying} (the digest covers names and row order), or start without the checkpoint."
        )
