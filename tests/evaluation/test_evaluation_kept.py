"""Splits of which not all outputs are kept: the random part, and what is counted of all samples."""

import math

import pytest
import torch
from scipy.stats import kstest
from sklearn.metrics import roc_auc_score

from fcco_lightning import (
    BinaryEvaluation,
    DataError,
    GroupEvaluation,
    RankingEvaluation,
)
from fcco_lightning.evaluation import Collector
from fcco_lightning.evaluation.split import scattered
from fcco_lightning.state.processes import Processes
from tests.state import pool as pools

pool = pools.pool
N = 3000


def chosen(count):
    """The samples with the smallest hashes."""
    return sorted(scattered(torch.arange(N)).argsort()[:count].tolist())


def samples(n=N, seed=0, groups=2):
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=draw)
    group = torch.randint(groups, (n,), generator=draw)
    scores = torch.randn(n, generator=draw) + y + 0.3 * group
    return scores, {"index": torch.arange(n), "y": y, "group": group}


def collected(evaluation, most, outputs, columns, size=70, processes=None):
    collector = Collector(evaluation, most)
    for first in range(0, len(outputs), size):
        part = slice(first, first + size)
        collector.add(outputs[part], {name: column[part] for name, column in columns.items()})
        assert most is None or sum(len(o) for o, _ in collector._parts) <= 2 * most + size
    return collector.split(processes or Processes())


def test_the_part_is_random_and_the_same_for_any_order_and_division():
    scores, columns = samples()
    kept = collected(BinaryEvaluation(), 400, scores, columns)
    index = kept.columns["index"]
    assert sorted(index.tolist()) == chosen(400)
    assert torch.equal(kept.outputs, scores[index])
    assert torch.equal(kept.columns["y"], columns["y"][index])
    assert kstest(index / N, "uniform").pvalue > 0.01
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    again = collected(BinaryEvaluation(), 400, scores[order], {k: c[order] for k, c in columns.items()}, size=511)
    assert sorted(again.columns["index"].tolist()) == chosen(400)
    assert again.counted == pytest.approx(dict(kept.counted), abs=0)


def test_scores_beyond_float32_are_counted_as_its_end():
    scores, columns = samples()
    scores = scores.double().sign() * 10.0 ** (39 + scores.double().abs())
    kept = collected(BinaryEvaluation(), 400, scores, columns)
    assert kept.counted["auc"] == pytest.approx(roc_auc_score(columns["y"], scores.sign()), abs=1e-12)
    assert kept.counted["score_max"] == scores.max()


def test_without_an_index_samples_are_told_apart_by_their_position():
    scores, columns = samples()
    del columns["index"]
    kept = collected(BinaryEvaluation(), 400, scores, columns)
    assert torch.equal(kept.outputs, scores[chosen(400)])


@pytest.mark.parametrize("most", [None, N, N + 1])
def test_a_split_that_fits_is_kept_whole(most):
    scores, columns = samples()
    kept = collected(BinaryEvaluation(), most, scores, columns)
    assert torch.equal(kept.outputs, scores)
    assert not kept.counted


@pytest.mark.parametrize(
    ("evaluation", "groups"),
    [
        *((BinaryEvaluation(), groups) for groups in (1, 2, 7)),
        (RankingEvaluation(top=(5, 300)), 2),
        (GroupEvaluation(0.3), 7),
        (GroupEvaluation(pooled=True), 2),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_is_counted_is_what_the_whole_split_gives(evaluation, groups):
    outputs, columns = samples(groups=groups)
    exact, counted = evaluation(outputs, columns), collected(evaluation, 50, outputs, columns).counted
    missing = exact.keys() - counted.keys()
    assert all("partial" in name for name in missing)
    for name in exact.keys() & counted.keys():
        assert counted[name] == pytest.approx(exact[name], abs=counted.get(f"{name}_error", 0) + 1e-6), name
    errors = {name for name in counted if name.endswith("_error")}
    assert counted.keys() - exact.keys() == errors
    assert not any(counted[name] > 0.005 for name in errors)


def test_several_labels_are_estimated_from_the_part_alone():
    scores, columns = samples()
    columns |= {"y": torch.stack([columns["y"], columns["group"]], dim=1)}
    kept = collected(RankingEvaluation(), 400, torch.stack([scores, -scores], dim=1), columns)
    assert kept.outputs.shape == (400, 2)
    assert kept.partial
    assert not kept.counted


@pytest.mark.filterwarnings("ignore:the figures of the ROC curve")
@pytest.mark.parametrize(
    ("name", "values"), [("y", torch.zeros(N)), ("group", torch.arange(N) % 2 + 1)], ids=["one class", "other groups"]
)
def test_figures_that_are_not_defined_are_not_defined(name, values):
    outputs, columns = samples()
    columns |= {name: values.long()}
    exact = BinaryEvaluation()(outputs, columns)
    counted = collected(BinaryEvaluation(), 50, outputs, columns).counted
    assert {name for name, v in exact.items() if math.isnan(v)} == {
        name for name, v in counted.items() if math.isnan(v) and not name.endswith("_error")
    }


def of_a_process(processes, most):
    scores, columns = samples()
    # unequal parts, of which the first holds most of the samples
    own = slice(0, 2900) if processes.rank == 0 else slice(2900, N)
    own = slice(None) if processes.size == 1 else own
    shared = {name: column[own] for name, column in columns.items()}
    kept = collected(BinaryEvaluation(), most, scores[own], shared, processes=processes)
    return sorted(kept.columns["index"].tolist()), dict(kept.counted)


@pytest.mark.parametrize("most", [1, 400])
def test_two_processes_keep_and_count_what_one_does(most, pool):
    [expected] = pool.values(of_a_process, 1, most)
    assert pool.values(of_a_process, 2, most) == [expected, expected]


def test_a_process_without_a_sample_is_an_error():
    with pytest.raises(DataError, match="fewer samples than there are processes"):
        Collector(BinaryEvaluation(), 5).split(Processes())
