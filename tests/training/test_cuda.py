"""Training on a CUDA device, alone and with two processes that share it; skipped without one."""

import pytest
import torch

from fcco_lightning import AUC, Execution
from fcco_lightning.engine.functions import InnerFunctions
from tests import jobs
from tests.launch import launch, values

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # float32, sums in another order
NEAR = {"rtol": 1e-3, "atol": 1e-4}
PAIRS = {"rtol": 1e-2, "atol": 1e-3}  # rows are means of exponentials
BY_ROW = {"objective": "rank", "rows": 203, "batches": {"drop_last": False}}
SHARDED = BY_ROW | {"module": {"execution": Execution(state_layout="sharded")}}
KINDS = {
    "table": (jobs.fit, {"algorithm": "SONEX"}),
    "table, ALEXR2": (jobs.fit, {"algorithm": "ALEXR2"}),
    "row of every sample": (jobs.fit, SHARDED),
    "groups": (jobs.fit_groups, {}),
    "pairs": (jobs.fit_pairs, {}),
}


def run(job, size, fit=jobs.fit):
    return values(launch(fit, size, job, limit=300))


def assert_same(found, expected, **tolerance):
    for outcome in found:
        torch.testing.assert_close(outcome["weights"], expected[0]["weights"], **tolerance)
        assert outcome["global_step"] == expected[0]["global_step"]
    rows = jobs.whole_rows(found), jobs.whole_rows(expected)
    torch.testing.assert_close(*rows, **tolerance, equal_nan=True)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("algorithm", jobs.ALGORITHMS)
def test_a_training_is_that_on_the_cpu(algorithm, size):
    assert_same(run({"algorithm": algorithm, "cuda": True}, size), run({"algorithm": algorithm}, 1), **CLOSE)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_bit_for_bit(kind, size, tmp_path):
    """With deterministic operators, which PyTorch has to be asked for."""
    fit, job = KINDS[kind]
    path = str(tmp_path / "at.ckpt")
    job = {**job, "cuda": True, "trainer": {"deterministic": True}}
    whole = run({**job, "save": (1, 2, path)}, size, fit)
    assert_same(run({**job, "resume": path, "seed": 7}, size, fit), whole, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_are_one(kind):
    fit, job = KINDS[kind]
    assert_same(run({**job, "cuda": True}, 2, fit), run(job, 1, fit), **(PAIRS if kind == "pairs" else NEAR))


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_near(kind, precision):
    fit, job = KINDS[kind]
    (found,) = run({**job, "cuda": True, "trainer": {"precision": precision}}, 1, fit)
    (expected,) = run(job, 1, fit)
    far = [(found["weights"][n].float() - w).abs().mean() for n, w in expected["weights"].items()]
    assert max(far) < 0.05


@pytest.mark.parametrize("kind", [*KINDS, "SOX", "MSVR", "ALEXR"])
def test_compiled_steps(kind):
    fit, job = KINDS.get(kind, (jobs.fit, {"algorithm": kind}))
    job = {**job, "cuda": True}
    compiled = {**job, "module": {"execution": Execution(compiled=True)}}
    assert_same(run(compiled, 1, fit), run(job, 1, fit), **(PAIRS if kind == "pairs" else NEAR))


def test_a_run_is_repeated_bit_for_bit():
    """With dropout, whose masks are drawn on the device."""
    job = {"cuda": True, "transformer": True, "trainer": {"deterministic": True}}
    jobs.assert_same_run(*(run(job, 1)[0] for _ in range(2)))


def test_masks_of_dropout_are_drawn_again():
    """As the pass at the previous weights does, and what is drawn behind it is what would have been."""
    functions = InnerFunctions(torch.nn.Linear(1, 1).cuda(), AUC(), [])
    with functions.elsewhere([p.data for p in functions.params]):
        masks = torch.rand(9, device="cuda")
    assert torch.equal(torch.rand(9, device="cuda"), masks)
