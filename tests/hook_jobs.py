"""Jobs of two processes, one of which fails in a hook of Lightning or has other arguments than the other."""

import time
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule

from fcco_lightning import Report
from tests import jobs

_KINDS = ("on_", "setup", "teardown", "configure_", "prepare_data", "transfer_batch_to_device", "load_state_dict")
_STEPS = ("training_step", "validation_step", "test_step", "predict_step", "state_dict", "manual_backward")
_DATA = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")
OWNERS = {"module": LightningModule, "data": LightningDataModule, "callback": Callback}


def hooks(owner: str) -> list[str]:
    """All hooks of Lightning for a module, a data module or a callback."""
    named = [n for n in dir(OWNERS[owner]) if n.startswith(_KINDS) or n in _STEPS or (n in _DATA and owner == "data")]
    return [n for n in named if callable(getattr(OWNERS[owner], n))]


def spoil(owner: str, hook: str, bad: int, part: Any) -> None:
    """Replace a hook by one that fails on one rank."""
    before = getattr(part, hook)

    def instead(*args: Any, **settings: Any) -> Any:
        if jobs.rank() == bad:
            raise ValueError(f"{owner}.{hook} is broken")
        return before(*args, **settings)

    vars(part)[hook] = instead


def fail_in(owner: str, hook: str, bad: int, checkpoint: str) -> Any:
    """Resume a fit from a checkpoint, save, validate, test and predict, while a hook fails on one rank."""
    callback = Callback()

    def before(module: Any, data: Any) -> None:
        spoil(owner, hook, bad, {"module": module, "data": data, "callback": callback}[owner])

    job = {"epochs": 2, "save": (1, 2, f"{checkpoint}.new"), "trainer": {"num_sanity_val_steps": 1}}
    if "load" in hook:
        job |= {"resume": checkpoint}
    return jobs.fit(job | {"callbacks": [callback], "before": before, "then": ("validate", "test", "predict")})


class Late(Callback):
    """Delays the end of a run in the first process."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if jobs.rank() == 0:
            time.sleep(self.seconds)


def end_late(seconds: float) -> Any:
    """The second process fails at the end of a fit; the first one validates much later."""
    late = Late(seconds)
    spoil("callback", "on_fit_end", 1, late)
    return jobs.fit({"epochs": 1, "callbacks": [late], "then": ("validate",)})


def fit_told(two: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    """Fit with two different jobs, one for each process."""
    own = two[jobs.rank()]
    return jobs.fit(own | {"callbacks": [Report(own["report"])]} if "report" in own else own)
