"""Two processes, with different numbers of samples, compute what one process computes from the union."""

import multiprocessing

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fcco_lightning.metrics import AUC, AveragePrecision, PartialAUC, ROCGap

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, 2, (60,), generator=GENERATOR)
GROUPS = torch.randint(0, 2, (60,), generator=GENERATOR)
SCORES = torch.randn(60, generator=GENERATOR, dtype=torch.float64) + LABELS
SHARES = {"uneven": ([*range(43)], [*range(43, 60)]), "one rank empty": ([*range(60)], [])}


def metrics():
    return [AUC(), AveragePrecision(), PartialAUC(max_fpr=0.3), ROCGap(num_thresholds=30)]


def values(rows):
    """Compute every metric from batches of at most 9 of the given rows."""
    found = []
    for metric in metrics():
        columns = (SCORES, LABELS, GROUPS)[: len(metric.columns)]
        for start in range(0, len(rows), 9):  # without rows no update at all, as in a rank whose loader is empty
            batch = torch.tensor(rows[start : start + 9])
            metric.update(*(column[batch] for column in columns))
        found.append(metric.compute().item())
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {name: values(rows[rank]) for name, rows in SHARES.items()}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    # One server imports the metrics and forks both processes; "spawn" would import them twice.
    multiprocessing.set_forkserver_preload(["fcco_lightning.metrics"])
    mp.start_processes(work, args=(str(folder),), nprocs=2, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("share", SHARES)
def test_two_processes_equal_one(of_two_processes, share):
    alone = values(range(60))
    assert [found[share] for found in of_two_processes] == [alone, alone]
