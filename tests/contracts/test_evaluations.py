"""Properties of every evaluation, on an example with figures computed by other libraries."""

import json
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    ndcg_score,
    r2_score,
    recall_score,
    roc_auc_score,
    root_mean_squared_error,
    top_k_accuracy_score,
)
from sklearn.metrics import roc_curve as sklearn_roc_curve
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.utils import _pytree as pytree
from torchmetrics.functional.classification import binary_accuracy

from fcco_lightning import (
    AttentionPooling,
    BagEvaluation,
    BinaryEvaluation,
    ContinualEvaluation,
    DataError,
    Evaluation,
    GroupEvaluation,
    NumberEvaluation,
    RankingEvaluation,
    RetrievalEvaluation,
    SurvivalEvaluation,
    TaskEvaluation,
    ValueEvaluation,
)
from fcco_lightning.evaluation import ClassEvaluation, NeighbourEvaluation, PairEvaluation
from fcco_lightning.models import Embeddings
from tests.contracts.completeness import concrete_classes
from tests.evaluation.reference import by_group, group_figures, probabilities, split

SINGLE = 1e-5  # some figures are computed in float32


class Case(NamedTuple):
    """An evaluation with an example.

    Attributes:
        evaluation: The evaluation.
        outputs: The network's outputs, one tensor or several.
        batch: The columns of the split.
        reference: Computes all figures by other means.
    """

    evaluation: Evaluation
    outputs: Tensor | Embeddings
    batch: dict[str, Tensor]
    reference: Callable[[Tensor, dict[str, Tensor]], dict[str, float]]


def binary():
    return Case(BinaryEvaluation(num_thresholds=400), *split(2), binary_figures)


def binary_figures(outputs, batch):
    scores, y, group = outputs.numpy(), batch["y"].numpy(), batch["group"].numpy()
    gaps = []
    for threshold in scores:
        rates = [[(scores[(y == of) & (group == g)] >= threshold).mean() for g in (0, 1)] for of in (0, 1)]
        gaps += [abs(first - second) for first, second in rates]
    gap = max(gaps)
    ranked = {"auc": roc_auc_score(y, scores), "average_precision": average_precision_score(y, scores)}
    return ranked | {"score_min": scores.min(), "score_max": scores.max(), "roc_gap": gap}


def groups():
    evaluation = GroupEvaluation(alpha=0.4)
    evaluation.group_names = ["a", "b", "c", "d"]
    return Case(evaluation, *split(4, classes=3), figures_by_group)


def figures_by_group(outputs, batch):
    figures = group_figures(outputs, batch, 0.4)
    for group, (_, accuracy, loss) in by_group(outputs, batch).items():
        figures |= {f"group_accuracy/{'abcd'[group]}": accuracy, f"group_loss/{'abcd'[group]}": loss}
    return figures


def tasks():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(60, 3, generator=generator)
    group = torch.arange(60) % 4
    group[group == 2] = 5  # the groups 2 and 4 are absent
    return Case(
        TaskEvaluation(), outputs, {"y": torch.randint(2, (60, 3), generator=generator), "group": group}, by_task
    )


def by_task(outputs, batch):
    accuracy, loss = np.zeros((3, 4)), np.zeros((3, 4))
    for t in range(3):
        for place, g in enumerate((0, 1, 3, 5)):
            own = batch["group"] == g
            p, y = outputs[own, t].double().sigmoid(), batch["y"][own, t]
            accuracy[t, place] = binary_accuracy(p, y)
            loss[t, place] = log_loss(y, p, labels=[0, 1])
    worst, everything = accuracy.min(1), outputs.double().sigmoid().flatten()
    return {
        "accuracy": accuracy_score(batch["y"].flatten(), everything > 0.5),
        "worst_accuracy": worst.min(),
        "worst_group_accuracy": worst.mean(),
        "loss": log_loss(batch["y"].flatten(), everything),
        "worst_group_loss": loss.max(1).mean(),
    } | {f"task_accuracy/{t}": value for t, value in enumerate(worst)}


