"""Continual learning of the embedded digits: methods x seeds, what is learnt against what is forgotten.

Every run goes through ``fcco fit`` and a config of ``configs/continual_clip``::

    uv run python examples/benchmarks/continual_clip.py --tune     # the grids of rho, on two other seeds
    uv run python examples/benchmarks/continual_clip.py            # 5 seeds with the picks
    uv run python examples/benchmarks/continual_clip.py --digits digits28.parquet --val 2000 --out runs/digits28

Each seed has a pretrained model of its own, from which all methods start.  ``--tune`` gives every method that has
constraints the same number of runs and picks rho by the training split alone: the largest gain on the target among the
runs whose worst protected task changes by at least -0.5 points (if there is none, the least loss of it among those that
learn at least half as much as the most).  A row reports mean +- standard deviation over seeds, in points of accuracy;
the picture shows every run.

With ``--digits`` all that is trained on is cropped at random, and runs have 64 epochs, 32 with ``--tune``: real images
are few enough to be learnt by heart.  The grids also have a margin of the loss, and the validation split picks, for
which ``--val`` must not be 0: of the settings whose gain is at most 5 points below that of plain finetuning the one
with which most protected images are known.  Methods whose pick lay on the edge of their grid have more settings.

Of what is kept of images that nobody has seen, ``--val`` images of other handwritings tell, which are held out from
pretraining on, for all methods alike.  By them SONEX has margins (``margin``: ``--feasible.margin auto``), which know
that images of one handwriting are not independent; its multipliers are found while training, so that there is no rho to
pick.  By them, too, ``interpolation`` chooses among the weights between the old model's and the finetuned one's
(WiSE-FT) those of the largest gain on the target for which no protected task loses more than half a point;
``sonex_interpolation`` chooses among those between the old model's and SONEX's.  ``replay`` is plain finetuning with
all protected images among the pairs, and ``lwf`` learning without forgetting: plain finetuning with the old model
distilled on the protected images, by a weight that is picked like rho.
"""

import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runs import CONFIGS, Job, arguments, run_all, seconds, table, train, value

from fcco_lightning.evaluation.pictures import new_figure, quiet_frame, row_of_axes, save

METHODS: dict[str, tuple[str, dict[str, Any]]] = {  # config and overrides
    "finetune": ("digits_finetune", {}),
    "sox": ("digits_sox", {}),
    "sonex": ("digits_sonex", {}),
    "sonx": ("digits_sonx", {}),
    "alexr2": ("digits_alexr2", {}),
    "margin": ("digits_margins", {}),
    "replay": ("digits_finetune", {"data.general": 1.0, "data.batches.num_batches": 26}),  # as many steps as the others
    "interpolation": ("digits_finetune", {}),
    "sonex_interpolation": ("digits_sonex", {}),
    "lwf": ("digits_lwf", {}),
}
REAL = {"model.network.name": "tiny-28", "data.model.name": "tiny-28"}  # of images of 28 x 28 pixels
REAL_IMAGES = 7000  # that are not test images
CROPS = {"data.digits.augment": {"scale": [0.85, 1.0], "ratio": [0.95, 1.05]}}
EPOCHS, TUNING_EPOCHS = 64, 32  # of real images
RHO, KAPPA = "model.penalty.rho", "model.constraints.kappa"
# around the least values of the grids of F.3 of the SONEX paper, above which little is learnt; as many for each
GRIDS = {
    "sox": [1.0, 2.0, 5.0, 20.0],
    "sonex": [0.1, 0.25, 0.5, 1.0],
    "sonx": [0.1, 0.25, 0.5, 1.0],
    "alexr2": [0.1, 0.25, 0.5, 1.0],
    "lwf": [0.25, 1.0, 4.0, 16.0],  # around the weight 1 of its paper
}
# of real images: kappa (< 0 is a margin of the loss, in nats) and the values of rho, more where a pick lay on the edge
REAL_GRIDS: dict[str, dict[float, list[float]]] = {
    "sox": {0.0: [1.0, 2.0, 5.0, 20.0], -0.2: [0.5, 1.0, 2.0, 5.0], -0.4: [1.0]},
    "sonex": {0.0: [0.5, 1.0, 2.0], -0.2: [1.0]},
    "sonx": {0.0: [0.25, 0.5, 1.0, 2.0], -0.2: [1.0]},
    "alexr2": {0.0: [0.1, 0.25, 0.5, 1.0, 2.0], -0.2: [1.0]},
    "lwf": {0.0: [0.25, 0.5, 1.0, 2.0, 4.0]},  # a divergence is 0 at best
}
PICKED_AS = {"sonex_interpolation": "sonex"}
TARGET = 8
TUNING_SEEDS = (100, 101)
KEPT = -0.005
WITHIN = 0.05  # of the gain of plain finetuning
KNOWN = 0.5  # least accuracy of a protected digit with which a pretrained model counts as one
FIGURES = ("train.delta_target", "train.worst_change", "test.delta_target", "test.worst_change", "test.satisfied")


