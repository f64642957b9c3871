"""The benchmark scripts run, and their counts are right."""

import contextlib
import importlib.util
import json
import logging
import math
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning import TextClassifier, TextTokens
from tests.test_configs import adult, compas
from tests.texts import TINY, make_mails

FOLDER = Path(__file__).parents[1] / "examples/benchmarks"


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)


@pytest.fixture(autouse=True)
def lightning_talks_again_after_a_script():
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    yield
    logger.setLevel(level)


class InThisProcess(contextlib.nullcontext):
    """Takes the place of a pool of processes, and of what makes one."""

    def __enter__(self):
        return self

    def Pool(self, size):  # noqa: N802
        return self

    def apply(self, function, arguments):
        return function(*arguments)

    def map(self, function, jobs):
        return map(function, jobs)


@pytest.fixture
def runs(monkeypatch):
    """Runs are carried out in this process, and searches are short."""
    import runs

    for name, of in {"ProcessPoolExecutor": InThisProcess, "LONGEST": 0, "SEEDS": (100,)}.items():
        monkeypatch.setattr(runs, name, of)
    return runs


def script(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def command(monkeypatch):
    """Carries out the command of a script with these arguments."""

    def carry_out(module, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, arguments)])
        module.main()

    return carry_out


def test_auc_dispatches_few_operators():
    assert 5 <= script("step_cost").operators() <= 30


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fits_take_turns_against_plain_lightning():
    table = script("step_cost").under_trainer(2, steps=8)
    assert len(table) == 14
    assert table["plain Lightning, own loader"]["ratio"] == 1
    assert all(row["ms"] > 0 for row in table.values())


