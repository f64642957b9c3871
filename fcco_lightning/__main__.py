"""Entry point: answers ``--version`` and what needs no torch, hands everything else to the command line."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from fcco_lightning.catalogue import KINDS, members

_HELP = """\
usage: fcco [-h] [--version] {fit,validate,test,predict,list,inspect,convert} ...

Compositional and constrained training on PyTorch Lightning.

commands (fcco COMMAND --help lists every option):
  fit        train, then report: a table, report.json and pictures in the run's folder
  validate   figures of a checkpoint on the training and validation splits
  test       figures of a checkpoint on the test split
  predict    outputs of a checkpoint, one per sample
  list       the algorithms, objectives, constraints, ... that a configuration can name
  inspect    what a checkpoint holds, every byte of it verified; no model is built
  convert    weights and rows of a checkpoint as .safetensors, .npz or a folder of .npy files

examples:
  fcco fit --config configs/roc_fairness/synthetic_alexr2.yaml
  fcco fit --config configs/roc_fairness/adult_alexr2.yaml --data.train adult_train.csv --data.test adult_test.csv
  fcco fit --config CONFIG --model.algorithm.lam 0.02 --trainer.max_epochs 20
  fcco fit --config CONFIG --print_config
  fcco fit --model.algorithm.help SONEX
  fcco inspect runs/version_0/checkpoints/last.ckpt
  fcco convert runs/version_0/checkpoints/last.ckpt weights.safetensors
"""


def main(args: Sequence[str] | None = None) -> None:
    """Run ``fcco``.

    Args:
        args: as on the command line, without the program's name; ``sys.argv[1:]`` by default.
    """
    given = list(sys.argv[1:] if args is None else args)
    if given in ([], ["-h"], ["--help"]):
        sys.stdout.write(_HELP)
        return
    if given == ["--version"]:
        from fcco_lightning import __version__  # noqa: PLC0415

        sys.stdout.write(f"fcco_lightning {__version__}\n")
        return
    if given[0] in _TOOLS:
        sys.exit(_TOOLS[given[0]](given[1:]))
    from fcco_lightning.cli import run  # noqa: PLC0415 - loads torch and lightning

    sys.exit(run(given))


def _list(args: Sequence[str]) -> int:
    description = "List what a configuration can name, with one line each; without a kind, all of it."
    parser = ArgumentParser("fcco list", description=description, allow_abbrev=False)
    parser.add_argument("kinds", metavar="KIND", nargs="*", help=f"one or more of: {', '.join(KINDS)}")
    given = parser.parse_args(args)
    unknown = [kind for kind in given.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    for kind in given.kinds or KINDS:
        sys.stdout.write(f"{kind} ({KINDS[kind].place})\n")
        for name, summary in members(kind):
            sys.stdout.write(f"  {name:<28}{summary}\n")
        sys.stdout.write("\n")
    sys.stdout.write(
        "fcco fit --model.algorithm.help SONEX shows the arguments of a class. Parts that do not go together are "
        "refused by name.\n"
    )
    return 0


def _inspect(args: Sequence[str]) -> int:
    description = "Say what a checkpoint holds: training state, weights, dual states. Every byte is verified."
    parser = ArgumentParser("fcco inspect", description=description, allow_abbrev=False)
    parser.add_argument("ckpt", metavar="CKPT", help="checkpoint that fcco fit wrote")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(args)
    from fcco_lightning.checkpoint_tools import run_inspect  # noqa: PLC0415 - loads torch

    return run_inspect(given.ckpt, as_json=given.json)


def _convert(args: Sequence[str]) -> int:
    description = (
        "Write a checkpoint as plain tensors: the network's weights (network.*), and for each dual state NAME.rows "
        "(NaN where never written) and NAME.seen."
    )
    parser = ArgumentParser("fcco convert", description=description, allow_abbrev=False)
    parser.add_argument("ckpt", metavar="CKPT", help="checkpoint that fcco fit wrote")
    parser.add_argument(
        "out",
        metavar="OUT",
        help="NAME.safetensors, NAME.npz, or a folder (no extension, or / at its end) for one .npy a tensor",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there")
    given = parser.parse_args(args)
    from fcco_lightning.checkpoint_tools import run_convert  # noqa: PLC0415 - loads torch

    return run_convert(given.ckpt, given.out, force=given.force)


_TOOLS = {"list": _list, "inspect": _inspect, "convert": _convert}


if __name__ == "__main__":
    main()
