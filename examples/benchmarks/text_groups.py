"""Group DRO on texts: methods x seeds on mails that are spam or not, and were written to a mailing list or not.

A transformer of two layers of width 128 starts from random weights; its WordPieces are learnt from the training mails::

    uv run python examples/benchmarks/text_groups.py --data mails.parquet --tune       # the learning rates
    uv run python examples/benchmarks/text_groups.py --data mails.parquet              # 5 seeds with the picks
    uv run python examples/benchmarks/text_groups.py --data mails.parquet --ablation beta    # SONEX paper, Table 3
    uv run python examples/benchmarks/text_groups.py --data mails.parquet --ablation adam    # SONEX paper, Table 5

A row reports mean +- standard deviation over seeds 0, 1, ...  All methods have the same optimizer (Adam type, linear
warm-up and decay), and ``--tune`` gives each the same grid of learning rates, which grows until the pick does not lie
on its edge; it has seeds of its own and picks by the mean CVaR of the validation losses.  The momentum type of
``--ablation adam`` is tuned in the same way.  Picks are kept in the output folder and used later.
"""

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import seed_everything
from runs import Job, arguments, quiet_trainer, run_all, run_searches, seconds, table, value

from fcco_lightning import (
    ALEXR2,
    OOA,
    SGD,
    SONEX,
    SONX,
    AdamType,
    Algorithm,
    Columns,
    CrossEntropy,
    CVaRGroupDRO,
    FCCOModule,
    GroupedTextDataModule,
    GroupEvaluation,
    Groups,
    GroupSampling,
    HeavyBall,
    ImageSplits,
    LabelledTexts,
    LinearWarmUp,
    Objective,
    Schedule,
    TextClassifier,
    TextTokens,
    UniformSampling,
)

METHODS = ("sgd", "sgd_uw", "ooa", "sonx", "sonex", "alexr2", "default")
MOMENTUM = ("sonex_momentum", "alexr2_momentum")
ADAPTIVE_RATES, MOMENTUM_RATES = [3e-4, 1e-3, 3e-3], [0.03, 0.1, 0.3]
BETAS = (0.1, 0.3, 0.5, 1.0)
ALPHA = 0.5  # the two worst of four groups
FIGURES = ("train.cvar_loss", "test.cvar_loss", "test.accuracy", "test.worst_group_accuracy", "train.accuracy")
NETWORK = {
    "model_type": "bert",
    "vocab_size": 4000,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 256,
}


@functools.cache
def tokenizer(path: str, length: int, folder: str) -> str:
    """Folder of the tokenizer learnt from the training mails, so that it is learnt once for all runs."""
    found = Path(folder) / f"tokenizer_{length}"
    if not found.exists():
        learning = mails(path, length, vocabulary=NETWORK["vocab_size"])
        learning.setup()
        learning.tokenizer.save_pretrained(found)
    return str(found)


def mails(path: str, length: int, *, uniform: bool = False, seed: int = 0, **tokens: Any) -> GroupedTextDataModule:
    """The mails in their four groups; 60%, 20% and 20% of each are for training, validation and testing."""
    return GroupedTextDataModule(
        LabelledTexts(path),
        columns=Columns("spam", positive=1),
        groups=Groups(["spam", "mailing_list"]),
        splits=ImageSplits("fractions", [0.6, 0.2, 0.2]),
        tokens=TextTokens(max_length=length, **tokens),
        batches=UniformSampling(32) if uniform else GroupSampling(4, 8),
        eval_train=True,
        seed=seed,
    )


ALGORITHMS: dict[str, Callable[[], Algorithm]] = {  # with the middle values of the papers' grids
    "sgd": SGD,
    "default": SONEX,  # as FCCOModule trains CVaRGroupDRO(ALPHA) where nothing else is said
    "ooa": lambda: OOA(eta_dual=0.01),
    "sonx": lambda: SONX(gamma=0.5, gamma_prime=0.1),
    "sonex": lambda: SONEX(gamma=0.5, gamma_prime=0.1, lam=0.1),
    "alexr2": lambda: ALEXR2(K=5, eta=0.002, nu=0.1, gamma=0.5, gamma_prime=0.1, lam=0.1),
}


