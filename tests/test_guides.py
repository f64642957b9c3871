"""The examples of the README and the guides run as printed, and everything that they name exists."""

import contextlib
import functools
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fcco_lightning.cli import commands, lightning_cli, run
from fcco_lightning.cli.catalogue import members
from fcco_lightning.cli.named_configs import summary
from fcco_lightning.cli.shorthands import written_out
from tests.images import picture, shard
from tests.texts import TINY, make_mails

ROOT = Path(__file__).parents[1]
NO_PICTURES = ["--report.pictures=false"]
EPOCHS = "max_epochs=10"  # of the README's example
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", *ROOT.glob("examples/**/*.md"), ROOT / "configs/README.md")
}


def blocks(language):
    return [block for page in PAGES.values() for block in re.findall(rf"```{language}\n(.*?)```", page, flags=re.S)]


@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_python_example(whole, capsys):
    (code,) = [b for b in blocks("python") if "trainer.fit(module, data)" in b]
    if not whole:
        assert EPOCHS in code
        code = code.replace(EPOCHS, "max_epochs=1")
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    gap = float(capsys.readouterr().out.strip().splitlines()[-1])
    about = float(re.search(r"# about ([\d.]+); a model without", code)[1])
    assert abs(gap - about) < (0.025 if whole else 1)


@pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:.*isinstance.treespec")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * page.endswith("scikit_learn.md"))
        for page in PAGES
        if page != "README.md" and "```python" in PAGES[page]
    ],
)
def test_python_blocks_of_guides_run(page):
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGES[page], flags=re.S):
        exec(compile(code, page, "exec"), names)  # noqa: S102
    assert "vacuous there" not in str(names.get("report", ""))  # an example that would say nothing of groups


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_constraints_example():
    (text,) = [b for b in blocks("yaml") if "MeanAtMost" in b]
    Path("own.yaml").write_text(text)
    names = [c["init_args"]["name"] for c in yaml.safe_load(text)["model"]["constraints"]]
    config = ROOT / "configs/roc_fairness/synthetic_sonex.yaml"
    arguments = ["--trainer.max_epochs=1", "--data.num_train=400", "--data.num_test=400"]
    assert (
        run(["fit", "--config", str(config), "--config", "own.yaml", *NO_PICTURES, "--report.folder=out", *arguments])
        == 0
    )
    report = yaml.safe_load(Path("out/report.json").read_text())
    assert list(report["train"]["constraints"]) == names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_group_dro_example():
    (text,) = [b for b in blocks("yaml") if "CVaRGroupDRO" in b]
    Path("own.yaml").write_text(text)
    rng = np.random.default_rng(0)
    columns = {"sex": ["f", "m"], "origin": ["Here", "There", "Far"], "hired": ["yes", "no"]}
    table = pd.DataFrame({name: rng.choice(values, 900) for name, values in columns.items()})
    table.assign(age=rng.integers(20, 60, 900), skill=rng.normal(size=900)).to_csv("people.csv", index=False)
    assert run(["fit", "--config", "own.yaml", "--trainer.max_epochs=1", *NO_PICTURES, "--report.folder=out"]) == 0
    report = yaml.safe_load(Path("out/report.json").read_text())
    assert len(report["test"]["groups"]) == 12
    assert 0 <= report["test"]["worst_group_accuracy"] <= report["test"]["tail_accuracy"] <= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_texts_example():
    (text,) = [b for b in blocks("yaml") if "GroupedTextDataModule" in b]
    tokens, network = "{vocabulary: 120}", f"config: {TINY}"
    text = text.replace("{tokenizer: distilbert-base-uncased}", tokens).replace(
        "name: distilbert-base-uncased", network
    )
    Path("own.yaml").write_text(text)
    make_mails(120).to_parquet("mails.parquet")
    batches = "{class_path: GroupSampling, init_args: {groups_per_batch: 4, samples_per_group: 2}}"
    arguments = ["--model.objective=WorstGroupDRO", f"--data.batches={batches}", "--trainer.max_epochs=1"]
    assert run(["fit", "--config", "own.yaml", *arguments, *NO_PICTURES, "--report.folder=out"]) == 0
    assert len(yaml.safe_load(Path("out/report.json").read_text())["test"]["groups"]) == 4