def continual():
    """The classes 0 and 1 are protected tasks, 2 is the target."""
    generator = torch.Generator().manual_seed(0)
    outputs, batch = split(1, classes=3)
    old = outputs + torch.randn(outputs.shape, generator=generator)
    batch = {"y": batch["y"], "task": torch.tensor([0, 1, -1])[batch["y"]]}
    evaluation = ContinualEvaluation(tolerance=0.05, tolerance_loss=0.3)
    return Case(evaluation, outputs, batch | {"old": old} | evaluation.reference(old, batch), learnt_and_forgotten)


def learnt_and_forgotten(outputs, batch):
    y = batch["y"].numpy()
    recall, before = (recall_score(y, o.argmax(1).numpy(), average=None) for o in (outputs, batch["old"]))
    change = recall - before
    h = np.zeros(3)
    for c in range(3):
        new, old = (log_loss(y[y == c], probabilities(o)[y == c], labels=range(3)) for o in (outputs, batch["old"]))
        h[c] = new - old
    return {
        "accuracy": accuracy_score(y, outputs.argmax(1).numpy()),
        "target_accuracy": recall[2],
        "protected_accuracy": recall[:2].mean(),
        "delta_target": change[2],
        "worst_change": change[:2].min(),
        "satisfied": (change[:2] >= -0.05).mean(),
        "worst_loss_change": h[:2].max(),
        "satisfied_loss": (h[:2] <= 0.3).mean(),
        **{f"change/{c}": change[c] for c in range(2)},
        **{f"loss_change/{c}": h[c] for c in range(2)},
    }


