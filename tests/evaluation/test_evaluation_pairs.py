"""Recall of image-text pairs against NumPy, pair by pair."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.evaluation import ContinualEvaluation, PairEvaluation, pairs
from fcco_lightning.models.outputs import Embeddings


def recalls(images, texts, own, k):
    """With loops: of an image the nearest of its texts counts, and others that are as near stand before it."""
    numbers = list(dict.fromkeys(own))
    first = [own.index(number) for number in numbers]
    similar = images[first] @ texts.T
    to_text, to_image = [], []
    for i, number in enumerate(numbers):
        nearest = max(similar[i, j] for j in range(len(own)) if own[j] == number)
        to_text.append(sum(similar[i, j] >= nearest for j in range(len(own)) if own[j] != number) < k)
    for j, number in enumerate(own):
        own_similarity = similar[numbers.index(number), j]
        to_image.append(sum(similar[i, j] >= own_similarity for i in range(len(numbers)) if numbers[i] != number) < k)
    return np.mean(to_text), np.mean(to_image)


def made(several, rows=30, seed=0):
    """Coordinates of few values, so that many similarities are equal and exact."""
    rng = np.random.default_rng(seed)
    own = rng.permutation(np.repeat(np.arange(rows // 3), 3) if several else np.arange(rows)).tolist()
    images = rng.integers(-2, 3, (rows, 4)).astype(float)[own]
    return images, images + rng.integers(-1, 2, (rows, 4)), own


@pytest.mark.parametrize("at_once", [1, 64, 1 << 20])
@pytest.mark.parametrize("several", [False, True])
def test_figures_are_those_of_loops(several, at_once, monkeypatch):
    monkeypatch.setattr(pairs, "_AT_ONCE", at_once)
    images, texts, own = made(several)
    batch = {"index": torch.arange(30)} | ({"image": 7 + torch.tensor(own)} if several else {})
    outputs = Embeddings(torch.tensor(images).float(), torch.tensor(texts).float())
    figures = PairEvaluation([5, 1, 2])(outputs, batch)
    for k in (1, 2, 5):
        expected = recalls(images, texts, own, k)
        found = [figures[f"{way}_recall_at_{k}"] for way in ("image_to_text", "text_to_image")]
        assert found == pytest.approx(expected, abs=1e-12)
        assert 0 < expected[0] < 1
    assert figures["mean_recall"] == pytest.approx(np.mean([v for n, v in figures.items() if n != "mean_recall"]))
    details = PairEvaluation().details(outputs, batch)
    assert details == {"num_images": 10 if several else 30, "num_texts": 30}
    order = torch.randperm(30)
    moved = {name: column[order] for name, column in batch.items()}
    assert PairEvaluation([5, 1, 2])(Embeddings(*(part[order] for part in outputs)), moved) == figures


def test_embeddings_that_are_all_alike_find_nothing():
    """However their products are rounded in blocks."""
    alike = torch.nn.functional.normalize(torch.ones(50, 37), dim=1)
    figures = PairEvaluation()(Embeddings(alike, alike), {})
    assert set(figures.values()) == {0.0}


def test_a_split_of_pairs_has_the_figures_of_pairs():
    images, texts, _ = made(several=False)
    outputs = Embeddings(torch.tensor(images), torch.tensor(texts))
    continual = ContinualEvaluation()
    assert continual(outputs, {}) == PairEvaluation()(outputs, {})
    assert continual.details(outputs, {}) == PairEvaluation().details(outputs, {})
    continual.take_names(SimpleNamespace(pairs=[], class_names=["cat"]))
    assert continual.merit == "target_accuracy"
    continual.take_names(SimpleNamespace(pairs=[], class_names=[]))
    assert {*continual.bar, continual.figure_of_merit()} <= set(continual(outputs, {}))


def test_what_is_refused():
    for wrong in ([], [0], [2.5]):
        with pytest.raises(ConfigError, match="k must"):
            PairEvaluation(wrong)
    with pytest.raises(DataError, match=r"embeddings of images and texts, both \(n, d\).*--model.evaluation"):
        PairEvaluation()((torch.zeros(4, 2), torch.zeros(4, 3)), {})
