"""Data modules of images with groups: splits, labels, augmentation and sources."""

import json
import warnings
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from jsonargparse import ArgumentParser
from PIL import Image

from fcco_lightning import (
    Columns,
    CrossEntropy,
    CVaRGroupDRO,
    FCCOModule,
    GroupedImageDataModule,
    GroupEvaluation,
    ImageSplits,
    LabelledImages,
    TimmModel,
)
from fcco_lightning.cli import run as cli
from fcco_lightning.errors import ConfigError, DataError
from tests.components import IMAGES, composed
from tests.contracts.test_datamodules import quiet
from tests.images import picture

# A row's image is filled with its position, so that what a batch holds can be told from its pixels.
COLOUR = 4
BATCHES = {"groups_per_batch": 2, "samples_per_group": 2, "eval_batch_size": 8}
TINY = {"image_size": 8, "mean": [0.0] * 3, "std": [1.0] * 3, "crop_pct": 1.0, **BATCHES}


def image(i):
    return Image.new("RGB", (8, 8), (COLOUR * i, 0, 0))


def positions(batch):
    return (batch["x"][:, 0, 0, 0] * 255 / COLOUR).round().long().tolist()


@pytest.fixture
def folder(tmp_path):
    """40 images in 4 groups of sizes 16, 8, 8, 8."""
    sex = ["M", "F"] * 8 + ["M"] * 8 + ["F"] * 8 + ["M", "F"] * 4
    y = ["yes", "no"] * 8 + ["no"] * 8 + ["yes"] * 8 + ["yes", "no"] * 4
    table = pd.DataFrame({"file_name": [f"img/{i}.png" for i in range(40)], "sex": sex, "y": y})
    for i in range(40):
        picture(tmp_path / f"img/{i}.png", COLOUR * i)
    table.to_csv(tmp_path / "metadata.csv", index=False)
    return tmp_path


def make(root, **changes):
    arguments = {
        "label": "y",
        "positive": "yes",
        "group_by": ["sex", "y"],
        "split_by": "fractions",
        "eval_train": True,
        **TINY,
    }
    flat = {"root": None if root is None else str(root), **arguments, **changes}
    module = GroupedImageDataModule(**composed(flat, IMAGES))
    module.setup()
    return module


def split_of(module):
    """Split -> position of every row's image, in the order of the rows."""
    return {
        name: [p for batch in loader for p in positions(batch)] for name, loader in module.evaluation_loaders().items()
    }


def test_training_images_are_evaluated_only_when_asked_for(folder):
    few, all_splits = (make(folder, fractions=[0.5, 0.25, 0.25], eval_train=flag) for flag in (False, True))
    assert (few.val_names, list(few.evaluation_loaders())) == (["val"], ["val", "test"])
    assert (all_splits.val_names, list(all_splits.evaluation_loaders())) == (["train", "val"], ["train", "val", "test"])


def test_random_split_gives_every_group_its_share(folder):
    module = make(folder, fractions=[0.5, 0.25, 0.25])
    table = pd.read_csv(folder / "metadata.csv")
    found = split_of(module)
    assert sorted(position for part in found.values() for position in part) == list(range(40))
    whole = table.groupby(["sex", "y"]).size()
    for name, share in {"train": 0.5, "val": 0.25, "test": 0.25}.items():
        part = table.iloc[found[name]].groupby(["sex", "y"]).size()
        assert part.eq(whole * share).all()
    assert module.val_names == ["train", "val"]
    assert module.group_names == ["sex=F, y=no", "sex=F, y=yes", "sex=M, y=no", "sex=M, y=yes"]
    assert (module.num_groups, module.num_train, module.class_names) == (4, 20, ["no", "yes"])
    assert split_of(make(folder, fractions=[0.5, 0.25, 0.25])) == found
    assert split_of(make(folder, fractions=[0.5, 0.25, 0.25], split_seed=1)) != found
    assert make(folder, fractions=[0.75, 0, 0.25]).val_names == ["train"]


