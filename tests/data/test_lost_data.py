"""Unreadable samples are counted, mentioned in the report, and refused if more than a tenth."""

import json
import logging
import warnings

import numpy as np
import pandas as pd
import pytest
from lightning.pytorch import Trainer
from PIL import Image

from fcco_lightning import (
    AUC,
    Columns,
    Encoding,
    FCCOModule,
    GroupedImageDataModule,
    Groups,
    GroupSampling,
    Report,
    Splits,
    TabularDataModule,
    TabularMLP,
)
from fcco_lightning.data import ImageTransform
from fcco_lightning.data.datamodules import ImageSplits, LabelledImages
from fcco_lightning.data.encoding import TabularEncoder
from fcco_lightning.errors import DataError
from tests.conftest import QUIET

ROWS = 200


def table(kind, unreadable):
    """A column of prices or dates, of which some cells are written in another way."""
    rng = np.random.default_rng(0)
    right, wrong = {
        "prices": ([f"{x:.2f}" for x in rng.uniform(1, 9, ROWS)], "$12.50"),
        "dates": ([f"2024-01-{d:02d}" for d in rng.integers(1, 29, ROWS)], "31.12.2023"),
    }[kind]
    cells = [wrong if i < unreadable else cell for i, cell in enumerate(right)]
    return pd.DataFrame({"c": cells, "a": rng.normal(size=ROWS), "y": np.arange(ROWS) % 2})


def module(frame, missing="impute"):
    encoding = Encoding(numeric=["c"], missing=missing)
    return TabularDataModule(frame, columns=Columns("y"), splits=Splits(test_fraction=0.25), encoding=encoding)


@pytest.mark.parametrize("kind", ["prices", "dates"])
def test_cells_that_are_no_numbers_are_counted_and_refused_beyond_a_tenth(kind, caplog):
    for unreadable in (21, ROWS):
        with pytest.raises(
            DataError, match=rf"{unreadable} of 200 cells of the column 'c' of the train table are no n"
        ):
            module(table(kind, unreadable)).setup()
    made = module(table(kind, 20))
    with caplog.at_level(logging.INFO):
        made.setup("fit")
    assert "20 of 200 cells of c in the train table that are no numbers" in caplog.text
    assert {what: len(rows) for what, (rows, _) in made.lost().items() if "no numbers" in what} == {
        "cells of c in the train table that are no numbers": 20
    }
    assert sum(len(rows) for what, (rows, _) in made.lost().items() if "imputed" in what) == 20


def test_rows_of_no_group_are_counted():
    frame = table("prices", 0).drop(columns="c").assign(sex=["f", "f", "m", "m"] * (ROWS // 4))
    frame.loc[frame.index % 10 == 0, "sex"] = None
    data = TabularDataModule(frame, columns=Columns("y", sensitive="sex"), splits=Splits(test_fraction=0.25))
    data.setup("fit")
    lost = data.lost()
    parts = [lost[f"rows of {split} without 'sex', of no group"] for split in ("train", "test")]
    assert [sum(len(rows) for rows, _ in parts), sum(of for _, of in parts)] == [20, ROWS]
    for split, (rows, _) in zip(("train", "test"), parts, strict=True):
        assert rows == np.flatnonzero(data.tables[split].columns["group"] < 0).tolist()


def test_likewise_of_a_table_to_be_predicted():
    encoder = TabularEncoder(Encoding(numeric=["c"], missing="impute"))
    encoder.fit(pd.DataFrame({"c": np.arange(10.0)}))
    list(encoder.batches(table("prices", 20)[["c"]], 64))
    assert encoder.remarks(ROWS)[0].startswith("20 of 200 cells of the column 'c' are no numbers")
    with pytest.raises(DataError, match="21 of 200 cells of the column 'c' of the table are no numbers"):
        list(encoder.batches(table("prices", 21)[["c"]], 64))


def test_the_report_has_what_was_lost(tmp_path, capsys):
    report = Report(folder=str(tmp_path / "report"), pictures=False)
    trainer = Trainer(max_epochs=1, callbacks=[report], default_root_dir=tmp_path, **QUIET)
    frame = table("prices", 10)
    frame.loc[[50, 51], "a"] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(FCCOModule(TabularMLP([4]), AUC()), module(frame))
    lost = {one["what"]: one for one in json.loads((tmp_path / "report/report.json").read_text())["lost"]}
    assert lost["cells of c in the train table that are no numbers"]["lost"] == 10
    assert sum(one["lost"] for what, one in lost.items() if "missing" in what) == 12
    assert "Lost in the data" in (tmp_path / "report/report.html").read_text()
    assert "that are no numbers" in capsys.readouterr().out


def test_black_images_are_counted_for_the_report(tmp_path):
    for i in range(40):
        Image.new("RGB", (8, 8), (6 * i, 0, 0)).save(tmp_path / f"{i}.png")
    (tmp_path / "3.png").write_bytes(b"")
    frame = pd.DataFrame({"file_name": [f"{i}.png" for i in range(40)], "y": np.arange(40) % 2})
    frame.to_csv(tmp_path / "metadata.csv", index=False)
    made = GroupedImageDataModule(
        LabelledImages("folder", str(tmp_path), corrupt="blank"),
        columns=Columns("y"),
        groups=Groups(["y"]),
        splits=ImageSplits("fractions"),
        transform=ImageTransform(8),
        batches=GroupSampling(groups_per_batch=2, samples_per_group=4),
    )
    made.setup()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = [list(loader) for loader in (made.train_dataloader(), *made.evaluation_loaders().values())]
    assert all(read)
    assert sum(len(rows) for what, (rows, _) in made.lost().items() if "cannot be read" in what) == 1