def ranking():
    """Two labels of which some are not known, with equal scores among them."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (200, 2), generator=generator)
    outputs = (y + torch.randn(200, 2, generator=generator)).mul(4).round() / 4
    y[:30, 0] = -1
    evaluation = RankingEvaluation(max_fpr=0.4, min_tpr=0.3, top=[20], missing=-1)
    evaluation.label_names = ["first", "second"]
    return Case(evaluation, outputs, {"y": y}, ranked)


def ranked(outputs, batch):
    every = []
    for t in range(2):
        known = batch["y"][:, t] != -1
        every.append(of_a_list(outputs[known, t].numpy(), batch["y"][known, t].numpy()))
    figures = {name: (every[0][name] + every[1][name]) / 2 for name in every[0]}
    for name, one in zip(("first", "second"), every, strict=True):
        figures |= {f"{figure}/{name}": one[figure] for figure in ("average_precision", "auc")}
    return figures


def of_a_list(s, y):
    grid = np.linspace(0, 1, 400_001)
    fpr, tpr, _ = sklearn_roc_curve(y, s)
    curve = np.interp(grid, fpr, tpr)
    areas = []
    for most, least in ((1.0, 0.3), (0.4, 0.3)):
        inside = grid <= most
        ours, chance = (np.clip(c[inside] - least, 0, None).sum() / 400_001 for c in (curve, grid))
        areas.append((1 + (ours - chance) / (most * (1 - least) - chance)) / 2)
    order = np.argsort(-s, kind="stable")
    cut = s[order[19]]
    tied = y[s == cut]
    hits = y[s > cut].sum() + (20 - (s > cut).sum()) * tied.mean()
    return {
        "average_precision": average_precision_score(y, s),
        "auc": roc_auc_score(y, s),
        "partial_auc": roc_auc_score(y, s, max_fpr=0.4),
        "partial_auc_tpr": areas[0],
        "two_way_partial_auc": areas[1],
        "precision_at_20": hits / 20,
        "recall_at_20": hits / y.sum(),
    }


def bags():
    """Fifty bags, of which some positive ones are told apart by one instance."""
    generator = torch.Generator().manual_seed(0)
    bag = torch.randint(50, (300,), generator=generator) * 3
    outputs, y = torch.randn(300, 2, generator=generator), (bag % 2 == 0).long()
    outputs[:, 0] += y * (outputs[:, 1] > 0.5)
    figures = RankingEvaluation(max_fpr=0.4, min_tpr=0.3, top=[20])
    return Case(BagEvaluation(AttentionPooling(), figures), outputs, {"bag": bag, "y": y}, of_pooled_bags)


def of_pooled_bags(outputs, batch):
    table = pd.DataFrame({"bag": batch["bag"], "y": batch["y"], "s": outputs[:, 0], "a": outputs[:, 1].double()})
    pooled = table.groupby("bag").apply(lambda b: np.average(b.s, weights=np.exp(b.a)), include_groups=False)
    return of_a_list(pooled.to_numpy(), table.groupby("bag").y.first().to_numpy())


def values():
    generator = torch.Generator().manual_seed(0)
    outputs, truth, reward = (torch.randn(n, generator=generator) for n in ((40, 2), (40,), (40,)))
    batch = {"group": torch.arange(40) % 7, "reward": reward, "value": truth}
    return Case(ValueEvaluation(0.9), outputs, batch, of_a_value_function)


def of_a_value_function(outputs, batch):
    first, second = outputs.numpy().T
    table = pd.DataFrame({"state": batch["group"], "td": first - batch["reward"].numpy() - 0.9 * second})
    return {
        "bellman_error": root_mean_squared_error(np.zeros(7), table.groupby("state").td.mean()),
        "td_error": root_mean_squared_error(np.zeros(40), table.td),
        "value_error": root_mean_squared_error(batch["value"], first),
    }


def classes():
    return Case(ClassEvaluation(), *split(2, classes=7), of_classes)


def of_classes(outputs, batch):
    y, p = batch["y"].numpy(), probabilities(outputs)
    return {
        "accuracy": accuracy_score(y, outputs.argmax(1).numpy()),
        "top5_accuracy": top_k_accuracy_score(y, p, k=5, labels=range(7)),
        "loss": log_loss(y, p, labels=range(7)),
    }


def retrieval():
    generator = torch.Generator().manual_seed(0)
    query = torch.randint(9, (80,), generator=generator)
    y = torch.randint(4, (80,), generator=generator) * (query != 4)  # query 4 has no relevant item
    return Case(RetrievalEvaluation([3, 10]), torch.randn(80, generator=generator), {"query": query, "y": y}, lists)


def lists(outputs, batch):
    query, y = batch["query"], batch["y"]
    own = [query == q for q in query.unique() if bool((y[query == q] > 0).any())]

    def ndcg(k):
        return np.mean([ndcg_score([2.0 ** y[q].numpy() - 1], [outputs[q].numpy()], k=k) for q in own])

    def first(q):
        order = (-outputs[q]).argsort()[:10]  # torchmetrics is no reference: scores below 0 change its figures
        return next((1 / place for place, grade in enumerate(y[q][order].tolist(), start=1) if grade > 0), 0.0)

    return {
        "ndcg_3": ndcg(3),
        "ndcg_10": ndcg(10),
        "map": np.mean([average_precision_score(y[q] > 0, outputs[q]) for q in own]),
        "mrr_10": np.mean([first(q) for q in own]),
    }


def survival():
    generator = torch.Generator().manual_seed(0)
    risk = torch.randn(60, generator=generator)
    time = (5 * torch.rand(60, generator=generator).log().neg() * torch.exp(-risk)).clamp(max=20).ceil()  # with ties
    event = (torch.rand(60, generator=generator) < 0.6).long()
    return Case(SurvivalEvaluation(horizon=9.0), risk, {"time": time, "event": event}, of_times)


def of_times(outputs, batch):
    """By loops over pairs, samples and times."""
    h, t, e = outputs.double().tolist(), batch["time"].tolist(), batch["event"].tolist()
    n, horizon = len(h), 9.0

    def uncensored(limit, *, before):
        chance = 1.0
        for s in sorted({t[i] for i in range(n) if not e[i]}):
            if s < limit or (s == limit and not before):
                there = sum(t[i] > s or (t[i] == s and not e[i]) for i in range(n))  # events come first
                chance *= 1 - sum(t[i] == s and not e[i] for i in range(n)) / there
        return chance

    def share(weight, limit):
        pairs = [(i, j) for i in range(n) for j in range(n) if e[i] and t[i] <= limit]
        pairs = [(i, j) for i, j in pairs if t[i] < t[j] or (t[i] == t[j] and not e[j])]
        right = sum(weight(i) * (1.0 if h[i] > h[j] else 0.5 if h[i] == h[j] else 0.0) for i, j in pairs)
        return right / sum(weight(i) for i, _ in pairs)

    def risk_set(limit):
        return sum(math.exp(h[j]) for j in range(n) if t[j] >= limit)

    def predicted(i, limit):
        hazard = sum(1 / risk_set(t[j]) for j in range(n) if e[j] and t[j] <= limit)
        return math.exp(-hazard * math.exp(h[i]))

    def brier(limit):
        gone = [predicted(i, limit) ** 2 / uncensored(t[i], before=True) for i in range(n) if t[i] <= limit and e[i]]
        left = [(1 - predicted(i, limit)) ** 2 / uncensored(limit, before=False) for i in range(n) if t[i] > limit]
        return (sum(gone) + sum(left)) / n

    grid = np.linspace(min(s for s, d in zip(t, e, strict=True) if d), horizon, 50)
    return {
        "c_index": share(lambda i: 1.0, math.inf),
        "c_index_ipcw": share(lambda i: uncensored(t[i], before=True) ** -2, horizon),
        "integrated_brier": np.trapezoid([brier(s) for s in grid], grid) / (horizon - grid[0]),
        "loss": np.mean([math.log(risk_set(t[i])) - h[i] for i in range(n) if e[i]]),
    }


def neighbours():
    outputs, batch = split(2, classes=3)
    return Case(NeighbourEvaluation(3), outputs, batch, of_neighbours)


def of_neighbours(outputs, batch):
    x, y = outputs.numpy().astype(float), batch["y"].numpy()
    found = cross_val_predict(KNeighborsClassifier(3, metric="cosine"), x, y, cv=LeaveOneOut())
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    spread = np.sqrt(((unit - unit.mean(0)) ** 2).sum(1).mean())
    return {"knn_accuracy": accuracy_score(y, found), "spread": spread}


def numbers():
    generator = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(40, generator=generator), 3 + 2 * torch.randn(40, generator=generator)
    return Case(NumberEvaluation(), outputs, {"y": y}, of_numbers)


def of_numbers(outputs, batch):
    y, found = batch["y"].double().numpy(), outputs.double().numpy()
    rmse = mean_squared_error(y, found) ** 0.5
    return {"rmse": rmse, "mae": mean_absolute_error(y, found), "r2": r2_score(y, found)}


def pairs():
    """Captions of 20 images, of which some have several."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(20, (50,), generator=generator)
    images = torch.randn(20, 6, generator=generator)[image]
    outputs = Embeddings(images, images + 2 * torch.randn(50, 6, generator=generator))
    return Case(PairEvaluation([1, 3]), outputs, {"image": image}, of_pairs)