def test_whole_values_and_files_of_several_rows(folder):
    table = pd.read_csv(folder / "metadata.csv").assign(patient=[f"p{i % 17}" for i in range(40)])
    table["file_name"] = [f"img/{i % 17}.png" for i in range(40)]
    table.to_csv(folder / "metadata.csv", index=False)
    module = make(folder, fractions=[0.6, 0.0, 0.4], whole="patient", group_by=["y"])
    train, test = (set(rows["patient"]) for rows in module._rows.values())
    assert not train & test
    assert len(train | test) == 17
    with pytest.warns(UserWarning, match=r"\d files of the test split are also in the train split \(one is 'img/"):
        make(folder, fractions=[0.6, 0.0, 0.4])
    with pytest.raises(DataError, match=r"splits.whole='patint' is not a column.*Did you mean 'patient'"):
        make(folder, whole="patint")
    with pytest.raises(ConfigError, match=r"splits.whole='patient' goes with splits.by='fractions' only"):
        ImageSplits(whole="patient")


def test_labels_and_groups_are_those_of_the_image(folder):
    module, table = make(folder), pd.read_csv(folder / "metadata.csv")
    for loader in [module.train_dataloader(), *module.evaluation_loaders().values()]:
        for batch in loader:
            rows = table.iloc[positions(batch)]
            assert batch["y"].tolist() == (rows["y"] == "yes").astype(int).tolist()
            assert [module.group_names[g] for g in batch["group"]] == [
                f"sex={s}, y={y}" for s, y in zip(rows.sex, rows.y, strict=True)
            ]


def test_training_batches_hold_groups(folder):
    for workers in 0, 2:
        batches = list(make(folder, num_workers=workers).train_dataloader())
        assert len(batches) == 32 // 4
        for batch in batches:
            assert np.unique(batch["group"], return_counts=True)[1].tolist() == [2, 2]
            assert batch["x"].shape == (4, 3, 8, 8)
    assert len(next(iter(make(folder, batch_size=6).train_dataloader()))["y"]) == 6


def test_augments_in_training_only(folder):
    augment = {"hflip": 0.5, "color_jitter": 0.4}
    module = make(folder, augment=augment, seed=3)
    once, again = ([batch["x"] for batch in module.train_dataloader()] for _ in range(2))
    plain = [batch["x"] for batch in make(folder, seed=3).train_dataloader()]
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(once, plain, strict=True))
    assert split_of(module) == split_of(make(folder))


@pytest.mark.parametrize("on_disk", [False, True])
def test_datasets_equal_the_folder(folder, tmp_path, on_disk):
    table = pd.read_csv(folder / "metadata.csv")
    features = datasets.Features(
        {"image": datasets.Image(), "sex": datasets.Value("string"), "y": datasets.Value("string")}
    )
    columns = {"image": [image(i) for i in range(40)], "sex": table.sex.tolist(), "y": table.y.tolist()}
    source = datasets.Dataset.from_dict(columns, features=features)
    if on_disk:
        source.save_to_disk(str(tmp_path / "saved"))
        source = str(tmp_path / "saved")
    module, expected = make(None, layout="datasets", source=source), make(folder)
    for ours, theirs in zip(module.train_dataloader(), expected.train_dataloader(), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ("x", "y", "group", "index"))


