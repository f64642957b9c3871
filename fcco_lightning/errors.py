"""Every error that the package raises on purpose.

Each kind is an :class:`FCCOError` and also the built-in kind that a caller would expect, so both
``except FCCOError`` and ``except ValueError`` work.  Messages name the argument, its value, the rule and the way out.
"""


class FCCOError(Exception):
    """Base of all errors raised on purpose by ``fcco_lightning``."""


class ConfigError(FCCOError, ValueError):
    """An argument or a combination of parts is outside what the mathematics or the framework allows."""


class DataError(FCCOError, ValueError):
    """A table, column, label, group or batch is not what was announced."""


class StateIndexError(FCCOError, IndexError):
    """A dataset index does not name a row of the dual state."""


class NonFiniteError(FCCOError, FloatingPointError):
    """A NaN or an infinity was about to enter the dual state or the weights."""


class CheckpointError(FCCOError, RuntimeError):
    """A checkpoint is damaged or belongs to another problem."""


class PeerError(FCCOError, RuntimeError):
    """Another process of the job has failed, so this one stops in the same step."""
