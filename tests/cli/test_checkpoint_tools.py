"""``fcco inspect`` and ``fcco convert``: their output is what was saved, and damaged files are refused."""

import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from fcco_lightning import CheckpointError, ConfigError, Execution, FCCOModule
from fcco_lightning.__main__ import main
from fcco_lightning.checks import checkpoint_file
from fcco_lightning.cli.checkpoint_tools import convert, describe, read_checkpoint
from fcco_lightning.state import DualState
from fcco_lightning.state.checkpoint_files import CHECKPOINT_VERSION, read_file
from fcco_lightning.state.processes import Processes
from fcco_lightning.training.resuming.finding import find_own
from fcco_lightning.training.resuming.row_checkpoints import save
from tests import jobs
from tests.launch import launch, values

OBJECTIVE, PENALTY = "problem.terms.0.state", "problem.terms.1.state"
SYNTHETIC = Path(__file__).parents[2] / "configs/roc_fairness/synthetic_alexr2.yaml"
OUTS = ["out.safetensors", "out.npz"]


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Four updates on 203 rows, saved by one process into the checkpoint, and by three into part files."""
    made = {}
    for name, size, layout in (("one", 1, "replicated"), ("three", 3, "sharded")):
        path = tmp_path_factory.mktemp(name) / "at.ckpt"
        job = {"objective": "rank", "rows": 203, "epochs": 1, "seed": size, "trainer": {"limit_train_batches": 4}}
        job |= {"save": (0, 3, str(path)), "module": {"execution": Execution(state_layout=layout)}}
        outcomes = values(launch(jobs.fit, size, job))
        made[name] = path, outcomes[0]["weights"], jobs.whole_rows(outcomes)
    return made


@pytest.fixture(params=["one", "three"])
def fitted(request, fits):
    """A checkpoint, weights and rows of the same moment."""
    return fits[request.param]


@pytest.fixture
def copied(fits, tmp_path):
    """The checkpoint with part files, to be damaged."""
    shutil.copytree(fits["three"][0].parent, tmp_path / "copy")
    return tmp_path / "copy" / "at.ckpt"


def handmade(path, states, **weights):
    """A checkpoint of one process, as a Trainer would write it."""
    own = {"version": CHECKPOINT_VERSION, "world_size": 1, "num_samples": 5, "skipped_batches": 3}
    rows = {f"{name}.rows": state.rows for name, state in states.items()}
    checkpoint = {"epoch": 1, "global_step": 7, "pytorch-lightning_version": "2.6.6"}
    checkpoint["state_dict"] = {**weights, **rows}
    checkpoint["fcco"] = own | {"engine": {"algorithm": {"name": "SOX"}}, "optimizer": {"class": "Adam", "typed": []}}
    save(states, checkpoint, path, lambda: torch.save(checkpoint, path), Processes())
    return path


def command(capsys, *arguments):
    """Exit status, output and error text of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return stop.value.code, out, err


def loaded(out):
    """All tensors of a file, by name."""
    if out.suffix == ".safetensors":
        return load_file(out)
    return {name: torch.from_numpy(array) for name, array in np.load(out).items()}


# ------------------------------------------------------------------------------------------------------------- inspect


def test_what_inspect_says(fits, fitted):
    path, weights, tables = fitted
    said = describe(path)
    size = 3 if fitted is fits["three"] else 1
    assert said["checkpoint"] == str(path)
    expected = {"algorithm": "SONEX", "version": CHECKPOINT_VERSION, "world_size": size, "epoch": 0, "global_step": 4}
    expected |= {"num_samples": 203, "optimizer": "HeavyBall", "skipped_batches": 0}
    assert {k: said[k] for k in expected} == expected
    numbers = sum(w.numel() for w in weights.values())
    assert said["weights"] == {"tensors": len(weights), "values": numbers, "bytes": 4 * numbers}
    assert [s["name"] for s in said["states"]] == [OBJECTIVE, PENALTY]
    for state in said["states"]:
        table = tables[state["name"]].double().numpy()
        seen = ~np.isnan(table[:, 0])
        assert (state["rows"], state["width"], state["dtype"]) == (*table.shape, "float32")
        in_files = size == 3 and state["name"] == OBJECTIVE
        assert (state["files"], state["bytes"]) == (3 if in_files else 0, 4 * table.size)
        assert state["verified"] is True
        assert state["seen"] == seen.mean()
        assert state["min"] == table[seen].min()
        assert state["max"] == table[seen].max()
        assert state["mean"] == pytest.approx(table[seen].mean(), rel=1e-12)
        assert state["norm"] == pytest.approx(np.linalg.norm(table[seen]), rel=1e-12)
    assert 0.1 < said["states"][0]["seen"] < 0.4  # four batches of 24, of which the positives have a row


