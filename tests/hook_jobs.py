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
    """All hooks that Lightning knows of a module, a datamodule or a callback."""
    named = [n for n in dir(OWNERS[owner]) if n.startswith(_KINDS) or n in _STEPS or (n in _DATA and owner == "data")]
    return [n for n in named if callable(getattr(OWNERS[owner], n))]


def spoil(owner: str, hook: str, bad: int, part: Any) -> None:
    """Put a hook in the place of another one, which fails on one rank."""
    before = getattr(part, hook)

    def instead(*args: Any, **settings: Any) -> Any:
        if jobs.rank() == bad:
            raise ValueError(f"{owner}.{hook} is broken")
        return before(*args, **settings)

    vars(part)[hook] = instead


def fail_in(owner: str, hook: str, bad: int, checkpoint: str) -> Any:
    """Continue a fit from a checkpoint, save, validate, test and predict, where a hook of one rank fails."""
    callback = Callback()

    def before(module: Any, data: Any) -> None:
        spoil(owner, hook, bad, {"module": module, "data": data, "callback": callback}[owner])

    job = {"epochs": 2, "save": (1, 2, f"{checkpoint}.new"), "trainer": {"num_sanity_val_steps": 1}}
    if "load" in hook:
        job |= {"resume": checkpoint}
    return jobs.fit(job | {"callbacks": [callback], "before": before, "then": ("validate", "test", "predict")})


class Late(Callback):
    """The first process is long about the end of a run."""

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
    """Fit as one of two jobs says, each process as another one."""
    own = two[jobs.rank()]
    return jobs.fit(own | {"callbacks": [Report(own["report"])]} if "report" in own else own)
