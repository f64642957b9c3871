"""Communication of failures between processes, outside of collectives, through the store of their group."""

import json
import os
import sys
import threading
from contextlib import suppress
from types import FrameType

import torch.distributed as dist

from fcco_lightning.errors import PeerError

_INTERVAL = 0.5  # seconds between two reads of the store
_PATIENCE = 15.0  # seconds in which a process may stand still after another one has failed
_COUNT, _FAILURE = "fcco/failures", "fcco/failure/"  # keys of the store: number of failures, and prefix of one failure
_LOST = (  # in messages of collectives that lost a peer
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out waiting",
    "NCCL",
)


def is_lost(error: BaseException) -> bool:
    """Whether an error only means that another process is gone, or does not respond."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _LOST)


class Watch:
    """Learns of failures of other processes, whatever this process is doing.

    A failing process writes its error to the store of the default process group (:meth:`tell`); between :meth:`start`
    and :meth:`stop` a thread of every other process reads the store twice a second, without using the device or
    collectives.  Most processes learn of the failure by an exception of the collective that they are in.  A process
    that makes no progress for 15 seconds after it has read of a failure waits for a peer in a place where no exception
    can be raised; it is terminated with exit status 1 and a message on stderr.

    Attributes:
        failures: errors of other processes by rank, since the last :meth:`forget`.
    """

    def __init__(self) -> None:
        self._store = dist.distributed_c10d._get_default_store().clone()
        self._rank = dist.get_rank()
        self._num_read = self._store.add(_COUNT, 0)
        self.failures: dict[int, str] = {}
        self._heard = 0  # number of failures of others
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to watch the calling thread."""
        self.stop()
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(threading.get_ident(), self._stop_event), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching.  Failures read so far may still explain an error of the next run."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._look()

    def forget(self) -> None:
        """Forget the failures so far, because of which this process has failed, too."""
        self._look()
        self.failures.clear()

    def tell(self, error: BaseException) -> None:
        """Tell the other processes why this one fails."""
        with suppress(RuntimeError):  # the store has gone with its process
            number = self._store.add(_COUNT, 1) - 1
            self._store.set(f"{_FAILURE}{number}", json.dumps([self._rank, f"{type(error).__name__}: {error}"]))

    def explain(self, error: BaseException) -> None:
        """Add to an error of a lost connection which process has failed, and why; other errors are unchanged."""
        if is_lost(error):
            self._look()
            reason = PeerError(
                self._message()
                or "another process has ended without an error message, as a process that is killed does."
            )
            error.args = (f"{reason} ({error})",)
            error.__cause__ = reason

    def _message(self) -> str:
        failures = "; ".join(f"process {rank} failed with {reason}" for rank, reason in sorted(self.failures.items()))
        return f"{failures}. So this process stops too." if failures else ""

    def _look(self) -> None:
        with suppress(RuntimeError):  # the store has gone with its process
            # a counted failure may not be written yet; this process itself may be the one to write it, so do not wait
            while self._store.check([f"{_FAILURE}{self._num_read}"]):
                rank, reason = json.loads(self._store.get(f"{_FAILURE}{self._num_read}"))
                if rank != self._rank:
                    self.failures[rank], self._heard = reason, self._heard + 1
                self._num_read += 1

    def _watch(self, worker: int, stop_event: threading.Event) -> None:
        place: tuple[FrameType | None, int] | None = None
        waited, before_start = 0.0, self._heard  # failures of an earlier run terminate nothing
        while not stop_event.wait(_INTERVAL):
            self._look()
            if self._heard > before_start:
                frame = sys._current_frames().get(worker)
                before, place = place, (frame, -1 if frame is None else frame.f_lasti)
                waited = waited + _INTERVAL if place == before else 0.0
                if waited >= _PATIENCE:
                    self._end()

    def _end(self) -> None:
        sys.stderr.write(
            f"\nfcco: {PeerError.__name__}: {self._message()} (It has made no progress since, for {_PATIENCE:g} s.)\n"
        )
        sys.stderr.flush()
        os._exit(1)
