"""Entry point: answers ``--version`` without loading torch, hands everything else to the command line."""

import sys
from collections.abc import Sequence

_HELP = """\
usage: fcco [-h] [--version] {fit,validate,test,predict} ...

Compositional and constrained training on PyTorch Lightning.

commands (fcco COMMAND --help lists every option):
  fit        train, then report: a table, report.json and pictures in the run's folder
  validate   figures of a checkpoint on the training and validation splits
  test       figures of a checkpoint on the test split
  predict    outputs of a checkpoint, one per sample

examples:
  fcco fit --config configs/roc_fairness/synthetic_alexr2.yaml
  fcco fit --config configs/roc_fairness/adult_alexr2.yaml --data.train adult_train.csv --data.test adult_test.csv
  fcco fit --config CONFIG --model.algorithm.lam 0.02 --trainer.max_epochs 20
  fcco fit --config CONFIG --print_config
  fcco fit --model.algorithm.help SONEX
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
    from fcco_lightning.cli import run  # noqa: PLC0415 - loads torch and lightning

    sys.exit(run(given))


if __name__ == "__main__":
    main()
