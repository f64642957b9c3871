"""The data module of image-text pairs, in which an image is held out with all its captions."""

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer
from PIL import Image

from fcco_lightning import FCCOModule, UniformSampling
from fcco_lightning.algorithms import SOX
from fcco_lightning.data.datamodules import Architecture, PairDataModule, Pairs
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models import CLIPModel
from fcco_lightning.objectives import GlobalContrastive
from fcco_lightning.reports import PredictionWriter
from tests.conftest import QUIET

IMAGES = 20


@pytest.fixture
def folder(tmp_path):
    """Images filled with their number, each with two captions in rows of their own."""
    for i in range(IMAGES):
        Image.new("RGB", (16, 16), (2 * i, 0, 0)).save(tmp_path / f"{i}.png")
    rows = [(f"{i}.png", f"{word} {i}") for word in ("first", "second") for i in range(IMAGES)]
    pd.DataFrame(rows, columns=["file_name", "caption"]).to_csv(tmp_path / "pairs.tsv", sep="\t", index=False)
    return tmp_path


def module(source, **arguments):
    pairs = Pairs(source, augment=arguments.pop("augment", False))
    data = PairDataModule(pairs=pairs, model=Architecture("tiny"), **arguments)
    data.setup()
    return data


def seen(loader):
    """The image that every row shows, the number in its caption, and ``image``."""
    batches = list(loader)
    shown = torch.cat([((b["x"][:, 0, 0, 0] * 0.5 + 0.5) * 255 / 2).round().long() for b in batches]).tolist()
    texts = [bytes(row[1 : row.tolist().index(257)].tolist()).decode() for b in batches for row in b["text"]]
    numbers = torch.cat([b["image"] for b in batches]).tolist() if "image" in batches[0] else None
    return shown, texts, numbers


def test_images_are_held_out_with_all_captions(folder):
    data = module(str(folder / "pairs.tsv"), val=0.2, test=3.0, batches=UniformSampling(8))
    parts = {name: seen(loader) for name, loader in data.evaluation_loaders().items()}
    parts["train"] = seen(data.part_loaders("train")["target"])
    for name, size in {"train": 13, "val": 4, "test": 3}.items():
        shown, texts, numbers = parts[name]
        assert len(shown) == 2 * size == 2 * len(set(shown))
        assert [int(text.split()[1]) for text in texts] == shown
        assert len(set(texts)) == len(texts)
        assert numbers is None or len(set(zip(numbers, shown, strict=True))) == size
    assert sorted({image for shown, *_ in parts.values() for image in shown}) == list(range(IMAGES))
    assert data.num_train == 26
    assert data.val_names == ["val"]
    other = module(str(folder / "pairs.tsv"), val=0.2, test=3.0, split_seed=1)
    assert other.state_dict() != data.state_dict()


def test_captions_of_a_cell_and_sources_of_their_own(folder):
    content = {"image": [Image.new("RGB", (16, 16), (2 * i, 0, 0)) for i in range(9)]}
    content["caption"] = [[f"a {i}"] * (1 + i % 3) for i in range(9)]
    source = datasets.Dataset.from_dict(content)
    data = module(source, val=0, test=str(folder / "pairs.tsv"))
    assert data.num_train == 9
    assert data.val_names == []
    assert len(data.tables["test"]) == 2 * IMAGES
    shown, texts, numbers = seen(module(source, val=0, test=6).test_dataloader())
    assert [int(text.split()[1]) for text in texts] == shown
    assert len(set(numbers)) == 6 < len(numbers)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_recall_is_logged_and_the_figure_of_merit(folder):
    data = module(str(folder / "pairs.tsv"), val=5, test=5, batches=UniformSampling(8))
    learner = FCCOModule(CLIPModel("tiny"), GlobalContrastive(0.1), algorithm=SOX(0.8))
    trainer = Trainer(max_epochs=1, accelerator="cpu", **QUIET)
    trainer.fit(learner, data)
    assert 0 <= trainer.callback_metrics["val_image_to_text_recall_at_1"] <= 1
    (tested,) = trainer.test(learner, data, verbose=False)
    assert tested["test_text_to_image_recall_at_5"] == 1
    assert learner.evaluation.figure_of_merit() == "mean_recall"
    assert not np.isnan(tested["test_mean_recall"])
    trainer = Trainer(accelerator="cpu", callbacks=[PredictionWriter()], **QUIET)
    with pytest.raises(DataError, match=r"returned several \(Embeddings\)\. Use trainer\.predict"):
        trainer.predict(learner, data)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"test": 0}, ConfigError, "test=0 leaves nothing to evaluate"),
        ({"val": -1}, ConfigError, "val must"),
        ({"val": 2.5}, ConfigError, "val must be a whole number"),
        ({"val": 10, "test": 9}, DataError, r"of 20 images \{'test': 9, 'val': 10\} are to be held out"),
        ({"val": 0.01}, DataError, "'val': 0"),
    ],
)
def test_what_is_refused(folder, arguments, error, message):
    with pytest.raises(error, match=message):
        module(str(folder / "pairs.tsv"), **arguments)


def test_pairs_must_be_named_and_are_not_labelled():
    with pytest.raises(DataError, match=r"pairs\.sources names none"):
        module(None)
    with pytest.raises(ConfigError, match=r"pairs\.of_others=0\.5 is of labelled images"):
        PairDataModule(pairs=Pairs("x.tsv", of_others=0.5), model=Architecture("tiny"))
