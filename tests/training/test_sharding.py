"""Weights sharded over the processes (FSDP2): the same as one process, through passes, saves and failures."""

from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard

from fcco_lightning import PDSCA, Execution, Splits, WeightAverage
from fcco_lightning.errors import ConfigError
from fcco_lightning.state.processes import Processes, end_processes
from fcco_lightning.state.sharded import is_sharded
from fcco_lightning.training.backend import Clipping
from fcco_lightning.training.preemption import INTERRUPTED
from fcco_lightning.training.sharding import shard
from tests import jobs
from tests.launch import launch
from tests.training.conftest import quick
from tests.training.test_ddp import CLOSE, assert_same, copied, run

SLOW = pytest.mark.slow
WIDE = {"transformer": True, "epochs": 1}
DIVIDED = {**WIDE, "divided": True}


@pytest.mark.parametrize("algorithm", quick([name for name in jobs.ALGORITHMS if name != "PDSCA"], "SONEX"))
def test_two_processes_are_one(algorithm):
    job = {**WIDE, "algorithm": algorithm, "dropout": 0.0}
    assert_same(run({**job, "divided": True}, 2), run(job, 1), **CLOSE)


@SLOW
@pytest.mark.parametrize("algorithm", [a for a in jobs.GROUP_ALGORITHMS if a != "PGSMD"])
def test_two_processes_of_groups_are_one(algorithm):
    job = {"algorithm": algorithm, "epochs": 1}
    assert_same(run({**job, "divided": True}, 2, jobs.fit_groups), run(job, 1, jobs.fit_groups), **CLOSE)


@SLOW
@pytest.mark.parametrize("which", ["norm", "value"])
def test_clipped_gradients_are_those_of_one_process(which):
    job = {**WIDE, "dropout": 0.0, "module": {"clipping": Clipping(0.05, which)}}
    assert_same(run({**job, "divided": True}, 2), run(job, 1), **CLOSE)


@SLOW
@pytest.mark.parametrize("algorithm", ["SONEX", "MSVR"])
def test_parts_of_batches_are_whole_batches(algorithm):
    """Processes with 11 and 12 of 23 samples take 3 passes of at most 5 each; of the last batch with 3 samples, 1."""
    job = {**WIDE, "dropout": 0.0, "algorithm": algorithm, "rows": 203, "objective": "rank"}
    job |= {"union": 26, "batches": {"drop_last": False}}
    parts = {"execution": Execution(micro_batch=6)}
    assert_same(run({**job, "divided": True, "module": parts}, 2), run(job, 1), **CLOSE)


@SLOW
def test_rows_lie_in_parts_too():
    job = {**WIDE, "dropout": 0.0, "objective": "rank", "rows": 203}
    divided = {**job, "divided": True, "module": {"execution": Execution(state_layout="sharded")}}
    assert_same(run(divided, 3), run(job, 1), **CLOSE)


@SLOW
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_reduced_precision(precision):
    job = {**WIDE, "dropout": 0.0, "trainer": {"precision": precision}}
    several, one = run({**job, "divided": True}, 2), run(job, 1)
    for name, value in one[0]["weights"].items():
        assert several[0]["weights"][name].dtype == value.dtype
        torch.testing.assert_close(several[0]["weights"][name], value, rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("algorithm", "rows"),
    quick(product(["SONEX", "ALEXR2", "MSVR"], ["sharded", "replicated"]), ("ALEXR2", "replicated")),
)
def test_resume_is_bit_for_bit(algorithm, rows, tmp_path):
    path = str(tmp_path / "at.ckpt")
    job = {**DIVIDED, "algorithm": algorithm, "epochs": 2, "module": {"execution": Execution(state_layout=rows)}}
    whole = run({**job, "save": (0, 5, path)}, 2)
    assert_same(run({**job, "resume": path, "seed": 7}, 2), whole)


@SLOW
@pytest.mark.parametrize(
    ("wrote", "reads"),
    [((2, True), (3, True)), ((2, True), (1, False)), ((1, False), (2, True)), ((2, True), (2, False))],
    ids=["2 to 3", "divided to one", "one to divided", "divided to ddp"],
)
@pytest.mark.parametrize("algorithm", ["SONEX", "ALEXR2"])
def test_another_number_of_processes_continues(wrote, reads, algorithm, tmp_path):
    """In float64, as two epochs of ALEXR2 make 3e-6 of what processes round differently in float32."""
    path = str(tmp_path / "at.ckpt")
    job = {**WIDE, "dropout": 0.0, "dtype": torch.float64, "algorithm": algorithm, "epochs": 2}
    (size, divided), (other, there) = wrote, reads
    whole = run({**job, "divided": divided, "save": (0, 5, path)}, size)
    assert_same(run({**job, "divided": there, "resume": path}, other), whole, rtol=1e-12, atol=1e-12)


@SLOW
@pytest.mark.parametrize("algorithm", ["SONEX", "ALEXR2", "SOX"])
def test_two_processes_of_clip_are_one(algorithm):
    """Every block of both towers is a unit; class prompts are embedded beside texts, and logit_scale is one number."""
    job = {"epochs": 1, "module": {"algorithm": algorithm}}
    assert_same(run({**job, "divided": True}, 2, jobs.fit_pairs), run(job, 1, jobs.fit_pairs), **CLOSE)


