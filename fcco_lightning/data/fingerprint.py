"""What identifies a training split, so that a checkpoint is never continued on other rows."""

import hashlib
from collections.abc import Mapping, Sequence

from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import DataError


def fingerprint(table: TensorTable, feature_names: Sequence[str]) -> dict[str, int | str]:
    """Return sizes, class and group counts, and a digest of feature names and of the order of labels and groups.

    Args:
        table: training split with columns ``y`` and ``group``.
        feature_names: names of its features.
    """
    y, group = table.columns["y"], table.columns["group"]
    # Labels and groups, not features: integers hash the same on every platform, standardised floats may not.
    rows = (2 * group + y).byte().numpy().tobytes()
    return {
        "rows": len(table),
        "features": len(feature_names),
        "positives": int(y.sum()),
        "favoured": int(group.sum()),
        "digest": hashlib.sha256("\n".join(feature_names).encode() + rows).hexdigest()[:16],
    }


def require_same(stored: Mapping[str, int | str], here: Mapping[str, int | str]) -> None:
    """Raise :class:`DataError` naming both fingerprints if they differ."""
    if dict(stored) != dict(here):
        raise DataError(
            f"The checkpoint was trained on another training split: {dict(stored)} there, {dict(here)} here. Pass the "
            "same train, label, positive, sensitive, favoured, drop, fractions and split_seed (the digest covers "
            "feature names and row order), or start without the checkpoint."
        )