def test_robust_linear_model_example(capsys):
    (code,) = [b for b in blocks("python") if "DRORegressor" in b]
    exec(compile(code, "dro.md", "exec"), {})  # noqa: S102
    gap, largest = (float(word) for word in capsys.readouterr().out.split()[:2])
    assert 0 <= gap < 0.05  # 1e-6 of the objective at w = 0
    assert 1 < largest <= 10 + 1e-9


class Parsed(Exception):  # noqa: N818 - how the parser gets out
    """Carries the command line's parser."""


@pytest.fixture(scope="module")
def parser_of():
    """The parser of ``fcco fit`` or another command, made once; nothing that it parses is made or run."""

    @functools.cache
    def made(command):
        def stop(self, parser, args):
            raise Parsed(parser)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lightning_cli.FCCOCLI, "parse_arguments", stop)
            with pytest.raises(Parsed) as stopped:
                run([command, "--trainer.devices=1"])
        return stopped.value.args[0]

    return made


def commands_of(page):
    """The commands of a page, one a line, without their comments."""
    shown = re.findall(r"```bash\n(.*?)```", PAGES[page], flags=re.S)
    lines = "\n".join(shown).replace("\\\n", " ").splitlines()
    parts = [part.strip() for line in lines for part in re.split(r"&&|;", line.partition("  #")[0])]
    return [part for part in parts if part]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "```bash" in PAGES[page] and "benchmarks" not in page])
def test_commands_are_understood(page, parser_of, monkeypatch):
    own = re.findall(r"```yaml\n(.*?)```", PAGES[page], flags=re.S)
    for name in ("my_clip.yaml", "my_changes.yaml"):
        Path(name).write_text(own[0] if own else "{}")
    Path("t.csv").write_text("y,sex,region\n1,m,a\n0,f,b\n1,f,a\n")
    Path("loans.csv").write_text("paid,sex\n1,m\n0,f\n1,f\n")
    Path("german.csv").write_text("age,credit-label\n30,1\n40,0\n")
    for command in commands_of(page):
        program, _, arguments = command.replace("-m fcco_lightning", "fcco").rpartition("fcco ")
        given = shlex.split(re.sub(r"\bCONFIG\b", "roc_fairness/adult_sonex", arguments))
        if not program:
            assert re.match(r"uv run (python examples/|pytest)|python3 -m pip install|export |uv pip", command), command
        elif given[0] == "fit" or (given[0] == "test" and commands._takes_a_split(given)):
            asks = given[-1] == "--print_config" or ".help" in given[-2]
            with pytest.raises(SystemExit, match="0") if asks else contextlib.nullcontext():
                parser_of(given[0]).parse_args(written_out(given))
        else:
            with monkeypatch.context() as patch:
                patch.setattr(commands, "status_of", lambda work, **_: 0)  # parsed, not carried out
                assert run(given) == 0, command