def test_splits_of_datasets(folder, tmp_path):
    table = pd.read_csv(folder / "metadata.csv")
    features = datasets.Features(
        {"picture": datasets.Image(), "sex": datasets.Value("string"), "y": datasets.Value("string")}
    )

    def part(rows):
        columns = {"picture": [image(i) for i in rows], "sex": table.sex[rows].tolist(), "y": table.y[rows].tolist()}
        return datasets.Dataset.from_dict(columns, features=features)

    parts = {"test": range(24, 40), "train": range(20), "validation": range(20, 24)}
    source = datasets.DatasetDict({name: part(list(rows)) for name, rows in parts.items()})
    options = {"layout": "datasets", "image_column": "picture", "split_by": "column", "group_by": ["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the four rows of validation are of one group
        found = split_of(make(None, source=source, **options))
    assert found == {"train": list(parts["train"]), "val": list(parts["validation"]), "test": list(parts["test"])}
    assert list(found) == ["train", "val", "test"]
    with pytest.raises(DataError, match=r"image_column='image' is not a column"):
        make(None, source=source, **(options | {"image_column": "image"}))


def celeba(root, rows=24):
    (root / "list_attr_celeba.txt").write_text(
        f"{rows}\nBlond Male\n" + "".join(f"{i:06}.jpg {1 - 2 * (i % 2)} {1 - 2 * (i // 2 % 2)}\n" for i in range(rows))
    )
    (root / "list_eval_partition.txt").write_text("".join(f"{i:06}.jpg {i * 3 // rows}\n" for i in range(rows)))
    for i in range(rows):
        picture(root / f"img_align_celeba/{i:06}.jpg", COLOUR * i)
    return root


def test_celeba_with_its_own_split_and_with_fractions(tmp_path):
    options = {"layout": "celeba", "label": "Blond", "positive": 1, "group_by": ["Blond", "Male"]}
    module = make(celeba(tmp_path), split_by="column", **options)
    assert module.group_names == [f"Blond={b}, Male={m}" for b in "01" for m in "01"]
    assert [len(module.tables[name]) for name in ("train", "val", "test")] == [8, 8, 8]
    assert split_of(make(tmp_path, split_by="column", limit=4, **options)) == {
        "train": [0, 1, 2, 3],
        "val": [8, 9, 10, 11],
        "test": [16, 17, 18, 19],
    }
    assert make(tmp_path, fractions=[0.5, 0.25, 0.25], **options).num_train == 12


def camelyon(root):
    """Slides 0, 1 (center 0) and 30 (center 3) train, 30 also id_val, 12 (center 1) val, 25 (center 2) test."""
    slides = (
        [(0, 0, 0)] * 8 + [(1, 0, 0)] * 8 + [(30, 3, 0)] * 2 + [(30, 3, 1)] * 4 + [(12, 1, 0)] * 4 + [(25, 2, 1)] * 4
    )
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for i, (slide, center, split) in enumerate(slides):
        lines.append(f"{i},004,4,{i},7,{i % 2},{slide},{center},{split}")
        picture(root / f"patches/patient_004_node_4/patch_patient_004_node_4_x_{i}_y_7.png", COLOUR * i)
    (root / "metadata.csv").write_text("\n".join(lines))
    return root


CAMELYON = {
    "layout": "camelyon17",
    "label": "tumor",
    "positive": 1,
    "group_by": ["center", "slide"],
    "split_by": "column",
}


@pytest.mark.filterwarnings("ignore:The id_val split has no rows of 2 of the 3 groups")
def test_camelyon_numbers_hospitals_that_training_lacks_behind_the_groups(tmp_path):
    module = make(camelyon(tmp_path), **CAMELYON)
    assert module.num_groups == 3
    assert module.group_names[:3] == ["center=0, slide=0", "center=0, slide=1", "center=3, slide=30"]
    assert module.group_names[3:] == ["center=1, slide=12", "center=2, slide=25"]
    groups = {name: set(table.columns["group"].tolist()) for name, table in module.tables.items()}
    assert groups == {"train": {0, 1, 2}, "val": {3}, "id_val": {2}, "test": {4}}
    assert module.val_names == ["train", "val", "id_val"]
    report = module.group_report().splitlines()
    assert report[0].split() == ["group", "train", "val", "id_val", "test", "tumor=1"]
    assert report[2].replace("center=0, slide=1", "").split() == ["8", "0", "0", "0", "50.0%"]
    assert report[-1].replace("center=2, slide=25", "").split() == ["0", "0", "0", "4"]


@pytest.mark.filterwarnings("ignore:The .* split has no rows of")
def test_small_groups_are_left_out_of_all_splits(tmp_path):
    camelyon(tmp_path)
    with pytest.raises(DataError, match=r"combinations of groups.by in the id_val rows are too small"):
        make(tmp_path, min_size=3, **CAMELYON)
    module = make(tmp_path, min_size=3, small="merge", **CAMELYON)
    assert module.group_names == ["center=0, slide=0", "center=0, slide=1", "other"]


FIT = "fit --data GroupedImageDataModule --data.images.root pets --data.transform.size 32"
NETWORK = "--model.network fcco_lightning.TimmModel --model.network.name test_resnet"
QUICK = "--trainer.max_epochs 1 --trainer.accelerator cpu --trainer.enable_progress_bar false --report.folder out"


def report_of(caplog, *options):
    """What a run writes to report.json, and what it has said."""
    assert cli([*f"{FIT} {NETWORK} {QUICK}".split(), *options]) == 0
    return json.loads(Path("out/report.json").read_text()), caplog.text


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_folder_for_every_class_is_enough(caplog):
    for name, size in {"cat": 20, "dog": 30, "fox": 40}.items():
        for i in range(size):
            picture(Path("pets", name, f"{i}.png"), 4 * i, 32)
    classes = ["--model.network.num_outputs=3", "--model.objective=CrossEntropy", "--model.evaluation=ClassEvaluation"]
    report, said = report_of(caplog, *classes, "--data.splits.by=fractions")
    assert set(report["test"]) >= {"accuracy", "loss"}
    assert "train: 72 images, 16 of cat, 24 of dog, 32 of fox" in said
    assert "test: 9 images, 2 of cat, 3 of dog, 4 of fox" in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_metadata_of_waterbirds(caplog):
    rows = [(f"{i % 2:03d}.Bird/{i}.png", i % 2, (0, 0, 1, 2)[i // 4 % 4], i // 2 % 2) for i in range(64)]
    for name, *_ in rows:
        picture(Path("pets", name), side=32)
    table = pd.DataFrame(rows, columns=["img_filename", "y", "split", "place"])
    table.to_csv("pets/metadata.csv", index_label="img_id")
    groups = ["--data.images.file_column=img_filename", "--data.columns.label=y", "--data.groups.by=[y, place]"]
    report, said = report_of(caplog, *groups, "--model.objective=WorstGroupDRO")
    sizes = table.groupby(["split", "y"]).size()
    for split, name in enumerate(("train", "val", "test")):
        assert f"{name}: {sizes[split].sum()} images, {sizes[split, 0]} of 0, {sizes[split, 1]} of 1" in said
    assert len(report["test"]["groups"]) == 4


def test_a_group_for_every_class_needs_classes(tmp_path):
    with pytest.raises(ConfigError, match=r"groups\.by must name .* the label 'age' has no classes"):
        GroupedImageDataModule(LabelledImages(root="x"), columns=Columns("age", target="number"))


def test_column_split_refuses(folder):
    with pytest.raises(DataError, match=r"splits.by='column' needs a column 'split'.*fractions"):
        make(folder, split_by="column")
    table = pd.read_csv(folder / "metadata.csv")
    table.assign(split=["train"] * 30 + ["dev"] * 10).to_csv(folder / "metadata.csv", index=False)
    with pytest.raises(DataError, match=r"must hold 'train' and 'test'.*\['dev', 'train'\]"):
        make(folder, split_by="column")
    table.assign(split=["train"] * 30 + [None] * 10).to_csv(folder / "metadata.csv", index=False)
    with pytest.raises(DataError, match=r"Column 'split'.*has 10 missing cells"):
        make(folder, split_by="column")
    table.assign(split=["train"] * 30 + ["test"] * 10, y=["yes", "no"] * 15 + ["maybe"] * 10).to_csv(
        folder / "metadata.csv", index=False
    )
    with pytest.raises(DataError, match=r"classes \['maybe'\] in the test rows"):
        make(folder, split_by="column", group_by=["sex"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "imagenet"}, "layout must be one of 'folder', .*'bdd100k', 'cifar', 'medmnist', 'datasets'"),
        ({"layout": "datasets"}, "layout='datasets' needs images.source, and no images.root"),
        ({"source": "owner/name"}, "layout='folder' needs images.root, and no images.source"),
        ({"split_by": "random"}, "splits.by must be"),
        ({"split_by": "column", "fractions": [0.8, 0.1, 0.1]}, "goes with splits.by='fractions' only"),
        ({"fractions": [0.8, 0.1]}, "fractions must be the shares"),
        ({"fractions": [0.8, 0.3, -0.1]}, "fractions must be the shares"),
        ({"fractions": [0.8, 0.1, 0.2]}, "fractions must be the shares"),
        ({"limit": 0}, "limit"),
        ({"corrupt": "skip"}, "images.corrupt must be"),
        ({"corrupt": "hide"}, "images.corrupt must be"),
        ({"sensitive": "sex", "favoured": "M"}, "columns.sensitive='sex' defines groups"),
        ({"image_size": 0}, "image_size"),
        ({"group_by": []}, r"groups\.by must name at least one column"),
    ],
)
def test_rejects_arguments(changes, message):
    with pytest.raises(ConfigError, match=message):
        make("somewhere", **changes)


def test_a_checkpoint_belongs_to_its_images(folder):
    state = make(folder).state_dict()  # the same labels and groups row by row, but other images
    table = pd.read_csv(folder / "metadata.csv")
    table["file_name"] = [f"img/{i}.png" for i in reversed(range(40))]
    table.to_csv(folder / "metadata.csv", index=False)
    with pytest.raises(DataError, match="trained on another training split"):
        make(folder).load_state_dict(state)


def test_from_the_command_line():
    parser = ArgumentParser()
    parser.add_class_arguments(GroupedImageDataModule, "data")
    parser.add_class_arguments(TimmModel, "network")
    options = ["--data.images.root=x", "--data.columns.label=y", "--data.groups.by=[a, b]"]
    options += ["--data.transform.augment={scale: [0.5, 1.0]}"]
    made = parser.instantiate(parser.parse_args([*options, "--network.name=resnet18", "--network.num_outputs=3"]))
    assert made.data.transform.augment == {"scale": [0.5, 1.0]}
    assert made.data.grouping.columns == ["a", "b"]
    assert made.network.model.fc.out_features == 3


@pytest.mark.filterwarnings("ignore:The id_val split")
@pytest.mark.parametrize(
    ("objective", "evaluation"),
    [(CrossEntropy(), None), (CVaRGroupDRO(0.5), GroupEvaluation())],
    ids=["plain", "groups"],
)
def test_fits_a_network_of_timm(tmp_path, objective, evaluation):
    flat = {"root": str(camelyon(tmp_path)), "image_size": 32, "augment": True, "num_batches": 2}
    data = GroupedImageDataModule(**composed({**CAMELYON, **BATCHES, **flat}, IMAGES))
    module = FCCOModule(TimmModel("resnet18"), objective, evaluation=evaluation)
    before = [p.clone() for p in module.parameters()]
    run = quiet(tmp_path, max_epochs=1)
    run.fit(module, data)
    assert run.global_step == 2
    assert all(torch.isfinite(p).all() for p in module.parameters())
    assert any(not torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))
    assert {"val", "id_val"} <= module.last_summaries.keys()
    run.test(module, data, verbose=False)
    if evaluation:
        assert "group_accuracy/center=2, slide=25" in module.last_summaries["test"]
