"""What a network is given: a batch, as columns of one first dimension."""

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

Columns: TypeAlias = Mapping[str, Tensor]
"""The samples of one part of a batch, as columns with one first dimension B.

``index`` (B,) int64 is the position of a sample in the training split, ``x`` the input of the network.  What else there
is depends on the data: ``y`` (B,) int64 labels (or float targets), ``group`` (B,) int64, ``task`` (B,) int64, ``text``
(B, L) int64, ``query`` (B,) int64, ``bag`` (B,) int64, ``time`` (B,) float32, ``event`` (B,) int64.  ``weight`` (B,)
float32, of mean 1 in expectation, is there where samples are not drawn uniformly: with it the weighted mean over the
batch estimates the mean over the data without bias.  ``stratum`` and ``stratum_size`` (B,) int64 are there where pairs
of samples are not equally likely: a sample's stratum, whose members are drawn alike, and their number; beside them
``strata`` (B,) int64, the number of strata, where a batch holds some that are drawn uniformly; and ``replaced`` (B,)
int64 where members are drawn with replacement, how often the batch holds each draw.  ``weight_in_halves`` (B, 2)
float32 is there where a half of a batch does not hold half of every stratum, as of an odd number of positives: what the
weight is to be multiplied by in the first and in the second half.  ``known_stratum`` (B,) int64 is there where
constraints weigh strata by their shares of the training split: the stratum of a sample.  ``sample_weight`` (B,)
float32, of mean 1 over the split, is there where samples count differently in the data themselves; ``weight`` then has
it as a factor, in evaluation batches as the only one.  ``here`` (B,) bool, on the CPU, is there where several processes
share a batch: it marks the samples of this one.
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
        part: of which it is a second draw.
        first: name of the first part of the batch.
    """
    return DUAL if part == first else f"{DUAL}_{part}"
