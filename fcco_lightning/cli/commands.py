"""The commands of ``fcco``; torch and Lightning are imported only by commands that need them."""

import difflib
import re
import shlex
import sys
import warnings
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fcco_lightning import __version__
from fcco_lightning.checks import checkpoint_file
from fcco_lightning.cli.catalogue import KINDS, members
from fcco_lightning.cli.failures import status_of
from fcco_lightning.cli.loading import quick_loading
from fcco_lightning.cli.named_configs import copy_config, named_configs, named_searches, summary
from fcco_lightning.errors import ConfigError, printable_lines

_LISTED = (*KINDS, "configs", "searches")

_HELP = """\
usage: fcco [-h] [--version] [--print_completion] {fit,front,validate,test,predict,export,compare,tune,list,...} ...

Training of deep models on compositional objectives and under constraints, with PyTorch Lightning.

commands (fcco COMMAND --help shows its options):
  fit        train a model; print a table, and write report.html, report.json and pictures to the run's folder
  front      trade off a model's figures against constraint violation: a run for each kappa, a table and a picture
  validate   evaluate a checkpoint on the training and validation splits
  test       evaluate a checkpoint and its constraints on a labelled table, or on the test split of a configuration
  predict    write scores, probabilities and decisions for a table, or outputs for a configuration's test split
  export     write the network of a checkpoint as .pt (state dict), .pt2 (torch.export) or .onnx
  compare    show finished runs side by side in a table and a picture
  tune       search over options by figures of the validation split; print the command that trains the best
  list       list the configurations, and the algorithms, objectives, constraints, ... that can be named in one
  inspect    verify every byte of a checkpoint and show its contents, without building the model
  convert    write the weights and dual states of a checkpoint as .safetensors or .npz

exit status: 0 for success, 2 for a refused option or argument, 1 for any other failure, 130 or 143 if interrupted

shell completion of commands, options and names:
  fcco --print_completion > ~/.fcco_completion
  in .bashrc:  source ~/.fcco_completion
  in .zshrc:   autoload -U bashcompinit && bashcompinit; source ~/.fcco_completion

examples:
  fcco fit --config synthetic_alexr2
  fcco fit --config roc_fairness/adult_alexr2 --data.train adult_train.csv --data.test adult_test.csv
  fcco fit --config CONFIG --model.algorithm.lam 0.02 --trainer.max_epochs 20
  fcco fit --config CONFIG --print_config
  fcco fit --model.algorithm.help SONEX
  fcco predict runs/version_0/checkpoints/last.ckpt new.csv --out decisions.csv
  fcco test runs/version_0/checkpoints/last.ckpt later.csv
  fcco front --config CONFIG --kappas 0.1,0.05,0.02
  fcco compare runs/*
  fcco tune --config CONFIG --search search.yaml --trials 20
  fcco inspect runs/version_0/checkpoints/last.ckpt
  fcco convert runs/version_0/checkpoints/last.ckpt weights.safetensors
"""

