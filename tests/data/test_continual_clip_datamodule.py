"""The data module of continual CLIP: prompts, tasks, pairs, the parts of a batch, and refused data."""

import json

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from PIL import Image

from fcco_lightning.data.datamodules import ContinualCLIPDataModule, DigitsCLIPDataModule
from fcco_lightning.data.datamodules.clip_parts import Pairs
from fcco_lightning.data.loader import ResumableLoader
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.clip_config import clip_config, tokenizer
from tests.components import CLIP, DIGITS, composed
from tests.images import as_bytes, shard

# An image is filled with its number, so that what a batch holds can be told from its pixels.
COLOUR = 2
CLASSES = ["clear", "foggy", "overcast", "rainy"]
SIZES = {
    "train": {"clear": 12, "foggy": 6, "overcast": 9, "rainy": 5, "undefined": 3},
    "test": dict.fromkeys(CLASSES, 4),
}
TINY = clip_config("tiny")
TEXTS = tokenizer(TINY)


def image(i):
    return Image.new("RGB", (16, 16), (COLOUR * i, 0, 0))


def numbers(batch):
    return ((batch["x"][:, 0, 0, 0] * 0.5 + 0.5) * 255 / COLOUR).round().long().tolist()


def words(row):
    tokens = row.tolist()
    return bytes(tokens[1 : tokens.index(257)]).decode()


@pytest.fixture
def table():
    rows = [(split, name) for split, sizes in SIZES.items() for name, size in sizes.items() for _ in range(size)]
    frame = pd.DataFrame(rows, columns=["split", "weather"]).sample(frac=1, random_state=0, ignore_index=True)
    return frame.assign(file_name=[f"img/{i}.png" for i in range(len(frame))])


@pytest.fixture
def folder(tmp_path, table):
    (tmp_path / "img").mkdir()
    for i in range(len(table)):
        image(i).save(tmp_path / "img" / f"{i}.png")
    table.to_csv(tmp_path / "metadata.csv", index=False)
    return tmp_path


@pytest.fixture
def web():
    """Pairs from elsewhere: images number 100 to 109."""
    content = {"image": [image(i) for i in range(100, 110)], "text": [f"page {i}" for i in range(100, 110)]}
    return datasets.Dataset.from_dict(content).cast_column("image", datasets.Image())


@pytest.fixture
def make(folder):
    def module(setup=True, **changes):
        arguments = {
            "model": "tiny",
            "root": str(folder),
            "label": "weather",
            "classes": CLASSES,
            "target": ["overcast"],
            "templates": ["a {} day.", "weather: {}"],
            "batch_size": 4,
            "samples_per_task": 2,
            "eval_batch_size": 7,
            "augment": False,
        }
        made = ContinualCLIPDataModule(**composed({**arguments, **changes}, CLIP))
        if setup:
            made.setup()  # not to train: its pairs are of one class alone
        return made

    return module


def batches(module):
    return [batch for batch, _, _ in iter(module.train_dataloader())]


# ------------------------------------------------------------------------------------------------------------- classes


def test_prompts_of_classes(make):
    module = make(class_names={"clear": "sunny"}, classes=["rainy", "clear", "overcast"], protected=["clear"])
    assert module.class_names == ["rainy", "clear", "overcast"]
    assert (module.image_size, module.vocab_size) == (16, 258)
    assert module.context_length == TINY.context_length == module.class_tokens.shape[2]
    prompts = [[f"a {w} day.", f"weather: {w}"] for w in ("rainy", "sunny", "overcast")]
    expected = torch.stack([TEXTS(texts) for texts in prompts])
    assert torch.equal(module.class_tokens, expected)
    assert (module.num_classes, module.task_names, module.group_names) == (3, ["clear"], ["clear"])
    assert module.left_out == {"train": 9, "test": 4}


