"""Entry point of ``fcco`` and of ``python -m fcco_lightning``."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fcco_lightning.cli import run


def main(args: Sequence[str] | None = None) -> None:
    """Run ``fcco`` and exit with its status.

    Args:
        args: as on the command line, without the program's name; ``sys.argv[1:]`` by default.
    """
    if str(Path.cwd()) not in sys.path:  # parts of one's own beside the data, after all that is installed
        sys.path.append(str(Path.cwd()))
    try:
        try:
            status = run(args)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, as `head`, has enough; what is left must not be written at the exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except KeyboardInterrupt:  # while libraries are loaded; later on a command has its own way to end
        sys.stderr.write("fcco: interrupted.\n")
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
