"""The search for the checkpoint that a job resumes with ``--ckpt_path auto`` or ``last``."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.archives import opened

INTERRUPTED = "interrupted.ckpt"
"""File name of the checkpoint that a run writes when a signal ends it."""
_NAMES = ("last.ckpt", INTERRUPTED)
_DEFINING = ("seed_everything", "model", "data")
_OTHER = "is of another job"
_EXECUTION = {"num_workers", "eval_batch_size", "eval_train", "execution", "allow_changed"}


class Found(NamedTuple):
    """The result of a search for a job's checkpoint below some folders.

    Attributes:
        path: the latest checkpoint of the job; None if there is none.
        passed_over: later checkpoints -> why they are not resumed: of another job, or unreadable.
    """

    path: Path | None
    passed_over: dict[Path, str]

    def __str__(self) -> str:
        outcome = "nothing of this job to continue, starting afresh" if self.path is None else f"continuing {self.path}"
        return outcome + self.others

    @property
    def others(self) -> str:
        """A clause about :attr:`passed_over` that starts with a semicolon; empty if there is nothing to tell."""
        if not self.passed_over:
            return ""
        (first, reason), *others = self.passed_over.items()
        suffix = f" and {len(others)} more" if others else ""
        advice = " (--name gives a job a name of its own)" if reason == _OTHER else ""
        return f"; passed over {first}, which {reason}{advice}{suffix}"


def job_identity(config: Mapping[str, Any]) -> str:
    """A digest, as 16 hexadecimal digits, of the options that define a job: its seed, its model and its data.

    The length of training, devices, numbers of workers, the execution of the model's steps (``model.execution``) and
    the place of output do not change it.

    Args:
        config: the configuration of one command, as plain values.
    """
    defining = {section: _without_execution(config.get(section)) for section in _DEFINING}
    return hashlib.sha256(json.dumps(defining, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _without_execution(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {str(k): _without_execution(v) for k, v in part.items() if k not in _EXECUTION}
    return [_without_execution(v) for v in part] if isinstance(part, list | tuple) else part


def by_age(folders: Sequence[Path]) -> Iterator[Path]:
    """Every ``last.ckpt`` and ``interrupted.ckpt`` below the folders, the latest first."""
    paths = {path for folder in folders for name in _NAMES for path in folder.rglob(name) if path.is_file()}
    yield from sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def find_own(folders: Sequence[Path], job: str) -> Found:
    """The latest checkpoint below the folders that was written by the job of this name or :func:`job_identity`."""
    passed_over: dict[Path, str] = {}
    for path in by_age(folders):
        if (job_of_file := _job_of(path)) == job:
            return Found(path, passed_over)
        passed_over[path] = "cannot be read" if job_of_file is None else _OTHER
    return Found(None, passed_over)


def _job_of(path: Path) -> str | None:
    try:
        return str(opened(path)["fcco"]["job"])
    except (CheckpointError, LookupError, TypeError):  # a file that cannot be read is not of this job
        return None