def pretrain(given: tuple[int, Path, int, str | None]) -> Path:
    """The weights from which the runs of a seed start, with so many validation images held out; made once."""
    seed, folder, val, source = given
    weights = folder / f"pretrained_{seed}" / "last.ckpt"
    if not weights.exists():
        import torch

        from fcco_lightning.cli import run

        torch.set_num_threads(1)
        arguments = ["fit", "--config", str(CONFIGS / "continual_clip" / "digits_pretrain.yaml")]
        arguments += ["--seed_everything", str(seed), "--data.seed", str(seed), "--report.enabled", "false"]
        arguments += ["--trainer.logger", "false", "--trainer.enable_progress_bar", "false"]
        arguments += [f"--data.digits.{name}={number}" for name, number in sizes(val, source).items()]
        if source:
            real = REAL | {"data.digits.source": source}
            arguments += [word for key, name in real.items() for word in (f"--{key}", name)]
        part = weights.parent.with_suffix(".part")  # renamed once it is complete
        if run([*arguments, "--checkpoint.dirpath", str(part), "--trainer.limit_val_batches", "0"]):
            raise SystemExit(f"pretraining of seed {seed} failed")
        least = min(known(part / weights.name, seed, val, source))
        if least < KNOWN:
            raise SystemExit(
                f"pretraining of seed {seed} failed: of a protected digit the model knows {least:.0%} of the training "
                "images, and there is nothing to forget. Lower the learning rate of digits_pretrain.yaml."
            )
        part.rename(weights.parent)
    return weights


def digits(seed: int, val: int, source: str | None) -> Any:
    """The embedded data, or those of a table, with so many validation images held out."""
    from fcco_lightning import Architecture, DigitsCLIPDataModule
    from fcco_lightning.data.datamodules.digits_clip import DigitImages

    chosen = DigitImages(**sizes(val, source), source=source)
    data = DigitsCLIPDataModule(target=[8], digits=chosen, model=Architecture(model_of(source)), seed=seed)
    data.setup()
    return data


def sizes(val: int, source: str | None) -> dict[str, int]:
    """How many images are in the splits; of a table of digits, training images are all that are left."""
    return {"num_val": val} if source is None else {"num_val": val, "num_train": REAL_IMAGES - val}


def real(source: str, epochs: int) -> dict[str, Any]:
    """Overrides of a run with the images of a table."""
    length = {"trainer.max_epochs": epochs, "model.schedule.scheduler.init_args.T_max": epochs}
    return REAL | CROPS | length | {"data.digits.source": source}


def model_of(source: str | None) -> str:
    """The architecture for the images."""
    return REAL["data.model.name"] if source else "tiny"


def outputs_of(network: Any, data: Any, split: str) -> tuple[Any, dict[str, Any]]:
    """Logits and columns of a split."""
    import torch

    batches = list(data.evaluation_loaders()[split])
    columns = {name: torch.cat([batch[name] for batch in batches]) for name in ("y", "task")}
    with torch.no_grad():
        return torch.cat([network({"x": batch["x"]}) for batch in batches]), columns


def known(weights: Path, seed: int, val: int, source: str | None) -> list[float]:
    """Accuracy of every protected digit on the training images."""
    from fcco_lightning import CLIPModel

    data, network = digits(seed, val, source), CLIPModel(model_of(source), str(weights))
    network.adapt(data)
    logits, columns = outputs_of(network.eval(), data, "train")
    right, y = logits.argmax(1) == columns["y"], columns["y"]
    return [float(right[y == digit].float().mean()) for digit in y.unique().tolist() if digit != TARGET]


