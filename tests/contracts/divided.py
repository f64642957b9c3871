"""Functions that every process of a job runs, for several algorithms in one task."""

import torch

from .registry_algorithms import ALGORITHMS
from .trainings import Training, make_batch


def epoch(size):
    """Batches and the number of samples of each process: uneven, with repeats, and one process with hardly any."""
    indices = [
        [0, 1, 2, 3, 7, 10],
        [1, 1, 4, 4, 0, 1, 9, 8],
        [5, 6, 2, 3, 9, 10],
        [1, 3, 5, 2, 4, 6, 8],
        [7, 8, 9, 10, 2, 2],
    ]
    two = [[3, 3], [4, 4], [4, 2], [2, 5], [1, 5]]
    three = [[2, 2, 2], [3, 2, 3], [1, 4, 1], [3, 2, 2], [1, 4, 1]]
    return [(make_batch(i, t), s) for t, (i, s) in enumerate(zip(indices, two if size == 2 else three, strict=True))]


def train_all(processes, size, names):
    """Weights and rows of the named algorithms after the batches of :func:`epoch`, by name and layout."""
    found = {}
    for name in names:
        member = ALGORITHMS[name]
        for layout in ("replicated", "sharded") if member.shards and member.rows else ("replicated",):
            training = Training(member, processes=processes, layout=layout)
            for t, (batch, sizes) in enumerate(epoch(size)):
                halves = training.given(batch)
                if training.two_parts:
                    part = {key: own(columns, sizes, processes) for key, columns in halves.items()}
                else:
                    part = own(batch, sizes, processes)
                training.engine.train_batch(part, training.optimizer, last_batch=t == 3)
            weights = torch.cat([p.detach().flatten() for p in training.engine.params])
            found[name, layout] = weights, [(s.rows.clone(), s.partial) for s in training.problem.states]
    return found


def own(columns, sizes, processes):
    if processes.size == 1:
        return columns
    return {name: column.split(sizes)[processes.rank] for name, column in columns.items()}