def test_table_and_json_say_the_same(capsys, fits):
    path = fits["three"][0]
    code, text, _ = command(capsys, "inspect", path, "--json")
    said = json.loads(text)
    assert (code, said) == (0, describe(path))
    code, text, _ = command(capsys, "inspect", path)
    assert code == 0
    for part in ("SONEX", "HeavyBall", "3 processes", "3 part files, 812 B", "203 x 1 float32", OBJECTIVE, PENALTY):
        assert part in text
    for state in said["states"]:
        for name in ("min", "mean", "max", "norm"):
            assert f"{state[name]:.4g}" in text
        assert f"{state['seen']:.1%}" in text


def test_a_large_table_and_one_never_written(capsys, tmp_path):
    big, empty = DualState(2_500_000, 1, layout="sharded"), DualState(4, 3, dtype=torch.float64)
    big.rows[1:] = torch.arange(1, 2_500_000).unsqueeze(1) / 1e6
    path = handmade(tmp_path / "a.ckpt", {"big": big, "empty": empty})
    assert torch.equal(read_checkpoint(path).rows["big"].view(torch.int32), big.rows.view(torch.int32))
    first, second = describe(path)["states"]
    assert first["seen"] == 1 - 1 / 2_500_000
    assert first["max"] == big.rows[-1].item()
    assert first["mean"] == pytest.approx(big.rows[1:].double().mean().item())
    assert second == {
        "name": "empty", "rows": 4, "width": 3, "dtype": "float64", "files": 0, "bytes": 96, "seen": 0.0,
        "min": None, "mean": None, "max": None, "norm": None, "verified": True,
    }  # fmt: skip
    _, text, _ = command(capsys, "inspect", path)
    assert "99.9%" in text  # not 100
    assert "0.0%" in text
    rows = loaded(convert(path, "out.npz"))
    assert torch.equal(rows["big.rows"].view(torch.int32), big.rows.view(torch.int32))
    assert rows["big.seen"].tolist() == [False] + [True] * 2_499_999


def test_an_algorithm_without_rows(capsys, tmp_path):
    path = handmade(tmp_path / "a.ckpt", {}, **{"network.w": torch.zeros(2)})
    assert describe(path)["states"] == []
    code, text, _ = command(capsys, "inspect", path)
    assert (code, "no dual state" in text) == (0, True)


# ------------------------------------------------------------------------------------------------------------- convert


@pytest.mark.parametrize("out", OUTS)
def test_convert_writes_what_was_saved(capsys, fitted, out):
    path, weights, tables = fitted
    assert command(capsys, "convert", path, out)[:1] == (0,)
    got = loaded(Path(out))
    seen = {f"{name}.seen": ~table[:, 0].isnan() for name, table in tables.items()}
    expected = {f"network.{k}": w for k, w in weights.items()} | seen
    expected |= {f"{name}.rows": table for name, table in tables.items()}
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype
        torch.testing.assert_close(got[name], tensor, rtol=0, atol=0, equal_nan=True)
    assert [p.name for p in Path.cwd().iterdir()] == [out]  # no temporary file


@pytest.mark.parametrize("out", OUTS)
def test_tensors_of_other_types_and_shapes(tmp_path, out):
    half = torch.tensor([[1.0, -2.5], [0.125, 3.0]])
    weights = {
        "network.half": half.bfloat16(), "network.count": torch.tensor(7), "network.nothing": torch.zeros(0, 3),
        "network.mask": torch.tensor([True, False, True]), "network.columns": half.T,
        "network.tied": (shared := torch.ones(3)), "network.to": shared,
    }  # fmt: skip
    path = handmade(tmp_path / "a.ckpt", {"state": DualState(3, dtype=torch.float64)}, **weights)
    convert(path, out)
    got = loaded(Path(out))
    for name, tensor in weights.items():
        same = tensor if "half" not in name or out.endswith("safetensors") else tensor.float()  # numpy has none
        assert got[name].dtype == same.dtype
        assert torch.equal(got[name], same)


