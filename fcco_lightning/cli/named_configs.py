"""The configurations and searches that come with the package, by name."""

import difflib
import shutil
from pathlib import Path

from fcco_lightning import ROOT
from fcco_lightning.errors import ConfigError, did_you_mean


def named_configs() -> dict[str, Path]:
    """Every configuration by its name, ``FOLDER/FILE`` without suffix."""
    folders = (ROOT / "configs", ROOT.parent / "configs")  # in a wheel, in a checkout
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.glob("*/*.yaml"))}


def named_searches() -> dict[str, Path]:
    """The grids of the papers for ``fcco tune --search NAME``."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "searches").glob("*.yaml"))}


def summary(path: Path) -> str:
    """The first line of a configuration, a comment."""
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip()


def find_config(name: str) -> Path:
    """The file of a configuration, given its name with or without folder and suffix.

    Raises:
        ConfigError: if there is none, or if it exists in several folders.
    """
    paths, short_name = named_configs(), name.removesuffix(".yaml").removeprefix("configs/")
    matches = [full for full in paths if short_name in (full, full.partition("/")[2])]
    if len(matches) == 1:
        return paths[matches[0]]
    if matches:
        raise ConfigError(f"--config {name}: there are {' and '.join(matches)}. Name one of them.")
    candidates = [*paths, *(full.partition("/")[2] for full in paths)]
    close = list(dict.fromkeys(difflib.get_close_matches(short_name, candidates, n=2, cutoff=0.6)))
    raise ConfigError(
        f"--config {name}: there is no such file, and no configuration of that name.{did_you_mean(close)} "
        "fcco list configs names them."
    )


def copy_config(name: str, folder: Path) -> Path:
    """Copy a configuration into a folder for editing, and return the path of the copy.

    Raises:
        ConfigError: if there is no such configuration, or the file exists already.
    """
    source = find_config(name)
    target = folder / source.name
    if target.exists():
        raise ConfigError(f"{target} exists already. Rename it, or copy in another folder.")
    return Path(shutil.copyfile(source, target))
