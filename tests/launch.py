"""Starts a job of several processes as a cluster would: one process per rank, with LOCAL_RANK and the like set."""

import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, NamedTuple

PRELOAD = ["tests.launch"]  # one server imports everything once and forks the processes of all jobs

import lightning.pytorch  # noqa: E402, F401
import pytest  # noqa: E402
import sklearn.metrics  # noqa: E402, F401
import torch  # noqa: E402

import fcco_lightning.reports  # noqa: E402
import fcco_lightning.training  # noqa: E402, F401


class Ended(NamedTuple):
    """The end of a process that returned no result.

    Attributes:
        error: name of the exception, or the exit code as text ("-9": killed).
        message: message of the exception.
        trace: traceback of the exception.
    """

    error: str
    message: str = ""
    trace: str = ""


def launch(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    limit: float = 100.0,
    during: Callable[[list[int]], None] | None = None,
) -> list[Any]:
    """Call ``function(*args)`` in ``size`` processes; return the result of each, or an :class:`Ended`.

    Args:
        function: an importable function.
        size: number of processes.
        *args: picklable arguments.
        limit: seconds after which the job is killed and the call fails, so that no test hangs.
        during: called with the process ids when all processes run, for example to kill one.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    port = free_port()
    pipes, workers = [], []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        worker = context.Process(
            target=_work, args=(there, rank, size, port, str(Path.cwd()), function, args), daemon=True
        )
        worker.start()
        there.close()
        pipes.append(here)
        workers.append(worker)
    try:
        if during is not None:
            during([w.pid for w in workers])
        return _collect(pipes, workers, limit)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
            worker.close()


def values(results: list[Any]) -> list[Any]:
    """The results of all processes; fails with the traceback of a process without a result."""
    for rank, result in enumerate(results):
        if isinstance(result, Ended):
            pytest.fail(f"process {rank} ended with {result.error}: {result.message}\n{result.trace}")
    return results


def _collect(pipes: list[connection.Connection], workers: list[Any], limit: float) -> list[Any]:
    results: dict[int, Any] = {}
    end = time.monotonic() + limit
    while len(results) < len(workers):
        waiting = {pipes[r]: r for r in range(len(workers)) if r not in results}
        ready = connection.wait(list(waiting), max(0.0, end - time.monotonic()))
        if not ready:
            pytest.fail(f"processes {sorted(waiting.values())} hang; the others: {results}")
        for pipe in ready:
            rank = waiting[pipe]
            try:
                results[rank] = pickle.loads(pipe.recv_bytes())  # noqa: S301
            except EOFError:
                workers[rank].join()
                results[rank] = Ended(str(workers[rank].exitcode))
    return [results[r] for r in range(len(workers))]


def _work(
    pipe: connection.Connection,
    rank: int,
    size: int,
    port: int,
    folder: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.chdir(folder)  # multiprocessing starts processes in the folder in which the tests were started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(
        {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "GLOO_SOCKET_IFNAME": "lo"}
        | {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(size)}
    )
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    torch.set_num_threads(1)
    try:
        result: Any = function(*args)
    except BaseException as error:
        result = Ended(type(error).__name__, str(error), traceback.format_exc())
    pipe.send_bytes(pickle.dumps(result))
    pipe.close()
    os._exit(0)


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