def test_safetensors_are_aligned_and_typed(fits):
    out = convert(fits["one"][0], "a.safetensors")
    with safe_open(out, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    length = int.from_bytes(out.read_bytes()[:8], "little")
    header = json.loads(out.read_bytes()[8 : 8 + length])
    assert length % 8 == 0
    for name, tensor in header.items():
        if name != "__metadata__":
            assert tensor["data_offsets"][0] % {"F32": 4, "BOOL": 1}[tensor["dtype"]] == 0


def test_a_type_that_safetensors_do_not_know(tmp_path):
    path = handmade(tmp_path / "a.ckpt", {}, **{"network.w": torch.ones(2, dtype=torch.complex128)})
    with pytest.raises(CheckpointError, match=r"network.w.*npz"):
        convert(path, "a.safetensors")
    assert torch.equal(loaded(convert(path, "a.npz"))["network.w"], torch.ones(2, dtype=torch.complex128))


@pytest.mark.parametrize("out", OUTS)
def test_nothing_is_overwritten_without_force(capsys, fits, out):
    assert command(capsys, "convert", fits["one"][0], out)[0] == 0
    before = loaded(Path(out))
    code, _, text = command(capsys, "convert", fits["three"][0], out)
    assert (code, "--force" in text) == (2, True)
    torch.testing.assert_close(loaded(Path(out)), before, rtol=0, atol=0, equal_nan=True)
    assert command(capsys, "convert", fits["three"][0], out, "--force")[0] == 0
    assert not torch.equal(loaded(Path(out))[f"{PENALTY}.rows"], before[f"{PENALTY}.rows"])
    assert [p.name for p in Path.cwd().iterdir()] == [out]


def test_force_leaves_folders(fits, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "folder.npz" / "thesis.txt").write_text("years")
    with pytest.raises(ConfigError, match="--force does not replace"):
        convert(fits["one"][0], "folder.npz", force=True)
    assert (tmp_path / "folder.npz" / "thesis.txt").read_text() == "years"


def test_names_of_files():
    for out in ("weights.pt", "a.ckpt", "a.tar.gz", "folder/", "folder"):
        with pytest.raises(ConfigError, match=r"Choose \.safetensors or \.npz"):
            convert("absent.ckpt", out)


def test_folders_above_are_made(fits):
    assert convert(fits["one"][0], "new/deep/a.npz").is_file()


def test_where_nothing_can_be_written(capsys, fits, tmp_path):
    (tmp_path / "file").write_text("x")
    code, _, text = command(capsys, "convert", fits["one"][0], "file/a.npz")
    assert code == 1
    assert "cannot write" in text


# -------------------------------------------------------------------------------------------------------------- damage


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def part(path, which):
    return jobs.rows_files(str(path))[which]


def swap_rows(path):
    """The files of another save, whole in themselves."""
    (folder,) = (p for p in Path(f"{path}.rows").iterdir() if p.is_dir())
    for file in folder.iterdir():
        content = torch.load(file, weights_only=True)
        torch.save(content | {"save_id": folder.name[::-1]}, file)


def other_version(path):
    content = torch.load(path, weights_only=True)
    content["fcco"]["version"] = 1
    torch.save(content, path)


def zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello", "world")


def packed(path, pickled=None, method=zipfile.ZIP_STORED):
    """The members in an archive of another kind, or with another pickle."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, pickled if pickled and name.endswith("data.pkl") else content)


def called(function, *arguments):
    """A pickle that calls a function with numbers or texts; a text is written down in UTF-8."""
    given = b"".join(
        b"\x8a\x05" + one.to_bytes(5, "little") if isinstance(one, int) else b"U" + bytes([len(one)]) + one.encode()
        for one in arguments
    )
    return b"c" + function.replace(" ", "\n").encode() + b"\n" + given + (b"\x86R" if len(arguments) > 1 else b"\x85R")


def mapping(value):
    return b"\x80\x02}U\x01a" + value + b"s."


def shouted(path):
    """As torch finds ``data.pkl``, too: in other letters."""
    packed(path, mapping(called("__builtin__ bytearray", 10**9)))
    path.write_bytes(path.read_bytes().replace(b"data.pkl", b"DATA.PKL"))


def with_another_directory(path):
    """One archive behind another: its end names the other's directory, and a reader may seek its own before it."""
    first = path.read_bytes()
    packed(path, mapping(b"N"))
    second = path.read_bytes()
    place = struct.unpack("<L", second[-6:-2])[0]  # of the first archive's data
    path.write_bytes(first + second[:-6] + struct.pack("<L", place) + second[-2:])


def again(first, copied, copies):
    """A list of a value and of what is made of it, many times."""
    return mapping(b"](" + first + b"q\x00" + copied * copies + b"e")


HEX = b"c_codecs\nencode\n" + called("_codecs encode", "a", "latin1") + b"U\x03hex\x86R"
ASKING, AGAIN = "allocates memory without content", "refers to the same values too often"
LONG = b"X\xa0\x86\x01\x00" + b"a" * 100_000
PAIRS = b"".join(b"h%c\x86q%c" % (n, n + 1) for n in range(40))  # of the one before twice
LATIN = b"c_codecs\nencode\nh\x00U\x06latin1\x86R"
HIDING = mapping(b"ccollections\nOrderedDict\n)R}U\x06valuesctorch\nSize\nsb")
KEYS = b"".join(b"\x8a\x0a" + (n * (2**61 - 1)).to_bytes(10, "little") + b"N" for n in range(1000, 3000))
DAMAGE = {
    "compressed": (lambda path: packed(path, method=zipfile.ZIP_DEFLATED), "the file is compressed"),
    "memory of a number": (lambda path: packed(path, mapping(called("__builtin__ bytearray", 10**9))), ASKING),
    "memory that doubles": (lambda path: packed(path, mapping(HEX)), ASKING),
    "memory, in capitals": (shouted, ASKING),
    "memory before garbage": (
        lambda path: packed(path, called("__builtin__ bytearray", 10**9) + b"\xff"),
        "valid pickle",
    ),
    "two directories": (with_another_directory, "no archive alone"),
    "a text in many bytes": (lambda path: packed(path, again(LONG, LATIN, 2000)), AGAIN),
    "a list of lists": (lambda path: packed(path, again(b"](" + b"K\x01" * 5000 + b"e", b"h\x00", 5000)), AGAIN),
    "a pair of pairs is a key": (lambda path: packed(path, mapping(b"}" + b")q\x00" + PAIRS + b"Ns")), AGAIN),
    "keys that are alike": (lambda path: packed(path, mapping(b"}(" + KEYS + b"u")), "of more than 64 bits"),
    "a list that grows later": (
        lambda path: packed(path, mapping(b"]q\x00(h\x00h\x00eh\x00Na")),
        "referring to it again",
    ),
    "members that hide": (lambda path: packed(path, HIDING), "a mapping with attributes (values)"),
    "absent": (Path.unlink, "no such file"),
    "empty": (lambda path: path.write_bytes(b""), "truncated or no checkpoint"),
    "text": (lambda path: path.write_text("hello"), "truncated or no checkpoint"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:2000]), "truncated or no checkpoint"),
    "a bit of the weights": (lambda path: flip(path, jobs.place_of_weights(path)), "damaged"),
    "a bit of a part": (lambda path: flip(part(path, 1), part(path, 1).stat().st_size // 2), "damaged"),
    "a part is missing": (lambda path: part(path, 2).unlink(), "2.part` is missing"),
    "a part is cut": (lambda path: part(path, 0).write_bytes(part(path, 0).read_bytes()[:-1]), "truncated"),
    "no rows": (lambda path: shutil.rmtree(f"{path}.rows"), "2.part` is missing"),
    "parts of another save": (swap_rows, "damaged or belongs to another save"),
    "other format": (other_version, f"format 1, this installation reads format {CHECKPOINT_VERSION}. Load it with the"),
    "no archive of torch": (zipped, "not written by `fcco fit`"),
    "another archive": (lambda path: torch.save({"w": torch.zeros(2)}, path), "not written by `fcco fit`"),
    "another object": (lambda path: torch.save([1], path), "not written by `fcco fit`"),
    "code": (lambda path: torch.save({"fcco": print}, path), "it contains print, which is not data"),
}


def archive(*members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members:
            made.writestr(name, content)
    return file.getvalue()


def saved(content, **options):
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def hostile(whole):
    """Contents of files that are no checkpoints any more, or never were."""
    size = len(whole)
    yield from (whole[:end] for end in (0, 1, 3, 10, 100, size // 4, size // 2, size - 1000, size - 100, size - 1))
    for seed in range(30):  # half of them in the table of contents
        at = random.Random(seed).randrange(size - 2000 if seed % 2 else 0, size)  # noqa: S311
        yield whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :]
    yield from (b"hello", "café".encode("latin-1") * 50, b"PK\x05\x06" + bytes(18), b"abc" + whole)
    yield from (pickle.dumps({"a": 1}), pickle.dumps(print), saved(torch.zeros(2)), saved([1]), saved({}))
    yield saved({"w": 1}, _use_new_zipfile_serialization=False)
    for text in (b"garbage", pickle.dumps(print), b"\x80\x02X\x02\x00\x00\x00\xff\xfe."):
        yield archive(("a/data.pkl", text), ("a/version", b"3"), ("a/byteorder", b"little"))
    yield from (archive(), archive(("a/data.pkl", b"1"), ("b/data.pkl", b"2")))
    content = torch.load(io.BytesIO(whole), weights_only=True)
    for key in ("state_dict", "fcco", "epoch", "global_step"):
        yield saved({k: v for k, v in content.items() if k != key})
    for key in ("version", "engine", "world_size", "num_samples", "optimizer", "skipped_batches", "states"):
        yield saved(content | {"fcco": {k: v for k, v in content["fcco"].items() if k != key}})
    yield from (saved(content | {"fcco": other}) for other in (3, {}, content["fcco"] | {"states": ["a"]}))


def test_hostile_files_are_refused_by_name(fits, tmp_path):
    whole, path = fits["one"][0].read_bytes(), tmp_path / "at.ckpt"
    harmless = 0  # a bit that nobody reads, such as the date of a file in the archive
    for content in hostile(whole):
        path.write_bytes(content)
        try:
            read_file(path)
            harmless += 1
        except CheckpointError as error:
            assert str(path) in str(error)  # noqa: PT017
            assert "weights_only" not in str(error)  # noqa: PT017
    assert harmless <= 20


@pytest.mark.parametrize("how", ["memory of a number", "a text in many bytes", "compressed", "a bit of the weights"])
def test_the_search_for_a_checkpoint_reads_no_hostile_file(how, copied, monkeypatch):
    path, given = copied.rename(copied.with_name("last.ckpt")), []
    DAMAGE[how][0](path)
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: given.append(args))
    assert find_own([path.parent], "mine") == (None, {path: "cannot be read"})
    assert given == []


def test_what_is_no_file_is_refused_by_name(capsys, tmp_path):
    os.mkfifo("fifo")
    Path("loop").symlink_to("loop")
    for path in ("fifo", tmp_path, "loop", "/dev/null", "x" * 5000):
        for attempt in (partial(FCCOModule.load_from_checkpoint, path), partial(describe, path)):
            with pytest.raises(CheckpointError, match=f"checkpoint '?{str(path)[:100]}"):
                attempt()
    code, _, text = command(capsys, "fit", "--config", SYNTHETIC, "--ckpt_path", "fifo")
    assert (code, "fifo: this is not a regular file" in text) == (1, True)


def test_of_a_runs_folder_the_checkpoint_in_it_is_named(tmp_path):
    file = tmp_path / "run/checkpoints/last.ckpt"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    for folder in (tmp_path / "run", file.parent):
        with pytest.raises(CheckpointError, match=f"not a regular file. Name {file}."):
            checkpoint_file(folder)


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_and_foreign_checkpoints(how, capsys, copied):
    damage, message = DAMAGE[how]
    damage(copied)
    code, out, text = command(capsys, "inspect", copied)
    assert (code, out) == (1, "")
    assert text.startswith("fcco: CheckpointError: ")
    assert message in text
    Path("kept.npz").write_text("as it was")
    for out in [*OUTS, "kept.npz"]:
        code, _, text = command(capsys, "convert", copied, out, "--force")
        assert (code, message in text) == (1, True)
    assert {p.name for p in Path.cwd().iterdir()} == {"copy", "kept.npz"}  # neither half a file nor a temporary one
    assert Path("kept.npz").read_text() == "as it was"


def test_bytes_that_python_has_written_are_data(copied):
    content = torch.load(copied, weights_only=True)
    kept = {"a": b"a\xff", "again": b"a\xff", "b": bytearray(b"xy"), "none": bytearray(), "\xff": bytearray(b"a\xff")}
    torch.save(content | {"kept": kept}, copied)
    assert read_file(copied)["kept"] == kept


# -------------------------------------------------------------------------------------------------------- command line


def test_mistakes_in_the_arguments(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a").touch()
    for arguments in (
        ["inspect"],
        ["inspect", "a", "b"],
        ["inspect", "a", "--jso"],
        ["convert", "a"],
        ["convert", "a", "b.x"],
    ):
        code, out, text = command(capsys, *arguments)
        assert (code, out) == (2, "")
        assert text


def test_checkpoints_are_mapped_and_nothing_in_them_is_run(fits, monkeypatch):
    given, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: (given.append(kwargs), load(*args, **kwargs))[1])
    describe(fits["three"][0])
    convert(fits["one"][0], "out.npz")
    assert [(k["weights_only"], k["mmap"]) for k in given] == [(True, True)] * 5  # with three part files
