r"""Dual steps and Jacobians on independent samples.

ALEXR and ALEXR2 update y_i with one draw of samples and take the Jacobian of g_i on another, independent draw.  On the
same samples the two are correlated, and ``Cov(y_i, grad g_i)`` biases the gradient estimate, however small the steps
are.  The argument ``jacobian`` of an algorithm selects the two draws:

- "halves": the first half of a batch updates y, the second half gives the Jacobian.  With group-wise batches each half
  holds half the samples of every group; weights correct for odd numbers of samples.  A row with samples in the second
  half only uses its remembered y.
- "part": a second batch from a loader of its own, the part "dual" (``two_draws`` of ``batches``), updates y;
  the batch itself gives the Jacobian.  Twice as many samples pass through the network.  Where batches hold a few of
  many groups, both draws are from the same groups, and independent given these groups.
- "old": the Jacobian of the whole batch is multiplied by the y before this step, then the batch updates y.
- "reuse": the same batch updates y and gives the Jacobian.  This is biased.

The argument concerns estimators with dual steps (``convex_only``) only.  The others always use the whole batch: an
average whose outer gradient is taken at the rows before the step is independent of the batch.
"""

from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from fcco_lightning.engine import Outputs
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import DUAL, IN_HALVES, Columns, dual_of

Jacobian = Literal["halves", "part", "old", "reuse"]


def halves(outputs: Outputs) -> tuple[Outputs, Outputs]:
    """The first and the second half of the samples of every part."""
    return _half(outputs, first=True), _half(outputs, first=False)


def _half(outputs: Outputs, *, first: bool) -> Outputs:
    """Half of a batch, with half of the copies of every sample drawn with replacement.

    Where a half holds another share of a stratum than the batch, the samples' weights correct for it.
    """
    halves: list[Any] = [{}, {}, None if outputs.before is None else {}]
    for name, columns in outputs.columns.items():
        size = _half_size(name, columns)
        cut = slice(0, size) if first else slice(size, None)
        for half, whole in zip(halves, (outputs.now, outputs.columns, outputs.before), strict=True):
            if whole is not None:
                half[name] = pytree.tree_map(lambda leaf, cut=cut: leaf[cut], whole[name])
        if IN_HALVES in columns:
            half_columns = halves[1][name]
            half_columns["weight"] = half_columns.get("weight", 1) * half_columns[IN_HALVES][:, 0 if first else 1]
        if "replaced" in columns:
            copies = halves[1][name]["replaced"]
            halves[1][name]["replaced"] = torch.where(copies > 1, copies // 2, copies)
    now, columns, before = halves
    return outputs._replace(now=now, columns=columns, before=before)


def _half_size(name: str, columns: Columns) -> int:
    """Number of samples of the first half of a part.

    Raises:
        ConfigError: if the part holds one sample.
    """
    size = len(next(iter(columns.values())))
    if size < 2:
        raise ConfigError(
            f"the part {name!r} of a batch contains {size} sample, which cannot be split into two half-batches. Use "
            "larger batches, drop_last=True for the last batch of an epoch, or another choice of `jacobian`."
        )
    return size // 2


def check_copies(outputs: Outputs) -> None:
    """Refuse batches whose halves do not hold equally many copies of every draw.

    Raises:
        ConfigError: naming the number of copies in a batch.
    """
    for copies in (columns["replaced"] for columns in outputs.columns.values() if "replaced" in columns):
        if bool((copies % 2 * (copies > 1)).any()):
            raise ConfigError(
                f"a batch drawn with replacement contains every sample {int(copies.max())} times, which two "
                "half-batches cannot share equally. Use an even number of copies, or another choice of `jacobian`."
            )


def dual_part(outputs: Outputs) -> Outputs:
    """The independent draws ("dual", "dual_protected", ...), under the names of the parts that they belong to.

    Raises:
        ConfigError: if the loaders give none.
    """
    pairs = dual_names(outputs)
    now, columns = ({name: whole[dual] for name, dual in pairs.items()} for whole in (outputs.now, outputs.columns))
    before = None if outputs.before is None else {name: outputs.before[dual] for name, dual in pairs.items()}
    return outputs._replace(now=now, columns=columns, before=before)


def dual_names(outputs: Outputs) -> dict[str, str]:
    """A map from the name of every part to the name of its independent draw.

    Raises:
        ConfigError: if the loaders give none.
    """
    names = list(outputs.columns)
    if DUAL not in names:
        raise ConfigError(
            f"jacobian='part' updates y with a second, independent draw of samples, the part {DUAL!r} of a batch; "
            f"the loaders give {names}. Set two_draws of the datamodule's `batches`, or use jacobian='halves'."
        )
    duals = {name: dual_of(name, names[0]) for name in names}
    return {name: dual for name, dual in duals.items() if dual in names}
