"""Mutation testing: small mistakes are put into the code, one at a time, and a test that runs it must fail.

    uv run --group mutation python -m tests.mutation --mutants 300 --jobs 2

A mistake is a mutation by Cosmic Ray (another operator, another number, a negated condition), drawn by a seed from all
possible ones in the mathematical folders.  First the tests of these folders and the contracts run once, and
coverage.py records which test runs which line.  Each mistake is then tried on a few of the tests that run its line; if
none of these fails, on all of them, and then on all tests of its folder.  Mistakes are made in a copy of the
repository for each job.  A mistake that no test notices is printed with its line; some of them change nothing that
matters, such as the text of a message.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from difflib import unified_diff
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("engine", "estimators", "outer", "objectives", "constraints", "state", "data")
COPIED = ("fcco_lightning", "tests", "configs", "examples", "pyproject.toml", "README.md")
IN_TYPES = "core/ReplaceBinaryOperator_BitOr"  # mutations of unions in annotations, which fail at import
FEW = 10  # number of tests that are tried first: most mistakes fail most tests that run them
LIBRARIES = ("torch", "lightning.pytorch", "torchmetrics", "pandas", "sklearn", "scipy.stats", "datasets")
FULL_DISK = "--deselect tests/state/test_parts.py::test_a_write_that_fails_is_named_and_leaves_no_file"
PYTEST = f"{sys.executable} -m pytest -q -p no:cacheprovider"


def mistakes(number, seed):
    """A sample of the mutations that Cosmic Ray can make in the folders, drawn by a seed."""
    from cosmic_ray.commands import init
    from cosmic_ray.work_db import use_db

    paths = [
        path.relative_to(ROOT) for name in FOLDERS for path in sorted((ROOT / "fcco_lightning" / name).rglob("*.py"))
    ]
    with tempfile.TemporaryDirectory() as folder, use_db(str(Path(folder) / "session.sqlite")) as session:
        init(paths, session, {})
        known = [mutation for item in session.work_items for mutation in item.mutations]
    known = [mutation for mutation in known if not mutation.operator_name.startswith(IN_TYPES)]
    known.sort(key=lambda m: (str(m.module_path), m.operator_name, m.occurrence))
    return random.Random(seed).sample(known, number)  # noqa: S311


def enter_copy(folder):
    """Copy the repository below a folder, and make the copy the working directory."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for name in COPIED:
        whole = (ROOT / name).is_dir()
        (shutil.copytree if whole else shutil.copyfile)(ROOT / name, copy / name)
    os.chdir(copy)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = folder  # other runs of pytest clear the default folder


def tests_by_line(jobs):
    """File -> line -> tests that run it, with "" for lines run at import; all tests must pass without mistakes."""
    from coverage import CoverageData

    tests = " ".join(f"tests/{name}" for name in (*FOLDERS, "contracts"))
    measured = f"{PYTEST} -n {jobs} --cov=fcco_lightning --cov-context=test --cov-report= {FULL_DISK} {tests}"
    found = Path("../coverage").resolve()  # outside the copy, in which tests must not leave files
    settings = os.environ | {"COVERAGE_CORE": "ctrace", "COVERAGE_FILE": str(found)}
    if subprocess.run(measured.split(), env=settings, check=False).returncode:
        sys.exit("The tests fail without a mistake, too.")
    data = CoverageData(str(found))
    data.read()
    root = Path.cwd().resolve()
    return {
        str(Path(file).relative_to(root)): {
            line: {context.rsplit("|", 1)[0] for context in contexts}
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }


def covering(mutation, by_line):
    """The tests that run the line of a mistake; None if it runs only at import, so that any test may notice it."""
    lines = by_line.get(str(mutation.module_path), {})
    found = [lines[i] for i in range(mutation.start_pos[0], mutation.end_pos[0] + 1) if i in lines]
    tests = sorted(set().union(*found) - {""})
    return tests if tests or not found else None


def outcome(mutation, tests, limit):
    """The mistake, "killed" if a test notices it or "survived" otherwise, and the changed lines as a diff."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    operator = get_operator(mutation.operator_name)(**dict(mutation.operator_args))
    with use_mutation(mutation.module_path, operator, mutation.occurrence) as (right, wrong):
        diff = "\n".join(unified_diff(right.splitlines(), wrong.splitlines(), lineterm="", n=2))
        survived = all(passes(some, limit) for some in ever_more(mutation, tests))
    return mutation, "survived" if survived else "killed", diff


def ever_more(mutation, tests):
    """Growing lists of tests: a few that run the line, all that do, and those of the folder, for other processes."""
    of_folder = [f"tests/{mutation.module_path.parts[1]}"]
    if tests is None:
        return [[*of_folder, "tests/contracts"]]
    few = random.Random(0).sample(tests, min(FEW, len(tests)))  # noqa: S311
    return [few, tests, of_folder] if tests else [of_folder]


def passes(tests, limit):
    """Whether tests pass in a forked process, which has imported the libraries but not the package."""
    child = get_context("fork").Process(target=run, args=(tests,))
    child.start()
    child.join(limit)
    if child.is_alive():
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    return child.exitcode == 0


def run(tests):
    """Run tests without output until the first failure, and exit with the status of pytest."""
    os.setsid()
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]  # modules of the original repository
    sys.path.insert(0, str(Path.cwd()))
    loaded_before = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # expected here
    sys.exit(pytest.main(["-x", "-n", "0", "-p", "no:cacheprovider", *loaded_before, *tests]))


def main():
    """Print every mistake that no test noticed, and the number of mistakes with each outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="at a time, each in a copy of its own")
    parser.add_argument("--limit", type=float, default=900, help="seconds after which a mistake counts as noticed")
    given = parser.parse_args()
    os.chdir(ROOT)
    drawn = mistakes(given.mutants, given.seed)
    counts = Counter()
    with tempfile.TemporaryDirectory() as copies:
        enter_copy(copies)
        by_line = tests_by_line(given.jobs)
        tests = [covering(mutation, by_line) for mutation in drawn]
        for library in LIBRARIES:
            import_module(library)
        every = sorted({test for lines in by_line.values() for some in lines.values() for test in some} - {""})
        if not passes(random.Random(given.seed).sample(every, 300), given.limit):  # noqa: S311
            sys.exit("Tests that have passed do not pass again: a mistake would seem to be noticed.")
        with ProcessPoolExecutor(given.jobs, get_context("fork"), enter_copy, (copies,)) as pool:
            done = pool.map(outcome, drawn, tests, [given.limit] * len(drawn))
            for mutation, how, diff in done:
                counts[how] += 1
                if how != "killed":
                    place = f"{mutation.module_path}:{mutation.start_pos[0]} {mutation.operator_name}"
                    print(f"{how}: {place}\n{diff}\n")
                print(", ".join(f"{n} {how}" for how, n in counts.items()), flush=True)


if __name__ == "__main__":
    main()
