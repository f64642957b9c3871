"""Layouts of image data sets on disk: CelebA, Camelyon17, BDD100K, folders."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fcco_lightning.data import layouts
from fcco_lightning.errors import DataError
from tests.images import picture

# -------------------------------------------------------------------------------------------------------------- CelebA

MARKS = {"000001.jpg": (-1, 1, 1), "000002.jpg": (1, -1, 1), "000003.jpg": (-1, -1, -1)}


def celeba_text(root, images="img_align_celeba", partition=True):
    for name in MARKS:
        picture(root / images / name)
    rows = [f"{name} {' '.join(f'{mark:>2}' for mark in marks)}" for name, marks in MARKS.items()]
    (root / "list_attr_celeba.txt").write_text("\n".join(["3", "Blond_Hair Male Young ", *rows]) + "\n")
    if partition:
        (root / "list_eval_partition.txt").write_text("000003.jpg 2\n000001.jpg 0\n000002.jpg 1\n")
    return root


def celeba_kaggle(root):
    for name in MARKS:
        picture(root / "img_align_celeba" / "img_align_celeba" / name)
    rows = [",".join([name, *map(str, marks)]) for name, marks in MARKS.items()]
    (root / "list_attr_celeba.csv").write_text("\n".join(["image_id,Blond_Hair,Male,Young", *rows]))
    (root / "list_eval_partition.csv").write_text("image_id,partition\n000001.jpg,0\n000002.jpg,1\n000003.jpg,2\n")
    return root


@pytest.mark.parametrize(
    ("write", "images"),
    [(celeba_text, "img_align_celeba"), (celeba_kaggle, "img_align_celeba/img_align_celeba")],
)
def test_celeba(tmp_path, write, images):
    frame = layouts.celeba(write(tmp_path))
    expected = pd.DataFrame(
        {
            "file": [f"{images}/00000{i}.jpg" for i in (1, 2, 3)],
            "Blond_Hair": [0, 1, 0],
            "Male": [1, 0, 0],
            "Young": [1, 1, 0],
            "split": ["train", "val", "test"],
        }
    )
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False, check_names=False)
    assert (tmp_path / frame["file"][0]).is_file()


def test_celeba_without_a_partition_has_no_split(tmp_path):
    assert "split" not in layouts.celeba(celeba_text(tmp_path, partition=False))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("list_attr_celeba.txt", "4\nMale\n000001.jpg 1\n", "announces '4' images in its first line and lists 1"),
        ("list_attr_celeba.txt", "1\nMale\n000001.jpg 2\n", "must hold -1 or 1.*but 1 cells"),
        ("list_attr_celeba.txt", "2\nA B\n000001.jpg 1\n000002.jpg 1 1\n", "must hold -1 or 1|cannot be read"),
        ("list_attr_celeba.txt", "", "cannot be read"),
        ("list_eval_partition.txt", "000001.jpg 0\n000002.jpg 1\n", "must give every row one of the splits.*1 rows"),
        ("list_eval_partition.txt", "000001.jpg 0\n000002.jpg 1\n000003.jpg 7\n", "have none or .*7"),
    ],
)
def test_celeba_refuses(tmp_path, file, text, message):
    celeba_text(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=message):
        layouts.celeba(tmp_path)


def test_celeba_says_what_is_missing_and_where_it_looked(tmp_path):
    with pytest.raises(DataError, match=r"root='.*nowhere': no such folder.*layout of CelebA"):
        layouts.celeba(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"There is no '.*list_attr_celeba.txt' nor '.*list_attr_celeba.csv'.*Expected"):
        layouts.celeba(tmp_path)
    celeba_text(tmp_path)
    (tmp_path / "img_align_celeba" / "000001.jpg").unlink()
    with pytest.raises(DataError, match=r"There is no '.*img_align_celeba/000001.jpg'"):
        layouts.celeba(tmp_path)
    (tmp_path / "list_attr_celeba.txt").unlink()
    (tmp_path / "list_attr_celeba.csv").write_text("name,Male\n000001.jpg,1\n")
    with pytest.raises(DataError, match=r"lacks the columns \['image_id'\]; it has \['Male', 'name'\]"):
        layouts.celeba(tmp_path)


# ---------------------------------------------------------------------------------------------------------- Camelyon17


def camelyon(root, rows):
    header = ",patient,node,x_coord,y_coord,tumor,slide,center,split\n"
    (root / "metadata.csv").write_text(header + "".join(f"{i},{row}\n" for i, row in enumerate(rows)))
    picture(root / "patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png")
    return root


def test_camelyon17(tmp_path):
    # the first line of the real table, and one row of every part
    rows = ["004,4,3328,21792,1,0,0,0", "017,1,32,64,0,12,1,0", "040,2,1,2,1,25,2,1", "061,0,5,6,0,30,3,1"]
    frame = layouts.camelyon17(camelyon(tmp_path, rows))
    assert (tmp_path / frame["file"][0]).is_file()
    assert frame["file"][3] == "patches/patient_061_node_0/patch_patient_061_node_0_x_5_y_6.png"
    assert frame["split"].tolist() == ["train", "val", "test", "id_val"]
    assert frame["tumor"].tolist() == [1, 0, 1, 0]
    assert frame[["center", "slide"]].to_numpy().tolist() == [[0, 0], [1, 12], [2, 25], [3, 30]]


def test_camelyon17_refuses(tmp_path):
    with pytest.raises(DataError, match=r"There is no '.*metadata.csv'.*layout of WILDS' camelyon17_v1.0"):
        layouts.camelyon17(tmp_path)
    with pytest.raises(DataError, match=r"must give every row one of the splits \[0, 1\].*5"):
        layouts.camelyon17(camelyon(tmp_path, ["004,4,3328,21792,1,0,0,5"]))
    with pytest.raises(DataError, match="has no rows"):
        layouts.camelyon17(camelyon(tmp_path, []))
    (tmp_path / "metadata.csv").write_text(",patient,node\n0,004,4\n")
    with pytest.raises(DataError, match=r"lacks the columns \['x_coord', 'y_coord', 'tumor'"):
        layouts.camelyon17(tmp_path)


# ------------------------------------------------------------------------------------------------------------- BDD100K

SCENES = {  # as in the real files: in part without an attribute, and of the test images without anything
    "train": [
        ("0000f77c-6257be58", {"weather": "clear", "scene": "city street", "timeofday": "daytime"}),
        ("0000f77c-62c2a288", {"weather": "foggy", "scene": "highway", "timeofday": "dawn/dusk"}),
        ("0001542f-5ce3cf52", {"weather": "undefined", "timeofday": "night"}),
    ],
    "val": [("b1c66a42-6f7d68ca", {"weather": "overcast", "scene": "tunnel", "timeofday": "daytime"})],
}


def bdd100k(root, kind, nested="", released=""):
    images, labels = root / nested / "images" / "100k", root / (released or nested) / "labels"
    labels.mkdir(parents=True)
    for part, scenes in SCENES.items():
        boxes = [{"category": "car", "box2d": {"x1": 1.5, "y1": 2, "x2": 3, "y2": 4}}] * 3
        for name, _ in scenes:
            picture(images / part / f"{name}.jpg")
        entries = [{"name": f"{name}.jpg", "attributes": a, "timestamp": 10000, "labels": boxes} for name, a in scenes]
        if kind == "released":
            (labels / f"bdd100k_labels_images_{part}.json").write_text(json.dumps(entries, indent=4))
        elif kind == "det_20":
            (labels / "det_20").mkdir(exist_ok=True)
            (labels / "det_20" / f"det_{part}.json").write_text(json.dumps(entries))
        else:
            (labels / "100k" / part).mkdir(parents=True)
            for name, a in scenes:
                entry = {"name": name, "frames": [{"timestamp": 10000, "objects": boxes}], "attributes": a}
                (labels / "100k" / part / f"{name}.json").write_text(json.dumps(entry))
    picture(images / "test" / "cabc30fc-e7726578.jpg")
    return root


@pytest.mark.parametrize(
    ("kind", "nested", "released"),
    [
        ("released", "", ""),
        ("det_20", "", ""),
        ("single", "", ""),
        ("det_20", "bdd100k", ""),
        ("released", "bdd100k/bdd100k", "bdd100k_labels_release/bdd100k"),
    ],
)
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_bdd100k(tmp_path, monkeypatch, kind, nested, released, chunk):
    monkeypatch.setattr(layouts, "_CHUNK", chunk)  # lists are read in pieces, also in tiny ones
    frame = layouts.bdd100k(bdd100k(tmp_path, kind, nested, released))
    base = f"{nested}/images/100k" if nested else "images/100k"
    expected = pd.DataFrame(
        {
            "file": [f"{base}/{part}/{name}.jpg" for part, scenes in SCENES.items() for name, _ in scenes],
            "weather": ["clear", "foggy", "undefined", "overcast"],
            "scene": ["city street", "highway", "undefined", "tunnel"],
            "timeofday": ["daytime", "dawn/dusk", "night", "daytime"],
            "split": ["train", "train", "train", "test"],
        }
    )
    pd.testing.assert_frame_equal(frame, expected)
    assert all((tmp_path / file).is_file() for file in frame["file"])


def test_bdd100k_refuses(tmp_path):
    with pytest.raises(DataError, match=r"There is no folder '.*images/100k' nor .*Expected is the layout of BDD100K"):
        layouts.bdd100k(tmp_path)
    root = bdd100k(tmp_path / "whole", "released")
    path = root / "labels" / "bdd100k_labels_images_train.json"
    whole = path.read_text()
    for text, message in {
        whole[:-20]: "bdd100k_labels_images_train.json' cannot be read",
        '{"name": "a.jpg"}': "must hold a list",
        "[]": "labels of the train images of '.*' are empty",
        '[{"name": "a.jpg"}]': "an entry without name or attributes.*a.jpg",
        '[{"name": "a.jpg", "attributes": {"weather": "clear"}}]': "There is no '.*train/a.jpg'",
    }.items():
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            layouts.bdd100k(root)
    path.unlink()
    with pytest.raises(DataError, match="no labels of the train images in"):
        layouts.bdd100k(root)


# -------------------------------------------------------------------------------------------------------------- folder


def test_folder(tmp_path):
    picture(tmp_path / "images" / "a.png")
    table = pd.DataFrame(
        {"file_name": ["images/a.png", "images/b.png"], "label": ["x", "y"], "split": ["train", "val"]}
    )
    table.to_csv(tmp_path / "metadata.csv", index=False)
    table.to_parquet(tmp_path / "metadata.parquet")
    for name in "metadata.csv", "metadata.parquet":
        frame = layouts.folder(tmp_path, name)
        pd.testing.assert_frame_equal(frame, table.rename(columns={"file_name": "file"}), check_dtype=False)


def test_files_whose_names_are_digits(tmp_path):
    picture(tmp_path / "7.png", 3)
    (tmp_path / "7.png").rename(tmp_path / "007")
    (tmp_path / "metadata.csv").write_text("file_name,label\n007,x\n")
    assert layouts.folder(tmp_path)["file"].tolist() == ["007"]


def test_folder_of_splits(tmp_path):
    for part in "test", "validation", "train":
        picture(tmp_path / part / f"{part}.png")
        pd.DataFrame({"path": [f"{part}.png"], "label": [1]}).to_csv(tmp_path / part / "metadata.csv", index=False)
    frame = layouts.folder(tmp_path, file_column="path")
    assert frame["split"].tolist() == ["train", "val", "test"]
    assert all((tmp_path / file).is_file() for file in frame["file"])


PETS = ("cat/1.png", "cat/2.JPG", "dog/1.webp")


@pytest.mark.parametrize("parts", [(), ("train", "validation", "test")])
def test_subfolders_are_classes(tmp_path, parts):
    for part in parts or ("",):
        for name in (*PETS, ".hidden/1.png", "__MACOSX/1.png", "cat/notes.txt", "readme.md"):
            (tmp_path / part / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part / name).touch()
    frame = layouts.folder(tmp_path)
    names = [Path(part) / name for part in sorted(parts) or ("",) for name in (PETS[0], PETS[2], PETS[1])]  # in turn
    assert frame["file"].tolist() == [name.as_posix() for name in names]
    assert frame["label"].tolist() == [name.parent.name for name in names]
    if parts:
        assert frame["split"].tolist() == ["test"] * 3 + ["train"] * 3 + ["val"] * 3
    else:
        assert list(frame) == ["file", "label"]


@pytest.mark.parametrize(
    ("files", "folders", "message"),
    [
        (["a.png"], [], "has images beside its subfolders .*'a.png'"),
        (["train/a.png", "train/cat/1.png", "test/cat/1.png"], [], "train' has images beside"),
        ([], ["owl"], "owl' would be a class and holds no image"),
        (["cat/young/1.png"], [], r"cat' would be a class and has subfolders itself \(\['young'\]\)"),
    ],
)
def test_folders_of_classes_refuse_what_is_mixed(tmp_path, files, folders, message):
    for name in files if files and "train" in files[0] else (*PETS, *files):
        picture(tmp_path / name)
    for name in folders:
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=message):
        layouts.folder(tmp_path)


def test_one_class_is_none(tmp_path):
    picture(tmp_path / "images" / "1.png")
    with pytest.raises(DataError, match=r"all images in one subfolder, 'images', .* metadata\.csv"):
        layouts.folder(tmp_path)


def test_folder_refuses(tmp_path):
    with pytest.raises(
        DataError, match=r"There is no '.*metadata.csv' nor '.*train/metadata.csv'.*Expected is a folder"
    ):
        layouts.folder(tmp_path)
    pd.DataFrame({"file_name": ["a.png"], "file": ["b"]}).to_csv(tmp_path / "metadata.csv", index=False)
    with pytest.raises(DataError, match="has both 'file_name' and 'file'"):
        layouts.folder(tmp_path)
    with pytest.raises(DataError, match=r"file_column='filename' is not a column of .*Did you mean 'file_name'"):
        layouts.folder(tmp_path, file_column="filename")
    with pytest.raises(DataError, match=r"There is no '.*b'"):
        layouts.folder(tmp_path, file_column="file")
    (tmp_path / "metadata.parquet").write_text("no parquet")
    with pytest.raises(DataError, match="cannot be read"):
        layouts.folder(tmp_path, "metadata.parquet")


@pytest.mark.parametrize("name", ["../outside.png", "a/../../outside.png", "{folder}/outside.png"])
def test_a_table_names_files_below_its_root_only(name, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    for file in (root / "inside.png", tmp_path / "outside.png"):
        file.touch()
    rows = ["inside.png", str(root / "inside.png"), "a/../inside.png"]
    (root / "metadata.csv").write_text("\n".join(["file_name", *rows]))
    assert len(layouts.folder(root)) == 3
    (root / "metadata.csv").write_text("\n".join(["file_name", *rows, name.format(folder=tmp_path)]))
    with pytest.raises(DataError, match=r"row 3: the file '.*outside.png' lies outside of .*allow_outside"):
        layouts.folder(root)
    assert len(layouts.folder(root, allow_outside=True)) == 4


# ------------------------------------------------------------------------------------------ Amazon, CivilComments

REVIEWS = [  # text, stars, user, split
    ('Good, "really" good', 5, "A1", 0),
    ("NA", 1, "A1", 4),
    ("", 3, "B2", 1),
    ("two\nlines", 4, "A1", 2),
    ("left out", 2, "C3", -1),
    ("Ümlaut", 2, "A1", 0),
    ("new", 5, "D4", 3),
]


def amazon(root):
    columns = ["reviewerID", "asin", "reviewText", "summary", "overall", "category", "reviewYear", "verified"]
    rows = [(user, f"p{i}", text, "short", float(stars), "Books", 2010 + i, True)
            for i, (text, stars, user, _) in enumerate(REVIEWS)]  # fmt: skip
    pd.DataFrame(rows, columns=columns).to_csv(root / "reviews.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    (root / "splits").mkdir()
    pd.DataFrame({"split": [split for *_, split in REVIEWS]}).to_csv(root / "splits/user.csv", index=False)
    return root


def test_amazon(tmp_path):
    frame = layouts.amazon(amazon(tmp_path))
    names = {0: "train", 1: "val", 2: "id_val", 3: "test", 4: "id_test"}
    kept = [(i, *row) for i, row in enumerate(REVIEWS) if row[3] != -1]
    assert frame["text"].tolist() == [text for _, text, *_ in kept]
    assert frame["stars"].tolist() == [stars for _, _, stars, *_ in kept]
    assert frame["user"].tolist() == [user for *_, user, _ in kept]
    assert frame["split"].tolist() == [names[split] for *_, split in kept]
    assert frame["year"].tolist() == [2010 + i for i, *_ in kept]
    assert frame[["product", "category"]].to_numpy().tolist() == [[f"p{i}", "Books"] for i, *_ in kept]


def test_reviews_and_splits_must_lie_side_by_side(tmp_path):
    pd.DataFrame({"split": [0, 1]}).to_csv(amazon(tmp_path) / "splits/user.csv", index=False)
    with pytest.raises(DataError, match=r"has 7 reviews but .* has 2 rows.*Expected is the layout of WILDS' amazon"):
        layouts.amazon(tmp_path)
    (tmp_path / "reviews.csv").unlink()
    with pytest.raises(DataError, match=r"There is no .*reviews.csv"):
        layouts.amazon(tmp_path)


def civilcomments(root, rows=60):
    rng = np.random.default_rng(0)
    shares = rng.choice([0.0, 0.2, 0.5, 0.9], (rows, len(layouts.IDENTITIES)), p=[0.8, 0.1, 0.05, 0.05])
    frame = pd.DataFrame(shares, columns=list(layouts.IDENTITIES))
    frame["comment_text"] = [f"comment {i}" for i in range(rows)]
    frame["toxicity"] = rng.choice([0.0, 0.4, 0.5, 1.0], rows)
    frame["split"] = rng.choice(["train", "val", "test"], rows)
    frame["identity_any"] = 1.0
    frame.set_index(rng.permutation(rows)).to_csv(root / "all_data_with_identities.csv")
    return frame


def test_civil_comments_have_the_groups_of_wilds(tmp_path):
    written = civilcomments(tmp_path)
    frame = layouts.civilcomments(tmp_path)
    for identity in layouts.IDENTITIES:  # WILDS: CombinatorialGrouper of [identity, y], of which identity = 1 counts
        for toxic in (0, 1):
            members = {
                row.comment_text
                for row in written.itertuples()
                if getattr(row, identity) >= 0.5 and (row.toxicity >= 0.5) == bool(toxic)
            }
            found = frame[(frame["identity"] == identity) & (frame["toxic"] == toxic)]["text"]
            assert set(found) == members
            assert len(found) == len(members)
    others = written[(written[list(layouts.IDENTITIES)] < 0.5).all(axis=1)]
    assert frame[frame["identity"] == "none"]["text"].tolist() == others["comment_text"].tolist()
    assert set(frame["text"]) == set(written["comment_text"])
    assert frame["split"].tolist() == written["split"].iloc[frame["comment"]].tolist()
    assert frame["comment"].is_monotonic_increasing


def test_every_comment_is_read_as_it_was_written(tmp_path):
    written = civilcomments(tmp_path)
    names = ["NA", "None", "nan", "12", "007"]
    texts = [*names, *written["comment_text"][len(names) :]]
    written.assign(comment_text=texts).to_csv(tmp_path / "all_data_with_identities.csv")
    frame = layouts.civilcomments(tmp_path)
    assert frame.drop_duplicates("comment")["text"].tolist() == texts


def test_civil_comments_without_an_identity_are_refused(tmp_path):
    civilcomments(tmp_path).drop(columns="muslim").to_csv(tmp_path / "all_data_with_identities.csv")
    with pytest.raises(DataError, match=r"lacks the columns \['muslim'\].*civilcomments_v1.0"):
        layouts.civilcomments(tmp_path)