def of_pairs(outputs, batch):
    images, texts, own = outputs.image.numpy(), outputs.text.numpy(), batch["image"].numpy()
    numbers, first = np.unique(own, return_index=True)
    similar = images[first] @ texts.T
    figures = {}
    for k in (1, 3):
        texts_near, images_near = np.argsort(-similar, 1)[:, :k], np.argsort(-similar, 0)[:k].T
        hits = [number in own[near] for number, near in zip(numbers, texts_near, strict=True)]
        figures[f"image_to_text_recall_at_{k}"] = np.mean(hits)
        hits = [number in numbers[near] for number, near in zip(own, images_near, strict=True)]
        figures[f"text_to_image_recall_at_{k}"] = np.mean(hits)
    return figures | {"mean_recall": np.mean(list(figures.values()))}


CASES = {
    BinaryEvaluation: binary,
    NumberEvaluation: numbers,
    GroupEvaluation: groups,
    RankingEvaluation: ranking,
    BagEvaluation: bags,
    TaskEvaluation: tasks,
    ContinualEvaluation: continual,
    RetrievalEvaluation: retrieval,
    SurvivalEvaluation: survival,
    ValueEvaluation: values,
    ClassEvaluation: classes,
    NeighbourEvaluation: neighbours,
    PairEvaluation: pairs,
}