def test_tasks_are_numbered_in_their_order(make):
    module = make(protected=["rainy", "clear"])
    for split, sizes in SIZES.items():
        columns = module.tables[split].columns
        assert torch.bincount(columns["y"]).tolist() == [sizes[name] for name in CLASSES]
        pairs = set(zip(columns["y"].tolist(), columns["task"].tolist(), strict=True))
        assert pairs == {(0, 1), (1, -2), (2, -1), (3, 0)}
    assert make().task_names == ["clear", "foggy", "rainy"]
    assert make(classes=None).task_names == ["clear", "foggy", "rainy", "undefined"]
    assert make(protected=[]).task_names == []


# --------------------------------------------------------------------------------------------------------------- loads


def test_labels_are_those_of_the_images(make, table):
    module = make()
    assert list(module.evaluation_loaders()) == ["train", "test"]
    for name, loader in module.evaluation_loaders().items():
        seen = []
        for batch in loader:
            assert set(batch) == {"x", "y", "task", "index"}
            rows = table.iloc[numbers(batch)]
            assert rows["split"].eq(name).all()
            assert [CLASSES[y] for y in batch["y"]] == rows["weather"].tolist()
            seen += batch["index"].tolist()
        assert seen == list(range(len(module.tables[name])))


def test_training_batches_have_two_parts(make, table):
    module = make(tasks_per_batch=2, num_batches=6)
    loader = module.train_dataloader()
    assert isinstance(loader, CombinedLoader)
    assert all(isinstance(part, ResumableLoader) for part in loader.flattened)
    found = [batch for batch, _, _ in iter(loader)]
    assert len(found) == 6
    for batch in found:
        target, protected = batch["target"], batch["protected"]
        assert set(target) == {"x", "text", "index"}
        assert target["x"].shape == (4, 3, 16, 16)
        assert table.iloc[numbers(target)]["weather"].eq("overcast").all()
        assert {words(text) for text in target["text"]} <= {"a overcast day.", "weather: overcast"}
        assert protected["task"].unique(return_counts=True)[1].tolist() == [2, 2]
        rows = table.iloc[numbers(protected)]
        assert [module.task_names[k] for k in protected["task"]] == rows["weather"].tolist()
        assert rows["split"].eq("train").all()
        train = module.tables["train"]
        assert torch.equal(protected["y"], train.columns["y"][protected["index"]])
    assert {k for batch in found for k in batch["protected"]["task"].tolist()} == {0, 1, 2}


def test_without_protected_tasks_pairs_alone(make):
    loader = make(protected=[]).train_dataloader()
    assert isinstance(loader, ResumableLoader)
    assert [set(batch) for batch in loader] == [{"x", "text", "index"}] * 2  # 9 images in batches of 4


