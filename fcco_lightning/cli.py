"""``fcco fit|validate|test|predict``: LightningCLI with every part configurable by class path or short name."""

import copy
import signal
import sys
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import SIGTERMException

import fcco_lightning.algorithms
import fcco_lightning.constraints
import fcco_lightning.data.datamodules
import fcco_lightning.estimators
import fcco_lightning.models
import fcco_lightning.objectives
import fcco_lightning.steps  # noqa: F401 - what is imported can be named without its module
from fcco_lightning.callbacks.report import Report
from fcco_lightning.errors import CheckpointError, FCCOError
from fcco_lightning.training import FCCOModule

_TRAINER_DEFAULTS = {
    "default_root_dir": "runs",
    "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "runs", "name": ""}},
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}

_NOISE = (".*LeafSpec.*", "Using ModelCheckpoint with manual optimization")  # of Lightning, about nothing a user can do


class ArgumentParser(LightningArgumentParser):
    """Says what is wrong, without the list of all options in front of it; knows no abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # noqa: ARG002
        """Print the message and exit with status 2."""
        sys.stderr.write(f"fcco: error: {message.rstrip()}\n(fcco fit --help lists every option)\n")
        sys.exit(2)


class FCCOCLI(LightningCLI):
    """LightningCLI whose explicit arguments beat a checkpoint's hyperparameters."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Report and checkpoints as sections of their own."""
        parser.add_lightning_class_args(Report, "report")
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults({"checkpoint.save_last": True, "checkpoint.filename": "{epoch}"})

    def parse_arguments(self, parser: LightningArgumentParser, args: Sequence[str] | None) -> None:  # type: ignore[override]
        """Parse ``args``, or the command line."""
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Do not let a checkpoint's hyperparameters override what was typed.

        Lightning reads them into the configuration after the command line was parsed.  Here the configuration is what
        the user gave; a checkpoint that does not fit it is refused by name when it is loaded.
        """
        path = self.config[self.config.subcommand].get("ckpt_path") if self.config.get("subcommand") else None
        if path and path not in ("best", "last", "hpc", "registry"):
            check_checkpoint(Path(path))

    def before_fit(self) -> None:
        """Hand the configuration to the report."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Report):
                text = self.parser.dump(copy.deepcopy(self.config), skip_none=True, format="yaml")
                callback.config = yaml.safe_load(text).get("fit", {})


def check_checkpoint(path: Path) -> None:
    """Refuse a missing or damaged checkpoint file.

    Raises:
        CheckpointError: naming the file and what is wrong.
    """
    if not path.is_file():
        raise CheckpointError(f"--ckpt_path {path}: there is no such file (looked in {Path.cwd()}).")
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"--ckpt_path {path}: the file is truncated or no checkpoint. Use an earlier one.")
    with zipfile.ZipFile(path) as archive:
        try:
            damaged = archive.testzip()
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            damaged = str(error)
    if damaged:
        raise CheckpointError(f"--ckpt_path {path}: the file is damaged at {damaged}. Use an earlier one.")


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line and turn expected errors into one message.

    Args:
        args: as typed, without the program's name; None for the command line.

    Returns: the exit status: 0, 1 for an error, 2 for a mistake in the arguments, 130 or 143 when interrupted.
    """
    try:
        with warnings.catch_warnings():
            for message in _NOISE:
                warnings.filterwarnings("ignore", message)
            FCCOCLI(
                FCCOModule,
                LightningDataModule,
                subclass_mode_data=True,
                seed_everything_default=0,
                auto_configure_optimizers=False,
                trainer_defaults=_TRAINER_DEFAULTS,
                save_config_kwargs={"overwrite": True},
                parser_class=ArgumentParser,
                parser_kwargs={"prog": "fcco"},
                args=args,  # type: ignore[arg-type]
            )
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        status, explanation = _explain(error)
        if explanation is None:
            raise
        sys.stderr.write(f"\nfcco: {explanation}\n")
        return status
    return 0


def _explain(error: BaseException) -> tuple[int, str | None]:
    """Exit status and message of an expected end; None for a message if it is not expected.

    jsonargparse and Lightning wrap what our parts and the user's signals raise, so the whole chain is searched.
    """
    resume = "resume with --ckpt_path and the last checkpoint of the run."
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FCCOError):
            return 1, f"{type(cause).__name__}: {cause}"
        if isinstance(cause, SIGTERMException):
            return 128 + signal.SIGTERM, f"stopped by SIGTERM; {resume}"
        if isinstance(cause, KeyboardInterrupt):
            return 128 + signal.SIGINT, f"interrupted; {resume}"
        cause = cause.__cause__ or cause.__context__
    return 1, None
