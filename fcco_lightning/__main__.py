"""Entry point: answers ``--version`` and what needs no torch, hands everything else to the command line."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path

from fcco_lightning.catalogue import KINDS, members
from fcco_lightning.errors import ConfigError, FCCOError
from fcco_lightning.named_configs import copy_config, named_configs, named_searches, summary

_CONFIGS, _SEARCHES = "configs", "searches"

_HELP = """\
usage: fcco [-h] [--version] [--print_completion] {fit,front,validate,test,predict,export,compare,tune,list,...} ...

Compositional and constrained training on PyTorch Lightning.

commands (fcco COMMAND --help lists every option):
  fit        train, then report: a table, report.html, report.json and pictures in the run's folder
  front      train the front of figures against violation: a run for every kappa, a table and a picture
  validate   figures of a checkpoint on the training and validation splits
  test       figures of a checkpoint on the test split
  predict    scores, probabilities and decisions for the rows of a table, or outputs for a config's test split
  export     the network of a checkpoint as .pt (state dict), .pt2 (torch.export) or .onnx
  compare    finished runs side by side: a table and a picture
  tune       a search over options, judged on the validation split: a table, and the command that trains the best
  list       the algorithms, objectives, constraints, ... that a configuration can name, and the configurations
  inspect    what a checkpoint holds, every byte of it verified; no model is built
  convert    weights and rows of a checkpoint as .safetensors, .npz or a folder of .npy files

completion of commands, options and names in bash (in zsh after: autoload -U bashcompinit && bashcompinit):
  fcco --print_completion > ~/.fcco_completion    and, in .bashrc:    source ~/.fcco_completion

