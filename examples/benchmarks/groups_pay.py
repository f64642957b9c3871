"""Does CVaRGroupDRO, with its defaults, pay against drawing the groups uniformly?

All methods of a table have the same perceptron, batches (so many groups x so many samples), Adam type with a linear
warm-up and decay, epochs and grid of rates, and differ in what they minimise::

    uv run python examples/benchmarks/groups_pay.py --data ../shared/data --kept runs/groups_pay.jsonl

``--tables`` takes some of ``mails`` (four groups; bags of words), ``adult`` (83) and ``celeba`` (16; the attributes).
All seeds run at every rate, a method's rate is that of the least CVaR of the groups' validation losses on average, and
the rows report mean +- standard deviation of what it reached.  With ``--kept`` every result is a line of that file at
once, and runs that are there are not carried out again.
"""

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from runs import Job, arguments, quiet_trainer, run_all, seconds, table, value

from fcco_lightning import (
    SGD,
    SONEX,
    AdamType,
    CrossEntropy,
    CVaRGroupDRO,
    FCCOModule,
    GroupEvaluation,
    GroupSampling,
    LinearWarmUp,
    Schedule,
    TabularMLP,
    TensorDataModule,
)

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]  # features (n, d), labels (n,) and names of groups (n,)
Splits = dict[str, dict[str, torch.Tensor]]
PARTS = {"train": 0.6, "val": 0.2, "test": 0.2}  # of every group
METHODS: dict[str, Callable[[float], dict[str, Any]]] = {  # arguments of FCCOModule, for a share of the groups
    "SGD, groups drawn uniformly": lambda alpha: {"objective": CrossEntropy(), "algorithm": SGD()},  # noqa: ARG005
    "CVaRGroupDRO, SONEX()": lambda alpha: {"objective": CVaRGroupDRO(alpha), "algorithm": SONEX()},
    "trained threshold": lambda alpha: {"objective": CVaRGroupDRO(alpha, threshold=0.0), "algorithm": SONEX()},
    "gamma=0.2": lambda alpha: {"objective": CVaRGroupDRO(alpha), "algorithm": SONEX(gamma=0.2)},
    "lam=0.01": lambda alpha: {"objective": CVaRGroupDRO(alpha), "algorithm": SONEX(lam=0.01)},
    "trained threshold, lam=0.01": lambda alpha: {
        "objective": CVaRGroupDRO(alpha, threshold=0.0),
        "algorithm": SONEX(lam=0.01),
    },
}
FIGURES = ("train.cvar_loss", "test.cvar_loss", "test.worst_group_accuracy", "test.accuracy")


def mails(folder: Path) -> Columns:
    """2,000 words of the mails' first 300 characters; spam or not x written to a mailing list or not."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    frame = pd.read_parquet(folder / "mails.parquet")
    words = TfidfVectorizer(max_features=2000, sublinear_tf=True).fit_transform(frame["text"].str.slice(0, 300))
    groups = frame["spam"].astype(str) + frame["mailing_list"].astype(str)
    return 5 * words.toarray(), frame["spam"].to_numpy(), groups.to_numpy()


def adult(folder: Path) -> Columns:
    """Binary columns; the 83 groups of at least 50 rows of the ALEXR paper, section 5.1."""
    frame = pd.concat([pd.read_csv(folder / f"adult_{part}.csv") for part in ("train", "test")], ignore_index=True)
    label = frame.pop("income").str.strip() == ">50K"
    race = frame["race"].str.strip()
    parts = [
        label,
        race.where(race.isin(["White", "Black"]), "other"),
        frame["sex"],
        pd.cut(frame["age"], [0, 30, 45, 200]),
        frame["marital-status"].str.strip() == "Never-married",
        frame["education-num"] > 9,
    ]
    groups = functools.reduce(lambda name, part: name + "/" + part.astype(str), parts[1:], parts[0].astype(str))
    many = [name for name in frame if pd.api.types.is_numeric_dtype(frame[name]) and frame[name].nunique() > 5]
    frame[many] = frame[many].apply(lambda column: pd.qcut(column, 5, duplicates="drop").astype(str))
    kept = (groups.map(groups.value_counts()) >= 50).to_numpy()
    return pd.get_dummies(frame.astype(str)).to_numpy(float)[kept], label.to_numpy()[kept], groups.to_numpy()[kept]


def celeba(folder: Path) -> Columns:
    """36 attributes; the SONEX paper's 16 groups of the other four, of which the last is the label."""
    frame = pd.read_parquet(folder / "celeba_attributes.parquet")
    by = ["Attractive", "Mouth_Slightly_Open", "Male", "Blond_Hair"]
    known = frame.drop(columns=by).select_dtypes(["number", "bool"]).to_numpy(float) > 0
    cells = frame[by].to_numpy(float) > 0
    return known[:, known.any(0)].astype(float), cells[:, -1], cells @ (1 << np.arange(4))