def at(outputs, rows):
    return pytree.tree_map(lambda leaf: leaf[rows], outputs)


def size_of(case):
    return len(pytree.tree_leaves(case.outputs)[0])


@pytest.fixture(params=CASES.values(), ids=[kind.__name__ for kind in CASES])
def case(request):
    return request.param()


def test_every_evaluation_of_the_package_has_an_example():
    assert concrete_classes(Evaluation) == CASES.keys()


def test_the_figures_are_those_of_other_libraries(case):
    got = case.evaluation(case.outputs, case.batch)
    expected = case.reference(case.outputs, case.batch)
    assert got == pytest.approx(expected, rel=SINGLE, abs=1e-6)
    assert all(math.isfinite(value) for value in expected.values())


def test_figures_are_plain_numbers_and_contain_those_of_the_progress_bar(case):
    got = case.evaluation(case.outputs, case.batch)
    assert all(type(value) is float for value in got.values())
    assert {*case.evaluation.bar, case.evaluation.figure_of_merit()} <= got.keys()
    assert not any("/" in name for name in case.evaluation.bar)
    details = case.evaluation.details(case.outputs, case.batch)
    assert json.loads(json.dumps(details)) == details


def test_the_order_of_the_samples_does_not_matter(case):
    order = torch.randperm(size_of(case), generator=torch.Generator().manual_seed(1))
    shuffled = {name: column[order] for name, column in case.batch.items()}
    got = case.evaluation(at(case.outputs, order), shuffled)
    assert got == pytest.approx(case.evaluation(case.outputs, case.batch), rel=1e-6)


def test_what_is_evaluated_stays_as_it_is(case):
    outputs, batch = pytree.tree_map(torch.clone, (case.outputs, case.batch))
    case.evaluation(case.outputs, case.batch)
    case.evaluation.details(case.outputs, case.batch)
    case.evaluation.reference(case.outputs, case.batch)
    assert all(map(torch.equal, *map(pytree.tree_leaves, (case.outputs, outputs))))
    assert all(torch.equal(case.batch[name], column) for name, column in batch.items())


def test_columns_to_remember_have_one_value_per_sample(case):
    columns = case.evaluation.reference(case.outputs, case.batch)
    assert {tuple(column.shape) for column in columns.values()} <= {(size_of(case),)}


@pytest.mark.slow
def test_pictures_of_a_history_are_written_into_the_folder(case, tmp_path):
    figures = case.evaluation(case.outputs, case.batch)
    history = [{"epoch": epoch, "split": "test", "h/a": 0.1, **figures} for epoch in range(3)]
    paths = case.evaluation.draw(history, {"test": (case.outputs, case.batch)}, tmp_path)
    assert sorted(paths) == sorted(tmp_path.iterdir())
    assert tmp_path / "constraints.png" in paths
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


