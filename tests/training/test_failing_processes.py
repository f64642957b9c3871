"""One of two processes fails in any hook, or has other arguments: both end soon, and name the cause."""

import os
import re
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from fcco_lightning import Execution
from fcco_lightning.state.watch import Watch
from tests import hook_jobs, jobs
from tests.launch import Ended, free_port, launch, values
from tests.training.conftest import quick

LIMIT = 60  # seconds; on an idle machine of two cores a job ends in 1 to 8
ALL = [(owner, hook) for owner in hook_jobs.OWNERS for hook in hook_jobs.hooks(owner)]
NOT_JOINED = [("module", "configure_callbacks"), ("module", "configure_sharded_model")]  # before processes can talk
NOBODY_WAITS = ("teardown", "on_predict", "predict_step")  # no process needs another one then
CHOSEN = [
    ("module", "setup"),
    ("callback", "on_fit_start"),
    ("module", "on_validation_start"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("wrote") / "at.ckpt")
    values(launch(jobs.fit, 2, {"epochs": 2, "save": (0, 2, path)}))
    return path


@pytest.mark.parametrize(("owner", "hook"), quick([h for h in ALL if h not in NOT_JOINED], *CHOSEN))
def test_a_hook_that_fails_ends_both(owner, hook, checkpoint):
    """Also where the first process fails, which keeps the store, in every other hook."""
    bad = 0 if hook.startswith("prepare_data") else ALL.index((owner, hook)) % 2  # data are prepared by the first alone
    results = launch(hook_jobs.fail_in, 2, owner, hook, bad, checkpoint, limit=LIMIT)
    failed, other = results[bad], results[1 - bad]
    if isinstance(failed, Ended):
        said = f"{owner}.{hook} is broken"
        reading = hook in ("load_state_dict", "on_load_checkpoint")  # then the message names the checkpoint, too
        error = "CheckpointError" if reading else "ValueError"
        assert failed.error == error, failed.trace
        assert f"(ValueError: {said})" in failed.message if reading else failed.message == said, failed.trace
        if isinstance(other, Ended) or not hook.startswith(NOBODY_WAITS):
            assert f"process {bad} failed with {error}: " in other.message, other.trace
            assert said in other.message
    else:  # a hook that a run of this module does not reach
        assert not isinstance(other, Ended)
        assert hook in UNREACHED or (owner, hook) == ("callback", "load_state_dict")  # which has saved no state


@pytest.mark.slow
def test_who_comes_late_to_the_next_run_still_learns_why():
    late, failed = launch(hook_jobs.end_late, 2, 5.0, limit=LIMIT)
    assert failed.message == "callback.on_fit_end is broken", failed.trace
    assert "process 1 failed with ValueError: callback.on_fit_end is broken" in late.message, late.trace


UNREACHED = {"configure_gradient_clipping", "on_before_zero_grad", "on_exception"}
"""Hooks that manual optimization leaves out, and the one of another failure."""


TOLD = {
    "check_val_every_n_epoch": (
        {"trainer": {"check_val_every_n_epoch": 1}},
        {"trainer": {"check_val_every_n_epoch": 2}},
    ),
    "max_epochs": ({"epochs": 1}, {"epochs": 2}),
    "limit_train_batches": ({"trainer": {"limit_train_batches": 3}}, {"trainer": {"limit_train_batches": 0}}),
    "limit_val_batches": ({}, {"trainer": {"limit_val_batches": 0}}),
    "val_check_interval": ({}, {"trainer": {"val_check_interval": 0.5}}),
    "num_sanity_val_steps": ({}, {"trainer": {"num_sanity_val_steps": 1}}),
    "accumulate_grad_batches": ({}, {"trainer": {"accumulate_grad_batches": 2}}),
    "precision": ({}, {"trainer": {"precision": "bf16-mixed"}}),
    "callbacks": ({}, {"save": (0, 2, "never.ckpt")}),
    "execution.micro_batch": ({}, {"module": {"execution": Execution(micro_batch=4)}}),
    "algorithm": ({}, {"algorithm": "SONX"}),
    r"Report\).enabled": ({"report": True}, {"report": False}),
}
"""What two processes were told, by the name that the message has."""


@pytest.mark.parametrize("name", quick(TOLD, "check_val_every_n_epoch", "limit_train_batches", r"Report\).enabled"))
def test_what_decides_about_exchanges_is_compared(name):
    results = launch(hook_jobs.fit_told, 2, TOLD[name], limit=LIMIT)
    for result in results:
        assert result.error == "ConfigError", result
        assert re.search(rf"agree on `[^`]*{name}`. process 0: .*; process 1: ", result.message)


WAITS_FOR_EVER = """
import sys, torch.distributed as dist
from fcco_lightning.state import watch as watching
watching._PATIENCE = 2.0
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), 2, is_master=sys.argv[1] == "0")
dist.init_process_group("gloo", store=store, rank=int(sys.argv[1]), world_size=2)
watch = watching.Watch()
watch.start()
dist.barrier()
if sys.argv[1] == "1":
    watch.tell(ValueError("no disk"))
    sys.stdin.read()  # it fails, and does not end
store.wait(["what nobody sets"])
"""


@pytest.mark.slow
def test_who_waits_where_nothing_can_be_raised_is_ended_with_words():
    port = str(free_port())
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    two = [
        subprocess.Popen(
            [sys.executable, "-c", WAITS_FOR_EVER, rank, port],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in "01"
    ]
    try:
        _, said = two[0].communicate(timeout=LIMIT)
    finally:
        two[1].kill()
        two[1].communicate()
    assert two[0].returncode == 1
    assert "PeerError: process 1 failed with ValueError: no disk. So this process stops too." in said


def work():
    time.sleep(0.05)


@pytest.fixture
def alone():
    """A process group of this process."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()


def test_failures_of_an_earlier_run_are_forgotten_and_work_is_not_ended(alone, monkeypatch):
    monkeypatch.setattr("fcco_lightning.state.watch._PATIENCE", 1.0)
    other, watch = Watch(), Watch()
    other._rank = 1
    watch.start()
    other.tell(ValueError("a bad day"))
    end = time.monotonic() + 3
    while time.monotonic() < end:  # this process works, so it is let alone
        work()
    assert watch.failures == {1: "ValueError: a bad day"}
    lost, own = RuntimeError("Connection closed by peer [::1]:1"), RuntimeError("another one")
    watch.explain(lost)
    watch.explain(own)
    assert str(lost).startswith("process 1 failed with ValueError: a bad day. So this process stops too. (Connection")
    assert str(own) == "another one"
    watch.stop()
    watch.start()
    assert watch.failures == {1: "ValueError: a bad day"}  # which this process has not failed on yet
    ended = []
    monkeypatch.setattr(watch, "_end", lambda: ended.append("by a failure of the run before"))
    time.sleep(2.5)  # it stands still, as while another process loads its data
    watch.stop()
    assert not ended
    watch.forget()
    watch.start()
    assert watch.failures == {}
    watch.stop()


class Slow:
    """A store in which every number takes longer to add than the watch waits between two looks."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    def add(self, key, number):
        found = self.store.add(key, number)
        time.sleep(1.0 if number else 0.0)
        return found


def test_a_process_that_watches_while_it_tells_its_failure_is_not_in_its_own_way(alone):
    """The watch waited for the words that its process could not tell while the watch waited in the same store."""
    watch, other = Watch(), Watch()
    other._rank = 1
    watch._store.set_timeout(timedelta(seconds=10))  # so that nothing hangs where it fails
    watch._store = Slow(watch._store)
    watch.start()
    began = time.monotonic()
    watch.tell(ValueError("no disk"))
    assert time.monotonic() - began < 5
    watch.stop()
    other._look()
    assert other.failures == {0: "ValueError: no disk"}