def test_pairs_of_several_sources(make, web, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    shards = [tmp_path / f"{i}.tar" for i in (110, 111)]
    for path in shards:
        shard(path, [("a", {"png": as_bytes(image(int(path.stem))), "txt": f"page {path.stem}".encode()})])
    module = make(pairs=[web, [str(path) for path in shards]], num_batches=30)
    assert module.num_train == 10 + 2 + 9
    table = module.tables["pairs"]
    found = [table[i] for i in range(module.num_train)]
    assert [numbers({"x": row["x"][None]}) for row in found[:12]] == [[i] for i in range(100, 112)]
    assert [words(row["text"]) for row in found[:12]] == [f"page {i}" for i in range(100, 112)]
    assert {words(row["text"]) for row in found[12:]} <= {"a overcast day.", "weather: overcast"}
    for batch in batches(module):
        for i, number in zip(batch["target"]["index"].tolist(), numbers(batch["target"]), strict=True):
            assert number == 100 + i if i < 12 else number < 100
    alone = make(pairs=[str(path) for path in shards], target_pairs=False, batch_size=2)
    assert alone.num_train == 2


def test_a_limit_draws_pairs(make, web):
    few, other = (make(pairs=web, limit_pairs=3, split_seed=seed) for seed in (0, 1))
    assert few.num_train == 3 + 9
    texts = [[words(m.tables["pairs"][i]["text"]) for i in range(3)] for m in (few, make(pairs=web, limit_pairs=3))]
    assert texts[0] == texts[1] == sorted(texts[0])
    assert texts[0] != [words(other.tables["pairs"][i]["text"]) for i in range(3)]
    assert make(pairs=web, limit_pairs=99).num_train == 19


@pytest.mark.parametrize(("part", "argument"), [("target", "augment"), ("protected", "augment_protected")])
def test_pairs_and_protected_images_are_augmented_apart_and_in_training_only(part, argument, make, folder):
    for path in (folder / "img").iterdir():  # one bright column on the left, which a crop may cut off
        striped = Image.open(path).resize((32, 32))
        striped.paste((255, 255, 255), (0, 0, 1, 32))
        striped.save(path)
    other, scale = {"target": "protected", "protected": "target"}[part], {"scale": [0.3, 0.5]}
    cropped = make(**{argument: scale})
    crops, plain, again = batches(cropped), batches(make()), batches(make(**{argument: scale}))
    for one, two, three in zip(crops, plain, again, strict=True):
        assert torch.equal(one[other]["x"], two[other]["x"])
        assert not torch.equal(one[part]["x"], two[part]["x"])
        assert torch.equal(one[part]["x"], three[part]["x"])
    trained = cropped.tables["pairs" if part == "target" else "train"]
    noise = np.random.default_rng(0).integers(256, size=(32, 32, 3), dtype=np.uint8)
    trained.images = [Image.fromarray(noise)] * len(trained)  # where every crop differs
    first = trained[0]["x"]
    trained.set_epoch(1)
    assert not torch.equal(trained[0]["x"], first)
    cropped = make(**{argument: scale})
    for split, loader in cropped.evaluation_loaders().items():
        for one, two in zip(loader, make().evaluation_loaders()[split], strict=True):
            assert torch.equal(one["x"], two["x"])
    cropped.add_columns("train", {"loss": torch.arange(32.0)})
    assert all("loss" in batch["protected"] for batch in batches(cropped))
    assert all("loss" in batch for batch in cropped.evaluation_loaders()["train"])


def test_loaders_of_whole_parts(make):
    """All pairs in order, the same in every epoch, and all labelled training images; other splits have no pairs."""
    module = make(pairs=None, caption_templates=["{}", "a {}", "the {}"], augment=True)
    parts = module.part_loaders("train")
    assert list(parts) == ["target", "protected"]
    pairs = list(parts["target"])
    assert torch.cat([batch["index"] for batch in pairs]).tolist() == list(range(module.num_train))
    module.tables["pairs"].set_epoch(3)
    again = list(module.part_loaders("train")["target"])
    assert all(torch.equal(a[name], b[name]) for a, b in zip(pairs, again, strict=True) for name in ("x", "text"))
    assert sum(len(batch["y"]) for batch in parts["protected"]) == 32
    with pytest.raises(ConfigError, match="'test' split has labelled images only"):
        module.part_loaders("test")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:Row")
def test_unreadable_images_are_left_out_when_asked_for(make, folder, table, workers):
    lost = {name: int(table.index[(table.weather == name) & (table.split == "train")][0]) for name in CLASSES[:3]}
    for i in lost.values():
        (folder / "img" / f"{i}.png").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be read"):
        batches(make())
    with pytest.raises(DataError, match=r"or set pairs.corrupt='skip' to leave it out"):
        batches(make(corrupt="skip", num_batches=8))
    with pytest.raises(DataError, match=r"or set images.corrupt='skip' to leave it out"):
        batches(make(pair_corrupt="skip", num_batches=8))
    module = make(corrupt="skip", pair_corrupt="skip", num_workers=workers, num_batches=8)
    found = batches(module)
    assert min(len(batch["protected"]["y"]) for batch in found) < 6
    assert not {i for batch in found for part in batch.values() for i in numbers(part)} & set(lost.values())
    assert module.tables["pairs"].num_corrupt == 1
    for loader in module.evaluation_loaders().values():
        assert not {i for batch in loader for i in numbers(batch)} & set(lost.values())


# -------------------------------------------------------------------------------------------------------------- splits


def test_fractions_split_every_class(make, table):
    module = make(split_by="fractions", fractions=[0.5, 0.25, 0.25])
    assert module.val_names == ["train", "val"]
    found = {name: [i for batch in loader for i in numbers(batch)] for name, loader in module.val_dataloader().items()}
    found["test"] = [i for batch in module.test_dataloader() for i in numbers(batch)]
    known = table[table.weather != "undefined"]
    assert sorted(i for part in found.values() for i in part) == known.index.tolist()
    whole = known.groupby("weather").size()
    for name, share in {"train": 0.5, "val": 0.25, "test": 0.25}.items():
        sizes = table.iloc[found[name]].groupby("weather").size()
        assert (sizes - whole * share).abs().max() <= 1
    assert make(split_by="fractions", fractions=[0.5, 0.25, 0.25], eval_train=False).val_names == ["val"]
    assert make(eval_train=False).val_names == ["train"]


def test_small_fractions_hold_every_class(make, table):
    module = make(split_by="fractions", fractions=[0.9, 0.05, 0.05])
    for loader in [*module.val_dataloader().values(), module.test_dataloader()]:
        held = table.weather[[i for batch in loader for i in numbers(batch)]]
        assert set(held) == set(CLASSES)


def test_bdd100k_is_read_by_weather(tmp_path, make):
    entries = {"train": CLASSES[:3] * 3, "val": CLASSES[:3]}
    (tmp_path / "labels").mkdir()
    for part, weather in entries.items():
        (tmp_path / "images" / "100k" / part).mkdir(parents=True)
        rows = [{"name": f"{i}.jpg", "attributes": {"weather": w, "scene": "x"}} for i, w in enumerate(weather)]
        for i in range(len(rows)):
            image(i).save(tmp_path / "images" / "100k" / part / f"{i}.jpg")
        (tmp_path / "labels" / f"bdd100k_labels_images_{part}.json").write_text(json.dumps(rows))
    module = make(root=str(tmp_path), layout="bdd100k", classes=None, batch_size=3)
    assert module.task_names == ["clear", "foggy"]
    assert {name: len(table) for name, table in module.tables.items()} == {"train": 9, "test": 3, "pairs": 3}
    assert len(batches(module)) == 1


# ------------------------------------------------------------------------------------------------- columns, checkpoints


def test_added_columns_come_with_every_batch(make):
    module = make()
    old = torch.arange(32).float()
    module.add_columns("train", {"old_loss": old, "old_correct": (old > 3).long()})
    for batch in batches(module):
        part = batch["protected"]
        assert torch.equal(part["old_loss"], part["index"].float())
        assert "old_loss" not in batch["target"]
    for batch in module.evaluation_loaders()["train"]:
        assert torch.equal(batch["old_correct"], (batch["index"] > 3).long())
    module.add_columns("train", {"old_loss": old + 1})
    assert module.tables["train"][3]["old_loss"] == 4
    with pytest.raises(DataError, match="one row for each of its 16 samples"):
        module.add_columns("test", {"old_loss": old})
    with pytest.raises(DataError, match="a name of its own, got 'task'"):
        module.add_columns("train", {"task": old})


def test_references_tell_data_and_prompts_apart(make, folder, table):
    first = make().references()
    assert set(first) == {"train", "test"}
    assert first == make(batch_size=3, seed=4, eval_batch_size=2).references()
    for changes in (
        {"templates": ["a {} day.", "weather {}"]},
        {"classes": CLASSES[::-1]},
        {"protected": ["clear"]},
        {"class_names": {"clear": "sunny"}},
    ):
        other = make(**changes).references()
        assert not set(first.values()) & set(other.values())
    swapped = table.assign(weather=table.weather.where(table.split != "test", table.weather[::-1].to_numpy()))
    swapped = swapped.assign(weather=swapped.weather.replace("undefined", "clear"))
    swapped.loc[table.split == "train", "weather"] = table.weather[table.split == "train"]
    swapped.to_csv(folder / "metadata.csv", index=False)
    other = make().references()
    assert (other["train"] == first["train"], other["test"] == first["test"]) == (True, False)


def test_references_tell_images_apart_that_have_no_names(make, table):
    def references(first):
        content = {"image": [image(first + i) for i in range(len(table))], "weather": list(table.weather)}
        data = datasets.Dataset.from_dict(content | {"split": list(table.split)})
        data = data.cast_column("image", datasets.Image())
        return make(root=None, layout="datasets", source=data).references()

    assert references(0) == references(0)
    assert not set(references(0).values()) & set(references(100).values())


def test_checkpoints_of_other_pairs_are_refused(make, web):
    state = make(pairs=web).state_dict()
    same = make(setup=False, pairs=web)
    same.load_state_dict(state)
    same.setup()
    for changes in (
        {},
        {"pairs": web.select(range(9))},
        {"pairs": web.select([*range(9), 8])},
        {"pairs": web, "protected": ["clear"]},
        {"pairs": web, "caption_templates": ["{}"]},
    ):
        other = make(setup=False, **changes)
        other.load_state_dict(state)
        with pytest.raises(DataError, match=r"trained on another training split.*same pairs, images, classes"):
            other.setup()
        with pytest.raises(DataError, match="trained on another training split"):
            make(**changes).load_state_dict(state)


def test_identity_tells_batches_apart(make):
    assert make().identity() == make(eval_batch_size=3, num_workers=2).identity()
    for changes in {"seed": 1}, {"samples_per_task": 1}, {"tasks_per_batch": 2}, {"num_batches": 3}, {"augment": True}:
        assert make().identity() != make(**changes).identity()


def test_a_last_batch_of_one_pair_is_refused(make):
    module = make(drop_last=False)  # of 9 pairs, 4 at a time
    with pytest.raises(DataError, match=r"drop_last=false leaves a last batch of one pair, 9 pairs being drawn 4 at"):
        module.train_dataloader()
    for fits in {"batch_size": 5, "drop_last": False}, {}, {"batch_size": 1}:
        make(**fits).train_dataloader()


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": ["overcast"], "protected": ["clear", "overcast"]}, r"target and protected share \['overcast'\]"),
        ({"templates": ["a photo"]}, r"templates must be a list of texts, each with one \{\}.*'a photo'"),
        ({"templates": []}, "templates must be a list"),
        ({"templates": "a {}"}, "templates must be a list"),
        ({"caption_templates": ["{} and {}"]}, "caption_templates must be"),
        ({"classes": ["clear", "rainy"]}, r"classes.known=.* lacks \['overcast'\]"),
        ({"protected": ["clear", "clear"]}, r"protected names \['clear'\] more than once"),
        ({"class_names": {"snowy": "white"}}, r"lacks \['snowy'\]"),
        ({"corrupt": "blank"}, "images.corrupt must be 'error' or 'skip'"),
        ({"pair_corrupt": "blank"}, "pairs.corrupt must be one of 'error', 'skip'"),
        ({"model": "tinny"}, "tinny"),
        ({"augment": {"no_such": 1}}, "no_such"),
    ],
)
def test_refuses_arguments(make, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(setup=False, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": "whether"}, r"label='whether' is not a column of the labelled images. Did you mean 'weather'"),
        ({"classes": [*CLASSES, "fogy"]}, r"No labelled image is of class 'fogy'. Did you mean 'foggy'"),
        ({"classes": None, "target": ["clearr"]}, r"No labelled image is of class 'clearr'. Did you mean 'clear'"),
        ({"classes": None, "target": [], "protected": ["cloudy"]}, r"No labelled image is of class 'cloudy'"),
        ({"target": []}, "There are no pairs to learn from"),
        ({"target_pairs": False}, "There are no pairs to learn from"),
    ],
)
def test_refuses_data(make, changes, message):
    with pytest.raises(DataError, match=message):
        make(**changes)