_HELP_OF_FIT = """\
usage: fcco fit TABLE --label COLUMN [OPTION ...]
       fcco fit --config CONFIG [TABLE] [OPTION ...]

Train a model, print a table of its figures, and write report.html, report.json
and pictures to a folder below runs. For a table, options that are not given
follow from its columns, and the first line of the output shows them.

data
  --data.train TABLE               training data: .csv, .tsv(.gz) or .parquet
  --data.test TABLE                test data (default: held out from training)
  --data.columns.label COLUMN      column to be predicted
  --data.columns.positive VALUE    label value of the positive class
  --data.columns.sensitive COLUMN  groups that constraints compare
  --data.columns.favoured VALUE    the group with which the others are compared
  --data.splits.test_fraction F    share of the rows held out for the test
  --data.splits.val_fraction F     share of the rest held out for validation
  --data.batches.batch_size N      samples in a mini-batch

model
  --model.objective CLASS          one of: fcco list objectives
  --model.constraints CLASS,...    some of: fcco list constraints
  --model.constraints.kappa X      tolerance of the constraints
  --decisions balanced             how scores become decisions; instead of
                                   balanced, one of --decisions.costs [1,10],
                                   .share .1, .tpr .8 and .threshold .2
  --model.network CLASS            one of: fcco list networks
  --model.algorithm CLASS          one of: fcco list algorithms
  --model.optimizer CLASS          one of: fcco list optimizers, or torch.optim
  --model.optimizer.lr X           learning rate

in short
  TABLE as first argument, --test, --label, --positive, --sensitive,
  --favoured, --objective, --constraints, --network, --algorithm, --optimizer,
  --lr, --batch_size, --epochs, --seed

run
  --trainer.max_epochs N           number of epochs
  --trainer.accelerator cpu        or gpu
  --trainer.devices N              number of processes
  --seed_everything N              random seed (default 0)
  --name NAME                      name of the run's folder below runs
  --ckpt_path auto                 resume this job; or the path of a checkpoint
  --feasible.enabled true          keep the best weights that meet constraints
  --report.importances true        measure which columns matter
  --config CONFIG                  a file, or one of: fcco list configs
  --print_config                   print all options and exit without training

more
  fcco fit --help all              show every option
  fcco fit --model.algorithm.help SONEX
                                   show the options of a class
"""

_OF_LIGHTNING = ("fit", "validate", "test", "predict")