@SLOW
def test_a_figure_that_is_not_finite_stops_all():
    """A value that is NaN in one process's part of the gradient only."""
    job = {**DIVIDED, "before": jobs.spoil_a_gradient}
    results = launch(jobs.fit, 2, job, limit=60)
    assert [r.error for r in results] == ["NonFiniteError"] * 2, results


@SLOW
def test_a_failing_network_ends_the_job():
    job = {**DIVIDED, "before": partial(jobs.sabotage_network, 1, 3, "raise")}
    results = launch(jobs.fit, 2, job, limit=90)
    assert results[1].error == "ValueError", results
    assert results[0].error in ("PeerError", "RuntimeError"), results


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "at.ckpt"
    run({**DIVIDED, "save": (0, 3, str(path))}, 2)
    return path


@pytest.mark.parametrize(("which", "size"), quick(product([0, 1], [1, 2]), (1, 2)))
def test_a_missing_part_is_named_by_all(which, size, saved, tmp_path):
    path = copied(saved, tmp_path)
    jobs.rows_files(str(path))[which].unlink()
    for result in launch(jobs.fit, size, {**WIDE, "divided": size > 1, "resume": str(path)}, limit=60):
        assert result.error in ("CheckpointError", "PeerError"), result.trace
        assert "at.ckpt" in result.message
        assert "\n" not in result.message


@SLOW
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_killed_while_it_saves_leaves_the_last_whole_checkpoint(rank, saved, tmp_path):
    path = copied(saved, tmp_path)
    kept = {file: file.read_bytes() for file in [path, *jobs.rows_files(str(path))]}
    job = {**DIVIDED, "save": (0, 5, str(path)), "before": partial(jobs.die_while_writing, rank)}
    results = launch(jobs.fit, 2, job, limit=90)
    assert results[rank].error == "-9", results
    assert results[1 - rank].error in ("PeerError", "RuntimeError"), results
    assert {file: file.read_bytes() for file in kept} == kept
    run({**DIVIDED, "resume": str(path)}, 2)


@SLOW
def test_told_to_end_it_saves_and_continues(tmp_path):
    job = {**DIVIDED, "epochs": 2, "folder": str(tmp_path)}
    results = launch(jobs.fit_and_be_told_to_end, 2, job, 1, 0, 4, limit=90)
    assert [r.error for r in results] == ["SIGTERMException"] * 2, results
    assert_same(run({**job, "resume": str(tmp_path / INTERRUPTED)}, 2), run(job, 2))


@SLOW
def test_evaluation_goes_in_step():
    """Of 41 samples one process has 20, in 2 batches of at most 10, the other 21, in 3."""
    job = {**WIDE, "dropout": 0.0, "data": {"eval_batch_size": 10, "splits": Splits(val_fraction=41 / 200)}}
    several, one = run({**job, "divided": True}, 2), run(job, 1)
    assert several[0]["logged"] == pytest.approx(one[0]["logged"], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"average": WeightAverage()}, "average needs whole weights"),
        ({"execution": Execution(compiled=True)}, "execution.compiled needs whole weights"),
        ({"algorithm": PDSCA()}, "algorithm PDSCA needs whole weights"),
    ],
    ids=["average", "compiled", "PDSCA"],
)
def test_what_needs_whole_weights_is_refused(module, message, make_module, make_trainer, small_data):
    trainer = make_trainer(strategy=ModelParallelStrategy(), devices=1)
    with pytest.raises(ConfigError, match=message):
        trainer.fit(make_module(**module), small_data)


def test_layers_in_parts_are_refused(make_module, make_trainer, small_data):
    trainer = make_trainer(strategy=ModelParallelStrategy(1, 2), devices=2)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2"):
        trainer.fit(make_module(), small_data)


@pytest.fixture
def mesh():
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    end_processes()


def units(network):
    return [name for name, module in network.named_modules() if isinstance(module, FSDPModule)]


class Own(jobs.Transformer):
    """Divides itself, as one unit, along a dimension of its matrices."""

    dim = 0

    def shard(self, mesh):
        fully_shard(self, mesh=mesh, ignored_params={self.scale}, shard_placement_fn=lambda p: Shard(self.dim))


def test_blocks_and_the_rest_are_units(mesh):
    network, own = jobs.Transformer(3), Own(3)
    for one in (network, own):
        shard(one, mesh, Processes())
    assert units(network) == ["", "blocks.layers.0", "blocks.layers.1"]
    assert units(own) == [""]
    assert [name for name, p in network.named_parameters() if not is_sharded(p)] == ["scale"]
    shard(network, mesh, Processes())  # the next stage of a Trainer
    assert torch.isfinite(network(torch.randn(4, 3))).all()


def test_other_dimensions_are_refused(mesh):
    network = nn.Sequential(nn.Linear(4, 4, bias=False))
    network.shard = lambda mesh: fully_shard(network, mesh=mesh, shard_placement_fn=lambda p: Shard(1))
    with pytest.raises(ConfigError, match=r"0.weight of \w*Sequential is sharded as .*Shard\(dim=1\)"):
        shard(network, mesh, Processes())