@pytest.mark.parametrize("templates", [["a {} day."], ["a {} day.", "weather: {}"]])
def test_pairs_of_one_class_are_refused_where_they_are_trained_on(make, web, templates):
    message = r"All 9 pairs have the same captions, \['a overcast day\.'.*of_others 0\.2"
    alone = make(templates=templates)
    alone.setup("test")
    with pytest.raises(DataError, match=message):
        alone.setup("fit")
    for others in {"pairs": web}, {"of_others": 0.2}, {"target": ["overcast", "clear"]}:
        make(templates=templates, **others).setup("fit")


def test_a_share_of_the_other_classes_becomes_pairs(make, table):
    module = make(of_others=0.5)
    pairs = module.tables["pairs"]
    rows = table.iloc[[numbers({"x": pairs[i]["x"][None]})[0] for i in range(len(pairs))]]
    assert rows["weather"].value_counts().to_dict() == {"overcast": 9, "clear": 6, "foggy": 3, "rainy": 2}
    assert rows["split"].eq("train").all()
    captions = {name: {f"a {name} day.", f"weather: {name}"} for name in CLASSES}
    assert all(words(pairs[i]["text"]) in captions[name] for i, name in enumerate(rows["weather"]))
    every_second = np.arange(6) * 2
    of_clear = table[(table["split"] == "train") & (table["weather"] == "clear")]
    assert sorted(rows.index[rows["weather"] == "clear"]) == of_clear.index[every_second].tolist()
    with pytest.raises(ConfigError, match=r"pairs\.of_others"):
        make(setup=False, of_others=1.5)
    with pytest.raises(ConfigError, match=r"pairs.of_target must be one of True, False, got 0.5"):
        Pairs(of_target=0.5)  # a share is that of the others


