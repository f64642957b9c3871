"""DRAGO by way of its compiled kernel: what that covers, how it is compiled, and its arguments and results."""

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco_lightning.ambiguity import CappedSimplex, ChiSquarePenalty, EuclideanPenalty, Simplex
from fcco_lightning.dro import kernel
from fcco_lightning.dro.losses import Logistic, Loss, Multinomial, Squared
from fcco_lightning.dro.problem import LinearProblem, Progress
from fcco_lightning.errors import ConfigError

_LOSSES: dict[type[Loss], int] = {
    Squared: kernel.SQUARED,
    Logistic: kernel.LOGISTIC,
    Multinomial: kernel.MULTINOMIAL,
}
_FIRST = 8  # iterations per block to draw at first, and 64 more


@cache
def compiled() -> Callable[..., kernel.Marks]:
    """:func:`kernel.iterate` compiled by numba; the result is kept on the disk, where numba finds a place for it.

    Raises:
        ConfigError: where numba is not installed.
    """
    try:
        from numba import njit  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError:
        raise ConfigError(
            "compiled=True needs numba, which is not installed. Install it (pip install 'fcco-lightning[compiled]'), "
            "or use compiled=False."
        ) from None
    names = dict(vars(kernel))  # a copy, in which functions find each other compiled
    for part in kernel.PARTS:
        # sums may be in any order, as NumPy's and those of its linear algebra are; infinities and nan stay what they are
        names[part.__name__] = njit(cache=True, fastmath={"reassoc", "contract", "nsz"})(
            FunctionType(part.__code__, names, part.__name__)
        )
    return names["iterate"]  # type: ignore[no-any-return]
