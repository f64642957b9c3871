"""Every configuration of the project is parsed and trains two batches, on a small file of the layout that it needs."""

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fcco_lightning import FCCOModule
from fcco_lightning.cli import run
from fcco_lightning.data.layouts import IDENTITIES
from tests import far_device
from tests.images import picture, shard
from tests.launch import launch, values
from tests.texts import TINY, make_mails, make_texts

CONFIGS = Path(__file__).parents[1] / "configs"
ALL_CONFIGS = sorted(CONFIGS.rglob("*.yaml"))
QUICK = (  # of every data module one, beside those on a device, of digits (test_continual_clip) and texts (test_guides)
    "bdd100k_foggy_sonex",
    "camelyon17_sonex",
    "five_distributions_pg_smd",
    "chest_partial_auc_tpr",
    "synthetic_bellman_alexr",
    "synthetic_views_sox",
)
ON_A_DEVICE = (
    "adult_sonex",
    "synthetic_cox_sox",
    "civilcomments_sonex",
    "digits_alexr2",
)  # beside those above; what algorithms do there is a contract
PRINTED = ("camelyon17_sonex", "bdd100k_foggy_sonex")  # those with most in them; the others are slow

pytestmark = [
    pytest.mark.filterwarnings("ignore:The id_val split has no rows"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:pretrain.epochs"),
    pytest.mark.filterwarnings("ignore:Found .* in eval mode"),  # a frozen network
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]


def adult(rows):
    """The columns of UCI Adult."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(17, 90, rows),
            "workclass": rng.choice(["Private", "State-gov"], rows),
            "education": rng.choice(["Bachelors", "HS-grad"], rows),
            "education-num": rng.integers(1, 16, rows),
            "marital-status": rng.choice(["Never-married", "Divorced"], rows),
            "race": rng.choice(["White", "Black", "Other"], rows),
            "hours-per-week": rng.integers(1, 99, rows),
            "sex": rng.choice(["Male", "Female"], rows),
            "income": rng.choice(["<=50K", ">50K"], rows),
        }
    )


def compas(rows):
    """The columns of ProPublica's COMPAS table."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "sex": rng.choice(["Male", "Female"], rows),
            "age": rng.integers(18, 80, rows),
            "race": rng.choice(["Caucasian", "Other"], rows),
            "priors-count": rng.integers(0, 20, rows),
            "c-charge-degree": rng.choice(["F", "M"], rows),
            "decile-score": rng.integers(1, 11, rows),
            "two-year-recid": rng.integers(0, 2, rows),
        }
    )


def celeba_attributes(rows):
    """Some of the columns of CelebA's attribute table."""
    names = ["Attractive", "Mouth_Slightly_Open", "Male", "Blond_Hair", "Bald", "Smiling"]
    return pd.DataFrame(np.random.default_rng(0).integers(0, 2, (rows, 6)).astype(bool), columns=names)


def celeba(folder):
    """CelebA's layout: 20 images of each of the 16 groups."""
    names = ["Attractive", "Blond_Hair", "Male", "Mouth_Slightly_Open", "Smiling"]
    lines = []
    for i in range(320):
        picture(folder / f"img_align_celeba/{i:06}.jpg", i)
        lines.append(f"{i:06}.jpg " + " ".join(str(2 * (i >> k & 1) - 1) for k in (0, 1, 2, 3, 0)))
    (folder / "list_attr_celeba.txt").write_text("\n".join(["320", " ".join(names), *lines]) + "\n")


def camelyon17(folder):
    """The layout of WILDS: 8 training slides, 2 of them also in distribution for validation, and two hospitals more."""
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    slides = [(k, 3, 0) for k in range(8)] * 6 + [(0, 3, 1), (1, 3, 1)] * 3 + [(12, 1, 0)] * 4 + [(25, 2, 1)] * 4
    for i, (slide, center, part) in enumerate(slides):
        lines.append(f"{i},004,4,{i},7,{i // 2 % 2},{slide},{center},{part}")
        picture(folder / f"patches/patient_004_node_4/patch_patient_004_node_4_x_{i}_y_7.png", i)
    (folder / "metadata.csv").write_text("\n".join(lines))


