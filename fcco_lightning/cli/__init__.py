"""The command line ``fcco`` and its commands."""

from fcco_lightning.cli.commands import run

__all__ = ["run"]