def objective_of(method: str) -> Objective:
    """What a method minimises; the papers' threshold is trained from 0."""
    if method.startswith("sgd"):
        return CrossEntropy()
    return CVaRGroupDRO(ALPHA) if method == "default" else CVaRGroupDRO(ALPHA, threshold=0.0)


def module_of(job: Job) -> FCCOModule:
    """The network with the job's objective, algorithm, optimizer and schedule."""
    own = job["method"] == "default" or job["method"].startswith("sgd")  # no threshold that is trained
    kind = HeavyBall if job["method"] in MOMENTUM else AdamType
    return FCCOModule(
        TextClassifier(config=NETWORK | {"max_position_embeddings": job["length"]}),
        objective_of(job["method"]),
        algorithm=ALGORITHMS[job["method"].partition("_")[0]](),
        optimizer=lambda params: kind(params, weight_decay=0.01, **job["overrides"]),
        schedule=Schedule(LinearWarmUp, "step", objective_lr=None if own else 0.01),
        evaluation=GroupEvaluation(ALPHA),
    )


def train(job: Job) -> Job:
    """One run; the job with the figures of the last epoch."""
    data = mails(
        job["data"],
        job["length"],
        uniform=job["method"] == "sgd",
        seed=job["seed"],
        tokenizer=tokenizer(job["data"], job["length"], job["folder"]),
    )
    seed_everything(job["seed"], verbose=False)
    module, epochs = module_of(job), job["epochs"]
    trainer = quiet_trainer(max_epochs=epochs, check_val_every_n_epoch=epochs, num_sanity_val_steps=0)
    start = time.process_time()
    trainer.fit(module, data)
    logged = dict(trainer.callback_metrics) | trainer.test(module, data, verbose=False)[0]
    figures: dict[str, dict[str, float]] = {"train": {}, "val": {}, "test": {}}
    for name, figure in logged.items():
        split, _, rest = name.partition("_")
        if split in figures:
            figures[split][rest] = round(float(figure), 6)
    return {**job, **figures, "seconds": round(time.process_time() - start, 1)}


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments(__doc__, jobs=2)
    parser.add_argument("--data", required=True, help="table with the columns text, spam and mailing_list")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *MOMENTUM], help="all by default")
    parser.add_argument("--ablation", choices=["beta", "adam"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--length", type=int, default=32, help="largest number of tokens of a mail")
    parser.add_argument("--tune", action="store_true", help="the grids of learning rates, with seeds of their own")
    given = parser.parse_args()
    ablated = {"beta": ["sonex", "alexr2"], "adam": ["sonex", "sonex_momentum", "alexr2", "alexr2_momentum"]}
    methods = given.methods or ablated.get(given.ablation, list(METHODS))
    given.out.mkdir(parents=True, exist_ok=True)
    picks_file = given.out / "text_groups_picks.json"
    picks = json.loads(picks_file.read_text()) if picks_file.exists() else {}
    common = {"data": given.data, "length": given.length, "epochs": given.epochs, "folder": str(given.out)}
    tokenizer(given.data, given.length, str(given.out))  # before several processes look for it

    def job(method: str, overrides: dict[str, Any], seed: int) -> Job:
        return {"label": method, "method": method, "seed": seed, "overrides": overrides, **common}

    if given.tune:
        grids = {m: {"lr": MOMENTUM_RATES if m in MOMENTUM else ADAPTIVE_RATES} for m in methods}
        shown = ["val.cvar_loss", "val.worst_group_accuracy"]
        picks |= run_searches(grids, job, lambda run: -value(run, shown[0]), given.jobs, shown, train)
        picks_file.write_text(json.dumps(picks, indent=1))
        return
    changes = {f", beta {beta:g}": {"beta": beta} for beta in BETAS} if given.ablation == "beta" else {"": {}}
    jobs = [
        {**job(m, picks.get(m, {}).get("picked", {}) | change, seed), "label": m + suffix}
        for m in methods
        for suffix, change in changes.items()
        for seed in range(given.seeds)
    ]
    results = run_all(jobs, given.jobs, FIGURES[:4], train)
    name = "text_groups" + (f"_{given.ablation}" if given.ablation else "")
    (given.out / f"{name}.json").write_text(json.dumps(results, indent=1))
    print("\n" + table(results, FIGURES, {"seconds": seconds}))
    print(f"\n{given.out / name}.json")


if __name__ == "__main__":
    main()
