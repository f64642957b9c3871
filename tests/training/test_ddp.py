"""Several processes under a Trainer: the same as one process, through saves, failures and signals."""

import os
import re
import shutil
import signal
import time
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from fcco_lightning import Execution, Pretraining, Schedule, WeightAverage
from fcco_lightning.training.preemption import INTERRUPTED
from tests import jobs
from tests.launch import Ended, launch, values
from tests.training.conftest import quick

CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # float32: the matrix products of 24 rows and of twice 12 round differently


def run(job, size, fit=jobs.fit):
    return values(launch(fit, size, job))


def assert_same(several, one, **tolerance):
    tolerance = tolerance or {"rtol": 0, "atol": 0}
    for outcome in several:
        torch.testing.assert_close(outcome["weights"], one[0]["weights"], **tolerance)
        assert outcome["global_step"] == one[0]["global_step"]
        assert outcome["logged"] == pytest.approx(one[0]["logged"], rel=1e-4, abs=1e-5, nan_ok=True)
    rows, expected = jobs.whole_rows(several), jobs.whole_rows(one)
    torch.testing.assert_close(rows, expected, **tolerance, equal_nan=True)


@pytest.mark.parametrize("algorithm", quick(jobs.ALGORITHMS, "MSVR", "ALEXR2"))
def test_two_processes_are_one(algorithm):
    """The contract of algorithms holds for all of them without a Trainer."""
    job = {"algorithm": algorithm}
    assert_same(run(job, 2), run(job, 1), **CLOSE)


@pytest.mark.parametrize(
    ("algorithm", "layout"),
    quick(product(["SOX", "MSVR", "SONEX"], ["replicated", "sharded"]), ("SONEX", "replicated"), ("MSVR", "sharded")),
)
def test_a_row_per_sample(algorithm, layout):
    """203 rows in batches of 24: neither the rows nor the last batch, nor 8 samples by 3, can be divided evenly."""
    job = {"objective": "rank", "algorithm": algorithm, "module": {"execution": Execution(state_layout=layout)}}
    job |= {"rows": 203, "batches": {"drop_last": False}}
    three = run({**job, "module": {"execution": Execution(3, state_layout=layout)}}, 3)
    held = [len(o["rows"]["problem.terms.0.state"][2]) for o in three]
    assert held == ([68, 68, 67] if layout == "sharded" else [203] * 3)
    assert_same(three, run(job, 1), **CLOSE)


def test_batch_norm_ends_with_the_statistics_of_all_where_nothing_is_validated_or_saved():
    first, second = run({"batch_norm": True, "trainer": {"limit_val_batches": 0}}, 2)
    torch.testing.assert_close(second["weights"], first["weights"], rtol=0, atol=0)


