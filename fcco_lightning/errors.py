"""All errors that the package raises deliberately.

Each class is an :class:`FCCOError` and also a subclass of the corresponding built-in error, so that both ``except
FCCOError`` and ``except ValueError`` work.  Messages name the argument, its value, the rule and the remedy.
"""

import re
from collections.abc import Sequence

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MOST_SHOWN = 200
"""Maximum number of characters of a name from data in a table."""
_MOST_OF_A_MESSAGE = 4000


class FCCOError(Exception):
    """Base class of all errors raised deliberately by ``fcco_lightning``."""


class ConfigError(FCCOError, ValueError):
    """An argument, or a combination of arguments, is not allowed by the mathematics or the framework.

    Examples are a negative step size, an algorithm for convex outer functions with a non-convex one, or an unknown
    class name.  The configuration must be changed, not the data.
    """


class DataError(FCCOError, ValueError):
    """A table, column, label, group or batch is not as required.

    Examples are a missing column, one class where two are needed, or fewer rows than a batch needs.
    """


class StateIndexError(FCCOError, IndexError):
    """A sample index is not that of a row of the dual state.

    Rows are numbered 0..n-1 by the position of a sample in the training split; a negative, too large or non-integer
    index would otherwise change the row of another sample.
    """


class NonFiniteError(FCCOError, FloatingPointError):
    """A NaN or an infinity was about to enter the dual state or the weights.

    It is raised before anything is written, so that the last checkpoint is valid.  Remedies are a smaller learning
    rate, gradient clipping, or ``skip_nonfinite`` for single bad batches.
    """


class CheckpointError(FCCOError, RuntimeError):
    """A checkpoint is missing, damaged, or belongs to another problem: another network, data set or number of rows."""


class PeerError(FCCOError, RuntimeError):
    """Another process of the job has failed, so this one stops in the same step; the message contains its error."""


def printable(name: object, most: int = MOST_SHOWN) -> str:
    r"""Text from data in a form that is safe to print in a terminal, a page or a picture.

    Control characters, line breaks and characters that change the writing direction are escaped, and the middle of a
    long text is left out.

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
    """A message with :func:`printable` applied to each of its lines."""
    return "\n".join(printable(line, _MOST_OF_A_MESSAGE) for line in str(message).split("\n"))


def did_you_mean(names: Sequence[str]) -> str:
    """The last sentence of a message about an unknown name, which suggests ``names``; empty without any."""
    return f" Did you mean {' or '.join(names)}?" if names else ""