GROUPED = {"y": [0, 1, 0, 1], "group": [0, 0, 1, 1]}
LABELLED = {"y": [[1, 1], [1, 1], [1, 1]], "group": [0, 3, 3]}
LEARNT = {"y": [0, 1], "task": [0, -1], "old_loss": [0.1, 0.2], "old_correct": [1, 1]}
LISTED = {"y": [2, 1, 0], "query": [5, 5, 8]}
TIMED = {"time": [1.0, 2.0, 3.0], "event": [1, 0, 1]}
REFUSED = [
    (BinaryEvaluation, (4, 2), GROUPED, r"one score per sample.* got outputs of shape \(4, 2\).*--model.evaluation"),
    (BinaryEvaluation, (4, 1, 1), GROUPED, r"got outputs of shape \(4, 1, 1\)"),
    (BinaryEvaluation, (4,), GROUPED | {"y": None}, r"need a column 'y'.*\['group'\].*--model.evaluation"),
    (GroupEvaluation, (4,), GROUPED | {"group": None}, r"need a column 'group'.*\['y'\].*--model.evaluation"),
    (GroupEvaluation, (4,), GROUPED | {"y": None}, "need a column 'y'"),
    (GroupEvaluation, (4,), GROUPED | {"y": [0, 1, 2, 0]}, r"y must lie in 0\.\.1 .* got 2 at position 2"),
    (GroupEvaluation, (4, 3), GROUPED | {"y": [0, 1, 3, 0]}, r"y must lie in 0\.\.2 .* got 3 at position 2"),
    (GroupEvaluation, (4, 3, 2), GROUPED, "one score per sample"),
    (GroupEvaluation, (4,), GROUPED | {"y": [0, 1]}, r"shape \(4,\), got \(2,\)"),
    (GroupEvaluation, (4,), GROUPED | {"group": [0, -2, 0, 1]}, "got -2 at position 1"),
    (GroupEvaluation, (4,), GROUPED | {"group": [0.0, 1.0, 0.0, 1.0]}, "group must be whole numbers"),
    (GroupEvaluation, (0,), {"y": [], "group": []}, "at least one sample"),
    (TaskEvaluation, (3, 2), LABELLED | {"y": [[1], [1], [1]]}, r"one shape \(n, T\), got \(3, 2\) and \(3, 1\)"),
    (TaskEvaluation, (3,), LABELLED | {"y": [1, 1, 1]}, r"one shape \(n, T\), got \(3,\) and \(3,\)"),
    (TaskEvaluation, (3, 2), LABELLED | {"group": None}, r"need a column 'group'.*\['y'\].*--model.evaluation"),
    (TaskEvaluation, (3, 2), LABELLED | {"y": None}, "need a column 'y'"),
    (ContinualEvaluation, (2, 2), LEARNT | {"y": None}, "need a column 'y'"),
    (ContinualEvaluation, (2, 2), LEARNT | {"task": None}, r"need a column 'task'.*\['old_correct', 'old_loss', 'y'\]"),
    (ContinualEvaluation, (2, 2), LEARNT | {"old_loss": None}, "need a column 'old_loss'"),
    (ContinualEvaluation, (2, 2), LEARNT | {"old_correct": None}, "need a column 'old_correct'"),
    (ContinualEvaluation, (2, 2), LEARNT | {"y": [0, 2]}, r"y must lie in 0\.\.1 .* got 2 at position 1"),
    (ContinualEvaluation, (2, 2), LEARNT | {"task": [0]}, r"one shape \(n,\), got y \(2,\), task \(1,\)"),
    (ContinualEvaluation, (2, 2), LEARNT | {"task": [0.0, 1.0]}, "must be whole numbers"),
    (ContinualEvaluation, (2, 2), LEARNT | {"old_loss": [0.1, math.nan]}, "must be finite, got nan at position 1"),
    (ContinualEvaluation, (2, 2), LEARNT | {"old_loss": [0.1]}, r"old_loss \(1,\)"),
    (PairEvaluation, (4, 2), {}, r"embeddings of images and texts, both \(n, d\).*--model.evaluation"),
    (RetrievalEvaluation, (3,), LISTED | {"query": None}, "need a column 'query'"),
    (RetrievalEvaluation, (3, 2), LISTED, r"got \(3, 2\)"),
    (SurvivalEvaluation, (3,), TIMED | {"time": None}, "need a column 'time'"),
    (SurvivalEvaluation, (3, 2), TIMED, r"got \(3, 2\)"),
]


@pytest.mark.parametrize(("evaluation", "shape", "columns", "match"), REFUSED)
def test_what_does_not_fit_is_refused(evaluation, shape, columns, match):
    batch = {name: torch.tensor(column) for name, column in columns.items() if column is not None}
    batch = {name: column if len(column) else column.long() for name, column in batch.items()}
    with pytest.raises(DataError, match=match):
        evaluation()(torch.zeros(shape), batch)
