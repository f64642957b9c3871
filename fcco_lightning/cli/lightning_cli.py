"""``fcco fit|validate|test|predict``: LightningCLI with every part configurable by class path or short name."""

import copy
import importlib
import importlib.util
import itertools
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import yaml
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.strategies import ModelParallelStrategy

import fcco_lightning
import fcco_lightning.data.datamodules
from fcco_lightning import FAMILIES, Report, public_names
from fcco_lightning.cli.catalogue import SECTIONS
from fcco_lightning.cli.failures import explain
from fcco_lightning.cli.parser import ArgumentParser
from fcco_lightning.cli.yaml_files import require_harmless
from fcco_lightning.errors import CheckpointError, ConfigError, printable, printable_lines
from fcco_lightning.state.checkpoint_files import read_file
from fcco_lightning.training import FCCOModule
from fcco_lightning.training.resuming.finding import find_own, job_identity

_TRAINER_DEFAULTS = {
    "default_root_dir": "runs",
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}

_NOISE = (  # warnings of libraries that a user cannot avoid
    ".*LeafSpec.*",
    "The number of training batches .* is smaller than the logging interval",
    r"\s*By default only one JsonargparseDeprecationWarning",
    "FSDP2-wrapped module .* returned a view tensor",  # no view is changed in place
    r"\s*skip_(none|check) parameter was deprecated",  # by Lightning
)


def _is_ours(record: logging.LogRecord) -> bool:
    """Make a line of the log printable; return False for Lightning's advertisement of a logger."""
    record.msg, record.args = printable_lines(record.getMessage()), ()
    return "Tip: For seamless cloud" not in record.msg


def _show_warning(message: Warning | str, category: type[Warning], filename: str, line: int, *_: object) -> None:
    sys.stderr.write(printable_lines(warnings.formatwarning(message, category, filename, line)))


@contextmanager
def _careful_yaml() -> Iterator[None]:
    """Within this context, values of options and nested files are read with the limits of configurations, too."""
    load_text = jsonargparse.get_loader("yaml")

    def careful(text: str) -> Any:
        if any(sign in text for sign in "{[*:"):
            require_harmless(text, f"the value {printable(text, 40)!r}")
        return load_text(text)

    jsonargparse.set_loader("yaml", careful, (yaml.YAMLError,))
    try:
        yield
    finally:
        jsonargparse.set_loader("yaml", load_text, (yaml.YAMLError,))


@contextmanager
def _without_advertisements() -> Iterator[None]:
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(_is_ours)
    try:
        yield
    finally:
        logger.removeFilter(_is_ours)


class FCCOCLI(LightningCLI):
    """LightningCLI in which explicit arguments take precedence over a checkpoint's hyperparameters.

    Args:
        args: arguments without the program's name.
        **settings: the other arguments of LightningCLI.
    """

    def __init__(self, args: list[str], **settings: Any) -> None:
        self._first = args[:1]
        super().__init__(args=args, **settings)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """The command that was typed, with the arguments to skip; making parsers of all commands would take time.

        If the first word is no command, these are all commands.
        """
        subcommands = super().subcommands()
        return {name: subcommands[name] for name in self._first if name in subcommands} or subcommands

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the sections for report, checkpoints and other callbacks, and the option for the job's name."""
        parser.add_argument(
            "--name",
            type=str | None,
            help="name of the job and of its folder below runs; --ckpt_path auto resumes its checkpoints even if other "
            "options have changed; without a name the seed, model and data identify a job",
        )
        parser.add_argument(
            "--logger",
            type=Literal["tensorboard", "wandb"] | None,
            help="logger in addition to metrics.csv; --trainer.logger replaces all loggers",
        )
        for section, name in SECTIONS.items():
            parser.add_lightning_class_args(getattr(fcco_lightning, name), section)
        parser.set_defaults(
            {
                "checkpoint.save_last": True,
                "checkpoint.filename": "{epoch}",
                "checkpoint.save_on_train_epoch_end": True,  # then last.ckpt has the last update
            }
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Sequence[str] | None) -> None:  # type: ignore[override]
        """Parse ``args``, or the command line."""
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Check the checkpoint, but do not let its hyperparameters override the command line.

        Lightning merges them into the configuration after parsing.  Here the configuration is the user's, and a
        checkpoint that does not fit it is refused when it is loaded.
        """
        command = self.config.get("subcommand")
        if command is None:
            return
        path = self.config[command].get("ckpt_path")
        if path is None and command != "fit":
            raise CheckpointError(f"fcco {command} needs --ckpt_path: without it the weights would be random.")
        if path in ("last", "auto"):
            path = self.config[command]["ckpt_path"] = self._newest_checkpoint(path)
        if path is not None:
            read_file(path, to_continue=command == "fit")

    def _newest_checkpoint(self, keyword: str) -> str | None:
        """This job's newest checkpoint, for ``last`` and ``auto``; None if ``auto`` finds none and starts anew.

        Raises:
            CheckpointError: if there is none and the command needs one.
        """
        command = self.config["subcommand"]
        folders = checkpoint_folders(self.config[command])
        search = find_own(folders, _job_of(self._typed()))
        if search.path is None and (keyword == "last" or command != "fit"):
            looked = " or ".join(str(folder.resolve()) for folder in folders)
            raise CheckpointError(
                f"--ckpt_path {keyword}: no last.ckpt of this job below {looked}{search.others}. Give the path, or "
                "what the job was given: its seed, model and data, or its --name."
            )
        rank_zero_info(f"--ckpt_path {keyword}: {search}")
        return None if search.path is None else str(search.path)

    def _run_subcommand(self, subcommand: str) -> None:
        """Carry out the command; remove the folder of a run that failed before it wrote anything.

        After bad input, a folder with only the configuration is removed, too.
        """
        try:
            super()._run_subcommand(subcommand)
        except BaseException as error:
            if self.trainer.log_dir is not None:
                folder = Path(self.trainer.log_dir)
                with suppress(OSError):  # raised if the folder is not empty
                    refused = isinstance(error, Exception) and explain(error) is not None
                    if refused and [path.name for path in folder.iterdir()] == ["config.yaml"]:
                        (folder / "config.yaml").unlink()
                    folder.rmdir()
                    folder.parent.rmdir()
            raise

    def _typed(self) -> dict[str, Any]:
        """The configuration of the command as plain values, without checking it again."""
        text = self.parser.dump(copy.deepcopy(self.config), skip_unset=True, skip_validation=True, format="yaml")
        typed: dict[str, Any] = yaml.safe_load(text).get(self.config["subcommand"], {})
        return typed

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the Trainer, with a CSV log below the run's root unless the user has chosen a logger.

        The checkpoint section is ignored if checkpoints are disabled.  ``ModelParallelStrategy``, for which
        Lightning has no short name, can be named like other strategies.
        """
        if self._get(self.config_init, "trainer.strategy") == ModelParallelStrategy.__name__:
            kwargs.setdefault("strategy", ModelParallelStrategy())
        if self._get(self.config_init, "trainer.enable_checkpointing") is False:
            self._parser(self.subcommand).callback_keys.remove("checkpoint")
        further = self._get(self.config_init, "logger")
        if self._get(self.config_init, "trainer.logger") is None:
            root = self._get(self.config_init, "trainer.default_root_dir") or Path.cwd()
            kwargs.setdefault("logger", _loggers(root, further, self._get(self.config_init, "name")))
        elif further is not None:
            raise ConfigError(f"--logger {further} and --trainer.logger are both given. Leave one of them out.")
        return super().instantiate_trainer(**kwargs)

    def before_fit(self) -> None:
        """Pass the configuration to the report and the checkpoints, and the job's identity to the latter."""
        typed = self._typed()
        self.model.job, self.model.config = _job_of(typed), typed
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Report):
                callback.config = self.model.config


