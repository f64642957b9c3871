"""Every error that the package raises on purpose.

Each kind is an :class:`FCCOError` and also the built-in kind that a caller would expect, so both
``except FCCOError`` and ``except ValueError`` work.  Messages name the argument, its value, the rule and the way out.
"""

from collections.abc import Sequence


class FCCOError(Exception):
    """Base of all errors raised on purpose by ``fcco_lightning``."""


class ConfigError(FCCOError, ValueError):
    """An argument or a combination of parts is outside what the mathematics or the framework allows.

    For example a step size below 0, an algorithm for convex outer functions with one that is not, or a name that no
    class has.  What was asked for has to change; the data are not to blame.
    """


class DataError(FCCOError, ValueError):
    """A table, column, label, group or batch is not what was announced.

    For example a missing column, one class where two are needed, or fewer rows than a batch takes.
    """


class StateIndexError(FCCOError, IndexError):
    """A dataset index does not name a row of the dual state.

    Rows are numbered 0..n-1 by the position of a sample in the training split; an index that is negative, too large or
    no whole number would otherwise change the row of another sample.
    """


class NonFiniteError(FCCOError, FloatingPointError):
    """A NaN or an infinity was about to enter the dual state or the weights.

    It is raised before anything is written, so that the last checkpoint is sound.  A smaller learning rate, clipped
    gradients, or ``skip_nonfinite`` for single bad batches are the ways out.
    """


class CheckpointError(FCCOError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to another problem: another network, data set or number of rows."""


class PeerError(FCCOError, RuntimeError):
    """Another process of the job has failed, so this one stops in the same step; the other's message says why."""


def did_you_mean(names: Sequence[str]) -> str:
    """The end of a message about a name that is unknown: whether one of these was meant; nothing if there are none."""
    return f" Did you mean {' or '.join(names)}?" if names else ""
