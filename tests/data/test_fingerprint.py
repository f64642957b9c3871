"""Fingerprints of the data in a checkpoint: which changes are noticed, and how they are named."""

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fcco_lightning.data import Columns, Groups, GroupSampling, Splits
from fcco_lightning.data.datamodules import ContinualCLIPDataModule, ImageSplits, LabelledImages, TabularDataModule
from fcco_lightning.data.datamodules.clip_parts import Architecture, Classes, Pairs
from fcco_lightning.data.fingerprint import contents_of, contents_of_images, require_same
from fcco_lightning.errors import DataError
from tests.images import picture

ROWS = 120


def make_frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "a": rng.normal(size=ROWS),
            "n": rng.integers(0, 9, ROWS),
            "word": rng.choice(["cook", "poet"], ROWS),
            "sex": rng.choice(["m", "f"], ROWS),
            "y": np.arange(ROWS) % 2,
        }
    )


SENSITIVE = {"columns": Columns("y", sensitive="sex", favoured="m")}
GROUPED = {"columns": Columns("y"), "groups": Groups(by=["sex"], min_size=1), "batches": GroupSampling()}


def table(frame, roles=SENSITIVE, **changes):
    module = TabularDataModule(frame, **roles, splits=Splits(test_fraction=0.25), **changes)
    module.setup()
    return module


def other_features(frame):
    return frame.assign(a=frame["a"].iloc[::-1].to_numpy()), r"contents or the order of \['a'\]"


def one_cell(frame):
    return frame.assign(a=frame["a"].where(frame.index != 60, 7.5)), r"order of \['a'\]"


def other_words(frame):
    word = frame["word"].replace({"cook": "poet", "poet": "cook"})
    return frame.assign(word=word), r"order of \['word'\]"


def permuted_within_label_and_group(frame):
    rows = frame.groupby(["y", "sex"]).indices.values()
    moved = np.empty(ROWS, dtype=int)
    for cell in rows:
        moved[cell] = np.roll(cell, 1)
    permuted = frame.iloc[moved].reset_index(drop=True)
    assert permuted[["y", "sex"]].equals(frame[["y", "sex"]])
    return permuted, r"order of \['a', 'n', 'word'\]"


@pytest.mark.parametrize("roles", [SENSITIVE, GROUPED])
@pytest.mark.parametrize("edit", [other_features, one_cell, other_words, permuted_within_label_and_group])
def test_an_edited_table_is_noticed_and_what_differs_is_named(roles, edit):
    state = table(make_frame(), roles).state_dict()
    table(make_frame(), roles).load_state_dict(state)
    edited, named = edit(make_frame())
    with pytest.raises(DataError, match=rf"another training split.*{named}.*--data.allow_changed true"):
        table(edited, roles).load_state_dict(state)
    with pytest.warns(UserWarning, match=named):
        table(edited, roles, allow_changed=True).load_state_dict(state)
    del state["train_split"]["contents"], state["train_split"]["digest"]  # as versions before did
    table(edited, roles).load_state_dict(state)


@pytest.mark.parametrize("roles", [SENSITIVE, GROUPED])
def test_classes_of_other_names_are_refused_whatever_is_allowed(roles):
    named = make_frame().assign(y=make_frame()["y"].map({0: "bird", 1: "cat"}))
    state = table(named, roles).state_dict()
    renamed = named.assign(y=named["y"].replace("cat", "a cat"))  # which sorts before the other one
    for allowed in (False, True):
        with pytest.raises(DataError, match="Class 0 is 'bird' in the checkpoint and 'a cat' in the training split"):
            table(renamed, roles, allow_changed=allowed).load_state_dict(state)
    of_three = named.assign(y=named["y"].where(named.index % 7 != 0, "dog"))
    with pytest.warns(UserWarning, match=r"classes: 2 there, 3 here.*names of classes from number 2 on: \[\] there, "):
        table(of_three, roles, allow_changed=True).load_state_dict(state)
    del state["train_split"]["names of classes"], state["train_split"]["names of groups"]  # as versions before did
    with pytest.warns(UserWarning, match="names of features, classes or groups|contents"):
        table(renamed, roles, allow_changed=True).load_state_dict(state)


def test_groups_of_other_names_are_told():
    state = table(make_frame(), GROUPED).state_dict()
    others = make_frame().assign(sex=make_frame()["sex"].replace("m", "a"))
    told = r"names of groups from number 0 on: \['sex=f', 'sex=m'\] there, \['sex=a', 'sex=f'\] here"
    with pytest.raises(DataError, match=told):
        table(others, GROUPED).load_state_dict(state)
    with pytest.warns(UserWarning, match=told):
        table(others, GROUPED, allow_changed=True).load_state_dict(state)


