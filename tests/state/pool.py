"""Four processes that live as long as the test session, so that a test of several processes costs milliseconds.

The fixture :func:`pool` is known in this folder; elsewhere a test module makes it its own::

    from tests.state import pool as pools

    pool = pools.pool

    def scaled_rank(processes, factor):  # at the top of a test module; runs in every process
        return factor * processes.rank

    def test_ranks(pool):
        assert pool.run(scaled_rank, 3, 10) == [0, 10, 20]

An exception comes back as a :class:`Failure` in the place of the result.  All processes must make the same collective
calls; a run that leaves them out of step, or does not come to an end, fails the test and ends the processes, and the
next run starts new ones.
"""

import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, get_context
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from fcco_lightning.state.processes import Processes
from tests.launch import PRELOAD

SIZE = 4
START_LIMIT, RUN_LIMIT, AFTER_A_FAILURE, STEP_LIMIT = 120.0, 60.0, 15.0, 10.0  # seconds
GROUP_TIMEOUT = timedelta(seconds=60)


class Failure(NamedTuple):
    """An exception of another process."""

    kind: str
    message: str
    trace: str


def attempt(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The function's result, or a :class:`Failure`."""
    try:
        return function(*args, **options)
    except BaseException as error:
        return Failure(type(error).__name__, str(error), traceback.format_exc())


def share(processes: Processes, count: int) -> slice:
    """A process's part of ``count`` consecutive items, which are divided as evenly as possible."""
    return slice(processes.rank * count // processes.size, (processes.rank + 1) * count // processes.size)


class Pool:
    """Processes to run functions in; started by the first run."""

    def __init__(self) -> None:
        self._workers: list[Any] = []
        self._pipes: list[connection.Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._runs = 0

    def run(self, function: Callable[..., Any], size: int, *args: Any, limit: float = RUN_LIMIT) -> list[Any]:
        """Return the results of ``function(processes, *args)`` in ``size`` processes, by rank.

        Args:
            function: a function at the top level of a module that can be imported.
            size: number of processes, 1..4; with 1 there is no process group.
            args: picklable arguments.
            limit: time limit in seconds.
        """
        if not self._workers:
            self._start()
        self._runs += 1
        task = pickle.dumps((sys.path, size, self._runs, pickle.dumps((function, args))))
        for pipe in self._pipes[:size]:
            pipe.send_bytes(task)
        answers = self._collect(size, limit, function.__name__)
        out_of_step = [rank for rank, (_, in_step) in enumerate(answers) if not in_step]
        results = [result for result, _ in answers]
        if out_of_step:
            self.stop()
            traces = "".join(f"\nprocess {r}: {f.trace}" for r, f in enumerate(results) if isinstance(f, Failure))
            pytest.fail(f"{function.__name__} left processes {out_of_step} out of step with the others{traces}")
        return results

    def values(self, function: Callable[..., Any], size: int, *args: Any, limit: float = RUN_LIMIT) -> list[Any]:
        """As :meth:`run`, but raise an error if a process fails."""
        results = self.run(function, size, *args, limit=limit)
        for rank, result in enumerate(results):
            if isinstance(result, Failure):
                pytest.fail(f"process {rank} of {size}: {result.trace}")
        return results

    def stop(self) -> None:
        """End all processes."""
        for pipe in self._pipes:
            pipe.close()  # whoever waits for a task leaves
        for worker in self._workers:
            worker.join(1)
            worker.kill()
            worker.join()
            worker.close()
        if self._folder:
            self._folder.cleanup()
        self._workers, self._pipes, self._folder = [], [], None

    def _start(self) -> None:
        context = get_context("forkserver")  # one server imports torch and forks all
        context.set_forkserver_preload(PRELOAD)
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(SIZE):
            here, there = context.Pipe()
            worker = context.Process(target=_work, args=(rank, there, self._folder.name), daemon=True)
            worker.start()
            there.close()
            self._pipes.append(here)
            self._workers.append(worker)
        answers = self._collect(SIZE, START_LIMIT, "starting")
        if any(isinstance(answer, Failure) for answer, _ in answers):
            self._give_up("starting", dict(enumerate(answers)))

    def _collect(self, size: int, limit: float, what: str) -> list[Any]:
        answers: dict[int, Any] = {}
        end = time.monotonic() + limit
        while len(answers) < size:
            waiting = {self._pipes[rank]: rank for rank in range(size) if rank not in answers}
            ready = connection.wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                self._give_up(f"{what}: no answer of processes {[*waiting.values()]} in time", answers)
            for pipe in ready:
                rank = waiting[pipe]
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())  # noqa: S301
                except (EOFError, OSError):
                    self._give_up(f"{what}: process {rank} has died", answers)
                if isinstance(answers[rank][0], Failure):  # the others may wait for it in vain
                    end = min(end, time.monotonic() + AFTER_A_FAILURE)
        return [answers[rank] for rank in range(size)]

    def _give_up(self, message: str, answers: dict[int, Any]) -> None:
        self.stop()
        traces = [f"\nprocess {r}: {a.trace}" for r, (a, _) in sorted(answers.items()) if isinstance(a, Failure)]
        pytest.fail(message + "".join(traces))


_shared = Pool()  # every module has a fixture of its own, the processes are the same


@pytest.fixture(scope="session")
def pool():
    """The session's processes."""
    yield _shared
    _shared.stop()


def _work(rank: int, pipe: connection.Connection, folder: str) -> None:
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # gloo reports its connections there
    torch.set_num_threads(1)
    groups: dict[int, dist.ProcessGroup] = {}

    def start() -> None:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE, timeout=GROUP_TIMEOUT
        )
        for size in range(2, SIZE + 1):
            groups[size] = dist.new_group(list(range(size)), timeout=GROUP_TIMEOUT)

    pipe.send_bytes(pickle.dumps((attempt(start), True)))
    try:
        while True:
            sys.path[:], size, number, task = pickle.loads(pipe.recv_bytes())  # noqa: S301
            pipe.send_bytes(_answer(task, groups.get(size), number))
    except (EOFError, OSError):  # the session is over
        os._exit(0)


def _answer(task: bytes, group: dist.ProcessGroup | None, number: int) -> bytes:
    def run() -> Any:
        function, args = pickle.loads(task)  # noqa: S301
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return function(Processes(group, alone=group is None), *args)

    result = attempt(run)
    in_step = group is None or _in_step(group, number) is True
    try:
        return pickle.dumps((result, in_step))
    except Exception:
        return pickle.dumps((Failure("PicklingError", "the result cannot be sent", traceback.format_exc()), in_step))


def _in_step(group: dist.ProcessGroup, number: int) -> bool | Failure:
    """Whether all processes of the group are at the same collective call."""
    ends = torch.tensor([number, -number])

    def agree() -> bool:
        dist.all_reduce(ends, dist.ReduceOp.MAX, group, async_op=True).wait(timedelta(seconds=STEP_LIMIT))
        return ends.tolist() == [number, -number]

    return attempt(agree)
