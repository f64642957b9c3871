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