MADE_IN_MEMORY = {
    command.removeprefix("uv run fcco "): None
    for page in PAGES
    if "guides" in page and "```bash" in PAGES[page]
    for command in commands_of(page)
    if "fcco fit --config configs/" in command and "/synthetic_" in command
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", MADE_IN_MEMORY)
def test_commands_on_data_made_in_memory_run(command, monkeypatch):
    """On fewer epochs."""
    given = shlex.split(command.replace("configs/", f"{ROOT}/configs/"))
    assert run([*given, "--trainer.max_epochs=2", "--report.folder=out"]) == 0
    assert Path("out/report.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "```yaml" in PAGES[page]])
def test_configurations_are_understood(page, parser_of):
    for text in re.findall(r"```yaml\n(.*?)```", PAGES[page], flags=re.S):
        Path("own.yaml").write_text(text)
        parser_of("fit").parse_args(
            written_out(["fit", "--config", "roc_fairness/adult_sonex", "--config", "own.yaml"])
        )


def test_all_blocks_are_of_a_kind_that_is_tested():
    kinds = {kind for page in PAGES.values() for kind in re.findall(r"^```(\w*)\n.*?^```$", page, flags=re.S | re.M)}
    assert kinds <= {"bash", "python", "text", "yaml"}  # what shows output or code that is not run is `text`


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_clip_example(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (text,) = [b for b in blocks("yaml") if "GlobalContrastive" in b]
    Path("own.yaml").write_text(text)
    rows = [(f"{label}{i}.png", label, split) for label in ("foggy", "clear", "rainy", "pc") for i in range(24)
            for split in [("train", "train", "test")[i % 3]]]  # fmt: skip
    for i, (name, *_) in enumerate(rows):
        picture(Path("photos") / name, 20 * i, side=20)
    pd.DataFrame(rows, columns=["file_name", "label", "split"]).to_csv("photos/metadata.csv", index=False)
    contents = [(Path("photos") / name).read_bytes() for name, *_ in rows[:6]]
    captioned = {"image": [{"bytes": c, "path": None} for c in contents], "caption": ["fog on a street"] * 6}
    pd.DataFrame(captioned).to_parquet("captions.parquet")
    for number in range(10):
        shard(f"laion-{number:04}.tar", [(f"{number}", {"png": contents[0], "txt": b"a foggy morning"})])
    small = [
        "--model.network.name=tiny",
        "--model.network.pretrained=null",
        "--data.model.name=tiny",
        "--data.model.pretrained=null",
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


@pytest.mark.parametrize("page", PAGES)
def test_every_named_file_and_linked_page_exists(page):
    text = re.sub(r"```.*?```", "", PAGES[page], flags=re.S)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
    named = re.findall(r"(?:configs|tests|examples|fcco_lightning)/[\w/]+\.(?:yaml|py|md)", PAGES[page])
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_guide_is_linked_from_the_readme():
    for page in PAGES:
        index = "examples/benchmarks/README.md" if "/results/" in page else "README.md"
        link = page.removeprefix("examples/benchmarks/") if "/results/" in page else page
        assert page == "README.md" or f"({link})" in PAGES[index], page


@pytest.mark.parametrize("page", [page for page in PAGES if "guides/" in page])
def test_a_guide_is_short_and_starts_with_something_that_runs(page):
    assert len(re.sub(r"```.*?```", "", PAGES[page], flags=re.S).split()) <= 900
    assert re.search(r"```(bash|python|yaml)", "\n".join(PAGES[page].splitlines()[:14]))


def test_every_config_is_listed():
    configs = {f"({path.relative_to(ROOT / 'configs')})" for path in ROOT.glob("configs/*/*.yaml")}
    assert {link for link in configs if link not in PAGES["configs/README.md"]} == set()
    first = [summary(path) for path in ROOT.glob("configs/*/*.yaml")]  # shown by `fcco list configs`
    assert [line for line in first if not re.search(r"[.)]$", line)] == []
    told = re.findall(r"^\| \[\S+\]\(\S+\) \| (.*) \|$", PAGES["configs/README.md"], flags=re.M)
    assert len(set(told)) == len(configs)  # one that two have says of neither what it does
    assert all(words.endswith(".") and not words.endswith("eq.") for words in told)


def test_every_exported_algorithm_is_in_the_table():
    from fcco_lightning import algorithms

    listed = members("algorithms").keys() & set(algorithms.__all__)
    assert len(listed) > 15
    for name in listed:
        assert f"`{name}`" in PAGES["examples/guides/algorithms.md"], name


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 160