def test_batch_norm_is_evaluated_with_the_statistics_of_all():
    first, second = run({"batch_norm": True}, 2)
    assert first["logged"] == second["logged"]
    torch.testing.assert_close(second["weights"], first["weights"], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", quick(["SONEX", "ALEXR2"], "SONEX"))
def test_common_statistics_of_batch_norm_are_those_of_one_process(algorithm):
    """Three processes with 8 samples each, and 3, 2 and 2 of the last batch; running statistics are compared, too."""
    job = {"algorithm": algorithm, "batch_norm": True, "rows": 79, "epochs": 1, "batches": {"drop_last": False}}
    together = run({**job, "trainer": {"sync_batchnorm": True}}, 3)
    assert_same(together, run(job, 1), rtol=1e-4, atol=1e-5)
    apart = run(job, 3)[0]["weights"]
    assert any((apart[name] - value).abs().max() > 1e-3 for name, value in together[0]["weights"].items())


AVERAGED = {"module": {"average": WeightAverage(0.7)}}


@pytest.mark.slow
def test_averaged_weights_of_two_processes(tmp_path):
    """Those of one process; with BatchNorm, whose statistics are each process's own, resumed bit for bit."""
    assert_same(run(AVERAGED, 2), run(AVERAGED, 1), **CLOSE)
    path = str(tmp_path / "at.ckpt")
    whole = run({**AVERAGED, "batch_norm": True, "save": (1, 2, path)}, 2)
    assert_same(run({**AVERAGED, "batch_norm": True, "resume": path, "seed": 7}, 2), whole)
    assert any((whole[0]["weights"][k] != v).any() for k, v in run({"batch_norm": True}, 2)[0]["weights"].items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "pretrain", [Pretraining(1, head="3"), Pretraining(0.5, seamless=True)], ids=["anew", "seamless"]
)
def test_pretraining_and_what_follows_on_two_processes(pretrain):
    """The second objective has a threshold, which DistributedDataParallel waits for in the first phase too."""
    job = {"epochs": 2, "module": {"pretrain": pretrain}}
    one = run(job, 1, jobs.fit_groups)
    assert_same(run(job, 2, jobs.fit_groups), one, **CLOSE)
    assert one[0]["weights"]["threshold"].item() != 0


@pytest.mark.slow
def test_eased_decay_is_that_of_the_samples_of_all(tmp_path):
    """Each process sees half of the scores; those of an epoch that is continued are of all, too."""
    adam = partial(torch.optim.AdamW, lr=0.01, weight_decay=20.0)
    job = {"epochs": 3, "module": {"schedule": Schedule(decay_spread=2.0), "optimizer": adam}}
    path = str(tmp_path / "at.ckpt")
    whole, one = run({**job, "save": (1, 2, path)}, 2), run(job, 1)
    assert_same(whole, one, rtol=1e-4, atol=1e-5)  # Adam divides rounding by small gradients
    assert_same(run({**job, "resume": path, "seed": 7}, 2), whole)
    full = run({**job, "module": {"optimizer": adam}}, 1)
    assert max(float((full[0]["weights"][k] - v).abs().max()) for k, v in one[0]["weights"].items()) > 0.01


class OtherClock(Callback):
    """The last process has not validated for longer."""

    def on_train_start(self, trainer, pl_module):
        trainer._last_val_time -= 1000.0 * jobs.rank()


def test_processes_with_other_clocks_validate_together():
    """Lightning lets each ask its own clock, and those that train would wait for those that validate."""
    by_time = run({"trainer": {"val_check_interval": "00:00:10:00"}, "callbacks": [OtherClock()]}, 2)
    assert "train_auc" in by_time[0]["logged"]
    torch.testing.assert_close(by_time[0]["weights"], run({}, 2)[0]["weights"], rtol=0, atol=0)


# ----------------------------------------------------------------------------------------------------- checkpoints

SHARDED = {"objective": "rank", "rows": 203, "module": {"execution": Execution(state_layout="sharded")}}
REPLICATED = {"algorithm": "ALEXR2"}


@pytest.fixture(scope="module")
def wrote(tmp_path_factory):
    """Uninterrupted runs, each made once: what came of it, and its checkpoint in the middle of an epoch."""

    made = {}

    def of(job, size):
        if (key := (str(job), size)) not in made:
            path = str(tmp_path_factory.mktemp("wrote") / "at.ckpt")
            made[key] = run({**job, "save": (1, 2, path)}, size), path
        return made[key]

    return of


@pytest.mark.parametrize("job", quick([SHARDED, REPLICATED, {"algorithm": "SOXBoost"}], SHARDED, REPLICATED))
def test_resume_is_bit_for_bit(job, wrote):
    """Mid-epoch, for ALEXR2 in the middle of an inner loop."""
    whole, path = wrote(job, 2)
    assert_same(run({**job, "resume": path, "seed": 7}, 2), whole)


@pytest.mark.parametrize(
    ("job", "sizes"),
    quick(product([SHARDED, REPLICATED], [(1, 2), (2, 1), (2, 3), (4, 2)]), (SHARDED, (2, 3)), (REPLICATED, (2, 1))),
)
def test_resume_with_another_number_of_processes(job, sizes, wrote):
    size, reads = sizes
    whole, path = wrote(job, size)
    assert len(jobs.rows_files(path)) == (size if job is SHARDED else 0)
    assert_same(run({**job, "resume": path}, reads), whole, **CLOSE)


def test_layouts_read_each_other(wrote):
    replicated = {**SHARDED, "module": {"execution": Execution(state_layout="replicated")}}
    for writes, reads in ((SHARDED, replicated), (replicated, SHARDED)):
        whole, path = wrote(writes, 2)
        assert_same(run({**reads, "resume": path}, 2), whole)


@pytest.fixture(scope="module")
def saved(wrote):
    return Path(wrote(SHARDED, 2)[1])


def copied(saved, folder):
    """A checkpoint with its rows, to be spoilt."""
    path = folder / "at.ckpt"
    shutil.copy(saved, path)
    shutil.copytree(f"{saved}.rows", f"{path}.rows")
    return path


def flip(path, position=-100):
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def part(path, which):
    return jobs.rows_files(str(path))[which]


DAMAGE = {
    "a part is missing": lambda path: part(path, 1).unlink(),
    "a bit of a part": lambda path: flip(part(path, 1)),
    "a part is cut": lambda path: part(path, 0).write_bytes(part(path, 0).read_bytes()[:-1]),
    "no rows at all": lambda path: shutil.rmtree(f"{path}.rows"),
    "a bit of the weights": lambda path: flip(path, jobs.place_of_weights(path)),
    "the file is cut": lambda path: path.write_bytes(path.read_bytes()[:2000]),
}


@pytest.mark.parametrize("size", quick([1, 2], 2))
@pytest.mark.parametrize("damage", quick(DAMAGE, "a part is missing", "a bit of a part", "a bit of the weights"))
def test_damage_is_refused_by_all(damage, size, saved, tmp_path):
    path = copied(saved, tmp_path)
    DAMAGE[damage](path)
    for result in launch(jobs.fit, size, {**SHARDED, "resume": str(path)}):
        assert isinstance(result, Ended)
        assert result.error in ("CheckpointError", "PeerError"), result.trace
        assert "at.ckpt" in result.message


def test_rows_of_another_save_are_refused(saved, tmp_path):
    path, other = tmp_path / "at.ckpt", tmp_path / "other.ckpt"
    run({**SHARDED, "epochs": 1, "seed": 1, "save": (0, 3, str(other))}, 2)
    shutil.copy(saved, path)
    shutil.copytree(f"{other}.rows", f"{path}.rows")
    assert {r.error for r in launch(jobs.fit, 2, {**SHARDED, "resume": str(path)})} == {"CheckpointError"}


def test_other_rows_are_refused(saved):
    results = launch(jobs.fit, 2, {**SHARDED, "rows": 201, "resume": str(saved)})
    assert all(r.error in ("DataError", "CheckpointError", "PeerError") and "20" in r.message for r in results)


# -------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("known", "message"),
    [(True, "`number of training batches`. process 0: 10; process 1: 6"), (False, "on process 1, but not on")],
)
def test_epochs_of_different_lengths_stop_all(known, message):
    for result in launch(jobs.fit_own_loader, 2, {"batches": (10, 6), "known": known}):
        assert isinstance(result, Ended)
        assert message in result.message


