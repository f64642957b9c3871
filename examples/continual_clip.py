"""Continual learning in small, from one command: teach a CLIP model a digit without losing the nine others.

    uv run python examples/continual_clip.py
    uv run python examples/continual_clip.py --digits digits.parquet --out runs/digits28   # 28 x 28 pixels of your own

1. pretrains a model of some 300,000 parameters on captioned digits, of which it hardly sees the "eight";
2. finetunes it on eights: plainly; with SOX and a squared hinge on nine non-forgetting constraints; with SONEX and a
   smoothed hinge;
3. prints what was learnt and what was lost, with the report and the pictures of every run in ``runs/digits_clip``.

Images of your own would be learnt by heart: while finetuning they are cropped at random, in four times as many epochs,
some four minutes for each method on one core.

Every step is a run of ``fcco fit`` with a config of ``configs/continual_clip``: the same as on your own data.
"""

import argparse
import json
from pathlib import Path

from fcco_lightning.cli import run

CONFIGS = Path(__file__).parents[1] / "configs" / "continual_clip"
REAL = (  # finetuning on images of one's own
    "--data.digits.augment={scale: [0.85, 1.0], ratio: [0.95, 1.05]}",
    "--trainer.max_epochs=64",
    "--model.schedule.scheduler.init_args.T_max=64",
)
METHODS = {"finetune": "plain finetuning", "sox": "SOX, squared hinge", "sonex": "SONEX, smoothed hinge"}


def fit(config: str, folder: Path, seed: int, *overrides: str) -> None:
    """One run through the command line; ends the program if it fails."""
    print(f"\n== fcco fit --config {CONFIGS / config}.yaml", flush=True)
    arguments = [
        "fit",
        "--config",
        f"{CONFIGS / config}.yaml",
        "--seed_everything",
        str(seed),
        "--data.seed",
        str(seed),
    ]
    arguments += ["--report.folder", str(folder), "--trainer.logger", "false", "--trainer.enable_progress_bar", "false"]
    status = run([*arguments, *overrides])
    if status:
        raise SystemExit(status)


def main() -> None:
    """Run the three steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/digits_clip"))
    parser.add_argument(
        "--digits", help="a data set of digits with 28 x 28 pixels, such as MNIST: a .parquet file or a hub id"
    )
    given = parser.parse_args()
    sizes = [f"--data.digits.source={given.digits}", "--data.model.name=tiny-28", "--model.network.name=tiny-28"]
    data = sizes if given.digits else []
    finetuning = [*data, *REAL] if given.digits else []
    weights = given.out / f"pretrained_{given.seed}" / "last.ckpt"
    if weights.exists():
        print(f"pretrained already: {weights}")
    else:
        part = weights.parent / "part"  # from which the weights are taken once they are complete
        fit("digits_pretrain", weights.parent, given.seed, "--checkpoint.dirpath", str(part), *data)
        (part / "last.ckpt").rename(weights)
    for method in METHODS:
        start = ["--model.network.pretrained", str(weights), "--checkpoint.dirpath", str(given.out / method)]
        fit(f"digits_{method}", given.out / method, given.seed, *start, *finetuning)
    print(f"\n{'points of accuracy':26}{'constrained images':>24}{'test images':>24}")
    print(f"{'':26}" + 2 * f"{'eight':>10}{'worst other':>14}")
    for method, name in METHODS.items():
        report = json.loads((given.out / method / "report.json").read_text())
        figures = [100 * report[split][key] for split in ("train", "test") for key in ("delta_target", "worst_change")]
        print(f"{name:26}" + "".join(f"{v:>+{width}.1f}" for v, width in zip(figures, (10, 14, 10, 14), strict=True)))
    print(f"\nreports and pictures: {given.out}/{{{','.join(METHODS)}}}")


if __name__ == "__main__":
    main()
