"""Every error that the package raises on purpose.

Each kind is an :class:`FCCOError` and also the built-in kind that a caller would expect, so both
``except FCCOError`` and ``except ValueError`` work.  Messages name the argument, its value, the rule and the way out.
"""

import re
from collections.abc import Sequence

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MOST_SHOWN = 200
"""Characters of a name from data that a table shows."""
_MOST_OF_A_MESSAGE = 4000


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


def printable(name: object, most: int = MOST_SHOWN) -> str:
    r"""Text from data in a form that is safe to print on a terminal, a page or a picture.

    Characters that command a terminal, turn the direction of writing or begin a line are written as escapes, and the
    middle of a long text is left out.

    Example:
        >>> printable("\x1b[2Jgroup")
        '\\x1b[2Jgroup'
        >>> printable("abcdefghij", most=5)
        'ab\u2026ij'
    """
    text = str(name)
    if len(text) > most:
        text = f"{text[: (most - 1) // 2]}\u2026{text[-(most // 2) :]}"
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_lines(message: object) -> str:
    """What :func:`printable` makes of the lines of a message, which stay lines."""
    return "\n".join(printable(line, _MOST_OF_A_MESSAGE) for line in str(message).split("\n"))


def did_you_mean(names: Sequence[str]) -> str:
    """The end of a message about a name that is unknown: whether one of these was meant; nothing if there are none."""
    return f" Did you mean {' or '.join(names)}?" if names else ""
