"""The command line: what ``fcco`` and its commands do."""

from fcco_lightning.cli.commands import run

__all__ = ["run"]