def test_the_same_table_in_another_file_is_the_same(tmp_path):
    frame = make_frame()
    frame.loc[3, "word"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    read = [pd.read_csv(tmp_path / "t.csv"), pd.read_parquet(tmp_path / "t.parquet"), frame.astype({"n": float})]
    assert all(contents_of(one) == contents_of(frame) for one in read)


def test_files_of_images(tmp_path):
    files = [f"img/{i}.png" for i in range(4)]
    for i, file in enumerate(files):
        picture(tmp_path / file, i)
    stored = {"contents": contents_of_images(files, "the images", tmp_path)}
    assert all(contents_of_images([*files, "img/none.png"], "the images", tmp_path).values())

    def now():
        return {"contents": contents_of_images(files, "the images", tmp_path)}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_same(stored, now(), "images")
    os.utime(tmp_path / files[2], (1, 1))  # a copy
    with pytest.warns(UserWarning, match=r"'modification times of the images'"):
        require_same(stored, now(), "images")
    with pytest.raises(DataError, match="the order of labels, groups"):  # a copy whose labels were changed
        require_same(stored | {"digest": "a"}, now() | {"digest": "b"}, "images")
    (tmp_path / files[2]).write_bytes(b"other contents")
    with pytest.raises(DataError, match=r"'modification times of the images', 'sizes of the images'"):
        require_same(stored, now(), "images")
    files.reverse()
    with pytest.raises(DataError, match="'names of the images'"):
        require_same(stored, now(), "images")


def test_pixels_in_memory():
    pixels = np.random.default_rng(0).integers(0, 255, (200, 2, 2, 3), dtype=np.uint8)
    edited = pixels.copy()
    edited[101, 1, 1, 1] ^= 1
    assert contents_of_images(pixels, "x") != contents_of_images(edited, "x")


def test_images_of_pairs_and_tasks(tmp_path, monkeypatch):
    for i in range(12):
        picture(tmp_path / f"labelled/{i}.png", i)
        picture(tmp_path / f"pairs/{i}.png", i)
    labels = pd.DataFrame({"file_name": [f"{i}.png" for i in range(12)], "label": ["a", "b", "c"] * 4})
    labels.assign(split=["train"] * 6 + ["test"] * 6).to_csv(tmp_path / "labelled/metadata.csv", index=False)
    texts = pd.DataFrame({"file_name": [f"{i}.png" for i in range(12)], "caption": [f"page {i}" for i in range(12)]})
    texts.to_csv(tmp_path / "pairs/pairs.csv", index=False)

    def module(folder=tmp_path, **changes):
        made = ContinualCLIPDataModule(
            model=Architecture("tiny"),
            images=LabelledImages(root=str(folder / "labelled")),
            classes=Classes(target=["a"]),
            pairs=Pairs(sources=str(folder / "pairs/pairs.csv"), augment=False),
            splits=ImageSplits(),
            **changes,
        )
        made.setup()
        return made

    state = module().state_dict()
    module().load_state_dict(state)
    shutil.copytree(tmp_path, tmp_path / "copy")  # which keeps the times
    module(tmp_path / "copy").load_state_dict(state)
    monkeypatch.chdir(tmp_path)
    module(Path("copy")).load_state_dict(state)
    (tmp_path / "pairs/3.png").write_bytes(b"other contents")
    with pytest.raises(DataError, match=r"sizes of the images of pairs.sources\[0\]"):
        module().load_state_dict(state)
    (tmp_path / "labelled/3.png").write_bytes(b"other contents")
    with pytest.raises(DataError, match="sizes of the labelled images"):
        module().load_state_dict(state)
    with pytest.warns(UserWarning, match="sizes of the labelled images"):
        module(allow_changed=True).load_state_dict(state)


@pytest.mark.parametrize("count", [1, 63, 64, 200])
def test_a_sample_of_stored_images_and_their_number_are_looked_at(count):
    stored = [{"bytes": bytes([i]), "path": None} for i in range(count)]
    others = [*stored, stored[0]], [{"bytes": b"other", "path": None}, *stored[1:]]
    known, *changed = (contents_of_images(images, "the images") for images in (stored, *others))
    assert contents_of_images(list(stored), "the images") == known
    assert known not in changed