class Source(NamedTuple):
    """A table, and how networks are trained on it.

    Attributes:
        read: gives its columns, of the folder of data.
        alpha: share of the groups that counts.
        sampling: groups of a batch, and samples of each.
        hidden: widths of the perceptron.
        epochs: how many.
    """

    read: Callable[[Path], Columns]
    alpha: float
    sampling: GroupSampling
    hidden: list[int]
    epochs: int


SOURCES = {
    "mails": Source(mails, 0.5, GroupSampling(4, 8), [64], 2),
    "adult": Source(adult, 0.1, GroupSampling(8, 8), [64], 3),
    "celeba": Source(celeba, 0.15, GroupSampling(4, 16), [64, 64], 1),
}


@functools.cache
def splits_of(name: str, folder: str) -> tuple[Splits, int]:
    """The parts of a table, drawn group by group and the same for all seeds, and the number of groups."""
    x, y, names = SOURCES[name].read(Path(folder))
    groups = np.unique(names, return_inverse=True)[1]
    part, random = np.zeros(len(y), int), np.random.default_rng(0)
    for group in range(groups.max() + 1):
        rows = random.permutation(np.flatnonzero(groups == group))
        for number, rest in enumerate(np.split(rows, (np.cumsum(list(PARTS.values()))[:-1] * len(rows)).astype(int))):
            part[rest] = number
    columns = {"x": torch.from_numpy(x).float(), "y": torch.from_numpy(y).long(), "group": torch.from_numpy(groups)}
    splits = {name: {k: v[part == number] for k, v in columns.items()} for number, name in enumerate(PARTS)}
    return splits, int(groups.max()) + 1


def train(job: Job) -> Job:
    """One run; the job with the figures of all splits."""
    torch.set_num_threads(1)
    source = SOURCES[job["table"]]
    splits, number = splits_of(job["table"], job["data"])
    torch.manual_seed(job["seed"])
    module = FCCOModule(
        TabularMLP(source.hidden),
        schedule=Schedule(LinearWarmUp, "step"),
        optimizer=functools.partial(AdamType, lr=job["lr"]),
        **METHODS[job["label"]](source.alpha),
    )
    data = TensorDataModule(
        {name: splits[name] for name in ("train", "test")},
        batches=source.sampling,
        num_groups=number,
        seed=job["seed"],
    )
    start = time.process_time()
    quiet_trainer(max_epochs=source.epochs, limit_val_batches=0).fit(module, data)
    took, evaluation = round(time.process_time() - start, 1), GroupEvaluation(source.alpha)
    with torch.no_grad():
        figures = {name: evaluation(module.network(columns["x"]), columns) for name, columns in splits.items()}
    return {**job, **figures, "overrides": {"table": job["table"], "lr": job["lr"]}, "seconds": took}


def picked(runs: list[Job]) -> list[Job]:
    """The runs at the rate with the least CVaR of the validation losses on average over seeds."""
    rates = {rate: [run for run in runs if run["lr"] == rate] for rate in dict.fromkeys(run["lr"] for run in runs)}
    return min(rates.values(), key=lambda at: statistics.fmean(value(run, "val.cvar_loss") for run in at))


def rate_of(runs: list[Job]) -> str:
    """Their rate."""
    return f"{runs[0]['lr']:g}"


def main() -> None:
    """Parse the arguments, run and print."""
    parser = arguments(__doc__)
    parser.set_defaults(seeds=3)
    parser.add_argument("--data", default="../shared/data", help="folder of the tables")
    parser.add_argument("--tables", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 3e-3, 1e-2])
    parser.add_argument("--kept", type=Path)
    given = parser.parse_args()
    for name in given.tables:
        jobs = [
            {"label": label, "table": name, "seed": seed, "lr": rate, "data": given.data}
            for label in given.methods
            for rate in given.rates
            for seed in range(given.seeds)
        ]
        results = run_all(jobs, given.jobs, FIGURES[:2], train, given.kept)
        best = [run for label in given.methods for run in picked([r for r in results if r["label"] == label])]
        print(f"\n{name}\n{table(best, FIGURES, {'rate': rate_of, 'seconds': seconds})}\n", flush=True)


if __name__ == "__main__":
    main()
