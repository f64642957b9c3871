"""What the README shows runs as shown."""

import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from fcco_lightning.cli import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_python_example(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    gap = float(capsys.readouterr().out.strip().splitlines()[-1])
    assert gap < 0.2  # "about 0.1; a model without constraints has 0.6"


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_constraints_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = [b for b in blocks("yaml") if "MeanAtMost" in b]
    Path("own.yaml").write_text(text)
    names = [c["init_args"]["name"] for c in yaml.safe_load(text)["model"]["constraints"]]
    config = ROOT / "configs/roc_fairness/synthetic_sonex.yaml"
    arguments = ["--trainer.max_epochs=1", "--data.num_train=400", "--data.num_test=400"]
    assert run(["fit", "--config", str(config), "--config", "own.yaml", "--report.folder=out", *arguments]) == 0
    report = yaml.safe_load(Path("out/report.json").read_text())
    assert list(report["train"]["constraints"]) == names


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_group_dro_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = [b for b in blocks("yaml") if "CVaRGroupDRO" in b]
    Path("own.yaml").write_text(text)
    rng = np.random.default_rng(0)
    columns = {"sex": ["f", "m"], "origin": ["Here", "There", "Far"], "hired": ["yes", "no"]}
    table = pd.DataFrame({name: rng.choice(values, 900) for name, values in columns.items()})
    table.assign(age=rng.integers(20, 60, 900), skill=rng.normal(size=900)).to_csv("people.csv", index=False)
    assert run(["fit", "--config", "own.yaml", "--trainer.max_epochs=1", "--report.folder=out"]) == 0
    report = yaml.safe_load(Path("out/report.json").read_text())
    assert len(report["test"]["groups"]) == 12
    assert 0 <= report["test"]["worst_group_accuracy"] <= report["test"]["tail_accuracy"] <= 1


def photo(path, i):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), (20 * i % 256, 80, 120)).save(path)


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_clip_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (text,) = [b for b in blocks("yaml") if "GlobalContrastive" in b]
    Path("own.yaml").write_text(text)
    rows = [(f"{label}{i}.png", label, split) for label in ("foggy", "clear", "rainy", "pc") for i in range(24)
            for split in [("train", "train", "test")[i % 3]]]  # fmt: skip
    for i, (name, *_) in enumerate(rows):
        photo(Path("photos") / name, i)
    pd.DataFrame(rows, columns=["file_name", "label", "split"]).to_csv("photos/metadata.csv", index=False)
    contents = [(Path("photos") / name).read_bytes() for name, *_ in rows[:6]]
    captioned = {"image": [{"bytes": c, "path": None} for c in contents], "caption": ["fog on a street"] * 6}
    pd.DataFrame(captioned).to_parquet("captions.parquet")
    for shard in range(10):
        with tarfile.open(f"laion-{shard:04}.tar", "w") as tar:
            for name, content in ((f"{shard}.png", contents[0]), (f"{shard}.txt", b"a foggy morning")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    small = [
        "--model.network.name=tiny",
        "--model.network.pretrained=null",
        "--data.model=tiny",
        "--data.pretrained=null",
    ]
    small += [
        "--data.batches.batch_size=8",
        "--data.task_batches.samples_per_group=2",
        "--trainer.max_epochs=1",
        "--trainer.accelerator=cpu",
    ]
    assert run(["fit", "--config", "own.yaml", "--report.folder=out", *small]) == 0
    report = yaml.safe_load(Path("out/report.json").read_text())
    assert [t["name"] for t in report["test"]["tasks"][:1]] == ["target"]
    assert {t["name"] for t in report["test"]["tasks"]} == {"target", "clear", "rainy"}
    assert Path("out/continual.png").exists()


def test_every_named_file_exists():
    named = re.findall(r"(?:configs|tests|examples)/[\w/]+\.(?:yaml|py)", README)
    assert named
    assert [n for n in named if not (ROOT / n).exists()] == []


def test_every_algorithm_is_in_the_table():
    from fcco_lightning import algorithms

    for name in set(algorithms.__all__) - {"Algorithm", "Estimation"}:  # from which the others derive
        assert f"`{name}`" in README, name