def test_the_written_out_step_is_the_engine_step():
    """The benchmark compares like with like: same weights after five steps."""
    import copy

    import torch

    s = script("step_cost")
    for sonex in (False, True):
        torch.manual_seed(0)
        model = s.TabularMLP(hidden=[8], in_features=10)
        algorithm, penalty = s.SONEX_PARTS if sonex else s.SOX_PARTS
        bare, network = copy.deepcopy(model), copy.deepcopy(model)
        ours = s.ours(network, algorithm(), penalty, s.AdamType(network.parameters(), lr=1e-4))
        written = s.written_out(bare, sonex=sonex)
        for batch in s.batches(5, (64, 10), "cpu"):
            ours(batch)
            written(batch)
        for a, b in zip(network.parameters(), bare.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_contrastive_steps_written_out_are_the_engine_steps():
    """Same weights after eight steps, the second four on rows that were seen."""
    import copy

    import torch

    s = script("contrastive_cost")
    torch.manual_seed(0)
    model = s.TwoTowers((10, 8, 4))
    data = [
        {"x": torch.randn(16, 10), "text": torch.randn(16, 10), "index": i}
        for i in torch.randperm(s.SAMPLES)[:64].split(16)
    ]
    pairs = {"plain loop, InfoNCE": "InfoNCE", "SOX written out": "SOX"}
    moved = {}
    for names in pairs.items():
        networks = []
        for name in names:
            networks.append(copy.deepcopy(model))
            step = s.variants(lambda made=networks[-1]: made)[name]()
            for batch in data + data:
                step(batch)
        for a, b in zip(*(n.parameters() for n in networks), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        moved[names[0]] = networks[0].image[0].weight
    assert (moved["SOX written out"] - moved["plain loop, InfoNCE"]).abs().max() > 1e-5  # else one test says nothing


@pytest.mark.slow
def test_protected_tasks_and_their_comparison_take_the_same_images_and_texts(monkeypatch):
    import torch

    s = script("contrastive_cost")
    seen = []

    def watched(steps, data, rounds, device, bases, warm_up):
        name = "5 tasks, SOX, squared hinge"
        for each in (next(iter(steps)), name):
            seen.append([])
            steps[each](data[0])
        return {}

    def count(tower):
        return lambda model, rows: seen[-1].append((tower.__name__, tuple(rows.shape))) or tower(model, rows)

    monkeypatch.setattr(s, "interleaved", watched)
    model = s.CLIPModel
    prepared = s.clip_pairs(model("tiny"), torch.arange(336))
    for name in ("_embed_images", "_embed_texts"):
        monkeypatch.setattr(model, name, count(getattr(model, name)))
    seen.append([])  # what is measured of the old model beforehand
    s.protected_tasks(1, count=1)
    alone, tasks = seen[-2:]
    assert alone == tasks == [("_embed_images", prepared["x"].shape), ("_embed_texts", prepared["text"].shape)]


@pytest.mark.slow
def test_contrastive_cost_writes_its_tables(command, tmp_path, monkeypatch, capsys):
    import torch

    s = script("contrastive_cost")
    monkeypatch.setattr(
        s, "objectives", lambda rounds, compiled: s.interleaved({"a": bool, "b": bool}, [1], rounds, "cpu")
    )
    monkeypatch.setattr(s, "protected_tasks", lambda rounds: {})
    command(s, "--rounds", 4, "--out", tmp_path)
    first, _ = json.loads((tmp_path / "contrastive_cost.json").read_text()).values()
    assert first["a"]["ratio"] == 1
    assert first["b"]["25%"] <= first["b"]["ratio"] <= first["b"]["75%"]
    assert "| step | ms | ratio | 25% | 75% |" in capsys.readouterr().out
    (table,) = s.large(2, "tiny", 8, "cpu").values()  # what runs on a GPU with a larger model
    assert list(table) == list(s.variants(lambda: None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="CUDA"):
        command(s, "--gpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the run in its own process
def test_roc_fairness_writes_table_json_and_picture(command, runs, tmp_path, capsys):
    module = script("roc_fairness")
    compas(400).to_csv(tmp_path / "c.csv", index=False)
    out = tmp_path / "out"
    arguments = ["--data", "compas", "--train", tmp_path / "c.csv", "--methods", "sonex", "sgd", "--seeds", 1]
    command(module, *arguments, "--epochs", 1, "--out", out)
    assert "| SONEX (Adam) | 1 |" in capsys.readouterr().out
    results = json.loads((out / "roc_fairness_compas_methods.json").read_text())
    assert [r["label"] for r in results] == [
        f"{method} ({optimizer})" for method in ("SONEX", "no constraints") for optimizer in ("Adam", "momentum")
    ]
    assert (out / "roc_fairness_compas_methods.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the run in its own process
def test_group_dro_tunes_and_writes_table_json_and_picture(command, runs, tmp_path, monkeypatch, capsys):
    module, out = script("group_dro"), tmp_path / "out"
    adult(600).to_csv(tmp_path / "a.csv", index=False)
    adult(400).to_csv(tmp_path / "b.csv", index=False)
    groups = "[income, sex, {column: race, values: {White: w, Black: b}, other: o}]"
    small = {"data.groups.min_size": 1, "data.groups.by": groups}
    monkeypatch.setattr(module, "GRIDS", module.GRIDS | {"alexr": {"model.algorithm.tau": [1.0]}})
    monkeypatch.setattr(module, "LEARNING_RATES", {"adult": [0.1, 0.3]})
    monkeypatch.setattr(runs, "expand", lambda overrides, of=runs.expand: of(small | overrides))
    arguments = ["--data", "adult", "--train", tmp_path / "a.csv", "--test", tmp_path / "b.csv", "--epochs", 2]
    for more in (["--methods", "alexr", "--tune"], ["--methods", "alexr", "sgd", "--alpha", 0.25, "--seeds", 1]):
        command(module, *arguments, *more, "--out", out)
    picks = json.loads((out / "group_dro_adult_picks.json").read_text())
    picked = picks["alexr"]["picked"]
    assert picked["model.optimizer.lr"] in (0.1, 0.3)
    results = json.loads((out / "group_dro_adult_0.25.json").read_text())
    assert [r["label"] for r in results] == ["alexr", "sgd"]
    assert results[0]["overrides"]["model.optimizer.lr"] == picked["model.optimizer.lr"]
    assert len(results[0]["curves"]["train_cvar_loss"]) == 2
    assert "| alexr | 1 |" in capsys.readouterr().out
    assert (out / "group_dro_adult_0.25.png").stat().st_size > 5000


@pytest.mark.slow
def test_text_groups_tunes_and_writes_its_tables(command, runs, tmp_path, monkeypatch, capsys):
    module, out = script("text_groups"), tmp_path / "out"
    make_mails(160).to_parquet(tmp_path / "m.parquet")
    monkeypatch.setattr(module, "NETWORK", TINY)
    monkeypatch.setattr(module, "ADAPTIVE_RATES", [0.01, 0.02])
    arguments = ["--data", tmp_path / "m.parquet", "--epochs", 1, "--length", 12, "--seeds", 1, "--out", out]
    for more in (["--methods", "sonex", "--tune"], ["--methods", "sonex", "sgd"], ["--ablation", "beta"]):
        command(module, *arguments, *more)
    picked = json.loads((out / "text_groups_picks.json").read_text())["sonex"]["picked"]
    assert picked["lr"] in (0.01, 0.02)
    results = json.loads((out / "text_groups.json").read_text())
    assert [(r["label"], r["overrides"]) for r in results] == [("sonex", picked), ("sgd", {})]
    assert all(0 <= r["test"]["worst_group_accuracy"] <= r["test"]["accuracy"] <= 1 for r in results)
    assert len(json.loads((out / "text_groups_beta.json").read_text())) == 8
    assert "| alexr2, beta 0.3 | 1 |" in capsys.readouterr().out


@pytest.fixture
def pretrained(tmp_path):
    """A folder with a tiny BERT of three layers and its tokenizer."""
    mails = make_mails(160)
    mails.to_parquet(tmp_path / "m.parquet")
    config = TINY | {"num_hidden_layers": 3, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    TextClassifier(config=config).model.bert.save_pretrained(tmp_path / "bert")
    TextTokens(vocabulary=TINY["vocab_size"]).made(mails["text"]).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.mark.slow
def test_text_groups_trains_the_upper_layers_of_a_pretrained_network(command, runs, pretrained, tmp_path, monkeypatch):
    module, out, kept = script("text_groups"), tmp_path / "out", tmp_path / "kept.jsonl"
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for file in pretrained.iterdir():
            archive.write(file, file.name)
    with zipfile.ZipFile(tmp_path / "tiny.whl", "w") as wheel:
        wheel.write(tmp_path / "model.zip", "tiny/model.zip")
    monkeypatch.setattr(module, "ADAPTIVE_RATES", [0.01, 0.02])
    arguments = ["--data", tmp_path / "m.parquet", "--epochs", 1, "--length", 12, "--seeds", 2, "--out", out,
                 "--pretrained", tmp_path / "tiny.whl", "--kept", kept, "--methods", "sonex", "sgd_uw"]  # fmt: skip
    for more in (["--tune"], [], []):
        command(module, *arguments, *more)
    results = json.loads((out / "text_groups_pretrained_1.json").read_text())
    assert [(r["label"], r["seed"]) for r in results] == [("sonex", 0), ("sgd_uw", 0), ("sonex", 1), ("sgd_uw", 1)]
    picks = json.loads((out / "text_groups_pretrained_1_picks.json").read_text())
    assert all(r["overrides"] == picks[r["label"]]["picked"] for r in results)
    assert len(kept.read_text().splitlines()) == 2 * 2 + 2 * 2, "two rates, then two seeds, of two methods; none twice"


@pytest.mark.slow
@pytest.mark.parametrize("trained", [1, 2])
def test_the_upper_layers_say_what_the_whole_pretrained_network_says(pretrained, tmp_path, trained):
    module, path = script("text_groups"), str(tmp_path / "m.parquet")
    job = {"pretrained": str(pretrained), "trained": trained, "data": path, "length": 12, "folder": str(tmp_path)}
    torch.manual_seed(0)
    upper = module.network_of(job)
    torch.manual_seed(0)
    whole = TextClassifier(str(pretrained))
    data = module.mails(path, 12, tokenizer=str(pretrained))
    data.setup()
    x = next(iter(data.val_dataloader()["val"]))["x"]
    assert (x < 0).any(), "texts of one length"
    scores = [network.eval()({"part": {"x": x}})["part"] for network in (upper, whole)]
    torch.testing.assert_close(*scores)
    kept = [f"model.bert.encoder.layer.{i}." for i in range(3 - trained, 3)] + ["model.bert.pooler", "model.classifier"]
    expected = [p for name, p in whole.named_parameters() if name.startswith(tuple(kept))]
    torch.testing.assert_close([p for p in upper.parameters() if p.requires_grad], expected)


@pytest.mark.filterwarnings("ignore")  # of runs of a few steps
def test_groups_pay_picks_rates_by_validation_and_prints(command, runs, tmp_path, monkeypatch, capsys):
    module, kept = script("groups_pay"), tmp_path / "kept.jsonl"
    make_mails(120).to_parquet(tmp_path / "mails.parquet")
    monkeypatch.setitem(module.SOURCES, "mails", module.SOURCES["mails"]._replace(epochs=1))
    methods = list(module.METHODS)[:2]
    command(module, "--tables", "mails", "--data", tmp_path, "--seeds", 1, "--rates", 0.001, 0.01, "--kept", kept,
            "--methods", *methods)  # fmt: skip
    done = [json.loads(line)["done"] for line in kept.read_text().splitlines()]
    printed = capsys.readouterr().out
    for method in methods:
        runs_of = [run for run in done if run["label"] == method]
        best = min(runs_of, key=lambda run: run["val"]["cvar_loss"])
        row = next(line for line in printed.splitlines() if line.startswith(f"| {method} |"))
        assert f"| {best['train']['cvar_loss']:.4f} +-" in row
        assert f"| {best['lr']:g} |" in row


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of runs of a few steps
def test_tables_pay_compares_run_by_run(command, runs, tmp_path, capsys):
    module, kept = script("tables_pay"), tmp_path / "kept.jsonl"
    arguments = ["--data", tmp_path, "--seeds", 2, "--steps", 4, "--methods", "AveragePrecision()", "--kept", kept]
    command(module, *arguments, "--only", "wine", "linear", "German")
    assert len(kept.read_text().splitlines()) == 2 * 2 * 2  # tables that are there, seeds, methods
    printed = capsys.readouterr().out
    assert "left out, as" in printed
    assert "German credit 15%" in printed
    assert "| wine 15% |" in printed
    found = [json.loads(line)["done"] for line in kept.read_text().splitlines()]
    of_wine = [run["test"]["average_precision"] for run in found if run["table"] == "wine 15%"]
    by_seed = module.differences(found, "AveragePrecision()", "test.average_precision")["wine 15%"]
    assert by_seed == [of_wine[1] - of_wine[0], of_wine[3] - of_wine[2]]


@pytest.mark.filterwarnings("ignore")  # of runs of a few steps
@pytest.mark.parametrize("way", ["constant", pytest.param("recipe", marks=pytest.mark.slow)])
def test_tables_pay_trains_in_the_ways_that_people_type(way, command, runs, tmp_path):
    module, kept = script("tables_pay"), tmp_path / "kept.jsonl"
    arguments = ["--data", tmp_path, "--seeds", 1, "--steps", 8, "--only", "wine", "--tables", "test", "--kept", kept]
    methods = ["AveragePrecision()", "no pretraining", "AUC()", "RecallAtK(k)"]
    command(module, *arguments, "--way", way, "--methods", *methods)
    found = [json.loads(line)["done"] for line in kept.read_text().splitlines()]
    assert [run["way"] for run in found] == [way] * 5
    assert all(0 < run["test"][figure] <= 1 for run in found for figure in ("average_precision", "auc", "partial_auc"))
    assert all(0 <= run["test"]["recall"] <= 1 for run in found)
    assert len({run["test"]["average_precision"] for run in found}) > 1  # what is minimised matters


def images_of_digits(path, count):
    """A `datasets` table of grey images, the brighter the larger the digit."""
    import io

    from PIL import Image

    rng, images, labels = np.random.default_rng(0), [], np.arange(count) % 10
    for label in labels:
        png = io.BytesIO()
        Image.fromarray(rng.integers(20 * label, 20 * label + 60, (28, 28), dtype=np.uint8)).save(png, "PNG")
        images.append({"bytes": png.getvalue(), "path": None})
    pd.DataFrame({"image": images, "label": labels}).to_parquet(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the runs in their own process
def test_imbalanced_images_are_searched_run_kept_and_printed(command, runs, tmp_path, monkeypatch, capsys):
    import torch
    from sklearn.metrics import average_precision_score

    s = script("imbalanced_images")
    images_of_digits(tmp_path / "digits.parquet", 200)
    small = {"BATCH": 16, "LEARNING_RATES": [1e-2], "PLAIN": {"BCE": s.PLAIN["BCE"]}, "ALGORITHMS": {"SOX": s.SOX}}
    small["CHANGES"] = {name: s.CHANGES[name] for name in ("logistic", "an eighth of a batch positive")}
    for name, of in small.items():
        monkeypatch.setattr(s, name, of)
    monkeypatch.setattr(s.libauc_losses, "available", lambda: False)
    arguments = ["--data", tmp_path / "digits.parquet", "--shares", 0.2, "--seeds", 1, "--epochs", 2, "--out", tmp_path]
    command(s, *arguments)
    assert capsys.readouterr().out.count("| SOX, sigmoid | 1 |") == 2  # from scratch and pretrained
    command(s, *arguments, "--ablation", "--starts", "scratch")
    assert "| logistic | 1 |" in capsys.readouterr().out
    monkeypatch.setattr(s, "DEFAULTS", {"RecallAtK(n_+)": s.RecallAtK})
    command(s, *arguments, "--defaults", "--starts", "scratch")
    out = capsys.readouterr().out
    assert all(out.count(f"| RecallAtK(n_+), {batches} | 1 |") == len(s.OWN) for batches in ("uniform", "balanced"))
    command(s, *arguments, "--defaults", "--objectives", "RecallAtK(n_+)", "--rate", 0.02, "--starts", "scratch")
    assert capsys.readouterr().out.count("lr 0.02") == 4 * len(s.OWN), "two methods in two kinds of batches"
    kept = (tmp_path / "imbalanced_images.jsonl").read_text()
    command(s, *arguments)
    assert (tmp_path / "imbalanced_images.jsonl").read_text() == kept

    splits = torch.load(tmp_path / "digits_0.2_0.pt")
    assert [float(splits[name]["y"].float().mean()) for name in ("train", "test")] == pytest.approx([0.2, 0.5])
    network, columns = s.TimmModel(s.NETWORK, in_chans=1), splits["test"]
    rare = s.figures(network, columns, 0.25)["rare"]  # as if every negative were there three times
    scores, y = network(columns["x"]).detach(), columns["y"]
    times = torch.where(y == 1, 1, 3)
    assert rare == pytest.approx(average_precision_score(y.repeat_interleave(times), scores.repeat_interleave(times)))


def images_of_ten_classes(path, count):
    """A `datasets` table of coloured images, the brighter the larger the class."""
    import io

    from PIL import Image

    rng, images, labels = np.random.default_rng(0), [], np.arange(count) % 10
    for label in labels:
        png = io.BytesIO()
        Image.fromarray(rng.integers(20 * label, 20 * label + 60, (32, 32, 3), dtype=np.uint8)).save(png, "PNG")
        images.append({"bytes": png.getvalue(), "path": None})
    pd.DataFrame({"image": images, "label": labels}).to_parquet(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of runs of a few steps
def test_cifar_pays_tunes_runs_goes_on_and_prints(command, runs, tmp_path, monkeypatch, capsys):
    s, log = script("cifar_pays"), tmp_path / "log.jsonl"
    for part, count in (("train", 500), ("test", 100)):
        images_of_ten_classes(tmp_path / f"cifar10_{part}.parquet", count)
    balanced = "cross-entropy, balanced batches"
    wanted = {
        "ap": ["cross-entropy", balanced, "SOX", "AveragePrecision()"],
        "auc": [],
        "dro": ["average loss", "PG-SMD"],
    }
    kept = {cell: {label: s.METHODS[cell][label] for label in labels} for cell, labels in wanted.items()}
    monkeypatch.setattr(s, "METHODS", kept)
    monkeypatch.setattr(s, "CELLS", {name: cell._replace(batch=8, rates=(0.01,)) for name, cell in s.CELLS.items()})
    monkeypatch.setattr(s.libauc_losses, "available", lambda: False)
    arguments = ["--data", tmp_path, "--log", log, "--out", tmp_path, "--epochs", 0.25, "--seeds"]
    command(s, *arguments, 1)
    done = [json.loads(line)["done"] for line in log.read_text().splitlines()]
    tuning = [run for run in done if run["seed"] == s.TUNING_SEED]
    assert [run["label"] for run in tuning] == ["cross-entropy", balanced, *["SOX"] * 3, "average loss", "PG-SMD"]
    assert [run["overrides"].get("gamma") for run in tuning] == [None, None, 0.1, *s.GAMMAS, None, None]
    assert not any("test" in run for run in tuning)  # nothing is picked by it
    assert [run["label"] for run in done[len(tuning) :]] == [*wanted["ap"], *wanted["dro"]]
    assert done[-1]["curve"][-1]["test"] == done[-1]["test"]
    command(s, *arguments, 2)
    assert len(log.read_text().splitlines()) == len(done) + 6  # what was there is not run again
    capsys.readouterr()
    command(s, "--log", log, "--page")
    printed = capsys.readouterr().out
    assert printed.count("| SOX | 2 |") == printed.count("| PG-SMD | 2 |") == 1
    assert printed.count("| to cross-entropy | to balanced batches |") == 1
    lines = [line for line in log.read_text().splitlines() if json.loads(line)["done"]["label"] == "SOX"]
    (tmp_path / "sox.jsonl").write_text("\n".join(lines))  # nothing to compare with
    command(s, "--log", tmp_path / "sox.jsonl", "--page")
    assert "| SOX | 2 |" in capsys.readouterr().out

    splits = s.splits_of("ap", 0, tmp_path, tmp_path)
    counts = {part: np.bincount(columns["y"]).tolist() for part, columns in splits.items()}
    assert counts == {"train": [240, 5], "val": [10, 10], "test": [50, 50]}


@pytest.mark.filterwarnings("ignore")  # of runs of a few steps
def test_objectives_on_cifar_are_those_of_the_module(runs):
    import torch

    from fcco_lightning import FCCOModule, TabularMLP

    s, y = script("cifar_pays"), torch.arange(40) % 4 == 0
    for objective, own in ((s.AveragePrecision, s.PRECISION), (s.AUC, s.AREA)):
        module = FCCOModule(TabularMLP([]), objective())
        columns = {"x": torch.randn(40, 2), "y": y.long()}
        data = s.TensorDataModule({"train": columns, "test": columns}, batches=s.UniformSampling(8))
        runs.quiet_trainer(max_epochs=1).fit(module, data)
        assert own().mixture == module.objective.mixture != (0, 1)


def test_crops_of_cifar_are_drawn_by_their_seed_alone():
    import torch

    s = script("cifar_pays")
    place = torch.arange(32.0)
    x = torch.stack([place.view(-1, 1).expand(32, 32), place.expand(32, 32), torch.zeros(32, 32)]).expand(64, 3, 32, 32)
    mean, std = (255 * torch.tensor(of).view(3, 1, 1) for of in (s.MEAN, s.STD))
    found = s.augmented(x, 1) * std + mean
    assert torch.equal(s.augmented(x, 1), s.augmented(x, 1))
    rows, columns = found[:, 0, :, 0], found[:, 1, 0]
    corners = torch.stack([rows[:, 0], columns.min(1).values]).round()
    assert {tuple(corner) for corner in corners.T.tolist()} == {(i, j) for i in range(3) for j in range(3)}
    steps = columns.diff(dim=1)
    assert torch.allclose(steps, steps[:, :1].expand_as(steps), atol=1e-4)
    assert 16 < (steps[:, 0] < 0).sum() < 48  # about half are flipped


@pytest.mark.slow
def test_dual_state_measures_memory_steps_files_and_training(command, tmp_path, capsys):
    module = script("dual_state")
    command(module, "--rows", 20_000, "--batch", 64, "--rounds", 2, "--out", tmp_path)
    memory, many, few, files = json.loads((tmp_path / "dual_state.json").read_text()).values()
    assert len(memory) == 2
    sent = [table["state, any rows"]["bytes sent by a process"] for table in (many, few)]
    assert 32 * 12 + 64 * 4 < sent[0] < 1000  # index and value of the own samples, all rows, little else
    assert sent[1] == pytest.approx(sent[0], rel=0.1)  # whatever the number of rows
    assert files["save"]["extra memory, MiB"] < 64
    assert "| save and load |" in capsys.readouterr().out
    assert module.trainer_table(2, 3, batches=[64], repeats=1)["2 x 64"]["us per sample"] > 0


def test_a_feasible_run_beats_one_that_is_not():
    module = script("roc_fairness")
    runs = [
        {"method": "sonex", "train": {"worst_violation": v}, "val": {"auc": a}}
        for v, a in [(0.004, 0.9), (0.001, 0.8), (0.02, 0.95), (0.2, 0.99)]
    ]
    scores = [module.score(run) for run in runs]
    assert scores == sorted(scores, reverse=True)
    assert module.score(runs[-1] | {"method": "sgd"}) == 0.99
    assert script("runs").expand({"a.b+c": (1, 2), "d": 3}) == {"a.b": 1, "a.c": 2, "d": 3}


def test_the_area_of_a_front_is_what_its_points_dominate():
    module = script("roc_fairness")
    points = [(0.1, 0.85), (0.2, 0.9), (0.25, 0.82), (0.4, 0.95), (0.05, 0.7)]
    area = module.hypervolume([{"val": {"roc_gap": g, "auc": a}} for g, a in points])
    grid = [((i + 0.5) / 1000 * 0.3, 0.8 + (j + 0.5) / 100 * 0.2) for i in range(1000) for j in range(100)]
    inside = sum(any(g <= x and a >= y for g, a in points) for x, y in grid)
    assert area == pytest.approx(0.06 * inside / len(grid), rel=0.01)


@pytest.mark.parametrize(("best", "bound"), [((300.0, 0.01), None), ((3.0, 30.0), 1.0)])
def test_a_search_leaves_the_edge_of_its_grid(best, bound):
    runs = script("runs")

    def make(overrides, seed):
        return {"overrides": overrides, "seed": seed}

    def score(run):
        distance = [math.log(run["overrides"][name] / at) ** 2 for name, at in zip("ab", best, strict=True)]
        return -sum(distance) + 1e-3 * (run["seed"] % 2)

    tuning = runs.Tuning({"a": [1.0, 3.0, 9.0], "b": [0.1, 1.0]}, make, score, {"b": bound} if bound else None)
    search = tuning.search()
    jobs, count = next(search), 0
    with contextlib.suppress(StopIteration):
        while True:
            count += len(jobs)
            jobs = search.send(jobs)
    assert tuning.picked == {"a": 243.0 if bound is None else 3.0, "b": 0.01 if bound is None else 1.0}
    assert tuning.summary["runs"] == count
    assert len(tuning.summary["scores"]) == len(runs.SEEDS)
    assert tuning.summary["on an edge that could not be moved"] == []


def test_means_over_pairs_are_measured_beside_all_pairs_at_once(command, capsys):
    command(script("pair_cost"), "--sizes", 16, "--rounds", 3)
    lines = capsys.readouterr().out.splitlines()
    losses = [line.split(" | ")[1] for line in lines[2:]]
    assert losses == ["SquaredPair", "SquaredHingePair", "SigmoidPair", "LogisticPair"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["distributions", "smooth"])
def test_weakly_convex_dro_writes_table_json_and_picture(part, command, runs, tmp_path, monkeypatch, capsys):
    module = script("weakly_convex_dro")
    monkeypatch.setattr(module, "LOOKS", 3)
    for axes in module.AXES[part].values():
        for name, values in axes.items():
            monkeypatch.setitem(axes, name, values[:1])
    command(module, "--part", part, "--steps", 42, "--seeds", 1, "--out", tmp_path)
    results = json.loads((tmp_path / f"weakly_convex_dro_{part}.json").read_text())["results"]
    assert {r["label"] for r in results} == set(module.AXES[part])
    for run in results:
        assert 0 < run["test"]["psi"] < 2
        assert len(run["curves"]) == 4
    assert "| PG-SMD | 1 |" in capsys.readouterr().out
    assert (tmp_path / f"weakly_convex_dro_{part}.png").stat().st_size > 5000


@pytest.mark.slow
def test_robust_linear_models_are_measured_beside_the_transcription(command, tmp_path, monkeypatch):
    """Both reach the optimum, and the tables and pictures are written."""
    s = script("dro")
    x, y = s.synthetic(60, 3)
    args = SimpleNamespace(tail=0.25, mu=0.5, classes=False)
    for classes in (False, True):
        args.classes = classes
        problem = s.posed(x, np.digitize(y, [-0.5, 0.5]) if classes else y, args, 1.0)
        best = s.run(s.solving(problem, s.LBFGS()), problem, 1e-11, 5000).w
        for size in (7, 60):
            solve = lambda progress: s.dro_transcription.solve(problem, progress, 0.25, size, s.dro_transcription.PLAIN)  # noqa: B023, E731
            np.testing.assert_allclose(s.run(solve, problem, 1e-7, 2000).w, best, atol=1e-3)
    pd.DataFrame(np.column_stack([x, y]), columns=["a", "b", "c", "y"]).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr(s.dro_transcription, "compiled", lambda: None)  # seconds of compilation, where there is numba
    monkeypatch.setattr(s, "find_spec", lambda name: None)
    arguments = ["--data", tmp_path / "t.csv", "--rounds", 2, "--out", tmp_path, "--tol", 1e-3]
    command(s, *arguments, "--large", 100, "--features", 3, "--nus", 0.1, "--parts", 1)
    (table,) = json.loads((tmp_path / "dro.json").read_text()).values()
    assert table["transcription, b = n/d"]["of"] == "DRAGO, b = n/d"
    assert (tmp_path / "t.png").exists()
    assert (tmp_path / "large.png").exists()
    assert len(json.loads((tmp_path / "histories.json").read_text())) == 1


def test_weights_of_samples_are_compared_on_digits_with_rare_classes():
    s = script("dro_networks")
    train = s.digits(0)["train"]
    assert (train["y"] >= s.RARE).sum() < 50 < (train["y"] < s.RARE).sum()
    for label, axes in s.AXES.items():
        given = {name: values[0] for name, values in axes.items()}
        run = s.run({"label": label, "seed": 0, "epochs": 1, "overrides": given})
        assert 0 <= run["test"]["worst_class"] <= run["test"]["accuracy"] <= 100


def test_losses_of_ranking_dispatch_few_operators():
    counts = {name: row["here"] for name, row in script("xrisk_cost").operators(others=False).items()}
    assert max(counts[name] for name in ("AP", "pAUC, KL", "pAUC, CVaR", "AUC", "AUC margin")) <= 38
    assert 5 <= min(counts.values()) <= max(counts.values()) <= 40


@pytest.mark.slow
def test_x_risks_are_measured_with_few_positives_and_beside_plain_steps(command, runs, tmp_path, monkeypatch, capsys):
    scores, cost = script("xrisk_scores"), script("xrisk_cost")
    for name, value in {"STEPS": 4, "DATA": {"digits": "eights"}, "LEARNING_RATES": [1e-3, 1e-2]}.items():
        monkeypatch.setattr(scores, name, value)
    monkeypatch.setattr(scores, "methods", lambda: ["BCE, classes weighted", "AP, pretrained"])
    monkeypatch.setattr(cost, "RANKING", {"AUC": cost.RANKING["AUC"]})
    monkeypatch.setattr(cost, "ROWS", 1024)
    monkeypatch.setattr(cost.libauc_losses, "available", lambda: False)
    command(script("xrisk"), "--part", "cost", "scores", "--seeds", 1, "--rounds", 2, "--out", tmp_path)
    printed = capsys.readouterr().out
    assert "| mAP, ten labels |" in printed
    assert "| digits: AP, pretrained | 1 |" in printed
    kept = json.loads((tmp_path / "xrisk_scores.json").read_text())
    assert kept["picks"]["digits: AP, pretrained"]["picked"] == kept["runs"][1]["overrides"]
    train = scores.split("digits", 0)["train"]
    assert train["y"].sum() == 5
    assert train["x"].abs().max() <= 5


def test_what_sees_sigmoids_differs_from_what_sees_scores_by_nothing_else():
    """The same start and batches; the network returns scores all the same, which a sigmoid ranks as it found them."""
    import torch

    scores = script("xrisk_scores")
    splits = scores.split("digits", 0)
    scores.STEPS = 1
    of_scores, of_sigmoids = (scores.fitted(f"AUC{kind}", splits, 1e-3, 0) for kind in ("", scores.BOUNDED))
    scores.STEPS = 0
    start = scores.fitted("AUC", splits, 1e-3, 0)
    for a, b, c in zip(*(network.parameters() for network in (start, of_scores, of_sigmoids)), strict=True):
        assert (b - a).abs().max() <= 1.01e-3
        assert (c - a).abs().max() <= 1.01e-3
    x = splits["test"]["x"]
    assert not torch.equal(of_scores(x), of_sigmoids(x))
    assert of_sigmoids(x).min() < 0


def test_the_optimum_of_cox_model_is_that_of_its_partial_likelihood():
    """No neighbour has a smaller loss, as the project's metric computes it."""
    import torch

    fits = script("xrisk_fits")
    module = fits.SyntheticDataModule(150, 50, problem=fits.ProportionalHazards(), batches=fits.EventSampling())
    module.setup()
    columns = module.tables["train"].columns
    w = fits.optimum(columns)
    assert w.abs().max() > 0.1

    def loss(w):
        return fits.partial_likelihood(columns["time"].double(), columns["event"] == 1, columns["x"].double() @ w)

    for step in 1e-3 * torch.eye(len(w), dtype=torch.float64):
        assert loss(w) < min(loss(w + step), loss(w - step))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the runs in their own process
@pytest.mark.parametrize("part", ["push", "neighbours", "survival", "ranking"])
def test_parts_of_the_benchmark_of_x_risks(part, command, runs, tmp_path, monkeypatch, capsys):
    def short(overrides, of=runs.expand):
        pretrained = {"model.pretrain.epochs": 1} if "model.pretrain.epochs" in overrides else {}
        return of(overrides) | {"trainer.max_epochs": 2} | pretrained

    monkeypatch.setattr(runs, "expand", short)
    script("xrisk_fits")
    command(script("xrisk"), "--part", part, "--seeds", 1, "--out", tmp_path)
    labels = {run["label"] for run in json.loads((tmp_path / f"xrisk_{part}.json").read_text())["runs"]}
    printed = capsys.readouterr().out
    assert all(f"| {label} | 1 |" in printed for label in labels)


@pytest.mark.slow
def test_micro_batches_save_memory(command, tmp_path, monkeypatch):
    s = script("micro_batches")
    out = tmp_path / "micro_batches.json"
    monkeypatch.setattr(s, "peak", lambda size, micro_batch: float(micro_batch or size))
    monkeypatch.setattr(s.multiprocessing, "get_context", InThisProcess)
    command(s, "--batch", 256, "--rounds", 2, "--out", out)
    (table,) = json.loads(out.read_text()).values()
    assert [row["MiB"] for row in table.values()] == [256, 64, 16, 4]
    assert table["whole batch"]["ratio"] == 1
    assert s.largest_resident_set() > 50


def test_sharded_weights_are_counted_by_their_shapes():
    """The measured MiB of the small model on 1 and 2 processes (`--weights`) are 1.073 and .537."""
    s = script("scaling")
    (alone, *_, none), (half, *_, gathered) = s.simulated("tiny", 1), s.simulated("tiny", 2)
    assert [round(1024 * part, 3) for part in (alone, half)] == [1.073, 0.537]
    assert none == 0 < gathered < 2 * alone


@pytest.mark.slow
def test_scaling_measures_processes(command, tmp_path):
    out = tmp_path / "scaling.json"
    command(script("scaling"), "--processes", 1, 2, "--batch", 8, "--width", 4, "--rounds", 2, "--out", out)
    (table,) = json.loads(out.read_text()).values()
    assert list(table) == ["P = 1", "P = 2"]
    assert all(value > 0 for row in table.values() for value in row.values())


def test_peers_are_searched_and_run_beside_the_defaults(command, runs, tmp_path, monkeypatch, capsys):
    """A gradient descent on the objective alone stands in for the other libraries, one of which breaks down."""
    peers, methods = script("peers"), sys.modules["peer_methods"]

    def broken(network, problem, lr, dual):
        raise ZeroDivisionError

    libraries = {"descent": lambda network, problem, lr, dual: methods.plain(network, problem, lr), "broken": broken}
    monkeypatch.setattr(methods, "LIBRARIES", libraries)
    monkeypatch.setattr(methods, "available", lambda: list(libraries))
    monkeypatch.setattr(peers, "LEARNING_RATES", [1e-3])
    monkeypatch.setattr(peers, "DUAL_RATES", {name: [0.1] for name in libraries})
    monkeypatch.setattr(peers, "SYNTHETIC_ROWS", (600, 600))
    for more in (["--tune"], []):
        command(peers, "--problems", "equal opportunity", "--epochs", 1, "--seeds", 2, "--out", tmp_path, *more)
    picked = json.loads((tmp_path / "peers_picks.json").read_text())["synthetic, equal opportunity: descent"]["picked"]
    assert picked == {"lr": 1e-3, "dual": 0.1}
    results = json.loads((tmp_path / "peers.json").read_text())
    assert [(r["method"], "failed" in r) for r in results[::2]] == [
        ("fcco_lightning", False),
        ("descent", False),
        ("broken", True),
    ]
    printed = capsys.readouterr().out
    assert "| synthetic, equal opportunity: descent | 2 |" in printed
    assert "broken, seed 1, broke down: ZeroDivisionError()" in printed
    assert "in both respects in 0 of 1 cells" in printed


def test_what_peers_are_told_of_constraints_is_both_sides_of_every_row():
    import torch

    methods = script("peer_methods")
    rng = np.random.default_rng(0)
    scores, y, group = rng.normal(size=60), rng.integers(0, 2, 60), rng.integers(0, 2, 60)
    q, kappa = 1 / (1 + np.exp(-scores / methods.TEMPERATURE)), 0.05
    batch = {"y": torch.tensor(y), "group": torch.tensor(group)}

    def told(name, batch):
        constraint = methods.PROBLEMS[name].constraint()
        return methods.excesses(constraint, torch.tensor(scores[: len(batch["y"])]), batch).tolist()

    gaps = [q[(y == c) & (group == 1)].mean() - q[(y == c) & (group == 0)].mean() for c in (1, 0)]
    assert told("equalized odds", batch) == pytest.approx([s * gap - kappa for gap in gaps for s in (1, -1)])
    precision = [(q * y)[group == g].sum() / q[group == g].sum() for g in (1, 0)]
    gap = precision[0] - precision[1]
    assert told("predictive parity", batch) == pytest.approx([gap - kappa, -gap - kappa])
    unknown = {"y": torch.tensor([1, 1, 0]), "group": torch.tensor([1, 0, 1])}
    of_negatives = told("equalized odds", unknown)[2:]
    assert of_negatives == [0, 0]
    model = methods.of_network(lambda x: x, methods.PROBLEMS["equal opportunity"])
    columns = batch | {"x": torch.tensor(scores).unsqueeze(1)}
    figures = methods.PROBLEMS["equal opportunity"].figures(model(columns), columns)
    hard = [(scores > 0)[(y == 1) & (group == g)].mean() for g in (0, 1)]
    expected = {"objective": np.mean((scores > 0) == y), "violation": abs(gaps[0]) - kappa}
    assert figures == pytest.approx(expected | {"hard": abs(hard[0] - hard[1]) - kappa})


def test_a_peer_is_better_only_in_both_respects_and_beyond_one_standard_error():
    peers = script("peers")

    def runs(objectives, violations):
        pairs = enumerate(zip(objectives, violations, strict=True))
        return [{"seed": s, "test": {"objective": o, "violation": v}} for s, (o, v) in pairs]

    ours = runs([0.80, 0.82, 0.81], [0.03, 0.01, 0.02])
    cases = {
        "both": (runs([0.81, 0.83, 0.83], [0.02, 0.00, 0.00]), True),
        "objective within the error": (runs([0.79, 0.83, 0.815], [0.0, 0.0, 0.0]), False),
        "violation larger": (runs([0.9, 0.9, 0.9], [0.04, 0.02, 0.03]), False),
    }
    for name, (theirs, expected) in cases.items():
        assert peers.better(ours, theirs, "test.violation") == expected, name
        cells = {"cell": {"fcco_lightning": ours, "peer": theirs}}
        assert f"in {int(expected)} of 1 cells" in peers.verdict(cells, "test.violation", ahead=False)
    mean, error = peers.advantage(ours, cases["both"][0], "test.objective")
    assert (mean, error) == pytest.approx((0.04 / 3, np.std([0.01, 0.01, 0.02], ddof=1) / math.sqrt(3)))


@pytest.mark.parametrize("library", ["cooper", "humancompatible", "fairret", "fairlearn"])
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_a_peer_that_is_installed_treats_groups_more_equally_than_descent_alone(library):
    import torch

    pytest.importorskip(library)
    peers, methods = script("peers"), sys.modules["peer_methods"]
    problem, module = methods.PROBLEMS["demographic parity"], peers.data("synthetic", (), 0, 0.0)
    module.setup()
    columns, rates = module.tables["train"].columns, {"lr": 1e-2, "dual": 0.3}
    torch.manual_seed(0)
    alone, network = (peers.TabularMLP([16], in_features=module.num_features) for _ in range(2))
    step = methods.plain(alone, problem, 1e-2)
    for batch in methods.batches(module, 3):
        step(batch)
    used = {"lr": 1e-2} if library == "fairlearn" else rates
    models = [methods.of_network(alone, problem), methods.fitted(library, problem, network, module, 3, used)]
    with torch.no_grad():
        without, reached = (problem.figures(model(columns), columns)["hard"] for model in models)
    assert reached < without - 0.05


def test_rates_of_decisions_are_counted_as_by_hand():
    s, rng = script("decisions"), np.random.default_rng(0)
    y, group, decided = rng.integers(0, 2, 80), rng.integers(0, 2, 80), rng.random(80)
    columns = {"y": y, "group": group}

    def apart(where):
        return abs(np.mean(decided[where & (group == 1)]) - np.mean(decided[where & (group == 0)]))

    assert s.gap("demographic parity", decided, columns) == pytest.approx(apart(y >= 0))
    assert s.gap("equalized odds", decided, columns) == pytest.approx(max(apart(y == 1), apart(y == 0)))
    wrong = [1 - p if label else p for p, label in zip(decided, y, strict=True)]
    assert s.figures("equalized odds", decided, columns)["error"] == pytest.approx(np.mean(wrong))
    # two groups of n/2: the mean of |difference of means| is that of a normal distribution, nearly
    half = {"y": np.ones(4000, dtype=int), "group": np.arange(4000) % 2}
    expected = math.sqrt(2 / math.pi) * math.sqrt(0.25 * 2 / 2000)
    assert s.floor("equalized odds", np.arange(4000) % 4 // 2, half | {"y": np.arange(4000) % 8 // 4}, 0) > expected
    assert s.floor("demographic parity", np.arange(4000) % 4 // 2, half, 0) == pytest.approx(expected, rel=0.2)
    # a difference of kappa is kappa times the share of the other group away from the mean of all
    shares = {"y": np.ones(10, dtype=int), "group": np.arange(10) < 3}
    assert s.larger_share("demographic parity", shares) == pytest.approx(0.7)


def test_a_method_is_ahead_beyond_one_standard_error_of_pairs():
    s = script("decisions")

    def runs(errors, gaps):
        pairs = enumerate(zip(errors, gaps, strict=True))
        return [{"seed": i, "test": {"error": e, "gap": g}} for i, (e, g) in pairs]

    ours = runs([0.20, 0.22, 0.21], [0.03, 0.01, 0.02])
    better = runs([0.19, 0.21, 0.19], [0.03, 0.01, 0.02])
    assert s.ahead(better, ours, "test.error") == 1
    assert s.ahead(ours, better, "test.error") == -1
    assert s.ahead(better, ours, "test.gap") == 0
    assert s.dominates(better, ours)
    assert not s.dominates(ours, better)
    traded = runs([0.19, 0.21, 0.19], [0.06, 0.04, 0.05])
    assert not s.dominates(traded, ours)


@pytest.mark.slow
def test_one_command_is_judged_by_later_rows(command, runs, tmp_path, monkeypatch, capsys):
    """Both of this project's ways on a small table of one's own, which the real tables' folder lacks."""
    s, classifier = script("fair_decisions"), sys.modules["fcco_lightning"].ConstrainedClassifier
    monkeypatch.setattr(s, "ROWS", 300)
    monkeypatch.setattr(s, "LATER", 200)
    monkeypatch.setattr(s, "ConstrainedClassifier", lambda **given: classifier(max_epochs=1, **given))
    short = {"fit": ["--epochs", "1", "--report.pictures", "false"], "predict": []}
    given, fcco = [], s.fcco
    monkeypatch.setattr(s, "fcco", lambda *args: (given.append(args), fcco(*args, *short[args[0]])))
    methods = ["--methods", s.COMMAND, s.CLASSIFIER]
    command(s, "--cases", "made, 40%, in", "german", "--seeds", 1, *methods, "--data", tmp_path, "--out", tmp_path)
    assert [args[0] for args in given] == ["fit", "predict", "predict"]
    results = json.loads((tmp_path / "fair_decisions.json").read_text())
    assert [(r["method"], "failed" in r) for r in results] == [(s.COMMAND, False), (s.CLASSIFIER, False)]
    printed = capsys.readouterr().out
    assert f"german is left out: --data {tmp_path} does not hold it" in printed
    assert "| made, 40%, in | fcco fit |" in printed


def test_a_case_passes_by_its_gap_its_accuracy_and_its_decisions():
    s = script("fair_decisions")
    y = np.array([1] * 10 + [0] * 10)
    group, decided = np.array(["a", "b"] * 10), np.array([1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1] + [0] * 9, dtype=float)
    found = s.figures(decided, y, group)
    assert found == {"tpr_gap": pytest.approx(0.4), "fpr_gap": pytest.approx(0.2), "balanced": 0.85, "vacuous": 0}
    assert s.figures(np.ones(20), y, group)["vacuous"] == s.figures(np.zeros(20), y, group)["vacuous"] == 1

    def run(gap, accuracy, vacuous=0.0):
        return {"later": {"tpr_gap": gap, "balanced": accuracy, "vacuous": vacuous}}

    rival = [run(0.01, 0.7), run(0.05, 0.7)]
    for ours, expected in {
        (0.05, 0.7): True,
        (0.07, 0.7): False,
        (0.05, 0.69): False,
        (0.0, 0.7, 1.0): False,
    }.items():
        assert s.passes([run(*ours)] * 2, rival) is expected


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_large_table_is_measured_stage_by_stage(suffix, tmp_path, capsys):
    module = script("large_table")
    path = tmp_path / f"t{suffix}"
    module.make(2000, path)
    for way in module.WAYS:
        module.measure(way, str(path))
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert {row[0].strip() for row in rows} == set(module.WAYS)
    assert all(float(row[3]) > 0 for row in rows)
