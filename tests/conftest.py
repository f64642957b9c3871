"""Fixtures and settings of all tests: a folder for each test, one thread, restored random state, small and real data.

The process that distributes the tests reads this file before it starts the workers, so modules that take seconds to
import are imported inside the functions that need them.
"""

import gc
import itertools
import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pytest

if TYPE_CHECKING:
    from fcco_lightning.data.datamodules import TabularDataModule

# pytest caches test files with rewritten asserts as bytecode; if PYTHONDONTWRITEBYTECODE is set, as in many containers,
# every worker of every run would rewrite them again
sys.dont_write_bytecode = False

DATA_FOLDER = Path(os.environ.get("FCCO_DATA", Path(__file__).parents[2] / "shared/data"))


ROOT = Path(__file__).parents[1]
CACHES = {".git", ".venv", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
SOURCES = {".py", ".md", ".yaml", ".toml", ".swp"}  # may be edited while tests run


def files_of(root: Path) -> dict[str, int]:
    """File -> time of its last change, for all files below a folder except sources and caches of tools."""
    found = {}
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if name not in CACHES and not name.endswith(".egg-info")]
        paths = [Path(folder, name) for name in names]
        found |= {str(p.relative_to(root)): p.lstat().st_mtime_ns for p in paths if p.suffix not in SOURCES}
    return found


# The slowest files, which mostly wait for processes that they start; they run first, so that no worker is left with one
# at the end.
LONGEST = (
    "training/test_ddp.py",
    "cli/test_cli.py",
    "training/test_faults.py",
    "training/test_failing_processes.py",
    "contracts/test_other_devices.py",
    "training/test_continual_clip.py",
    "test_configs.py",
    "engine/test_compiled_steps.py",
    "contracts/test_objectives.py",
    "contracts/test_algorithms.py",
)


QUICK = 5  # one in so many cases of a test is quick, and at least one


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first; mark four fifths of the cases of each test, but not all, as slow.

    Which fifth is quick depends on the name of the test, so that every class is in the quick cases of some of the tests
    that are parametrised by all classes.  Cases that may be skipped, such as those on a GPU, are divided separately.
    Tests in the folder of this file are not divided: their cases are different pages and configurations.
    """
    tests: dict[tuple[str, bool], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow") is None and item.path.parent != Path(__file__).parent:
            may_be_skipped = item.get_closest_marker("skipif") is not None
            tests.setdefault((item.nodeid.partition("[")[0], may_be_skipped), []).append(item)
    for (name, _), cases in tests.items():
        for number, case in enumerate(cases, start=crc32(name.encode())):
            if number % min(QUICK, len(cases)):
                case.add_marker(pytest.mark.slow)
    place = {Path(__file__).parent / name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_collection() -> None:
    """Switch garbage collection off during imports and collection, whose objects live until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude all objects so far from garbage collection, and let torch's loggers propagate.

    To every logger that does not propagate, such as dozens of torch, pytest would add its handlers six times per test.
    """
    for name, logger in logging.getLogger().manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in ("torch", "c10d-NullHandler-default"):
            logger.propagate = True
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the collector see all objects at exit."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _repository_is_left_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Assert that tests do not create, delete or change files of the repository; fixtures run in another folder."""
    before, here = files_of(ROOT), Path.cwd()
    os.chdir(tmp_path_factory.mktemp("fixtures"))
    yield
    os.chdir(here)
    changed = sorted(dict(before.items() ^ files_of(ROOT).items()))
    assert not changed, f"tests must write below tmp_path only, but these files came, went or changed: {changed}"


def _empty_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    for number in itertools.count():
        folder = tmp_path_factory.mktemp(f"test{number}", numbered=False)
        while folder.is_dir() and not any(folder.iterdir()):
            yield folder


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return _empty_folders(tmp_path_factory)


@pytest.fixture
def tmp_path(_folders: Iterator[Path]) -> Path:
    """An empty folder: that of the previous test if it is still empty, as it mostly is, otherwise a new one."""
    return next(_folders)


@pytest.fixture(autouse=True)
def _in_own_folder(_repository_is_left_alone: None, tmp_path: Path) -> Iterator[None]:
    """Run every test in its empty ``tmp_path``, so that relative paths lead to no other files."""
    here = Path.cwd()
    os.chdir(tmp_path)
    yield
    os.chdir(here)


@pytest.fixture(autouse=True)
def _same_random_state() -> Iterator[None]:
    """Start every test with the same global random state and one thread."""
    import torch

    torch.set_num_threads(1)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    # torch.manual_seed seeds all kinds of devices, and takes ten times as long
    torch.default_generator.manual_seed(0)
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
"""Arguments of a Trainer that writes and prints nothing."""


@pytest.fixture
def small_data() -> "TabularDataModule":
    """200 training and 80 test rows in batches of 20."""
    from tests.tables import make_data

    return make_data()
