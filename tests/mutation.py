"""What the tests notice: small mistakes are put into the code, one at a time, and the tests of its folder must fail.

    uv run --group mutation python -m tests.mutation --mutants 300 --jobs 2

Mistakes are those of Cosmic Ray (another operator, another number, a condition turned round), drawn by a seed from all
those that it knows for the mathematical folders.  They are made in a copy of the repository for each job.  A mistake
that no test notices is printed with its place; some of them change nothing that matters, such as a message.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("engine", "estimators", "outer", "objectives", "constraints", "state", "data")
COPIED = ("fcco_lightning", "tests", "configs", "examples", "pyproject.toml", "README.md")
IN_TYPES = "core/ReplaceBinaryOperator_BitOr"  # of unions in annotations, which fail at import


def mistakes(number, seed):
    """Mistakes that Cosmic Ray knows for the folders, drawn by a seed."""
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
    """Work in a copy of the repository below a folder."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for name in COPIED:
        whole = (ROOT / name).is_dir()
        (shutil.copytree if whole else shutil.copyfile)(ROOT / name, copy / name)
    os.chdir(copy)


def outcome(mutation, limit):
    """A mistake, whether the tests of its folder notice it ("killed" or "survived"), and the changed lines."""
    from cosmic_ray.mutating import mutate_and_test

    result = mutate_and_test([mutation], command(mutation.module_path.parts[1]), limit)
    return mutation, str(result.test_outcome.value), result.diff


def unharmed(folder, limit):
    """Whether the tests of a folder pass without a mistake, as they must."""
    from cosmic_ray.testing import TestOutcome, run_tests

    return run_tests(command(folder), limit)[0] is TestOutcome.SURVIVED


def command(folder):
    """The tests of a folder and those that hold for all parts, until the first one fails."""
    return f"{sys.executable} -m pytest -q -x -n 0 -p no:cacheprovider tests/{folder} tests/contracts"


def main():
    """Print every mistake that was not noticed, and how many there were of each outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="at a time, each in a copy of its own")
    parser.add_argument("--limit", type=float, default=1200, help="seconds after which a mistake counts as noticed")
    given = parser.parse_args()
    os.chdir(ROOT)
    drawn = mistakes(given.mutants, given.seed)
    folders = sorted({mutation.module_path.parts[1] for mutation in drawn})
    counts = Counter()
    with (
        tempfile.TemporaryDirectory() as copies,
        ProcessPoolExecutor(given.jobs, initializer=enter_copy, initargs=(copies,)) as pool,
    ):
        passing = pool.map(unharmed, folders, [given.limit] * len(folders))
        failing = [folder for folder, fine in zip(folders, passing, strict=True) if not fine]
        if failing:
            sys.exit(f"The tests of {', '.join(failing)} fail without a mistake, too, or take longer than --limit.")
        for mutation, how, diff in pool.map(outcome, drawn, [given.limit] * len(drawn)):
            counts[how] += 1
            if how == "survived":
                print(f"{mutation.module_path}:{mutation.start_pos[0]} {mutation.operator_name}\n{diff}\n", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
