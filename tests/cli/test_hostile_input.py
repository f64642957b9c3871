"""Hostile files and names: every command either works or ends within seconds with a clear message."""

import json
import logging
import re
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning.cli import run
from fcco_lightning.cli.yaml_files import MOST_LEVELS, MOST_NODES, load_yaml
from fcco_lightning.errors import ConfigError, printable, printable_lines
from fcco_lightning.evaluation import pictures
from fcco_lightning.reports.page import report_page
from fcco_lightning.reports.summary_table import print_tables, render_records
from tests.combinations import every_nth

SECONDS = 10
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
TEXTS = {
    "aliases that multiply": (ALIASES, r"line \d+: it holds more than 20,000 values"),
    "aliases of mappings": (
        ALIASES.replace("[x,", "{b: 1, x: [x,").replace("x]\n", "x]}\n"),
        r"more than 20,000 values",
    ),
    "an alias of itself": ("a: &a [*a]\n", "line 1: an alias refers to a value that contains it"),
    "lists in lists": ("a: " + "[" * 5000 + "]" * 5000, r"line 1.*(it is nested more than 100 levels|nesting depth)"),
    "mappings in mappings": ("".join(f"{' ' * i}a:\n" for i in range(300)), "line 100: it is nested more"),
    "many keys": ("".join(f"k{i}: {i}\n" for i in range(30_000)), r"more than 20,000 values"),
    "millions of values": (f"a: [{'1,' * 3_000_000}]", r"6,000,005 characters, and a configuration at most 1,000,000"),
    "a key twice": ("model:\n  lr: 1\n  b: 2\n  lr: 3\n", r"line 4: the key 'lr' occurs in line 2 already"),
    "a key twice, quoted": ('{a: 1, "a": 2}', r"line 1: the key 'a' occurs in line 1 already"),
    "a control character": ("a: \x1b]0;title\x07\n", r"cannot be read as YAML"),
    "two documents": ("a: 1\n---\nb: 2\n", "line 2, cannot be read as YAML: expected a single document"),
    "a tag of code": ("a: !!python/object:os.x {}\n", "line 1, cannot be read as YAML: could not determine"),
    "a date that is none": ("a: 2026-02-30\n", "cannot be read as YAML: day is out of range for month"),
    "a key that is a list": ("{[1, 2]: 3}\n", "line 1, cannot be read as YAML: .*unhashable key"),
    "no truth value": ("a: !!bool x\n", "cannot be read as YAML: 'x'"),
    "no YAML": ("a: [1\nb: 2\n", r"line 2, cannot be read as YAML"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_yaml_that_is_none_or_multiplies_is_refused_at_once(name):
    text, message = TEXTS[name]
    began = time.process_time()
    with pytest.raises(ConfigError, match=message):
        load_yaml(text, "c.yaml")
    assert time.process_time() - began < 1


def test_yaml_within_the_limits_means_what_it_means():
    text = "a: &a {b: [1, 2], c: x}\nd: [*a, *a]\ne: {<<: *a, c: y}\nf: {c: 1}\n"
    inner = {"b": [1, 2], "c": "x"}
    assert load_yaml(text, "c.yaml") == {"a": inner, "d": [inner, inner], "e": {**inner, "c": "y"}, "f": {"c": 1}}
    deep = MOST_LEVELS - 3
    assert load_yaml("a: " + "[" * deep + "]" * deep, "c.yaml")["a"] is not None
    assert len(load_yaml("".join(f"k{i}: 1\n" for i in range(MOST_NODES // 2 - 1)), "c.yaml")) == MOST_NODES // 2 - 1


FILES = {
    **{name: text for name, (text, _) in TEXTS.items()},
    "Latin 1": "name: é\n".encode("latin-1"),
    "UTF-16": "name: a\n".encode("utf-16"),
    "NUL": b"name: a\0b\n",
    "bytes": bytes(range(1, 256)),
}
COMMANDS = {
    "fit": lambda path: ["fit", "--config", path],
    "fit, option": lambda path: ["fit", "--model", path],
    "test": lambda path: ["test", "--config", path],
    "tune": lambda path: ["tune", "--search", path],
    "predict": lambda path: ["predict", path, path],
    "inspect": lambda path: ["inspect", path],
    "compare": lambda path: ["compare", str(Path(path).parent)],
}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends_with_words(command, every, tmp_path, capfd, monkeypatch):
    """Of every file; or of every third, beginning elsewhere for every command."""
    for name, content in islice(FILES.items(), *((0, None) if every else ([*COMMANDS].index(command) % 3, None, 3))):
        path = tmp_path / ("report.json" if command == "compare" else "c.yaml")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        given = COMMANDS[command](str(path))
        monkeypatch.setattr(sys, "argv", ["fcco", *given])
        began = time.process_time()
        try:
            status = run(given)
        except SystemExit as end:
            status = end.code
        said = capfd.readouterr().err
        assert status in (1, 2), (name, said)
        assert "fcco: " in said, (name, said)
        assert "Traceback" not in said, (name, said)
        assert len(said) < 9000, name
        assert not set(said) & {"\x1b", "\0", "\x07"}, (name, said)
        assert time.process_time() - began < SECONDS, name


CSI = "\x1b[2J\x1b]0;owned\x07"
NAMES = {
    "formula": r"$\frac{x$ \undefined",
    "dollars": "$a$ $b",
    "control": f"{CSI}group",
    "markup": "[/red] [bold]x[/] {unclosed [link=file:///]",
    "html": "<script>alert(1)</script>",
    "underscore": "_hidden",
    "right to left": "a\u202eb",
    "long": "ab" * 50_000,
    "lines": "a\nfcco: all is well\r",
    "half a character": "a\ud800",
    "empty": "",
    "percent": "%s {0} %(x)s",
}


def test_names_are_printable():
    for name in NAMES.values():
        shown = printable(name)
        assert shown.isprintable()
        assert len(shown) <= 210
        shown.encode()
    assert printable("plain, é, 漢字, x=1") == "plain, é, 漢字, x=1"
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"


@pytest.mark.slow
def test_names_of_groups_in_pictures_tables_and_pages(tmp_path, capsys):
    generator, names = torch.Generator().manual_seed(0), list(NAMES.values())
    scores, y = torch.randn(40, generator=generator), torch.arange(40) % 2
    split = scores, y, torch.arange(40) // 2 % 2
    groups = [{"name": name, "size": 9, "accuracy": 0.5, "weight": 0.5} for name in names]
    values = {f"{prefix}/{name}": 0.1 for name in names for prefix in ("h", "nu", "change")}
    history = [{"epoch": epoch, "split": "train", **values} for epoch in (0, 1)]
    many = [{**history[0], **{f"h/{name}{name}": 0.1 for name in names}}]
    rows = [{"run": name, NAMES["formula"]: 0.5, "largest h": 0.1} for name in names]
    began = time.process_time()
    drawn = [
        pictures.plot_groups(groups, tmp_path / "g.png", average=0.5),
        *(pictures.plot_roc_by_group({"test": split}, tmp_path / f"r{i}.png", names=names[i : i + 2]) for i in (0, 5)),
        pictures.plot_ranking(dict.fromkeys(names[:3], (scores, y)), tmp_path / "k.png"),
        pictures.plot_constraints(history, tmp_path / "c.png"),
        pictures.plot_constraints(many, tmp_path / "heat.png"),
        pictures.plot_multipliers(history, tmp_path / "m.png"),
        pictures.plot_continual(history, tmp_path / "n.png"),
        pictures.plot_comparison(rows, NAMES["formula"], "largest h", tmp_path / "p.png"),
    ]
    assert all(path.is_file() for path in drawn)
    tables = [render_records(f"Table {name}", [{"constraint": name, name: 0.5}]) for name in names]
    print_tables(tables, "verdict " + "".join(names))
    page = report_page("".join(names), "verdict " + "".join(names), tables, drawn, dict.fromkeys(names, "x"))
    assert time.process_time() - began < 2 * SECONDS
    text = re.sub(r"base64,[^\"]*", "", page)
    for shown in (capsys.readouterr().out, text):
        assert not set(shown) & {"\x1b", "\x07", "\u202e", "\r"}
        assert len(shown) < 100_000
    assert "<script>" not in page


def hostile_table(path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({r"$\frac{x$": rng.normal(size=80), CSI: rng.normal(size=80)})
    frame["sex"] = np.where(np.arange(80) % 3 > 0, f"{CSI}[/red]", "$x$" + "long" * 25_000)
    frame.assign(y=np.arange(80) % 2).to_csv(path, index=False)


@pytest.mark.slow
def test_a_run_on_a_table_of_hostile_names(tmp_path):
    hostile_table(tmp_path / "t.csv")
    words = ["--data.train", "t.csv", "--data.columns.label", "y", "--data.groups.by", "[sex]"]
    words += ["--model.constraints", "DemographicParity", "--trainer.max_epochs", "1"]
    command = [sys.executable, "-m", "fcco_lightning", "fit", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not set(done.stdout + done.stderr) & {"\x1b", "\x07"}
    assert len(done.stdout + done.stderr) < 20_000
    assert json.loads(next(tmp_path.rglob("report.json")).read_text())["test"]


def test_an_unreadable_image_in_a_worker_process_is_one_line(tmp_path, capfd):
    from torch.utils.data import DataLoader

    from fcco_lightning.cli.failures import status_of
    from fcco_lightning.data.images import ImageTable, image_transform

    table = ImageTable([b"no image"] * 4, {}, image_transform(8))
    logging.getLogger().handlers.clear()
    assert status_of(lambda: list(DataLoader(table, batch_size=2, num_workers=1))) == 1
    said = capfd.readouterr().err.strip()
    assert said.startswith("fcco: DataError: Row 0: the image <bytes> cannot be read")
    assert "Traceback" not in said


@pytest.mark.parametrize("kind", every_nth(3, ["letters", "signs", "words"]))
def test_a_long_text_is_tokenised_quickly(kind):
    pytest.importorskip("transformers")
    from fcco_lightning.data.texts import TextTokens, tokens_of

    size = 2_000_000
    long = {"letters": "abcde" * (size // 5), "signs": "-+" * (size // 20), "words": "ab cd " * (size // 20)}[kind]
    texts = [long, *(f"the cat sat on mat {i}" for i in range(50))]
    tokens = TextTokens(vocabulary=120, max_length=16)
    began = time.process_time()
    tokenizer = tokens.made(texts)
    found = tokens_of(tokenizer, texts, 16)
    assert time.process_time() - began < SECONDS
    assert found.lengths.max() <= 16
    assert "cat" in tokenizer.get_vocab() or "the" in tokenizer.get_vocab()