def carry_out(job: Job) -> Job:
    """One run through the command line; of weights in between, also the choice among them."""
    if not job["label"].endswith("interpolation"):
        return train(job)
    with TemporaryDirectory() as folder:
        kept = {"checkpoint.save_last": "true", "checkpoint.dirpath": folder}
        done = train({**job, "overrides": job["overrides"] | kept})
        return {**done, **between(done, Path(folder) / "last.ckpt"), "overrides": job["overrides"]}


def between(job: Job, finetuned: Path) -> dict[str, Any]:
    """Figures of the weights ``(1 - alpha) old + alpha finetuned``, with alpha chosen on the validation split."""
    import torch

    from fcco_lightning import CLIPModel, ContinualEvaluation

    source = job["overrides"].get("data.digits.source")
    data, name = digits(job["seed"], int(job["overrides"]["data.digits.num_val"]), source), model_of(source)
    old, new = (CLIPModel(name, str(path)) for path in (job["overrides"]["model.network.pretrained"], finetuned))
    mixed, evaluation = CLIPModel(name), ContinualEvaluation()
    evaluation.group_names = data.task_names
    for network in (old, mixed):
        network.adapt(data)
        network.eval()

    def figures(network: CLIPModel, split: str, before: dict[str, Any]) -> dict[str, float]:
        outputs, columns = outputs_of(network, data, split)
        return evaluation(outputs, columns | before)

    before = {split: evaluation.reference(*outputs_of(old, data, split)) for split in ("train", "val", "test")}
    start, end = old.state_dict(), new.state_dict()
    tried: dict[float, dict[str, float]] = {}

    def blend(alpha: float) -> None:
        mixed.load_state_dict(
            {k: torch.lerp(v, end[k], alpha) if v.is_floating_point() else v for k, v in start.items()}
        )

    for alpha in (k / 10 for k in range(11)):
        blend(alpha)
        tried[alpha] = figures(mixed, "val", before["val"])
    kept = [alpha for alpha, found in tried.items() if found["worst_change"] >= KEPT]  # 0 is among them
    chosen = max(kept, key=lambda alpha: tried[alpha]["delta_target"])
    blend(chosen)
    return {"alpha": chosen} | {split: figures(mixed, split, first) for split, first in before.items()}


def of(runs: Iterable[Job], name: str) -> float:
    """Mean of a figure over runs."""
    values = [value(r, name) for r in runs]
    return sum(values) / len(values)


def settings(method: str, source: str | None) -> list[dict[str, Any]]:
    """The grid of a method, one setting for what has none."""
    if method not in GRIDS:
        return [{}]
    if source is None:
        return [{RHO: rho} for rho in GRIDS[method]]
    return [{RHO: rho, KAPPA: kappa} for kappa, rhos in REAL_GRIDS[method].items() for rho in rhos]


def by_setting(runs: Iterable[Job]) -> dict[tuple[tuple[str, Any], ...], list[Job]]:
    """The runs of every setting."""
    found: dict[tuple[tuple[str, Any], ...], list[Job]] = {}
    for r in runs:
        setting = tuple((name, r["overrides"][name]) for name in (RHO, KAPPA) if name in r["overrides"])
        found.setdefault(setting, []).append(r)
    return found


def pick(runs: list[Job]) -> dict[str, Any]:
    """The setting that learns most of those that forget nothing, by the training split."""
    tried = by_setting(runs)
    gains = {setting: of(rs, "train.delta_target") for setting, rs in tried.items()}
    worst = {setting: of(rs, "train.worst_change") for setting, rs in tried.items()}
    safe = {setting: gain for setting, gain in gains.items() if worst[setting] >= KEPT}
    losses = {setting: worst[setting] for setting in gains if gains[setting] >= max(gains.values()) / 2}
    best = safe or losses
    if not best:
        method, most = runs[0]["label"], max(gains.values())
        raise SystemExit(f"{method}: no setting learns anything (gain at most {most:+.3f}), so there is none to pick.")
    return dict(max(best, key=lambda setting: best[setting]))


