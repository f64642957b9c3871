"""Batches: mappings from part to columns, which have the same first dimension; and names of special columns."""

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

Columns: TypeAlias = Mapping[str, Tensor]
"""The samples of one part of a batch, as columns with one first dimension B.

Every batch has ``index``; what else there is depends on the data, on how they are drawn, and on the constraints.

====================  ============  ========  =====================================================================
name                  shape         type      what it says of a sample, and who writes it
====================  ============  ========  =====================================================================
``index``             (B,)          int64     its position in the training split (the table)
``x``                 (B, ...)      float32,  the input of the network (the table; of a wide one its encoder, batch
                                    int64     by batch); int64 for tokens
``x2``                (B, ...)      float32   a second view of an image (the table of images)
``text``              (B, L)        int64     the tokens of its caption (the table of pairs)
``y``                 (B,), (B, T)  int64,    its label, or T of them; float32 where it is a number (the data module,
                                    float32   as ``columns.label`` says)
``group``             (B,)          int64     its group, -1 for none (the data module, as ``columns.sensitive`` or
                                              ``groups.by`` says)
``task``              (B,)          int64     which of T labels ``y`` is (the table of labels), or its protected task
                                              (the data module of pairs)
``query``, ``bag``    (B,)          int64     what it belongs to (the data module, as ``columns.extra`` says)
``time``              (B,)          float32   its survival time (likewise)
``event``             (B,)          int64     1 for an event, 0 if it is censored (likewise)
``sample_weight``     (B,)          float32   how much it counts in the data, of mean 1 over the split (the data
                                              module, as ``columns.weight`` says)
``weight``            (B,)          float32   with what a mean over the batch estimates the mean over the data without
                                              bias, of mean 1 in expectation (the plan, where samples are not drawn
                                              uniformly; ``sample_weight`` is a factor of it, in evaluation the only
                                              one)
``stratum``           (B,)          int64     its stratum, whose members are drawn alike (the plan, where pairs of
                                              samples are not equally likely)
``stratum_size``      (B,)          int64     how many members that has (likewise)
``strata``            (B,)          int64     how many strata there are (the plan, where a batch holds some of them,
                                              drawn uniformly)
``replaced``          (B,)          int64     how often the batch holds each draw (the plan, where members are drawn
                                              with replacement)
``weight_in_halves``  (B, 2)        float32   what ``weight`` is to be multiplied by in the first and in the second
                                              half of a batch (the plan, where a half does not hold half of every
                                              stratum, as of an odd number of positives)
``known_stratum``     (B,)          int64     its stratum (the engine, where constraints weigh strata by their shares
                                              of the training split)
``here``              (B,)          bool      whether this process has it (the engine, on the CPU, where several
                                              processes share a batch)
====================  ============  ========  =====================================================================
"""

Batch: TypeAlias = Mapping[str, Columns]
"""A batch: its parts by name, in order.  A data set with one loader gives one part, ``"target"``."""

IN_HALVES = "weight_in_halves"
"""Name of the column that corrects weights where a half of a batch is measured alone."""

KNOWN_STRATUM = "known_stratum"
"""Name of the column that an engine adds for means over sides whose samples are drawn with several probabilities."""

POPULATION = "population"
"""Name of the column that an engine adds to those of the training split where batches stand for another population than
the data: for how many of its samples each one counts, shape (n,), float64, of mean 1."""

SAMPLE_WEIGHT = "sample_weight"
"""Name of the column that says how much a sample counts in the data, of mean 1 over the training split."""

HERE = "here"
"""Name of the column that marks the samples of this process."""

TARGET = "target"
"""Name of the part that a single loader gives; with several loaders the first one is the objective's."""

DUAL = "dual"
"""Name of the part with a second, independent draw of the first one's samples, see :func:`dual_of`."""


def dual_of(part: str, first: str = TARGET) -> str:
    """Name of the part with a second, independent draw of the samples of a part.

    Args:
        part: name of the part.
        first: name of the first part of the batch.
    """
    return DUAL if part == first else f"{DUAL}_{part}"