def amazon(folder):
    """The layout of WILDS: 10 users of 8 reviews each for training and 2 in distribution, and 2 users more."""
    table = pd.DataFrame(
        {
            "reviewerID": np.repeat([f"u{i}" for i in range(12)], 10),
            "asin": "p",
            "overall": np.tile([1.0, 5.0, 4.0, 2.0, 3.0], 24),
            "reviewText": make_texts(120)["text"],
            "category": "Books",
            "reviewYear": 2014,
        }
    )
    table.to_csv(folder / "reviews.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    (folder / "splits").mkdir()
    split = [0] * 8 + [2, 4]
    pd.DataFrame({"split": split * 10 + [1] * 10 + [3] * 10}).to_csv(folder / "splits/user.csv", index=False)


def civilcomments(folder):
    """The layout of WILDS: every comment mentions one identity, and some mention two or none."""
    rows = 600
    table = pd.DataFrame(np.eye(9)[np.arange(rows) % 9][:, :8], columns=list(IDENTITIES))
    table.loc[::7, "male"] = 1.0
    table["comment_text"] = make_texts(rows)["text"]
    table["toxicity"] = (np.arange(rows) // 9 % 2).astype(float)
    table["split"] = np.tile(["train", "val", "test", "train", "train"], rows // 5)
    table.to_csv(folder / "all_data_with_identities.csv")


def bdd100k(folder):
    """BDD100K's layout: 4 images of every weather for training, 2 for validation; and two shards of pairs."""
    for part, count in (("train", 24), ("val", 12)):
        entries = []
        for i in range(count):
            weather = ["clear", "foggy", "overcast", "partly cloudy", "rainy", "snowy", "undefined"][i % 6 + (i == 5)]
            picture(folder / f"images/100k/{part}/{i:04}.jpg", i)
            entries.append({"name": f"{i:04}.jpg", "attributes": {"weather": weather, "scene": "highway"}})
        (folder / "labels").mkdir(exist_ok=True)
        (folder / f"labels/bdd100k_labels_images_{part}.json").write_text(json.dumps(entries))
    image = (folder / "images/100k/train/0000.jpg").read_bytes()
    for number in range(2):
        pairs = [(f"{number}{i}", {"jpg": image, "txt": b"fog on a street"}) for i in range(3)]
        shard(folder / f"web-{number:04}.tar", pairs)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Where the first stage on digits has run, briefly."""
    folder, here = tmp_path_factory.mktemp("pretrained"), Path.cwd()
    os.chdir(folder)
    try:
        quick = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.enable_progress_bar=false"]
        assert (
            run(["fit", "--config", str(CONFIGS / "continual_clip/digits_pretrain.yaml"), *quick, *SMALL_DIGITS]) == 0
        )
    finally:
        os.chdir(here)
    return folder


SMALL_DIGITS = ["--data.digits.num_train=200", "--data.digits.num_test=60", "--data.batches.batch_size=8"]
SMALL_WEATHER = [
    "--model.network.name=tiny", "--model.network.pretrained=null",
    "--data.model.name=tiny", "--data.model.pretrained=null",
    "--data.batches.batch_size=4", "--data.batches.num_batches=2", "--data.task_batches.samples_per_group=2",
    "--data.num_workers=0",
    "--trainer.accelerator=cpu", "--trainer.precision=32",
]  # fmt: skip


def continual_arguments(config, folder, request):
    if config.stem.startswith("bdd100k"):
        bdd100k(folder)
        return [f"--data.images.root={folder}", f"--data.pairs.sources={folder}/web-{{0000..0001}}.tar", *SMALL_WEATHER]
    if config.stem != "digits_pretrain":  # they start from what it has left in runs
        shutil.copytree(request.getfixturevalue("pretrained") / "runs", folder / "runs")
    return SMALL_DIGITS + ([] if config.stem == "digits_pretrain" else ["--data.task_batches.samples_per_group=2"])


FOUR_BY_THREE = "[income, sex, {column: race, values: {White: w, Black: b}, other: o}]"  # 12 groups
SMALL_IMAGES = [
    "--model.network.name=resnet18", "--model.network.pretrained=false", "--data.transform.size=32",
    "--data.num_workers=0", "--data.batches.groups_per_batch=4", "--data.batches.samples_per_group=3",
]  # fmt: skip


SMALL_TEXTS = [
    "--model.network.name=null", f"--model.network.config={TINY}", "--trainer.accelerator=cpu",
    "--data.tokens={tokenizer: null, vocabulary: 120, max_length: 12}",
]  # fmt: skip


def group_dro_arguments(config, folder):
    name = config.stem
    if name.startswith("mails"):
        make_mails(200).to_csv(folder / "mails.csv", index=False)
        return [f"--data.texts.source={folder / 'mails.csv'}", "--data.tokens.vocabulary=120"]
    if name.startswith(("amazon", "civilcomments")):
        {"amazon": amazon, "civilcomments": civilcomments}[name.split("_")[0]](folder)
        return [f"--data.texts.root={folder}", *SMALL_TEXTS]
    if name.startswith("celeba_attributes"):
        celeba_attributes(2000).to_parquet(folder / "a.parquet")
        return [f"--data.train={folder / 'a.parquet'}"]
    if not name.startswith("adult"):
        {"celeba": celeba, "camelyon17": camelyon17}[name.split("_")[0]](folder)
        noise = ["--data.noise.means=[0.0,0.1]", "--data.batches.samples_per_group=2"] if "noise" in name else []
        return [f"--data.images.root={folder}", *SMALL_IMAGES, *noise]
    adult(600).to_csv(folder / "train.csv", index=False)
    adult(400).to_csv(folder / "test.csv", index=False)
    arguments = [f"--data.train={folder / 'train.csv'}", f"--data.pool=[{folder / 'test.csv'}]"]
    arguments += ["--data.groups.min_size=1", f"--data.groups.by={FOUR_BY_THREE}"]
    return arguments + (["--data.batches.groups_per_batch=12"] if name == "adult_smd" else [])


RARE = [
    "Bald", "Mustache", "Gray_Hair", "Pale_Skin", "Double_Chin", "Wearing_Hat", "Blurry", "Sideburns", "Chubby",
    "Goatee",
]  # fmt: skip


def ranking_arguments(config, folder):
    if config.stem.startswith("celeba_attributes"):
        values = np.random.default_rng(0).random((400, 12)) < 0.3
        pd.DataFrame(values, columns=[*RARE, "Male", "Smiling"]).to_parquet(folder / "a.parquet")
        return [f"--data.train={folder / 'a.parquet'}"]
    for name, rows in (("train", 1200 if config.stem == "adult_recall_at_k" else 400), ("test", 200)):
        adult(rows).to_csv(folder / f"{name}.csv", index=False)
    return [f"--data.train={folder / 'train.csv'}", f"--data.test={folder / 'test.csv'}"]


def xrisk_arguments(config, folder):
    """Small simulated data, or files of the layout that a config announces."""
    rng = np.random.default_rng(0)
    name = config.stem
    if name == "synthetic_bellman_alexr":
        return ["--data.num_train=4", "--data.num_test=2"]
    if name.startswith(("synthetic_list", "synthetic_ndcg", "digits_bags")):
        return ["--data.num_train=30", "--data.num_test=10"]
    if name.startswith("synthetic"):
        rows = 2000 if name == "synthetic_auc_pdsca" else 200  # 5% positives, of which a batch takes 64
        return [f"--data.num_train={rows}", f"--data.num_test={rows // 2}"]
    if name.startswith("survival"):
        table = {"age": rng.normal(size=400), "time": rng.exponential(size=400), "event": np.arange(400) % 2}
        pd.DataFrame(table).to_csv(folder / "train.csv", index=False)
        return [f"--data.train={folder / 'train.csv'}"]
    if name.startswith("letor"):
        lines = [f"{i % 3} qid:{i // 40} 1:{rng.normal():.3f} 2:{rng.normal():.3f}" for i in range(1200)]
        (folder / "train.txt").write_text("\n".join(lines))
        return [f"--data.train={folder / 'train.txt'}"]
    return binary_arguments(name, folder)


def binary_arguments(name, folder):
    """Files of LIBSVM and of MedMNIST with the labels that they have."""
    rng = np.random.default_rng(0)
    if name.startswith("chest"):
        parts = {"train": 60, "val": 30, "test": 30}
        arrays = {f"{part}_images": rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for part, n in parts.items()}
        arrays |= {f"{part}_labels": rng.integers(0, 2, (n, 14), dtype=np.uint8) for part, n in parts.items()}
        np.savez(folder / "chestmnist.npz", **arrays)
        return [f"--data.images.root={folder / 'chestmnist.npz'}"]
    labels = {"covtype": (2, 1), "higgs": (1, 0), "ijcnn1": (1, -1)}.get(name.split("_")[0])
    if labels is None:
        return []  # scikit-learn's own tables
    rows = 400 if name.startswith("ijcnn1") else 20_000
    lines = [f"{labels[i % 2]} 1:{rng.normal():.3f} 2:{rng.normal():.3f}" for i in range(rows)]
    (folder / "train.svm").write_text("\n".join(lines))
    few = ["--data.splits.remove_positives=0.99"] if name.startswith("higgs") else []
    return [f"--data.train={folder / 'train.svm'}", *few]


def data_arguments(config, folder, request):
    if config.parent.name == "xrisk":
        ranking = config.stem.startswith(("adult", "celeba"))
        return ranking_arguments(config, folder) if ranking else xrisk_arguments(config, folder)
    if config.parent.name == "continual_clip":
        return continual_arguments(config, folder, request)
    if config.parent.name == "group_dro":
        return group_dro_arguments(config, folder)
    if config.stem.startswith(("synthetic", "five_distributions")):
        return ["--data.num_train=400", "--data.num_test=400"]
    make = {"adult": adult, "compas": compas}[config.stem.split("_")[0]]
    make(400).to_csv(folder / "train.csv", index=False)
    arguments = [f"--data.train={folder / 'train.csv'}"]
    if make is adult:
        make(200).to_csv(folder / "test.csv", index=False)
        arguments.append(f"--data.test={folder / 'test.csv'}")
    return arguments


def configs(*, quick, of=ALL_CONFIGS):
    """Configs as cases; those for which ``quick`` does not hold are slow."""
    cases = [pytest.param(c, marks=[] if quick(c) else [pytest.mark.slow]) for c in of]
    return pytest.mark.parametrize("config", cases, ids=lambda c: f"{c.parent.name}/{c.stem}")


@configs(quick=lambda c: c.stem in QUICK)
def test_trains_two_batches(config, tmp_path, request):
    arguments = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.enable_progress_bar=false"]
    if config.stem in QUICK:  # the slow ones draw, too; what evaluations draw has its own tests
        arguments += ["--report.pictures=false"]
    code = run(["fit", "--config", str(config), *arguments, *data_arguments(config, tmp_path, request)])
    assert code == 0
    assert list(tmp_path.rglob("report.json"))


def run_there(arguments):
    """Exit code and figures of a run on a device that is not there, and the devices on which it was evaluated."""
    far_device.register()
    devices, original = set(), FCCOModule.received

    def received(self, columns):
        devices.add(self.device.type)
        return original(self, columns)

    FCCOModule.received = received
    with far_device.FarDevice():
        code = run([*arguments, "--trainer.accelerator=far", "--trainer.strategy=far"])
    return code, written(Path()), devices


def written(folder):
    """Figures in the reports of the last run, by place; without times and numbers of the configuration."""
    found = {}
    last = max(folder.rglob("report.json"), key=lambda path: path.stat().st_mtime).parent
    todo = [(path.name, json.loads(path.read_text())) for path in last.glob("*.json")]
    while todo:
        place, value = todo.pop()
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            todo += [(f"{place}.{key}", inside) for key, inside in items if key not in ("seconds", "config")]
        elif isinstance(value, int | float):
            found[place] = value
    return found


@pytest.mark.slow
@configs(
    quick=lambda c: (c.parent.name, c.stem) == ("roc_fairness", "adult_sonex"),
    of=[c for c in ALL_CONFIGS if c.stem in ON_A_DEVICE + QUICK],
)
def test_a_run_on_a_device_reports_what_one_on_the_cpu_does(config, tmp_path, request):
    """With pictures, and a baseline and diagnostics where there are any: all that is done when training has ended."""
    arguments = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.enable_progress_bar=false"]
    arguments += [*data_arguments(config, tmp_path, request), "--trainer.precision=64-true"]
    command = ["fit", "--config", str(config), *arguments, "--seed_everything=1"]
    if config.parent.name == "roc_fairness":
        command.append("--diagnostics.enabled=true")
    code, found, devices = values(launch(run_there, 1, command, limit=300))[0]
    assert (code, devices) == (0, {"far"})
    assert run(command) == 0
    expected = written(Path())
    assert found.keys() == expected.keys()
    if not config.stem.endswith("lwf"):  # whose first gradients are 0 but for rounding, which Adam magnifies
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


@configs(quick=lambda c: c.stem in PRINTED)
def test_prints_a_config_that_parses_again(config, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run(["fit", "--config", str(config), "--print_config"])
    assert stop.value.code == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    with pytest.raises(SystemExit) as stop:
        run(["fit", "--config", str(printed), "--print_config"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == printed.read_text()