def test_refuses_a_task_that_cannot_be_held(make, folder, table):
    with pytest.raises(DataError, match=r"task_batches: .*takes 6 rows of group 2.*protected tasks: {.*, 'rainy': 5}"):
        make(samples_per_task=6).train_dataloader()
    with pytest.raises(ConfigError, match=r"task_batches: groups_per_batch=4 exceeds the 3 groups.*protected tasks"):
        make(tasks_per_batch=4).train_dataloader()
    with pytest.raises(DataError, match=r"batch_size=10 exceeds the 9 rows"):
        make(batch_size=10).train_dataloader()
    table = table[(table.split == "test") | (table.weather != "rainy")]
    table.to_csv(folder / "metadata.csv", index=False)
    with pytest.raises(DataError, match=r"protected task 'rainy' has no training images"):
        make()
    make(protected=["clear", "foggy"])  # a class without training images may still be told apart
    with pytest.raises(DataError, match=r"classes of the training images \['clear', .*lack \['rainy'\]"):
        make(classes=None, protected=["rainy"])
    table.assign(weather="clear").to_csv(folder / "metadata.csv", index=False)
    with pytest.raises(DataError, match="at least two classes"):
        make(classes=None, target=["clear"])


def test_refuses_to_load_before_setup(make):
    module = make(setup=False)
    for name in "class_names", "class_tokens", "num_train", "val_names", "group_names":
        with pytest.raises(DataError, match="does not exist before"):
            getattr(module, name)