@pytest.mark.parametrize(
    ("before", "errors", "message"),
    [
        (partial(jobs.sabotage_network, 1, 3, "nan"), ["NonFiniteError"] * 2, "not finite"),
        (partial(jobs.sabotage_network, 0, 3, "raise"), ["ValueError", "PeerError"], "does not like"),
        (partial(jobs.sabotage_data, 1), ["PeerError", "OSError"], "the disk with the samples is gone"),
        (jobs.other_configuration, ["ConfigError"] * 2, "penalty.*process 0: .*4.0.*process 1: .*5.0"),
        (jobs.other_data, ["ConfigError"] * 2, "do not agree on `data`"),
    ],
    ids=["nan", "raise", "data", "configuration", "data differ"],
)
def test_all_stop_with_the_one_that_fails(before, errors, message):
    results = launch(jobs.fit, 2, {**SHARDED, "before": before}, limit=60)
    assert [r.error for r in results] == errors, results
    assert all(re.search(message, r.message) for r in results), results


def test_a_bad_batch_on_one_process_is_skipped_by_all():
    job = {
        "before": partial(jobs.sabotage_network, 1, 3, "nan"),
        "module": {"execution": Execution(skip_nonfinite=True)},
    }
    first, second = run(job, 2)
    assert first["global_step"] == second["global_step"] == 2 * 8 - 1
    assert_same([first, second], [first])


def kill_one(which, path, pids):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(pids[which], signal.SIGKILL)


@pytest.mark.parametrize("which", quick([0, 1], 1))
def test_a_killed_process_ends_the_job(which, tmp_path):
    path = tmp_path / "in_the_middle.ckpt"
    job = {"epochs": 100_000, "save": (1, 2, str(path))}
    results = launch(jobs.fit, 2, job, limit=60, during=partial(kill_one, which, path))
    assert results[which].error == "-9"
    assert results[1 - which].error == "RuntimeError"


@pytest.mark.parametrize(("job", "told"), [(SHARDED, 1), (REPLICATED, 0)], ids=["sharded", "replicated"])
def test_sigterm_saves_and_the_next_run_continues(told, job, wrote, tmp_path):
    whole, _ = wrote(job, 2)
    job = {**job, "folder": str(tmp_path)}
    results = launch(jobs.fit_and_be_told_to_end, 2, job, told, 1, 2, limit=60)
    assert [r.error for r in results] == ["SIGTERMException"] * 2, results
    assert_same(run({**job, "resume": str(tmp_path / INTERRUPTED)}, 2), whole)


def test_a_disk_that_is_full_leaves_the_earlier_checkpoint(saved, tmp_path):
    path = copied(saved, tmp_path)
    kept = [p.name for p in jobs.rows_files(str(path))]
    job = {**SHARDED, "epochs": 1, "save": (0, 3, str(path)), "before": jobs.fill_the_disk}
    results = launch(jobs.fit, 2, job, limit=60)
    assert [r.error for r in results] == ["PeerError", "CheckpointError"], results
    assert "No space left" in results[0].message
    assert [p.name for p in jobs.rows_files(str(path))] == kept
    run({**SHARDED, "resume": str(path)}, 2)
    assert not list(Path(tmp_path).glob(".*tmp"))