def run(args: Sequence[str] | None = None) -> int:
    """Carry out a command line.

    Args:
        args: arguments without the program's name; ``sys.argv[1:]`` by default.

    Returns: the exit status: 0, 2 if an argument is refused, 1 for any other error, 130 or 143 when interrupted.
    """
    arguments = list(sys.argv[1:] if args is None else args)
    if arguments in ([], ["-h"], ["--help"]):
        sys.stdout.write(_HELP)
    elif arguments in (["fit", "-h"], ["fit", "--help"]):
        sys.stdout.write(_HELP_OF_FIT)
    elif arguments == ["--version"]:
        _print_line(f"fcco_lightning {__version__}")
    elif arguments == ["--print_completion"]:
        from fcco_lightning.cli.completion import completion  # noqa: PLC0415

        names = sorted({*_OF_LIGHTNING, *_TOOLS})
        sys.stdout.write(completion({name: _options(name) if name in _TOOLS else [] for name in names}))
    elif arguments[0] in _TOOLS and not _takes_a_split(arguments):
        return _run_tool(*arguments)
    elif not arguments[0].startswith("-") and arguments[0] not in _OF_LIGHTNING:
        commands = [*_OF_LIGHTNING, *sorted(_TOOLS.keys() - set(_OF_LIGHTNING))]
        close = difflib.get_close_matches(arguments[0], commands, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        sys.stderr.write(f"fcco: {arguments[0]!r} is not a command.{hint} The commands are {', '.join(commands)}.\n")
        return 2
    elif not {*_OF_LIGHTNING, *_TOOLS, "-h", "--help"} & set(arguments):
        sys.stderr.write(
            f"fcco: the command is missing. It comes first, for example: fcco fit {shlex.join(arguments)}\n"
        )
        return 2
    else:
        return status_of(lambda: _run_lightning(arguments), trains=True)
    return 0


def _run_lightning(typed: Sequence[str]) -> None:
    """Carry out a command of Lightning; errors in files and tables are raised before Lightning is loaded."""
    from fcco_lightning.cli.shorthands import written_out  # noqa: PLC0415

    with _plain_warnings():
        arguments = written_out(typed[:2] if typed[1:] == ["--help", "all"] else typed)
    if typed[0] == "fit" and len(arguments) <= len(typed):  # otherwise the defaults have been printed
        sys.stderr.write("Loading PyTorch and Lightning.\n")
        sys.stderr.flush()
    with quick_loading():
        from fcco_lightning.cli.lightning_cli import start  # noqa: PLC0415 - loads torch and lightning

    start(arguments)


def _takes_a_split(arguments: Sequence[str]) -> bool:
    """Whether the command is ``predict`` or ``test`` for the test split of a datamodule, not for a table."""
    run_options = ("-c", "--config", "--ckpt_path", "--print_config", "--data", "--model", "--trainer")
    return arguments[0] in ("predict", "test") and any(re.split("[=.]", arg)[0] in run_options for arg in arguments[1:])


# --------------------------------------------------------------------------------- tools: commands with own options

Argument = tuple[tuple[str, ...], dict[str, Any]]
"""Names and settings of an argument, as for :meth:`ArgumentParser.add_argument`."""
_TOOLS: dict[str, tuple[Callable[[Namespace], None], tuple[Argument, ...]]] = {}
_USAGE = {  # of tools that pass other options on to fcco fit
    "front": "fcco front [--config CONFIG] [--kappas K,K,... | --factors F,F,...] [--out FOLDER] OPTION ...",
    "tune": "%(prog)s [options] --search FILE ...",
}
_EITHER = ("--kappas", "--factors")  # of front; they exclude each other


def _tool(*arguments: Argument) -> Callable[[Callable[[Namespace], None]], Callable[[Namespace], None]]:
    """Decorate the function of a tool, which receives its options and, in ``of_fit``, those passed on to fit."""

    def add(work: Callable[[Namespace], None]) -> Callable[[Namespace], None]:
        _TOOLS[work.__name__.removeprefix("_")] = work, arguments
        return work

    return add


def _argument(*names: str, **settings: Any) -> Argument:
    return names, settings


_CKPT = _argument("ckpt", metavar="CKPT", help="checkpoint written by fcco fit")
_TABLE = _argument("table", metavar="TABLE", help="CSV or Parquet file, or another source that data.train accepts")
_TRUSTED = _argument(
    "--trusted", nargs="+", default=[], metavar="CLASS", help="full names of your own classes that may be imported"
)


def parser_of(name: str) -> ArgumentParser:
    """The parser of a tool, whose description is the docstring of its function."""
    work, arguments = _TOOLS[name]
    parser = ArgumentParser(f"fcco {name}", usage=_USAGE.get(name), description=work.__doc__, allow_abbrev=False)
    group = parser.add_mutually_exclusive_group() if name == "front" else parser
    for names, settings in arguments:
        (group if names[0] in _EITHER else parser).add_argument(*names, **settings)
    return parser


def _options(name: str) -> list[str]:
    """The long options of a tool, without ``--config``, which is completed as for ``fit``."""
    words = [word for names, _ in _TOOLS[name][1] for word in names]
    return [word for word in words if word.startswith("--") and word != "--config"]


def _run_tool(name: str, *args: str) -> int:
    parser = parser_of(name)
    options, of_fit = parser.parse_known_args(args)
    if of_fit and name not in _USAGE:
        parser.error(f"unrecognized arguments: {' '.join(of_fit)}")

    def work() -> None:
        with _plain_warnings():
            if "ckpt" in options:  # before torch is loaded
                ckpt, table = checkpoint_file(options.ckpt), str(getattr(options, "table", ""))
                if ckpt.suffix != ".ckpt" and table.endswith(".ckpt"):
                    raise ConfigError(
                        f"{ckpt} is given as the checkpoint, and {table} as the table. Put {table} first."
                    )
            _TOOLS[name][0](Namespace(**vars(options), of_fit=of_fit))

    return status_of(work, trains=name == "tune")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Within this context, warnings are printed in one line, without their place in the code."""

    def show(message: Warning | str, category: type[Warning], *_: object) -> None:
        sys.stderr.write(printable_lines(f"fcco: {category.__name__}: {message}") + "\n")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _print_line(line: object) -> None:
    sys.stdout.write(f"{printable_lines(line)}\n")


def _kind(name: str) -> str:
    if name not in _LISTED:
        raise ArgumentTypeError(f"there is no kind {name!r}; there are {', '.join(_LISTED)}")
    return name


@_tool(
    _argument("kinds", metavar="KIND", nargs="*", type=_kind, help=f"some of: {', '.join(_LISTED)} (default: all)"),
    _argument("--copy", metavar="CONFIG", help="copy a configuration into the current folder, to be edited"),
)
def _list(options: Namespace) -> None:
    """List the classes that a configuration can name, the configurations and the searches, a line for each."""
    if options.copy is not None:
        _print_line(copy_config(options.copy, Path()))
        return
    for kind in options.kinds or _LISTED:
        if kind in KINDS:
            place, entries = KINDS[kind].place, members(kind)
        else:
            found = named_configs() if kind == "configs" else named_searches()
            entries = {name: summary(path) for name, path in found.items()}
            usage = "fcco fit --config NAME; --copy NAME copies one"
            place = usage if kind == "configs" else "fcco tune --search NAME; grids of the papers"
        _print_line(f"{kind} ({place})")
        width = 2 + max(26, *map(len, entries))
        for name, line in entries.items():
            _print_line(f"  {name:<{width}}{line}")
        _print_line("")
    _print_line(
        "fcco fit --model.algorithm.help SONEX shows the arguments of a class. Combinations that do not work are "
        "refused, with the names of the parts."
    )


@_tool(_CKPT, _argument("--json", action="store_true", help="print JSON instead of a table"))
def _inspect(options: Namespace) -> None:
    """Show the contents of a checkpoint: training state, weights and dual states. Every byte is verified."""
    from fcco_lightning.cli.checkpoint_tools import print_description  # noqa: PLC0415 - loads torch

    print_description(options.ckpt, as_json=options.json)


@_tool(
    _CKPT,
    _argument("out", metavar="OUT", help="file to write, NAME.safetensors or NAME.npz"),
    _argument("--force", action="store_true", help="overwrite OUT if it exists"),
)
def _convert(options: Namespace) -> None:
    """Write a checkpoint as plain tensors.

    The file has the network's weights (network.*), and for every dual state NAME.rows (NaN in rows that were never
    written) and NAME.seen.
    """
    from fcco_lightning.cli.checkpoint_tools import convert  # noqa: PLC0415 - loads torch

    _print_line(convert(options.ckpt, options.out, force=options.force))


@_tool(
    _CKPT,
    _TABLE,
    _argument("--out", default="predictions.csv", help="file to write, .csv or .parquet (default %(default)s)"),
    _argument("--id", dest="id_column", help="column with the rows' ids (default: their numbers)"),
    _argument(
        "--threshold", type=float, help="probability above which a decision is positive (default: as in the run)"
    ),
    _TRUSTED,
)
def _predict(options: Namespace) -> None:
    """Predict the rows of a table of numbers and categories, or of texts, with labels or without.

    The file that is written has for every row its id, its groups if the table has them, scores, probabilities and
    decisions. For images and other data: fcco predict --config CONFIG --ckpt_path CKPT (add --help for its options).
    """
    from fcco_lightning.inference import load, write_table  # noqa: PLC0415 - loads torch

    model = load(options.ckpt, trusted=options.trusted)
    write_table(model.predict(options.table, id_column=options.id_column, threshold=options.threshold), options.out)
    _print_line(options.out)


@_tool(
    _CKPT,
    _TABLE,
    _argument("--out", default="report", help="folder of the report (default %(default)s)"),
    _argument(
        "--importances", action="store_true", help="also measure how much shuffling one column of the table costs"
    ),
    _TRUSTED,
)
def _test(options: Namespace) -> None:
    """Evaluate a checkpoint on a labelled table of numbers and categories, or of texts.

    The report is that of a run on one split: figures, constraints with confidence intervals, tables and pictures, with
    the checkpoint's encoding and decisions. For images and other data: fcco test --config CONFIG --ckpt_path CKPT (add
    --help for its options).
    """
    from fcco_lightning.reports import report_on  # noqa: PLC0415 - loads torch

    report = report_on(options.ckpt, options.table, trusted=options.trusted, importances=options.importances)
    report.write(options.out)
    report.show()
    _print_line(f"Report and pictures: {options.out} (report.html shows all)")


@_tool(
    _CKPT,
    _argument(
        "out", metavar="OUT", help="NAME.pt (plain state dict), NAME.pt2 (torch.export) or NAME.onnx (needs onnx)"
    ),
    _argument("--shape", type=int, nargs="+", help="shape of one input, for networks whose inputs are not tables"),
    _TRUSTED,
)
def _export(options: Namespace) -> None:
    """Write the network of a checkpoint for other programs.

    Beside a .pt2 or .onnx file, OUT.json is written, which describes how the columns of a table become the network's
    input and how scores become decisions, and fcco_loader.py, which predicts rows where this package is not installed.
    """
    from fcco_lightning.inference import export  # noqa: PLC0415 - loads torch

    _print_line(export(options.ckpt, options.out, shape=options.shape, trusted=options.trusted))


@_tool(
    _argument("runs", metavar="RUN", nargs="+", help="folder of a run, which contains report.json"),
    _argument("--out", help="CSV file to write the table to"),
    _argument("--picture", default="comparison.png", help="PNG file to write (default %(default)s)"),
)
def _compare(options: Namespace) -> None:
    """Show finished runs side by side: the settings in which they differ, their figures, and a picture."""
    from fcco_lightning.cli.comparison import print_comparison  # noqa: PLC0415 - loads rich and matplotlib

    print_comparison(options.runs, options.out, options.picture)


@_tool(
    _argument("--config", "-c", metavar="CONFIG", action="append", default=[], help="as for fcco fit"),
    _argument("--kappas", metavar="K,K,...", help="the kappa of all constraints, for every point"),
    _argument(
        "--factors",
        metavar="F,F,...",
        default="4,2,1,0.5,0.25",
        help="the factor on the kappas of the configuration, for every point (default %(default)s)",
    ),
    _argument("--out", default="runs/front", help="folder for the points and the front (default %(default)s)"),
)
def _front(options: Namespace) -> None:
    """Measure the trade-off between a model's figures and the violation of its constraints.

    A run is trained for every kappa, from the loosest to the tightest; each starts from the weights and multipliers of
    the one before. Then a table is printed, and front.csv, front.json and front.png are written. After an interruption
    the same command continues, without training finished points again. All other options are passed to fcco fit for
    every point: --trainer.max_epochs 20, --data.train TABLE.
    """
    from fcco_lightning.cli.front import print_front  # noqa: PLC0415 - loads rich and matplotlib

    configs = [part for name in options.config for part in ("--config", name)]
    print_front([*configs, *options.of_fit], options.kappas, options.factors, options.out)


@_tool(
    _argument(
        "--search",
        dest="space",
        metavar="FILE",
        required=True,
        help="YAML file with the options to search over, or one of: fcco list searches",
    ),
    _argument(
        "--trials", type=int, default=20, help="number of fits, including those in the folder (default %(default)s)"
    ),
    _argument(
        "--folder", default="tuning", help="folder of the search, which is continued if it exists (default %(default)s)"
    ),
    _argument("--figure", help="figure of the validation split to optimise (default: the objective's figure of merit)"),
    _argument(
        "--mode",
        choices=("max", "min"),
        help="whether larger or smaller figures are better (default: min for losses and gaps)",
    ),
    _argument(
        "--sampler",
        choices=("tpe", "random", "grid"),
        default="tpe",
        help="tpe learns from earlier trials, grid tries all combinations (default %(default)s)",
    ),
    _argument("--seed", type=int, default=0, help="seed of the sampler (default %(default)s)"),
    _argument("--full", action="store_true", help="end no trial early (by default, successive halving ends poor ones)"),
)
def _tune(options: Namespace) -> None:
    """Search over the options of fcco fit: every trial is a fit with the same budget, judged on the validation split.

    Needs optuna: pip install 'fcco-lightning[tune]'. All other options are passed to fcco fit.
    """
    with quick_loading():
        from fcco_lightning.cli.tuning import print_search  # noqa: PLC0415 - loads torch and lightning

    settings = vars(options)
    print_search(settings.pop("of_fit"), **settings)
