"""Weights divided over the processes (FSDP2): the same as one process, through passes, saves and failures."""

import pytest
import torch

from fcco_lightning import Clipping, Execution
from tests import jobs
from tests.launch import launch, values
from tests.training.test_ddp import CLOSE, assert_same

WIDE = {"transformer": True, "epochs": 1}
DIVIDED = {**WIDE, "divided": True}


def run(job, size):
    return values(launch(jobs.fit, size, job))


@pytest.mark.parametrize("algorithm", ["SONEX", "SOX", "MSVR", "ALEXR2", "SOXBoost"])
def test_two_processes_are_one(algorithm):
    job = {**WIDE, "algorithm": algorithm, "dropout": 0.0}
    assert_same(run({**job, "divided": True}, 2), run(job, 1), **CLOSE)


@pytest.mark.parametrize("which", ["norm", "value"])
def test_clipped_gradients_are_those_of_one_process(which):
    job = {**WIDE, "dropout": 0.0, "module": {"clipping": Clipping(0.05, which)}}
    assert_same(run({**job, "divided": True}, 2), run(job, 1), **CLOSE)


@pytest.mark.parametrize("algorithm", ["SONEX", "MSVR"])
def test_parts_of_batches_are_whole_batches(algorithm):
    """Processes with 11 and 12 of 23 samples take 3 passes of at most 5 each; of the last batch with 3 samples, 1."""
    job = {**WIDE, "dropout": 0.0, "algorithm": algorithm, "rows": 203, "objective": "rank"}
    job |= {"union": 26, "batches": {"drop_last": False}}
    parts = {"execution": Execution(micro_batch=6)}
    assert_same(run({**job, "divided": True, "module": parts}, 2), run(job, 1), **CLOSE)


def test_rows_lie_in_parts_too():
    job = {**WIDE, "dropout": 0.0, "objective": "rank", "rows": 203}
    divided = {**job, "divided": True, "module": {"execution": Execution(state_layout="sharded")}}
    assert_same(run(divided, 3), run(job, 1), **CLOSE)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_reduced_precision(precision):
    job = {**WIDE, "dropout": 0.0, "trainer": {"precision": precision}}
    several, one = run({**job, "divided": True}, 2), run(job, 1)
    for name, value in one[0]["weights"].items():
        assert several[0]["weights"][name].dtype == value.dtype
        torch.testing.assert_close(several[0]["weights"][name], value, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("algorithm", ["SONEX", "ALEXR2", "MSVR"])
@pytest.mark.parametrize("rows", ["replicated", "sharded"])
def test_resume_is_bit_for_bit(algorithm, rows, tmp_path):
    path = str(tmp_path / "at.ckpt")
    job = {**DIVIDED, "algorithm": algorithm, "epochs": 2, "module": {"execution": Execution(state_layout=rows)}}
    whole = run({**job, "save": (0, 5, path)}, 2)
    assert_same(run({**job, "resume": path, "seed": 7}, 2), whole)


@pytest.mark.parametrize(
    ("wrote", "reads"),
    [((2, True), (3, True)), ((2, True), (1, False)), ((1, False), (2, True)), ((2, True), (2, False))],
    ids=["2 to 3", "divided to one", "one to divided", "divided to ddp"],
)
@pytest.mark.parametrize("algorithm", ["SONEX", "ALEXR2"])
def test_another_number_of_processes_continues(wrote, reads, algorithm, tmp_path):
    path = str(tmp_path / "at.ckpt")
    job = {**WIDE, "dropout": 0.0, "algorithm": algorithm, "epochs": 2}
    (size, divided), (other, there) = wrote, reads
    whole = run({**job, "divided": divided, "save": (0, 5, path)}, size)
    assert_same(run({**job, "divided": there, "resume": path}, other), whole, **CLOSE)