examples:
  fcco fit --config synthetic_alexr2
  fcco fit --config roc_fairness/adult_alexr2 --data.train adult_train.csv --data.test adult_test.csv
  fcco fit --config CONFIG --model.algorithm.lam 0.02 --trainer.max_epochs 20
  fcco fit --config CONFIG --print_config
  fcco fit --model.algorithm.help SONEX
  fcco predict runs/version_0/checkpoints/last.ckpt new.csv --out decisions.csv
  fcco front --config CONFIG --kappas 0.1,0.05,0.02
  fcco compare runs/*
  fcco tune --config CONFIG --search search.yaml --trials 20
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
    if given == ["--print_completion"]:
        from fcco_lightning.completion import completion  # noqa: PLC0415

        sys.stdout.write(completion(["fit", "validate", "test", *_TOOLS]))
        return
    tool = _tool(given)
    if tool is not None:
        sys.exit(tool(given[1:]))
    from fcco_lightning.cli import run  # noqa: PLC0415 - loads torch and lightning

    sys.exit(run(given))


def _list(args: Sequence[str]) -> int:
    description = "List what a configuration can name, with one line each, and the configurations; by default all."
    parser = ArgumentParser("fcco list", description=description, allow_abbrev=False)
    kinds = [*KINDS, _CONFIGS, _SEARCHES]
    parser.add_argument("kinds", metavar="KIND", nargs="*", help=f"one or more of: {', '.join(kinds)}")
    parser.add_argument("--copy", metavar="CONFIG", help="copy a configuration into this folder, to be edited")
    given = parser.parse_args(args)
    unknown = [kind for kind in given.kinds if kind not in kinds]
    if unknown:
        parser.error(f"there is no kind {unknown[0]!r}; there are {', '.join(kinds)}")
    if given.copy is not None:
        return _status(lambda: _say(copy_config(given.copy, Path())))
    for kind in given.kinds or kinds:
        _list_kind(kind)
    _say(
        "fcco fit --model.algorithm.help SONEX shows the arguments of a class. Parts that do not go together are "
        "refused by name."
    )
    return 0


def _list_kind(kind: str) -> None:
    if kind == _CONFIGS:
        _say(f"{kind} (fcco fit --config NAME; --copy NAME copies one)")
        entries = [(name, summary(path)) for name, path in named_configs().items()]
    elif kind == _SEARCHES:
        _say(f"{kind} (fcco tune --search NAME; grids of the papers)")
        entries = [(name, summary(path)) for name, path in named_searches().items()]
    else:
        _say(f"{kind} ({KINDS[kind].place})")
        entries = [(entry.name, entry.summary) for entry in members(kind)]
    width = 2 + max(26, *(len(name) for name, _ in entries))
    for name, line in entries:
        _say(f"  {name:<{width}}{line}")
    _say("")


def _inspect(args: Sequence[str]) -> int:
    description = "Say what a checkpoint holds: training state, weights, dual states. Every byte is verified."
    parser = ArgumentParser("fcco inspect", description=description, allow_abbrev=False)
    parser.add_argument("ckpt", metavar="CKPT", help="checkpoint that fcco fit wrote")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(args)
    from fcco_lightning.checkpoint_tools import print_description  # noqa: PLC0415 - loads torch

    return _status(lambda: print_description(given.ckpt, as_json=given.json))


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
    from fcco_lightning.checkpoint_tools import convert  # noqa: PLC0415 - loads torch

    return _status(lambda: _say(convert(given.ckpt, given.out, force=given.force)))


def _predict(args: Sequence[str]) -> int:
    description = (
        "Predict the rows of a table, labelled or not: a row for each with its id, its groups where known, scores, "
        "probabilities and decisions. Images and others: fcco predict --config CONFIG --ckpt_path CKPT."
    )
    parser = ArgumentParser("fcco predict", description=description, allow_abbrev=False)
    parser.add_argument("ckpt", metavar="CKPT", help="checkpoint that fcco fit wrote")
    parser.add_argument("table", metavar="TABLE", help="CSV or Parquet file, or what else data.train takes")
    parser.add_argument("--out", default="predictions.csv", help="file to write, .csv or .parquet")
    parser.add_argument("--id", dest="id_column", help="column that names the rows; without it they are numbered")
    parser.add_argument("--threshold", type=float, default=0.5, help="least probability of a positive decision")
    _add_trusted(parser)
    given = parser.parse_args(args)

    def work() -> None:
        from fcco_lightning.inference import load, write_table  # noqa: PLC0415 - loads torch

        model = load(given.ckpt, trusted=given.trusted)
        write_table(model.predict(given.table, id_column=given.id_column, threshold=given.threshold), given.out)
        _say(given.out)

    return _status(work)


def _export(args: Sequence[str]) -> int:
    description = "Write the network of a checkpoint for other programs."
    parser = ArgumentParser("fcco export", description=description, allow_abbrev=False)
    parser.add_argument("ckpt", metavar="CKPT", help="checkpoint that fcco fit wrote")
    parser.add_argument(
        "out", metavar="OUT", help="NAME.pt (plain state dict), NAME.pt2 (torch.export) or NAME.onnx (needs onnx)"
    )
    parser.add_argument("--shape", type=int, nargs="+", help="of one input, for networks of other things than tables")
    _add_trusted(parser)
    given = parser.parse_args(args)

    def work() -> None:
        from fcco_lightning.inference import export  # noqa: PLC0415 - loads torch

        _say(export(given.ckpt, given.out, shape=given.shape, trusted=given.trusted))

    return _status(work)


def _compare(args: Sequence[str]) -> int:
    description = "Finished runs side by side: where their settings differ, and what they reached; a table, a picture."
    parser = ArgumentParser("fcco compare", description=description, allow_abbrev=False)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run, with its report.json")
    parser.add_argument("--out", help="CSV file for the table")
    parser.add_argument("--picture", default="comparison.png", help="PNG file to write")
    given = parser.parse_args(args)
    from fcco_lightning.comparison import print_comparison  # noqa: PLC0415 - loads rich and matplotlib

    return _status(lambda: print_comparison(given.runs, given.out, given.picture))


def _front(args: Sequence[str]) -> int:
    description = (
        "Train the front of figures against violation: a run for every kappa from the loosest to the tightest, each "
        "begun with the weights and multipliers of the one before; then a table, front.csv, front.json and front.png. "
        "The same command goes on where it was interrupted; finished points are not trained again."
    )
    parser = ArgumentParser(
        "fcco front",
        usage="fcco front --config CONFIG [--kappas K,K,... | --factors F,F,...] [--out FOLDER] [OPTION ...]",
        description=description,
        epilog="Other options are those of fcco fit, for all points: --trainer.max_epochs 20, --data.train TABLE.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", "-c", metavar="CONFIG", action="append", required=True, help="as of fcco fit")
    of_points = parser.add_mutually_exclusive_group()
    of_points.add_argument("--kappas", metavar="K,K,...", help="kappa of every constraint, point by point")
    of_points.add_argument(
        "--factors",
        metavar="F,F,...",
        default="4,2,1,0.5,0.25",
        help="what the kappas of the configuration are multiplied by, point by point (default %(default)s)",
    )
    parser.add_argument("--out", default="runs/front", help="folder for the points and the front (default %(default)s)")
    given, others = parser.parse_known_args(args)
    from fcco_lightning.front import print_front  # noqa: PLC0415 - loads rich and matplotlib

    options = [part for name in given.config for part in ("--config", name)] + others
    return _status(lambda: print_front(options, given.kappas, given.factors, given.out))


def _tune(args: Sequence[str]) -> int:
    description = (
        "Search over the options of fcco fit: every trial is a fit with the same budget, judged on the validation "
        "split. Needs optuna: pip install 'fcco-lightning[tune]'. All other options are those of fcco fit."
    )
    parser = ArgumentParser("fcco tune", usage="%(prog)s [options] --search FILE ...", description=description)
    parser.allow_abbrev = False
    parser.add_argument(
        "--search",
        dest="space",
        metavar="FILE",
        required=True,
        help="what to search over; or one of fcco list searches",
    )
    parser.add_argument("--trials", type=int, default=20, help="fits in all, with those that the folder has already")
    parser.add_argument("--folder", default="tuning", help="of the search; what is there already is continued")
    parser.add_argument("--figure", help="of the validation split; by default the objective's figure of merit")
    parser.add_argument(
        "--mode", choices=("max", "min"), help="which values are better; by default min of losses and gaps"
    )
    parser.add_argument("--sampler", choices=("tpe", "random", "grid"), default="tpe")
    parser.add_argument("--seed", type=int, default=0, help="of the sampler")
    parser.add_argument("--full", action="store_true", help="end no trial early (successive halving otherwise does)")
    given, fit = parser.parse_known_args(args)

    def work() -> None:
        from fcco_lightning.cli import explained  # noqa: PLC0415 - loads torch and lightning
        from fcco_lightning.tuning import print_search  # noqa: PLC0415

        asked = vars(given)
        status = explained(lambda: print_search(fit, **asked))
        if status:
            sys.exit(status)

    return _status(work)


def _add_trusted(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--trusted", nargs="+", default=[], metavar="PACKAGE", help="packages of networks of your own, to be imported"
    )


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")


def _status(work: Callable[[], object]) -> int:
    """Do the work: 0, 1 for an error, 2 for a mistake in the arguments, 130 when interrupted."""
    try:
        work()
    except FCCOError as error:
        if os.environ.get("FCCO_DEBUG"):
            raise
        sys.stderr.write(f"fcco: {type(error).__name__}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        sys.stderr.write("fcco: interrupted.\n")
        return 130
    return 0


def _tool(given: Sequence[str]) -> Callable[[Sequence[str]], int] | None:
    """What carries out a command without Lightning's command line; None for the others."""
    if given[0] == "predict" and not (len(given) > 1 and not given[1].startswith("-")):
        return None  # of a datamodule's test split
    return _TOOLS.get(given[0])


_TOOLS = {
    "compare": _compare,
    "convert": _convert,
    "export": _export,
    "front": _front,
    "inspect": _inspect,
    "list": _list,
    "predict": _predict,
    "tune": _tune,
}


if __name__ == "__main__":
    main()