# -------------------------------------------------------------------------------------------------------------- digits


def digits(stage, **changes):
    flat = {"stage": stage, "num_train": 400, "num_test": 100, "target": [7, 3], **changes}
    module = DigitsCLIPDataModule(**composed(flat, DIGITS))
    module.setup()
    return module


def test_digits_for_pretraining():
    module = digits("pretrain", rare=0.1)
    texts = [words(module.tables["pairs"][i]["text"]) for i in range(module.num_train)]
    counts = {name: sum(name in text for text in texts) for name in module.class_names}
    assert counts == {name: 4 if name in {"seven", "three"} else 40 for name in module.class_names}
    assert isinstance(module.train_dataloader(), ResumableLoader)
    assert module.task_names == []
    assert digits("pretrain", rare=0).num_train == 320


def test_digits_to_be_learnt_and_kept():
    module = digits("continual", general=0.25, batch_size=8, samples_per_task=2)
    texts = [words(module.tables["pairs"][i]["text"]) for i in range(module.num_train)]
    counts = {name: sum(name in text for text in texts) for name in module.class_names}
    assert counts == {name: 40 if name in {"seven", "three"} else 10 for name in module.class_names}
    assert module.target_names == ["seven", "three"]
    assert module.task_names == ["zero", "one", "two", "four", "five", "six", "eight", "nine"]
    batch = batches(module)[0]
    assert batch["protected"]["x"].shape == (16, 3, 16, 16)
    assert torch.bincount(batch["protected"]["task"]).tolist() == [2] * 8
    assert digits("continual", general=0).num_train == 80
    assert digits("continual", protected=[1]).task_names == ["one"]
    crops = digits("continual", general=0.25, batch_size=8, samples_per_task=2, augment={"scale": [0.5, 0.6]})
    assert crops.references() == module.references()
    one, two = batches(crops)[0], batches(module)[0]
    assert not any(torch.equal(one[part]["x"], two[part]["x"]) for part in ("target", "protected"))


