"""Exit status and message of a command that fails; libraries are looked up only if the command has loaded them."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable

from fcco_lightning.errors import ConfigError, FCCOError, printable_lines

_OF_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.ECONNREFUSED, errno.ECONNRESET)


def status_of(work: Callable[[], object], *, trains: bool = False) -> int:
    """Carry out a command, print a message for an expected error, and destroy a process group that it has made.

    Errors that are not expected, and all of them if ``FCCO_DEBUG`` is set, are raised with their traceback.

    Args:
        work: what the command does.
        trains: whether it trains or evaluates a run, which shows a progress bar and may be resumed.

    Returns: the exit status: 0, 2 if an argument is refused, 1 for any other error, 130 or 143 when interrupted.
    """
    existed = _has_process_group()
    try:
        work()
        if _has_process_group() and not existed:
            from fcco_lightning.state.processes import end_processes  # noqa: PLC0415 - loads torch

            end_processes()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        refused = isinstance(error, SystemExit) and error.code == 2  # the parser has printed its message
        raises = refused or os.environ.get("FCCO_DEBUG")
        explained = None if raises else explain(error, trains=trains)
        if explained is None:
            raise
        status, message = explained
        line = "\n" * (trains and "lightning" in sys.modules)  # of a progress bar
        sys.stderr.write(f"{line}fcco: {printable_lines(message)}\n")
        return status
    return 0


def explain(error: BaseException, *, trains: bool = True) -> tuple[int, str] | None:
    """Exit status and message for an exception; None if it is not expected.

    The whole chain of causes is searched, since jsonargparse and Lightning wrap our errors and signals.
    """
    cause: BaseException | None = error
    while cause is not None:
        name = type(cause).__name__
        if (sentence := _message_of_our_error(cause)) is not None:
            # errors of other libraries are about refused arguments, too
            return 2 if isinstance(cause, ConfigError) or not isinstance(cause, FCCOError) else 1, sentence
        if name == "SIGTERMException":
            return 128 + signal.SIGTERM, f"told to end{_how_to_continue(cause) if trains else '.'}"
        if isinstance(cause, KeyboardInterrupt):
            return 128 + signal.SIGINT, f"interrupted{_how_to_continue(cause) if trains else '.'}"
        if "torch" in sys.modules:
            from fcco_lightning.state.watch import is_lost  # noqa: PLC0415 - loads torch

            if is_lost(cause):
                reason = cause.__cause__ or "another process of the job has ended or does not answer."
                return 1, f"{reason} To go on, resume with --ckpt_path auto, or name a checkpoint of the run."
        is_file_error = isinstance(cause, OSError) and (cause.filename is not None or cause.errno in _OF_MACHINE)
        if name == "MisconfigurationException" or is_file_error or _raised_in_library(cause):
            refused = name == "MisconfigurationException" or isinstance(cause, ValueError | TypeError)
            return 2 if refused else 1, f"{name}: {cause}\n(FCCO_DEBUG=1 shows where)"
        cause = cause.__cause__ or cause.__context__
    return None


def _has_process_group() -> bool:
    if "torch" not in sys.modules:
        return False
    import torch.distributed as dist  # noqa: PLC0415 - it is loaded

    return dist.is_available() and dist.is_initialized()


def _how_to_continue(end: BaseException) -> str:
    """The end of the message of an interrupted command: how to resume a run."""
    from fcco_lightning.training.preemption import SAVED  # noqa: PLC0415 - loads lightning

    if SAVED in end.args:
        return ", saved; continue with --ckpt_path auto."
    return "; --ckpt_path auto continues what was saved before, if there is anything."


def _message_of_our_error(error: BaseException) -> str | None:
    """The message of one of our own errors; None for another error.

    If an option may have several types, such as a penalty or multipliers, jsonargparse tries all and lists their
    messages: that of the named class is about its arguments, those of the others are about the name.
    """
    if isinstance(error, FCCOError):
        # torch raises an error of a worker process with the traceback as its message
        message = str(error).rpartition(f"\n{type(error).__module__}.{type(error).__name__}: ")[2]
        return f"{type(error).__name__}: {message.rstrip()}"
    head, _, errors = str(error).partition("\nErrors:\n")
    if not isinstance(error, ValueError) or not head.startswith("Does not validate against any of the Union"):
        return None
    lines = errors.partition("\nGiven value type:")[0].removeprefix("  - ").split("\n  - ")
    others = ("Expected a ", "Expected an instantiatable class", "Import path ", "Does not validate")
    messages = [line for line in lines if not line.startswith(others)]
    return f"{ConfigError.__name__}: {messages[0]}" if len(messages) == 1 else None


def _raised_in_library(error: BaseException) -> bool:
    """Whether Lightning or torch has refused an argument, so that its message suffices without a traceback."""
    if isinstance(error, RuntimeError) and str(error).startswith("Error(s) in loading state_dict"):
        return True
    refusals = {"lightning": ValueError | TypeError | RuntimeError, "torch": ValueError | TypeError}
    *_, last = traceback.extract_tb(error.__traceback__) or [None]
    return last is not None and any(
        isinstance(error, kinds) and f"{os.sep}site-packages{os.sep}{name}" in last.filename
        for name, kinds in refusals.items()
    )
