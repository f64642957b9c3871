"""Time and memory of a large table from its file to the first batch, beside what pandas and scikit-learn take.

    uv run python examples/benchmarks/large_table.py --rows 1000000

Every way runs in a process of its own, whose peak is that of its resident memory; what the imports take is said beside
it.  The table has 13 columns of numbers, 5 of words, a sensitive one and a label.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

LABEL, GROUP = "y", "sex"


def make(rows: int, path: Path) -> None:
    """Write a table of ``rows`` rows."""
    rng = np.random.default_rng(0)
    columns = {f"n{i}": rng.normal(size=rows).round(5) for i in range(10)}
    columns |= {f"i{i}": rng.integers(0, 1000, rows) for i in range(3)}
    columns |= {f"c{i}": rng.choice([f"value {k}" for k in range(3 + i)], rows) for i in range(5)}
    columns |= {GROUP: rng.choice(["male", "female"], rows), LABEL: np.where(rng.random(rows) < 0.3, "yes", "no")}
    frame = pd.DataFrame(columns)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)


def read(path: str) -> pd.DataFrame:
    """The table as pandas reads it."""
    return pd.read_csv(path) if path.endswith(".csv") else pd.read_parquet(path)


def by_pandas(path: str) -> list[tuple[str, Callable[[], object]]]:
    """Read alone."""
    return [("read", lambda: read(path))]


def by_scikit_learn(path: str) -> list[tuple[str, Callable[[], object]]]:
    """Read, split, and encoded by a ``ColumnTransformer`` that is fitted on the training rows."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    encoder = make_column_transformer(
        (StandardScaler(), make_column_selector(dtype_include="number")),
        (OneHotEncoder(sparse_output=False, dtype=np.float32), make_column_selector(dtype_exclude="number")),
    )
    kept: dict[str, pd.DataFrame] = {}

    def split() -> None:
        frame = kept.pop("frame")
        parts = train_test_split(frame.drop(columns=[LABEL, GROUP]), test_size=0.2, stratify=frame[[LABEL, GROUP]])
        kept["train"], kept["test"] = parts

    def encoded() -> tuple[object, object]:
        return encoder.fit_transform(kept["train"]), encoder.transform(kept["test"])

    return [("read", lambda: kept.update(frame=read(path))), ("split", split), ("encode", encoded)]


def by_datamodule(path: str, pieces: int | str = 1) -> list[tuple[str, Callable[[], object]]]:
    """Read, checked, split, encoded and identified by a ``TabularDataModule``."""
    from fcco_lightning.data import Columns, Encoding, Splits
    from fcco_lightning.data.datamodules import TabularDataModule

    data = TabularDataModule(
        path,
        columns=Columns(LABEL, positive="yes", sensitive=GROUP),
        splits=Splits(test_fraction=0.2),
        encoding=Encoding(pieces=pieces),  # type: ignore[arg-type]  # "auto"
    )
    return [
        ("read to encode", data.setup),
        ("first batch", lambda: next(iter(data.train_dataloader()))),
        ("200 batches", lambda: [batch for _, batch in zip(range(200), data.train_dataloader(), strict=False)]),
    ]


WAYS: dict[str, Callable[[str], list[tuple[str, Callable[[], object]]]]] = {
    "pandas": by_pandas,
    "scikit-learn": by_scikit_learn,
    "TabularDataModule": by_datamodule,
    "TabularDataModule, pieces auto": lambda path: by_datamodule(path, "auto"),
}


def peak() -> float:
    """The largest resident memory of this process so far, in GB; on Linux."""
    status = Path("/proc/self/status").read_text()  # getrusage counts what this process was before its program began
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1e6  # type: ignore[index]


def measure(way: str, path: str) -> None:
    """Print a row of the table of results for every stage of a way."""
    stages = WAYS[way](path)
    print(f"| {way} | imports | | {peak():.2f} |")
    for name, stage in stages:
        start = time.perf_counter()
        kept = stage()
        print(f"| {way} | {name} | {time.perf_counter() - start:.2f} | {peak():.2f} |", flush=True)
        del kept


def main() -> None:
    """Measure every way, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--suffix", choices=[".csv", ".parquet"], default=".csv")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(*arguments.measure)
        return
    print("| way | stage | seconds | peak so far, GB |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table{arguments.suffix}"
        make(arguments.rows, path)
        for way in WAYS:
            subprocess.run([sys.executable, __file__, "--measure", way, str(path)], check=True)


if __name__ == "__main__":
    main()