def pick_real(runs: list[Job], unconstrained: list[Job]) -> dict[str, Any]:
    """The setting that keeps most of those that learn nearly as much as plain finetuning, by the validation split."""
    tried = by_setting(runs)
    gains = {setting: of(rs, "val.delta_target") for setting, rs in tried.items()}
    least = min(of(unconstrained, "val.delta_target") - WITHIN, max(gains.values()))
    known = {setting: of(tried[setting], "val.protected_accuracy") for setting in gains if gains[setting] >= least}
    return dict(max(known, key=lambda setting: known[setting]))


def picture(results: list[Job], path: Path) -> None:
    """Gain on the target against the worst protected change on the test split, a point for every run."""
    figure = new_figure(6.5, 4.5)
    (axes,) = row_of_axes(figure, 1)
    for marker, label in zip("osD^v<>PX*", dict.fromkeys(r["label"] for r in results), strict=False):
        runs = [r for r in results if r["label"] == label and "test" in r]
        lost = [100 * value(r, "test.worst_change") for r in runs]
        axes.plot(lost, [100 * value(r, "test.delta_target") for r in runs], marker, ls="", alpha=0.8, label=label)
    axes.axvline(100 * KEPT, color="0.5", lw=1, ls="--")
    lost, gained = "worst change of a protected digit (points, test)", "gain on the target digit (points, test)"
    axes.set(xlabel=lost, ylabel=gained)
    quiet_frame(axes)
    axes.legend()
    save(figure, path)


def main() -> None:
    """Parse the arguments and run."""
    parser = arguments(__doc__, jobs=2)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--val", type=int, default=3000, help="validation images that are held out; 0 for none")
    parser.add_argument("--digits", help="a data set of digits with 28 x 28 pixels instead of scikit-learn's")
    parser.add_argument("--tune", action="store_true", help=f"the grids, seeds {TUNING_SEEDS}")
    parser.add_argument("--first-seed", type=int, default=0, help="of the results")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    picks_file = given.out / "continual_clip_picks.json"
    picks = json.loads(picks_file.read_text()) if picks_file.exists() else {}
    seeds = TUNING_SEEDS if given.tune else tuple(range(given.first_seed, given.first_seed + given.seeds))
    with ProcessPoolExecutor(given.jobs) as pool:
        folder = given.out / ("digits_clip" if given.val == 0 else f"digits_clip_{given.val}")
        starts = [(seed, folder, given.val, given.digits) for seed in seeds]
        weights = dict(zip(seeds, pool.map(pretrain, starts), strict=True))

    def job(method: str, seed: int, overrides: dict[str, Any]) -> Job:
        config, own = METHODS[method]
        chosen: dict[str, Any] = {"model.network.pretrained": str(weights[seed]), **own, **overrides}
        chosen |= {f"data.digits.{name}": number for name, number in sizes(given.val, given.digits).items()}
        chosen |= real(given.digits, TUNING_EPOCHS if given.tune else EPOCHS) if given.digits else {}
        chosen |= {} if method == "margin" else {"trainer.limit_val_batches": 0}  # the report evaluates the end
        return {"label": method, "config": f"continual_clip/{config}", "seed": seed, "overrides": chosen}

    if given.tune:
        methods = ["finetune"] * bool(given.digits) + [m for m in given.methods if m in GRIDS]
        jobs = [job(m, s, setting) for m in methods for setting in settings(m, given.digits) for s in seeds]
        results = run_all(jobs, given.jobs, FIGURES, kept=given.out / "continual_clip_tuning.jsonl")
        runs = {m: [r for r in results if r["label"] == m and "train" in r] for m in methods}
        for m in (m for m in methods if m in GRIDS):
            picks[m] = pick_real(runs[m], runs["finetune"]) if given.digits else pick(runs[m])
            print(f"picked {m}: {picks[m]}")
        picks_file.write_text(json.dumps(picks, indent=1))
        return
    jobs = [job(m, s, picks.get(PICKED_AS.get(m, m), {})) for m in given.methods for s in seeds]
    results = run_all(jobs, given.jobs, FIGURES, carry_out, given.out / "continual_clip.jsonl")
    print("\n" + table(results, FIGURES, {"seconds": seconds}, scale=100))
    picture(results, given.out / "continual_clip.png")
    print(f"\n{given.out / 'continual_clip'}.jsonl, .png")


if __name__ == "__main__":
    main()
