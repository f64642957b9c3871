"""Imports point to lower layers only, and the core is plain PyTorch."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fcco_lightning

ROOT = Path(fcco_lightning.__file__).parent
PACKAGE = "fcco_lightning"

FLOORS = [  # ten, if the first two are one; __init__ and __main__ aside
    ["errors"],
    ["checks", "numerics", "recipes"],
    ["ambiguity", "state"],
    ["outer", "models", "dro"],
    ["estimators", "objectives", "data"],
    ["constraints"],
    ["engine", "evaluation"],
    ["algorithms"],
    ["analysis", "training", "inference"],
    ["reports"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
FLOOR = {name: i for i, names in enumerate(FLOORS) for name in names}
LIGHTNING = ("training", "reports", "data/datamodules", "cli")
FORBIDDEN = {  # part -> what it must not know
    "outer": ("lightning", "torch.distributed", "fcco_lightning.data"),
    "estimators": ("lightning", "torch.distributed", "fcco_lightning.data"),
    "objectives": ("fcco_lightning.state.rows", "fcco_lightning.state.DualState"),
}


def modules():
    return sorted(ROOT.rglob("*.py"))


def part(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def dotted(path):
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([PACKAGE, *(names[:-1] if names[-1] == "__init__" else names)])


@functools.cache
def imported(path):
    """Absolute names that a module imports, also inside functions and under TYPE_CHECKING."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_parts(path):
    inside = {name.split(".")[1] for name in imported(path) if name.startswith(f"{PACKAGE}.")}
    return {name if name in FLOOR else "__init__" for name in inside}  # a public name of the package itself


def wrong_imports(own, others):
    return [other for other in others if other != own and FLOOR[other] >= FLOOR[own]]


def test_every_folder_has_its_floor():
    assert {part(path) for path in modules()} <= set(FLOOR)


def test_imports_point_down():
    bad = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        for name in wrong_imports(part(path), imported_parts(path))
    ]
    assert not bad, "\n".join(bad)


def test_the_page_of_the_architecture_is_that_of_the_tree():
    page = ROOT.parent.joinpath("examples/guides/architecture.md").read_text()
    assert len(page.splitlines()) <= 80
    before, behind = page.split("| task | file |")
    named = [re.findall("`([a-z]+)`", line.split("|")[1]) for line in before.splitlines() if line.startswith("| `")]
    built = [floor for floor in FLOORS if not floor[0].startswith("__")]
    assert [sorted(floor) for floor in named] == [sorted(floor) for floor in reversed(built)]
    files = re.findall(r"`([a-z_/]+(?:\.py|/))`", page)
    assert len([line for line in behind.splitlines() if line.startswith("| ")]) == 15
    missing = [name for name in files if not (ROOT / name).exists() and not (ROOT.parent / name).exists()]
    assert not missing
    engine = ROOT.joinpath("engine/engine.py").read_text()
    places = [
        engine.index(f"    def {name}(") for name in ("train_batch", "received", "evaluate", "measure", "descend")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("own", "other", "wrong"),
    [
        ("outer", "checks", False),
        ("outer", "outer", False),
        ("outer", "estimators", True),
        ("outer", "objectives", True),
        ("engine", "algorithms", True),
        ("constraints", "objectives", False),
        ("objectives", "__init__", True),
    ],
)
def test_the_import_rule_itself(own, other, wrong):
    assert wrong_imports(own, {other}) == ([other] if wrong else [])


def test_modules_of_one_folder_do_not_import_each_other_in_a_circle():
    paths = {dotted(path): path for path in modules()}

    def needs(name):
        found = set()
        for target in imported(paths[name]):
            module = target if target in paths else target.rpartition(".")[0]
            if module in paths and module not in (name, PACKAGE):
                found.add(module)
        return found

    graph = {name: needs(name) for name in paths if name != PACKAGE}
    while graph:
        leaves = {name for name, below in graph.items() if not below & graph.keys()}
        assert leaves, f"circular imports among {sorted(graph)}"
        graph = {name: below for name, below in graph.items() if name not in leaves}


def test_no_two_classes_have_one_name():
    """Solvers of linear models aside, which have losses and algorithms of their own under the names of the papers."""
    files = [file for file in ROOT.rglob("*.py") if ROOT / "dro" not in file.parents]
    names = [n.name for file in files for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ClassDef)]
    assert not {name for name in names if names.count(name) > 1}


def test_only_the_upper_floors_know_lightning():
    knows = [
        str(path.relative_to(ROOT).with_suffix("").as_posix())
        for path in modules()
        if any(name.split(".")[0] in ("lightning", "pytorch_lightning") for name in imported(path))
    ]
    assert knows, "the walk finds imports of lightning at all"
    assert not [name for name in knows if not name.startswith(LIGHTNING)]


@pytest.mark.parametrize("own", FORBIDDEN)
def test_the_core_is_plain_pytorch(own):
    bad = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        if part(path) == own
        for name in imported(path)
        if name.startswith(FORBIDDEN[own])
    ]
    assert not bad


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


def test_importing_the_package_costs_nothing():
    done = run(
        "import sys, fcco_lightning; fcco_lightning.__version__; "
        "heavy = {'torch', 'lightning', 'numpy', 'pandas'} & sys.modules.keys(); assert not heavy, heavy"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_core_runs_without_lightning():
    done = run(
        "import sys, importlib\n"
        "core = 'outer state estimators objectives constraints algorithms engine evaluation analysis'\n"
        "for p in core.split():\n"
        "    importlib.import_module(f'fcco_lightning.{p}')\n"
        "assert 'lightning' not in sys.modules\n"
        "import fcco_lightning.models\n"
        "assert 'torch.distributed.fsdp' not in sys.modules, 'a third of the time that torch takes to load'"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_each_core_module_is_importable_alone():
    # one interpreter: before each module all of the package is forgotten, torch is kept
    code = (
        "import importlib, sys, torch\n"
        "for name in sys.argv[1:]:\n"
        "    for loaded in [m for m in sys.modules if m.split('.')[0] == 'fcco_lightning']:\n"
        "        del sys.modules[loaded]\n"
        "    importlib.import_module(name)\n"
    )
    names = [dotted(path) for path in modules() if FLOOR[part(path)] < FLOOR["training"] and part(path) != "data"]
    assert len(names) > 30
    done = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr


def test_a_class_is_public_as_soon_as_its_file_is_there(tmp_path, monkeypatch):
    folder = tmp_path / "made_up" / "objectives"
    folder.mkdir(parents=True)
    for path in (folder.parent / "__init__.py", folder / "__init__.py"):
        path.touch()
    folder.joinpath("novel.py").write_text("class Novel:\n    pass\n\n\nclass _Private:\n    pass\n")
    for name, value in {"ROOT": folder.parent, "FAMILIES": ("objectives",), "_WHOLE": (), "_SELECTED": {}}.items():
        monkeypatch.setattr(fcco_lightning, name, value)
    assert fcco_lightning.public_names.__wrapped__() == {"Novel": "made_up.objectives.novel"}


def test_public_names_exist():
    exported = [importlib.import_module(f"fcco_lightning.{family}").__all__ for family in fcco_lightning.FAMILIES]
    classes = {name for names in exported for name in names if name[0].isupper()}
    assert len(classes) > 150
    assert classes <= set(fcco_lightning.__all__)
    for name in fcco_lightning.__all__:
        assert getattr(fcco_lightning, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'SONEXX'"):
        _ = fcco_lightning.SONEXX
