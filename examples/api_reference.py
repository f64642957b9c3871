"""The API reference, from the docstrings: ``uv run --group docs python examples/api_reference.py [FOLDER]``.

A page for every folder of the package, with search; formulas are rendered (by MathJax, from the network).
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pdoc
import pdoc.render

import fcco_lightning
from fcco_lightning import FAMILIES, public_names

BESIDE = ("analysis", "reports", "constraints.multipliers", "evaluation.metrics", "evaluation.pictures")


def modules() -> Iterator[str]:
    """The modules in which the public names are, a folder as a whole where all its classes are public."""
    yield from sorted(f"fcco_lightning.{name}" for name in (*FAMILIES, *BESIDE))
    homes = {home for home in public_names().values() if home.split(".")[1] not in FAMILIES}
    yield from sorted(homes)


def main(folder: Path) -> None:
    """Write the pages."""
    pdoc.render.configure(
        docformat="google", math=True, show_source=False, footer_text=f"fcco_lightning {fcco_lightning.__version__}"
    )
    pdoc.pdoc(*modules(), output_directory=folder)
    print(folder / "index.html")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "api"))