def test_both_stages_see_the_same_images():
    first, second = digits("pretrain"), digits("continual")
    for name in "train", "test":
        assert torch.equal(first.tables[name][5]["x"], second.tables[name][5]["x"])
    assert not torch.equal(first.tables["test"][5]["x"], digits("pretrain", data_seed=1).tables["test"][5]["x"])
    assert digits("pretrain", data_seed=1).references() != first.references()


def test_digits_to_be_validated_on():
    held, plain = digits("continual", num_val=50), digits("continual")
    assert held.val_names == ["train", "val"]
    assert len(held.tables["val"]) == 50
    assert torch.equal(held.tables["test"][5]["x"], plain.tables["test"][5]["x"])
    assert list(held.part_loaders("train")) == ["target", "protected"]


def test_captions_fit_the_tiny_model():
    module = digits("continual")
    assert max(len(words(row)) for row in module.class_tokens.flatten(0, 1)) < TINY.context_length - 2
    texts = [text for name in module.class_names for text in module.classes.captions_of(name)]
    assert {words(row) for row in TEXTS(texts)} == set(texts)


def test_captions_are_of_the_image():
    module = digits("continual", general=0.5)
    train, pairs = module.tables["train"], module.tables["pairs"]
    label = {train.images[i].tobytes(): module.class_names[int(train.columns["y"][i])] for i in range(len(train))}
    for i in range(len(pairs)):
        assert label[pairs.images[i].tobytes()] in words(pairs[i]["text"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage": "train"}, "stage must be"),
        ({"target": [10]}, r"target must hold digits 0..9, got \[10\]"),
        ({"protected": [7]}, "target and protected share"),
        ({"rare": 1.5}, "rare"),
        ({"general": -0.1}, "general"),
        ({"num_test": 3}, "num_test"),
        ({"model": "tiny"}, "model must be an? Architecture, got 'tiny'"),
    ],
)
def test_digits_refuse(changes, message):
    with pytest.raises(ConfigError, match=message):
        DigitsCLIPDataModule(**composed(changes, DIGITS))