def _job_of(typed: Mapping[str, Any]) -> str:
    """The job's name, or else a digest that identifies it."""
    return typed.get("name") or job_identity(typed)


def _loggers(root: str | Path, further: str | None, name: str | None) -> list[Logger]:
    """The CSV logger of a run, which comes first because its folder is the run's, and a further one if asked for.

    Raises:
        ConfigError: if its package is not installed.
    """
    log = CSVLogger(root, name="", version=None if name is None else _free(Path(root), name))
    if further is None:
        return [log]
    if importlib.util.find_spec(further) is None:
        raise ConfigError(
            f"--logger {further} needs the package {further}, which is not installed. Install it (pip install "
            "'fcco-lightning[loggers]'), or leave --logger out: metrics.csv in the run's folder has all figures."
        )
    if further == "wandb":
        return [log, WandbLogger(name=name, save_dir=root, project="fcco_lightning")]
    return [log, TensorBoardLogger(log.log_dir, name="", version="")]


def _free(root: Path, name: str) -> str:
    """The name of a run's folder: the job's name, with a number if an earlier run of the job exists.

    Raises:
        ConfigError: if the name cannot be that of a folder.
    """
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ConfigError(f"--name {name!r} becomes the name of the run's folder. Leave out slashes, and use a letter.")
    others = (f"{name}_{k}" for k in itertools.count(1))
    return next(free for free in itertools.chain([name], others) if not (root / free).exists())


def checkpoint_folders(config: Mapping[str, Any]) -> list[Path]:
    """The folders in which, or below which, a run with this configuration saves its checkpoints.

    Args:
        config: configuration of one command, with the sections ``trainer``, ``checkpoint`` and ``preemption``.
    """
    trainer = config["trainer"]
    root = trainer.get("default_root_dir") or "."
    loggers = trainer.get("logger")
    first = loggers[0] if isinstance(loggers, list) and loggers else loggers
    settings = first.get("init_args", {}) if hasattr(first, "get") else {}
    usual = root
    if trainer.get("enable_checkpointing") is not False:  # same rule as in Lightning's ModelCheckpoint
        usual = config.get("checkpoint", {}).get("dirpath") or settings.get("save_dir") or root
    interrupted = config.get("preemption", {}).get("folder")
    return [Path(usual)] if interrupted is None else [Path(usual), Path(interrupted)]


def _modules_of_families() -> list[str]:
    return sorted({home for home in public_names().values() if home.split(".")[1] in FAMILIES})


def start(args: Sequence[str], callbacks: Sequence[Callback] = ()) -> None:
    """Carry out a command line of ``fcco fit``, ``validate``, ``test`` or ``predict``.

    Args:
        args: arguments without the program's name, from :func:`~fcco_lightning.cli.shorthands.written_out`.
        callbacks: callbacks of the trainer in addition to those of the configuration.
    """
    with warnings.catch_warnings(), _without_advertisements(), _careful_yaml():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        for message in _NOISE:
            warnings.filterwarnings("ignore", message)
        for module in _modules_of_families():  # imported classes can be named without their module
            importlib.import_module(module)
        FCCOCLI(
            model_class=FCCOModule,
            datamodule_class=LightningDataModule,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            trainer_defaults=_TRAINER_DEFAULTS | {"callbacks": list(callbacks)},
            save_config_kwargs={"overwrite": True},
            parser_class=ArgumentParser,
            parser_kwargs={"prog": "fcco"},
            args=list(args),
        )
